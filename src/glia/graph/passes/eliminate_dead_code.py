"""Dead code: unused loop state, branch results and sorted tensors.

A node that nothing reads is not in a graph's `nodes` at all; this pass looks into operations with
several results of which only some are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Conditional, Get, Sort, While, results_of
from glia.graph.rules.driver import map_regions
from glia.graph.rules.inline_regions import inline
from glia.graph.rules.regions import parameters_read
from glia.options import CompileOptions


def eliminate_dead_code(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without unused results of loops, branches and sorts, regions included."""
    while True:
        smaller = _sweep(graph)
        if smaller is graph:
            return graph
        graph = smaller


def _sweep(graph: Graph) -> Graph:
    """One sweep over a graph and its regions; the same object when nothing is dropped."""
    replaced: dict[Node, dict[int, Node]] = {}
    image: dict[Node, Node] = {}
    for node in graph.nodes:
        if isinstance(node, Get) and node.x in replaced:
            image[node] = replaced[node.x][node.index]
            continue
        operands = [image.get(operand, operand) for operand in node.operands]
        same = all(new is old for new, old in zip(operands, node.operands, strict=True))
        rebuilt = map_regions(node if same else node.with_operands(operands), _sweep)
        read = _live_results(graph, node)
        narrow = _drop_results(rebuilt, read) if read is not None else None
        if narrow is not None:
            kept, smaller = narrow
            replaced[node] = dict(zip(kept, results_of(smaller), strict=True))
        else:
            image[node] = rebuilt
    results = tuple(image.get(result, result) for result in graph.results)
    same = all(new is old for new, old in zip(results, graph.results, strict=True))
    return graph if same else dataclasses.replace(graph, results=results)


def _live_results(graph: Graph, node: Node) -> set[int] | None:
    """The indices of a node's results that have users; None for a node with one result."""
    if isinstance(node.type, TensorType):
        return None
    return {user.index for user in graph.users[node] if isinstance(user, Get)}


def _drop_results(node: Node, read: set[int]) -> tuple[list[int], Node] | None:
    """The results to keep and the smaller operation; None when all are needed."""
    narrow = {While: _narrow_while, Conditional: _narrow_conditional, Sort: _narrow_sort}
    return narrow[type(node)](node, read) if type(node) in narrow else None


def _narrow_while(loop: Node, read: set[int]) -> tuple[list[int], Node] | None:
    """Keep the state that is read, that the condition reads, and that these depend on."""
    assert isinstance(loop, While)
    needed = set(read) | parameters_read(loop.condition.results)
    waiting = list(needed)
    while waiting:
        for index in parameters_read((loop.body.results[waiting.pop()],)) - needed:
            needed.add(index)
            waiting.append(index)
    if len(needed) == len(loop.state) or not needed:
        return None
    kept = sorted(needed)
    state = tuple(loop.state[i] for i in kept)
    condition = _restrict(loop.condition, kept, range(len(loop.condition.results)))
    return kept, While(state, condition, _restrict(loop.body, kept, kept), loc=loop.loc)


def _restrict(graph: Graph, parameters: Sequence[int], results: Sequence[int]) -> Graph:
    """The graph with only these parameters, renumbered, and only these results."""
    kept = [
        Parameter(position, graph.parameters[index].declared, graph.parameters[index].name)
        for position, index in enumerate(parameters)
    ]
    arguments: list[Node] = list(graph.parameters)
    for new, index in zip(kept, parameters, strict=True):
        arguments[index] = new
    wanted = dataclasses.replace(graph, results=tuple(graph.results[i] for i in results))
    return Graph(graph.name, tuple(kept), inline(wanted, arguments))


def _narrow_conditional(branch: Node, read: set[int]) -> tuple[list[int], Node] | None:
    assert isinstance(branch, Conditional)
    if len(read) == len(branch.branches[0].results) or not read:
        return None
    kept = sorted(read)
    branches = tuple(
        dataclasses.replace(graph, results=tuple(graph.results[i] for i in kept), result_names=())
        for graph in branch.branches
    )
    return kept, dataclasses.replace(branch, branches=branches)


def _narrow_sort(sort: Node, read: set[int]) -> tuple[list[int], Node] | None:
    """Keep the tensors that are read and those that the comparator looks at."""
    assert isinstance(sort, Sort)
    compared = {index // 2 for index in parameters_read(sort.comparator.results)}
    kept = sorted(read | compared)
    if len(kept) == len(sort.xs) or not kept:
        return None
    parameters = [index for k in kept for index in (2 * k, 2 * k + 1)]
    comparator = _restrict(sort.comparator, parameters, [0])
    xs = tuple(sort.xs[k] for k in kept)
    return kept, Sort(xs, sort.dimension, sort.is_stable, comparator, loc=sort.loc)
