"""Exchange the operands of a contraction whose only user transposes it."""

from __future__ import annotations

from collections import Counter

from glia.graph.ir import Graph, Node
from glia.graph.ops import Dot, Transpose
from glia.graph.rules.driver import map_regions
from glia.options import CompileOptions


def swap_contraction_operands(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with transpose(dot(a, b)) = dot(b, a), where nothing else reads dot(a, b).

    The number of users is why this is not a rule: with another user, both would be computed.
    """
    return _swap_in_graph(graph)


def _swap_in_graph(graph: Graph) -> Graph:
    readings = Counter(graph.results)
    for node in graph.nodes:
        readings.update(node.operands)
    only_read_here = {
        node: node.x
        for node in graph.nodes
        if isinstance(node, Transpose) and isinstance(node.x, Dot) and readings[node.x] == 1
    }
    originals = iter(graph.nodes)

    def change(node: Node) -> Node | None:
        original = next(originals)
        if original in only_read_here:
            assert isinstance(node, Transpose)
            return _swap_operands(node)
        changed = map_regions(node, _swap_in_graph)
        return None if changed is node else changed

    swapped = graph.rewrite(change)
    same = all(new is old for new, old in zip(swapped.results, graph.results, strict=True))
    return graph if same else swapped


def _swap_operands(node: Transpose) -> Node | None:
    """dot(b, a) when the transpose exchanges the free dimensions of a with those of b."""
    dot = node.x
    assert isinstance(dot, Dot)
    batch = len(dot.a_batch)
    from_a = batch + len(dot.a.shape) - batch - len(dot.a_contract)
    rank = len(dot.shape)
    exchanged = (*range(batch), *range(from_a, rank), *range(batch, from_a))
    if node.permutation != exchanged:
        return None
    return Dot(dot.b, dot.a, dot.b_batch, dot.a_batch, dot.b_contract, dot.a_contract,
               dot.result_dtype, loc=dot.loc)  # fmt: skip
