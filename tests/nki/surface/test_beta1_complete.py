"""NKI Beta 1 has every documented name, with its documented parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from glia.nki import beta1
from glia.nki.beta1 import compiler, isa, language, typing


def _words(text: str) -> list[str]:
    return text.split()


MASKED = "mask dtype"  # what every function that computes takes by keyword
UNARY = _words(
    "abs arctan ceil copy cos erf erf_dx exp floor gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx"
    " invert log logical_not mish negative reciprocal relu rsqrt sigmoid sign silu silu_dx sin"
    " softplus sqrt square tan tanh trunc"
)
BINARY = _words(
    "add bitwise_and bitwise_or bitwise_xor divide equal fmod greater greater_equal left_shift"
    " less less_equal logical_and logical_or logical_xor maximum minimum mod multiply not_equal"
    " power right_shift subtract"
)

# Functions of nki.language: parameters by position | by keyword only.
LANGUAGE = {
    **{name: f"x | {MASKED}" for name in UNARY if name != "copy"},
    **dict.fromkeys(BINARY, f"x y | {MASKED}"),
    "affine_range": "*args |", "all": f"x axis | {MASKED}",
    "all_reduce": f"x op program_axes | {MASKED} parallel_reduce asynchronous",
    "arange": "*args |", "atomic_rmw": "dst value op | mask",
    "broadcast_to": "src | shape", "copy": f"src | {MASKED}",
    "device_print": "prefix x | mask", "dropout": f"x rate | {MASKED}", "ds": "start size |",
    "empty_like": "a dtype | buffer name", "expand_dims": "data axis |", "finfo": "dtype |",
    "full": "shape fill_value dtype | buffer name",
    "gather_flattened": f"data indices | {MASKED}", "gemm_grid": "|", "gemm_stationary_grid": "|",
    "load": f"src | {MASKED}", "load_transpose2d": f"src | {MASKED}",
    "loop_reduce": f"x op loop_indices | {MASKED}", "matmul": "x y | transpose_x mask",
    "max": f"x axis | {MASKED} keepdims", "mean": f"x axis | {MASKED} keepdims",
    "min": f"x axis | {MASKED} keepdims", "nc": "|", "ndarray": "shape dtype | buffer name",
    "num_programs": "axes |", "ones": "shape dtype | buffer name",
    "prod": f"x axis | {MASKED} keepdims", "program_id": "axis |", "program_ndim": "|",
    "rand": "shape dtype |", "random_seed": "seed | mask",
    "rms_norm": f"x w axis n epsilon | {MASKED} compute_dtype", "sequential_range": "*args |",
    "shared_constant": "constant dtype |", "shared_identity_matrix": "n dtype |",
    "softmax": f"x axis | {MASKED} compute_dtype", "static_cast": "input_data dtype |",
    "static_range": "*args |", "store": "dst value | mask",
    "sum": f"x axis | {MASKED} keepdims", "transpose": f"x | {MASKED}",
    "var": f"x axis | {MASKED}", "where": f"condition x y | {MASKED}",
    "zeros": "shape dtype | buffer name", "zeros_like": "a dtype | buffer name",
}  # fmt: skip
LANGUAGE_VALUES = _words(
    "bfloat16 bfp16 bool_ float16 float32 float8_e4m3 float8_e5m2 fp32 hbm int16 int32 int8"
    " mgrid par_dim private_hbm psum sbuf shared_hbm spmd_dim tfloat32 tile_size uint16 uint32"
    " uint8"
)
TILE_SIZES = _words(
    "bn_stats_fmax gemm_moving_fmax gemm_stationary_fmax pmax psum_fmax psum_min_align"
    " sbuf_min_align total_available_sbuf_size"
)

ISA = {
    "activation": f"op data | bias scale reduce_op reduce_res reduce_cmd {MASKED}",
    "activation_reduce": f"op data | reduce_op reduce_res bias scale {MASKED}",
    "affine_select": f"pred on_true_tile on_false_value | {MASKED}",
    "bn_aggr": f"data | {MASKED}", "bn_stats": f"data | {MASKED}",
    "builtin_custom_op":
        "function_name lib_file_name ulib_to_ucode_version ulib_to_isa_version srcs dsts |",
    "dma_copy": "| dst src mask dst_rmw_op oob_mode dge_mode",
    "dma_transpose": f"src | axes {MASKED}", "dropout": f"data prob | {MASKED}",
    "get_nc_version": "|", "iota": "expr dtype | mask",
    "local_gather": "src_buffer index num_elem_per_idx num_valid_indices | mask",
    "max8": f"| src {MASKED}", "memset": "shape value dtype | mask engine",
    "nc_find_index8": f"| data vals {MASKED}",
    "nc_match_replace8": f"| data vals imm dst_idx {MASKED}",
    "nc_matmul": "stationary moving | is_stationary_onezero is_moving_onezero is_transpose"
        " tile_position tile_size mask",
    "nc_stream_shuffle": f"src dst shuffle_mask | {MASKED}",
    "nc_transpose": f"data | {MASKED} engine",
    "range_select": "| on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd reduce_res"
        f" reduce_op range_start on_false_value {MASKED}",
    "reciprocal": f"data | {MASKED}",
    "scalar_tensor_tensor": f"| data op0 operand0 op1 operand1 reverse0 reverse1 {MASKED}",
    "select_reduce": "| dst predicate on_true on_false reduce_res reduce_cmd reduce_op"
        f" reverse_pred {MASKED}",
    "sequence_bounds": "| segment_ids dtype", "tensor_copy": f"src | {MASKED} engine",
    "tensor_copy_dynamic_dst": f"| dst src {MASKED} engine",
    "tensor_copy_dynamic_src": f"src | {MASKED} engine",
    "tensor_copy_predicated": f"| src dst predicate reverse_pred {MASKED}",
    "tensor_partition_reduce": f"op data | {MASKED}",
    "tensor_reduce": f"op data axis | {MASKED} negate keepdims",
    "tensor_scalar": f"data op0 operand0 reverse0 op1 operand1 reverse1 | {MASKED} engine",
    "tensor_scalar_reduce": f"| data op0 operand0 reduce_op reduce_res reverse0 {MASKED}",
    "tensor_tensor": f"data1 data2 op | {MASKED} engine",
    "tensor_tensor_scan": f"data0 data1 initial op0 op1 reverse0 reverse1 | {MASKED}",
}  # fmt: skip
ENUMS = {
    "dge_mode": {"none": 0, "swdge": 1, "hwdge": 2, "unknown": 3},
    "engine": {
        "unknown": 0, "tensor": 1, "scalar": 2, "gpsimd": 3, "dma": 4, "vector": 5, "sync": 6,
    },
    "nc_version": {"gen2": 2, "gen3": 3},
    "oob_mode": {"error": 0, "skip": 1},
    "reduce_cmd": {"idle": 0, "reset": 1, "reduce": 2, "reset_reduce": 3},
}  # fmt: skip
ISA_VALUES = _words(
    "dma_engine fp32 gpsimd_engine scalar_engine tensor_engine unknown_engine vector_engine"
)

COMPILER = {
    "allocation_scope": "|", "enable_stack_allocator": "func log_level |",
    "force_auto_alloc": "func |", "multi_buffer": "factor |", "no_reorder": "|",
    "skip_middle_end_transformations": "func |", "sbuf.alloc": "func |", "sbuf.auto_alloc": "|",
    "sbuf.mod_alloc": "| base_addr base_partition num_par_tiles num_free_tiles",
    "psum.alloc": "func |", "psum.auto_alloc": "|",
    "psum.mod_alloc":
        "| base_bank base_addr base_partition num_bank_tiles num_par_tiles num_free_tiles",
}  # fmt: skip
TOP = {
    "baremetal": "kernel |", "benchmark": "kernel |", "jit": "func mode |", "profile": "func |",
    "simulate_kernel": "kernel *args |", "FrameworkKernel.dump_config": "self *args |",
    "FrameworkKernel.is_framework_tensor": "self t |",
    "FrameworkKernel.map_framework_tensor": "self t |",
    "FrameworkKernel.translate_to_neuron_dtype": "self _dtype |",
    "tensor.assert_shape": "self shape |", "tensor.astype": "self dtype |",
    "tensor.broadcast_to": "self shape |", "tensor.expand_dims": "self axis |",
    "tensor.reshape": "self shape |", "tensor.view": "self dtype |",
}  # fmt: skip
WITHOUT_NAME = {
    "affine_range", "arange", "ds", "finfo", "gemm_grid", "gemm_stationary_grid", "get_nc_version",
    "nc", "num_programs", "program_id", "program_ndim", "sequential_range", "static_cast",
    "static_range",
}  # fmt: skip
TENSOR = ("dtype", "itemsize", "ndim", "shape")

ALL = [
    *((language, name, text) for name, text in LANGUAGE.items()),
    *((isa, name, text) for name, text in ISA.items()),
    *((compiler, name, text) for name, text in COMPILER.items()),
    *((beta1, name, text) for name, text in TOP.items()),
]


def _find(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


@pytest.mark.parametrize(
    ("module", "name", "text"), ALL, ids=[f"{m.__name__}.{n}" for m, n, _ in ALL]
)
def test_every_function_has_its_documented_parameters(module: Any, name: str, text: str) -> None:
    by_position, by_keyword = (part.split() for part in text.split("|"))
    parameters = inspect.signature(_find(module, name)).parameters
    found = list(parameters.values())
    positional = [n for n in by_position if not n.startswith("*")]
    for place, each in enumerate(positional):
        assert found[place].name == each
        assert found[place].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    for each in by_keyword:
        assert parameters[each].kind is inspect.Parameter.KEYWORD_ONLY
    is_computing = module in (language, isa) and name not in WITHOUT_NAME
    assert "name" in parameters or not is_computing
    assert (_find(module, name).__doc__ or "").strip()


@pytest.mark.parametrize("name", LANGUAGE_VALUES)
def test_the_language_has_every_other_name(name: str) -> None:
    assert getattr(language, name) is not None
    assert name in language.__all__


@pytest.mark.parametrize("name", TILE_SIZES)
def test_tile_size_has_every_limit(name: str) -> None:
    assert getattr(language.tile_size, name) > 0


@pytest.mark.parametrize(("name", "values"), ENUMS.items(), ids=ENUMS.keys())
def test_enumerations_have_their_documented_values(name: str, values: dict[str, int]) -> None:
    found = {member.name: int(member) for member in getattr(isa, name)}
    assert values.items() <= found.items()


def test_isa_typing_and_tensors_have_every_other_name() -> None:
    assert [n for n in ISA_VALUES if n not in isa.__all__] == []
    expected = ["immutable", "mutable", "mutable_tensor", "scalar", "tensor"]
    assert sorted(typing.__all__) == expected
    assert [n for n in TENSOR if not isinstance(getattr(beta1.tensor, n), property)] == []
    assert isa.fp32.min == language.fp32.min < -3.4e38


def test_defaults_are_the_documented_ones() -> None:
    def default(function: Any, name: str) -> Any:
        return inspect.signature(function).parameters[name].default

    assert default(isa.range_select, "on_false_value") == isa.fp32.min
    assert default(isa.activation, "scale") == 1.0
    assert default(language.rms_norm, "epsilon") == 1e-6
    assert default(isa.local_gather, "num_elem_per_idx") == 1
    assert default(beta1.jit, "mode") == "auto"
    assert default(compiler.multi_buffer, "factor") == 2
    assert default(compiler.enable_stack_allocator, "log_level") == 50
