"""Element types of the interface, by their numbers, as types of NumPy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

from glia.plugins.pjrt.c_memory import CArray, c_array
from glia.plugins.pjrt.errors import UnknownElementType

MAX_LAYOUTS = 4096  # cached by dtype and shape, least recently used evicted

_BY_NUMBER: dict[int, type] = {
    1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64,
    6: np.uint8, 7: np.uint16, 8: np.uint32, 9: np.uint64,
    10: np.float16, 11: np.float32, 12: np.float64, 13: ml_dtypes.bfloat16,
    14: np.complex64, 15: np.complex128,
    16: ml_dtypes.float8_e5m2, 17: ml_dtypes.float8_e4m3fn, 18: ml_dtypes.float8_e4m3b11fnuz,
    19: ml_dtypes.float8_e5m2fnuz, 20: ml_dtypes.float8_e4m3fnuz,
    21: ml_dtypes.int4, 22: ml_dtypes.uint4, 24: ml_dtypes.int2, 25: ml_dtypes.uint2,
    26: ml_dtypes.float8_e4m3, 27: ml_dtypes.float8_e3m4, 28: ml_dtypes.float8_e8m0fnu,
    29: ml_dtypes.float4_e2m1fn,
}  # fmt: skip
_NUMBERS = {np.dtype(kind): number for number, kind in _BY_NUMBER.items()}


def dtype_of(number: int) -> np.dtype:
    """The type of NumPy; UnknownElementType for tokens and what is newer than this table."""
    if number not in _BY_NUMBER:
        raise UnknownElementType(number=number)
    return np.dtype(_BY_NUMBER[number])


@dataclass(frozen=True)
class ArrayLayout:
    """Dtype and shape of an array as C sees them: dense, the last dimension minor."""

    number: int
    dimensions: CArray
    minor_to_major: CArray
    bytes: int


@lru_cache(maxsize=MAX_LAYOUTS)
def array_layout(dtype: np.dtype, shape: tuple[int, ...]) -> ArrayLayout:
    """The layout of arrays of a dtype and shape."""
    rank = len(shape)
    return ArrayLayout(
        _NUMBERS[dtype],
        c_array(ctypes.c_int64, shape),
        c_array(ctypes.c_int64, range(rank - 1, -1, -1)),
        dtype.itemsize * int(np.prod(shape, dtype=np.int64)),
    )
