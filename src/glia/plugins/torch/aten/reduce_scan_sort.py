"""Operators that combine elements along dimensions: sums, extremes, softmax, scans, sorts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from glia.base.dtype import F32, PRED, S32, S64
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import HloWriter, Number, Window, product
from glia.plugins.torch.aten.operator_table import (
    OperatorCall,
    listed,
    lowers,
    normalized,
    wide_dtype,
)

aten = torch.ops.aten

Dimensions = Sequence[int] | int | None


def over_reduced(
    at: OperatorCall, x: HloValue, like: HloValue, dimensions: Sequence[int]
) -> HloValue:
    """A reduction's result per_dimension over the dimensions that it lacks."""
    return at.broadcast(x, like.shape, [d for d in range(like.rank) if d not in dimensions])


@lowers(aten.sum.dim_IntList, aten.sum.default)
def _sum(
    at: OperatorCall, x: HloValue, dimensions: Dimensions = None, *_: object, **__: object
) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    return at.finished(at.sum(wide, listed(dimensions, x.rank)))


@lowers(aten.mean.default)
def _mean_of_all(at: OperatorCall, x: HloValue, **_: object) -> HloValue:
    return _mean(at, x)


@lowers(aten.mean.dim)
def _mean(
    at: OperatorCall, x: HloValue, dimensions: Dimensions = None, *_: object, **__: object
) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    return at.finished(mean(at, wide, listed(dimensions, x.rank)))


def mean(at: OperatorCall, x: HloValue, dimensions: Sequence[int]) -> HloValue:
    """The means along dimensions, which the result lacks; NaN of no elements."""
    total = at.sum(x, dimensions)
    return at.divide(total, at.filled_like(product([x.shape[d] for d in dimensions]), total))


