"""Traversal of regions and types, and parameters that results depend on."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from glia.base.dtype import DType
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType, Type


def parameters_read(roots: Sequence[Node]) -> set[int]:
    """The indices of the parameters that the roots depend on."""
    reached = Graph("", (), tuple(roots)).nodes
    return {node.index for node in reached if isinstance(node, Parameter)}


def regions_of(node: Node) -> Iterator[Graph]:
    """Every region of an operation."""
    for name in node.region_fields:
        value = getattr(node, name)
        yield from (value,) if isinstance(value, Graph) else value


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Every node of a graph and of its regions."""
    for node in graph.nodes:
        yield node
        for region in regions_of(node):
            yield from all_nodes(region)


def operation_text(node: Node) -> str:
    """An operation for messages: its opcode, and the user's line where that is known."""
    return f"{node.opcode} at {node.loc}" if str(node.loc) else node.opcode


def first_operation_on(dtypes: Container[DType], graph: Graph) -> str:
    """The text of the first operation with a result of one of these dtypes; "" for none."""
    for node in all_nodes(graph):
        if any(kind.dtype in dtypes for kind in tensor_types(node.type)):
            return operation_text(node)
    return ""


def tensor_types(kind: Type) -> tuple[TensorType, ...]:
    """The tensors of a type, nested tuples flattened."""
    if isinstance(kind, TupleType):
        return tuple(leaf for element in kind.elements for leaf in tensor_types(element))
    return (kind,)
