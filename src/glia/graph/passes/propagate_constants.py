"""Constant folding, as far as it does not grow the program."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Bitcast,
    Broadcast,
    Collective,
    Constant,
    Convert,
    Convolution,
    Dot,
    Iota,
    ReducePrecision,
    Reshape,
    Slice,
    Transpose,
    While,
)
from glia.graph.rules.driver import map_regions
from glia.graph.rules.regions import all_nodes, regions_of
from glia.graph.type_rules import tensor
from glia.options import CompileOptions

Array = np.ndarray[Any, Any]

FREE_BYTES = 64 * 1024
"""A folded result may always have this many bytes."""

GROWTH = 2
"""A larger result may have this many times the bytes of the constants it is computed from."""

FOLDED_WORK = 1 << 26
"""Elementary steps (elements, or multiplications) that folding one node may take."""

_LAYOUT = (Transpose, Reshape, Convert, Bitcast, ReducePrecision, Slice)
_NEVER = (Collective, While)  # the participant is unknown; it may not terminate
_GENERATED = (Broadcast, Iota)


def propagate_constants(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with every node on constants replaced by its value.

    A result has at most FREE_BYTES, or GROWTH times the bytes of its constant operands; what only
    changes the layout or dtype of a constant is always folded. Broadcasts and iotas stay,
    because generating them costs less than loading them.
    """
    return _fold(graph)


def _fold(graph: Graph) -> Graph:
    known: dict[Node, Array | None] = {}

    def change(node: Node) -> Node | None:
        node = map_regions(node, _fold)
        if isinstance(node, Constant):
            known[node] = np.asarray(node.value)
        elif _is_foldable(node, known):
            folded = _evaluate_to_constant(node, known)
            known[folded] = np.asarray(folded.value)
            return folded
        elif isinstance(node, _GENERATED) and all(o in known for o in node.operands):
            known[node] = None
        return node

    return graph.rewrite(change)


def _is_foldable(node: Node, known: dict[Node, Array | None]) -> bool:
    if isinstance(node, (Parameter, *_NEVER, *_GENERATED)) or not (node.operands and node.is_pure):
        return False
    if not isinstance(node.type, TensorType) or any(o not in known for o in node.operands):
        return False
    if _has_unfoldable_region(node) or _evaluation_steps(node) > FOLDED_WORK:
        return False
    stored = sum(tensor(o).bytes for o in node.operands if isinstance(o, Constant))
    if stored and isinstance(node, _LAYOUT):
        return True
    return node.type.bytes <= max(FREE_BYTES, GROWTH * stored)


def _has_unfoldable_region(node: Node) -> bool:
    return any(
        isinstance(inner, _NEVER) or not inner.is_pure
        for region in regions_of(node)
        for inner in all_nodes(region)
    )


def _evaluation_steps(node: Node) -> int:
    """The elementary steps of evaluating a node, to within a small factor."""
    result = tensor(node).elements
    elements = max((tensor(o).elements for o in node.operands), default=0)
    elements = max(elements, result)
    if isinstance(node, Dot):
        return elements * max(1, math.prod(node.a.shape[d] for d in node.a_contract))
    if isinstance(node, Convolution):
        return result * math.prod(node.kernel.shape[1:])
    return elements


def _evaluate_to_constant(node: Node, known: dict[Node, Array | None]) -> Constant:
    value = np.array(node.compute(*(_known_value(o, known) for o in node.operands)), order="C")
    value.flags.writeable = False
    return Constant(value, loc=node.loc)


def _known_value(node: Node, known: dict[Node, Array | None]) -> Array:
    """The value of a known node; broadcasts and iotas are evaluated on demand."""
    found = known[node]
    return (
        node.compute(*(_known_value(o, known) for o in node.operands)) if found is None else found
    )
