"""Construction of type-checked graph nodes for the importer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.base.dtype import DType
from glia.base.loc import UNKNOWN, Loc
from glia.frontend.errors import VerificationFailed
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType, Type

Value = Node | tuple["Value", ...]
"""The value of an HLO instruction: a tensor, or a (nested) tuple of tensors."""


@dataclass(frozen=True)
class NodeBuilder:
    """Makes nodes for one HLO instruction; a violated type rule is the user's error."""

    loc: Loc = UNKNOWN
    label: str = ""

    def reject(self, reason: str) -> VerificationFailed:
        """The error for an instruction that breaks a rule of HLO."""
        return VerificationFailed(reason=reason, instruction=self.label, loc=self.loc)

    def make(self, operation: type[Node], *fields: Any, **named: Any) -> Node:
        """A node of this operation; VerificationFailed when its type rule does not hold."""
        node = operation(*fields, **named, loc=self.loc)
        try:
            assert node.type is not None
        except TypeError as error:
            raise self.reject(str(error)) from error
        return node

    def results(self, operation: type[Node], *fields: Any) -> tuple[Node, ...]:
        """A node's results as separate tensors, one for an operation that is not a tuple."""
        node = self.make(operation, *fields)
        if isinstance(node.type, TensorType):
            return (node,)
        return tuple(self.make(ops.Get, node, index) for index in range(len(node.type.elements)))

    def map(self, function: str, *args: Node) -> Node:
        """`function` applied element by element to tensors of one shape."""
        return self.make(ops.Map, function, args)

    def constant(self, value: Any, dtype: DType) -> Node:
        """A scalar constant."""
        array = np.asarray(value).astype(dtype.numpy)
        array.flags.writeable = False
        return self.make(ops.Constant, array)

    def splat(self, value: Any, like: Node) -> Node:
        """A constant of the type of `like`, the same value everywhere."""
        return self.broadcast(self.constant(value, like.dtype), like.shape, ())

    def broadcast(self, x: Node, shape: Sequence[int], dimensions: Sequence[int]) -> Node:
        """x with its dimension i as dimension `dimensions[i]` of `shape`."""
        shape, dimensions = tuple(shape), tuple(dimensions)
        if x.shape == shape and dimensions == tuple(range(len(shape))):
            return x
        return self.make(ops.Broadcast, x, shape, dimensions)

    def broadcast_scalar(self, x: Node, like: Node) -> Node:
        """A scalar broadcast to the shape of `like`; anything else unchanged."""
        return x if x.shape == like.shape or x.shape else self.broadcast(x, like.shape, ())

    def convert(self, x: Node, dtype: DType) -> Node:
        """x in another dtype."""
        return x if x.dtype is dtype else self.make(ops.Convert, x, dtype)

    def transpose(self, x: Node, permutation: Sequence[int]) -> Node:
        """x with dimensions permuted; x itself for the identity."""
        permutation = tuple(permutation)
        if permutation == tuple(range(len(x.shape))):
            return x
        return self.make(ops.Transpose, x, permutation)

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        """The elements of x in another shape."""
        shape = tuple(shape)
        return x if x.shape == shape else self.make(ops.Reshape, x, shape)

    def scalar_graph(self, name: str, dtypes: Sequence[DType], body: Callable[..., Any]) -> Graph:
        """A region on scalars of these dtypes; `body` maps parameters to one or several results."""
        parameters = tuple(
            Parameter(index, TensorType(dtype), f"p{index}") for index, dtype in enumerate(dtypes)
        )
        results = body(*parameters)
        return Graph(name, parameters, results if isinstance(results, tuple) else (results,))

    def reduce(self, x: Node, function: str, init: Any, dimensions: Sequence[int]) -> Node:
        """Reduce x over dimensions with a two-operand scalar function."""
        dtypes = (x.dtype, x.dtype)
        body = self.scalar_graph(function, dtypes, lambda a, b: self.map(function, a, b))
        start = self.constant(init, x.dtype)
        return self.results(ops.Reduce, (x,), (start,), tuple(dimensions), body)[0]


def flatten(value: Value) -> tuple[Node, ...]:
    """Every tensor in a value, in order."""
    if isinstance(value, Node):
        return (value,)
    return tuple(node for element in value for node in flatten(element))


def has_type(value: Value, declared: Type) -> bool:
    """Whether a value has this type."""
    if isinstance(declared, TensorType) or isinstance(value, Node):
        return isinstance(value, Node) and value.type == declared
    assert isinstance(declared, TupleType)
    return len(value) == len(declared.elements) and all(
        has_type(element, expected)
        for element, expected in zip(value, declared.elements, strict=True)
    )


def describe(value: Value) -> str:
    """The type of a value, for messages."""
    if isinstance(value, Node):
        return str(value.type)
    shown = ", ".join(describe(element) for element in value[:8])
    return f"({shown}{', ...' if len(value) > 8 else ''})"
