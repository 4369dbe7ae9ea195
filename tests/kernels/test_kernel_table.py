"""The table of kernels beside their rooflines."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).parents[2] / "benchmarks" / "kernel_table.py"


@pytest.fixture(scope="module")
def table() -> Any:
    """benchmarks/kernel_table.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("kernel_table", TABLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["tensor_add", "softmax", "norm", "rope", "flash", "matmul", "select"]
)
def test_kernels_are_near_their_roofline_and_never_above(table: Any, name: str) -> None:
    rows = table.kernel_rows(name)
    assert rows
    for row in rows:
        assert row.roofline <= row.span < row.latency
        # A roofline has no gaps between instructions of Scalar, which shorten rows of causal masks
        assert 0.62 <= row.fraction <= 1, row


def test_a_row_names_what_bounds_it(table: Any) -> None:
    earlier, row = table.kernel_rows("matmul_tiled")
    assert (earlier.target, earlier.bound) == ("trn1", "DMA")
    assert (row.target, row.bound) == ("trn2", "DMA")
    printed = table.table([row]).splitlines()
    assert len(printed) == 3 and printed[2].startswith("| matmul_tiled | bfloat16 2048x2048 |")
