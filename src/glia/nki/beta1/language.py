"""`neuronxcc.nki.language`: what kernels of Beta 1 import as `nl`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from glia.base.suggestions import nearest
from glia.nki.api.tile_size import tile_size
from glia.nki.beta1 import constants
from glia.nki.beta1.api.creation import (
    affine_range,
    empty_like,
    full,
    nc,
    ndarray,
    num_programs,
    ones,
    par_dim,
    program_id,
    program_ndim,
    rand,
    random_seed,
    sequential_range,
    shared_constant,
    shared_identity_matrix,
    spmd_dim,
    static_range,
    zeros,
    zeros_like,
)
from glia.nki.beta1.api.elementwise import (
    abs,
    add,
    arctan,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
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
    where,
)
from glia.nki.beta1.api.ignored_keywords import with_hints
from glia.nki.beta1.api.instructions import dropout as _dropout
from glia.nki.beta1.api.load_store import (
    atomic_rmw,
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
from glia.nki.beta1.api.reductions import (
    all,
    all_reduce,
    loop_reduce,
    max,
    mean,
    min,
    prod,
    rms_norm,
    softmax,
    sum,
    var,
)
from glia.nki.beta1.tensors.buffers import hbm, private_hbm, psum, sbuf, shared_hbm
from glia.nki.beta1.tensors.dtypes import (
    bfloat16,
    bfp16,
    finfo,
    float8_e4m3,
    float8_e5m2,
    static_cast,
    tfloat32,
)
from glia.nki.beta1.tensors.index import Grid, arange, ds, mgrid
from glia.nki.beta1.tensors.tensor import Tensor
from glia.nki.names.dtypes import fp32
from glia.nki.names.errors import NoSuchName
from glia.nki.session.session import caller

bool_ = np.bool_
int8 = np.int8
int16 = np.int16
int32 = np.int32
uint8 = np.uint8
uint16 = np.uint16
uint32 = np.uint32
float16 = np.float16
float32 = np.float32


def dropout(x: Any, rate: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """x with elements replaced by 0, each with the probability `rate`."""
    return _dropout(x, rate, dtype=dtype, mask=mask)


def gemm_grid() -> Grid:
    """The indices of a moving tile of the largest size."""
    return mgrid[0 : tile_size.pmax, 0 : tile_size.gemm_moving_fmax]


def gemm_stationary_grid() -> Grid:
    """The indices of a stationary tile of the largest size."""
    return mgrid[0 : tile_size.pmax, 0 : tile_size.gemm_stationary_fmax]


# Names that no document has and kernels use.
_UNDOCUMENTED = {
    "bool": np.bool_,
    "float32r": tfloat32,
    "range": range,
    "sizeinbytes": constants.sizeinbytes,
    "tensor": Tensor,
}


def __getattr__(name: str) -> object:
    if name in _UNDOCUMENTED:
        return _UNDOCUMENTED[name]
    if name.startswith("__"):
        raise AttributeError(name)
    hint = nearest(name, __all__) or ": names of the current generation are in `nki.language`"
    raise NoSuchName(module="neuronxcc.nki.language", name=name, hint=hint, loc=caller())


__all__ = [
    "abs",
    "add",
    "affine_range",
    "all",
    "all_reduce",
    "arange",
    "arctan",
    "atomic_rmw",
    "bfloat16",
    "bfp16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool_",
    "broadcast_to",
    "ceil",
    "copy",
    "cos",
    "device_print",
    "divide",
    "dropout",
    "ds",
    "empty_like",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "expand_dims",
    "finfo",
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "float32",
    "floor",
    "fmod",
    "fp32",
    "full",
    "gather_flattened",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_tanh",
    "gelu_dx",
    "gemm_grid",
    "gemm_stationary_grid",
    "greater",
    "greater_equal",
    "hbm",
    "int8",
    "int16",
    "int32",
    "invert",
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
    "loop_reduce",
    "matmul",
    "max",
    "maximum",
    "mean",
    "mgrid",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "nc",
    "ndarray",
    "negative",
    "not_equal",
    "num_programs",
    "ones",
    "par_dim",
    "power",
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
    "spmd_dim",
    "sqrt",
    "square",
    "static_cast",
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
    "zeros",
    "zeros_like",
]

for _name in __all__:
    if inspect.isfunction(globals()[_name]):
        globals()[_name] = with_hints(globals()[_name], _name, "nl")
