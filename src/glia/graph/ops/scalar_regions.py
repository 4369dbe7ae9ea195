"""Scalar computations that operations carry: build, recognise, and apply them to whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import F32, PRED, DType, float_limits, from_numpy, integer_limits
from glia.graph import scalar
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops.pointwise import Bitcast, Constant, Convert, Map, ReducePrecision

Array = np.ndarray[Any, Any]

MONOIDS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_ON_PRED = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}


def scalar_graph(
    name: str, dtypes: Sequence[DType], body: Callable[..., Node | tuple[Node, ...]]
) -> Graph:
    """A region on scalars of these dtypes; `body` maps its parameters to one or several results."""
    parameters = tuple(Parameter(i, TensorType(dtype)) for i, dtype in enumerate(dtypes))
    results = body(*parameters)
    return Graph(name, parameters, results if isinstance(results, tuple) else (results,))


def combiner(function: str, dtype: DType) -> Graph:
    """The region (a, b) -> function(a, b) on scalars, e.g. `combiner("add", F32)`."""
    return scalar_graph(function, (dtype, dtype), lambda a, b: Map(function, (a, b)))


def monoid(body: Graph) -> str | None:
    """Which of `MONOIDS` a two-parameter scalar region computes; None when it is another.

    On pred, addition and maximum are "or", multiplication and minimum "and". Conversions between
    equal dtypes are seen through; others are not, because they round.
    """
    if len(body.parameters) != 2 or len(body.results) != 1:
        return None
    result = _skip_identity_converts(body.results[0])
    if not isinstance(result, Map) or result.function not in MONOIDS:
        return None
    if {_skip_identity_converts(arg) for arg in result.args} != set(body.parameters):
        return None
    if result.type != TensorType(result.dtype):
        return None
    found = result.function
    if result.dtype.is_complex and found in ("maximum", "minimum"):
        return None  # ordered by two parts, which no engine's reduction is
    return _ON_PRED.get(found, found) if result.dtype is PRED else found


def returned_parameter(body: Graph) -> int | None:
    """Which parameter a one-result region returns unchanged; None if it computes."""
    if len(body.results) != 1:
        return None
    result = _skip_identity_converts(body.results[0])
    return result.index if isinstance(result, Parameter) else None


def identity(kind: str, dtype: DType) -> Array:
    """The neutral scalar of a monoid, as a 0-d array."""
    if dtype is PRED:
        kind = _ON_PRED.get(kind, kind)
    if kind in ("add", "or", "xor"):
        return np.zeros((), dtype.numpy)
    if kind == "multiply":
        return np.ones((), dtype.numpy)
    if kind == "and":
        return np.asarray(scalar.FUNCTIONS["not"].compute(np.zeros((), dtype.numpy)))
    if dtype.is_integer:
        bounds = integer_limits(dtype.numpy)
        return np.asarray(bounds.min if kind == "maximum" else bounds.max).astype(dtype.numpy)
    infinity = np.asarray(-np.inf if kind == "maximum" else np.inf).astype(dtype.numpy)
    if np.isinf(infinity.astype(np.float64)):
        return infinity
    finite = float_limits(dtype.numpy)
    return np.asarray(finite.min if kind == "maximum" else finite.max)


def apply(body: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The scalar region `body` applied to each element of equally shaped arrays."""
    shape = arrays[0].shape
    if not all(_is_elementwise(node) for node in body.nodes):
        return _apply_per_element(body, arrays)
    values: dict[Node, Array] = {}
    for node in body.nodes:
        if isinstance(node, Parameter):
            values[node] = arrays[node.index]
        elif isinstance(node, Constant):
            values[node] = np.broadcast_to(node.compute(), shape)
        else:
            values[node] = node.compute(*(values[operand] for operand in node.operands))
    return [values[result] for result in body.results]


def _is_elementwise(node: Node) -> bool:
    if isinstance(node, Bitcast):
        return node.dtype.bits == node.x.dtype.bits
    return isinstance(node, (Parameter, Constant, Map, Convert, ReducePrecision))


