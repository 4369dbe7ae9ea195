"""What a kernel imports as `nisa`: instructions, registers and their enumerations.

Every function but those of registers is made from the declaration of its instruction.
"""

from __future__ import annotations

from glia.base.suggestions import nearest
from glia.nki.api.elementwise import equal, maximum
from glia.nki.issue.arguments import (
    accumulate_is_implicit,
    affine_steps,
    always_reset_reduce,
    axis_to_count,
    implicit_accumulate,
    infer_accumulate,
    iota_steps,
    prefer_vector_engine,
    requires_cores,
)
from glia.nki.issue.call_cache import AccumulateQuery
from glia.nki.issue.functions import REQUIRED, make_function
from glia.nki.issue.register_functions import (
    get_nc_sub_version,
    get_nc_version,
    register_alloc,
    register_load,
    register_move,
    register_store,
)
from glia.nki.issue.signature_checks import check_arguments
from glia.nki.issue.transfers import dma_compute, dma_copy, dma_transpose
from glia.nki.issue.transposes import nc_transpose
from glia.nki.names.dtypes import fp32
from glia.nki.names.enums import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from glia.nki.names.errors import NkiValidationError, NoSuchName
from glia.nki.session.session import caller
from glia.nki.tensors.nki_object import NkiInstruction, NKIObject
from glia.nki.tensors.registers import VirtualRegister

tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown

__all__ = [
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "exponential",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "nonzero_with_count",
    "oob_mode",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
    "unknown_engine",
    "vector_engine",
]

REDUCING = {"reduce_res": "reduced", "reduce_cmd": "command"}

# --- the Tensor Engine -------------------------------------------------------------------------

nc_matmul = make_function(
    "nc_matmul",
    "dst stationary moving is_stationary_onezero is_moving_onezero is_transpose accumulate"
    " tile_position tile_size perf_mode",
    defaults={
        "is_stationary_onezero": False, "is_moving_onezero": False, "is_transpose": False,
        "accumulate": None, "tile_position": (), "tile_size": (),
    },
    prepare=infer_accumulate,
    accumulate_query=AccumulateQuery(accumulate_is_implicit, implicit_accumulate),
)  # fmt: skip
nc_matmul_mx = make_function(
    "nc_matmul_mx",
    "dst stationary moving stationary_scale moving_scale tile_position tile_size accumulate",
    defaults={"tile_position": None, "tile_size": None, "accumulate": None},
    prepare=infer_accumulate,
    accumulate_query=AccumulateQuery(accumulate_is_implicit, implicit_accumulate),
)

# --- the Scalar Engine -------------------------------------------------------------------------

activation = make_function(
    "activation",
    "dst op data bias scale reduce_op reduce_res reduce_cmd",
    renamed={"op": "function", **REDUCING},
    defaults={"reduce_op": None},
)
activation_reduce = make_function(
    "activation_reduce",
    "dst op data reduce_op reduce_res bias scale",
    mnemonic="activation",
    renamed={"op": "function", **REDUCING},
    defaults={"reduce_op": REQUIRED, "reduce_res": REQUIRED},
    prepare=always_reset_reduce,
)
activate2 = make_function(
    "activate2",
    "dst op data imm0 imm1 op0 op1 relu_param reverse0 reverse1 reduce_op reduce_res reduce_cmd",
    renamed={"op": "function", "imm0": "operand0", "imm1": "operand1", **REDUCING},
    defaults={"imm0": REQUIRED, "imm1": REQUIRED, "reduce_op": None},
)

# --- the Vector Engine -------------------------------------------------------------------------

