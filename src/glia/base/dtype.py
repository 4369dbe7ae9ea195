"""Element types: XLA's and the device's, with width, kind and NumPy representation.

`DTYPES` are those of XLA. `DEVICE_DTYPES` adds what only the device has: tf32, held as float32
words, and packed types of four small floats, held as one word. Arrays of these have a dtype of one
named field, so that nothing mistakes them for plain words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt


class Kind(Enum):
    """The arithmetic family of a dtype."""

    PRED = "pred"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    COMPLEX = "complex"
    PACKED = "packed"  # several values in one element


@dataclass(frozen=True)
class DType:
    """One element type; `bits` is its width in XLA, `numpy` how the host holds arrays of it."""

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any]
    packs: DType | None = None  # the dtype of the four values packed in one element

    @cached_property
    def bytes(self) -> int:
        """Bytes one element occupies in memory (narrower types are held one to a byte)."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_complex(self) -> bool:
        return self.kind is Kind.COMPLEX

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _dtype(name: str, bits: int, kind: Kind, representation: npt.DTypeLike) -> DType:
    return DType(name, bits, kind, np.dtype(representation))


PRED = _dtype("pred", 8, Kind.PRED, np.bool_)
S2 = _dtype("s2", 2, Kind.SIGNED, ml_dtypes.int2)
S4 = _dtype("s4", 4, Kind.SIGNED, ml_dtypes.int4)
S8 = _dtype("s8", 8, Kind.SIGNED, np.int8)
S16 = _dtype("s16", 16, Kind.SIGNED, np.int16)
S32 = _dtype("s32", 32, Kind.SIGNED, np.int32)
S64 = _dtype("s64", 64, Kind.SIGNED, np.int64)
U2 = _dtype("u2", 2, Kind.UNSIGNED, ml_dtypes.uint2)
U4 = _dtype("u4", 4, Kind.UNSIGNED, ml_dtypes.uint4)
U8 = _dtype("u8", 8, Kind.UNSIGNED, np.uint8)
U16 = _dtype("u16", 16, Kind.UNSIGNED, np.uint16)
U32 = _dtype("u32", 32, Kind.UNSIGNED, np.uint32)
U64 = _dtype("u64", 64, Kind.UNSIGNED, np.uint64)
F16 = _dtype("f16", 16, Kind.FLOAT, np.float16)
BF16 = _dtype("bf16", 16, Kind.FLOAT, ml_dtypes.bfloat16)
F32 = _dtype("f32", 32, Kind.FLOAT, np.float32)
F64 = _dtype("f64", 64, Kind.FLOAT, np.float64)
F8E5M2 = _dtype("f8e5m2", 8, Kind.FLOAT, ml_dtypes.float8_e5m2)
F8E4M3 = _dtype("f8e4m3", 8, Kind.FLOAT, ml_dtypes.float8_e4m3)
F8E4M3FN = _dtype("f8e4m3fn", 8, Kind.FLOAT, ml_dtypes.float8_e4m3fn)
F8E4M3B11FNUZ = _dtype("f8e4m3b11fnuz", 8, Kind.FLOAT, ml_dtypes.float8_e4m3b11fnuz)
F8E5M2FNUZ = _dtype("f8e5m2fnuz", 8, Kind.FLOAT, ml_dtypes.float8_e5m2fnuz)
F8E4M3FNUZ = _dtype("f8e4m3fnuz", 8, Kind.FLOAT, ml_dtypes.float8_e4m3fnuz)
F8E3M4 = _dtype("f8e3m4", 8, Kind.FLOAT, ml_dtypes.float8_e3m4)
F8E8M0FNU = _dtype("f8e8m0fnu", 8, Kind.FLOAT, ml_dtypes.float8_e8m0fnu)
F4E2M1FN = _dtype("f4e2m1fn", 4, Kind.FLOAT, ml_dtypes.float4_e2m1fn)
TF32 = _dtype("tf32", 32, Kind.FLOAT, [("tf32", "<f4")])
TF32_BITS = (8, 10)  # exponent, mantissa
C64 = _dtype("c64", 64, Kind.COMPLEX, np.complex64)
C128 = _dtype("c128", 128, Kind.COMPLEX, np.complex128)


def _packed(name: str, element: DType) -> DType:
    """A word of four numbers; its field has NKI's name, which programs seek in `str(dtype)`."""
    bits = 4 * element.bits
    word = np.dtype([(f"float{name[1]}_{name[2:]}", f"<u{bits // 8}")])
    return DType(name, bits, Kind.PACKED, word, element)


F8E4M3FN_X4 = _packed("f8e4m3fn_x4", F8E4M3FN)
F8E5M2_X4 = _packed("f8e5m2_x4", F8E5M2)
F4E2M1FN_X4 = _packed("f4e2m1fn_x4", F4E2M1FN)

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        PRED, S2, S4, S8, S16, S32, S64, U2, U4, U8, U16, U32, U64, F16, BF16, F32, F64,
        F8E5M2, F8E4M3, F8E4M3FN, F8E4M3B11FNUZ, F8E5M2FNUZ, F8E4M3FNUZ, F8E3M4, F8E8M0FNU,
        F4E2M1FN, C64, C128,
    )
}  # fmt: skip

PACKED_DTYPES = (F8E4M3FN_X4, F8E5M2_X4, F4E2M1FN_X4)
DEVICE_DTYPES = DTYPES | {d.name: d for d in (TF32, *PACKED_DTYPES)}

_BY_NUMPY = {d.numpy: d for d in DEVICE_DTYPES.values()}


class IntegerLimits(Protocol):
    """The range of an integer dtype."""

    min: int
    max: int


float_limits: Callable[[npt.DTypeLike], np.finfo[Any]] = ml_dtypes.finfo
"""The range and precision of a float dtype, NumPy's or of ml_dtypes."""

integer_limits: Callable[[npt.DTypeLike], IntegerLimits] = ml_dtypes.iinfo
"""The range of an integer dtype, NumPy's or of ml_dtypes."""


def from_numpy(dtype: npt.DTypeLike) -> DType:
    """Return the dtype whose host representation is `dtype`; KeyError when there is none."""
    return _BY_NUMPY[np.dtype(dtype)]
