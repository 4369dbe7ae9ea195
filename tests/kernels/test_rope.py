"""The rotary embedding kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.kernels.rope import rope
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)


def angles(positions: int, half: int) -> np.ndarray:
    return np.arange(positions)[:, None] * 10.0 ** (-np.arange(half) / half)


@pytest.mark.parametrize("shape", [(5, 1, 8), (130, 3, 64), (128, 2, 2)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (bfloat16, 2e-2)])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_pairs_turn_by_their_angle(
    shape: tuple[int, int, int], dtype: Any, tolerance: float, target: str
) -> None:
    x, turn = normal(*shape, dtype=dtype), angles(shape[0], shape[2] // 2)
    left, right = np.split(x.astype(np.float64), 2, axis=2)
    expected = (left + 1j * right) * np.exp(1j * turn)[:, None]
    cos, sin = np.cos(turn).astype(dtype), np.sin(turn).astype(dtype)
    result = run_both(rope, x, cos, sin, target=target)[0]
    assert_close(result, np.concatenate([expected.real, expected.imag], 2), tolerance)


def test_tables_in_float32_serve_features_in_bfloat16() -> None:
    x, turn = normal(6, 2, 4, dtype=bfloat16), angles(6, 2)
    wide = [np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)]
    narrow = [table.astype(bfloat16) for table in wide]
    np.testing.assert_array_equal(run_both(rope, x, *wide)[0], run_both(rope, x, *narrow)[0])


def test_an_odd_number_of_features_is_refused() -> None:
    with pytest.raises(AssertionError, match="paired"):
        glia.simulate(rope)(normal(4, 2, 3), normal(4, 1), normal(4, 1))


def test_float32_is_shared_by_two_engines() -> None:
    x, table = np.zeros((2048, 16, 128), np.float32), np.zeros((2048, 64), np.float32)
    cycles = 6 * x.size / 128 / 2
    moved = transfer_ns(2 * x.nbytes + 2 * table.nbytes)
    assert_reaches(0.7, span_ns(rope, x, table, table), (moved, engine_ns("vector", cycles)))


def test_bfloat16_is_vectors_alone() -> None:
    x, table = np.zeros((2048, 16, 128), bfloat16), np.zeros((2048, 64), bfloat16)
    bounds = transfer_ns(2 * x.nbytes), engine_ns("vector", 1.5 * x.size / 128)
    assert_reaches(0.7, span_ns(rope, x, table, table), bounds)
