"""What a kernel imports as `nl`: dtypes, buffers, tensors, loops and computing functions.

A function named like an operator of the engines stands for it as the `op` of nki.isa functions.
"""

from __future__ import annotations

import inspect
from typing import NoReturn

from glia.base.suggestions import nearest
from glia.nki.api.creation import (
    empty_like,
    full,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    ndarray,
    ones,
    rand,
    random_seed,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from glia.nki.api.elementwise import (
    abs,
    abs_max,
    abs_min,
    add,
    arctan,
    average,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    bypass,
    ceil,
    copy,
    cos,
    divide,
    equal,
    erf,
    erf_dx,
    exp,
    floor,
    fmod,
    gelu,
    gelu_apprx_sigmoid,
    gelu_apprx_sigmoid_dx,
    gelu_apprx_tanh,
    gelu_dx,
    greater,
    greater_equal,
    invert,
    left_shift,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mish,
    mod,
    multiply,
    negative,
    not_equal,
    power,
    prelu,
    reciprocal,
    relu,
    right_shift,
    rsqrt,
    sigmoid,
    sign,
    silu,
    silu_dx,
    sin,
    softplus,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
)
from glia.nki.api.load_store import (
    broadcast_to,
    device_print,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    matmul,
    store,
    transpose,
)
from glia.nki.api.loops import (
    affine_range,
    ds,
    dynamic_range,
    fori_loop,
    no_reorder,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    static_range,
    while_loop,
)
from glia.nki.api.reductions import (
    all,
    dropout,
    max,
    mean,
    min,
    prod,
    rms_norm,
    softmax,
    sum,
    var,
    where,
)
from glia.nki.api.tile_size import tile_size
from glia.nki.issue.former_signatures import par_dim
from glia.nki.issue.signature_checks import check_arguments
from glia.nki.names.dtypes import fp32
from glia.nki.names.enums import MemoryRegion
from glia.nki.names.errors import NoSuchName
from glia.nki.session.session import caller
from glia.nki.tensors.nki_object import NKIObject
from glia.nki.tensors.nki_tensor import NkiTensor

DType = str
bool_ = "bool"
int8 = "int8"
int16 = "int16"
int32 = "int32"
uint8 = "uint8"
uint16 = "uint16"
uint32 = "uint32"
float16 = "float16"
float32 = "float32"
bfloat16 = "bfloat16"
tfloat32 = "tfloat32"
float8_e4m3 = "float8_e4m3"
float8_e4m3fn = "float8_e4m3fn"
float8_e5m2 = "float8_e5m2"
float8_e5m2_x4 = "float8_e5m2_x4"
float8_e4m3fn_x4 = "float8_e4m3fn_x4"
float8_e8m0fnu = "float8_e8m0fnu"
float4_e2m1fn_x4 = "float4_e2m1fn_x4"

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm

__all__ = [
    "DType",
    "MemoryRegion",
    "NKIObject",
    "NkiTensor",
    "abs",
    "abs_max",
    "abs_min",
    "add",
    "affine_range",
    "all",
    "arctan",
    "average",
    "bfloat16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool_",
    "broadcast_to",
    "bypass",
    "ceil",
    "copy",
    "cos",
    "device_print",
    "divide",
    "dropout",
    "ds",
    "dynamic_range",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "float4_e2m1fn_x4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "floor",
    "fmod",
    "fori_loop",
    "full",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "hbm",
    "int8",
    "int16",
    "int32",
    "invert",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "left_shift",
    "less",
    "less_equal",
    "load",
    "load_transpose2d",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "ndarray",
    "negative",
    "no_reorder",
    "not_equal",
    "num_programs",
    "ones",
    "power",
    "prelu",
    "private_hbm",
    "prod",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sbuf",
    "sequential_range",
    "shared_constant",
    "shared_hbm",
    "shared_identity_matrix",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "static_range",
    "store",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "tfloat32",
    "tile_size",
    "transpose",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "var",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]

for _name in __all__:
    if inspect.isfunction(globals()[_name]):
        globals()[_name] = check_arguments(globals()[_name], f"nl.{_name}", upgrades_calls=True)

_ADVICE = {
    "arange": ": index with slices and nl.ds",
    "mgrid": ": index with slices and nl.ds",
    "loop_reduce": ": accumulate with nki.isa.tensor_tensor",
    "all_reduce": ": use nki.collectives.all_reduce",
    "atomic_rmw": ": use nki.isa.dma_compute",
}
# Undocumented names that public kernels use.
_UNDOCUMENTED = {
    "bool": "bool", "float32r": "float32", "fp32": fp32, "range": range,
    "par_dim": check_arguments(par_dim, "nl.par_dim"),
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _UNDOCUMENTED:
        return _UNDOCUMENTED[name]
    return _refuse(name)


def _refuse(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    hint = _ADVICE.get(name) or nearest(name, __all__)
    raise NoSuchName(module="nki.language", name=name, hint=hint, loc=caller())
