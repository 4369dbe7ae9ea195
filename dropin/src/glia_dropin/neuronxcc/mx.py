"""Reference quantisation and matrix product of microscaling (MX) dtypes, on host arrays.

Dtypes of four packed values are NumPy dtypes that arrays can be viewed as. Scales are 8-bit
exponents, contiguous, one row for 8 rows of data. As in the public utility of these names a scale
is the exponent of the greatest magnitude less the greatest exponent of the dtype, one less than the
instruction's; `custom_mx_max_exp` overrides the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from glia.base.dtype import DType, float_limits
from glia.isa.instructions.microscaling import (
    GROUP,
    dequantized,
    exponents_of,
    quantized,
    scale_rows,
)
from glia.isa.numerics import pack
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.beta1.tensors.dtypes import to_dtype_name
from glia.nki.names.dtypes import DTYPES
from glia.nki.session.session import caller

Array = np.ndarray[Any, Any]
float8_e5m2_x4 = DTYPES["float8_e5m2_x4"].numpy
float8_e4m3fn_x4 = DTYPES["float8_e4m3fn_x4"].numpy
float4_e2m1fn_x4 = DTYPES["float4_e2m1fn_x4"].numpy


def quantize_mx_golden(
    in_tensor: Array, out_quantized_dtype: Any, ocp_saturation: bool = True,
    reverse_dst_fdim_group: int = 0, custom_mx_max_exp: Callable[[Any], int] | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """[P, F] as packed elements [P, F / 4], and scales [P / 8, F / 4] in uint8.

    Saturation clips to the greatest number of the dtype; `reverse_dst_fdim_group` lays groups of so
    many columns in reverse order first.
    """
    packed = _packed_dtype(out_quantized_dtype)
    assert packed.packs is not None
    limits = float_limits(packed.packs.numpy)
    values = np.asarray(in_tensor).astype(np.float32)
    partitions, free = values.shape
    if partitions % GROUP or free % 4:
        _raise_unsupported(
            f"a tensor of shape {values.shape}", "groups are 8 partitions by 4 values"
        )
    if reverse_dst_fdim_group:
        columns = np.arange(free).reshape(-1, reverse_dst_fdim_group)[::-1].reshape(free)
        values = values[:, columns]
    most = int(np.frexp(float(limits.max))[1]) - 1
    if custom_mx_max_exp is not None:
        most = int(custom_mx_max_exp(out_quantized_dtype))
    groups = values.reshape(partitions // GROUP, GROUP, free // 4, 4)
    exponents, codes = exponents_of(groups, most)
    greatest = float(limits.max) if ocp_saturation else np.inf
    data = quantized(groups, exponents, packed.packs, greatest)
    return pack(data, packed).reshape(partitions, free // 4), codes


def nc_matmul_mx_golden(
    stationary_x4: Array, moving_x4: Array, stationary_scale: Array, moving_scale: Array,
    use_contiguous_scale: bool = True, stationary_scale_p_offset: int = 0,
    moving_scale_p_offset: int = 0,
) -> Array:  # fmt: skip
    """stationary.T @ moving in float32, each value times its scale: [M, N] of [P, M] and [P, N].

    Scales that are not contiguous lie as the instruction has them, from a partition on.
    """
    sides = (
        (stationary_x4, stationary_scale, stationary_scale_p_offset),
        (moving_x4, moving_scale, moving_scale_p_offset),
    )
    left, right = (
        dequantized(
            data, _scale_codes(scale, len(data), use_contiguous_scale, offset), _array_dtype(data)
        )
        for data, scale, offset in sides
    )
    product: Array = left.T @ right
    return product


def _scale_codes(scale: Array, partitions: int, is_contiguous: bool, offset: int) -> Array:
    """The scale codes, one row for each group of 8 partitions."""
    codes = scale.view(np.uint8)
    return codes if is_contiguous else codes[scale_rows(partitions) + offset]


def _packed_dtype(dtype: Any) -> DType:
    """A packed dtype, given as itself or as the dtype that it packs; UnsupportedHere else."""
    name = to_dtype_name(dtype)
    found = DTYPES.get(name if name.endswith("_x4") else f"{name}_x4")
    if found is None:
        _raise_unsupported(f"dtype {dtype!r}", "the packed ones are float8_e4m3fn_x4 and the like")
    return found


def _array_dtype(data: Array) -> DType:
    packed = _packed_dtype(data.dtype)
    if packed.numpy != data.dtype:
        _raise_unsupported(f"elements of {data.dtype}", "view them as one of the packed dtypes")
    return packed


def _raise_unsupported(what: str, why: str) -> NoReturn:
    raise UnsupportedHere(what=what, why=why, loc=caller())


__all__ = [
    "float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4", "nc_matmul_mx_golden",
    "quantize_mx_golden",
]  # fmt: skip