@lowers(aten.var.correction)
def _var(
    at: OperatorCall,
    x: HloValue,
    dimensions: Dimensions = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> HloValue:
    return at.finished(variance(at, at.wide(x), listed(dimensions, x.rank), correction))


@lowers(aten.var.dim)
def _var_dim(
    at: OperatorCall,
    x: HloValue,
    dimensions: Dimensions,
    unbiased: bool = True,
    keepdim: bool = False,
) -> HloValue:
    return at.finished(variance(at, at.wide(x), listed(dimensions, x.rank), int(unbiased)))


@lowers(aten.var_mean.correction)
def _var_mean(
    at: OperatorCall,
    x: HloValue,
    dimensions: Dimensions = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[HloValue, ...]:
    wide, places = at.wide(x), listed(dimensions, x.rank)
    found = variance(at, wide, places, correction), mean(at, wide, places)
    kinds = zip(at.results, found, strict=True)
    return tuple(at.sibling(kind).finished(each) for kind, each in kinds)


def variance(
    at: OperatorCall, x: HloValue, dimensions: Sequence[int], correction: Number | None = None
) -> HloValue:
    """The variance along dimensions: squares of what is centred, over the count less correction."""
    centred = at.subtract(x, over_reduced(at, mean(at, x, dimensions), x, dimensions))
    total = at.sum(at.multiply(centred, centred), dimensions)
    count = product([x.shape[d] for d in dimensions])
    freedom = max(0, count - (1 if correction is None else float(correction)))  # type: ignore[arg-type]
    return at.divide(total, at.filled_like(freedom, total))


@lowers(aten.prod.default)
def _prod(at: OperatorCall, x: HloValue, **_: object) -> HloValue:
    return _prod_dim(at, x, None)


@lowers(aten.prod.dim_int)
def _prod_dim(
    at: OperatorCall, x: HloValue, dimension: int | None, *_: object, **__: object
) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    one = at.constant(1, wide.dtype)
    return at.finished(at.reduce("multiply", wide, one, listed(dimension, x.rank)))


@lowers(aten.amax.default, aten.max.default)
def _amax(
    at: OperatorCall, x: HloValue, dimensions: Dimensions = (), keepdim: bool = False
) -> HloValue:
    found = at.reduce("maximum", x, at.lowest(x.dtype), listed(dimensions, x.rank))
    return at.finished(found)


@lowers(aten.amin.default, aten.min.default)
def _amin(
    at: OperatorCall, x: HloValue, dimensions: Dimensions = (), keepdim: bool = False
) -> HloValue:
    found = at.reduce("minimum", x, at.highest(x.dtype), listed(dimensions, x.rank))
    return at.finished(found)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def _any(
    at: OperatorCall, x: HloValue, dimensions: Dimensions = None, keepdim: bool = False
) -> HloValue:
    is_set = at.convert(x, PRED)
    false = at.constant(False, PRED)
    if dimensions == []:  # no dimension is none here, and all of them for None
        return at.finished(is_set)
    return at.finished(at.reduce("or", is_set, false, listed(dimensions, x.rank)))


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def _all(
    at: OperatorCall, x: HloValue, dimensions: Dimensions = None, keepdim: bool = False
) -> HloValue:
    is_set = at.convert(x, PRED)
    if dimensions == []:
        return at.finished(is_set)
    true = at.constant(True, PRED)
    return at.finished(at.reduce("and", is_set, true, listed(dimensions, x.rank)))


# --- extremes and where they are -----------------------------------------------------------------


@lowers(aten.argmax.default)
def _argmax(
    at: OperatorCall, x: HloValue, dimension: int | None = None, keepdim: bool = False
) -> HloValue:
    return at.finished(place_of_extreme(at, x, dimension, "GT")[1])


@lowers(aten.argmin.default)
def _argmin(
    at: OperatorCall, x: HloValue, dimension: int | None = None, keepdim: bool = False
) -> HloValue:
    return at.finished(place_of_extreme(at, x, dimension, "LT")[1])


@lowers(aten.max.dim)
def _max_dim(
    at: OperatorCall, x: HloValue, dimension: int, keepdim: bool = False
) -> tuple[HloValue, HloValue]:
    return _extreme_and_place(at, x, dimension, "GT")


@lowers(aten.min.dim)
def _min_dim(
    at: OperatorCall, x: HloValue, dimension: int, keepdim: bool = False
) -> tuple[HloValue, HloValue]:
    return _extreme_and_place(at, x, dimension, "LT")


def _extreme_and_place(
    at: OperatorCall, x: HloValue, dimension: int, direction: str
) -> tuple[HloValue, HloValue]:
    values, places = place_of_extreme(at, x, dimension, direction)
    shape = at.result.shape
    return at.reshape(values, shape), at.reshape(at.convert(places, S64), shape)


def place_of_extreme(
    at: OperatorCall, x: HloValue, dimension: int | None, direction: str
) -> tuple[HloValue, HloValue]:
    """The extreme along a dimension and its first index; NaN is the extreme where there is one."""
    if dimension is None or not x.rank:
        x, dimension = at.reshape(x, [product(x.shape)]), 0
    dimension = normalized(dimension, x.rank)
    init = at.lowest(x.dtype) if direction == "GT" else at.highest(x.dtype)
    places = at.iota(TensorType(S32, x.shape), dimension)

    def better(
        b: HloWriter, value: HloValue, place: HloValue, other: HloValue, other_place: HloValue
    ) -> tuple[HloValue, HloValue]:
        wins, ties = b.compare(direction, other, value), b.compare("EQ", other, value)
        if value.dtype.is_float:
            is_nan, other_nan = b.compare("NE", value, value), b.compare("NE", other, other)
            first_nan = b.binary("and", other_nan, b.unary("not", is_nan))
            wins = b.binary("or", wins, first_nan)
            ties = b.binary("or", ties, b.binary("and", is_nan, other_nan))
        earlier = b.binary("and", ties, b.compare("LT", other_place, place))
        take = b.binary("or", wins, earlier)
        return b.select(take, other, value), b.select(take, other_place, place)

    last = at.constant(max(0, x.shape[dimension] - 1), S32)
    values, found = at.reduce_several((x, places), (init, last), (dimension,), better)
    return values, found


@lowers(aten.sort.default, aten.sort.stable)
def _sort(
    at: OperatorCall,
    x: HloValue,
    dimension: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
    dim: int | None = None,
) -> tuple[HloValue, HloValue]:
    return ordered(at, x, dimension if dim is None else dim, is_descending=descending)


def ordered(
    at: OperatorCall, x: HloValue, dimension: int, *, is_descending: bool
) -> tuple[HloValue, HloValue]:
    """x in stable order along a dimension, and the indices; NaN is the greatest."""
    if not x.rank:
        return x, at.constant(0, S64)
    dimension = normalized(dimension, x.rank)
    places = at.iota(TensorType(S32, x.shape), dimension)

    def precedes(b: HloWriter, left: HloValue, right: HloValue) -> HloValue:
        if not left.dtype.is_float:
            return b.compare("GT" if is_descending else "LT", left, right)
        nan_left, nan_right = b.compare("NE", left, left), b.compare("NE", right, right)
        if is_descending:
            first_nan = b.binary("and", nan_left, b.unary("not", nan_right))
            return b.binary("or", b.compare("GT", left, right), first_nan)
        last_nan = b.binary("and", nan_right, b.unary("not", nan_left))
        return b.binary("or", b.compare("LT", left, right), last_nan)

    values, found = at.sort((x, places), dimension, precedes)
    return values, at.convert(found, S64)


@lowers(aten.topk.default)
def _topk(
    at: OperatorCall,
    x: HloValue,
    k: int,
    dimension: int = -1,
    largest: bool = True,
    is_sorted: bool = True,
) -> tuple[HloValue, HloValue]:
    if not x.rank:
        return x, at.constant(0, S64)
    dimension = normalized(dimension, x.rank)
    found = ordered(at, x, dimension, is_descending=largest)
    values, places = (at.slice_dimension(each, dimension, 0, k) for each in found)
    return values, places


# --- softmax -------------------------------------------------------------------------------------


@lowers(aten._softmax.default)
def _softmax(
    at: OperatorCall, x: HloValue, dimension: int, half_to_float: bool = False
) -> HloValue:
    wide = _vector(at, at.wide(x))
    dimension = normalized(dimension, wide.rank)
    power = at.unary("exponential", _below_peak(at, wide, dimension))
    total = over_reduced(at, at.sum(power, [dimension]), wide, [dimension])
    return at.finished(at.divide(power, total))


@lowers(aten._log_softmax.default)
def _log_softmax(
    at: OperatorCall, x: HloValue, dimension: int, half_to_float: bool = False
) -> HloValue:
    wide = _vector(at, at.wide(x))
    dimension = normalized(dimension, wide.rank)
    below = _below_peak(at, wide, dimension)
    total = at.sum(at.unary("exponential", below), [dimension])
    return at.finished(
        at.subtract(below, over_reduced(at, at.unary("log", total), wide, [dimension]))
    )


def _vector(at: OperatorCall, x: HloValue) -> HloValue:
    return x if x.rank else at.reshape(x, (1,))


def _below_peak(at: OperatorCall, x: HloValue, dimension: int) -> HloValue:
    """x less its greatest element along a dimension."""
    peak = at.reduce("maximum", x, at.lowest(x.dtype), [dimension])
    return at.subtract(x, over_reduced(at, peak, x, [dimension]))


@lowers(aten._softmax_backward_data.default)
def _softmax_backward(
    at: OperatorCall, grad: HloValue, output: HloValue, dimension: int, dtype: torch.dtype
) -> HloValue:
    wide, grad = _vector(at, at.wide(output)), _vector(at, at.wide(grad))
    dimension = normalized(dimension, wide.rank)
    product_ = at.multiply(grad, wide)
    total = over_reduced(at, at.sum(product_, [dimension]), wide, [dimension])
    return at.finished(at.subtract(product_, at.multiply(wide, total)))


@lowers(aten._log_softmax_backward_data.default)
def _log_softmax_backward(
    at: OperatorCall, grad: HloValue, output: HloValue, dimension: int, dtype: torch.dtype
) -> HloValue:
    wide, grad = _vector(at, at.wide(output)), _vector(at, at.wide(grad))
    dimension = normalized(dimension, wide.rank)
    total = over_reduced(at, at.sum(grad, [dimension]), wide, [dimension])
    power = at.unary("exponential", wide)
    return at.finished(at.subtract(grad, at.multiply(power, total)))


# --- scans ---------------------------------------------------------------------------------------


@lowers(aten.cumsum.default)
def _cumsum(
    at: OperatorCall, x: HloValue, dimension: int, *, dtype: torch.dtype | None = None
) -> HloValue:
    return _scan(at, "add", 0, x, dimension)


@lowers(aten.cumprod.default)
def _cumprod(
    at: OperatorCall, x: HloValue, dimension: int, *, dtype: torch.dtype | None = None
) -> HloValue:
    return _scan(at, "multiply", 1, x, dimension)


def _scan(at: OperatorCall, opcode: str, init: Number, x: HloValue, dimension: int) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    if not x.rank or not product(x.shape):
        return at.finished(wide)
    return at.finished(running(at, opcode, init, wide, normalized(dimension, x.rank)))


def running(at: OperatorCall, opcode: str, init: Number, x: HloValue, dimension: int) -> HloValue:
    """Each element combined with those before it along a dimension."""
    window = _all_before(x, dimension)
    return at.reduce_window(opcode, x, at.constant(init, x.dtype), window)


def _all_before(x: HloValue, dimension: int) -> Window:
    """The window of an element and those before it."""
    extent = x.shape[dimension]
    ones = (1,) * x.rank
    none = (0,) * x.rank
    size, low = list(ones), list(none)
    size[dimension], low[dimension] = extent, extent - 1
    return Window(tuple(size), ones, tuple(low), none)


@lowers(aten.cummax.default)
def _cummax(at: OperatorCall, x: HloValue, dimension: int) -> tuple[HloValue, HloValue]:
    return _running_extreme(at, x, dimension, "GE", at.lowest(x.dtype))


@lowers(aten.cummin.default)
def _cummin(at: OperatorCall, x: HloValue, dimension: int) -> tuple[HloValue, HloValue]:
    return _running_extreme(at, x, dimension, "LE", at.highest(x.dtype))


def _running_extreme(
    at: OperatorCall, x: HloValue, dimension: int, direction: str, init: HloValue
) -> tuple[HloValue, HloValue]:
    """The extreme so far and its last index; NaN is the extreme from where there is one."""
    if not x.rank or not product(x.shape):
        return x, at.splat(0, at.results[1])
    dimension = normalized(dimension, x.rank)
    places = at.iota(TensorType(S32, x.shape), dimension)

    def better(
        b: HloWriter, value: HloValue, place: HloValue, other: HloValue, other_place: HloValue
    ) -> tuple[HloValue, HloValue]:
        wins, loses = b.compare(direction, other, value), b.compare(direction, value, other)
        if value.dtype.is_float:
            is_nan, other_nan = b.compare("NE", value, value), b.compare("NE", other, other)
            wins = b.binary("or", other_nan, b.binary("and", wins, b.unary("not", is_nan)))
            loses = b.binary("or", is_nan, b.binary("and", loses, b.unary("not", other_nan)))
        later = b.binary("or", b.unary("not", loses), b.compare("GT", other_place, place))
        take = b.binary("and", wins, later)
        return b.select(take, other, value), b.select(take, other_place, place)

    inits = (init, at.constant(-1, S32))
    values, found = at.reduce_several_windows((x, places), inits, _all_before(x, dimension), better)
    return values, at.convert(found, S64)


@lowers(aten.logcumsumexp.default)
def _logcumsumexp(at: OperatorCall, x: HloValue, dimension: int) -> HloValue:
    """The logarithm of the sum of the exponentials so far."""
    if not x.rank or not product(x.shape):
        return x

    def log_sum(b: HloWriter, value: HloValue, other: HloValue) -> tuple[HloValue]:
        greater, less = b.binary("maximum", value, other), b.binary("minimum", value, other)
        gap = b.subtract(less, greater)
        total = b.add(greater, b.unary("log-plus-one", b.unary("exponential", gap)))
        return (b.select(b.compare("EQ", value, other), _doubled(b, value), total),)

    wide = at.wide(x)
    window = _all_before(wide, normalized(dimension, x.rank))
    (found,) = at.reduce_several_windows((wide,), (at.lowest(wide.dtype),), window, log_sum)
    return at.finished(found)


def _doubled(b: HloWriter, x: HloValue) -> HloValue:
    """The logarithm of twice the exponential of x, infinities too."""
    return b.add(x, b.constant(math.log(2), x.dtype))


@lowers(aten.histc.default)
def _histc(
    at: OperatorCall, x: HloValue, bins: int = 100, low: Number = 0, high: Number = 0
) -> HloValue:
    """How many elements lie in each of equal parts of a range; the last part has its end."""
    wide = at.wide(x) if x.dtype.is_float else at.convert(x, F32)
    flat = at.reshape(wide, [product(x.shape)])
    if low == high:
        least = at.reduce("minimum", flat, at.highest(flat.dtype), [0])
        greatest = at.reduce("maximum", flat, at.lowest(flat.dtype), [0])
        first, last = (at.broadcast(each, flat.shape, ()) for each in (least, greatest))
        is_flat = at.compare("EQ", first, last)
        one = at.filled_like(1, flat)
        first = at.select(is_flat, at.subtract(first, one), first)
        last = at.select(is_flat, at.add(last, one), last)
    else:
        first, last = at.filled_like(low, flat), at.filled_like(high, flat)
    share = at.divide(at.subtract(flat, first), at.subtract(last, first))
    place = at.unary("floor", at.multiply(share, at.filled_like(bins, flat)))
    place = at.binary("minimum", place, at.filled_like(bins - 1, place))
    inside = at.binary("and", at.compare("GE", flat, first), at.compare("LE", flat, last))
    shape = (bins, flat.shape[0])
    numbers = at.iota(TensorType(flat.dtype, shape), 0)
    is_here = at.compare("EQ", numbers, at.broadcast(place, shape, (1,)))
    counted = at.binary("and", is_here, at.broadcast(inside, shape, (1,)))
    return at.finished(at.sum(at.convert(counted, S32), [1]))


# --- distances -----------------------------------------------------------------------------------


@lowers(aten._cdist_forward.default)
def _cdist(
    at: OperatorCall, x: HloValue, y: HloValue, p: float, mode: int | None = None
) -> HloValue:
    """The p-norm of each row of x less each row of y."""
    *batch, rows, columns = at.result.shape
    width = x.shape[-1]
    shape = (*batch, rows, columns, width)
    x = at.expand(at.reshape(x, (*x.shape[:-1], 1, width)), shape)
    y = at.expand(at.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:])), shape)
    return at.finished(_norm(at, at.subtract(x, y), p))


