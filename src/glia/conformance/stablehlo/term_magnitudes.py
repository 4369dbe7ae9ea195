"""How large the terms are whose sum a result is: the scale on which its rounding is judged.

StableHLO leaves the order of a sum to the implementation, so that two correct results differ by
roundings of partial sums, which may be much larger than the result. Where a result is a sum of
products of the inputs, its magnitude is here that of the sum of its terms' absolute values; any
other operation starts with the absolute values of what it gives. A complex number's is its modulus.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import Kind, from_numpy
from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import (
    Broadcast,
    Concatenate,
    Convert,
    Convolution,
    Dot,
    Get,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from glia.graph.ops.scalar_regions import combiner, monoid

Array = np.ndarray[Any, Any]

_LINEAR = (
    Broadcast, Concatenate, Convert, Convolution, Dot, Get, Pad, Reshape, Reverse, Slice, Transpose,
)  # fmt: skip
_EXACT_MONOIDS = ("maximum", "minimum", "and", "or")


def term_magnitudes(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """For each result an array of the magnitudes of its terms, in the result's dtype."""
    values: dict[Node, Any] = {}
    sizes: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if isinstance(node, Parameter):
                values[node] = inputs[node.index]
                sizes[node] = _magnitude(inputs[node.index])
                continue
            operands = [values[operand] for operand in node.operands]
            values[node] = node.compute(*operands)
            known = _of_operation(node, operands, [sizes[operand] for operand in node.operands])
            sizes[node] = _magnitude(values[node]) if known is None else known
    return [sizes[result] for result in graph.results]


def _magnitude(value: Any) -> Any:
    """The absolute values, as complex numbers where the values are; elementwise for a tuple."""
    if isinstance(value, tuple):
        return tuple(map(_magnitude, value))
    if from_numpy(value.dtype).kind in (Kind.FLOAT, Kind.COMPLEX):
        return np.abs(value).astype(value.dtype)
    return value


def _of_operation(node: Node, values: list[Any], sizes: list[Any]) -> Any:
    """The magnitudes from those of the operands; None for those of the result itself."""
    if isinstance(node, _LINEAR):
        return node.compute(*sizes)
    special = _SPECIAL.get(node.opcode)
    return special(node, values, sizes) if special is not None else None


def _map(node: Any, values: list[Any], sizes: list[Any]) -> Any:
    if node.function in ("add", "subtract"):
        return sizes[0] + sizes[1]
    if node.function == "multiply":
        return node.compute(*sizes)
    if node.function == "complex":
        return (sizes[0] + sizes[1]).astype(np.result_type(sizes[0], np.complex64))
    if node.function in ("real", "imag") and np.iscomplexobj(sizes[0]):
        return np.array(sizes[0].real)
    if node.function == "select":
        return node.compute(values[0], *sizes[1:])
    return sizes[0] if node.function == "negate" else None


def _reduction(node: Any, values: list[Any], sizes: list[Any]) -> Any:
    """Of sums and products the operands' own; of other regions the sum, as of partial results."""
    function = monoid(node.body)
    if len(node.xs) > 1 or function in _EXACT_MONOIDS:
        return None
    if function == "multiply":
        return node.compute(*sizes)
    total = dataclasses.replace(node, body=combiner("add", node.xs[0].dtype))
    return total.compute(sizes[0], np.zeros((), sizes[0].dtype))


def _windows(node: Any, values: list[Any], sizes: list[Any]) -> Any:
    return node.compute(values[0], *sizes[1:])


def _transform(node: Any, values: list[Any], sizes: list[Any]) -> Any:
    """Every element of a transform sums up all elements that are transformed."""
    found = np.abs(node.compute(*sizes))
    dimensions = tuple(range(found.ndim - len(node.lengths), found.ndim))
    most = found.max(dimensions, keepdims=True, initial=0)
    return np.broadcast_to(most, found.shape).astype(node.dtype.numpy)


def _triangular_solve(node: Any, values: list[Any], sizes: list[Any]) -> Any:
    """The solution with the comparison matrix, in which nothing cancels."""
    matrix = -sizes[0]
    diagonal = np.arange(matrix.shape[-1])
    matrix[..., diagonal, diagonal] *= -1
    return node.compute(matrix, sizes[1])


_SPECIAL: dict[str, Callable[..., Any]] = {
    "fft": _transform,
    "map": _map,
    "reduce": _reduction,
    "reduce_window": _reduction,
    "select_and_scatter": _windows,
    "triangular_solve": _triangular_solve,
}
