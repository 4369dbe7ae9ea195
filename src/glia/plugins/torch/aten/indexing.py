"""Operators that look elements up, or put them, at indices that are data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch

from glia.base.dtype import PRED, S32, S64, DType
from glia.frontend.errors import DynamicShape
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import Number, product
from glia.plugins.torch.aten.operator_table import OperatorCall, Scalar, lowers, normalized
from glia.plugins.torch.aten.reduce_scan_sort import place_of_extreme, running

aten = torch.ops.aten

_REDUCTIONS = {
    "sum": "add", "prod": "multiply", "amax": "maximum", "amin": "minimum", "mean": "add",
}  # fmt: skip


@lowers(aten.embedding.default)
def _embedding(at: OperatorCall, weight: HloValue, indices: HloValue, *_: Any) -> HloValue:
    return _rows(at, weight, indices, 0)


@lowers(aten.index_select.default)
def _index_select(at: OperatorCall, x: HloValue, dimension: int, indices: HloValue) -> HloValue:
    if not x.rank:
        return x
    flat = at.reshape(indices, [product(indices.shape)])
    return _rows(at, x, flat, normalized(dimension, x.rank))


def _rows(at: OperatorCall, x: HloValue, indices: HloValue, dimension: int) -> HloValue:
    """Slices of x along a dimension, in place of which the dimensions of indices stand."""
    column = at.reshape(indices, (*indices.shape, 1))
    before = list(range(dimension))
    after = [d - 1 + indices.rank for d in range(dimension + 1, x.rank)]
    return at.gather(x, column, [dimension], before + after)


@lowers(aten.embedding_dense_backward.default)
def _embedding_backward(
    at: OperatorCall, grad: HloValue, indices: HloValue, rows: int, padding: int, by_frequency: bool
) -> HloValue:
    """The gradients of a row's uses, added up."""
    width = grad.shape[-1]
    flat = at.reshape(indices, [product(indices.shape)])
    wide = at.reshape(at.wide(grad), (flat.shape[0], width))
    ones = at.splat(1, TensorType(wide.dtype, flat.shape))
    if padding >= 0:
        is_used = at.convert(at.compare_to("NE", flat, padding), wide.dtype)
        wide = at.multiply(wide, at.broadcast(is_used, wide.shape, (0,)))
    column = at.reshape(flat, (flat.shape[0], 1))
    table = at.splat(0, TensorType(wide.dtype, (rows, width)))
    if by_frequency:
        uses = at.splat(0, TensorType(wide.dtype, (rows,)))
        uses = at.scatter(uses, column, ones, [0], [], "add")
        of_each = at.gather(uses, column, [0], [])
        wide = at.divide(wide, at.broadcast(of_each, wide.shape, (0,)))
    return at.finished(at.scatter(table, column, wide, [0], [1], "add"))


# --- indexing by tensors -------------------------------------------------------------------------


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(at: OperatorCall, x: HloValue, indices: Sequence[HloValue | None]) -> HloValue:
    if not product(at.result.shape):
        return at.splat(0, at.result)
    x, indices = _without_masks(at, x, indices)
    dimensions, column, place = _index_column(at, x, indices)
    rank = column.rank - 1
    whole = [d for d in range(x.rank) if d not in dimensions]
    offsets = [n if n < place else n + rank for n in range(len(whole))]
    return at.reshape(at.gather(x, column, dimensions, offsets), at.result.shape)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(
    at: OperatorCall,
    x: HloValue,
    indices: Sequence[HloValue | None],
    values: HloValue,
    accumulate: bool = False,
    *_: Any,
) -> HloValue:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is PRED:
        return _masked_put(at, x, indices[0], values, accumulate)
    x, indices = _without_masks(at, x, indices)
    dimensions, column, place = _index_column(at, x, indices)
    rank = column.rank - 1
    whole = [x.shape[d] for d in range(x.rank) if d not in dimensions]
    offsets = [n if n < place else n + rank for n in range(len(whole))]
    shape = (*whole[:place], *column.shape[:-1], *whole[place:])
    updates = at.expand(values, shape)
    if not accumulate:
        return at.scatter(x, column, updates, dimensions, offsets)
    wide, updates = at.wide(x), at.wide(updates)
    return at.finished(at.scatter(wide, column, updates, dimensions, offsets, "add"))


