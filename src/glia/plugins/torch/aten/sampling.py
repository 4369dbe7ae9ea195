"""Images sampled at coordinates that are data.

Source: the documentation of `torch.nn.functional.grid_sample`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from glia.base.dtype import S32
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.torch.aten.operator_table import OperatorCall, lowers

aten = torch.ops.aten

_BILINEAR, _NEAREST = 0, 1  # any other is bicubic
_ZEROS, _BORDER = 0, 1  # any other is reflection
_CUBIC = -0.75  # the slope of the cubic convolution kernel at distance 1


@dataclass(frozen=True)
class _Tap:
    """An element of one dimension that a sample is made of.

    `share` is its part of the sample, `slope` how much that grows with the coordinate; all have the
    shape of the samples, [batch, ...]. A slope of None is zero.
    """

    place: HloValue
    share: HloValue
    slope: HloValue | None


@dataclass(frozen=True)
class _Padding:
    """What stands for elements beyond the borders of a dimension."""

    at: OperatorCall
    extent: int
    mode: int
    align_corners: bool

    def inside(self, x: HloValue) -> tuple[HloValue, HloValue | None]:
        """Places, moved inside where that is how one pads, and the slope of that."""
        if self.mode == _ZEROS:
            return x, None
        at, slope = self.at, None
        if self.mode != _BORDER:
            x, slope = self._reflected(x)
        last = self.extent - 1
        free = at.binary("and", at.compare_to("GT", x, 0), at.compare_to("LT", x, last))
        moves = at.convert(free, x.dtype)
        x = at.binary("maximum", x, at.filled_like(0, x))
        x = at.binary("minimum", x, at.filled_like(last, x))
        return x, moves if slope is None else at.multiply(moves, slope)

    def _reflected(self, x: HloValue) -> tuple[HloValue, HloValue]:
        """Places beyond the borders, reflected at these as often as it takes."""
        at, extent = self.at, self.extent
        low, high = (0, extent - 1) if self.align_corners else (-0.5, extent - 0.5)
        if high <= low:
            return (at.filled_like(0, x),) * 2
        span = at.filled_like(high - low, x)
        offset = at.subtract(x, at.filled_like(low, x))
        away = at.unary("abs", offset)
        rest = at.binary("remainder", away, span)
        turns = at.unary("floor", at.divide(away, span))
        is_odd = at.compare_to("EQ", at.binary("remainder", turns, at.filled_like(2, x)), 1)
        forward = at.add(rest, at.filled_like(low, x))
        backward = at.subtract(at.filled_like(high, x), rest)
        ones = at.filled_like(1, x)
        sign = at.select(at.compare_to("LT", offset, 0), at.unary("negate", ones), ones)
        slope = at.select(is_odd, at.unary("negate", sign), sign)
        return at.select(is_odd, backward, forward), slope


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def _grid_sampler(
    at: OperatorCall, x: HloValue, grid: HloValue, mode: int, padding: int, align_corners: bool
) -> HloValue:
    """The image at coordinates from -1 to 1, from its elements near each."""
    wide = at.wide(x)
    total = at.splat(0, TensorType(wide.dtype, at.result.shape))
    for taps in itertools.product(*_taps(at, x, grid, mode, padding, align_corners)):
        share = _multiplied(at, [_inside(at, wide, taps), *(tap.share for tap in taps)])
        found = _pixels(at, wide, taps)
        total = at.add(total, at.multiply(found, _over_channels(at, share, found.shape)))
    return at.finished(total)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def _grid_sampler_backward(
    at: OperatorCall,
    grad: HloValue,
    x: HloValue,
    grid: HloValue,
    mode: int,
    padding: int,
    align_corners: bool,
    mask: Sequence[bool],
) -> tuple[HloValue | None, HloValue | None]:
    taps = _taps(at, x, grid, mode, padding, align_corners)
    wide, weights = at.wide(x), at.wide(grad)
    image = _image_gradient(at, wide, weights, taps) if mask[0] else None
    coordinates = _grid_gradient(at, wide, weights, taps) if mask[1] else None
    return (
        None if image is None else at.convert(image, x.dtype),
        None if coordinates is None else at.convert(coordinates, grid.dtype),
    )


def _image_gradient(
    at: OperatorCall, x: HloValue, grad: HloValue, taps: Sequence[Sequence[_Tap]]
) -> HloValue:
    """Each sample's gradient, added by shares to the elements that it is made of."""
    batch, channels, *extents = x.shape
    rank, places, parts = len(extents), [], []
    for chosen in itertools.product(*taps):
        share = _multiplied(at, [_inside(at, x, chosen), *(tap.share for tap in chosen)])
        part = at.multiply(grad, _over_channels(at, share, grad.shape))
        part = at.transpose(part, (0, *range(2, part.rank), 1))
        parts.append(at.reshape(part, (batch, _count(share), channels)))
        places.append(at.reshape(_indices(at, x, chosen), (batch, _count(share), rank)))
    zeros = at.splat(0, TensorType(grad.dtype, (batch, *extents, channels)))
    put = at.scatter(
        zeros, at.concatenate(places, 1), at.concatenate(parts, 1),
        list(range(1, rank + 1)), [2], "add", batch=[0],
    )  # fmt: skip
    return at.transpose(put, (0, rank + 1, *range(1, rank + 1)))


def _count(samples: HloValue) -> int:
    """The number of samples of an image."""
    return math.prod(samples.shape[1:])


