"""Distances of arrays in units in the last place, and how many of them rounding explains."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

# Units that other orders of summation and the engines' own functions explain, by bits of mantissa
ROUNDING_OF_FLOAT32 = 1024.0
ROUNDING_OF_NARROW_FLOATS = 4.0
FLOAT32_MANTISSA = 23
FEW_ROUNDINGS = 16.0


def ulps(found: Array, wanted: Array) -> Array:
    """The distance of each element, in units in the last place of what is wanted.

    A unit is that of the element, or of the root mean square of all where that is larger, since
    sums that cancel are as exact as what they add. It is infinite for a number in place of a NaN or
    an infinity and the reverse; of integers and predicates it is the difference.
    """
    if wanted.dtype.kind == "c":
        found, wanted = (np.ascontiguousarray(each).view(_part(each)) for each in (found, wanted))
    if not is_float(wanted):
        difference: Array = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
        return difference
    mantissa = int(_finfo(wanted.dtype).nmant)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    typical = float(np.sqrt(np.mean(b[finite] ** 2))) if finite.any() else 0.0
    smallest = float(_finfo(wanted.dtype).smallest_normal)
    scale = np.maximum(np.abs(np.where(finite, b, 0.0)), max(typical, smallest))
    unit = np.exp2(np.floor(np.log2(scale)) - mantissa)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a - b) / unit
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    distance = np.where(np.isfinite(a) & finite, distance, np.inf)
    return np.where(equal, 0.0, distance)


def _finfo(dtype: np.dtype[Any]) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes does not type it


def _part(array: Array) -> type[np.floating[Any]]:
    return np.float32 if array.dtype == np.complex64 else np.float64


def is_float(array: Array) -> bool:
    """Whether an array holds floating-point numbers, those of ml_dtypes included."""
    if array.dtype.kind == "f":
        return True
    try:
        _finfo(array.dtype)
    except ValueError:
        return False
    return True


def rounding(array: Array) -> float:
    """The units that rounding explains in an array of this type."""
    if array.dtype.kind == "c":
        return ROUNDING_OF_FLOAT32
    if not is_float(array):
        return 0.0
    is_narrow = int(_finfo(array.dtype).nmant) < FLOAT32_MANTISSA
    return ROUNDING_OF_NARROW_FLOATS if is_narrow else ROUNDING_OF_FLOAT32


def are_among(values: Array, known: Array) -> Array:
    """Which values are, up to the rounding of a few operations, among known ones of their type."""
    if not is_float(values):
        return np.isin(values, known)
    mantissa = int(_finfo(values.dtype).nmant)
    wide, right = values.astype(np.float64), np.unique(known.astype(np.float64))
    right = right[~np.isnan(right)]
    found = np.isnan(wide) & bool(np.isnan(known.astype(np.float64)).any())
    if not right.size:
        return found
    after = np.searchsorted(right, wide).clip(0, right.size - 1)
    before = (after - 1).clip(0)
    finite = right[np.isfinite(right)]
    typical = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    few = FEW_ROUNDINGS if mantissa >= FLOAT32_MANTISSA else 0.0
    room = np.maximum(np.abs(wide), typical) * 2.0**-mantissa * few
    with np.errstate(invalid="ignore"):
        for place in (before, after):
            found |= (right[place] == wide) | (np.abs(right[place] - wide) <= room)
    return found