@lowers(aten._pdist_forward.default)
def _pdist(at: OperatorCall, x: HloValue, p: float = 2.0) -> HloValue:
    """The p-norm of the difference of each two rows."""
    rows = range(x.shape[0])
    pairs = [(i, j) for i in rows for j in rows[i + 1 :]]
    if not pairs:
        return at.splat(0, at.result)
    sides = ([[i] for i, _ in pairs], [[j] for _, j in pairs])
    left, right = (at.gather(x, at.constant(side, S32), [0], [1]) for side in sides)
    return at.finished(_norm(at, at.subtract(left, right), p))


def _norm(at: OperatorCall, x: HloValue, p: float) -> HloValue:
    """The p-norm along the last dimension."""
    last = [x.rank - 1]
    size = at.unary("abs", x)
    if p == 0:
        return at.sum(at.convert(at.compare_to("NE", x, 0), x.dtype), last)
    if math.isinf(p):
        return at.reduce("maximum", size, at.constant(0, x.dtype), last)
    if p == 1:
        return at.sum(size, last)
    if p == 2:
        return at.unary("sqrt", at.sum(at.multiply(x, x), last))
    total = at.sum(at.binary("power", size, at.filled_like(p, size)), last)
    return at.binary("power", total, at.filled_like(1 / p, total))
