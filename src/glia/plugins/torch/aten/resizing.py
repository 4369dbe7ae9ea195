"""Images of another size: each dimension multiplied by a matrix of weights.

How coordinates and weights come about is PyTorch's documentation of `interpolate`, and of the
operators named `_aa` (antialias) Pillow's resampling, which that follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from glia.base.dtype import F32, S32, integer_limits
from glia.plugins.hlo_module import HloValue
from glia.plugins.torch.aten.operator_table import OperatorCall, lowers

aten = torch.ops.aten

Scales = Sequence[float] | float | None  # for all dimensions in a sequence, or for one


@dataclass(frozen=True)
class Sides:
    """The extents of a dimension before and after, and how places of one are found in the other.

    `scale` is what the caller asked for, if it named that and not the extent after.
    """

    extent: int
    size: int
    scale: float | None
    align_corners: bool = False

    @property
    def step(self) -> float:
        """Elements before for each element after."""
        if self.align_corners:
            return (self.extent - 1) / (self.size - 1) if self.size > 1 else 0.0
        return 1 / self.scale if self.scale else self.extent / self.size

    def places(self) -> np.ndarray:
        """Where the elements after lie among those before."""
        after = np.arange(self.size, dtype=np.float64)
        found: np.ndarray = after * self.step
        return found if self.align_corners else (after + 0.5) * self.step - 0.5


Weights = Callable[[Sides], np.ndarray]


def along_dimensions(
    at: OperatorCall, x: HloValue, matrices: Sequence[np.ndarray], *, transposed: bool = False
) -> HloValue:
    """The last dimensions of x each multiplied by a matrix [new extent, old extent].

    Integers are rounded after each, the last dimension first, as PyTorch does; it has weights of
    fewer bits, so that an element may differ by one.
    """
    wide = at.wide(x) if x.dtype.is_float else at.convert(x, F32)
    first = x.rank - len(matrices)
    for d, matrix in reversed(list(enumerate(matrices, first))):
        used = matrix.T if transposed else matrix
        if used.shape[0] == used.shape[1] and np.array_equal(used, np.eye(len(used))):
            continue
        product = at.dot(wide, at.constant(np.ascontiguousarray(used), wide.dtype), (d, 1))
        order = list(range(x.rank - 1))
        order.insert(d, x.rank - 1)
        wide = at.transpose(product, order)
        if not x.dtype.is_float:
            wide = _rounded(at, wide)
    return at.finished(wide)


def _rounded(at: OperatorCall, x: HloValue) -> HloValue:
    """Whole numbers that the result's dtype has, next to x."""
    limits = integer_limits(at.result.dtype.numpy)
    low, high = (at.filled_like(float(each), x) for each in (limits.min, limits.max))
    return at.binary("minimum", at.binary("maximum", at.unary("round-nearest-even", x), low), high)


# --- weights -------------------------------------------------------------------------------------


def _nearest(sides: Sides) -> np.ndarray:
    """The element at the place before, rounded down."""
    step = np.float32(sides.step)
    return _picked(sides, np.floor(np.arange(sides.size, dtype=np.float32) * step))


def _nearest_exact(sides: Sides) -> np.ndarray:
    """The element in which the middle of each element after lies."""
    step = np.float32(sides.step)
    return _picked(sides, np.floor((np.arange(sides.size, dtype=np.float32) + 0.5) * step))


def _picked(sides: Sides, places: np.ndarray) -> np.ndarray:
    matrix: np.ndarray = np.eye(sides.extent, dtype=np.float32)[_inside(sides, places)]
    return matrix


def _inside(sides: Sides, places: np.ndarray) -> np.ndarray:
    """Places as indices, those beyond a border at the border."""
    found: np.ndarray = np.clip(places, 0, sides.extent - 1).astype(int)
    return found


def _linear(sides: Sides) -> np.ndarray:
    """Shares of the two elements beside each place."""
    places = np.maximum(sides.places(), 0)
    low = _inside(sides, np.floor(places))
    return _weighted(sides, low, [1 - (places - low), places - low])


def _cubic(sides: Sides) -> np.ndarray:
    """Shares of the four elements around each place."""
    places = sides.places()
    first = np.floor(places)
    distances = [np.abs(places - first - offset) for offset in (-1, 0, 1, 2)]
    return _weighted(sides, first - 1, [_cubic_kernel(each, -0.75) for each in distances])


def _weighted(sides: Sides, first: np.ndarray, shares: Sequence[np.ndarray]) -> np.ndarray:
    """The matrix of shares of elements in a row, of which each row's first is given."""
    matrix = np.zeros((sides.size, sides.extent))
    for offset, share in enumerate(shares):
        np.add.at(matrix, (np.arange(sides.size), _inside(sides, first + offset)), share)
    return matrix.astype(np.float32)


