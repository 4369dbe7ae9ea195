"""Computed ranges hold every value; computing in 32 bits what fits keeps every value."""

from __future__ import annotations

import dataclasses

import pytest

from glia.graph.evaluate import evaluate
from glia.graph.expand.int64 import expand_int64
from glia.graph.ir import TensorType
from glia.graph.legal import verify
from glia.graph.passes.narrow_by_range import narrow_by_range
from glia.graph.rules.ranges import RangeAnalysis
from law.graph.integer_graphs import random_graph
from support.graph_passes_kit import PLAIN, assert_same, run

SEEDS = range(60)
MANY_SEEDS = range(60, 1500)


def check_ranges(seed: int) -> None:
    """Every value of a random graph lies in its range."""
    graph, inputs = random_graph(seed)
    facts = RangeAnalysis().facts(graph)
    nodes = [node for node in graph.nodes if isinstance(node.type, TensorType)]
    values = evaluate(dataclasses.replace(graph, results=tuple(nodes), result_names=()), inputs)
    for node, value in zip(nodes, values, strict=True):
        (found,) = facts[node]
        assert found is not None
        assert found.low <= int(value.min()), (seed, node, found, value)
        assert int(value.max()) <= found.high, (seed, node, found, value)


def check_values(seed: int) -> None:
    """A random graph has the same values when what fits 32 bits is computed in them."""
    graph, inputs = random_graph(seed)
    wanted = evaluate(graph, inputs)
    narrowed = narrow_by_range(graph, PLAIN)
    verify(narrowed)
    assert_same(evaluate(narrowed, inputs), wanted)
    words = expand_int64(narrowed, PLAIN)
    verify(words)
    assert_same(run(words, graph, inputs), wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_lie_in_their_ranges(seed: int) -> None:
    check_ranges(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_fits_32_bits_keeps_its_value_in_them(seed: int) -> None:
    check_values(seed)


@pytest.mark.nightly
def test_many_random_graphs() -> None:
    for seed in MANY_SEEDS:
        check_ranges(seed)
        check_values(seed)
