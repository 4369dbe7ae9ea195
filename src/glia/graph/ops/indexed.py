"""Operations whose positions are values: gather, scatter, dynamic slices."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from glia.graph.ir import Graph, Node, TensorType, Type, op, result_type
from glia.graph.ops.scalar_regions import fold_at
from glia.graph.type_rules import (
    require,
    require_combiner,
    require_dimensions,
    require_length,
    require_one_shape,
    require_scalar,
    tensor,
)

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]


def _require_indices(node: Node, vector_dim: int, map_dims: Dims, rank: int) -> Dims:
    """Check index vectors and what they address; return the indices' shape without the vector."""
    kind = tensor(node)
    require(kind.dtype.is_integer, f"indices must be integers, not {kind}")
    fits = 0 <= vector_dim <= len(kind.shape)
    require(fits, f"index vector dimension {vector_dim} of {kind}")
    extent = kind.shape[vector_dim] if vector_dim < len(kind.shape) else 1
    require(extent == len(map_dims), f"index vectors of {extent} for dimensions {list(map_dims)}")
    require_dimensions(map_dims, rank, "indexed dimensions")
    return kind.shape[:vector_dim] + kind.shape[vector_dim + 1 :]


def _require_batch(
    x: TensorType, indices: TensorType, x_dims: Dims, dims: Dims, vector: int
) -> None:
    """Check that batch dimensions come in pairs of equal extents."""
    require_length(dims, len(x_dims), "indices' batch dimensions")
    require_dimensions(x_dims, len(x.shape), "batch dimensions")
    require_dimensions(dims, len(indices.shape), "indices' batch dimensions")
    require(vector not in dims, f"index vector dimension {vector} cannot be a batch dimension")
    for a, b in zip(x_dims, dims, strict=True):
        same = x.shape[a] == indices.shape[b]
        require(same, f"batch dimension {a} of {x} and {b} of {indices} must have one extent")


def _start_positions(
    indices: Array, vector: int, map_dims: Dims, x_batch: Dims, batch: Dims, rank: int
) -> list[Array]:
    """For each dimension of x, the start position per index vector (zero where not addressed)."""
    vectors = indices[..., None] if vector == indices.ndim else np.moveaxis(indices, vector, -1)
    vectors = vectors.astype(np.uint64 if vectors.dtype == np.uint64 else np.int64)
    if vectors.dtype == np.uint64:
        vectors = np.minimum(vectors, np.uint64(2**62)).astype(np.int64)
    shape = vectors.shape[:-1]
    starts = [np.zeros(shape, np.int64) for _ in range(rank)]
    for k, dimension in enumerate(map_dims):
        starts[dimension] = vectors[..., k]
    for dimension, of_indices in zip(x_batch, batch, strict=True):
        axis = of_indices - (of_indices > vector)
        along = [-1 if d == axis else 1 for d in range(len(shape))]
        starts[dimension] = np.broadcast_to(np.arange(shape[axis]).reshape(along), shape)
    return starts


def _window_positions(starts: list[Array], sizes: Dims) -> tuple[Array, ...]:
    """Index arrays of shape [*index vectors, *sizes] for each dimension, as open meshes."""
    rank = len(sizes)
    positions = []
    for dimension, (start, extent) in enumerate(zip(starts, sizes, strict=True)):
        along = [-1 if d == dimension else 1 for d in range(rank)]
        first = start.reshape(*start.shape, *[1] * rank)
        positions.append(first + np.arange(extent).reshape(along))
    return tuple(positions)


