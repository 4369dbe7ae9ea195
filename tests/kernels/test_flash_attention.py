"""The attention kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.kernels.flash_attention import flash_attention
from support.attention_reference import attention
from support.kernel_checks import assert_close, assert_reaches, engine_ns, normal, run_both, span_ns

CASES = {
    # B H G D S T causal window
    "few keys, none hidden": (1, 1, 1, 64, 5, 7, False, 0),
    "heads share keys": (2, 4, 2, 32, 200, 200, True, 0),
    "more keys than a block": (1, 2, 1, 128, 300, 1100, False, 0),
    "causal over blocks": (1, 1, 1, 64, 1300, 1300, True, 0),
    "more rows than keys": (1, 1, 1, 16, 300, 140, True, 0),
    "window": (1, 1, 1, 64, 700, 700, True, 100),
    "window of whole tiles": (1, 1, 1, 16, 600, 640, True, 256),
    "window of one": (1, 1, 1, 16, 200, 200, True, 1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (bfloat16, 2e-2)])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_it_is_attention(case: tuple[Any, ...], dtype: Any, tolerance: float, target: str) -> None:
    batch, heads, groups, width, rows, keys, causal, window = case
    q = normal(batch, heads, width, rows, dtype=dtype)
    k = normal(batch, groups, width, keys, dtype=dtype)
    v = normal(batch, groups, keys, width, dtype=dtype)
    results = run_both(
        flash_attention, q, k, v, causal=causal, window=window, with_lse=True, target=target
    )
    for result, expected in zip(results, attention(q, k, v, causal, window), strict=True):
        assert_close(result, expected, tolerance)


def test_great_scores_do_not_overflow() -> None:
    q, k, v = 100 * normal(1, 1, 32, 130), 100 * normal(1, 1, 32, 130), normal(1, 1, 130, 32)
    result = run_both(flash_attention, q, k, v)[0]
    assert_close(result, attention(q, k, v, True, 0)[0], 1e-3)


def test_heads_that_do_not_share_evenly_are_refused() -> None:
    q, k, v = normal(1, 3, 8, 4), normal(1, 2, 8, 4), normal(1, 2, 4, 8)
    with pytest.raises(AssertionError, match="do not divide"):
        glia.simulate(flash_attention)(q, k, v)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, bfloat16)


@pytest.mark.parametrize("causal", [False, True])
def test_vector_and_scalar_share_the_work_evenly(causal: bool) -> None:
    """For 128 rows maxima, exponentials with a bias and turned tiles of 512 keys; sums of 1024."""
    size = 4096
    span = span_ns(
        flash_attention, zeros(1, 1, 128, size), zeros(1, 1, 128, size), zeros(1, 1, size, 128),
        causal=causal,
    )  # fmt: skip
    keys = [first + 128 if causal else size for first in range(0, size, 128)]
    vector = engine_ns("vector", 579 + 323) * sum(keys) / 512
    scalar = engine_ns("scalar", 708) * sum(keys) / 512
    sums = engine_ns("vector", 195) * sum(-(-count // 1024) for count in keys)
    array = engine_ns("tensor", 3 * sum(keys))
    assert_reaches(0.68, span, [array, (vector + scalar + sums) / 2])
