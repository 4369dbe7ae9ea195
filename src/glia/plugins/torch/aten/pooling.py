"""Pooling, and resizing of images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glia.base.dtype import F32, S32, S64
from glia.frontend.errors import UnsupportedOperator
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import HloWriter, Window, product
from glia.plugins.torch.aten.operator_table import Lowering, OperatorCall, lowers, per_dimension

aten = torch.ops.aten


def _lowers_by_rank(operators: Mapping[int, Any]) -> Callable[[Lowering], Lowering]:
    """Enter a function for operators on images of so many dimensions, which it is given."""

    def register(function: Lowering) -> Lowering:
        for rank, operator in operators.items():
            lowers(operator)(functools.partial(function, rank=rank))
        return function

    return register


def _window(
    x: HloValue,
    rank: int,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | int,
    dilation: Sequence[int] | int,
    result: Sequence[int],
) -> Window:
    """The window over all dimensions of x; what lies above is what the result's extents need."""
    size = per_dimension(size, rank)
    stride = per_dimension(stride, rank, size)
    padding, dilation = per_dimension(padding, rank), per_dimension(dilation, rank)
    lead = x.rank - rank
    high = []
    for d in range(rank):
        reach = (result[lead + d] - 1) * stride[d] + (size[d] - 1) * dilation[d] + 1
        high.append(reach - x.shape[lead + d] - padding[d])
    ones, none = (1,) * lead, (0,) * lead
    return Window(
        (*ones, *size), (*ones, *stride), (*none, *padding), (*none, *high),
        dilation=(*ones, *dilation),
    )  # fmt: skip


