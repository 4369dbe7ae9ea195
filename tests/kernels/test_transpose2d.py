"""The transposition kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.kernels.transpose2d import transpose2d
from support.kernel_checks import assert_reaches, normal, run_both, span_ns, transfer_ns


@pytest.mark.parametrize(
    ("rows", "shape"), [(5, (3, 4)), (1, (1, 9)), (200, (33, 40)), (3, (300, 700))]
)
@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.int8])
def test_every_row_is_a_transposed_matrix(rows: int, shape: tuple[int, int], dtype: Any) -> None:
    x = (100 * normal(rows, shape[0] * shape[1])).astype(dtype)
    expected = x.reshape(rows, *shape).swapaxes(1, 2).reshape(rows, -1)
    np.testing.assert_array_equal(run_both(transpose2d, x, shape=shape)[0], expected)


def test_a_shape_of_other_rows_is_refused() -> None:
    with pytest.raises(AssertionError, match="no shape of rows"):
        glia.simulate(transpose2d)(normal(4, 12), shape=(5, 2))


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_it_moves_data_near_the_rate_of_dma(target: str) -> None:
    x = np.zeros((1024, 2048), np.float32)
    bound = transfer_ns(2 * x.nbytes, target)
    assert_reaches(0.8, span_ns(transpose2d, x, shape=(64, 32), target=target), [bound])
