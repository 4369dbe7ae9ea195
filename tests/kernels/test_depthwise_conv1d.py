"""The depthwise convolution kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.depthwise_conv1d import depthwise_conv1d
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
    ("shape", "length", "dtype", "tolerance"),
    [
        ((2, 130, 50), 4, np.float32, 1e-6),
        ((1, 5, 5000), 3, bfloat16, 1e-2),
        ((1, 3, 9), 9, np.float32, 1e-6),
        ((1, 16, 700), 1, np.float32, 1e-6),
    ],
)
def test_each_channel_meets_its_own_taps(
    shape: tuple[int, ...], length: int, dtype: Any, tolerance: float
) -> None:
    image, taps = normal(*shape, dtype=dtype), normal(shape[1], length, dtype=dtype)
    wide = np.lib.stride_tricks.sliding_window_view(image.astype(np.float32), length, axis=2)
    expected = np.einsum("ncqs,cs->ncq", wide, taps.astype(np.float32))
    assert_close(run_both(depthwise_conv1d, image, taps)[0], expected, tolerance)


@pytest.mark.parametrize(("dtype", "passes"), [(np.float32, 4), (bfloat16, 1)])
def test_it_multiplies_near_the_rate_of_the_machine(dtype: Any, passes: int) -> None:
    image, taps = np.zeros((1, 1024, 8192), dtype), np.zeros((1024, 4), dtype)
    columns = 8 * (8192 - 4 + 1)
    bounds = transfer_ns(2 * image.nbytes), engine_ns("tensor", 4 * passes * columns)
    assert_reaches(0.7, span_ns(depthwise_conv1d, image, taps), bounds)
