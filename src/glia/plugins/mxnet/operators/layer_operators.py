"""Layers: products with weights, convolutions, pooling."""

from __future__ import annotations

import math

import numpy as np

from glia.base.dtype import S32
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import Window, product
from glia.plugins.mxnet.operators.operator_table import NodeCall, lowers

_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
MOST_PIXELS = 1 << 20  # of a window or its padding along a dimension
MOST_COUNTS = 1 << 26  # windows whose sizes differ


@lowers("FullyConnected")
def _fully_connected(
    at: NodeCall, x: HloValue, weight: HloValue, bias: HloValue | None = None
) -> HloValue:
    units = at.attributes.integer("num_hidden")
    if at.attributes.flag("flatten", True):
        x = at.reshape(x, (x.shape[0], product(x.shape[1:])))
    at.require(
        weight.shape == (units, x.shape[-1]),
        f"takes a weight of {[units, x.shape[-1]]}, not {list(weight.shape)}",
    )
    found = at.dot(x, weight, (x.rank - 1, 1))
    return _biased(at, found, bias, found.rank - 1)


def _biased(at: NodeCall, x: HloValue, bias: HloValue | None, dimension: int) -> HloValue:
    has_bias = not at.attributes.flag("no_bias", bias is None)
    at.require(has_bias == (bias is not None), "has a bias that its attribute no_bias denies")
    return x if bias is None else at.add(x, at.vector_along(bias, x, dimension))


# --- convolutions --------------------------------------------------------------------------------


def _per_dimension(at: NodeCall, name: str, rank: int, default: int, least: int) -> list[int]:
    """The values of an attribute for the dimensions of an image; one lacking is the default."""
    found = at.attributes.extents(name, ()) or (default,) * rank
    if len(found) != rank or min(found) < least or max(found) > MOST_PIXELS:
        raise at.attributes.refusal(name, f"is not {rank} numbers from {least} to {MOST_PIXELS}")
    return list(found)


def _image_rank(at: NodeCall, x: HloValue) -> int:
    rank = x.rank - 2
    at.require(rank in _LAYOUTS, f"takes images of 1 to 3 dimensions, not {list(x.shape)}")
    at.attributes.fixed("layout", _LAYOUTS[rank])
    return rank


