"""The number of floating-point operations of a graph."""

from __future__ import annotations

import math

from glia.graph.ir import Graph
from glia.graph.ops import Convolution, Dot
from glia.graph.rules.regions import regions_of


def count_flops(graph: Graph) -> int:
    """Floating-point operations of the model's contractions; the body of a loop counts once."""
    total = 0
    for node in graph.nodes:
        if isinstance(node, Dot):
            contracted = math.prod(node.a.shape[axis] for axis in node.a_contract)
            total += 2 * contracted * math.prod(node.shape)
        elif isinstance(node, Convolution):
            contracted = math.prod(node.kernel.shape[1:])
            total += 2 * contracted * math.prod(node.shape)
        total += sum(map(count_flops, regions_of(node)))
    return total
