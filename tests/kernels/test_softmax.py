"""The softmax kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.softmax import softmax
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)

DTYPES = [(np.float32, 1e-5), (bfloat16, 1e-2)]


def expected(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (128, 300), (300, 1000)])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rows_of_any_length_add_up_to_one(
    shape: tuple[int, int], dtype: Any, tolerance: float
) -> None:
    x = normal(*shape, dtype=dtype)
    assert_close(run_both(softmax, x)[0], expected(x), tolerance)


def test_great_and_infinitely_small_values_are_no_overflow() -> None:
    x = np.array([[1e30, 0.0, -1e30], [-np.inf, 3.0, 3.0]], np.float32)
    np.testing.assert_array_equal(run_both(softmax, x)[0], [[1, 0, 0], [0, 0.5, 0.5]])


def test_a_row_too_long_to_overlap_is_worked_on_alone() -> None:
    x = normal(200, 16000)
    assert_close(run_both(softmax, x)[0], expected(x), 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_it_is_bound_by_dma_or_vector(dtype: Any) -> None:
    x = np.zeros((4096, 2048), dtype)
    cycles = x.size / 128 * 1.5
    bounds = transfer_ns(2 * x.nbytes), engine_ns("vector", cycles)
    assert_reaches(0.8, span_ns(softmax, x), bounds)
