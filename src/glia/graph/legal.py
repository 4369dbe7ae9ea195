"""The verifier of the graph level: the invariants of every graph between passes."""

from __future__ import annotations

from weakref import WeakSet

from glia.base.errors import InternalError
from glia.graph.ir import Graph, Node, Parameter, TensorType, Type
from glia.graph.rules.regions import regions_of
from glia.graph.text import describe
from glia.graph.type_rules import has_declared_type

_LEGAL: WeakSet[Node] = WeakSet()  # nodes do not change, and most stay from one pass to the next


def verify(graph: Graph) -> None:
    """Raise InternalError, naming the graph and showing the node, unless the graph is legal.

    Every field has its declared type; every node's type rule holds; parameters are numbered in
    order and belong to the graph; results are tensors; aliases join a result and a parameter of one
    type, each at most once. Regions are graphs of their own and see nothing of the enclosing one.
    """
    pending = [graph]
    while pending:
        current = pending.pop()
        _verify_parameters(current)
        for node in current.nodes:
            if node not in _LEGAL:
                _verify_node(current, node)
                _LEGAL.add(node)
            pending.extend(regions_of(node))
        _verify_results(current)


def _fail(graph: Graph, message: str, node: Node | None = None) -> None:
    shown = f"\n  node: {describe(node)}\n  source: {node.loc}" if node else ""
    raise InternalError(f"graph {graph.name!r}: {message}{shown}")


def _verify_parameters(graph: Graph) -> None:
    for index, parameter in enumerate(graph.parameters):
        if parameter.index != index:
            _fail(graph, f"parameter {index} has the index {parameter.index}", parameter)
    own = set(graph.parameters)
    for node in graph.nodes:
        if isinstance(node, Parameter) and node not in own:
            _fail(graph, "a parameter of another graph is used", node)


def _verify_node(graph: Graph, node: Node) -> None:
    for name in (*node.operand_fields, *node.attribute_fields, *node.region_fields):
        value = getattr(node, name)
        if not has_declared_type(value, node.field_hints[name]):
            _fail(graph, f"{name} is {value!r}, not {node.field_hints[name]}", node)
    try:
        inferred = node.infer()
    except (TypeError, KeyError) as error:
        _fail(graph, str(error), node)
    if inferred != node.type:
        _fail(graph, f"the type is {inferred} but was taken for {node.type}", node)
    if not _has_valid_extents(inferred):
        _fail(graph, f"{inferred} has an extent that is not a natural number", node)


def _has_valid_extents(kind: Type) -> bool:
    if isinstance(kind, TensorType):
        return all(type(extent) is int and extent >= 0 for extent in kind.shape)
    return all(map(_has_valid_extents, kind.elements))


def _verify_results(graph: Graph) -> None:
    for result in graph.results:
        if not isinstance(result.type, TensorType):
            _fail(graph, "a result is not a tensor", result)
    if len(graph.result_names) not in (0, len(graph.results)):
        _fail(graph, f"{len(graph.result_names)} names for {len(graph.results)} results")
    for position in (0, 1):
        ends = [alias[position] for alias in graph.aliases]
        if len(set(ends)) != len(ends):
            _fail(graph, f"aliases {graph.aliases} join one buffer twice")
    for alias in graph.aliases:
        output, index = alias
        if not (0 <= output < len(graph.results) and 0 <= index < len(graph.parameters)):
            _fail(graph, f"alias {alias} names a result or parameter that does not exist")
        types = graph.results[output].type, graph.parameters[index].type
        if types[0] != types[1]:
            _fail(graph, f"alias {alias} joins {types[0]} and {types[1]}")