tensor_copy = make_function("tensor_copy", "dst src engine")
memset = make_function("memset", "dst value engine")
tensor_copy_predicated = make_function(
    "tensor_copy_predicated",
    "dst src predicate reverse_pred",
    renamed={"reverse_pred": "reverse"},
)
tensor_tensor = make_function(
    "tensor_tensor",
    "dst data1 data2 op engine",
    prepare=prefer_vector_engine,
)
tensor_scalar = make_function(
    "tensor_scalar",
    "dst data op0 operand0 reverse0 op1 operand1 reverse1 engine",
    defaults={"operand0": REQUIRED, "op1": None},
)
scalar_tensor_tensor = make_function(
    "scalar_tensor_tensor",
    "dst data op0 operand0 op1 operand1 reverse0 reverse1",
)
tensor_reduce = make_function(
    "tensor_reduce", "dst op data axis negate keepdims", prepare=axis_to_count
)
tensor_scalar_reduce = make_function(
    "tensor_scalar_reduce",
    "dst data op0 operand0 reduce_op reduce_res reverse0 reduce_cmd reduce_init reduce_res_negate",
    renamed={**REDUCING, "reduce_init": "initial", "reduce_res_negate": "negate"},
    defaults={
        "operand0": REQUIRED,
        "reverse0": False,
        "reduce_cmd": reduce_cmd.reset_reduce,
    },
)
tensor_scalar_cumulative = make_function(
    "tensor_scalar_cumulative",
    "dst src op0 op1 imm0 imm1 reduce_cmd",
    renamed={"src": "data", "imm0": "operand0", "imm1": "initial", **REDUCING},
    defaults={"reduce_cmd": reduce_cmd.reset_reduce},
)
tensor_tensor_scan = make_function(
    "tensor_tensor_scan",
    "dst data0 data1 initial op0 op1 reverse0 reverse1",
)
exponential = make_function(
    "exponential",
    "dst src max_value reduce_res reduce_cmd reduce_init",
    renamed={"src": "data", "max_value": "most", "reduce_init": "initial", **REDUCING},
    defaults={"reduce_init": 0.0},
)
range_select = make_function(
    "range_select",
    "dst on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd reduce_res reduce_op range_start"
    " on_false_value",
    renamed={
        "on_true_tile": "data", "comp_op0": "compare0", "comp_op1": "compare1",
        "range_start": "start", "on_false_value": "false_value", **REDUCING,
    },
    defaults={"reduce_cmd": reduce_cmd.reset_reduce, "reduce_op": maximum},
)  # fmt: skip
select_reduce = make_function(
    "select_reduce",
    "dst predicate on_true on_false reduce_res reduce_cmd reduce_op reverse_pred",
    renamed={"on_true": "data", "reverse_pred": "reverse", **REDUCING},
    defaults={"reduce_op": maximum},
)
reciprocal = make_function("reciprocal", "dst data")
bn_stats = make_function("bn_stats", "dst data")
bn_aggr = make_function("bn_aggr", "dst data")
max8 = make_function("max8", "dst src", renamed={"src": "data"})
nc_find_index8 = make_function("nc_find_index8", "dst data vals", mnemonic="find_index8")
nc_match_replace8 = make_function(
    "nc_match_replace8",
    "dst data vals imm dst_idx",
    mnemonic="match_replace8",
    renamed={"dst_idx": "index"},
    defaults={"dst_idx": None},
)
nc_stream_shuffle = make_function(
    "nc_stream_shuffle",
    "dst src shuffle_mask",
    mnemonic="stream_shuffle",
    renamed={"shuffle_mask": "mask"},
)
dropout = make_function("dropout", "dst data prob", renamed={"prob": "probability"})
rng = make_function("rng", "dst engine", defaults={"engine": engine.vector})
rand2 = make_function("rand2", "dst min max", renamed={"min": "low", "max": "high"})
set_rng_seed = make_function("set_rng_seed", "src_seeds", renamed={"src_seeds": "seed"})
rand_set_state = make_function(
    "rand_set_state",
    "src_seeds engine",
    renamed={"src_seeds": "seeds"},
    defaults={"engine": engine.gpsimd},
)
rand_get_state = make_function("rand_get_state", "dst engine", defaults={"engine": engine.gpsimd})

quantize_mx = make_function("quantize_mx", "dst src dst_scale")

# --- GpSimd ------------------------------------------------------------------------------------

iota = make_function("iota", "dst pattern offset channel_multiplier", prepare=iota_steps)
affine_select = make_function(
    "affine_select",
    "dst pattern channel_multiplier on_true_tile on_false_value cmp_op offset",
    renamed={"on_true_tile": "data", "on_false_value": "false_value", "cmp_op": "compare_op"},
    defaults={"channel_multiplier": REQUIRED, "cmp_op": equal},
    prepare=affine_steps,
)
tensor_partition_reduce = make_function("tensor_partition_reduce", "dst op data")

local_gather = make_function(
    "local_gather",
    "dst src_buffer index num_elem_per_idx num_valid_indices",
)
nc_n_gather = make_function("nc_n_gather", "dst data indices")
nonzero_with_count = make_function("nonzero_with_count", "dst src index_offset padding_val")
sequence_bounds = make_function("sequence_bounds", "dst segment_ids")
topk = make_function("topk", "val_dst idx_dst src n")

# --- several cores -----------------------------------------------------------------------------

_sendrecv = make_function(
    "sendrecv",
    "src dst send_to_rank recv_from_rank pipe_id dma_engine",
    defaults={"dma_engine": dma_engine.dma},
)
_core_barrier = make_function(
    "core_barrier",
    "data cores engine",
    defaults={"cores": REQUIRED, "engine": engine.gpsimd},
)
sendrecv, core_barrier = requires_cores(_sendrecv), requires_cores(_core_barrier)


for _name in ("register_alloc", "register_load", "register_move", "register_store"):
    globals()[_name] = check_arguments(globals()[_name], f"nki.isa.{_name}", upgrades_calls=True)

# Release 0.2's names of copies with dynamic offsets, a name that release 0.3 also had here, and an
# undocumented name that kernels use.
_EARLIER = {
    "tensor_copy_dynamic_dst": tensor_copy,
    "tensor_copy_dynamic_src": tensor_copy,
    "NKIObject": NKIObject,
    "fp32": fp32,
}


def __getattr__(name: str) -> object:
    if name in _EARLIER:
        return _EARLIER[name]
    if name.startswith("__"):
        raise AttributeError(name)
    hint = nearest(name, __all__)
    raise NoSuchName(module="nki.isa", name=name, hint=hint, loc=caller())