@lowers(aten.max_pool2d_with_indices.default)
def _max_pool2d(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[HloValue, HloValue]:
    return _max_pool(at, x, 2, _window(x, 2, size, stride, padding, dilation, at.result.shape))


@lowers(aten.max_pool3d_with_indices.default)
def _max_pool3d(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[HloValue, HloValue]:
    return _max_pool(at, x, 3, _window(x, 3, size, stride, padding, dilation, at.result.shape))


def _max_pool(
    at: OperatorCall, x: HloValue, rank: int, window: Window
) -> tuple[HloValue, HloValue]:
    """The greatest of each window, and its place in the flat image."""
    lead = x.rank - rank
    lowest = at.lowest(x.dtype)
    values = at.reduce_window("maximum", x, lowest, window)
    image = x.shape[lead:]
    flat = at.iota(TensorType(S32, (product(image),)), 0)
    places = at.broadcast(at.reshape(flat, image), x.shape, list(range(lead, x.rank)))

    def better(
        b: HloWriter, value: HloValue, place: HloValue, other: HloValue, other_place: HloValue
    ) -> tuple[HloValue, HloValue]:
        wins = b.compare("GT", other, value)
        ties = b.compare("EQ", other, value)
        if value.dtype.is_float:
            wins = b.binary("or", wins, b.compare("NE", other, other))
        take = b.binary("or", wins, b.binary("and", ties, b.compare("LT", other_place, place)))
        return b.select(take, other, value), b.select(take, other_place, place)

    inits = (lowest, at.constant(2**31 - 1, S32))
    found = at.reduce_several_windows((x, places), inits, window, better)
    return values, at.convert(found[1], S64)


@_lowers_by_rank({
    2: aten.max_pool2d_with_indices_backward.default,
    3: aten.max_pool3d_with_indices_backward.default,
})  # fmt: skip
def _max_pool_backward(
    at: OperatorCall,
    grad: HloValue,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | int,
    dilation: Sequence[int] | int,
    ceil_mode: bool,
    indices: HloValue,
    *,
    rank: int,
) -> HloValue:
    """Each gradient added where the greatest element of its window was."""
    lead = x.rank - rank
    count, found = product(x.shape[:lead]), product(grad.shape[lead:])
    flat = at.reshape(at.wide(grad), (count, found))
    places = at.reshape(at.convert(indices, S32), (count, found, 1))
    zeros = at.splat(0, TensorType(flat.dtype, (count, product(x.shape[lead:]))))
    put = at.scatter(zeros, places, flat, [1], [], "add", batch=[0])
    return at.finished(put)


@lowers(aten.avg_pool2d.default)
def _avg_pool2d(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> HloValue:
    return _average(at, x, 2, (size, stride, padding), count_padding, divisor)


@lowers(aten.avg_pool1d.default)
def _avg_pool1d(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> HloValue:
    return _average(at, x, 1, (size, stride, padding), count_padding, None)


@lowers(aten.avg_pool3d.default)
def _avg_pool3d(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> HloValue:
    return _average(at, x, 3, (size, stride, padding), count_padding, divisor)


def _average(
    at: OperatorCall,
    x: HloValue,
    rank: int,
    geometry: tuple[Any, Any, Any],
    count_padding: bool,
    divisor: int | None,
) -> HloValue:
    """Sums over windows, divided by how many elements each has."""
    size, stride, padding = geometry
    window = _window(x, rank, size, stride, padding, 1, at.result.shape)
    wide = at.wide(x)
    total = at.reduce_window("add", wide, at.constant(0, wide.dtype), window)
    counts = _window_counts(x, rank, window, count_padding, divisor)
    places = list(range(x.rank - rank, x.rank))
    shares = at.broadcast(at.constant(counts, total.dtype), total.shape, places)
    return at.finished(at.divide(total, shares))


def _window_counts(
    x: HloValue, rank: int, window: Window, count_padding: bool, divisor: int | None
) -> np.ndarray:
    """How many elements each position of a window has, or the divisor everywhere."""
    lead = x.rank - rank
    positions = window.positions(x.shape)[lead:]
    if divisor is not None:
        return np.full(positions, divisor, np.float32)
    counts = np.ones((), np.float32)
    for d, extent in enumerate(positions, lead):
        low = window.low[d] if count_padding else 0
        starts = np.arange(extent) * window.stride[d] - window.low[d]
        ends = np.minimum(starts + window.size[d], x.shape[d] + low)
        inside = ends - np.maximum(starts, -low)
        counts = np.multiply.outer(counts, inside.astype(np.float32))
    return counts


@_lowers_by_rank({2: aten.avg_pool2d_backward.default, 3: aten.avg_pool3d_backward.default})
def _avg_pool_backward(
    at: OperatorCall,
    grad: HloValue,
    x: HloValue,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | int,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
    *,
    rank: int,
) -> HloValue:
    """Each gradient, divided by its window's count, added to all elements of the window."""
    window = _window(x, rank, size, stride, padding, 1, grad.shape)
    wide = at.wide(grad)
    lead = x.rank - rank
    counts = at.constant(_window_counts(x, rank, window, count_padding, divisor), wide.dtype)
    shares = at.divide(wide, at.broadcast(counts, wide.shape, list(range(lead, x.rank))))
    low, high, interior = [0] * x.rank, [0] * x.rank, [0] * x.rank
    for d in range(lead, x.rank):
        interior[d] = window.stride[d] - 1
        low[d] = window.size[d] - 1 - window.low[d]
        covered = (grad.shape[d] - 1) * window.stride[d] + 1
        high[d] = x.shape[d] + window.size[d] - 1 - low[d] - covered
    zero = at.constant(0, wide.dtype)
    spread = at.pad(shares, zero, low, high, interior)
    ones, none = (1,) * x.rank, (0,) * x.rank
    over = Window(window.size, ones, none, none)
    return at.finished(at.reduce_window("add", spread, zero, over))


@lowers(aten.col2im.default)
def _col2im(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> HloValue:
    """Windows laid back over an image, where they overlap added up."""
    *outer, columns, _ = x.shape
    channels = columns // product(kernel)
    geometry = list(zip(size, kernel, dilation, padding, stride, strict=True))
    places = [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, d, p, t in geometry]
    wide = at.reshape(at.wide(x), (*outer, channels, *kernel, *places))
    lead = len(outer) + 1
    zero = at.constant(0, wide.dtype)
    total = at.splat(0, TensorType(wide.dtype, (*outer, channels, *size)))
    for row, column in np.ndindex(*kernel):
        part = at.slice_dimension(wide, lead, row, row + 1)
        part = at.slice_dimension(part, lead + 1, column, column + 1)
        part = at.reshape(part, (*outer, channels, *places))
        low, high, interior = [0] * part.rank, [0] * part.rank, [0] * part.rank
        for axis, offset in enumerate((row, column)):
            extent, _, d, p, t = geometry[axis]
            low[lead + axis] = offset * d - p
            interior[lead + axis] = t - 1
            covered = (places[axis] - 1) * t + 1
            high[lead + axis] = extent - low[lead + axis] - covered
        total = at.add(total, at.pad(part, zero, low, high, interior))
    return at.finished(total)


# --- resizing, as products with matrices ---------------------------------------------------------


def _along_dimensions(
    at: OperatorCall, x: HloValue, matrices: Sequence[np.ndarray], *, transposed: bool = False
) -> HloValue:
    """The last dimensions of x each multiplied by a matrix [new extent, old extent]."""
    wide = at.wide(x)
    first = x.rank - len(matrices)
    for d, matrix in enumerate(matrices, first):
        used = matrix.T if transposed else matrix
        if used.shape[0] == used.shape[1] and np.array_equal(used, np.eye(len(used))):
            continue
        product_ = at.dot(wide, at.constant(np.ascontiguousarray(used), wide.dtype), (d, 1))
        order = list(range(x.rank - 1))
        order.insert(d, x.rank - 1)
        wide = at.transpose(product_, order)
    return at.finished(wide)


def _adaptive(extents: Sequence[int], sizes: Sequence[int]) -> list[np.ndarray]:
    """Matrices of averages over parts of each dimension, which may overlap by one."""
    found = []
    for extent, size in zip(extents, sizes, strict=True):
        matrix = np.zeros((size, extent), np.float32)
        for place in range(size):
            start, end = place * extent // size, -(-(place + 1) * extent // size)
            matrix[place, start:end] = 1 / (end - start)
        found.append(matrix)
    return found


@lowers(
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten.adaptive_avg_pool1d.default,
)
def _adaptive_avg_pool(at: OperatorCall, x: HloValue, size: Sequence[int]) -> HloValue:
    rank = len(size)
    spatial = x.shape[-rank:]
    if all(each == 1 for each in size):
        wide = at.wide(x)
        total = at.sum(wide, list(range(x.rank - rank, x.rank)))
        return at.finished(at.divide(total, at.filled_like(product(spatial), total)))
    return _along_dimensions(at, x, _adaptive(spatial, size))


@_lowers_by_rank({
    2: aten._adaptive_avg_pool2d_backward.default, 3: aten._adaptive_avg_pool3d_backward.default
})  # fmt: skip
def _adaptive_avg_pool_backward(
    at: OperatorCall, grad: HloValue, x: HloValue, *, rank: int
) -> HloValue:
    matrices = _adaptive(x.shape[-rank:], grad.shape[-rank:])
    return _along_dimensions(at, grad, matrices, transposed=True)


@lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def _replication_pad_backward(
    at: OperatorCall, grad: HloValue, x: HloValue, padding: Sequence[int]
) -> HloValue:
    """The gradients of an element's copies, added up; padding begins with the last dimension."""
    lead = x.rank - len(padding) // 2
    lows = list(padding[::2])[::-1]
    geometry = zip(x.shape[lead:], grad.shape[lead:], lows, strict=True)
    matrices = [
        np.eye(extent, dtype=np.float32)[np.clip(np.arange(size) - low, 0, extent - 1)]
        for extent, size, low in geometry
    ]
    return _along_dimensions(at, grad, matrices, transposed=True)


def _nearest(extent: int, size: int, scale: float | None) -> np.ndarray:
    step = 1 / scale if scale else extent / size
    places = np.minimum(
        np.floor(np.arange(size, dtype=np.float32) * np.float32(step)), extent - 1
    ).astype(int)
    matrix: np.ndarray = np.eye(extent, dtype=np.float32)[places]
    return matrix


def _linear(extent: int, size: int, scale: float | None, align_corners: bool) -> np.ndarray:
    """The matrix of linear interpolation from one extent to another."""
    places = np.arange(size, dtype=np.float64)
    if align_corners:
        places *= (extent - 1) / (size - 1) if size > 1 else 0
    else:
        places = np.maximum((places + 0.5) * (1 / scale if scale else extent / size) - 0.5, 0)
    low = np.minimum(np.floor(places).astype(int), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    share = (places - low)[:, None]
    identity = np.eye(extent)
    matrix: np.ndarray = identity[low] * (1 - share) + identity[high] * share
    return matrix.astype(np.float32)


def _padded(scales: Sequence[float | None], rank: int) -> Sequence[float | None]:
    """Scales of all dimensions, of which a call leaves out those that are none."""
    return [*scales, *[None] * (rank - len(scales))]


def _scales(scales: Sequence[float] | None, rank: int) -> Sequence[float | None]:
    return [None] * rank if scales is None else scales


@lowers(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
def _upsample_nearest(
    at: OperatorCall, x: HloValue, size: Sequence[int] | None, scales: Sequence[float] | None = None
) -> HloValue:
    rank = x.rank - 2
    found = at.result.shape[2:]
    given = zip(x.shape[2:], found, _scales(scales, rank), strict=True)
    matrices = [_nearest(*each) for each in given]
    for d, matrix in enumerate(matrices, 2):
        places = at.constant(matrix.argmax(1)[:, None], S32)
        x = at.gather(x, places, [d], [n for n in range(x.rank) if n != d])
    return x


@lowers(aten.upsample_bilinear2d.vec, aten.upsample_linear1d.vec, aten.upsample_trilinear3d.vec)
def _upsample_linear(
    at: OperatorCall,
    x: HloValue,
    size: Sequence[int] | None,
    align_corners: bool,
    scales: Sequence[float] | None = None,
) -> HloValue:
    rank = x.rank - 2
    given = zip(x.shape[2:], at.result.shape[2:], _scales(scales, rank), strict=True)
    return _along_dimensions(at, x, [_linear(*each, align_corners) for each in given])


@lowers(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
)
def _upsample_nearest_backward(
    at: OperatorCall,
    grad: HloValue,
    size: Sequence[int],
    given: Sequence[int],
    *scales: float | None,
) -> HloValue:
    pairs = zip(given[2:], size, _padded(scales, len(size)), strict=True)
    return _along_dimensions(at, grad, [_nearest(*each) for each in pairs], transposed=True)


@lowers(
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_linear1d_backward.default,
    aten.upsample_trilinear3d_backward.default,
)
def _upsample_linear_backward(
    at: OperatorCall,
    grad: HloValue,
    size: Sequence[int],
    given: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> HloValue:
    pairs = zip(given[2:], size, _padded(scales, len(size)), strict=True)
    matrices = [_linear(*each, align_corners) for each in pairs]
    return _along_dimensions(at, grad, matrices, transposed=True)


# --- sampling at coordinates ---------------------------------------------------------------------

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1


@lowers(aten.grid_sampler_2d.default)
def _grid_sampler(
    at: OperatorCall, x: HloValue, grid: HloValue, mode: int, padding: int, align_corners: bool
) -> HloValue:
    """The image at coordinates from -1 to 1, from its nearest or four nearest elements."""
    if mode not in (_BILINEAR, _NEAREST):
        raise UnsupportedOperator(
            opcode="grid_sampler_2d with bicubic interpolation", nearest="", loc=at.computation.loc
        )
    wide, coordinates = at.wide(x), at.wide(grid)
    places = []
    for axis, extent in ((0, x.shape[3]), (1, x.shape[2])):
        part = at.slice_dimension(coordinates, 3, axis, axis + 1)
        part = at.reshape(part, part.shape[:3])
        places.append(_in_pixels(at, part, extent, padding, align_corners))
    column, row = places
    if mode == _NEAREST:
        row, column = (at.unary("round-nearest-even", each) for each in (row, column))
        return at.finished(_pixels(at, wide, row, column))
    total = None
    top, left = at.unary("floor", row), at.unary("floor", column)
    for down in (0, 1):
        for right in (0, 1):
            y, across = (
                at.add(top, at.filled_like(down, top)),
                at.add(left, at.filled_like(right, left)),
            )
            share = at.multiply(_nearness(at, row, y), _nearness(at, column, across))
            found = _pixels(at, wide, y, across)
            part = at.multiply(found, at.broadcast(share, found.shape, (0, 2, 3)))
            total = part if total is None else at.add(total, part)
    assert total is not None
    return at.finished(total)


def _nearness(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    return at.subtract(at.filled_like(1, x), at.unary("abs", at.subtract(x, y)))


def _in_pixels(
    at: OperatorCall, x: HloValue, extent: int, padding: int, align_corners: bool
) -> HloValue:
    """Coordinates from -1 to 1 as places in an extent, kept inside where padding says how."""
    one = at.filled_like(1, x)
    if align_corners:
        found = at.multiply(at.add(x, one), at.filled_like((extent - 1) / 2, x))
    else:
        scaled = at.multiply(at.add(x, one), at.filled_like(extent, x))
        found = at.multiply(at.subtract(scaled, one), at.filled_like(0.5, x))
    if padding == _ZEROS:
        return found
    if padding != _BORDER:
        low, high = (0, 2 * (extent - 1)) if align_corners else (-1, 2 * extent - 1)
        found = _reflected(at, found, low / 2, high / 2)
    return at.binary(
        "minimum", at.binary("maximum", found, at.filled_like(0, x)), at.filled_like(extent - 1, x)
    )


def _reflected(at: OperatorCall, x: HloValue, low: float, high: float) -> HloValue:
    """Places beyond the borders, reflected at these as often as it takes."""
    span = high - low
    if span <= 0:
        return at.filled_like(0, x)
    away = at.unary("abs", at.subtract(x, at.filled_like(low, x)))
    rest = at.binary("remainder", away, at.filled_like(span, x))
    turns = at.unary("floor", at.divide(away, at.filled_like(span, x)))
    is_odd = at.compare_to("EQ", at.binary("remainder", turns, at.filled_like(2, x)), 1)
    forward = at.add(rest, at.filled_like(low, x))
    return at.select(is_odd, at.subtract(at.filled_like(high, x), rest), forward)


def _pixels(at: OperatorCall, x: HloValue, row: HloValue, column: HloValue) -> HloValue:
    """x [batch, channels, rows, columns] at places [batch, ...]; zero outside of it."""
    inside = None
    indices = []
    for place, extent in ((row, x.shape[2]), (column, x.shape[3])):
        fits = at.binary("and", at.compare_to("GE", place, 0), at.compare_to("LT", place, extent))
        inside = fits if inside is None else at.binary("and", inside, fits)
        bounded = at.binary("maximum", place, at.filled_like(0, place))
        bounded = at.binary("minimum", bounded, at.filled_like(extent - 1, place))
        indices.append(at.reshape(at.convert(bounded, S32), (*place.shape, 1)))
    assert inside is not None
    column_of = at.concatenate(indices, row.rank)
    found = at.gather(x, column_of, [2, 3], [row.rank], batch=[0])
    found = at.transpose(found, [0, 3, 1, 2])
    share = at.broadcast(at.convert(inside, F32), found.shape, (0, 2, 3))
    return at.multiply(found, share)
