"""The normalisation kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.arch import get_target
from glia.base.errors import CompileError
from glia.kernels.layernorm import layernorm
from glia.kernels.rmsnorm import rmsnorm, rmsnorm_quantized
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)

SHAPES = [(1, 1), (5, 7), (300, 1000)]
DTYPES = [(np.float32, 1e-5), (bfloat16, 1e-2)]


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def rms(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    root = np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-6)
    return wide(x) / root * wide(gamma)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_layernorm_is_that_of_numpy(
    shape: tuple[int, int], dtype: Any, tolerance: float, target: str
) -> None:
    x, gamma, beta = (normal(*s, dtype=dtype) for s in (shape, shape[1:], shape[1:]))
    away = wide(x) - wide(x).mean(1, keepdims=True)
    normal_rows = away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-5)
    result = run_both(layernorm, x, gamma, beta, target=target)[0]
    assert_close(result, normal_rows * wide(gamma) + wide(beta), tolerance)


def test_layernorm_of_great_means_keeps_the_deviations() -> None:
    x = 1e4 + normal(64, 512)
    ones, zeros = np.ones(512, np.float32), np.zeros(512, np.float32)
    away = wide(x) - wide(x).mean(1, keepdims=True)
    expected = away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-5)
    assert_close(run_both(layernorm, x, ones, zeros)[0], expected, 1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rmsnorm_is_that_of_numpy(shape: tuple[int, int], dtype: Any, tolerance: float) -> None:
    x, gamma = normal(*shape, dtype=dtype), normal(*shape[1:], dtype=dtype)
    assert_close(run_both(rmsnorm, x, gamma)[0], rms(x, gamma), tolerance)


@pytest.mark.parametrize("shape", [(5, 7), (200, 640)])
def test_quantized_rows_use_the_whole_range_and_scale_back(shape: tuple[int, int]) -> None:
    x, gamma = normal(*shape, dtype=bfloat16), normal(*shape[1:], dtype=bfloat16)
    rows, scales = run_both(rmsnorm_quantized, x, gamma)
    np.testing.assert_array_equal(np.abs(wide(rows)).max(1), np.full(shape[0], 240))
    assert_close(wide(rows) * scales, rms(x, gamma), 4e-2)


def test_rows_of_zeros_stay_zero_when_quantized() -> None:
    rows, scales = run_both(rmsnorm_quantized, np.zeros((2, 8), np.float32), normal(8))
    assert not wide(rows).any() and (scales > 0).all()


def test_a_row_longer_than_a_partition_is_refused() -> None:
    with pytest.raises(CompileError, match="it needs 240000 bytes"):
        span_ns(rmsnorm, np.zeros((128, 60000), np.float32), np.zeros(60000, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_they_are_bound_by_what_they_say(dtype: Any) -> None:
    x, row = np.zeros((4096, 2048), dtype), np.zeros(2048, dtype)
    per_row = x.size / 128
    moved = transfer_ns(2 * x.nbytes)
    bounds = moved, engine_ns("scalar", 3 * per_row), engine_ns("vector", 2 * per_row)
    assert_reaches(0.8, span_ns(layernorm, x, row, row), bounds)
    paired = get_target("trn2").arch.two_input_cycles
    bounds = moved, engine_ns("scalar", per_row), engine_ns("vector", paired * per_row)
    assert_reaches(0.8, span_ns(rmsnorm, x, row), bounds)
    cycles = 1 + paired
    bounds = transfer_ns(x.nbytes + x.size), engine_ns("vector", cycles * per_row)
    assert_reaches(0.75, span_ns(rmsnorm_quantized, x, row), bounds)
