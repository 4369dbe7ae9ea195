"""Pooling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glia.base.dtype import S32, S64
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import HloWriter, Window, product
from glia.plugins.torch.aten.operator_table import Lowering, OperatorCall, lowers, per_dimension
from glia.plugins.torch.aten.resizing import along_dimensions

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
    ones, none = (1,) * lead, (0,) * lead
    low = (*none, *padding)
    window = Window((*ones, *size), (*ones, *stride), low, low, dilation=(*ones, *dilation))
    return window.reaching(x.shape, result)


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
    found: HloValue = _added_to_greatest(at, grad, x, indices, rank=rank)
    return found


@_lowers_by_rank({
    2: aten.adaptive_max_pool2d_backward.default, 3: aten.adaptive_max_pool3d_backward.default
})  # fmt: skip
def _added_to_greatest(
    at: OperatorCall, grad: HloValue, x: HloValue, indices: HloValue, *, rank: int
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
    return along_dimensions(at, x, _adaptive(spatial, size))


@_lowers_by_rank({
    2: aten._adaptive_avg_pool2d_backward.default, 3: aten._adaptive_avg_pool3d_backward.default
})  # fmt: skip
def _adaptive_avg_pool_backward(
    at: OperatorCall, grad: HloValue, x: HloValue, *, rank: int
) -> HloValue:
    matrices = _adaptive(x.shape[-rank:], grad.shape[-rank:])
    return along_dimensions(at, grad, matrices, transposed=True)


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
    return along_dimensions(at, grad, matrices, transposed=True)
