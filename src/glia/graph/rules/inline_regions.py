"""Inlining of regions, on tensors as on scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from glia.base.dtype import S32
from glia.base.errors import CompileError
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import (
    Bitcast,
    Broadcast,
    Conditional,
    Convert,
    Get,
    Map,
    ReducePrecision,
    Reshape,
    Transpose,
)
from glia.graph.rules.constructors import broadcast, region, select, splat
from glia.graph.rules.driver import Tuple, results_as_node
from glia.graph.rules.regions import parameters_read

ELEMENTWISE = (Map, Convert, Bitcast, ReducePrecision)
"""Operations that treat every element alike: they mean the same on tensors as on scalars."""


class RegionNotScalar(CompileError):
    """The computation of a reduction, scatter, sort or window is not elementwise.

    Cause: the computation holds a loop or moves data, so it cannot be applied to whole tensors.
    Fix: write the computation with elementwise operations only.
    Example: a `reduce` whose computation contains a `while`.
    """

    code: ClassVar[str] = "NCC_EUOC002"
    message: ClassVar[str] = "operation {opcode} is not supported inside the computation {region}"
    help: ClassVar[str] = "use only elementwise operations inside this computation"


def inline(graph: Graph, arguments: Sequence[Node]) -> tuple[Node, ...]:
    """The results of `graph` applied to `arguments`, as nodes of the surrounding graph."""
    return rebuilt(graph, dict(zip(graph.parameters, arguments, strict=True)))


def rebuilt(graph: Graph, made: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The results of a graph, with other nodes in place of some: parameters, or what they give."""
    image = dict(made)
    for node in graph.nodes:
        if node not in image:
            operands = [image[operand] for operand in node.operands]
            same = all(new is old for new, old in zip(operands, node.operands, strict=True))
            image[node] = node if same else node.with_operands(operands)
    return tuple(image[result] for result in graph.results)


def split_independent_body(body: Graph) -> tuple[Graph, ...] | None:
    """A body for each of several tensors that `body` combines independently.

    None when it combines one tensor, or when the result of one depends on another.
    """
    count = len(body.results)
    pairs = enumerate(body.results)
    if count == 1 or not all(parameters_read((result,)) <= {i, count + i} for i, result in pairs):
        return None
    return tuple(_restrict_to_result(body, i) for i in range(count))


def _restrict_to_result(body: Graph, i: int) -> Graph:
    scalar = body.results[i].type

    def combined(old: Node, new: Node) -> Node:
        arguments: list[Node] = list(body.parameters)
        arguments[i], arguments[len(body.results) + i] = old, new
        return inline(body, arguments)[i]

    assert isinstance(scalar, TensorType)
    return region(body.name, (scalar, scalar), combined)


def inline_scalar_graph(graph: Graph, tensors: Sequence[Node]) -> tuple[Node, ...]:
    """A graph on scalars applied element by element to tensors of one shape.

    Raises RegionNotScalar for what has no elementwise meaning.
    """
    shape = tensors[0].shape
    image: dict[Node, Node] = dict(zip(graph.parameters, tensors, strict=True))
    for node in graph.nodes:
        if node not in image:
            image[node] = _lift(node, [image[operand] for operand in node.operands], graph)
    return tuple(_broadcast_scalar(image[result], shape) for result in graph.results)


def _lift(node: Node, operands: list[Node], graph: Graph) -> Node:
    """The scalar operation `node` on tensors; what depends on no parameter stays scalar."""
    if isinstance(node, Get) and isinstance(operands[0], Tuple):
        return operands[0].parts[node.index]
    shape = next((o.shape for o in operands if not isinstance(o, Tuple) and o.shape), None)
    if shape is None:
        return node.with_operands(operands) if operands else node
    lifted = [_broadcast_scalar(operand, shape) for operand in operands]
    if isinstance(node, ELEMENTWISE) and node.shape == ():
        return node.with_operands(lifted)
    if isinstance(node, Reshape | Broadcast | Transpose) and node.shape == node.x.shape == ():
        return lifted[0]
    if isinstance(node, Conditional):
        return _inline_conditional(node, lifted)
    raise RegionNotScalar(opcode=node.opcode, region=graph.name, loc=node.loc)


def _broadcast_scalar(x: Node, shape: tuple[int, ...]) -> Node:
    return x if x.shape == shape else broadcast(x, shape, ())


def _inline_conditional(node: Conditional, operands: list[Node]) -> Node:
    """Every branch inlined, and the results of the one that the index names selected."""
    index, rest = operands[0], operands[1:]
    outcomes = []
    for branch, count in zip(node.branches, node.operand_counts, strict=True):
        outcomes.append(
            inline_scalar_graph(branch, rest[:count]) if count else _inline_constants(branch)
        )
        rest = rest[count:]
    shape = index.shape
    outcomes = [tuple(_broadcast_scalar(value, shape) for value in outcome) for outcome in outcomes]
    if node.index.dtype is not S32:
        true, false = outcomes
        pairs = zip(true, false, strict=True)
        return results_as_node(select(index, a, b) for a, b in pairs)
    chosen = outcomes[-1]
    for number in range(len(outcomes) - 1):
        is_this = Map("equal", (index, splat(number, S32, shape)))
        pairs = zip(outcomes[number], chosen, strict=True)
        chosen = tuple(select(is_this, a, b) for a, b in pairs)
    return results_as_node(chosen)


def _inline_constants(branch: Graph) -> tuple[Node, ...]:
    return inline(branch, ())
