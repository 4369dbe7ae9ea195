"""How values change dtype on the device: widened to float32, rounded once on the way out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from glia.base.dtype import PRED, DType

Array = np.ndarray[Any, Any]

_INTEGER_KINDS = "iu"


def is_integer(dtype: np.dtype) -> bool:
    """Whether a host dtype holds integers (4-bit ones included)."""
    return dtype.kind in _INTEGER_KINDS or dtype in (ml_dtypes.int4, ml_dtypes.uint4)


def widen(array: Array) -> Array:
    """The array in float32, as engines read every operand of an arithmetic operator."""
    return array.astype(np.float32, copy=False)


def narrow(array: Array, dtype: DType) -> Array:
    """The array in `dtype`.

    The same dtype is kept bit by bit. A float becomes an integer by rounding to nearest, ties to
    even, and saturating; NaN becomes 0 (assumed). An integer becomes a narrower one by
    saturating, as it would through float32, but without losing bits above the 24th. Everything
    else goes through float32 and rounds to nearest even.
    """
    if array.dtype == dtype.numpy:
        return array
    if dtype is PRED:
        return np.asarray(array != 0)
    if dtype.is_integer:
        return _saturate(array, dtype)
    if array.dtype != np.float32 and array.dtype.kind != "b":
        array = array.astype(np.float32)
    return array.astype(dtype.numpy)


def _saturate(array: Array, dtype: DType) -> Array:
    limits = ml_dtypes.iinfo(dtype.numpy)
    low, high = int(limits.min), int(limits.max)
    if array.dtype.kind == "b":
        return array.astype(dtype.numpy)
    if is_integer(array.dtype):
        wide = array.astype(np.int64) if array.dtype != np.uint64 else array
        return np.clip(wide, low, high).astype(dtype.numpy)
    wide = np.rint(array.astype(np.float64))
    wide = np.where(np.isnan(wide), 0.0, wide)
    if dtype.bits < 64:
        return np.clip(wide, low, high).astype(np.int64).astype(dtype.numpy)
    inside = (wide > float(low)) & (wide < float(high))
    whole = np.where(inside, wide, 0.0).astype(dtype.numpy)
    edge = np.where(wide > 0, dtype.numpy.type(high), dtype.numpy.type(low))
    return np.where(inside, whole, edge)


def bits_of(value: float, dtype: np.dtype) -> Any:
    """An immediate as a scalar of `dtype`: integers wrap to its width."""
    if not is_integer(dtype):
        return dtype.type(value)
    width = 8 * dtype.itemsize
    unsigned = int(value) & ((1 << width) - 1)
    return np.array(unsigned, dtype=f"u{dtype.itemsize}").astype(dtype)[()]
