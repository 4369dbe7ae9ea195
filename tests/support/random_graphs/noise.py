"""How far a right result may be from the reference: evaluation under random rounding errors.

A program is evaluated several times, each operation that may round differently on the machine
disturbed by a random error of its own size. Where the runs agree, the result is well determined and
must be met; where they spread (cancellation, a comparison of nearly equal numbers), it may differ
by a multiple of the spread. This is Monte Carlo arithmetic (Parker, 1997), which bounds long chains
of operations, discontinuous ones among them, without a bound of its own for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from glia.base.dtype import BF16, F32, DType, from_numpy
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, one_or_tuple
from glia.graph.ops.scalar_regions import combiner

Array = np.ndarray[Any, Any]

RUNS = 16
SPREADS = 6.0  # how many times the largest spread of the runs a result may be off

# Relative errors of one operation: float32 as the activation functions' tables compute, narrower
# floats one unit in the last place.
_ERRORS = {"f32": 3e-6, "c64": 4e-6, "bf16": 2**-7, "f16": 2**-10}
_NARROWEST = 2**-2
_HALF_STEP = 2**-8  # relative, of neighbours in bfloat16
_STEP_AT_ONE = 2.0**-23  # from 1 to the next float32

# Maps that give the same bits on every machine.
_EXACT = {"maximum", "minimum", "and", "or", "xor", "not", "select", "clamp", "negate", "abs",
          "floor", "ceil", "round_nearest_even", "round_nearest_away", "sign", "real", "imag",
          "complex", "copy", "is_finite"}  # fmt: skip
_SUMS = (ops.Dot, ops.Convolution, ops.Reduce, ops.ReduceWindow, ops.Scatter, ops.SelectAndScatter,
         ops.Fft)  # fmt: skip
_VIEWS = (ops.Broadcast, ops.Reshape, ops.Transpose, ops.Slice, ops.Reverse)
_ROUND_EACH_SUM = (ops.Scatter, ops.SelectAndScatter)
_SOLVERS = (ops.TriangularSolve, ops.Cholesky)  # whose errors grow with the condition


def relative_error(dtype: DType) -> float:
    """The relative error that one operation of this dtype may make."""
    return _ERRORS.get(dtype.name, _NARROWEST) if dtype.is_float or dtype.is_complex else 0.0


def tolerances(graph: Graph, arrays: Sequence[Array], reference: Sequence[Array]) -> list[Array]:
    """For each result, how far each element may be off; infinite where nothing is determined."""
    largest = [np.zeros(np.shape(value)) for value in reference]
    for run in range(RUNS + 1):
        disturbed = _evaluate(graph, arrays, _Directions(run))
        for spread, value, base in zip(largest, disturbed, reference, strict=True):
            np.maximum(spread, _distance(value, base), out=spread)
    return [
        SPREADS * spread + _rounding(base) for spread, base in zip(largest, reference, strict=True)
    ]


class _Directions:
    """Where the errors of a run point: all up, all down, then each its own way.

    The run after the last has no errors at all. It rounds sums once that others round at each of
    their terms, which the machine keeps in float32, and in chains of bfloat16 only what is read as
    such in the end: whether errors of several roundings add up is not left to chance.
    """

    def __init__(self, run: int) -> None:
        self.random = np.random.default_rng([3, run])
        self.common = (1.0, -1.0)[run] if run < 2 else 0.0
        self.rounds_once = run == RUNS

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Factors from 0.5 to 1 and from -1 to -0.5, or none."""
        if self.rounds_once:
            return np.zeros(shape)
        sizes = self.random.uniform(0.5, 1, shape)
        return sizes * (self.common or self.random.choice((-1.0, 1.0), shape))


def mismatches(found: Array, wanted: Array, tolerance: Array) -> Array:
    """Which elements of a result are wrong."""
    return ~(_distance(found, wanted) <= tolerance)


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _distance(a: Array, b: Array) -> Array:
    """|a - b|: zero for equal infinities and for two NaNs, else infinite where either is none."""
    if a.dtype.kind in "iub" and a.dtype.itemsize == 8:
        return np.where(a == b, 0.0, np.maximum(np.abs(_wide(a) - _wide(b)), 1.0))
    a, b = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _rounding(base: Array) -> Array:
    """What even a single operation may be off: its relative error, and flushed subnormals."""
    error = relative_error(from_numpy(base.dtype))
    if not error:
        return np.zeros(base.shape)
    size = np.abs(_wide(base))
    if base.dtype.kind != "c":
        return np.where(np.isfinite(size), 2 * error * size + 1e-37, 0.0)
    # (inf + x i) times y may be NaN; the parts of a product are differences of terms as large as it
    is_defined = size <= np.finfo(base.real.dtype).max
    return np.where(is_defined, 2 * error * size + 1e-37, np.inf)


