"""Sharing analysis: the values that several nests read."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from glia.graph import ops
from glia.graph.ir import Graph, Node

_INLINED = (
    ops.Map,
    ops.Convert,
    ops.Bitcast,
    ops.ReducePrecision,
    ops.Broadcast,
    ops.Reshape,
    ops.Transpose,
)
_IN_BUFFER = "in a buffer"


def shared_nodes(graph: Graph) -> frozenset[Node]:
    """The nodes whose readers are computed in different nests.

    Readers fused into one nest count once: a value used twice in one expression is not shared.
    What is read in a buffer is computed in a nest of its own, however many readers it has.
    """
    homes: dict[Node, set[Hashable]] = {node: set() for node in graph.nodes}
    for position, result in enumerate(graph.results):
        homes[result].add(("result", position))
    shared = set()
    for node in reversed(graph.nodes):
        found = homes[node]
        if len(found) > 1:
            shared.add(node)
        home = next(iter(found)) if len(found) == 1 and _IN_BUFFER not in found else node
        for operand, place in _reads(node, home):
            homes[operand].add(place)
    return frozenset(shared)


def _reads(node: Node, home: Hashable) -> Iterator[tuple[Node, Hashable]]:
    """(operand, nest in which its element is read) of a node computed in nest `home`."""
    if isinstance(node, ops.Slice | ops.Reverse):  # not the element that other readers read
        yield node.x, (node, "moved")
    elif isinstance(node, _INLINED):
        for operand in node.operands:
            yield operand, home
    elif isinstance(node, ops.Scan):
        yield from ((operand, (node, "body")) for operand in node.operands)
    elif isinstance(node, ops.Reduce):
        yield node.xs[0], (node, "body")
        yield from ((operand, _IN_BUFFER) for operand in node.operands[1:])
    elif isinstance(node, ops.Concatenate | ops.DynamicUpdateSlice | ops.Scatter):
        for position, operand in enumerate(node.operands):
            yield operand, (node, position)
    else:
        yield from ((operand, _IN_BUFFER) for operand in node.operands)
