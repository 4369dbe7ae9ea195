"""Loops over layers whose weights are gathered: one iteration ahead, where they are read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import glia
from glia.frontend.registry import read_module
from glia.graph.ir import Graph
from glia.graph.ops import While as GraphWhile
from glia.graph.recurrences.all_iterations import iterations
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.ir import Exchange, Nest, Program, While
from glia.tile.nest_rewriting import copied_buffer
from ranks.jax_programs import RankedProgram, random

WIDTH = 64


def layers(count: int, *, is_reversed: bool = False, step: int = 1) -> RankedProgram:
    """A loop over layers, each a product whose weights are divided among eight ranks."""

    def loop(x, weights, whole):  # type: ignore[no-untyped-def]
        def more(state):  # type: ignore[no-untyped-def]
            return state[0] < count

        def layer(state):  # type: ignore[no-untyped-def]
            i, x = state
            at = count - 1 - i if is_reversed else i
            own = lax.dynamic_index_in_dim(weights, at, keepdims=False)
            return i + step, jnp.tanh(x @ whole(own)) + x

        return lax.while_loop(more, layer, (0, x))[1]

    def local(x, weights):  # type: ignore[no-untyped-def]
        return loop(x, weights, lambda own: lax.all_gather(own, "t", axis=0, tiled=True))

    return RankedProgram(
        AbstractMesh((8,), ("t",)), local, lambda x, weights: loop(x, weights, lambda own: own),
        (P("t"), P(None, "t")), P("t"),
        (random(64, WIDTH), random(count, WIDTH, WIDTH, scale=0.1)),
    )  # fmt: skip


def prepared(program: RankedProgram, strategy: str, after: str, target: str = "trn2") -> Any:
    options = CompileOptions(target, auto_cast="none", distribution_strategy=strategy)
    return run_pipeline(read_module(program.lowered()), options, stop_after=after)


def loop_of(program: Program) -> While:
    (found,) = [each for each in program.body if isinstance(each, While)]
    return found


@pytest.mark.filterwarnings("error")  # nothing is fetched from out of bounds
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("strategy", ["fsdp", "llm-training"])
@pytest.mark.parametrize(
    ("count", "is_reversed", "step"),
    [(4, False, 1), (5, False, 1), (8, True, 1), (7, True, 1), (3, False, 1), (11, False, 2)],
)
def test_layers_gathered_ahead_give_what_one_device_gives(
    count: int, is_reversed: bool, step: int, strategy: str, target: str
) -> None:
    program = layers(count, is_reversed=is_reversed, step=step)
    options = CompileOptions(target, auto_cast="none", distribution_strategy=strategy)
    made = run_pipeline(read_module(program.lowered()), options)
    found = glia.load(Neff((made,), partitions=8), ranks=8).run_ranks(program.inputs_of_ranks())
    for ours, theirs in zip(found, program.expected(), strict=True):
        np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("strategy", ["fsdp", "llm-training"])
def test_the_next_layer_is_gathered_into_what_the_loop_reads(strategy: str) -> None:
    made = prepared(layers(8), strategy, "start_exchanges")
    loop = loop_of(made)
    assert loop.iterations == 4
    exchanges = [each for each in loop.body if isinstance(each, Exchange)]
    products = [each for each in loop.body if isinstance(each, Nest) and each.reduction]
    assert len(exchanges) == len(products) == 2
    first, second = products
    assert {load.buffer for load in second.loads} & {*exchanges[0].outputs}
    assert {load.buffer for load in first.loads} & {*exchanges[1].outputs}
    # the second exchange writes what the first product reads: behind it, and beside the second
    assert loop.body.index(first) < loop.body.index(exchanges[1]) < loop.body.index(second)
    weights = {name for each in exchanges for name in each.outputs}
    copies = [each for each in loop.body if isinstance(each, Nest)]
    assert not [each for each in copies if copied_buffer(each, made.buffers) in weights]


def test_an_odd_loop_begins_with_one_iteration_alone() -> None:
    loop = loop_of(prepared(layers(7), "fsdp", "start_exchanges"))
    assert loop.iterations == 3


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_what_a_loop_stacks_is_stored_in_runs_whatever_reads_it(target: str) -> None:
    def local(x, ups, downs):  # type: ignore[no-untyped-def]
        def loss(weights):  # type: ignore[no-untyped-def]
            def layer(x, own):  # type: ignore[no-untyped-def]
                up, down = (lax.all_gather(each, "t", axis=0, tiled=True) for each in own)
                return x + (jnp.tanh(x @ up) @ down), None

            return jnp.sum(lax.scan(layer, x, weights)[0] ** 2)

        return jax.grad(loss)((ups, downs))

    spec = P(None, "t")
    program = RankedProgram(
        AbstractMesh((8,), ("t",)), local, local, (P(), spec, spec), (spec, spec),
        (random(128, 512), random(8, 512, 1408), random(8, 1408, 512)),
    )  # fmt: skip
    made = prepared(program, "", "choose_blocks", target)
    nests = [each for loop in made.body if isinstance(loop, While) for each in loop.body]
    stored = [each for each in nests if isinstance(each, Nest) and each.target.dynamic]
    assert len([each for each in stored if len(each.axes) > 1]) >= 5
    for nest in stored:
        assert made.schedules[nest.name].partition not in nest.target.index[-1].variables


@pytest.mark.parametrize(("count", "strategy"), [(8, ""), (3, "fsdp")])
def test_a_loop_without_a_strategy_or_with_few_iterations_stays(count: int, strategy: str) -> None:
    loop = loop_of(prepared(layers(count), strategy, "start_exchanges"))
    assert loop.iterations == count
    assert sum(isinstance(each, Exchange) for each in loop.body) == 1


def test_what_is_gathered_of_a_changing_state_is_not_fetched_ahead() -> None:
    def local(x):  # type: ignore[no-untyped-def]
        def layer(_, x):  # type: ignore[no-untyped-def]
            return jnp.tanh(x + lax.all_gather(x, "t", axis=0, tiled=True)[:8])

        return lax.fori_loop(0, 8, layer, x)

    program = RankedProgram(
        AbstractMesh((8,), ("t",)), local, local, (P("t"),), P("t"), (random(64, WIDTH),)
    )
    loop = loop_of(prepared(program, "fsdp", "start_exchanges"))
    assert loop.iterations == 8
    assert sum(isinstance(each, Exchange) for each in loop.body) == 1


@pytest.mark.parametrize(
    ("begin", "end", "step", "times"),
    [(0, 8, 1, 8), (3, 8, 1, 5), (0, 7, 2, 4), (8, 3, 1, 0), (0, 6, 3, 2)],
)
def test_how_often_a_loop_runs_is_known(begin: int, end: int, step: int, times: int) -> None:
    def count(x):  # type: ignore[no-untyped-def]
        def more(state):  # type: ignore[no-untyped-def]
            return state[0] < end

        return lax.while_loop(more, lambda s: (s[0] + step, s[1] * 2), (begin, x))[1]

    program = RankedProgram(
        AbstractMesh((1,), ("t",)), count, count, (P(),), P(), (np.ones((), np.float32),)
    )
    graph = read_module(program.lowered())
    (loop,) = [each for each in graph.nodes if isinstance(each, GraphWhile)]
    assert iterations(loop) == times
    assert float(count(np.float32(1))) == 2.0**times


def test_how_often_a_loop_runs_is_not_known_where_data_decides() -> None:
    def search(x):  # type: ignore[no-untyped-def]
        return lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: x * 2, x)

    program = RankedProgram(
        AbstractMesh((1,), ("t",)), search, search, (P(),), P(), (np.ones(4, np.float32),)
    )
    graph: Graph = read_module(program.lowered())
    (loop,) = [each for each in graph.nodes if isinstance(each, GraphWhile)]
    assert iterations(loop) is None
