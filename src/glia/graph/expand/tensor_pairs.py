"""Splitting every tensor of a family of dtypes into two tensors of a narrower dtype.

Complex numbers become real and imaginary parts, 64-bit integers low and high words. A parameter or
result of the graph becomes one tensor with a last dimension of two, which has the same bytes as
before; inside regions, state and scalars become two tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import DType
from glia.base.errors import CompileError
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType
from glia.graph.ops import (
    Bitcast,
    Broadcast,
    Concatenate,
    Conditional,
    Constant,
    Convert,
    Convolution,
    Dot,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Get,
    Iota,
    Map,
    Pad,
    Reduce,
    ReduceWindow,
    Reshape,
    Reverse,
    Scatter,
    Slice,
    Sort,
    Transpose,
    While,
    results_of,
)
from glia.graph.rules.constructors import select, stack, take
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.graph.type_rules import tensor

Parts = tuple[Node, ...]
"""The representation of a tensor after splitting: the tensor itself, or its two parts."""


@dataclasses.dataclass(frozen=True)
class Family:
    """The dtypes that become pairs, and the expansion of operations that depend on values.

    `split` gives the two halves of a constant. `map`, `convert`, `bitcast` and `contract` take the
    operation and the parts of its operands and give the parts of the result; `reduce` those of a
    reduction of one tensor, or None to reduce pairs with its body; `iota` the parts of a count;
    `index` an index as one s32; `refuse` the error for an operation without an expansion.
    """

    part_of: Callable[[DType], DType | None]
    split: Callable[[np.ndarray[Any, Any]], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
    map: Callable[[Map, Sequence[Parts]], Parts]
    reduce: Callable[[Reduce | ReduceWindow, Parts, Parts], Parts | None]
    convert: Callable[[Convert, Parts], Parts]
    bitcast: Callable[[Bitcast, Parts], Parts]
    contract: Callable[[Dot | Convolution, Parts, Parts], Parts]
    iota: Callable[[Iota], Parts]
    index: Callable[[Node, Parts], Node]
    refuse: Callable[[Node], CompileError]


def operation_name(node: Node) -> str:
    """The name of an operation in errors: its opcode, with the function of a Map."""
    return f"{node.opcode} {node.function}" if isinstance(node, Map) else node.opcode


def split_into_pairs(graph: Graph, family: Family) -> Graph:
    """The graph with every tensor of the family as a pair; the same object when there is none."""
    kinds = (leaf for node in all_nodes(graph) for leaf in tensor_types(node.type))
    if all(family.part_of(kind.dtype) is None for kind in kinds):
        return graph
    return _Splitter(family).outer(graph)


class _Splitter:
    def __init__(self, family: Family) -> None:
        self._family = family
        self._regions: dict[Graph, Graph] = {}

    def outer(self, graph: Graph) -> Graph:
        """The whole graph, with stacked parameters and results."""
        parameters: list[Parameter] = []
        image: dict[Node, Parts] = {}
        for parameter in graph.parameters:
            part = self._family.part_of(parameter.dtype)
            if part is not None:
                declared = TensorType(part, (*parameter.shape, 2))
                parameter = Parameter(parameter.index, declared, parameter.name, loc=parameter.loc)
                parts: Parts = (take(parameter, -1, 0), take(parameter, -1, 1))
            else:
                parts = (parameter,)
            parameters.append(parameter)
            image[graph.parameters[parameter.index]] = parts
        values = self._walk(graph, image)
        results = tuple(parts[0] if len(parts) == 1 else stack(parts, -1) for parts in values)
        return dataclasses.replace(graph, parameters=tuple(parameters), results=results)

    def region(self, graph: Graph) -> Graph:
        """A region, with two parameters and results for each pair."""
        if graph not in self._regions:
            parameters: list[Parameter] = []
            image: dict[Node, Parts] = {}
            for old in graph.parameters:
                part = self._family.part_of(old.dtype)
                kinds = [tensor(old)] if part is None else [TensorType(part, old.shape)] * 2
                first = len(parameters)
                new = [Parameter(first + k, kind, old.name) for k, kind in enumerate(kinds)]
                parameters.extend(new)
                image[old] = tuple(new)
            results = _flatten(self._walk(graph, image))
            self._regions[graph] = Graph(graph.name, tuple(parameters), results)
        return self._regions[graph]

    def _walk(self, graph: Graph, image: dict[Node, Parts]) -> list[Parts]:
        several: dict[Node, list[Parts]] = {}
        for node in graph.nodes:
            if node in image:
                continue
            if isinstance(node, Get) and node.x in several:
                image[node] = several[node.x][node.index]
                continue
            values = [image[operand] for operand in node.operands]
            parts = self._split(node, values)
            if isinstance(node.type, TupleType):
                several[node] = self._group_parts(node.type, parts)
                image[node] = ()
            else:
                image[node] = parts
        return [image[result] for result in graph.results]

    def _group_parts(self, kind: TupleType, parts: Parts) -> list[Parts]:
        """The parts of an operation with several results, grouped by result."""
        supply = iter(parts)
        counts = (1 if self._family.part_of(leaf.dtype) is None else 2
                  for leaf in tensor_types(kind))  # fmt: skip
        return [tuple(next(supply) for _ in range(count)) for count in counts]

    def _split(self, node: Node, values: list[Parts]) -> Parts:
        """The parts of every result of a node, concatenated."""
        involved = any(len(parts) == 2 for parts in values)
        kinds = tensor_types(node.type)
        if not involved and all(self._family.part_of(kind.dtype) is None for kind in kinds):
            return self._keep_operation(node, values)
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise self._family.refuse(node)
        return handler(self, node, values)

    def _keep_operation(self, node: Node, values: list[Parts]) -> Parts:
        operands = [parts[0] for parts in values]
        same = all(new is old for new, old in zip(operands, node.operands, strict=True))
        return results_of(node if same else node.with_operands(operands))

    def constant(self, node: Constant, values: list[Parts]) -> Parts:
        halves = self._family.split(np.asarray(node.value))
        return tuple(_literal(half) for half in halves)

    def by_family(self, node: Node, values: list[Parts]) -> Parts:
        family = self._family
        if isinstance(node, Map):
            if node.function == "select" and len(values[1]) == 2:
                pairs = zip(values[1], values[2], strict=True)
                return tuple(select(values[0][0], a, b) for a, b in pairs)
            return values[0] if node.function == "copy" else family.map(node, values)
        if isinstance(node, Convert):
            return family.convert(node, values[0])
        if isinstance(node, Bitcast):
            return family.bitcast(node, values[0])
        if isinstance(node, Iota):
            return family.iota(node)
        assert isinstance(node, Dot | Convolution)
        return family.contract(node, values[0], values[1])

    def movement(self, node: Node, values: list[Parts]) -> Parts:
        """Operations that treat every operand alike: the same on each part."""
        return tuple(node.with_operands(operands) for operands in zip(*values, strict=True))

    def indexed(self, node: Node, values: list[Parts]) -> Parts:
        """Gather and dynamic slices: the same on each part of the data, at one set of indices."""
        data = 2 if isinstance(node, DynamicUpdateSlice) else 1
        pairs = zip(node.operands[data:], values[data:], strict=True)
        indices = [self._family.index(operand, parts) for operand, parts in pairs]
        operands = zip(*values[:data], strict=True)
        return tuple(node.with_operands((*each, *indices)) for each in operands)

    def combined(self, node: Node, values: list[Parts]) -> Parts:
        """Reductions and windows of pairs, as ones of twice the tensors."""
        assert isinstance(node, Reduce | ReduceWindow)
        count = len(node.xs)
        found = self._family.reduce(node, values[0], values[1]) if count == 1 else None
        if found is not None:
            return found
        xs, inits = _flatten(values[:count]), _flatten(values[count:])
        body = self.region(node.body)
        return results_of(dataclasses.replace(node, xs=xs, inits=inits, body=body))

    def scatter(self, node: Scatter, values: list[Parts]) -> Parts:
        count = len(node.xs)
        indices = self._family.index(node.indices, values[count])
        xs, updates = _flatten(values[:count]), _flatten(values[count + 1 :])
        body = self.region(node.body)
        new = dataclasses.replace(node, xs=xs, indices=indices, updates=updates, body=body)
        return results_of(new)

    def sort(self, node: Sort, values: list[Parts]) -> Parts:
        """The comparator takes the pair of each tensor's first parts, then of the second parts."""
        inner = self.region(node.comparator)
        supply = iter(inner.parameters)
        ordered: list[Parameter] = []
        for parts in values:
            a = [next(supply) for _ in parts]
            b = [next(supply) for _ in parts]
            ordered.extend(p for both in zip(a, b, strict=True) for p in both)
        comparator = _renumber_parameters(inner, ordered)
        return results_of(dataclasses.replace(node, xs=_flatten(values), comparator=comparator))

    def loop(self, node: While, values: list[Parts]) -> Parts:
        condition, body = self.region(node.condition), self.region(node.body)
        return results_of(While(_flatten(values), condition, body, loc=node.loc))

    def branch(self, node: Conditional, values: list[Parts]) -> Parts:
        index = self._family.index(node.index, values[0])
        rest, counts, first = values[1:], [], 0
        for count in node.operand_counts:
            counts.append(len(_flatten(rest[first : first + count])))
            first += count
        branches = tuple(self.region(graph) for graph in node.branches)
        return results_of(Conditional(index, _flatten(rest), tuple(counts), branches, loc=node.loc))