@op
class Gather(Node):
    """XLA gather: slices of x at clamped start indices."""

    x: Node
    indices: Node
    offset_dims: tuple[int, ...]
    collapsed_dims: tuple[int, ...]
    x_batch_dims: tuple[int, ...]
    indices_batch_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int
    slice_sizes: tuple[int, ...]
    opcode: ClassVar[str] = "gather"

    def infer(self) -> Type:
        x, indices = tensor(self.x), tensor(self.indices)
        rank = len(x.shape)
        batch = _require_indices(self.indices, self.index_vector_dim, self.start_index_map, rank)
        _require_batch(
            x, indices, self.x_batch_dims, self.indices_batch_dims, self.index_vector_dim
        )
        require_length(self.slice_sizes, rank, "slice sizes")
        for extent, taken in zip(x.shape, self.slice_sizes, strict=True):
            require(0 <= taken <= extent, f"slice of {taken} from extent {extent} of {x}")
        dropped = (*self.collapsed_dims, *self.x_batch_dims)
        require_dimensions(dropped, rank, "collapsed and batch dimensions")
        narrow = all(self.slice_sizes[d] <= 1 for d in dropped)
        require(narrow, f"dropped dimensions {list(dropped)} need slices of one element")
        window = [size for d, size in enumerate(self.slice_sizes) if d not in dropped]
        require_length(self.offset_dims, len(window), "offset dimensions")
        require_dimensions(self.offset_dims, len(batch) + len(window), "offset dimensions")
        result = _insert_window_dimensions(batch, tuple(window), self.offset_dims)
        is_empty = any(self.slice_sizes[d] == 0 for d in dropped)
        require(not is_empty or 0 in result, f"{list(result)} elements of slices that have none")
        return TensorType(x.dtype, result)

    def compute(self, x: Array, indices: Array) -> Array:
        starts = _start_positions(indices, self.index_vector_dim, self.start_index_map,
                         self.x_batch_dims, self.indices_batch_dims, x.ndim)  # fmt: skip
        bounds = [extent - size for extent, size in zip(x.shape, self.slice_sizes, strict=True)]
        starts = [np.clip(start, 0, bound) for start, bound in zip(starts, bounds, strict=True)]
        batch_rank = starts[0].ndim if starts else indices.ndim - 1
        found = x[_window_positions(starts, self.slice_sizes)] if starts else x
        dropped = (*self.collapsed_dims, *self.x_batch_dims)
        window = [size for d, size in enumerate(self.slice_sizes) if d not in dropped]
        found = found.reshape((*found.shape[:batch_rank], *window))
        rank = found.ndim
        inner, outer = tuple(range(batch_rank, rank)), tuple(range(batch_rank))
        return np.transpose(found, _insert_window_dimensions(outer, inner, self.offset_dims))


def _insert_window_dimensions(batch: Dims, window: Dims, window_dims: Dims) -> Dims:
    """The batch's entries with the window's placed at `window_dims`, in order."""
    rest, inner = iter(batch), iter(window)
    rank = len(batch) + len(window)
    return tuple(next(inner) if d in window_dims else next(rest) for d in range(rank))