def _cubic_kernel(distance: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel; a is its slope at distance 1."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    found: np.ndarray = np.where(distance < 1, near, np.where(distance < 2, far, 0))
    return found


def _triangle(distance: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.maximum(1 - distance, 0)
    return found


def _antialiased(kernel: Callable[[np.ndarray], np.ndarray], radius: int) -> Weights:
    """Weights of a kernel that is as much wider as the image becomes smaller."""

    def weights(sides: Sides) -> np.ndarray:
        widening = max(sides.step, 1.0)
        matrix = np.zeros((sides.size, sides.extent))
        for place in range(sides.size):
            center = (place + 0.5) * sides.step
            reach = radius * widening
            start = max(math.trunc(center - reach + 0.5), 0)
            end = min(math.trunc(center + reach + 0.5), sides.extent)
            distance = np.abs(np.arange(start, end) - center + 0.5) / widening
            share = kernel(distance)
            matrix[place, start:end] = share / share.sum()
        return matrix.astype(np.float32)

    return weights


# --- operators -----------------------------------------------------------------------------------


def _scales(given: Sequence[Scales], rank: int) -> list[float | None]:
    """The scale of each dimension: given one by one, or all in a sequence; None where none is."""
    flat: list[float | None] = []
    for each in given:
        flat += list(each) if isinstance(each, Sequence) else [each]
    return [*flat, *[None] * (rank - len(flat))]


def _matrices(
    weights: Weights,
    before: Sequence[int],
    after: Sequence[int],
    scales: Sequence[Scales],
    align_corners: bool = False,
) -> list[np.ndarray]:
    """The weights of each dimension."""
    given = zip(before, after, _scales(scales, len(before)), strict=True)
    return [weights(Sides(*each, align_corners)) for each in given]


def _enter_picking(name: str, weights: Weights) -> None:
    """Enter an operator that picks elements, and its gradient."""
    packet, backward = getattr(aten, name), getattr(aten, f"{name}_backward")

    @lowers(packet.vec, packet.default)
    def resized(at: OperatorCall, x: HloValue, size: object, *scales: Scales) -> HloValue:
        for d, matrix in enumerate(_matrices(weights, x.shape[2:], at.result.shape[2:], scales), 2):
            places = at.constant(matrix.argmax(1)[:, None], S32)
            x = at.gather(x, places, [d], [n for n in range(x.rank) if n != d])
        return x

    @lowers(backward.default)
    def gradient(
        at: OperatorCall, grad: HloValue, size: object, given: Sequence[int], *scales: Scales
    ) -> HloValue:
        matrices = _matrices(weights, given[2:], grad.shape[2:], scales)
        return along_dimensions(at, grad, matrices, transposed=True)


def _enter_mixing(name: str, weights: Weights) -> None:
    """Enter an operator that adds up shares of elements, and its gradient."""
    packet, backward = getattr(aten, name), getattr(aten, f"{name}_backward", None)

    @lowers(packet.vec, packet.default)
    def resized(
        at: OperatorCall, x: HloValue, size: object, align_corners: bool, *scales: Scales
    ) -> HloValue:
        shapes = x.shape[2:], at.result.shape[2:]
        return along_dimensions(at, x, _matrices(weights, *shapes, scales, align_corners))

    def gradient(
        at: OperatorCall,
        grad: HloValue,
        size: object,
        given: Sequence[int],
        align_corners: bool,
        *scales: Scales,
    ) -> HloValue:
        matrices = _matrices(weights, given[2:], grad.shape[2:], scales, align_corners)
        return along_dimensions(at, grad, matrices, transposed=True)

    if backward is not None:  # the newest have none in PyTorch either
        lowers(backward.default)(gradient)


for _rank in (1, 2, 3):
    _enter_picking(f"upsample_nearest{_rank}d", _nearest)
    _enter_picking(f"_upsample_nearest_exact{_rank}d", _nearest_exact)
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _enter_mixing(_name, _linear)
_enter_mixing("upsample_bicubic2d", _cubic)
_enter_mixing("_upsample_bilinear2d_aa", _antialiased(_triangle, 1))
_enter_mixing("_upsample_bicubic2d_aa", _antialiased(lambda d: _cubic_kernel(d, -0.5), 2))
if hasattr(aten, "_upsample_lanczos2d_aa"):  # PyTorch 2.9, for torch_xla, has none
    _lanczos = _antialiased(lambda d: np.sinc(d) * np.sinc(d / 3), 3)
    _enter_mixing("_upsample_lanczos2d_aa", _lanczos)
