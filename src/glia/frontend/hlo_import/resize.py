"""XLA's image-resizing custom calls on [batch, height, width, features]."""

from __future__ import annotations

import numpy as np

from glia.base.dtype import S32
from glia.frontend.hlo_import.module_context import Site
from glia.graph import ops
from glia.graph.ir import Node, TensorType

_SPATIAL = (1, 2)
LARGEST_EXTENT = 2**16


def resize_nearest(site: Site, x: Node, config: str) -> Node:
    """Each result pixel is the source pixel its position falls on."""
    for dimension in _SPATIAL:
        size, target = _extents(site, x, dimension)
        if size != target:
            x = _gather_slices(site, x, dimension, _nearest(size, target, *_options(site, config)))
    return x


def resize_nearest_gradient(site: Site, x: Node, config: str) -> Node:
    """The transpose of `resize_nearest`: each gradient is added to the pixel it came from."""
    for dimension in _SPATIAL:
        size, target = _extents(site, x, dimension)
        if size != target:
            source = _nearest(target, size, *_options(site, config))
            weights = np.arange(target)[:, None] == source[None, :]
            x = _contract(site, x, dimension, weights)
    return x


def resize_bilinear(site: Site, x: Node, config: str) -> Node:
    """Each result pixel is interpolated between its two neighbours in either direction."""
    for dimension in _SPATIAL:
        size, target = _extents(site, x, dimension)
        if size != target:
            position = _positions(size, target, *_options(site, config)).clip(0, size - 1)
            distance = np.abs(position[:, None] - np.arange(size)[None, :])
            x = _contract(site, x, dimension, np.maximum(0, 1 - distance))
    return x


def _options(site: Site, config: str) -> tuple[bool, bool]:
    """(align_corners, half_pixel_centers) from two digits."""
    if config not in ("00", "01", "10"):
        raise site.bad_custom_call(f"backend_config {config[:20]!r}, expected 00, 01 or 10")
    return config[0] == "1", config[1] == "1"


def _extents(site: Site, x: Node, dimension: int) -> tuple[int, int]:
    """The extent of a dimension before and after."""
    declared: TensorType = site.tensor_type
    if len(x.shape) != 4 or len(declared.shape) != 4:
        raise site.bad_custom_call(f"{x.type} to {declared}, expected four dimensions")
    size, target = x.shape[dimension], declared.shape[dimension]
    if not (0 < size <= LARGEST_EXTENT and 0 < target <= LARGEST_EXTENT):
        raise site.bad_custom_call(f"{size} pixels to {target}")
    return size, target


def _positions(size: int, target: int, align_corners: bool, half_pixel: bool) -> np.ndarray:
    """Where in the source each target pixel lies."""
    counts = np.arange(target, dtype=np.float64)
    if align_corners and target > 1:
        return counts * ((size - 1) / (target - 1))
    if half_pixel:
        return (counts + 0.5) * (size / target) - 0.5
    return counts * (size / target)


def _nearest(size: int, target: int, align_corners: bool, half_pixel: bool) -> np.ndarray:
    positions = _positions(size, target, align_corners, half_pixel)
    rounded = np.floor(positions + 0.5) if align_corners or half_pixel else np.floor(positions)
    return rounded.astype(np.int32).clip(0, size - 1)


def _gather_slices(site: Site, x: Node, dimension: int, indices: np.ndarray) -> Node:
    """The slices of x at constant indices of one dimension."""
    sizes = tuple(1 if d == dimension else extent for d, extent in enumerate(x.shape))
    others = tuple(d for d in range(len(x.shape)) if d != dimension)
    where = site.constant(indices, S32)
    return site.make(ops.Gather, x, where, others, (dimension,), (), (), (dimension,), 1, sizes)


def _contract(site: Site, x: Node, dimension: int, weights: np.ndarray) -> Node:
    """x with one dimension multiplied by a constant matrix."""
    matrix = site.constant(weights, x.dtype)
    product = site.make(ops.Dot, x, matrix, (), (), (dimension,), (1,), x.dtype)
    order = list(range(len(x.shape) - 1))
    order.insert(dimension, len(x.shape) - 1)
    return site.transpose(product, order)
