"""What a distribution strategy changes: when exchanges begin, and which of them travel together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import glia
from glia.alternatives import latency_us
from glia.compiler import PassResult, run_pipeline
from glia.frontend.registry import read_module
from glia.graph.ir import Graph
from glia.options import CompileOptions
from glia.tile.dependences import predecessors
from glia.tile.ir import Exchange, Nest, Program, Statement
from ranks.jax_programs import PROGRAMS, fully_sharded

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
STRATEGIES = ("fsdp", "llm-training")


def passed(graph: Graph, strategy: str, after: str, target: str = "trn2") -> Program:
    options = CompileOptions(target, auto_cast="none", distribution_strategy=strategy)
    found = run_pipeline(graph, options, stop_after=after)
    assert isinstance(found, Program)
    return found


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
    for n, earlier in enumerate(predecessors(units, dict(before.aliases))):
        assert all(position[names[each]] < position[names[n]] for each in earlier)


def test_gradients_are_sent_before_the_layers_below_are_computed() -> None:
    graph = read_module(fully_sharded().lowered())
    plain, early = (passed(graph, s, "start_exchanges") for s in ("", "fsdp"))

    def nests_after_the_first_scatter(program: Program) -> int:
        first = kinds_by_position(program.body, "reduce-scatter")[0]
        return sum(isinstance(each, Nest) for each in program.body[first:])

    assert nests_after_the_first_scatter(early) > nests_after_the_first_scatter(plain)


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
