"""The average pooling kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.images.average_pool2d import average_pool2d
from support.kernel_checks import (
    assert_close,
    assert_reaches,
    engine_ns,
    normal,
    run_both,
    span_ns,
    transfer_ns,
)


@pytest.mark.parametrize(
    ("shape", "pool", "dtype", "tolerance"),
    [
        ((2, 6, 6), 2, bfloat16, 1e-2),
        ((130, 8, 10), 2, np.float32, 1e-6),
        ((3, 7, 11), 3, np.float32, 1e-6),
        ((1, 64, 33), 4, np.float32, 1e-6),
    ],
)
def test_windows_become_their_means(
    shape: tuple[int, ...], pool: int, dtype: Any, tolerance: float
) -> None:
    image = normal(*shape, dtype=dtype)
    channels, high, wide = shape[0], shape[1] // pool, shape[2] // pool
    whole = image[:, : high * pool, : wide * pool].astype(np.float32)
    expected = whole.reshape(channels, high, pool, wide, pool).mean((2, 4))
    assert_close(run_both(average_pool2d, image, pool=pool)[0], expected, tolerance)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_it_moves_or_adds_near_the_rate_of_the_machine(dtype: Any) -> None:
    image = np.zeros((64, 224, 224), dtype)
    bounds = transfer_ns(image.nbytes * 1.25), engine_ns("vector", image.size / 128)
    assert_reaches(0.7, span_ns(average_pool2d, image, pool=2), bounds)
