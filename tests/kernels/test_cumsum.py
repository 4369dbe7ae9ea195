"""The cumulative sum kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.cumsum import cumsum
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
    ("shape", "dtype", "tolerance"),
    [
        ((130, 2500), np.float32, 1e-5),
        ((2, 3, 4097), bfloat16, 5e-3),
        ((3, 8200), np.float32, 1e-5),
        ((5, 1), np.float32, 0.0),
    ],
)
def test_each_element_is_the_sum_of_all_before(
    shape: tuple[int, ...], dtype: Any, tolerance: float
) -> None:
    x = normal(*shape, dtype=dtype)
    expected = np.cumsum(x.astype(np.float64), axis=-1)
    assert_close(run_both(cumsum, x)[0], expected, tolerance)


def test_sums_of_bfloat16_are_not_rounded_between_chunks() -> None:
    x = np.ones((1, 8193), bfloat16)
    x[0, [0, -1]] = 32  # 8223 after 8192 elements, which bfloat16 rounds to 8192
    assert run_both(cumsum, x)[0][0, -1] == 8256


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_it_scans_or_moves_near_the_rate_of_the_machine(dtype: Any) -> None:
    x = np.zeros((1024, 8192), dtype)
    bounds = transfer_ns(2 * x.nbytes), engine_ns("vector", 2 * x.size / 128)
    assert_reaches(0.7, span_ns(cumsum, x), bounds)
