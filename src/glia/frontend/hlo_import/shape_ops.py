"""HLO operations that move, repeat or select elements."""

from __future__ import annotations

import math

import numpy as np

from glia.base.dtype import S32
from glia.frontend.errors import DynamicShape
from glia.frontend.hlo_import.module_context import Importer, Site
from glia.frontend.hlo_import.node_builder import Value
from glia.graph import ops
from glia.graph.ir import Node


def _broadcast(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.broadcast(x, site.tensor_type.shape, site.proto.dimensions)


def _reshape(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.reshape(x, site.tensor_type.shape)


def _transpose(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.transpose(x, site.proto.dimensions)


def _bitcast(site: Site) -> Value:
    """The same bytes in memory under another shape and layout."""
    (x,) = site.tensors(1)
    target = site.tensor_type
    if target.dtype is not x.dtype or math.prod(target.shape) != math.prod(x.shape):
        raise site.reject(f"{x.type} and {target} do not have the same elements")
    order = _major_to_minor(site, site.operand_protos[0].shape.layout, len(x.shape))
    target_order = _major_to_minor(site, site.proto.shape.layout, len(target.shape))
    in_memory = site.transpose(x, order)
    reshaped = site.reshape(in_memory, [target.shape[d] for d in target_order])
    return site.transpose(reshaped, np.argsort(target_order).tolist())


def _major_to_minor(site: Site, layout: object, rank: int) -> tuple[int, ...]:
    order = tuple(layout.minor_to_major)[::-1] or tuple(range(rank))  # type: ignore[attr-defined]
    if sorted(order) != list(range(rank)):
        raise site.malformed(f"layout {list(order[::-1])} of a tensor with {rank} dimensions")
    return order


def _slice(site: Site) -> Value:
    (x,) = site.tensors(1)
    dimensions = site.proto.slice_dimensions
    start = tuple(d.start for d in dimensions)
    limit = tuple(d.limit for d in dimensions)
    return site.make(ops.Slice, x, start, limit, tuple(d.stride or 1 for d in dimensions))


def _reverse(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.make(ops.Reverse, x, tuple(site.proto.dimensions))


def _pad(site: Site) -> Value:
    x, value = site.tensors(2)
    dimensions = site.proto.padding.dimensions
    low = tuple(d.low for d in dimensions)
    high = tuple(d.high for d in dimensions)
    return site.make(ops.Pad, x, value, low, high, tuple(d.interior for d in dimensions))


def _concatenate(site: Site) -> Value:
    if len(site.proto.dimensions) != 1:
        raise site.malformed(f"concatenate along {len(site.proto.dimensions)} dimensions")
    return site.make(ops.Concatenate, site.tensors(), site.proto.dimensions[0])


def _iota(site: Site) -> Value:
    site.tensors(0)
    if len(site.proto.dimensions) != 1:
        raise site.malformed(f"iota along {len(site.proto.dimensions)} dimensions")
    return site.make(ops.Iota, site.tensor_type, site.proto.dimensions[0])


def _scalar_starts(site: Site, starts: tuple[Node, ...], rank: int) -> tuple[Node, ...]:
    """Start indices as scalars; older modules pass them as one vector."""
    if len(starts) == 1 and starts[0].shape == (rank,):
        vector = starts[0]
        return tuple(
            site.reshape(site.make(ops.Slice, vector, (i,), (i + 1,), (1,)), ())
            for i in range(rank)
        )
    if len(starts) != rank:
        raise site.malformed(f"{len(starts)} start indices for {rank} dimensions")
    return starts


def _dynamic_slice(site: Site) -> Value:
    if not site.operands:
        raise site.malformed("dynamic-slice without operands")
    x, *starts = site.tensors()
    indices = _scalar_starts(site, tuple(starts), len(x.shape))
    return site.make(ops.DynamicSlice, x, indices, tuple(site.proto.dynamic_slice_sizes))


def _dynamic_update_slice(site: Site) -> Value:
    if len(site.operands) < 2:
        raise site.malformed("dynamic-update-slice without operands")
    x, update, *starts = site.tensors()
    indices = _scalar_starts(site, tuple(starts), len(x.shape))
    return site.make(ops.DynamicUpdateSlice, x, update, indices)


def _gather(site: Site) -> Value:
    x, indices = site.tensors(2)
    numbers = site.proto.gather_dimensions
    return site.make(
        ops.Gather,
        x,
        indices,
        tuple(numbers.offset_dims),
        tuple(numbers.collapsed_dims),
        tuple(numbers.x_batch_dims),
        tuple(numbers.indices_batch_dims),
        tuple(numbers.start_index_map),
        numbers.index_vector_dim,
        tuple(site.proto.gather_slice_sizes),
    )


def _scatter(site: Site) -> Value:
    operands = site.tensors()
    if len(operands) < 3 or len(operands) % 2 == 0:
        raise site.malformed(f"{len(operands)} operands, expected tensors, indices, updates")
    count = len(operands) // 2
    numbers = site.proto.scatter_dimensions
    results = site.results(
        ops.Scatter,
        operands[:count],
        operands[count],
        operands[count + 1 :],
        tuple(numbers.update_window_dims),
        tuple(numbers.inserted_window_dims),
        tuple(numbers.x_batch_dims),
        tuple(numbers.indices_batch_dims),
        tuple(numbers.scatter_dims),
        numbers.index_vector_dim,
        site.proto.unique_indices,
        site.region(),
    )
    return results[0] if count == 1 else results


def _sort(site: Site) -> Value:
    xs = site.tensors()
    if not xs or len(site.proto.dimensions) != 1:
        along = len(site.proto.dimensions)
        raise site.malformed(f"sort of {len(xs)} tensors along {along} dimensions")
    dimension = site.proto.dimensions[0]
    results = site.results(ops.Sort, xs, dimension, site.proto.is_stable, site.region())
    return results[0] if len(xs) == 1 else results


def _dimension_size(site: Site) -> Value:
    """get-dimension-size: shapes are static, so it is a constant."""
    (x,) = site.tensors(1)
    return site.constant(x.shape[_sole_dimension(site, x)], S32)


def _set_dimension_size(site: Site) -> Value:
    """set-dimension-size: only setting the size the dimension already has is static."""
    x, size = site.tensors(2)
    extent = x.shape[_sole_dimension(site, x)]
    if not isinstance(size, ops.Constant) or np.any(np.asarray(size.value) != extent):
        raise DynamicShape(name=site.label, shape=x.type, loc=site.loc)
    return x


def _sole_dimension(site: Site, x: Node) -> int:
    dimensions = site.proto.dimensions
    if len(dimensions) != 1 or not 0 <= dimensions[0] < len(x.shape):
        raise site.malformed(f"dimensions {list(dimensions[:8])} of {x.type}")
    return int(dimensions[0])


MOVEMENT: dict[str, Importer] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "bitcast": _bitcast,
    "slice": _slice,
    "reverse": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "iota": _iota,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
    "sort": _sort,
    "get-dimension-size": _dimension_size,
    "set-dimension-size": _set_dimension_size,
}
