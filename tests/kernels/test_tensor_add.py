"""The addition kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.kernels.tensor_add import tensor_add
from support.kernel_checks import assert_reaches, normal, run_both, span_ns, transfer_ns


@pytest.mark.parametrize("shape", [(5,), (256, 1024), (3, 1025), (2, 3, 5, 7)])
@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_tensors_of_any_shape_add_exactly(shape: tuple[int, ...], dtype: Any) -> None:
    a, b = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    np.testing.assert_array_equal(run_both(tensor_add, a, b)[0], a + b)


def test_tensors_of_different_shapes_are_refused() -> None:
    with pytest.raises(AssertionError, match="differ"):
        glia.simulate(tensor_add)(normal(2, 3), normal(3, 2))


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_it_moves_data_near_the_rate_of_dma(target: str) -> None:
    a = np.zeros((512, 2048), np.float32)
    bound = transfer_ns(3 * a.nbytes, target)
    assert_reaches(0.8, span_ns(tensor_add, a, a, target=target), [bound])
