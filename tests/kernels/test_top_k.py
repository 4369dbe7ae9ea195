"""The top-k kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from glia.kernels.top_k import top_k
from support.kernel_checks import assert_close, assert_reaches, engine_ns, normal, run_both, span_ns


@pytest.mark.parametrize(
    ("shape", "k", "dtype"),
    [
        ((3, 64), 5, np.float32),
        ((130, 96), 8, np.float32),
        ((8, 4096), 20, bfloat16),
        ((1, 32768), 64, np.float32),
        ((2, 10), 9, np.float32),
        ((5, 8), 8, bfloat16),
    ],
)
def test_the_greatest_come_in_order_each_place_once(
    shape: tuple[int, int], k: int, dtype: Any
) -> None:
    x = normal(*shape, dtype=dtype)
    values, indices = (np.asarray(each) for each in run_both(top_k, x, k=k))
    wide = x.astype(np.float32)
    expected = -np.sort(-wide, axis=1)[:, :k]
    assert_close(values, expected, 0)
    assert_close(np.take_along_axis(wide, indices, axis=1), expected, 0)
    assert all(len(set(row)) == k for row in indices.tolist())


@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.float16])
def test_what_a_mask_hides_comes_last(dtype: Any) -> None:
    x = np.full((2, 40), -np.inf, dtype)
    x[0, 5:8], x[1, 30] = (1, 3, 2), np.finfo(dtype).min if dtype != bfloat16 else -3e38
    values, indices = (np.asarray(each) for each in run_both(top_k, x, k=20))
    expected = -np.sort(-x.astype(np.float64), axis=1)[:, :20]
    np.testing.assert_array_equal(values.astype(np.float64), expected)
    assert indices[0, :3].tolist() == [6, 7, 5] and indices[1, 0] == 30


def test_rows_that_fit_no_partition_are_cut_however_many_there_are() -> None:
    x = normal(70, 20000)
    values, indices = (np.asarray(each) for each in run_both(top_k, x, k=3))
    np.testing.assert_array_equal(values, -np.sort(-x, axis=1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(x, indices, axis=1), values)


@pytest.mark.parametrize(
    ("rows", "columns", "k", "passes"),
    [(128, 8192, 64, 16 * 8192), (8, 32768, 64, 16 * (2048 + 16 * 64)), (512, 4096, 8, 4 * 8192)],
)
def test_it_searches_near_the_rate_of_vector(rows: int, columns: int, k: int, passes: int) -> None:
    x = np.zeros((rows, columns), bfloat16)
    assert_reaches(0.7, span_ns(top_k, x, k=k), (engine_ns("vector", passes),))