def _index_column(
    at: OperatorCall, x: HloValue, indices: Sequence[HloValue | None]
) -> tuple[list[int], HloValue, int]:
    """The dimensions that are indexed, their indices side by side, and where these go.

    They go where the first indexed dimension is, or first where a whole one is between them.
    """
    named = [(d, index) for d, index in enumerate(indices) if index is not None]
    dimensions = [d for d, _ in named]
    shape = torch.broadcast_shapes(*(index.shape for _, index in named))
    parts = []
    for d, index in named:
        found = at.expand(_from_front(at, index, x.shape[d]), shape)
        parts.append(at.reshape(found, (*shape, 1)))
    is_together = dimensions == list(range(dimensions[0], dimensions[0] + len(dimensions)))
    place = dimensions[0] if is_together else 0
    return dimensions, at.concatenate(parts, len(shape)), place


def _from_front(at: OperatorCall, index: HloValue, extent: int) -> HloValue:
    """Indices in s32, negative ones counted from the end."""
    narrow = at.convert(index, S32)
    if index.dtype.name.startswith("u"):
        return narrow
    later = at.add(narrow, at.filled_like(extent, narrow))
    return at.select(at.compare_to("LT", narrow, 0), later, narrow)


def _without_masks(
    at: OperatorCall, x: HloValue, indices: Sequence[HloValue | None]
) -> tuple[HloValue, Sequence[HloValue | None]]:
    """The same indexing; DynamicShape where a mask decides how many elements there are."""
    for index in indices:
        if index is not None and index.dtype is PRED:
            loc = at.computation.loc
            raise DynamicShape(name="indexing by a mask", shape="[?]", loc=loc)
    return x, indices


def _masked_put(
    at: OperatorCall, x: HloValue, mask: HloValue, values: HloValue, accumulate: bool
) -> HloValue:
    """x with values where a mask of its first dimensions is set."""
    if product(values.shape) != 1:
        loc = at.computation.loc
        raise DynamicShape(name="assignment of many values by a mask", shape="[?]", loc=loc)
    value = at.expand(at.reshape(values, ()), x.shape)
    if accumulate:
        value = at.add(x, value)
    return at.select(at.broadcast(mask, x.shape, list(range(mask.rank))), value, x)


@lowers(aten.nonzero.default, aten.masked_select.default)
def _data_dependent(at: OperatorCall, *_: Any) -> HloValue:
    raise DynamicShape(name="the result", shape="[?]", loc=at.computation.loc)


# --- along one dimension -------------------------------------------------------------------------


@lowers(aten.gather.default)
def _gather(
    at: OperatorCall, x: HloValue, dimension: int, index: HloValue, *_: Any, **__: Any
) -> HloValue:
    if not x.rank:
        return at.expand(x, at.result.shape)
    if not product(index.shape):
        return at.splat(0, at.result)
    if not index.rank:
        index = at.reshape(index, (1,))
    dimension = normalized(dimension, x.rank)
    limit = [x.shape[d] if d == dimension else index.shape[d] for d in range(x.rank)]
    part = at.slice(x, [0] * x.rank, limit)
    batch = [d for d in range(x.rank) if d != dimension]
    column = at.reshape(_from_front(at, index, x.shape[dimension]), (*index.shape, 1))
    moved = at.transpose(column, [*batch, dimension, x.rank])
    rows = at.transpose(part, [*batch, dimension])
    found = at.gather(rows, moved, [x.rank - 1], [], batch=list(range(len(batch))))
    back = [*range(dimension), x.rank - 1, *range(dimension, x.rank - 1)]
    return at.reshape(at.transpose(found, back), at.result.shape)


@lowers(aten.scatter.src)
def _scatter(
    at: OperatorCall, x: HloValue, dimension: int, index: HloValue, source: HloValue
) -> HloValue:
    return _put_along(at, x, dimension, index, source, "")


@lowers(aten.scatter.value)
def _scatter_value(
    at: OperatorCall, x: HloValue, dimension: int, index: HloValue, value: Number
) -> HloValue:
    source = at.splat(value, TensorType(x.dtype, index.shape))
    return _put_along(at, x, dimension, index, source, "")


@lowers(aten.scatter_add.default)
def _scatter_add(
    at: OperatorCall, x: HloValue, dimension: int, index: HloValue, source: HloValue
) -> HloValue:
    return at.finished(_put_along(at, at.wide(x), dimension, index, at.wide(source), "add"))


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def _scatter_reduce_old(
    at: OperatorCall, x: HloValue, dimension: int, index: HloValue, source: Scalar, *, reduce: str
) -> HloValue:
    if not isinstance(source, HloValue):
        source = at.splat(source, TensorType(x.dtype, index.shape))
    return _put_along(at, x, dimension, index, source, reduce)


