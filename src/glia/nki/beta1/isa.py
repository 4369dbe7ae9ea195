"""`neuronxcc.nki.isa`: what kernels of Beta 1 import as `nisa`."""

# The names are those that kernels write.
# ruff: noqa: N801

from __future__ import annotations

import inspect
from enum import IntEnum
from typing import NoReturn

from glia.base.suggestions import nearest
from glia.nki.beta1.api.ignored_keywords import with_hints
from glia.nki.beta1.api.instructions import (
    activation,
    activation_reduce,
    affine_select,
    bn_aggr,
    bn_stats,
    builtin_custom_op,
    dropout,
    iota,
    local_gather,
    max8,
    memset,
    nc_find_index8,
    nc_match_replace8,
    nc_matmul,
    nc_stream_shuffle,
    nc_transpose,
    range_select,
    reciprocal,
    scalar_tensor_tensor,
    select_reduce,
    sequence_bounds,
    tensor_copy,
    tensor_copy_dynamic_dst,
    tensor_copy_dynamic_src,
    tensor_copy_predicated,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor,
    tensor_tensor_scan,
)
from glia.nki.beta1.api.transfers import dma_copy, dma_transpose
from glia.nki.beta1.run.frame import is_in_kernel
from glia.nki.names.dtypes import fp32
from glia.nki.names.errors import NoSuchName
from glia.nki.names.targets import platform_target
from glia.nki.session.session import caller, current


class engine(IntEnum):
    """Which engine runs an instruction; `unknown` leaves the choice to the compiler."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class dge_mode(IntEnum):
    """Who makes the descriptors of a transfer."""

    none = 0
    swdge = 1
    hwdge = 2
    unknown = 3


class oob_mode(IntEnum):
    """What a transfer does with an index that names no row."""

    error = 0
    skip = 1


class reduce_cmd(IntEnum):
    """What a reducing instruction does with the accumulators of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class nc_version(IntEnum):
    """Generations of the NeuronCore."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
dma_engine = engine.dma
unknown_engine = engine.unknown


def get_nc_version() -> nc_version:
    """The generation of the core that the kernel is for."""
    target = current("nki.isa.get_nc_version").target if is_in_kernel() else platform_target()
    return nc_version(max(2, target.arch.generation))


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    hint = nearest(name, __all__) or ": functions of the current generation are in `nki.isa`"
    raise NoSuchName(module="neuronxcc.nki.isa", name=name, hint=hint, loc=caller())


__all__ = [
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "builtin_custom_op",
    "dge_mode",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "fp32",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sequence_bounds",
    "tensor_copy",
    "tensor_copy_dynamic_dst",
    "tensor_copy_dynamic_src",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "unknown_engine",
    "vector_engine",
]

for _name in __all__:
    if inspect.isfunction(globals()[_name]):
        globals()[_name] = with_hints(globals()[_name], _name, "nki.isa")
