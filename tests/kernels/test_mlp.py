"""The feed-forward kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.kernels.mlp import mlp, swiglu
from glia.nki import language as nl
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)

SIZES = [(3, 128, 256), (5, 64, 130), (200, 130, 300)]
DTYPES = [(np.float32, 1e-5), (bfloat16, 3e-2)]


def weights(width: int, hidden: int, dtype: Any) -> list[np.ndarray]:
    """gate, up and down, scaled so that values stay near 1."""
    shapes = (width, hidden), (width, hidden), (hidden, width)
    return [(normal(*shape) / shape[0] ** 0.5).astype(dtype) for shape in shapes]


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_the_gate_opens_what_passes(
    sizes: tuple[int, int, int], dtype: Any, tolerance: float, target: str
) -> None:
    tokens, width, hidden = sizes
    x, made = normal(tokens, width, dtype=dtype), weights(width, hidden, dtype)
    given, gate, up, down = wide(x, *made)
    expected = (silu(given @ gate) * (given @ up)) @ down
    assert_close(run_both(swiglu, x, *made, target=target)[0], expected, tolerance)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_any_function_stands_between_the_products(
    sizes: tuple[int, int, int], dtype: Any, tolerance: float
) -> None:
    tokens, width, hidden = sizes
    x, (_, *made) = normal(tokens, width, dtype=dtype), weights(width, hidden, dtype)
    given, up, down = wide(x, *made)
    expected = np.maximum(given @ up, 0) @ down
    assert_close(run_both(mlp, x, *made, function=nl.relu)[0], expected, tolerance)


def test_more_tokens_than_a_bank_holds_are_a_loop() -> None:
    x, made = normal(1100, 128), weights(128, 128, np.float32)
    given, gate, up, down = wide(x, *made)
    expected = (silu(given @ gate) * (given @ up)) @ down
    assert_close(run_both(swiglu, x, *made)[0], expected, 1e-5)


def test_weights_of_other_sizes_are_refused() -> None:
    gate, up, down = weights(128, 256, np.float32)
    with pytest.raises(AssertionError, match="does not fit"):
        glia.simulate(swiglu)(normal(4, 64), gate, up, down)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, bfloat16)


def test_many_tokens_keep_the_array_busy() -> None:
    args = zeros(512, 2048), zeros(2048, 2816), zeros(2048, 2816), zeros(2816, 2048)
    bound = engine_ns("tensor", 3 * 512 * 2048 * 2816 / 128**2)
    assert_reaches(0.9, span_ns(swiglu, *args), [bound])


def test_few_tokens_read_the_weights_at_the_rate_of_dma() -> None:
    args = zeros(32, 2048), zeros(2048, 2816), zeros(2048, 2816), zeros(2816, 2048)
    bound = transfer_ns(3 * 2048 * 2816 * 2)
    assert_reaches(0.7, span_ns(swiglu, *args), [bound])