@lowers(aten.scatter_reduce.two)
def _scatter_reduce(
    at: OperatorCall,
    x: HloValue,
    dimension: int,
    index: HloValue,
    source: HloValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> HloValue:
    wide, source = at.wide(x), at.wide(source)
    opcode = _REDUCTIONS[reduce]
    counts = at.splat(1 if include_self else 0, TensorType(S32, x.shape))
    ones = at.splat(1, TensorType(S32, index.shape))
    counts = _put_along(at, counts, dimension, index, ones, "add")
    start = wide
    if not include_self:
        neutral = _neutral(at, reduce, wide.dtype)
        is_hit = at.compare_to("GT", counts, 0)
        start = at.select(is_hit, at.broadcast(neutral, wide.shape, ()), wide)
    found = _put_along(at, start, dimension, index, source, opcode)
    if reduce == "mean":
        uses = at.binary("maximum", counts, at.filled_like(1, counts))
        found = _divided(at, found, at.convert(uses, found.dtype))
    return at.finished(found)


def _divided(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    """The quotient, of integers rounded down."""
    if x.dtype.is_float:
        return at.divide(x, y)
    rest = at.binary("remainder", x, y)
    quotient = at.divide(x, y)
    is_off = at.compare_to("LT", rest, 0)
    return at.select(is_off, at.subtract(quotient, at.filled_like(1, x)), quotient)


def _neutral(at: OperatorCall, reduce: str, dtype: DType) -> HloValue:
    """What a reduction starts from without the tensor's own element."""
    if reduce == "amax":
        return at.lowest(dtype)
    if reduce == "amin":
        return at.highest(dtype)
    return at.constant(1 if reduce == "prod" else 0, dtype)


def _put_along(
    at: OperatorCall, x: HloValue, dimension: int, index: HloValue, source: HloValue, combine: str
) -> HloValue:
    """x with elements of source put at, or combined with what is at, indices of one dimension."""
    if not product(index.shape):
        return x
    if not x.rank:
        index, source = at.reshape(index, (1,)), at.reshape(source, (1,))
        return at.reshape(_put_along(at, at.reshape(x, (1,)), 0, index, source, combine), ())
    if not index.rank:
        index = at.reshape(index, (1,))
    source = at.reshape(source, source.shape or (1,))
    source = at.convert(at.slice(source, [0] * x.rank, index.shape), x.dtype)
    dimension = normalized(dimension, x.rank)
    batch = [d for d in range(x.rank) if d != dimension]
    order = [*batch, dimension]
    back = [*range(dimension), x.rank - 1, *range(dimension, x.rank - 1)]
    limit = [x.shape[d] if d == dimension else index.shape[d] for d in range(x.rank)]
    part = at.transpose(at.slice(x, [0] * x.rank, limit), order)
    column = at.reshape(_from_front(at, index, x.shape[dimension]), (*index.shape, 1))
    column, source = at.transpose(column, [*order, x.rank]), at.transpose(source, order)
    places = list(range(len(batch)))
    put = at.scatter(part, column, source, [x.rank - 1], [], combine, batch=places)
    return _over_front(at, x, at.transpose(put, back))


def _over_front(at: OperatorCall, x: HloValue, front: HloValue) -> HloValue:
    """x whose first elements along every dimension are others."""
    for d in reversed(range(x.rank)):
        if front.shape[d] == x.shape[d]:
            continue
        starts, limits = [0] * x.rank, list(front.shape)
        starts[d], limits[d] = front.shape[d], x.shape[d]
        for later in range(d + 1, x.rank):
            limits[later] = x.shape[later]
        front = at.concatenate((front, at.slice(x, starts, limits)), d)
    return front


@lowers(aten.masked_scatter.default)
def _masked_scatter(at: OperatorCall, x: HloValue, mask: HloValue, source: HloValue) -> HloValue:
    """The next element of source wherever the mask is set."""
    mask = at.expand(mask, at.result.shape)
    x = at.expand(x, at.result.shape)
    count = product(mask.shape)
    if not count or not product(source.shape):
        return x
    flat = at.reshape(at.convert(mask, S32), [count])
    place = at.subtract(running(at, "add", 0, flat, 0), at.filled_like(1, flat))
    place = at.binary("maximum", place, at.filled_like(0, place))
    place = at.binary("minimum", place, at.filled_like(product(source.shape) - 1, place))
    all_of_it = at.reshape(source, [product(source.shape)])
    found = at.gather(all_of_it, at.reshape(place, (count, 1)), [0], [])
    return at.select(mask, at.reshape(found, x.shape), x)


@lowers(aten.bucketize.Tensor)
def _bucketize(
    at: OperatorCall, x: HloValue, edges: HloValue, *, out_int32: bool = False, right: bool = False
) -> HloValue:
    """How many edges are below, or not above, each element."""
    shape = (*x.shape, edges.shape[0])
    wide = at.broadcast(x, shape, list(range(x.rank)))
    borders = at.broadcast(at.convert(edges, x.dtype), shape, (x.rank,))
    is_below = at.compare("LE" if right else "LT", borders, wide)
    return at.finished(at.sum(at.convert(is_below, S64), [x.rank]))


# --- bags of embeddings --------------------------------------------------------------------------


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def _embedding_bag(
    at: OperatorCall,
    weight: HloValue,
    indices: HloValue,
    offsets: HloValue,
    by_frequency: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: HloValue | None = None,
    has_last: bool = False,
    padding: int = -1,
) -> tuple[HloValue, ...]:
    """Sum (0), mean (1) or maximum (2) of the rows of each bag, which begins at its offset.

    The other results, which only the gradient uses, are bags by element, sizes, and maxima.
    """
    bags, _ = at.results[0].shape
    count = indices.shape[0]
    starts = at.convert(at.slice_dimension(offsets, 0, 0, bags), S32)
    ends = at.concatenate((at.slice_dimension(starts, 0, 1, bags), at.constant([count], S32)), 0)
    member = _members(at, starts, ends, count)
    used = at.convert(at.compare_to("NE", indices, padding), PRED)
    inside = at.binary("and", member, at.broadcast(used, (bags, count), (1,)))
    rows = _rows(at, weight, indices, 0)
    wide = at.wide(rows)
    sizes = at.sum(at.convert(inside, S32), [1])
    if weights is not None:
        wide = at.multiply(wide, at.broadcast(at.wide(weights), wide.shape, (0,)))
    if mode == 2:
        found = _bag_maxima(at, wide, inside)
    else:
        found = at.dot(at.convert(inside, wide.dtype), wide, (1, 0))
    if mode == 1:
        shares = at.convert(at.binary("maximum", sizes, at.filled_like(1, sizes)), wide.dtype)
        found = at.divide(found, at.broadcast(shares, found.shape, (0,)))
    known = [_bag_of_each(at, member), sizes, sizes]
    if mode == 2 and len(at.results[3].shape) == 2:
        known[2] = _rows_of_maxima(at, wide, inside, indices)
    return (at.finished(found), *map(_if_asked, repeat(at), known, at.results[1:]))


def _if_asked(at: OperatorCall, x: HloValue, kind: TensorType) -> HloValue:
    """x as a result of a kind; zeros where PyTorch has none of its shape for lack of a use."""
    return at.convert(x, kind.dtype) if x.shape == kind.shape else at.splat(0, kind)


def _bag_of_each(at: OperatorCall, member: HloValue) -> HloValue:
    """The bag of each element."""
    bags = at.iota(TensorType(S32, member.shape), 0)
    return at.sum(at.select(member, bags, at.filled_like(0, bags)), [0])


def _rows_of_maxima(
    at: OperatorCall, rows: HloValue, inside: HloValue, indices: HloValue
) -> HloValue:
    """The index of the row that has the greatest of each column of a bag."""
    shape = (*inside.shape, rows.shape[1])
    is_inside = at.broadcast(inside, shape, (0, 1))
    lowest = at.broadcast(at.lowest(rows.dtype), shape, ())
    kept = at.select(is_inside, at.broadcast(rows, shape, (1, 2)), lowest)
    _, place = place_of_extreme(at, kept, 1, "GT")
    return at.gather(indices, at.reshape(place, (*place.shape, 1)), [0], [])


def _members(at: OperatorCall, starts: HloValue, ends: HloValue, count: int) -> HloValue:
    """pred[bags, count]: which element is in which bag."""
    shape = (starts.shape[0], count)
    place = at.iota(TensorType(S32, shape), 1)
    begun = at.compare("GE", place, at.broadcast(starts, shape, (0,)))
    return at.binary("and", begun, at.compare("LT", place, at.broadcast(ends, shape, (0,))))


def _bag_maxima(at: OperatorCall, rows: HloValue, inside: HloValue) -> HloValue:
    bags, count = inside.shape
    shape = (bags, count, rows.shape[1])
    all_rows = at.broadcast(rows, shape, (1, 2))
    is_inside = at.broadcast(inside, shape, (0, 1))
    lowest = at.lowest(rows.dtype)
    kept = at.select(is_inside, all_rows, at.broadcast(lowest, shape, ()))
    found = at.reduce("maximum", kept, lowest, [1])
    return at.select(at.compare_to("EQ", found, float("-inf")), at.filled_like(0, found), found)
