"""`neuron_dtypes` converts host arrays between the dtypes of NKI."""

from __future__ import annotations

import numpy as np
import pytest

import neuron_dtypes as dt
import nki.language as nl
from glia.nki.beta1.errors import UnsupportedHere


@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
def test_four_values_are_packed_and_unpacked(name: str) -> None:
    values = np.array([[1, -2, 0.5, 4, 3, 0, -1.5, 6]], np.float32)
    packed = dt.static_cast(values, getattr(nl, name))
    assert packed.dtype == getattr(dt, name) and packed.shape == (1, 2)
    np.testing.assert_array_equal(dt.static_cast(packed, np.float32), values)
    assert dt.static_cast(packed, name) is packed
    assert dt.sizeinbytes(name) == packed.itemsize
    assert np.zeros(2, name).dtype == np.dtype(name) == packed.dtype


def test_other_dtypes_keep_the_shape() -> None:
    values = np.array([1.25, -3.0])
    for dtype in (nl.bfloat16, np.float16, dt.float8_e4m3, np.int32, np.int64):
        cast = dt.static_cast(values, dtype)
        assert cast.dtype == np.dtype(dtype) and cast.shape == (2,)
    assert dt.static_cast(1.5, nl.bfloat16) == 1.5


def test_what_holds_no_four_values_is_not_packed() -> None:
    with pytest.raises(UnsupportedHere, match="four values of the last axis"):
        dt.static_cast(np.ones((2, 3), np.float32), dt.float8_e5m2_x4)


def test_kinds_and_limits() -> None:
    assert dt.is_float_type(nl.bfloat16) and dt.is_float_type(np.float64)
    assert not dt.is_float_type(np.int64) and dt.sizeinbytes(np.int64) == 8
    assert dt.finfo(nl.bfloat16).dtype == dt.bfloat16
    with pytest.raises(TypeError):
        dt.sizeinbytes("float3")