def _flatten(values: Sequence[Parts]) -> Parts:
    return tuple(part for parts in values for part in parts)


def _literal(value: np.ndarray[Any, Any]) -> Node:
    array = np.array(value, order="C")
    array.flags.writeable = False
    return Constant(array)


def _renumber_parameters(graph: Graph, order: Sequence[Parameter]) -> Graph:
    """The graph with its parameters in another order."""
    parameters = tuple(
        Parameter(index, old.declared, old.name, loc=old.loc) for index, old in enumerate(order)
    )
    image = dict[Node, Node](zip(order, parameters, strict=True))
    for node in graph.nodes:
        if node not in image:
            image[node] = node.with_operands(image[operand] for operand in node.operands)
    results = tuple(image[result] for result in graph.results)
    return Graph(graph.name, parameters, results)


_HANDLERS: dict[type[Node], Callable[[_Splitter, Any, list[Parts]], Parts]] = {
    Constant: _Splitter.constant,
    **dict.fromkeys((Map, Convert, Bitcast, Iota, Dot, Convolution), _Splitter.by_family),
    **dict.fromkeys(
        (Broadcast, Reshape, Transpose, Slice, Reverse, Concatenate, Pad), _Splitter.movement
    ),
    **dict.fromkeys((Gather, DynamicSlice, DynamicUpdateSlice), _Splitter.indexed),
    **dict.fromkeys((Reduce, ReduceWindow), _Splitter.combined),
    Scatter: _Splitter.scatter,
    Sort: _Splitter.sort,
    While: _Splitter.loop,
    Conditional: _Splitter.branch,
}