def _grid_gradient(
    at: OperatorCall, x: HloValue, grad: HloValue, taps: Sequence[Sequence[_Tap]]
) -> HloValue:
    """How much the samples, weighted by their gradients, grow with each coordinate."""
    shape = (grad.shape[0], *grad.shape[2:])
    totals = [at.splat(0, TensorType(grad.dtype, shape)) for _ in taps]
    for chosen in itertools.product(*taps):
        products = at.multiply(grad, _pixels(at, x, chosen))
        weight = at.multiply(at.sum(products, [1]), _inside(at, x, chosen))
        for axis, tap in enumerate(chosen):
            if tap.slope is not None:
                others = [each.share for each in chosen[:axis] + chosen[axis + 1 :]]
                part = _multiplied(at, [weight, tap.slope, *others])
                totals[axis] = at.add(totals[axis], part)
    columns = [at.reshape(each, (*shape, 1)) for each in reversed(totals)]
    return at.concatenate(columns, len(shape))


# --- the elements that samples are made of -------------------------------------------------------


def _taps(
    at: OperatorCall, x: HloValue, grid: HloValue, mode: int, padding: int, align_corners: bool
) -> list[tuple[_Tap, ...]]:
    """The taps of each dimension of an image; a grid has its last dimension's coordinates first."""
    wide, found = at.wide(grid), []
    last = wide.rank - 1
    for axis, extent in enumerate(reversed(x.shape[2:])):
        part = at.slice_dimension(wide, last, axis, axis + 1)
        coordinates = at.reshape(part, wide.shape[:-1])
        border = _Padding(at, extent, padding, align_corners)
        found.append(tuple(_taps_of(at, coordinates, border, mode)))
    return found[::-1]


def _taps_of(at: OperatorCall, x: HloValue, border: _Padding, mode: int) -> Iterator[_Tap]:
    """The taps of a dimension at coordinates from -1 to 1."""
    one = at.filled_like(1, x)
    scale = at.filled_like((border.extent - border.align_corners) / 2, x)
    place = at.multiply(at.add(x, one), scale)
    if not border.align_corners:
        place = at.subtract(place, at.filled_like(0.5, x))
    if mode == _NEAREST:
        kept, _ = border.inside(place)
        yield _Tap(at.unary("round-nearest-even", kept), one, None)
    elif mode == _BILINEAR:
        kept, moves = border.inside(place)
        low = at.unary("floor", kept)
        share = at.subtract(kept, low)
        slope = scale if moves is None else at.multiply(scale, moves)
        yield _Tap(low, at.subtract(one, share), at.unary("negate", slope))
        yield _Tap(at.add(low, one), share, slope)
    else:
        low = at.unary("floor", place)
        share = at.subtract(place, low)
        for offset in (-1, 0, 1, 2):
            kept, _ = border.inside(at.add(low, at.filled_like(offset, x)))
            weight, slope = _cubic(at, share, offset)
            yield _Tap(kept, weight, at.multiply(slope, scale))


def _cubic(at: OperatorCall, share: HloValue, offset: int) -> tuple[HloValue, HloValue]:
    """The cubic convolution kernel at share - offset, and its slope there."""
    away = at.subtract(share, at.filled_like(offset, share))
    sign = 1 if offset <= 0 else -1  # of what lies between 0 and 1 less the offset
    distance = at.multiply(at.filled_like(sign, away), away)
    a = _CUBIC
    near, far = (a + 2, -(a + 3), 0, 1), (a, -5 * a, 8 * a, -4 * a)
    terms = near if offset in (0, 1) else far
    slopes = [sign * power * term for power, term in zip((3, 2, 1), terms, strict=False)]
    return _polynomial(at, distance, terms), _polynomial(at, distance, slopes)


def _polynomial(at: OperatorCall, x: HloValue, terms: Sequence[float]) -> HloValue:
    """The polynomial of x with these coefficients, the highest power first."""
    total = at.filled_like(terms[0], x)
    for term in terms[1:]:
        total = at.add(at.multiply(total, x), at.filled_like(term, x))
    return total


def _multiplied(at: OperatorCall, factors: Sequence[HloValue]) -> HloValue:
    product, *rest = factors
    for each in rest:
        product = at.multiply(product, each)
    return product


def _over_channels(at: OperatorCall, x: HloValue, shape: Sequence[int]) -> HloValue:
    """A number of each sample, for every channel of an image."""
    return at.broadcast(x, shape, (0, *range(2, len(shape))))


def _inside(at: OperatorCall, x: HloValue, taps: Sequence[_Tap]) -> HloValue:
    """1 where taps are elements of x [batch, channels, ...], else 0."""
    bounds = []
    for tap, extent in zip(taps, x.shape[2:], strict=True):
        bounds.append(at.compare_to("GE", tap.place, 0))
        bounds.append(at.compare_to("LT", tap.place, extent))
    first, *rest = bounds
    for each in rest:
        first = at.binary("and", first, each)
    return at.convert(first, x.dtype)


def _indices(at: OperatorCall, x: HloValue, taps: Sequence[_Tap]) -> HloValue:
    """The taps' places, or the nearest ones inside: [batch, ..., dimensions]."""
    columns = []
    for tap, extent in zip(taps, x.shape[2:], strict=True):
        low, high = at.filled_like(0, tap.place), at.filled_like(extent - 1, tap.place)
        bounded = at.binary("minimum", at.binary("maximum", tap.place, low), high)
        columns.append(at.reshape(at.convert(bounded, S32), (*bounded.shape, 1)))
    return at.concatenate(columns, taps[0].place.rank)


def _pixels(at: OperatorCall, x: HloValue, taps: Sequence[_Tap]) -> HloValue:
    """The elements of x [batch, channels, ...] at taps, or the nearest to those outside."""
    rank = x.rank - 2
    found = at.gather(x, _indices(at, x, taps), list(range(2, x.rank)), [rank + 1], batch=[0])
    return at.transpose(found, [0, rank + 1, *range(1, rank + 1)])
