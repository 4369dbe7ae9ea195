"""The gradient of the attention kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.kernels.flash_attention_backward import flash_attention_backward
from support.attention_reference import attention, scores, wide
from support.kernel_checks import assert_close, assert_reaches, engine_ns, normal, run_both, span_ns

CASES = {
    # B H G D S T causal window
    "none hidden": (1, 1, 1, 64, 128, 256, False, 0),
    "heads share keys": (2, 4, 2, 32, 128, 128, True, 0),
    "causal over blocks": (1, 1, 1, 128, 640, 640, True, 0),
    "keys that no row sees": (1, 1, 1, 16, 128, 384, True, 0),
    "window": (1, 2, 1, 64, 384, 640, True, 100),
}


def gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, grad: np.ndarray, causal: bool, window: int
) -> list[np.ndarray]:
    shared, scale = q.shape[1] // k.shape[1], q.shape[2] ** -0.5
    out, lse = attention(q, k, v, causal, window)
    power = np.exp(scores(q, k, causal, window) - lse[..., None])
    keys, values = (np.repeat(wide(each), shared, 1) for each in (k, v))
    slopes = wide(grad) @ values.swapaxes(2, 3)
    change = power * (slopes - (out * wide(grad)).sum(-1, keepdims=True)) * scale
    per_head = change.swapaxes(2, 3) @ wide(q).swapaxes(2, 3), power.swapaxes(2, 3) @ wide(grad)
    batch, groups, count, width = v.shape
    by_group = [each.reshape(batch, groups, shared, count, width).sum(2) for each in per_head]
    return [change @ keys.swapaxes(2, 3), *by_group]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (bfloat16, 3e-2)])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_it_is_the_gradient(
    case: tuple[Any, ...], dtype: Any, tolerance: float, target: str
) -> None:
    batch, heads, groups, width, rows, keys, causal, window = case
    q = normal(batch, heads, width, rows, dtype=dtype)
    k = normal(batch, groups, width, keys, dtype=dtype)
    v = normal(batch, groups, keys, width, dtype=dtype)
    grad = normal(batch, heads, rows, width, dtype=dtype)
    out, lse = attention(q, k, v, causal, window)
    given = q, k, v, out.astype(dtype), grad, lse.astype(np.float32)
    results = run_both(
        flash_attention_backward, *given, causal=causal, window=window, target=target
    )
    for result, expected in zip(results, gradients(q, k, v, grad, causal, window), strict=True):
        assert_close(result, expected, tolerance)


def test_a_part_of_a_tile_is_refused() -> None:
    q, k, v = normal(1, 1, 8, 100), normal(1, 1, 8, 128), normal(1, 1, 128, 8)
    out, lse = normal(1, 1, 100, 8), normal(1, 1, 100)
    with pytest.raises(AssertionError, match="not multiples of 128"):
        glia.simulate(flash_attention_backward)(q, k, v, out, out, lse)


def test_it_keeps_the_array_busy() -> None:
    size = 2048
    q, k = (np.zeros((1, 1, 128, size), bfloat16) for _ in range(2))
    v, out, grad = (np.zeros((1, 1, size, 128), bfloat16) for _ in range(3))
    lse = np.zeros((1, 1, size), np.float32)
    span = span_ns(flash_attention_backward, q, k, v, out, grad, lse, causal=False)
    assert_reaches(0.69, span, [engine_ns("tensor", 6 * size * size / 128)])
