"""The dtypes of Beta 1: those of NumPy and ml_dtypes, and type promotion."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from glia.base.dtype import float_limits
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.names.dtypes import DTYPES, FloatLimits, dtype_name
from glia.nki.session.session import caller

bfloat16 = np.dtype(ml_dtypes.bfloat16)
float8_e4m3 = np.dtype(ml_dtypes.float8_e4m3)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
tfloat32 = np.dtype("|V4")

# The dtype that holds both signed and unsigned integers of a width in bits
_WIDER_INTEGERS = {8: "int16", 16: "int32", 32: "float32"}


def to_dtype_name(dtype: Any) -> str:
    """The name of a dtype given as NumPy's, a scalar type or a string; UnsupportedHere else."""
    if isinstance(dtype, np.dtype) and dtype == tfloat32:
        return "tfloat32"
    if dtype is bool:
        return "bool"
    name = dtype_name(dtype)
    if name is None:
        raise UnsupportedHere(
            what=f"dtype {dtype!r}", why="no engine has it; nl lists the dtypes", loc=caller()
        )
    return name


def to_numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype name, as `tensor.dtype` has it."""
    return tfloat32 if name == "tfloat32" else DTYPES[name].numpy


def promote(*names: str) -> str:
    """The dtype of the arithmetic result of operands of these dtypes.

    Floats before integers, the wider of two; float16 with bfloat16 gives float32, two different
    8-bit floats bfloat16, signed with unsigned integers the next wider signed one.
    """
    result = names[0]
    for other in names[1:]:
        result = _promote_pair(result, other)
    return result


def _promote_pair(first: str, second: str) -> str:
    if first == second:
        return first
    if {first, second} == {"float32", "tfloat32"}:
        return "float32"
    a, b = DTYPES[first], DTYPES[second]
    if a.is_float != b.is_float:
        return first if a.is_float else second
    if a.is_float:
        if a.bits != b.bits:
            return first if a.bits > b.bits else second
        return "bfloat16" if a.bits == 8 else "float32"
    return _promote_integers(first, second)


def _promote_integers(first: str, second: str) -> str:
    kinds = {name: ("uint8" if name == "bool" else name) for name in (first, second)}
    one, two = kinds[first], kinds[second]
    if one == two:
        return one
    signed, unsigned = (one, two) if one.startswith("int") else (two, one)
    a, b = DTYPES[signed].bits, DTYPES[unsigned].bits
    if unsigned.startswith("u") and signed.startswith("int") and b >= a:
        return _WIDER_INTEGERS[b]
    return one if DTYPES[one].bits >= DTYPES[two].bits else two


def scalar_dtype(value: Any) -> str:
    """The dtype that a scalar counts as: its own for NumPy's, else the widest of its kind.

    Scalars of 64 bits are what NumPy makes of Python's numbers, and count as those do.
    """
    if isinstance(value, np.generic) and value.dtype.itemsize < np.dtype(np.float64).itemsize:
        return to_dtype_name(value.dtype)
    if isinstance(value, bool):
        return "uint8"
    return "int32" if isinstance(value, int | np.integer) else "float32"


def static_cast(input_data: Any, dtype: Any) -> Any:
    """An array or number of the host in another dtype; tfloat32 is float32 there."""
    array = np.asarray(input_data)
    name = to_dtype_name(dtype)
    cast = array.astype(np.float32 if name == "tfloat32" else to_numpy_dtype(name))
    return cast if isinstance(input_data, np.ndarray) else cast[()]


def finfo(dtype: Any) -> Any:
    """numpy.finfo of a float dtype, including those of ml_dtypes."""
    name = to_dtype_name(dtype)
    return float_limits(np.float32 if name == "tfloat32" else to_numpy_dtype(name))


bfp16 = FloatLimits(ml_dtypes.bfloat16)