def _evaluate(graph: Graph, arrays: Sequence[Array], directions: _Directions) -> list[Any]:
    values: dict[Node, Any] = {}
    unrounded: dict[Node, Array] = {}
    for node in graph.nodes:
        if isinstance(node, Parameter):
            values[node] = arrays[node.index]
            continue
        operands = [values[operand] for operand in node.operands]
        if directions.rounds_once and _leaves_roundings_out(node):
            wide = [unrounded.get(each, values[each]) for each in node.operands]
            value = _in_float32(node, wide)
            if node.dtype is BF16:
                unrounded[node], value = value, value.astype(BF16.numpy)
            values[node] = value
            continue
        values[node] = _disturbed(node, operands, directions)
    return [values[result] for result in graph.results]


def _leaves_roundings_out(node: Node) -> bool:
    """Whether a chain of bfloat16 begins, goes on or ends here: a float32 is rounded or read."""
    if isinstance(node, ops.Convert):
        is_constant = isinstance(node.x, ops.Constant)
        return not is_constant and (
            node.x.dtype is BF16 or (node.x.dtype, node.dtype) == (F32, BF16)
        )
    if isinstance(node, ops.Dot):
        return node.dtype is BF16
    is_map = isinstance(node, ops.Map) and node.function != "select"
    return (is_map or isinstance(node, _VIEWS)) and {node.dtype, *_dtypes(node)} == {BF16}


def _dtypes(node: Node) -> set[DType]:
    return {operand.dtype for operand in node.operands}


def _in_float32(node: Node, operands: list[Any]) -> Any:
    """The value of a node on floats that are not rounded to bfloat16, as its result is not."""
    wide = [np.asarray(each).astype(np.float32) for each in operands]
    if isinstance(node, ops.Convert) and node.dtype is BF16:
        return wide[0]
    if isinstance(node, ops.Dot):
        node = dataclasses.replace(node, result_dtype=F32)
    return np.asarray(node.compute(*wide))


def _disturbed(node: Node, operands: list[Any], directions: _Directions) -> Any:
    if isinstance(node, ops.While):
        state = operands
        while _evaluate(node.condition, state, directions)[0]:
            state = _evaluate(node.body, state, directions)
        return one_or_tuple(state)
    if isinstance(node, _SOLVERS):
        operands = [_shifted(value, np.abs(_wide(value)), directions) for value in operands]
    if isinstance(node, ops.Map) and node.function == "power" and directions.common > 0:
        operands = [operands[0], _near_whole_numbers(operands[1])]
    if directions.rounds_once and isinstance(node, _ROUND_EACH_SUM):
        return _sum_rounded_once(node, operands)
    if _may_be_left_out(node, operands):
        operands = [operands[0] * (1 + _HALF_STEP * directions.draw(operands[0].shape))]
    if isinstance(node, ops.Reduce) and ops.monoid(node.body) == "multiply":
        operands = [_ordered(operands[0], node.dimensions, directions), operands[1]]
    value = node.compute(*operands)
    if isinstance(node, (ops.Dot, ops.Convolution)) and directions.common:
        value = np.where(_overflows(node, operands, value), directions.common * np.inf, value)
        value = value.astype(node.dtype.numpy)
    if isinstance(node, ops.Fft) and directions.common:
        value = np.where(_sums_infinities(node, operands[0]), directions.common * np.inf, value)
    if isinstance(value, tuple) or not relative_error(node.dtype) or _is_exact(node):
        return value
    size = np.abs(_wide(value))
    if isinstance(node, _SUMS):
        with np.errstate(all="ignore"):
            magnitudes = np.abs(_wide(node.compute(*map(_magnitude, operands))))
        most = ml_dtypes.finfo(np.zeros((), value.dtype).real.dtype).max
        magnitudes = np.where(np.isfinite(magnitudes), magnitudes, float(most))  # of no small float
        if isinstance(node, ops.Fft):  # every output sums every input, with other signs
            axes = tuple(range(-len(node.lengths), 0))
            magnitudes = np.sum(np.abs(_wide(operands[0])), axis=axes, keepdims=True)
        share = 1.0 if isinstance(node, _ROUND_EACH_SUM) else 0.25
        size = np.maximum(magnitudes * share, size)
    if isinstance(node, ops.Map) and node.function in ("gelu", "gelu_tanh"):
        size = np.maximum(size, np.abs(_wide(operands[0])))  # 1 + erf cancels at its tail
    if isinstance(node, ops.Map) and node.function == "atan2" and node.dtype.is_complex:
        size = np.maximum(size, _STEP_AT_ONE / relative_error(node.dtype))  # log of a number near 1
    return _shifted(value, size, directions)


def _may_be_left_out(node: Node, operands: list[Any]) -> bool:
    """Whether it rounds to bfloat16 what bfloat16 arithmetic may take in float32.

    Constants are rounded by the compiler.
    """
    if not isinstance(node, ops.Convert) or isinstance(node.x, ops.Constant):
        return False
    return node.dtype is BF16 and operands[0].dtype in (np.float32, np.float64)