def _apply_per_element(body: Graph, arrays: Sequence[Array]) -> list[Array]:
    shape = arrays[0].shape
    results = [np.empty(shape, result.dtype.numpy) for result in body.results]
    for position in np.ndindex(shape):
        values = evaluate(body, [np.asarray(array[position]) for array in arrays])
        for result, value in zip(results, values, strict=True):
            result[position] = value
    return results


def reduce_monoid(kind: str, x: Array, axes: tuple[int, ...]) -> Array:
    """x reduced over axes in working precision, rounded once to the dtype of x.

    Sums of float32 are made in float64: NumPy adds along all axes but the last one by one, so that
    thousands of equal numbers come out wrong in the fifth digit.
    """
    wide = x.astype(scalar.working_dtype(x.dtype), copy=False)
    if kind == "add" and x.dtype == np.float32:
        wide = wide.astype(np.float64)
    start = identity(kind, from_numpy(x.dtype)).astype(wide.dtype)
    with np.errstate(all="ignore"):
        reduced = MONOIDS[kind].reduce(wide, axis=axes, initial=start, dtype=wide.dtype)
    return scalar.narrow(np.asarray(reduced), x.dtype)


def run_scan(kind: str, factor: Array, term: Array, axis: int, extent: int) -> Array:
    """State after state of state = kind(factor * state, term) along an axis, in float32."""
    shape = list(np.broadcast_shapes(factor.shape, term.shape))
    shape[axis] = extent
    factors, terms = (
        np.moveaxis(np.broadcast_to(each.astype(np.float32), shape), axis, 0)
        for each in (factor, term)
    )
    found = np.empty(terms.shape, np.float32)
    state = np.full(terms.shape[1:], identity(kind, F32), np.float32)
    for i in range(extent):
        state = MONOIDS[kind](factors[i] * state, terms[i])
        found[i] = state
    return np.moveaxis(found, 0, axis)


def fold(body: Graph, inits: Sequence[Array], xs: Sequence[Array]) -> list[Array]:
    """Reduce the first axis with an associative region, as a balanced tree that keeps the order.

    `inits` are scalars, combined once on the left.
    """
    shape = xs[0].shape[1:]
    starts = [np.broadcast_to(init, shape) for init in inits]
    layer = list(xs)
    while len(layer[0]) > 1:
        odd = [x[-1:] for x in layer] if len(layer[0]) % 2 else None
        pairs = apply(body, [x[0:-1:2] for x in layer] + [x[1::2] for x in layer])
        layer = [np.concatenate(p) for p in zip(pairs, odd, strict=True)] if odd else pairs
    return apply(body, starts + [x[0] for x in layer]) if len(layer[0]) else starts


def fold_at(
    body: Graph, targets: Sequence[Array], positions: Array, values: Sequence[Array]
) -> None:
    """Combine values into one-dimensional targets at positions, in order; positions may repeat."""
    kind = monoid(body)
    if returned_parameter(body) == len(targets):
        targets[0][positions] = values[0]
    elif kind is not None and targets[0].dtype == scalar.working_dtype(targets[0].dtype):
        with np.errstate(all="ignore"):
            MONOIDS[kind].at(targets[0], positions, values[0])
    else:
        order = _occurrence_numbers(positions)
        for occurrence in range(int(order.max(initial=-1)) + 1):
            chosen = order == occurrence
            places = positions[chosen]
            now = [target[places] for target in targets] + [value[chosen] for value in values]
            for target, value in zip(targets, apply(body, now), strict=True):
                target[places] = value


def _occurrence_numbers(positions: Array) -> Array:
    """For each entry, how many equal entries precede it."""
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    index = np.arange(len(ordered))
    starts = np.maximum.accumulate(np.where(is_first, index, 0))
    result = np.empty(len(ordered), np.int64)
    result[order] = index - starts
    return result


def _skip_identity_converts(node: Node) -> Node:
    while isinstance(node, Convert) and node.x.dtype is node.to:
        node = node.x
    return node
