"""Constructors for the nodes that rules and expansions make; identities give the operand back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import PRED, S32, DType
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Bitcast,
    Broadcast,
    Concatenate,
    Constant,
    Convert,
    Dot,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Get,
    Iota,
    Map,
    Pad,
    Places,
    Reduce,
    Reshape,
    Reverse,
    Scan,
    Slice,
    Transpose,
    While,
    results_of,
)


def constant(value: Any, dtype: DType) -> Node:
    """A constant tensor holding `value`."""
    array = np.array(value, dtype=dtype.numpy)
    array.flags.writeable = False
    return Constant(array)


def splat(value: Any, dtype: DType, shape: Sequence[int]) -> Node:
    """`value` in every element of `shape`."""
    return broadcast(constant(value, dtype), shape)


def splat_like(value: Any, like: Node) -> Node:
    """`value` in every element of a tensor of the type of `like`."""
    return splat(value, like.dtype, like.shape)


def apply(function: str, *args: Node) -> Node:
    """A scalar function of `graph.scalar` applied element by element."""
    return Map(function, args)


def select(predicate: Node, when_true: Node, when_false: Node) -> Node:
    """`when_true` where the predicate holds, else `when_false`."""
    return Map("select", (predicate, when_true, when_false))


def convert(x: Node, dtype: DType) -> Node:
    """x in another dtype."""
    return x if x.dtype is dtype else Convert(x, dtype)


def bitcast(x: Node, dtype: DType) -> Node:
    """The bits of x as another dtype."""
    return x if x.dtype is dtype else Bitcast(x, dtype)


def broadcast(x: Node, shape: Sequence[int], dimensions: Sequence[int] = ()) -> Node:
    """x with its dimension i as dimension `dimensions[i]` of `shape`."""
    shape, dimensions = tuple(shape), tuple(dimensions)
    if x.shape == shape and dimensions == tuple(range(len(shape))):
        return x
    return Broadcast(x, shape, dimensions)


def broadcast_missing(x: Node, shape: Sequence[int], missing: Sequence[int]) -> Node:
    """x replicated along the dimensions `missing` of `shape`, which x does not have."""
    return broadcast(x, shape, [d for d in range(len(shape)) if d not in missing])


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """The elements of x in row-major order under another shape."""
    shape = tuple(shape)
    return x if x.shape == shape else Reshape(x, shape)


def transpose(x: Node, permutation: Sequence[int]) -> Node:
    """Result dimension i is dimension `permutation[i]` of x."""
    permutation = tuple(permutation)
    return x if permutation == tuple(range(len(x.shape))) else Transpose(x, permutation)


def swap(x: Node, first: int, second: int) -> Node:
    """x with two dimensions exchanged."""
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return transpose(x, order)


def move_last(x: Node, dimension: int) -> Node:
    """x with one dimension moved to the end."""
    rest = [d for d in range(len(x.shape)) if d != dimension]
    return transpose(x, [*rest, dimension])


def move_back(x: Node, dimension: int) -> Node:
    """The inverse of `move_last`."""
    rank = len(x.shape)
    return transpose(x, [*range(dimension), rank - 1, *range(dimension, rank - 1)])


def slice_along(x: Node, dimension: int, start: int, limit: int, stride: int = 1) -> Node:
    """The elements start, start + stride, ... < limit of one dimension."""
    dimension %= len(x.shape)
    if (start, limit, stride) == (0, x.shape[dimension], 1):
        return x
    starts, limits, strides = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    starts[dimension], limits[dimension], strides[dimension] = start, limit, stride
    return Slice(x, tuple(starts), tuple(limits), tuple(strides))


def take(x: Node, dimension: int, index: int) -> Node:
    """x at one index of a dimension, which disappears."""
    dimension %= len(x.shape)
    shape = x.shape[:dimension] + x.shape[dimension + 1 :]
    return reshape(slice_along(x, dimension, index, index + 1), shape)


def concatenate(parts: Sequence[Node], dimension: int) -> Node:
    """The parts one after the other along a dimension."""
    rank = len(parts[0].shape)
    return parts[0] if len(parts) == 1 else Concatenate(tuple(parts), dimension % rank)


def stack(parts: Sequence[Node], dimension: int) -> Node:
    """The parts side by side along a new dimension."""
    dimension %= len(parts[0].shape) + 1
    shape = parts[0].shape
    row = (*shape[:dimension], 1, *shape[dimension:])
    return concatenate([reshape(part, row) for part in parts], dimension)


def pad(
    x: Node, value: Node, low: Sequence[int], high: Sequence[int], interior: Sequence[int] = ()
) -> Node:
    """x padded with a scalar; without `interior` only at the edges."""
    interior = tuple(interior) or (0,) * len(x.shape)
    if not any((*low, *high, *interior)):
        return x
    return Pad(x, value, tuple(low), tuple(high), interior)


def reverse(x: Node, dimensions: Sequence[int]) -> Node:
    """x with the order of elements reversed along the dimensions."""
    return Reverse(x, tuple(dimensions)) if dimensions else x


def iota(dtype: DType, shape: Sequence[int], dimension: int) -> Node:
    """0, 1, 2, ... along one dimension."""
    return Iota(TensorType(dtype, tuple(shape)), dimension % len(shape))


def dot(a: Node, b: Node, contract: tuple[int, int], batch: int = 0) -> Node:
    """Contract one dimension of each operand; the first `batch` dimensions are batch dimensions."""
    together = tuple(range(batch))
    first, second = contract[0] % len(a.shape), contract[1] % len(b.shape)
    return Dot(a, b, together, together, (first,), (second,), a.dtype)


def get(x: Node, index: int) -> Node:
    """The index-th result of an operation, which may have only one."""
    return x if isinstance(x.type, TensorType) else Get(x, index)


def dynamic_slice(x: Node, starts: Sequence[Node], extents: Sequence[int]) -> Node:
    """A slice at run-time scalar starts."""
    return DynamicSlice(x, tuple(starts), tuple(extents))


def dynamic_update_slice(x: Node, update: Node, starts: Sequence[Node]) -> Node:
    """x with `update` written at run-time scalar starts."""
    return DynamicUpdateSlice(x, update, tuple(starts))


def region(
    name: str, types: Sequence[TensorType], body: Callable[..., Node | tuple[Node, ...]]
) -> Graph:
    """A graph on parameters of these types; `body` maps them to one or several results."""
    parameters = tuple(Parameter(i, declared, f"p{i}") for i, declared in enumerate(types))
    results = body(*parameters)
    return Graph(name, parameters, results if isinstance(results, tuple) else (results,))


def monoid_region(function: str, dtype: DType) -> Graph:
    """The region that combines two scalars with one scalar function."""
    scalar = TensorType(dtype)
    return region(function, (scalar, scalar), lambda a, b: apply(function, a, b))


def reduce(function: str, x: Node, init: Any, dimensions: Sequence[int]) -> Node:
    """Reduce dimensions of x with a scalar function whose identity is `init`."""
    start = constant(init, x.dtype)
    return Reduce((x,), (start,), tuple(dimensions), monoid_region(function, x.dtype))


def scan(function: str, x: Node, factor: Node | None = None) -> Node:
    """The states of a recurrence along the last dimension; without a factor, running totals."""
    factor = splat(1, x.dtype, x.shape) if factor is None else factor
    return Scan(factor, x, function, len(x.shape) - 1)


def places(x: Node, count: int) -> Node:
    """Where the greatest along the last dimension are, at least two, equal ones in order."""
    return Places(x, count)


def pick(x: Node, at: Node) -> Node:
    """The elements of each row at places along the last dimension; other dimensions are alike."""
    batch = tuple(range(len(x.shape) - 1))
    last, rank = (len(batch),), len(at.shape)
    return Gather(x, at, (), last, batch, batch, last, rank, (1,) * len(x.shape))


def counted_loop(
    name: str, count: int, state: Sequence[Node], body: Callable[..., tuple[Node, ...]]
) -> tuple[Node, ...]:
    """The state after `count` iterations of state = body(i, *state), i counting from 0 as s32."""
    whole = (constant(0, S32), *state)
    types = [TensorType(node.dtype, node.shape) for node in whole]

    def step(i: Node, *values: Node) -> tuple[Node, ...]:
        return (apply("add", i, constant(1, S32)), *body(i, *values))

    def condition(i: Node, *_: Node) -> Node:
        return apply("less", i, constant(count, S32))

    loop = While(whole, region(f"{name}_more", types, condition), region(name, types, step))
    return results_of(loop)[1:]


def all_true(predicates: Sequence[Node], shape: Sequence[int]) -> Node:
    """The conjunction of predicates of one shape; true for none."""
    result = splat(True, PRED, shape)
    for index, predicate in enumerate(predicates):
        result = apply("and", result, predicate) if index else predicate
    return result
