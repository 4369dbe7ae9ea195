"""`neuron_dtypes`: the dtypes of NKI as NumPy's, conversions of host arrays between them.

A dtype is given as NumPy's or by its name, as `nki.language` has them. An element of a packed dtype
holds four values along the last axis, which conversion to it makes a fourth as long. NumPy finds
packed dtypes by their names too, as it does those of ml_dtypes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.base.dtype import F32, DType
from glia.isa.numerics import pack, unpack
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.beta1.tensors.dtypes import finfo, to_dtype_name
from glia.nki.beta1.tensors.dtypes import static_cast as _cast
from glia.nki.names.dtypes import DTYPES
from glia.nki.session.session import caller

bfloat16 = DTYPES["bfloat16"].numpy
float8_e4m3 = DTYPES["float8_e4m3"].numpy
float8_e4m3fn = DTYPES["float8_e4m3fn"].numpy
float8_e5m2 = DTYPES["float8_e5m2"].numpy
float8_e8m0fnu = DTYPES["float8_e8m0fnu"].numpy
tfloat32 = DTYPES["tfloat32"].numpy
float8_e4m3fn_x4 = DTYPES["float8_e4m3fn_x4"].numpy
float8_e5m2_x4 = DTYPES["float8_e5m2_x4"].numpy
float4_e2m1fn_x4 = DTYPES["float4_e2m1fn_x4"].numpy

_BY_NAME: dict[str, Any] = np.sctypeDict
_BY_NAME.update({name: each.numpy for name, each in DTYPES.items() if each.packs is not None})


def static_cast(input_data: Any, dtype: Any) -> Any:
    """An array or number in another dtype; UnsupportedHere for four values that the axis lacks.

    Conversion from a packed dtype makes the last axis four times as long.
    """
    array = np.asarray(input_data)
    source, wanted = _known(array.dtype), _known(dtype)
    if source is not None and source == wanted:
        return input_data
    if source is not None and source.packs is not None:
        values = unpack(array, source)
        array = input_data = values.reshape(*array.shape[:-1], -1)
    if wanted is None or wanted.packs is None:
        return _cast(input_data, dtype) if wanted is not None else array.astype(dtype)
    if not array.ndim or array.shape[-1] % 4:
        why = "each element holds four values of the last axis"
        raise UnsupportedHere(what=f"{array.shape} as {dtype}", why=why, loc=caller())
    values = array.astype(F32.numpy).astype(wanted.packs.numpy)
    return pack(values.reshape(*array.shape[:-1], -1, 4), wanted)


def sizeinbytes(dtype: Any) -> int:
    """The bytes of an element."""
    known = _known(dtype)
    return known.numpy.itemsize if known is not None else np.dtype(dtype).itemsize


def is_float_type(dtype: Any) -> bool:
    """Whether values of the dtype are floating-point numbers."""
    known = _known(dtype)
    return known.is_float if known is not None else np.dtype(dtype).kind == "f"


def _known(dtype: Any) -> DType | None:
    """NKI's dtype; None for one of NumPy that no engine has, such as int64."""
    try:
        return DTYPES[to_dtype_name(dtype)]
    except UnsupportedHere:
        np.dtype(dtype)
        return None


__all__ = [
    "bfloat16", "finfo", "float4_e2m1fn_x4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fn_x4",
    "float8_e5m2", "float8_e5m2_x4", "float8_e8m0fnu", "is_float_type", "sizeinbytes",
    "static_cast", "tfloat32",
]  # fmt: skip
