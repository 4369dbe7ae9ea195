"""A failing random program made small: single results, subexpressions replaced by inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from glia.graph.ir import Graph, Node, Parameter, TensorType
from support.random_graphs.cases import Case
from support.random_graphs.grow import with_live_parameters

_PLAIN = {
    "optlevel": 1, "auto_cast": "none", "auto_cast_type": "bf16", "target": "trn2",
    "model_type": "generic", "native_int64": "default", "saturate_infinity": False,
    "fast_context_switch": False, "fast_loading_neuron_binaries": False,
}  # fmt: skip


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest program found on which `fails` still holds, which it must on `case`."""
    found: Case | None = case
    while found is not None:
        case = found
        found = next((smaller for smaller in _smaller(case) if fails(smaller)), None)
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Programs with less in them, the boldest changes first."""
    graph = case.graph
    if len(graph.results) > 1:
        for result in graph.results:
            yield _restricted(case, (result,), {})
    if graph.aliases:
        yield dataclasses.replace(case, graph=dataclasses.replace(graph, aliases=()))
    values = _values(case)
    interior = [n for n in graph.nodes if not isinstance(n, Parameter)]
    for node in interior:
        if node not in graph.results and isinstance(node.type, TensorType) and node.operands:
            yield _restricted(case, (node,), {})
    for node in reversed(interior):
        if node not in graph.results and isinstance(node.type, TensorType):
            yield _restricted(case, graph.results, {node: values[node]})
    for option, plain in _PLAIN.items():
        if case.options.get(option, plain) != plain:
            yield dataclasses.replace(case, options={**case.options, option: plain})


def _restricted(case: Case, results: tuple[Node, ...], cuts: dict[Node, Any]) -> Case:
    """The program of these results, with inputs in place of the nodes that are cut."""
    image: dict[Node, Node] = {}
    held: dict[Node, Any] = {p: case.arrays[p.index] for p in case.graph.parameters}
    for node in Graph("part", (), results).nodes:
        if node in cuts:
            assert isinstance(node.type, TensorType)
            image[node] = Parameter(len(held), node.type)
            held[image[node]] = np.asarray(cuts[node])
        elif isinstance(node, Parameter):
            image[node] = node
        else:
            image[node] = node.with_operands([image[operand] for operand in node.operands])
    graph, kept = with_live_parameters(case.graph.name, tuple(image[r] for r in results))
    donated = [(case.graph.results[r], case.graph.parameters[p]) for r, p in case.graph.aliases]
    pairs = [(results.index(r), kept.index(p)) for r, p in donated if r in results and p in kept]
    graph = dataclasses.replace(graph, aliases=tuple(pairs))
    return dataclasses.replace(case, graph=graph, arrays=tuple(held[p] for p in kept))


def _values(case: Case) -> dict[Node, Any]:
    values: dict[Node, Any] = {}
    for node in case.graph.nodes:
        values[node] = (
            case.arrays[node.index]
            if isinstance(node, Parameter)
            else node.compute(*(values[operand] for operand in node.operands))
        )
    return values