def _overflows(node: ops.Dot | ops.Convolution, operands: list[Any], value: Array) -> Array:
    """Which sums are infinite or none for finite terms that leave the range.

    Where they do, and whether they do, depends on the order and on the range of what is between.
    """
    if not relative_error(node.dtype) or np.isfinite(_wide(value)).all():
        return np.zeros(value.shape, bool)
    finite = [np.where(np.isfinite(_wide(each)), _wide(_magnitude(each)), 0) for each in operands]
    terms = [each.astype(own.dtype) for each, own in zip(finite, operands, strict=True)]
    with np.errstate(all="ignore"):
        return ~np.isfinite(_wide(value)) & ~np.isfinite(_wide(node.compute(*terms)))


def _sums_infinities(node: ops.Fft, x: Array) -> Array:
    """Which transforms, along the transformed dimensions, sum something that is not finite.

    An infinity is multiplied by a root of unity with a part that is 0, or nearly, or left out.
    """
    axes = tuple(range(-len(node.lengths), 0))
    changes = max(node.lengths) > 1
    return ~np.isfinite(x).all(axis=axes, keepdims=True) & changes


def _sum_rounded_once(node: ops.Scatter | ops.SelectAndScatter, operands: list[Any]) -> Any:
    """The value of a scatter whose sums, of floats narrower than float32, are float32 inside."""
    body = "body" if isinstance(node, ops.Scatter) else "scatter"
    value = operands[0]
    is_sum = ops.monoid(getattr(node, body)) == "add"
    if not is_sum or not from_numpy(value.dtype).is_float or value.dtype.itemsize >= 4:
        return node.compute(*operands)
    wide = dataclasses.replace(node, **{body: combiner("add", F32)})
    inside = [each if each.dtype.kind in "iub" else each.astype(np.float32) for each in operands]
    return wide.compute(*inside).astype(value.dtype)


def _ordered(factors: Array, dimensions: Sequence[int], directions: _Directions) -> Array:
    """Factors of products, the greatest first or last in the runs whose errors have one direction.

    A product may be taken in any order, and in some of them what is between leaves the range.
    """
    if not directions.common:
        return factors
    last = range(-len(dimensions), 0)
    moved = np.moveaxis(factors, dimensions, last)
    rows = moved.reshape(*moved.shape[: moved.ndim - len(dimensions)], -1)
    order = np.argsort(-directions.common * np.abs(_wide(rows)), axis=-1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=-1).reshape(moved.shape)
    return np.moveaxis(ordered, last, dimensions)


def _near_whole_numbers(exponent: Array) -> Array:
    """Exponents, with the whole number in place of one that rounding errors may have moved off it.

    Negative numbers have powers at whole numbers only.
    """
    error = relative_error(from_numpy(exponent.dtype))
    if not error or exponent.dtype.kind == "c":
        return exponent
    with np.errstate(all="ignore"):
        whole = np.rint(_wide(exponent))
        is_near = np.abs(whole - _wide(exponent)) <= 64 * error * np.abs(whole)
        return np.where(is_near, whole, _wide(exponent)).astype(exponent.dtype)


def _shifted(value: Array, size: Array, directions: _Directions) -> Array:
    """The value with errors relative to `size`; a NaN or a zero that is computed has either sign.

    The parts of a complex number have errors relative to the whole.
    """
    error = relative_error(from_numpy(value.dtype))
    with np.errstate(all="ignore"):
        reach = np.where(np.isfinite(size), size * error, 0.0)
        if value.dtype.kind != "c":
            shifted = _shifted_part(value.astype(np.float64), reach, directions)
            return np.asarray(shifted).astype(value.dtype)
        moved = np.empty(value.shape, value.dtype)
        moved.real = _shifted_part(value.real.astype(np.float64), reach, directions)
        moved.imag = _shifted_part(value.imag.astype(np.float64), reach, directions)
        return moved


def _shifted_part(part: Array, reach: Array, directions: _Directions) -> Array:
    signs = directions.draw(np.shape(part))
    shifted = part + signs * reach
    shifted = np.where(np.isnan(shifted), np.copysign(np.nan, signs), shifted)
    return np.where((shifted == 0) & (signs != 0), np.copysign(0.0, signs), shifted)


def _magnitude(operand: Array) -> Array:
    if operand.dtype.kind in "iub":
        return operand
    return np.abs(_wide(operand)).astype(operand.dtype)


def _is_exact(node: Node) -> bool:
    if isinstance(node, ops.Map):
        return node.function in _EXACT
    if isinstance(node, (ops.Reduce, ops.ReduceWindow, ops.Scatter)):
        return ops.monoid(node.body) in ("maximum", "minimum") or (
            ops.returned_parameter(node.body) is not None
        )
    movement = (ops.Constant, ops.Convert, ops.Bitcast, ops.Iota, ops.Broadcast, ops.Reshape,
                ops.Transpose, ops.Slice, ops.Reverse, ops.Pad, ops.Concatenate, ops.Gather,
                ops.DynamicSlice, ops.DynamicUpdateSlice, ops.Get, ops.Sort,
                ops.ReducePrecision)  # fmt: skip
    return isinstance(node, movement)
