"""The traversal shared by passes that replace element types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glia.base.dtype import DType
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType, Type
from glia.graph.ops import Get
from glia.graph.rules.driver import Tuple
from glia.graph.type_rules import tensor

Special = Callable[[Any, Sequence[Node], Mapping[DType, DType]], Node | None]
"""Maps a node, its retyped operands and the new dtypes to the retyped node; None declines."""


@dataclasses.dataclass(frozen=True)
class Retyping:
    """The dtypes to replace, and the operations that need more than other dtypes.

    `special` maps operation classes to the function that retypes them (None to decline); `enter`
    maps a parameter of the whole graph to the new one and the value inside, `leave` a value inside
    to a result of the original dtype.
    """

    dtypes: Mapping[DType, DType]
    special: Mapping[type[Node], Special]
    enter: Callable[[Parameter], tuple[Parameter, Node]]
    leave: Callable[[Node, DType], Node]

    def type_of(self, kind: Type) -> Type:
        """The type that replaces a type."""
        if isinstance(kind, TupleType):
            return TupleType(tuple(self.type_of(element) for element in kind.elements))
        return self.tensor_type(kind)

    def tensor_type(self, kind: TensorType) -> TensorType:
        """The tensor type that replaces a tensor type."""
        return TensorType(self.dtypes.get(kind.dtype, kind.dtype), kind.shape)


def retype(graph: Graph, retyping: Retyping) -> Graph:
    """The graph computing in the new dtypes; the same object when nothing changes."""
    image: dict[Node, Node] = {}
    parameters = []
    for old in graph.parameters:
        parameter, image[old] = retyping.enter(old)
        parameters.append(parameter)
    values = _Retyper(retyping).walk(graph, image)
    pairs = zip(values, graph.results, strict=True)
    results = tuple(retyping.leave(value, old.dtype) for value, old in pairs)
    same = all(new is old for new, old in zip(results, graph.results, strict=True))
    if same and tuple(parameters) == graph.parameters:
        return graph
    return dataclasses.replace(graph, parameters=tuple(parameters), results=results)


class _Retyper:
    def __init__(self, retyping: Retyping) -> None:
        self._retyping = retyping
        self._regions: dict[Graph, Graph] = {}

    def walk(self, graph: Graph, image: dict[Node, Node]) -> list[Node]:
        """The results of a graph whose parameters have images."""
        for node in graph.nodes:
            if node not in image:
                image[node] = self._retype_node(node, [image[operand] for operand in node.operands])
        return [image[result] for result in graph.results]

    def _retype_region(self, graph: Graph) -> Graph:
        if graph not in self._regions:
            image: dict[Node, Node] = {}
            parameters = []
            for old in graph.parameters:
                kind = self._retyping.tensor_type(tensor(old))
                new = old if kind == old.type else dataclasses.replace(old, declared=kind)
                parameters.append(new)
                image[old] = new
            results = self.walk(graph, image)
            pairs = zip((*parameters, *results), (*graph.parameters, *graph.results), strict=True)
            same = all(new is old for new, old in pairs)
            changed = Graph(graph.name, tuple(parameters), tuple(results), graph.result_names)
            self._regions[graph] = graph if same else changed
        return self._regions[graph]

    def _retype_node(self, node: Node, operands: list[Node]) -> Node:
        if isinstance(node, Get) and isinstance(operands[0], Tuple):
            return operands[0].parts[node.index]
        special = self._retyping.special.get(type(node))
        found = special(node, operands, self._retyping.dtypes) if special is not None else None
        return found if found is not None else self._rebuild(node, operands)

    def _rebuild(self, node: Node, operands: list[Node]) -> Node:
        """The same operation with attributes, regions and operands in the new dtypes."""
        changes: dict[str, Any] = {}
        for name in node.attribute_fields:
            value = getattr(node, name)
            new = self._retype_attribute(value)
            if new is not value and new != value:
                changes[name] = new
        for name in node.region_fields:
            value = getattr(node, name)
            is_one = isinstance(value, Graph)
            changed = (
                self._retype_region(value) if is_one else tuple(map(self._retype_region, value))
            )
            if changed is not value and changed != value:
                changes[name] = changed
        if any(new is not old for new, old in zip(operands, node.operands, strict=True)):
            node = node.with_operands(operands)
        return dataclasses.replace(node, **changes) if changes else node

    def _retype_attribute(self, value: Any) -> Any:
        if isinstance(value, DType):
            return self._retyping.dtypes.get(value, value)
        if isinstance(value, TensorType | TupleType):
            return self._retyping.type_of(value)
        return value