@op
class Scatter(Node):
    """XLA scatter: combine updates into x at indices; out-of-range updates are dropped.

    An update window that is not wholly inside x is dropped as a whole, as XLA does.
    """

    xs: tuple[Node, ...]
    indices: Node
    updates: tuple[Node, ...]
    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    x_batch_dims: tuple[int, ...]
    indices_batch_dims: tuple[int, ...]
    scatter_dims: tuple[int, ...]
    index_vector_dim: int
    unique_indices: bool
    body: Graph
    opcode: ClassVar[str] = "scatter"

    def infer(self) -> Type:
        shape = require_one_shape(self.xs, "scatter")
        updates = require_one_shape(self.updates, "scatter's updates")
        x, indices, rank = tensor(self.xs[0]), tensor(self.indices), len(shape)
        require_length(self.updates, len(self.xs), "scatter's updates")
        dtypes = [node.dtype for node in self.xs]
        same = dtypes == [node.dtype for node in self.updates]
        require(same, f"scatter's updates must have the dtypes {dtypes}")
        batch = _require_indices(self.indices, self.index_vector_dim, self.scatter_dims, rank)
        _require_batch(
            x, indices, self.x_batch_dims, self.indices_batch_dims, self.index_vector_dim
        )
        dropped = (*self.inserted_window_dims, *self.x_batch_dims)
        require_dimensions(dropped, rank, "inserted and batch dimensions")
        require_length(self.update_window_dims, rank - len(dropped), "update window dimensions")
        require_dimensions(self.update_window_dims, len(updates), "update window dimensions")
        rest = tuple(e for d, e in enumerate(updates) if d not in self.update_window_dims)
        require(rest == batch, f"updates {list(updates)} do not fit index vectors {list(batch)}")
        window = self._window(updates, rank)
        fits = all(size <= extent for size, extent in zip(window, shape, strict=True))
        require(fits, f"update windows {list(window)} exceed {x}")
        require_combiner(self.body, dtypes, "scatter's body")
        return result_type(tensor(node) for node in self.xs)

    def _window(self, updates: Dims, rank: int) -> Dims:
        """The extent of one update in every dimension of x."""
        dropped = (*self.inserted_window_dims, *self.x_batch_dims)
        inner = iter(updates[d] for d in sorted(self.update_window_dims))
        return tuple(1 if d in dropped else next(inner) for d in range(rank))

    def compute(self, *arrays: Array) -> Any:
        count = len(self.xs)
        xs, indices, updates = arrays[:count], arrays[count], arrays[count + 1 :]
        shape, window = xs[0].shape, self._window(updates[0].shape, xs[0].ndim)
        starts = _start_positions(indices, self.index_vector_dim, self.scatter_dims,
                         self.x_batch_dims, self.indices_batch_dims, len(shape))  # fmt: skip
        batch_shape = starts[0].shape if starts else ()
        inside = np.ones(batch_shape, bool)
        for start, size, extent in zip(starts, window, shape, strict=True):
            inside &= (start >= 0) & (start <= extent - size)
        flat = np.zeros((*batch_shape, *window), np.int64)
        starts = [np.where(inside, start, 0) for start in starts]
        for position, extent in zip(_window_positions(starts, window), shape, strict=True):
            flat = flat * extent + position
        chosen = np.broadcast_to(inside.reshape(*batch_shape, *[1] * len(shape)), flat.shape)
        targets = [np.array(x).reshape(-1) for x in xs]
        values = [self._vectors_first(update).reshape(flat.shape)[chosen] for update in updates]
        fold_at(self.body, targets, flat[chosen], values)
        results = tuple(target.reshape(shape) for target in targets)
        return results[0] if count == 1 else results

    def _vectors_first(self, update: Array) -> Array:
        """The update with the index vectors' dimensions first, then the window's."""
        window = sorted(self.update_window_dims)
        rest = [d for d in range(update.ndim) if d not in window]
        return np.transpose(update, rest + window)


@op
class DynamicSlice(Node):
    """A slice whose scalar start indices are values, clamped to stay inside."""

    x: Node
    starts: tuple[Node, ...]
    slice_sizes: tuple[int, ...]
    opcode: ClassVar[str] = "dynamic_slice"

    def infer(self) -> Type:
        x = tensor(self.x)
        require_length(self.slice_sizes, len(x.shape), "slice sizes")
        _require_starts(self.starts, x)
        _require_within(self.slice_sizes, x)
        return TensorType(x.dtype, self.slice_sizes)

    def compute(self, x: Array, *starts: Array) -> Array:
        return x[_clamped_slices(x.shape, self.slice_sizes, starts)]


@op
class DynamicUpdateSlice(Node):
    """x with `update` written at scalar start indices, clamped to stay inside."""

    x: Node
    update: Node
    starts: tuple[Node, ...]
    opcode: ClassVar[str] = "dynamic_update_slice"

    def infer(self) -> Type:
        x, update = tensor(self.x), tensor(self.update)
        fits = x.dtype is update.dtype and len(x.shape) == len(update.shape)
        require(fits, f"cannot write {update} into {x}")
        _require_starts(self.starts, x)
        _require_within(update.shape, x)
        return x

    def compute(self, x: Array, update: Array, *starts: Array) -> Array:
        result = np.array(x)
        result[_clamped_slices(x.shape, update.shape, starts)] = update
        return result


def _require_starts(starts: tuple[Node, ...], x: TensorType) -> None:
    require_length(starts, len(x.shape), "start indices")
    for start in starts:
        require(tensor(start).dtype.is_integer, f"start index {start.type} is not an integer")
        require_scalar(start, start.dtype, "a start index")


def _require_within(sizes: Dims, x: TensorType) -> None:
    fits = all(0 <= size <= extent for size, extent in zip(sizes, x.shape, strict=True))
    require(fits, f"a slice of {list(sizes)} does not fit {x}")


def _clamped_slices(shape: Dims, sizes: Dims, starts: tuple[Array, ...]) -> tuple[slice, ...]:
    """The slices of the given sizes whose starts are clamped to stay inside the shape."""
    firsts = [min(max(int(s), 0), e - n) for s, e, n in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))
