"""Operators that move, repeat or cut out elements; views are new tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from glia.base.dtype import S32
from glia.frontend.errors import UnsupportedOperator
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import Number, product
from glia.plugins.torch.aten.operator_table import OperatorCall, lowers, normalized

aten = torch.ops.aten


@lowers(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten._reshape_alias.default,
    aten.view_as.default,
    aten.unsqueeze_copy.default,
    aten.flatten.using_ints,
)
def _reshaped(at: OperatorCall, x: HloValue, *_: Any) -> HloValue:
    return at.reshape(x, at.result.shape)


@lowers(aten.permute.default)
def _permute(at: OperatorCall, x: HloValue, order: Sequence[int]) -> HloValue:
    return at.transpose(x, [normalized(d, x.rank) for d in order])


@lowers(aten.transpose.int)
def _transpose(at: OperatorCall, x: HloValue, first: int, second: int) -> HloValue:
    order = list(range(x.rank))
    if order:
        first, second = normalized(first, x.rank), normalized(second, x.rank)
        order[first], order[second] = order[second], order[first]
    return at.transpose(x, order)


@lowers(aten.t.default)
def _t(at: OperatorCall, x: HloValue) -> HloValue:
    return at.transpose(x, list(range(x.rank))[::-1])


@lowers(aten.expand.default)
def _expand(at: OperatorCall, x: HloValue, *_: Any, **__: Any) -> HloValue:
    return at.expand(x, at.result.shape)


@lowers(aten.repeat.default)
def _repeat(at: OperatorCall, x: HloValue, repeats: Sequence[int]) -> HloValue:
    """Each dimension becomes two, of which the outer is per_dimension."""
    extents = (1,) * (len(repeats) - x.rank) + x.shape
    inner = at.reshape(x, [each for extent in extents for each in (1, extent)])
    pairs = zip(repeats, extents, strict=True)
    whole = at.expand(inner, [each for pair in pairs for each in pair])
    return at.reshape(whole, at.result.shape)


@lowers(aten.cat.default)
def _cat(at: OperatorCall, xs: Sequence[HloValue], dimension: int = 0) -> HloValue:
    rank = len(at.result.shape)
    parts = [x for x in xs if x.shape != (0,) or rank == 1]
    converted = [at.convert(x, at.result.dtype) for x in parts]
    return at.concatenate(converted, normalized(dimension, rank))


@lowers(aten.stack.default)
def _stack(at: OperatorCall, xs: Sequence[HloValue], dimension: int = 0) -> HloValue:
    dimension = normalized(dimension, len(at.result.shape))
    shape = list(at.result.shape)
    shape[dimension] = 1
    parts = [at.reshape(at.convert(x, at.result.dtype), shape) for x in xs]
    return at.concatenate(parts, dimension)


def bounds(extent: int, start: int | None, end: int | None, step: int) -> tuple[int, int, int]:
    """The bounds of a slice within an extent, as Python reads them."""
    first, last, step = slice(start, end, step).indices(extent)
    return first, max(first, last), step


@lowers(aten.slice.Tensor)
def _slice(
    at: OperatorCall,
    x: HloValue,
    dimension: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> HloValue:
    dimension = normalized(dimension, x.rank)
    return at.slice_dimension(x, dimension, *bounds(x.shape[dimension], start, end, step))


@lowers(aten.select.int)
def _select(at: OperatorCall, x: HloValue, dimension: int, index: int) -> HloValue:
    dimension = normalized(dimension, x.rank)
    index %= x.shape[dimension]
    return at.reshape(at.slice_dimension(x, dimension, index, index + 1), at.result.shape)


@lowers(aten.split_with_sizes.default)
def _split_with_sizes(
    at: OperatorCall, x: HloValue, sizes: Sequence[int], dimension: int = 0
) -> list[HloValue]:
    dimension = normalized(dimension, x.rank)
    ends = np.cumsum(sizes).tolist()
    pairs = zip([0, *ends], ends, strict=False)
    return [at.slice_dimension(x, dimension, start, end) for start, end in pairs]


@lowers(aten.split.Tensor)
def _split(at: OperatorCall, x: HloValue, _size: int, dimension: int = 0) -> list[HloValue]:
    dimension = normalized(dimension, x.rank)
    return _split_with_sizes(at, x, [kind.shape[dimension] for kind in at.results], dimension)


@lowers(aten.unbind.int)
def _unbind(at: OperatorCall, x: HloValue, dimension: int = 0) -> list[HloValue]:
    dimension = normalized(dimension, x.rank)
    parts = _split_with_sizes(at, x, [1] * x.shape[dimension], dimension)
    return [at.reshape(part, kind.shape) for part, kind in zip(parts, at.results, strict=True)]


@lowers(aten.flip.default)
def _flip(at: OperatorCall, x: HloValue, dimensions: Sequence[int]) -> HloValue:
    return at.reverse(x, sorted({normalized(d, x.rank) for d in dimensions})) if x.rank else x


@lowers(aten.diagonal.default)
def _diagonal(
    at: OperatorCall, x: HloValue, offset: int = 0, first: int = 0, second: int = 1
) -> HloValue:
    """The diagonal as the last dimension: rows of the flat matrix, one longer than a row apart."""
    first, second = normalized(first, x.rank), normalized(second, x.rank)
    others = [d for d in range(x.rank) if d not in (first, second)]
    moved = at.transpose(x, [*others, first, second])
    rows, columns = moved.shape[-2:]
    outer, length = moved.shape[:-2], at.result.shape[-1]
    flat = at.reshape(moved, (*outer, rows * columns))
    start = offset if offset >= 0 else -offset * columns
    last = flat.rank - 1
    limit = start + (length - 1) * (columns + 1) + 1 if length else start
    return at.slice_dimension(flat, last, min(start, limit), limit, columns + 1)


@lowers(aten.constant_pad_nd.default)
def _constant_pad(
    at: OperatorCall, x: HloValue, amounts: Sequence[int], value: Number = 0
) -> HloValue:
    low, high = sides(x.rank, amounts)
    return at.pad(x, at.constant(value, x.dtype), low, high)


def sides(rank: int, amounts: Sequence[int]) -> tuple[list[int], list[int]]:
    """PyTorch's amounts, pairs from the last dimension on, as those before and after each."""
    low, high = [0] * rank, [0] * rank
    for place in range(len(amounts) // 2):
        low[rank - 1 - place], high[rank - 1 - place] = amounts[2 * place : 2 * place + 2]
    return low, high


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def _reflection_pad(at: OperatorCall, x: HloValue, amounts: Sequence[int]) -> HloValue:
    """Rows at the borders again, in reverse, without the border itself."""
    for d, (low, high) in enumerate(zip(*sides(x.rank, amounts), strict=True)):
        x = _cropped(at, x, d, low, high)
        low, high, extent = max(low, 0), max(high, 0), x.shape[d]
        before = at.reverse(at.slice_dimension(x, d, 1, 1 + low), [d])
        after = at.reverse(at.slice_dimension(x, d, extent - 1 - high, extent - 1), [d])
        x = at.concatenate([p for p in (before, x, after) if p.shape[d]] or [x], d)
    return x


@lowers(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def _replication_pad(at: OperatorCall, x: HloValue, amounts: Sequence[int]) -> HloValue:
    """The border again and again."""
    if not product(at.result.shape):
        return at.splat(0, at.result)
    for d, (low, high) in enumerate(zip(*sides(x.rank, amounts), strict=True)):
        extent = x.shape[d]
        places = range(-low, extent + high)
        before = sum(place < 0 for place in places)
        after = sum(place >= extent for place in places)
        inner = at.slice_dimension(x, d, max(0, -low), max(max(0, -low), extent + min(high, 0)))
        first, last = at.slice_dimension(x, d, 0, 1), at.slice_dimension(x, d, extent - 1, extent)
        ahead = at.expand(first, [*x.shape[:d], before, *x.shape[d + 1 :]])
        behind = at.expand(last, [*x.shape[:d], after, *x.shape[d + 1 :]])
        x = at.concatenate([p for p in (ahead, inner, behind) if p.shape[d]] or [inner], d)
    return x


def _cropped(at: OperatorCall, x: HloValue, dimension: int, low: int, high: int) -> HloValue:
    """x without the rows that negative amounts of padding cut off."""
    return at.slice_dimension(x, dimension, max(0, -low), x.shape[dimension] + min(high, 0))


@lowers(aten.as_strided.default)
def _as_strided(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> HloValue:
    """Elements by their address in the memory that x lies in."""
    if not product(size):
        return at.splat(0, at.result)
    flat = at.reshape(x, [product(x.shape)])
    places = at.constant(_elements_at(at, size, stride, offset)[..., None], S32)
    return at.gather(flat, places, [0], [])


@lowers(aten.as_strided_scatter.default, torch.ops.prims.as_strided_scatter.default)
def _as_strided_scatter(
    at: OperatorCall,
    x: HloValue,
    source: HloValue,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> HloValue:
    """x with other elements at addresses in the memory that it lies in."""
    return _with_elements(at, x, source, _elements_at(at, size, stride, offset))


@lowers(aten.diagonal_scatter.default)
def _diagonal_scatter(
    at: OperatorCall,
    x: HloValue,
    source: HloValue,
    offset: int = 0,
    first: int = 0,
    second: int = 1,
) -> HloValue:
    """x with another diagonal, which lies along the last dimension of source."""
    numbers = np.arange(product(x.shape)).reshape(x.shape)
    return _with_elements(at, x, source, numbers.diagonal(offset, first, second))


def _with_elements(at: OperatorCall, x: HloValue, source: HloValue, places: np.ndarray) -> HloValue:
    """x with the elements of source at places, which number those of x row by row."""
    if not places.size:
        return x
    flat = at.reshape(x, [product(x.shape)])
    indices = at.constant(places[..., None], S32)
    return at.reshape(at.scatter(flat, indices, source, [0], []), x.shape)


def _elements_at(
    at: OperatorCall, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> np.ndarray:
    """The numbers, row by row, of the elements of the first argument that lie at addresses.

    Raises UnsupportedOperator where one lies beside the argument: a graph has no memory around it.
    """
    x = at.given[0]
    own = _addresses(x.shape, x.stride(), x.storage_offset()).ravel()
    wanted = _addresses(size, stride, x.storage_offset() if offset is None else offset)
    order = np.argsort(own, kind="stable")
    places = np.searchsorted(own, wanted, sorter=order)
    if (places == own.size).any() or (own[order[places]] != wanted).any():
        form = "aten.as_strided of elements beside its tensor"
        raise UnsupportedOperator(opcode=form, nearest="", loc=at.computation.loc)
    found: np.ndarray = order[places]
    return found


def _addresses(size: Sequence[int], stride: Sequence[int], offset: int) -> np.ndarray:
    """The place in memory of each element of a strided tensor."""
    found = np.full(tuple(size), offset, np.int64)
    for d, (extent, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[d] = extent
        found += (np.arange(extent) * step).reshape(shape)
    return found


@lowers(aten.select_scatter.default)
def _select_scatter(
    at: OperatorCall, x: HloValue, source: HloValue, dimension: int, index: int
) -> HloValue:
    dimension = normalized(dimension, x.rank)
    index %= x.shape[dimension]
    shape = list(x.shape)
    shape[dimension] = 1
    return _replaced(at, x, at.reshape(source, shape), dimension, index, index + 1)


@lowers(aten.slice_scatter.default)
def _slice_scatter(
    at: OperatorCall,
    x: HloValue,
    source: HloValue,
    dimension: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> HloValue:
    dimension = normalized(dimension, x.rank)
    extent = x.shape[dimension]
    first, last, step = bounds(extent, start, end, step)
    if step == 1:
        return _replaced(at, x, source, dimension, first, last)
    places = list(range(first, last, step))
    moved_order = [dimension, *(d for d in range(x.rank) if d != dimension)]
    back = np.argsort(moved_order).tolist()
    rows, new = at.transpose(x, moved_order), at.transpose(source, moved_order)
    indices = at.constant(np.array(places)[:, None], S32)
    put = at.scatter(rows, indices, new, [0], list(range(1, x.rank)))
    return at.transpose(put, back)


def _replaced(
    at: OperatorCall, x: HloValue, source: HloValue, dimension: int, start: int, end: int
) -> HloValue:
    """x with other rows from start to end of a dimension."""
    before = at.slice_dimension(x, dimension, 0, start)
    after = at.slice_dimension(x, dimension, end, x.shape[dimension])
    source = at.convert(source, x.dtype)
    parts = [each for each in (before, source, after) if each.shape[dimension]]
    return at.concatenate(parts, dimension) if parts else x


@lowers(aten.unfold.default)
def _unfold(at: OperatorCall, x: HloValue, dimension: int, size: int, step: int) -> HloValue:
    """Overlapping rows of a dimension, each as the new last dimension."""
    if not x.rank:
        return at.reshape(x, at.result.shape)
    dimension = normalized(dimension, x.rank)
    count = at.result.shape[dimension]
    parts = []
    for place in range(size):
        limit = place + (count - 1) * step + 1
        part = at.slice_dimension(x, dimension, place, limit, step)
        parts.append(at.reshape(part, (*part.shape, 1)))
    return at.concatenate(parts, x.rank) if parts else at.splat(0, at.result)


@lowers(aten.roll.default)
def _roll(at: OperatorCall, x: HloValue, shifts: Any, dimensions: Any = ()) -> HloValue:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dimensions = [dimensions] if isinstance(dimensions, int) else list(dimensions)
    shape = x.shape
    if not dimensions:
        x, dimensions = at.reshape(x, [product(shape)]), [0]
    for shift, dimension in zip(shifts, dimensions, strict=True):
        d = normalized(dimension, x.rank)
        extent = x.shape[d]
        if not extent or shift % extent == 0:
            continue
        cut = extent - shift % extent
        halves = (at.slice_dimension(x, d, cut, extent), at.slice_dimension(x, d, 0, cut))
        x = at.concatenate(halves, d)
    return at.reshape(x, shape)


@lowers(aten.tril.default)
def _tril(at: OperatorCall, x: HloValue, offset: int = 0) -> HloValue:
    return _triangle(at, x, "LE", offset)


@lowers(aten.triu.default)
def _triu(at: OperatorCall, x: HloValue, offset: int = 0) -> HloValue:
    return _triangle(at, x, "GE", offset)


def _triangle(at: OperatorCall, x: HloValue, direction: str, offset: int) -> HloValue:
    kind = TensorType(S32, x.shape)
    row, column = at.iota(kind, x.rank - 2), at.iota(kind, x.rank - 1)
    from_row = at.add(row, at.filled_like(offset, row))
    return at.select(at.compare(direction, column, from_row), x, at.filled_like(0, x))
