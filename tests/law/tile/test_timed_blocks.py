"""Of the blocks that a model proposes for a contraction the fastest by itself are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia.tuning.choose_blocks as choosing
import glia.tuning.nest_time as timing
from glia.base.compilation_memo import one_compilation
from glia.compiler import compile_graph
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.ir import Program
from glia.tile.legal import verify
from support.targets import CORES

ROWS, DEPTH, COLUMNS = 640, 768, 1152


def _lowered(function: Any, *shapes: tuple[int, ...]) -> Any:
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes))


def _product(target: str) -> tuple[Program, CompileOptions]:
    """A product with a sum behind it, as it is when blocks are chosen."""
    shapes = (ROWS, DEPTH), (DEPTH, COLUMNS), (COLUMNS,)
    options = CompileOptions(target=target, auto_cast="none")
    graph = read_module(_lowered(lambda a, b, c: a @ b + c, *shapes))
    return run_pipeline(graph, options, stop_after="order_dimensions"), options


@pytest.mark.parametrize("target", CORES)
def test_the_blocks_taken_are_the_fastest_of_those_proposed(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, options = _product(target)
    monkeypatch.setattr(choosing, "LEAST_ARRAY_NS", 0)
    asked: list[tuple[float, Any]] = []

    def note(program: Any, nest: Any, schedule: Any, *rest: Any) -> float | None:
        ns = timing.nest_ns(program, nest, schedule, *rest)
        asked.append((ns or np.inf, schedule.blocks))
        return ns

    monkeypatch.setattr(choosing, "nest_ns", note)
    chosen = choosing.choose_blocks(program, options)
    assert len(asked) == choosing.TIMED[2] and len({ns for ns, _ in asked}) > 1
    (taken,) = (each.blocks for each in chosen.schedules.values() if each.blocks)
    assert {blocks: ns for ns, blocks in asked}[taken] == min(ns for ns, _ in asked)


def test_what_does_not_fit_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    program, options = _product("trn2")
    monkeypatch.setattr(choosing, "LEAST_ARRAY_NS", 0)
    fitting = choosing.choose_blocks(program, options)
    (taken,) = (each.blocks for each in fitting.schedules.values() if each.blocks)

    def refuse(program: Any, nest: Any, schedule: Any, *rest: Any) -> float | None:
        return None if schedule.blocks == taken else timing.nest_ns(program, nest, schedule, *rest)

    monkeypatch.setattr(choosing, "nest_ns", refuse)
    other = choosing.choose_blocks(program, options)
    assert taken not in [each.blocks for each in other.schedules.values()]
    assert any(each.blocks for each in other.schedules.values())


@pytest.mark.parametrize("target", CORES)
def test_blocks_take_the_place_of_coarse_tiles(target: str) -> None:
    """A product that sums over a vocabulary stages its tiles in blocks of that axis."""
    lowered = _lowered(lambda a, b: a @ b, (1024, 50257), (50257, 256))
    options = CompileOptions(target=target, auto_cast="none")
    before = run_pipeline(read_module(lowered), options, stop_after="order_dimensions")
    (schedule,) = before.schedules.values()
    assert schedule.coarse and not schedule.blocks
    (chosen,) = choosing.choose_blocks(before, options).schedules.values()
    assert chosen.blocks and not chosen.coarse


@pytest.mark.parametrize("target", CORES)
def test_a_nest_by_itself_computes_what_it_does_in_its_program(target: str) -> None:
    program, _ = _product(target)
    (nest,) = program.nests()
    alone = timing.isolated(program, nest, program.schedules[nest.name])
    verify(alone)
    generator = np.random.default_rng(3)
    by_shape = {
        buffer.shape: generator.standard_normal(buffer.shape).astype(buffer.dtype.numpy)
        for buffer in program.buffers.values()
    }
    given = [[by_shape[p.buffers[name].shape] for name in p.inputs] for p in (program, alone)]
    (wanted,), (found,) = (evaluate(p, a) for p, a in zip((program, alone), given, strict=True))
    np.testing.assert_array_equal(found, wanted)


def test_nests_that_differ_in_names_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers, each of two products, take no more trials than one layer."""
    counts = []
    timed = timing.timed_ns

    def note(*arguments: Any) -> float | None:
        counts[-1] += 1
        return timed(*arguments)

    monkeypatch.setattr(timing, "timed_ns", note)
    monkeypatch.setattr(choosing, "LEAST_ARRAY_NS", 0)
    for layers in (1, 4):
        counts.append(0)

        def model(x: Any, up: Any, down: Any, layers: int = layers) -> Any:
            for _ in range(layers):
                x = jnp.tanh(jnp.tanh(x @ up) @ down)
            return x

        lowered = _lowered(model, (512, 256), (256, 1024), (1024, 256))
        options = CompileOptions(auto_cast="none", num_parallel_jobs=1)
        compile_graph(read_module(lowered), options)
    assert counts[0] > 0 and counts[1] <= 2 * counts[0]


def test_a_time_is_remembered_for_a_compilation() -> None:
    program, options = _product("trn2")
    (nest,) = program.nests()
    schedule = program.schedules[nest.name]
    renamed = replace(nest, name="another")
    with one_compilation():
        first = timing.nest_ns(program, nest, schedule, options, "choose_blocks")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timing, "timed_ns", lambda *_: pytest.fail("timed again"))
            again = timing.nest_ns(program, renamed, schedule, options, "choose_blocks")
    assert first and first == again
