"""The dtypes of NKI by name, with the machine's dtype of each."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from glia.base import dtype as types
from glia.base.dtype import DType, float_limits

# NKI's name of each dtype of the machine.
DTYPES: dict[str, DType] = {
    "float32": types.F32,
    "tfloat32": types.TF32,
    "bfloat16": types.BF16,
    "float16": types.F16,
    "float8_e4m3": types.F8E4M3,
    "float8_e4m3fn": types.F8E4M3FN,
    "float8_e5m2": types.F8E5M2,
    "float8_e8m0fnu": types.F8E8M0FNU,
    "int32": types.S32,
    "uint32": types.U32,
    "int16": types.S16,
    "uint16": types.U16,
    "int8": types.S8,
    "uint8": types.U8,
    "bool": types.PRED,
    "float8_e5m2_x4": types.F8E5M2_X4,
    "float8_e4m3fn_x4": types.F8E4M3FN_X4,
    "float4_e2m1fn_x4": types.F4E2M1FN_X4,
}
ALIASES = {"bool_": "bool", "float32r": "float32", "fp32": "float32", "bf16": "bfloat16"}
_BY_NUMPY = {dtype.numpy: name for name, dtype in reversed(DTYPES.items())}


def dtype_name(dtype: Any) -> str | None:
    """NKI's name of a dtype given as a name, a NumPy dtype or a scalar type; None for others."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if isinstance(dtype, str) and dtype in ALIASES:
        return ALIASES[dtype]
    try:
        return _BY_NUMPY.get(np.dtype(dtype))
    except TypeError:
        return None


@cache
def promote_dtypes(*names: str) -> str:
    """The result dtype of a computation: floats before integers, the wider of each kind.

    Two different 16-bit floats give float32, two 8-bit floats bfloat16, signed and unsigned
    integers of one width float32.
    """
    first, *others = dict.fromkeys(names)
    for second in others:
        first = _promote_pair(first, second)
    return first


def _promote_pair(first: str, second: str) -> str:
    a, b = DTYPES[first], DTYPES[second]
    if a.is_float != b.is_float:
        return first if a.is_float else second
    if a.bits != b.bits:
        return first if a.bits > b.bits else second
    if first == second:
        return first
    return "bfloat16" if a.is_float and a.bits == 8 else "float32"


class FloatLimits:
    """The finite range of a floating-point dtype, as in nl.fp32.min."""

    def __init__(self, dtype: Any) -> None:
        limits = float_limits(dtype)
        self.min = float(limits.min)
        self.max = float(limits.max)


fp32 = FloatLimits(np.float32)
