"""The gradient of max pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.images.select_and_scatter import select_and_scatter
from support.kernel_checks import (
    RANDOM,
    assert_close,
    assert_reaches,
    engine_ns,
    run_both,
    span_ns,
    transfer_ns,
)


def reference(image: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Window by window; argmax names the first of several."""
    batch, channels, height, width = image.shape
    border = ((0, 0), (0, 0), (1, 1), (1, 1))
    padded = np.pad(image.astype(np.float64), border, constant_values=-np.inf)
    out = np.zeros(padded.shape)
    n, c = np.indices((batch, channels))
    for i in range(height // 2):
        for j in range(width // 2):
            window = padded[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            place = window.reshape(batch, channels, 9).argmax(-1)
            out[n, c, 2 * i + place // 3, 2 * j + place % 3] += source[:, :, i, j]
    return out[:, :, 1:-1, 1:-1]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 2, 4, 6), np.float32),
        ((2, 3, 20, 90), np.float32),
        ((1, 130, 8, 8), bfloat16),
        ((1, 2, 2, 2), np.float32),
    ],
)
def test_gradients_go_to_the_first_maximum(shape: tuple[int, ...], dtype: Any) -> None:
    windows = (*shape[:2], shape[2] // 2, shape[3] // 2)
    image = RANDOM.integers(0, 5, shape).astype(dtype)  # many are equal
    source = RANDOM.integers(-4, 5, windows).astype(dtype)
    found = run_both(select_and_scatter, image, source)[0]
    assert_close(found, reference(image, source), 0)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_it_keeps_vector_busy(dtype: Any) -> None:
    image, source = np.zeros((2, 64, 112, 112), dtype), np.zeros((2, 64, 56, 56), dtype)
    bounds = (
        transfer_ns(2 * image.nbytes + source.nbytes),
        engine_ns("vector", 33.75 * 56 * 56),
    )
    assert_reaches(0.7, span_ns(select_and_scatter, image, source), bounds)
