"""`glia reduce` shrinks a module while a command, or a function, says that it still fails."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import glia
import glia.machine.emit.fitting as fitting
import glia.machine.emit.lower as emit_module
from glia.base.errors import InternalError
from glia.cli.glia import main
from glia.frontend.errors import NotAnHloModule
from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate, random_inputs
from glia.graph.ir import Graph
from glia.graph.ops import Dot, While
from glia.isa.instructions.scalar import Activation
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.triage.bisect import bisect
from glia.triage.errors import NotReproduced
from glia.triage.shrink import Shrinking, reduce_module
from support.clean_programs import plant, plant_inexact_transpose
from support.corpus import BY_NAME, hlo_bytes

WEIGHTS = np.random.default_rng(0).standard_normal((64, 64), np.float32)


def _hlo(function: Callable[..., Any], *arrays: Any) -> bytes:
    lowered = jax.jit(function).lower(*arrays)
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return data


def _layers(x: Any, y: Any) -> Any:
    """Layers with weights, of which one has a product with y; several results."""
    for _ in range(4):
        x = jax.nn.relu(x @ WEIGHTS + 1)
    z = jnp.sin(jax.lax.erf(y @ WEIGHTS)).sum(1)
    for _ in range(3):
        x = jnp.tanh(x * z[:, None]) @ WEIGHTS.T
    return x.sum(0), x.max(), {"z": z}


LAYERS = _hlo(_layers, np.zeros((32, 64), np.float32), np.zeros((32, 64), np.float32))


def _functions(data: bytes) -> list[str]:
    return [getattr(node, "function", node.opcode) for node in import_hlo(data).nodes]


def test_one_function_is_left_of_many_layers_without_weights() -> None:
    found = reduce_module(LAYERS, lambda data: "erf" in _functions(data))
    assert found.instructions == 2 and found.kept <= found.tried < 100
    (parameter,) = import_hlo(found.module).parameters
    assert parameter.type.shape == (1, 1)
    assert len(found.module) < len(LAYERS) / 100


def test_what_has_to_stay_together_stays() -> None:
    def keep(data: bytes) -> bool:
        names = _functions(data)
        return "erf" in names and "tanh" in names

    found = reduce_module(LAYERS, keep)
    assert keep(found.module) and found.instructions < 14
    graph = import_hlo(found.module)
    evaluate(graph, random_inputs(graph))


def test_extents_shrink_with_their_multiples_and_to_what_is_needed() -> None:
    def wide_product(data: bytes) -> bool:
        dots = [n for n in import_hlo(data).nodes if isinstance(n, Dot)]
        return any(each.operands[0].shape[-1] >= 16 for each in dots)

    def model(x: Any, y: Any) -> Any:
        return (x.reshape(32, 64) @ y).reshape(4, 8, 16) + 1

    data = _hlo(model, np.zeros((4, 8, 64), np.float32), np.zeros((64, 16), np.float32))
    found = reduce_module(data, wide_product)
    (dot,) = (n for n in import_hlo(found.module).nodes if isinstance(n, Dot))
    assert dot.operands[0].shape[-1] == 16
    assert max(dot.operands[1].shape) == 16 and found.instructions == 3


def test_bodies_of_loops_stay_whole() -> None:
    def model(x: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda i, v: jnp.sin(v) * i, x) @ WEIGHTS

    data = _hlo(model, np.zeros((8, 64), np.float32))
    found = reduce_module(data, lambda d: any(isinstance(n, While) for n in import_hlo(d).nodes))
    assert found.instructions < import_count(data)
    assert any(isinstance(n, While) for n in import_hlo(found.module).nodes)


def import_count(data: bytes) -> int:
    """The instructions of a module, those of regions too."""
    from glia.frontend.hlo_import.hlo_proto import parse_module

    return sum(len(each.instructions) for each in parse_module(data).computations)


def test_a_planted_fault_is_shrunk_and_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch, emit_module, "emit",
        lambda i: isinstance(i, Activation) and i.function == "tanh",
        lambda i: dataclasses.replace(i, function="sigmoid"),
    )  # fmt: skip

    def departs(data: bytes) -> bool:
        graph = import_hlo(data)
        found = bisect(graph, random_inputs(graph), CompileOptions(auto_cast="none"))
        return bool(found.first and found.first.name == "emit")

    data = _hlo(lambda x: jnp.tanh(x @ WEIGHTS).sum(1) * 2, np.zeros((8, 64), np.float32))
    found = reduce_module(data, departs)
    assert departs(found.module) and found.instructions <= 3
    assert "tanh" in _functions(found.module)


def test_a_transpose_that_spreads_nans_stays_on_trn1(monkeypatch: pytest.MonkeyPatch) -> None:
    def departs(data: bytes) -> bool:
        graph = import_hlo(data)
        options = CompileOptions(target="trn1", auto_cast="none")
        found = bisect(graph, random_inputs(graph), options)
        return bool(found.first and found.first.name == "emit")

    def model(x: Any, y: Any) -> Any:
        rows = jax.lax.cummax(x + 1, 1) * 2
        return rows.max(0), jnp.tanh(y @ WEIGHTS).sum(1)

    data = _hlo(model, np.zeros((64, 128), np.int32), np.zeros((8, 64), np.float32))
    assert not departs(data)
    plant_inexact_transpose(monkeypatch)
    found = reduce_module(data, departs)
    assert departs(found.module) and found.instructions < import_count(data)
    assert "tanh" not in _functions(found.module)


def test_a_scatter_that_no_schedule_fits_is_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fitting._attempt

    def failing(context: Any, nest: Any, plan: Any) -> None:
        if nest.name.startswith("scatter"):
            raise InternalError(f"its operands do not line up with {nest.name}")
        real(context, nest, plan)

    def fails(data: bytes) -> bool:
        try:
            glia.compile(data)
        except InternalError as found:
            return "do not line up with scatter" in str(found)
        return False

    data = hlo_bytes(BY_NAME["graph_attention"])
    assert not fails(data)
    monkeypatch.setattr(fitting, "_attempt", failing)
    found = reduce_module(data, fails)
    assert fails(found.module) and found.instructions <= import_count(data) // 4


def test_a_failing_importer_can_be_what_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import glia.triage.shrink as module

    real = module.import_hlo

    def failing(data: bytes) -> Graph:
        graph = real(data)
        if any(getattr(node, "function", "") == "erf" for node in graph.nodes):
            raise ZeroDivisionError
        return graph

    def fails(data: bytes) -> bool:
        try:
            failing(data)
        except ZeroDivisionError:
            return True
        return False

    monkeypatch.setattr(module, "import_hlo", failing)
    assert reduce_module(LAYERS, fails).instructions == 2


def test_the_smallest_so_far_is_always_given() -> None:
    seen: list[int] = []

    def progress(found: Shrinking) -> None:
        seen.append(len(found.module))
        assert "erf" in _functions(found.module)

    found = reduce_module(LAYERS, lambda data: "erf" in _functions(data), progress)
    assert len(seen) == found.kept and seen[-1] == len(found.module)


def test_a_failure_that_does_not_show_is_refused() -> None:
    with pytest.raises(NotReproduced, match="GLIA125"):
        reduce_module(LAYERS, lambda data: False)
    with pytest.raises(NotAnHloModule):
        reduce_module(b"\1\2", lambda data: True)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("model.pb").write_bytes(LAYERS)
    return "model.pb"


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["reduce", *arguments], prog_name="glia")


@pytest.mark.parametrize("command", ["grep -q erf", "cat {} | grep -q erf"])
def test_the_command_is_run_on_candidates(model: str, command: str) -> None:
    result = _invoke(model, "--keep", command)
    assert result.exit_code == 0, result.output
    assert "wrote model.pb.reduced.pb: 2 instructions" in result.stdout
    assert "erf" in _functions(Path("model.pb.reduced.pb").read_bytes())
    found = json.loads(_invoke(model, "--keep", command, "--json", "--output", "o.pb").stdout)
    assert found["instructions"] == 2 and found["bytes"] == Path("o.pb").stat().st_size


def test_a_command_that_fails_or_hangs_says_no(model: str) -> None:
    for command in ("false", "no-such-command", "sleep 60"):
        started = time.monotonic()
        result = _invoke(model, "--keep", command, "--seconds", "0.3")
        assert result.exit_code == 1 and result.stderr.startswith("[GLIA125]")
        assert time.monotonic() - started < 30
        assert not Path("model.pb.reduced.pb").exists()


def test_a_file_that_is_no_module_is_an_error(model: str) -> None:
    Path("text.pb").write_text("HloModule x")
    result = _invoke("text.pb", "--keep", "true")
    assert result.exit_code == 1 and "it is HLO text" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_reduced_module_compiles() -> None:
    found = reduce_module(LAYERS, lambda data: "tanh" in _functions(data))
    run_pipeline(import_hlo(found.module), CompileOptions())
