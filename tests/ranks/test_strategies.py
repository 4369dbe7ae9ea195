"""What a distribution strategy changes: when exchanges begin, and which of them travel together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import glia
from glia.alternatives import latency_us
from glia.frontend.registry import read_module
from glia.graph.ir import Graph
from glia.isa.instructions.collectives import Collective, CollectivePermute
from glia.machine import ir as machine
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.pass_runner import PassResult, run_pipeline
from glia.sim.ranks.rank_threads import run_ranks_strictly
from glia.tile.contraction import contraction_operands
from glia.tile.dependences import predecessors
from glia.tile.exchanges.parts import whole_of
from glia.tile.exchanges.split_exchanges import Shares, begins_with_exchange, split_exchanges
from glia.tile.ir import Exchange, Nest, Program, Statement
from glia.tuning.choose_parts import LEAST_ROWS, WAYS, choose_parts
from glia.tuning.rest_of_pipeline import timed_ns
from ranks.jax_programs import PROGRAMS, RankedProgram, fully_sharded, random

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
STRATEGIES = ("fsdp", "llm-training")


def passed(graph: Graph, strategy: str, after: str, target: str = "trn2") -> Program:
    options = CompileOptions(target, auto_cast="none", distribution_strategy=strategy)
    found = run_pipeline(graph, options, stop_after=after)
    assert isinstance(found, Program)
    return found


def require_same(program: RankedProgram, graph: Graph, target: str, *, atol: float = 2e-5) -> None:
    """What ranks give under llm-training has to be what one device gives."""
    require_expected(program, run_pipeline(graph, options_for(target)), atol=atol)


def require_expected(program: RankedProgram, made: machine.Program, *, atol: float = 2e-5) -> None:
    """What ranks give has to be what one device gives."""
    found = glia.load(Neff((made,), partitions=8), ranks=8).run_ranks(program.inputs_of_ranks())
    for ours, theirs in zip(found, program.expected(), strict=True):
        np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-4, atol=atol)


def kinds(program: Program) -> list[str]:
    return [each.kind for each in program.body if isinstance(each, Exchange)]


@pytest.mark.parametrize("number", range(2 * len(PROGRAMS)))
def test_a_program_under_a_strategy_gives_what_one_device_gives(number: int) -> None:
    make, target = PROGRAMS[number % len(PROGRAMS)], TARGETS[number % len(TARGETS)]
    program, strategy = make(), STRATEGIES[number // len(PROGRAMS)]
    neff = glia.compile(program.lowered(), target=target, distribution_strategy=strategy)
    found = glia.load(neff, ranks=8).run_ranks(program.inputs_of_ranks())
    for ours, theirs in zip(found, program.expected(), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", PROGRAMS)
def test_an_order_for_exchanges_keeps_every_dependence(make: object, strategy: str) -> None:
    graph = read_module(make().lowered())  # type: ignore[operator]
    before, after = (passed(graph, s, "start_exchanges") for s in ("", strategy))
    position = {each.name: n for n, each in enumerate(after.body)}
    names = [each.name for each in before.body]
    assert sorted(position) == sorted(names)
    units = [(each,) for each in before.body]
    for n, earlier in enumerate(predecessors(units, before)):
        assert all(position[names[each]] < position[names[n]] for each in earlier)


def test_gradients_are_sent_before_the_layers_below_are_computed() -> None:
    graph = read_module(fully_sharded().lowered())
    plain, early = (passed(graph, s, "start_exchanges") for s in ("", "fsdp"))

    def nests_after_the_first_scatter(program: Program) -> int:
        first = kinds_by_position(program.body, "reduce-scatter")[0]
        return sum(isinstance(each, Nest) for each in program.body[first:])

    assert nests_after_the_first_scatter(early) > nests_after_the_first_scatter(plain)


@pytest.mark.parametrize("make", PROGRAMS)
def test_ranks_exchange_in_the_order_that_was_planned(make: object) -> None:
    graph = read_module(make().lowered())  # type: ignore[operator]
    options = CompileOptions(auto_cast="none", distribution_strategy="fsdp")
    planned, made = (run_pipeline(graph, options, stop_after=each) for each in ("emit", "schedule"))
    assert exchanged(planned) == exchanged(made) != []


def exchanged(program: object) -> list[tuple[str, ...]]:
    assert isinstance(program, machine.Program)
    return [
        tuple(pattern.tile.name for pattern in each.written_patterns())
        for each in program.instructions()
        if isinstance(each, Collective | CollectivePermute)
    ]


def kinds_by_position(body: Sequence[Statement], kind: str) -> list[int]:
    found = enumerate(body)
    return [n for n, each in found if isinstance(each, Exchange) and each.kind == kind]


def test_short_exchanges_of_a_group_travel_together() -> None:
    graph = read_module(fully_sharded().lowered())
    plain, joined = (passed(graph, s, "place_exchanges") for s in ("", "llm-training"))
    assert kinds(plain).count("all-gather") == 3
    assert kinds(joined).count("all-gather") == 1
    (gather,) = [e for e in joined.body if isinstance(e, Exchange) and e.kind == "all-gather"]
    assert len(gather.inputs) == len(gather.outputs) == 3
    assert kinds_by_position(joined.body, "all-gather") == [0]


def test_a_strategy_is_kept_where_it_is_faster_and_said_in_the_report() -> None:
    lowered = fully_sharded().lowered()
    plain, chosen = (glia.compile(lowered, distribution_strategy=s) for s in ("", "fsdp"))
    times = [latency_us(neff.programs, neff.target) for neff in (plain, chosen)]
    assert times[0] is not None and times[1] is not None and times[1] < times[0]
    found = chosen.report["precision"]
    assert found["distribution_strategy"] == "fsdp"
    assert [each["distribution_strategy"] for each in found["alternatives"]] == ["fsdp", ""]


def test_a_model_without_exchanges_needs_no_strategy() -> None:
    graph = Graph("model", (), ())
    seen: list[PassResult] = []
    neff = glia.compile(graph, distribution_strategy="fsdp", observer=seen.append)
    assert len(neff.report["precision"]["alternatives"]) == 1
    assert neff.report["precision"]["distribution_strategy"] == ""


def two_sums(rows: int, width: int) -> RankedProgram:
    """Two products of which eight ranks have a part each, and what is computed between sums."""
    weights = [random(width, width, seed=n, scale=0.1) for n in range(2)]

    def block(x, first, second, total):  # type: ignore[no-untyped-def]
        x = x + jnp.tanh(total(x[:, : first.shape[0]] @ first))
        return x / jnp.sum(x * x, 1, keepdims=True) + total(jnp.tanh(x @ second.T) @ second)

    def local(x, first, second):  # type: ignore[no-untyped-def]
        return block(x, first, second, lambda y: lax.psum(y, "t"))

    def whole(x, first, second):  # type: ignore[no-untyped-def]
        rank = width // 8
        y = sum(x[:, :rank] @ first[n * rank : n * rank + rank] for n in range(8))
        x = x + jnp.tanh(y)
        parts = [second[n * rank : n * rank + rank] for n in range(8)]
        y = sum(jnp.tanh(x @ each.T) @ each for each in parts)
        return x / jnp.sum(x * x, 1, keepdims=True) + y

    specs = (P(), P("t"), P("t"))
    return RankedProgram(
        AbstractMesh((8,), ("t",)), local, whole, specs, P(), (random(rows, width), *weights)
    )


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_sums_of_much_data_travel_in_parts_and_are_the_same(target: str) -> None:
    program = two_sums(512, 512)
    graph = read_module(program.lowered())
    early = passed(graph, "llm-training", "start_exchanges", target)
    at = kinds_by_position(early.body, "all-reduce")
    assert len(at) in (4, 6)  # the product before the first sum is over before that
    assert any(isinstance(each, Nest) for each in early.body[at[len(at) // 2 - 1] : at[-2]])
    kept = passed(graph, "fsdp", "start_exchanges", target)
    assert len(kinds_by_position(kept.body, "all-reduce")) == 2
    require_same(program, graph, target)


def attention(rows: int, width: int) -> RankedProgram:
    """Causal attention of which each of eight ranks has a head, and what follows its sum."""
    head, weights = width // 8, random(4, width, width, scale=0.1)

    def mixed(x, weights):  # type: ignore[no-untyped-def]
        q, k, v = (x @ each for each in weights[:3])
        scores = jnp.where(jnp.tri(rows) > 0, q @ k.T / 8, -1e30)
        return jax.nn.softmax(scores) @ v

    def local(x, weights):  # type: ignore[no-untyped-def]
        return x + jnp.tanh(lax.psum(mixed(x, weights) @ weights[3].T, "t"))

    def whole(x, weights):  # type: ignore[no-untyped-def]
        heads = [weights[:, :, n * head : n * head + head] for n in range(8)]
        return x + jnp.tanh(sum(mixed(x, each) @ each[3].T for each in heads))

    return RankedProgram(
        AbstractMesh((8,), ("t",)), local, whole, (P(), P(None, None, "t")), P(),
        (random(rows, width), weights),
    )  # fmt: skip


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_attention_before_a_sum_runs_in_parts_and_is_the_same(target: str) -> None:
    program = attention(512, 512)
    graph = read_module(program.lowered())
    early = passed(graph, "llm-training", "start_exchanges", target)
    products = [
        n for n, each in enumerate(early.body)
        if isinstance(each, Nest) and contraction_operands(each)
    ]  # fmt: skip
    first, last = kinds_by_position(early.body, "all-reduce")
    assert sum(first < n < last for n in products) == 4  # queries, scores, values, the output
    require_same(program, graph, target, atol=1e-4)


def experts(tokens: int, width: int) -> RankedProgram:
    """Tokens go to one of eight experts, each on a rank of its own, and come back."""
    own = tokens // 8

    def chosen(x):  # type: ignore[no-untyped-def]
        return jnp.argmax(x[:, :8], 1)

    def local(x, weights):  # type: ignore[no-untyped-def]
        choice = chosen(x)
        slots = jax.nn.one_hot(choice, 8, dtype=x.dtype).T[:, :, None] * x[None]
        sent = lax.all_to_all(slots, "t", 0, 0, tiled=True)
        back = lax.all_to_all(jnp.tanh(sent @ weights[0]), "t", 0, 0, tiled=True)
        return back[choice, jnp.arange(own)]

    def whole(x, weights):  # type: ignore[no-untyped-def]
        return jnp.tanh(jnp.einsum("td,tde->te", x, weights[chosen(x)]))

    return RankedProgram(
        AbstractMesh((8,), ("t",)), local, whole, (P("t"), P("t")), P("t"),
        (random(tokens, width), random(8, width, width, scale=0.1)),
    )  # fmt: skip


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_tokens_go_to_experts_and_come_back_in_parts(target: str) -> None:
    program = experts(2048, 128)
    graph = read_module(program.lowered())
    early = passed(graph, "llm-training", "choose_parts", target)
    parts = len(kinds(early)) // 2
    assert kinds(early) == ["all-to-all"] * (2 * parts) and parts > 1
    merged = passed(graph, "llm-training", "merge_rows", target)
    shapes = [merged.buffers[e.outputs[0]].shape for e in merged.body if isinstance(e, Exchange)]
    assert all(len(each) == 2 for each in shapes[:parts])  # rows of products
    assert sum(rows for rows, _ in shapes[:parts]) == 2048
    assert all(each[::2] == (8, 128) for each in shapes[parts:])  # of which tokens are chosen
    require_same(program, graph, target)


def options_for(target: str) -> CompileOptions:
    return CompileOptions(target, auto_cast="none", distribution_strategy="llm-training")


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("shares", WAYS)
def test_tokens_go_and_come_back_in_parts_of_all_sizes(shares: Shares, target: str) -> None:
    program, options = experts(512, 128), options_for(target)
    before = passed(read_module(program.lowered()), "llm-training", "expand_scalars", target)
    early = split_exchanges(before, options, shares, LEAST_ROWS)
    assert kinds(early) == ["all-to-all"] * (2 * len(shares))
    rows = [early.buffers[e.outputs[0]].shape[1] for e in early.body if isinstance(e, Exchange)]
    assert sorted(rows) == sorted(int(64 * share) for share in shares * 2)
    require_expected(program, run_pipeline(early, options, start_after="choose_parts"))  # type: ignore[arg-type]
    ordered = run_pipeline(early, options, stop_after="start_exchanges", start_after="choose_parts")  # type: ignore[arg-type]
    parts: dict[str, list[str]] = {}
    for each in ordered.body:
        parts.setdefault(whole_of(each), []).append(each.name)
    assert max(map(len, parts.values())) == len(shares)
    assert all(names == sorted(names) for names in parts.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_no_order_of_engines_and_queues_changes_what_ranks_give(strategy: str, target: str) -> None:
    """Races of exchanges with what takes over their bytes would be faults."""
    program = two_sums(256, 128) if strategy == "fsdp" else experts(256, 128)
    options = replace(options_for(target), distribution_strategy=strategy)
    before = passed(read_module(program.lowered()), strategy, "expand_scalars", target)
    early = split_exchanges(before, options, WAYS[-1], 8)
    assert len(kinds(early)) == len(WAYS[-1]) * len(kinds(before)) > 0
    made = run_pipeline(early, options, start_after="choose_parts")  # type: ignore[arg-type]
    names = [binding.name for binding in made.inputs]
    inputs = [dict(zip(names, given, strict=True)) for given in program.inputs_of_ranks()]
    for ours, theirs in zip(run_ranks_strictly([made], inputs), program.expected(), strict=True):
        np.testing.assert_allclose(ours[made.outputs[0].name], theirs[0], rtol=2e-4, atol=2e-5)


def test_parts_are_of_the_sizes_that_are_fastest() -> None:
    options = options_for("trn2")
    program = read_module(experts(2048, 512).lowered())
    before = passed(program, "llm-training", "expand_scalars")
    ways = [split_exchanges(before, options, shares, LEAST_ROWS) for shares in WAYS]
    times = [timed_ns(way, options, "choose_parts") for way in ways]
    found = [ns for ns in times if ns is not None]
    assert len(set(found)) > 1
    assert choose_parts(before, options) == ways[times.index(min(found))]


def test_long_programs_and_work_before_an_exchange_have_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = options_for("trn2")
    before = passed(read_module(experts(2048, 512).lowered()), "llm-training", "expand_scalars")
    monkeypatch.setattr("glia.tuning.choose_parts.MOST_TIMED", len(before.body) - 1)
    assert choose_parts(before, options) == split_exchanges(before, options)
    monkeypatch.undo()
    specs, weights = (P(), P(None, "t"), P("t")), (random(1024, 8192), random(8192, 512))

    def local(x, first, second):  # type: ignore[no-untyped-def]
        return jnp.tanh(lax.psum(jnp.tanh(x @ first) @ second, "t"))

    program = RankedProgram(
        AbstractMesh((8,), ("t",)), local, local, specs, P(), (random(512, 1024), *weights)
    )
    before = passed(read_module(program.lowered()), "llm-training", "expand_scalars")
    assert not begins_with_exchange(before, options)
    assert choose_parts(before, options) == split_exchanges(before, options) != before


def test_an_exchange_whose_result_is_needed_as_a_whole_stays_whole() -> None:
    def local(x):  # type: ignore[no-untyped-def]
        total = lax.psum(x * 2, "t")
        return total @ total.T

    program = RankedProgram(
        AbstractMesh((8,), ("t",)), local, lambda x: 256 * x @ x.T, (P(),), P(), (random(512, 512),)
    )
    early = passed(read_module(program.lowered()), "llm-training", "start_exchanges")
    assert kinds(early) == ["all-reduce"]
