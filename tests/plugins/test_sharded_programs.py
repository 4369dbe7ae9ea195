"""Programs for several devices become programs of one, by Shardy or, where it refuses, by XLA."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from jax._src.interpreters.mlir import make_ir_context
from jaxlib import _hlo
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.xla_client import CompileOptions

import glia
from glia.frontend.hlo_import.hlo_proto import parse_module
from glia.frontend.partitioning import inline_calls
from glia.frontend.sharding_fields import tiled
from glia.plugins.pjrt import converted_programs
from glia.plugins.pjrt.compilation import compile_program
from glia.plugins.pjrt.converted_programs import messages, partition, partition_by_xla

VERSION = "1.14.0"
MODULE = """module @step attributes {{
  mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["d"=4]>
  {functions}
}}"""
ROWS = '{sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}'
SCALED = f"""func.func public @main(%x: tensor<8x6xf32> {ROWS}) -> tensor<8x6xf32> {{
  %0 = call @twice(%x) : (tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}}
func.func private @twice(%x: tensor<8x6xf32>) -> tensor<8x6xf32> {{
  %0 = call @add(%x, %x) : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}}
func.func private @add(%x: tensor<8x6xf32>, %y: tensor<8x6xf32>) -> tensor<8x6xf32> {{
  %0 = stablehlo.add %x, %y : tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}}"""
SUMMED = f"""func.func public @main(%x: tensor<8x6xf32> {ROWS}) -> tensor<6xf32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %0 : tensor<6xf32>
}}"""
GREATEST = f"""func.func public @main(%x: tensor<8x6xf32> {ROWS}) -> tensor<6xf32> {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0]
    : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %0 : tensor<6xf32>
}}"""
UNEVEN = GREATEST.replace("8x6", "6x6")
SLICED = f"""func.func public @main(%x: tensor<8x6xf32> {ROWS}) -> tensor<3x6xf32> {{
  %0 = stablehlo.slice %x [2:5, 0:6] : (tensor<8x6xf32>) -> tensor<3x6xf32>
  return %0 : tensor<3x6xf32>
}}"""


def _parsed(functions: str) -> Any:
    with make_ir_context():
        return ir.Module.parse(MODULE.format(functions=functions))


def _artifact(functions: str) -> bytes:
    module = _parsed(functions)
    with module.context:
        return stablehlo.serialize_portable_artifact(module, VERSION, allow_other_dialects=True)


def _options() -> bytes:
    options = CompileOptions()
    options.num_partitions = 4
    build = options.executable_build_options
    build.num_partitions = 4
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    return bytes(options.SerializeAsString())


def _divided(functions: str) -> bytes:
    return partition(_artifact(functions), _options())


def _shapes(divided: bytes) -> tuple[list[list[int]], list[int]]:
    shape = parse_module(divided).host_program_shape
    return [list(each.dimensions) for each in shape.parameters], list(shape.result.dimensions)


def _opcodes(divided: bytes) -> Counter[str]:
    computations = parse_module(divided).computations
    return Counter(each.opcode for one in computations for each in one.instructions)


def _sharding(fields: bytes) -> Any:
    return messages()["Sharding"].FromString(fields)


def test_calls_are_put_in_place_at_any_depth() -> None:
    module = _parsed(SCALED)
    with module.context, ir.Location.unknown():
        inline_calls(ir, module)
    main = str(module).partition("private")[0]
    assert main.count("stablehlo.add") == 1
    assert "call @" not in main
    assert module.operation.verify()


def test_what_is_by_elements_needs_no_exchange() -> None:
    divided = _divided(SCALED)
    assert _shapes(divided) == ([[2, 6]], [2, 6])
    found = messages()["Shardings"].FromString(divided)
    assert list(found.result.tile_dimensions) == [4, 1]
    assert list(found.result.devices) == [0, 1, 2, 3]


def test_xla_reads_how_a_program_is_divided() -> None:
    for functions in (SCALED, SUMMED):
        module = _hlo.HloModule.from_serialized_hlo_module_proto(_divided(functions))
        (found,) = module.spmd_parameters_shardings
        assert list(found.tile_assignment_dimensions) == [4, 1]


def test_a_sum_across_devices_is_an_all_reduce() -> None:
    divided = _divided(SUMMED)
    assert _shapes(divided) == ([[2, 6]], [6])
    assert _opcodes(divided)["all-reduce"] == 1
    assert compile_program(_artifact(SUMMED), "mlir", _options()).program.neff.ranks == 4


def test_messages_of_the_compiler_name_the_program(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--verbose=info")
    compile_program(_artifact(SUMMED), "mlir", _options())
    assert "compiling step for trn2" in "".join(capfd.readouterr())


def test_other_reductions_gather_what_each_device_has() -> None:
    """Not the tensor, and nothing is added up."""
    divided = _divided(GREATEST)
    opcodes = _opcodes(divided)
    assert (opcodes["all-gather"], opcodes["all-reduce"], opcodes["reduce"]) == (1, 0, 2)
    assert _shapes(divided) == ([[2, 6]], [6])


def test_uneven_parts_are_left_to_xla() -> None:
    opcodes = _opcodes(_divided(UNEVEN))
    assert (opcodes["all-gather"], opcodes["all-reduce"]) == (0, 1)


def test_what_shardy_refuses_goes_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = _divided(SLICED)
    shape, _ = _shapes(divided)
    assert shape == [[2, 6]]
    opcodes = _opcodes(divided)
    assert opcodes["all-gather"] + opcodes["all-reduce"] + opcodes["collective-permute"] > 0

    def refuse(*_: object) -> bytes:
        raise ValueError("no division")

    monkeypatch.setattr(converted_programs, "partition_by_xla", refuse)
    with pytest.raises(Exception, match=r"GLIA709.*no division"):
        _divided(SLICED)


COLUMNS = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>}'
BY_POSITION = {
    "reverse": "stablehlo.reverse %x, dims = [1] : tensor<8x4xi32>",
    "update": "stablehlo.dynamic_update_slice %x, %u, %i, %i"
    " : (tensor<8x4xi32>, tensor<8x1xi32>, tensor<i32>, tensor<i32>) -> tensor<8x4xi32>",
    "gather": '"stablehlo.gather"(%x, %r) <{dimension_numbers = #stablehlo.gather<'
    "offset_dims = [0], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>,"
    " slice_sizes = array<i64: 8, 1>}> : (tensor<8x4xi32>, tensor<4x1xi32>) -> tensor<8x4xi32>",
}


@pytest.mark.parametrize("name", BY_POSITION)
@pytest.mark.parametrize("divided", [True, False])
def test_neighbours_along_a_divided_dimension_go_to_xla(
    monkeypatch: pytest.MonkeyPatch, name: str, divided: bool
) -> None:
    taken: list[bytes] = []

    def record(artifact: bytes, options: bytes) -> bytes:
        taken.append(artifact)
        return partition_by_xla(artifact, options)

    monkeypatch.setattr(converted_programs, "partition_by_xla", record)
    attribute = COLUMNS if divided else ROWS
    found = _divided(f"""func.func public @main(%x: tensor<8x4xi32> {attribute},
        %u: tensor<8x1xi32>, %i: tensor<i32>, %r: tensor<4x1xi32>) -> tensor<8x4xi32> {{
      %0 = {BY_POSITION[name]}
      return %0 : tensor<8x4xi32>
    }}""")
    assert bool(taken) == divided
    assert found


PARTIAL = """func.func public @main(%x: tensor<4x4xf32>{given}, %w: tensor<4x4xf32> {columns})
    -> (tensor<4x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"d"}}, {{}}]>}}) {{
  {operation}
  %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{}}], unreduced={{"d"}}> : tensor<4x4xf32>
  %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{{}}, {{}}], unreduced={{"d"}}>]
    out_shardings=[<@mesh, [{{"d"}}, {{}}]>] manual_axes={{"d"}} (%l: tensor<4x4xf32>) {{
    %3 = "stablehlo.reduce_scatter"(%l) <{{channel_handle = #stablehlo.channel_handle<handle = 1,
      type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
      scatter_dimension = 0 : i64, use_global_device_ids}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %4 = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %4 : tensor<f32>
    }}) : (tensor<4x4xf32>) -> tensor<1x4xf32>
    sdy.return %3 : tensor<1x4xf32>
  }} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}}"""
WHOLE_VALUES = {
    "constant": "%0 = stablehlo.constant dense<3.0> : tensor<4x4xf32>",
    "positions": "%0 = stablehlo.iota dim = 0 : tensor<4x4xf32>",
    "parameter": "%0 = stablehlo.optimization_barrier %x : tensor<4x4xf32>",
    "exponential": "%0 = stablehlo.exponential %x : tensor<4x4xf32>",
    "sum": "%0 = stablehlo.add %x, %x : tensor<4x4xf32>",
    "product": "%0 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [1]"
    " : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>",
}


@pytest.mark.parametrize("name", WHOLE_VALUES)
def test_parts_of_a_sum_add_up_to_the_value_they_are_of(name: str) -> None:
    functions = PARTIAL.format(operation=WHOLE_VALUES[name], columns=COLUMNS, given="")
    program = compile_program(_artifact(functions), "mlir", _options()).program
    x = np.arange(16, dtype=np.float32).reshape(4, 4) / 8
    wanted = {"constant": 0 * x + 3, "positions": np.indices((4, 4))[0], "parameter": x,
              "exponential": np.exp(x), "sum": x + x, "product": x @ x.T}[name]  # fmt: skip
    given = [(x, x[:, [rank]]) for rank in range(4)]
    found = [result for (result,) in glia.load(program.neff, ranks=4).run_ranks(given)]
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-5)


def test_parts_that_devices_are_given_are_summed() -> None:
    given = ' {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"d"}>}'
    doubled = "%0 = stablehlo.add %x, %x : tensor<4x4xf32>"
    functions = PARTIAL.format(operation=doubled, columns=COLUMNS, given=given)
    program = compile_program(_artifact(functions), "mlir", _options()).program
    parts = np.random.default_rng(0).random((4, 4, 4), np.float32)
    found = glia.load(program.neff, ranks=4).run_ranks([(part, part[:, :1]) for part in parts])
    np.testing.assert_allclose(
        np.concatenate([result for (result,) in found]), 2 * parts.sum(0), rtol=1e-5
    )


def test_both_ways_agree() -> None:
    for functions in (SCALED, SUMMED):
        by_shardy = _divided(functions)
        by_xla = partition_by_xla(_artifact(functions), _options())
        assert _shapes(by_shardy) == _shapes(by_xla)


@pytest.mark.parametrize(
    ("by_dimension", "devices"),
    [
        ([["x"], []], [[0, 1, 2], [3, 4, 5]]),
        ([[], ["x"]], [[0, 1, 2], [3, 4, 5]]),
        ([["y"], []], [[0, 3], [1, 4], [2, 5]]),
        ([["y", "x"], []], [[0], [3], [1], [4], [2], [5]]),
        ([["y"], ["x"]], [[0], [3], [1], [4], [2], [5]]),
    ],
)
def test_a_tile_is_on_the_devices_that_share_its_coordinates(
    by_dimension: list[list[str]], devices: list[list[int]]
) -> None:
    found = _sharding(tiled({"x": 2, "y": 3}, by_dimension, []))
    copies = len(devices[0])
    assert np.array(found.devices).reshape(-1, copies).tolist() == devices
    assert found.is_last_replicated == (copies > 1)
    assert np.prod(found.tile_dimensions) == 6


def test_a_mesh_may_number_its_devices() -> None:
    found = _sharding(tiled({"x": 4}, [["x"]], [3, 1, 2, 0]))
    assert list(found.devices) == [3, 1, 2, 0]
    assert list(_sharding(tiled({"x": 4}, [[]], [])).devices) == []