@lowers("Convolution", "Convolution_v1")
def _convolution(
    at: NodeCall, x: HloValue, weight: HloValue, bias: HloValue | None = None
) -> HloValue:
    rank = _image_rank(at, x)
    size = _per_dimension(at, "kernel", rank, 1, 1)
    padding = _per_dimension(at, "pad", rank, 0, 0)
    groups, filters = at.attributes.integer("num_group", 1), at.attributes.integer("num_filter")
    window = Window(
        tuple(size), tuple(_per_dimension(at, "stride", rank, 1, 1)), tuple(padding),
        tuple(padding), dilation=tuple(_per_dimension(at, "dilate", rank, 1, 1)),
    )  # fmt: skip
    _check_groups(at, groups, x.shape[1], filters)
    expected = (filters, x.shape[1] // groups, *size)
    at.require(weight.shape == expected, f"takes a weight of {list(expected)}")
    at.require(min(window.positions(x.shape[2:])) > 0, f"has no place in {list(x.shape)}")
    return _biased(at, at.convolve(x, weight, window, groups=groups), bias, 1)


def _check_groups(at: NodeCall, groups: int, *channels: int) -> None:
    if groups < 1 or any(each % groups or each < 1 for each in channels):
        raise at.attributes.refusal("num_group", f"does not divide {list(channels)} channels")


@lowers("Deconvolution")
def _deconvolution(
    at: NodeCall, x: HloValue, weight: HloValue, bias: HloValue | None = None
) -> HloValue:
    """The gradient of a convolution by its input: x spread by the stride, the kernel turned."""
    rank = _image_rank(at, x)
    size, stride = (
        _per_dimension(at, "kernel", rank, 1, 1),
        _per_dimension(at, "stride", rank, 1, 1),
    )
    padding, extra = _per_dimension(at, "pad", rank, 0, 0), _per_dimension(at, "adj", rank, 0, 0)
    dilation = _per_dimension(at, "dilate", rank, 1, 1)
    groups, filters = at.attributes.integer("num_group", 1), at.attributes.integer("num_filter")
    _check_groups(at, groups, x.shape[1], filters)
    expected = (x.shape[1], filters // groups, *size)
    at.require(weight.shape == expected, f"takes a weight of {list(expected)}")
    low = tuple(d * (k - 1) - p for k, p, d in zip(size, padding, dilation, strict=True))
    window = Window(
        tuple(size), (1,) * rank, low, tuple(a + b for a, b in zip(low, extra, strict=True)),
        x_dilation=tuple(stride), dilation=tuple(dilation), is_reversed=True,
    )  # fmt: skip
    at.require(min(window.positions(x.shape[2:])) > 0, f"has no place in {list(x.shape)}")
    inner, outer = x.shape[1] // groups, filters // groups
    parted = at.reshape(weight, (groups, inner, outer, *size))
    turned = at.transpose(parted, (0, 2, 1, *range(3, 3 + rank)))
    kernel = at.reshape(turned, (filters, inner, *size))
    return _biased(at, at.convolve(x, kernel, window, groups=groups), bias, 1)


# --- pooling -------------------------------------------------------------------------------------


@lowers("Pooling", "Pooling_v1")
def _pooling(at: NodeCall, x: HloValue) -> HloValue:
    rank = _image_rank(at, x)
    kind = at.attributes.choice("pool_type", ("max", "avg", "sum"), "max")
    is_global = at.attributes.flag("global_pool")
    counts_padding = at.attributes.flag("count_include_pad", True)
    convention = at.attributes.choice("pooling_convention", ("valid", "full"), "valid")
    given = _per_dimension(at, "kernel", rank, 1, 1)
    stride, padding = (
        _per_dimension(at, "stride", rank, 1, 1),
        _per_dimension(at, "pad", rank, 0, 0),
    )
    if is_global:
        given, stride, padding = list(x.shape[2:]), [1] * rank, [0] * rank
    at.require(
        all(p < k for p, k in zip(padding, given, strict=True)), "pads by a whole window or more"
    )
    high = [
        _high_padding(at, extent, size, step, low, convention)
        for extent, size, step, low in zip(x.shape[2:], given, stride, padding, strict=True)
    ]
    window = Window((1, 1, *given), (1, 1, *stride), (0, 0, *padding), (0, 0, *high))
    if kind == "max":
        return at.reduce_window("maximum", x, at.lowest(x.dtype), window)
    wide = at.wide(x)
    total = at.reduce_window("add", wide, at.constant(0, wide.dtype), window)
    if kind == "avg":
        total = at.divide(total, _window_counts(at, x, total, window, counts_padding))
    return at.convert(total, x.dtype)


def _high_padding(
    at: NodeCall, extent: int, size: int, stride: int, padding: int, convention: str
) -> int:
    """What lies above an image, so that its windows are those of a convention."""
    room = extent + 2 * padding - size
    at.require(room >= 0, f"has a window of {size} for {extent} elements")
    steps = room // stride if convention == "valid" else math.ceil(room / stride)
    return steps * stride + size - extent - padding


def _window_counts(
    at: NodeCall, x: HloValue, total: HloValue, window: Window, counts_padding: bool
) -> HloValue:
    """How many elements each window has; of its padding at most what lies below it."""
    at.require(product(total.shape[2:]) < MOST_COUNTS, f"has {list(total.shape[2:])} windows")
    counts = np.ones((), np.float64)
    for d, extent in enumerate(x.shape[2:], 2):
        size, stride, low = window.size[d], window.stride[d], window.low[d]
        start = np.arange(total.shape[d]) * stride - low
        end = np.minimum(start + size, extent + low)
        if not counts_padding:
            start, end = np.maximum(start, 0), np.minimum(end, extent)
        counts = np.multiply.outer(counts, np.maximum(end - start, 1))
    if counts.size and (counts == counts.flat[0]).all():
        return at.filled_like(float(counts.flat[0]), total)
    dimensions = list(range(2, x.rank))
    return at.broadcast(at.constant(counts, total.dtype), total.shape, dimensions)


@lowers("UpSampling")
def _up_sampling(at: NodeCall, x: HloValue) -> HloValue:
    """Each pixel repeated along both dimensions."""
    at.attributes.choice("sample_type", ("nearest",))
    at.attributes.fixed("multi_input_mode", "concat")
    factor = at.attributes.integer("scale")
    at.require(x.rank == 4 and factor > 0, f"takes images, not {list(x.shape)}")
    batch, channels, rows, columns = x.shape
    wide = (batch, channels, rows, factor, columns, factor)
    spread = at.broadcast(x, wide, [0, 1, 2, 4])
    return at.reshape(spread, (batch, channels, rows * factor, columns * factor))


# --- tables --------------------------------------------------------------------------------------


@lowers("Embedding")
def _embedding(at: NodeCall, places: HloValue, table: HloValue) -> HloValue:
    """Rows of a table; indices beyond it take its last row."""
    declared = (at.attributes.integer("input_dim"), at.attributes.integer("output_dim"))
    at.attributes.dtype("dtype", table.dtype)
    at.require(table.shape == declared, f"takes a table of {list(declared)}")
    return rows(at, table, places, 0)


def rows(at: NodeCall, x: HloValue, places: HloValue, dimension: int) -> HloValue:
    """Slices of x at indices along a dimension, in its place; those beyond are clipped."""
    at.require(x.shape[dimension] > 0, "takes slices of a tensor without elements")
    indices = at.reshape(at.convert(places, S32), (*places.shape, 1))
    before = list(range(dimension))
    after = list(range(dimension + places.rank, x.rank - 1 + places.rank))
    return at.gather(x, indices, [dimension], [*before, *after])
