"""`glia bisect` names the pass, nest and instruction of faults that are put into the compiler."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import glia.graph.expand.small_floats as small_floats_module
import glia.graph.passes.simplify as simplify_module
import glia.machine.emit.lower as emit_module
import glia.machine.passes.insert_semaphores as semaphores_module
import glia.machine.passes.place as place_module
import glia.machine.passes.schedule as schedule_module
import glia.tile.expand.expand_scalars as scalars_module
from glia.base.dtype import F8E4M3FN, F32
from glia.base.errors import InternalError
from glia.cc_flags import tracing_for
from glia.cli.glia import main
from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import random_inputs
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Map
from glia.graph.ops.control import CustomCall
from glia.graph.rules.driver import apply_rules, rule
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.kernels.softmax import softmax
from glia.machine.ir import Program
from glia.machine.ordering.moved_bits import MovedBits
from glia.options import CompileOptions
from glia.pass_runner import PassResult, run_pipeline
from glia.pipeline import PIPELINE
from glia.tile.ir import Apply, Literal, Nest
from glia.tile.ir import Program as TileProgram
from glia.triage import kernel_calls, levels
from glia.triage.bisect import Bisection, bisect
from glia.triage.errors import NotEvaluable
from glia.triage.ulps import are_among, rounding, ulps
from support.clean_programs import plant, plant_inexact_transpose
from support.corpus import BY_NAME, hlo_bytes

X, W = np.zeros((40, 64), np.float32), np.zeros((64, 72), np.float32)


def _hlo(function: Callable[..., Any], *arrays: Any) -> bytes:
    lowered = jax.jit(function).lower(*arrays)
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return data


def _model(x: Any, w: Any) -> Any:
    return jnp.exp(jnp.tanh(x @ w)).sum(0)


MODEL = _hlo(_model, X, W)


def _bisect(data: bytes = MODEL, target: str = "trn2", **options: Any) -> Bisection:
    graph = import_hlo(data)
    chosen = CompileOptions(target=target, auto_cast="none", **options)
    return bisect(graph, random_inputs(graph), chosen)


@pytest.mark.parametrize("name", ["softmax", "scan", "gather_rows", "conv_nchw", "cond"])
def test_values_of_a_right_compiler_never_depart(name: str) -> None:
    found = _bisect(hlo_bytes(BY_NAME[name]))
    assert found.first is None and found.place is None
    assert {each.name for each in found.passes} == {each.name for each in PIPELINE}


def test_casts_depart_where_they_are_made() -> None:
    graph = import_hlo(MODEL)
    found = bisect(graph, random_inputs(graph), CompileOptions(auto_cast="all"))
    assert found.first and found.first.name == "cast_dtypes"
    assert found.place and "dot" in found.place.nest
    assert bisect(graph, random_inputs(graph), CompileOptions(auto_cast="all"), 1e9).first is None


def test_a_graph_pass_is_named_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    real = simplify_module.simplify

    @rule
    def wrong(op: Map) -> Node | None:
        """tanh(x) = logistic(x), which is false."""
        is_tanh = op.function == "tanh"
        return dataclasses.replace(op, function="logistic") if is_tanh else None

    def faulty(graph: Graph, options: Any = None) -> Graph:
        return apply_rules(real(graph, options), [wrong])

    monkeypatch.setattr(simplify_module, "simplify", faulty)
    found = _bisect()
    assert found.first and (found.first.name, found.first.level) == ("simplify", "graph")
    assert found.place and "map" in found.place.nest and "test_bisect.py" in found.place.source


def test_a_tile_pass_is_named_with_the_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = scalars_module.expand_scalars
    planted: list[str] = []

    def faulty(program: TileProgram, options: Any = None) -> TileProgram:
        made = real(program, options)
        place = next(n for n, each in enumerate(made.body) if isinstance(each, Nest))
        nest = made.body[place]
        assert isinstance(nest, Nest)
        planted.append(nest.name)
        body = Apply("multiply", (nest.body, Literal(1.01, nest.body.dtype)), nest.body.dtype)
        changed = dataclasses.replace(nest, body=body)
        return dataclasses.replace(
            made, body=(*made.body[:place], changed, *made.body[place + 1 :])
        )

    monkeypatch.setattr(scalars_module, "expand_scalars", faulty)
    found = _bisect()
    assert found.first and (found.first.name, found.first.level) == ("expand_scalars", "tile")
    assert found.place and found.place.nest == planted[0] and "_model" not in found.place.nest
    assert "test_bisect.py" in found.place.source


def test_an_emitted_instruction_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    done = plant(
        monkeypatch, emit_module, "emit", lambda i: isinstance(i, Activation),
        lambda i: dataclasses.replace(i, function="sigmoid"),
    )  # fmt: skip
    found = _bisect()
    assert found.first and found.first.name == "emit"
    assert found.place and done
    assert (
        found.place.instruction.startswith("activation(") and "sigmoid" in found.place.instruction
    )
    assert found.place.source == str(done[0].loc) and found.place.read
    assert found.place.nest.startswith("dot")


def test_a_transpose_that_spreads_nans_is_named_on_trn1(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _hlo(lambda x: jax.lax.cummax(x, 1).max(0), np.zeros((64, 128), np.int32))
    assert _bisect(data, "trn1").first is None
    plant_inexact_transpose(monkeypatch)
    found = _bisect(data, "trn1")
    assert found.first and found.first.name == "emit"
    assert found.first.departure and found.first.departure.ulps > 0
    assert found.place and found.place.instruction.startswith("nc_transpose(")
    assert found.place.nest == "reduce.0" and "test_bisect.py" in found.place.source
    assert _bisect(data, "trn2").first is None, "later generations move bits"


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_copy_that_quiets_nans_is_named(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(x: Any) -> Any:
        floats = jax.lax.bitcast_convert_type(x, jnp.bfloat16)
        both = jnp.concatenate([floats[:, ::-1], floats], 1)
        return jax.lax.bitcast_convert_type(both, jnp.int16)

    data = _hlo(turned, np.zeros((132, 65), np.int16))
    assert _bisect(data, target).first is None
    monkeypatch.setattr(MovedBits, "__contains__", lambda *_: False)
    found = _bisect(data, target)
    assert found.first and (found.first.name, found.first.level) == ("schedule", "machine")
    assert found.place and "copy" in found.place.instruction
    assert "test_bisect.py" in found.place.source


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_a_wrong_format_of_small_floats_is_named(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def widened(x: Any, y: Any) -> Any:
        return (x.astype(np.float32) + y).astype(jnp.float8_e4m3fn)

    data = _hlo(widened, np.zeros((8, 16), jnp.float8_e4m3fn), np.zeros((8, 16), np.float32))
    assert _bisect(data, target).first is None
    other = small_floats_module._Format(mantissa=3, bias=8, largest=240, nan=0x7F)
    monkeypatch.setitem(small_floats_module._FORMATS, F8E4M3FN, other)
    found = _bisect(data, target)
    assert found.first and (found.first.name, found.first.level) == ("expand_small_floats", "graph")
    assert found.place and "test_bisect.py" in found.place.source


def test_integers_that_are_cut_to_32_bits_are_named() -> None:
    with jax.enable_x64(True):
        graph = import_hlo(_hlo(lambda x: x * x + 1, np.zeros((8, 16), np.int64)))
    large = [np.full((8, 16), 2**33 + 5, np.int64)]
    for native, first in (("default", None), ("disabled", "narrow_integers")):
        options = CompileOptions(auto_cast="none", native_int64=native)
        found = bisect(graph, large, options)
        assert (found.first.name if found.first else None) == first


def test_a_clobbered_tile_is_named_by_the_instruction_that_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = place_module.place

    def faulty(program: Program, options: Any = None, **others: Any) -> Program:
        made = real(program, options, **others)
        on_chip = [n for n, tile in made.tiles.items() if tile.memory.value == "SBUF"]
        return dataclasses.replace(made, addresses={**made.addresses, **dict.fromkeys(on_chip, 0)})

    monkeypatch.setattr(place_module, "place", faulty)
    found = _bisect()
    assert found.first and found.first.name == "place"
    assert found.place and found.place.instruction and found.place.nest


def test_an_order_that_breaks_a_dependence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = schedule_module.schedule

    def faulty(program: Program, options: Any = None) -> Program:
        made = real(program, options)
        return dataclasses.replace(made, body=made.body[::-1])

    monkeypatch.setattr(schedule_module, "schedule", faulty)
    found = _bisect()
    assert found.first and found.first.name == "schedule" and found.place


def test_a_missing_wait_is_a_departure(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch, semaphores_module, "insert_semaphores", lambda i: bool(i.waits),
        lambda i: dataclasses.replace(i, waits=()),
    )  # fmt: skip
    found = _bisect()
    assert found.first and found.first.name == "insert_semaphores"
    assert found.first.departure and "Race" in found.first.departure.error


def test_a_pass_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(program: Program, options: Any = None) -> Program:
        raise InternalError("t.7 does not line up")

    monkeypatch.setattr(schedule_module, "schedule", failing)
    found = _bisect()
    assert found.first and found.first.name == "schedule" and found.first.departure
    assert found.first.departure.error == "InternalError: t.7 does not line up"


def test_a_store_to_the_wrong_place_is_followed_to_a_transfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shifted(instr: Any) -> Any:
        (_, rows), *rest = instr.src.dims
        return dataclasses.replace(
            instr, src=dataclasses.replace(instr.src, dims=((0, rows), *rest))
        )

    data = _hlo(lambda x: x * 2, np.zeros((64, 32), np.float32))
    plant(
        monkeypatch, emit_module, "emit",
        lambda i: isinstance(i, DmaCopy) and i.src.memory.value == "HBM", shifted,
    )  # fmt: skip
    found = _bisect(data)
    assert found.first and found.first.name == "emit" and found.place
    assert found.place.instruction


def test_units_are_of_the_element_or_of_the_typical_one() -> None:
    wanted = np.float32([1.0, 1.0, 1e-9])
    found = wanted + np.float32([0, 2**-23, 2**-24])
    assert ulps(found, wanted).tolist() == [0.0, 1.0, pytest.approx(1.0, rel=0.01)]
    special = np.float32([np.nan, np.inf, -np.inf, 1.0])
    assert ulps(special, special).tolist() == [0.0] * 4
    assert ulps(np.float32([1, -np.inf, 1, np.nan]), special).tolist() == [np.inf] * 4
    assert ulps(np.int32([5, -3]), np.int32([5, 4])).tolist() == [0.0, 7.0]
    assert ulps(np.bool_([True]), np.bool_([False])).tolist() == [1.0]
    narrow = np.array([1.0], ml_dtypes.bfloat16)
    assert ulps(np.array([1.0078125], ml_dtypes.bfloat16), narrow).tolist() == [1.0]
    assert ulps(np.complex64([1 + 2j]), np.complex64([1 + 1j])).shape == (2,)
    limits = [rounding(np.zeros(1, kind)) for kind in (np.float32, ml_dtypes.bfloat16, np.int8)]
    assert limits == [1024.0, 4.0, 0.0]


def test_values_are_known_up_to_a_few_roundings() -> None:
    known = np.float32([1, 2, np.nan])
    values = np.float32([1 + 2**-22, 1.5, np.nan, 2])
    assert are_among(values, known).tolist() == [True, False, True, True]
    assert are_among(np.int32([1, 3]), np.int32([1, 2])).tolist() == [True, False]
    assert not are_among(np.float32([1]), np.float32([np.nan])).any()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("model.pb").write_bytes(MODEL)
    np.save("x.npy", np.full((40, 64), 0.5, np.float32))
    np.save("bad.npy", np.zeros(3, np.int32))
    return "model.pb"


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["bisect", *arguments], prog_name="glia")


def test_the_command_prints_passes_and_the_place(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _invoke(model, "--input", "input0=x.npy")
    assert right.exit_code == 0, right.output
    assert (
        "values never depart" in right.stdout and "tolerance of the outputs: 1024" in right.stdout
    )
    plant(
        monkeypatch, emit_module, "emit", lambda i: isinstance(i, Activation),
        lambda i: dataclasses.replace(i, function="sigmoid"),
    )  # fmt: skip
    wrong = _invoke(model)
    assert wrong.exit_code == 1
    assert "values depart after emit (machine)" in wrong.stdout
    assert "instruction: activation(" in wrong.stdout and "source: " in wrong.stdout
    found = json.loads(_invoke(model, "--json", "--ulps", "7", "-O", "1").stdout)
    assert found["departs_after"] == "emit" and found["tolerances"] == [7.0]
    assert set(found["place"]) >= {"nest", "instruction", "source"}


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("--input", "y=x.npy"), "not NAME=FILE.npy with a NAME of input0, input1"),
        (("--input", "input0=bad.npy"), "bad.npy is int32[3], input0 is float32[40, 64]"),
        (("--input", "input0=none.npy"), "none.npy"),
        (("--ulps", "-1"), "ulps"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_wrong_arguments_are_one_error(model: str, arguments: tuple[str, ...], text: str) -> None:
    result = _invoke(model, *arguments)
    assert result.exit_code == 1
    assert text in result.stderr and "Traceback" not in result.stderr


def _with_kernel(function: Callable[..., Any]) -> bytes:
    """A model around a kernel, for trn2."""
    x = np.zeros((128, 64), np.float32)
    with tracing_for("trn2"):
        lowered = jax.jit(function).trace(x).lower(lowering_platforms=("tpu",))
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return data


def test_a_model_with_a_kernel_is_followed_through_every_pass() -> None:
    found = _bisect(_with_kernel(lambda x: softmax(x * 2) + 1))
    assert found.first is None
    assert len(found.passes) > 5
    assert all(each.departure is not None for each in found.passes)


def test_a_kernel_in_a_loop_is_followed_too() -> None:
    def three_times(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, y: softmax(y), x)

    found = _bisect(_with_kernel(three_times))
    assert found.first is None
    assert all(each.departure is not None for each in found.passes)


def test_a_fault_beside_a_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that computes something else after a pass: that pass is named."""
    data, ran = _with_kernel(lambda x: softmax(x) + 1), kernel_calls.run

    def wrong(program: Program, inputs: Any, **options: Any) -> Any:
        found = ran(program, inputs, **options)
        return {name: array + 1 for name, array in found.items()}

    def at_tiles(call: Any, arrays: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(kernel_calls, "run", wrong)
            return kernel_calls.run_kernel(call, arrays)

    monkeypatch.setattr(levels, "run_kernel", at_tiles)
    found = _bisect(data)
    assert found.first is not None and found.first.name == "build"


def test_a_model_without_a_meaning_is_refused() -> None:
    x = Parameter(0, TensorType(F32, (4,)), "x")
    graph = Graph("opaque", (x,), (CustomCall((x,), "OfAnotherTarget", x.type, ""),))
    with pytest.raises(NotEvaluable, match=r"GLIA126.*OfAnotherTarget"):
        bisect(graph, random_inputs(graph), CompileOptions())


def test_passes_are_observed_as_they_begin() -> None:
    begun: list[str] = []
    graph = import_hlo(MODEL)
    options = CompileOptions(auto_cast="none")
    bisect(graph, random_inputs(graph), options, starting=lambda step: begun.append(step.name))
    seen: list[PassResult] = []
    run_pipeline(graph, options, seen.append)
    assert set(begun) == {each.name for each in seen[1:]}
