"""The cross-entropy kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.cross_entropy import cross_entropy_backward, cross_entropy_forward
from support.kernel_checks import (
    RANDOM,
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)


@pytest.mark.parametrize(
    ("positions", "vocabulary", "dtype", "tolerance"),
    [(130, 9000, np.float32, 1e-5), (5, 4096, bfloat16, 5e-3), (3, 7, np.float32, 1e-5)],
)
def test_losses_and_gradients_are_those_of_the_formula(
    positions: int, vocabulary: int, dtype: Any, tolerance: float
) -> None:
    logits = (normal(positions, vocabulary) * 5).astype(dtype)
    targets = RANDOM.integers(0, vocabulary, positions).astype(np.int32)
    wide, rows = logits.astype(np.float64), np.arange(positions)
    exponentials = np.exp(wide - wide.max(1, keepdims=True))
    sums = np.log(exponentials.sum(1)) + wide.max(1)
    loss, lse = run_both(cross_entropy_forward, logits, targets)
    assert_close(lse, sums, 1e-6)
    assert_close(loss + wide[rows, targets], sums, 1e-6)  # what large numbers leave may be small
    expected = exponentials / exponentials.sum(1, keepdims=True)
    expected[rows, targets] -= 1
    scale = 1 / positions
    found = run_both(cross_entropy_backward, logits, targets, np.asarray(lse), scale=scale)
    assert_close(found[0], expected * scale, tolerance)


def test_large_logits_do_not_overflow() -> None:
    logits = np.full((2, 5000), 1e4, np.float32)
    logits[1] = -1e4
    targets = np.array([4999, 0], np.int32)
    loss, _ = run_both(cross_entropy_forward, logits, targets)
    np.testing.assert_allclose(loss, np.log(5000), rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_forward_and_backward_are_near_the_rate_of_the_machine(dtype: Any) -> None:
    positions, vocabulary = 256, 32768
    logits, targets = np.zeros((positions, vocabulary), dtype), np.zeros(positions, np.int32)
    bounds = transfer_ns(logits.nbytes), engine_ns("vector", logits.size / 128)
    assert_reaches(0.7, span_ns(cross_entropy_forward, logits, targets), bounds)
    lse = np.zeros(positions, np.float32)
    span = span_ns(cross_entropy_backward, logits, targets, lse, scale=0.5)
    assert_reaches(0.7, span, (transfer_ns(2 * logits.nbytes),))
