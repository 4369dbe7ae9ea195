"""The number of floating-point operations of a graph."""

from __future__ import annotations

import math

from glia.graph.ir import Graph
from glia.graph.ops import Convolution, Dot


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
        for name in node.region_fields:
            region = getattr(node, name)
            for inner in region if isinstance(region, tuple) else (region,):
                total += count_flops(inner)
    return total
