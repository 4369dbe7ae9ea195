"""Accesses at run-time indices: gather, scatter, dynamic slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import add
from typing import TYPE_CHECKING

from glia.base.affine import ZERO, Affine
from glia.graph import ops
from glia.graph.ops.scalar_regions import returned_parameter
from glia.tile.build.nest import Index, NestBuilder
from glia.tile.build.reduction import monoid_of
from glia.tile.build.values import DeferredValue, ScalarValue, SliceValue, StoreTarget, plain_load
from glia.tile.ir import Dynamic, Expr, Load, Store

if TYPE_CHECKING:
    from glia.tile.build.block import NestBlock


def split_starts(
    starts: list[DeferredValue], limits: list[int]
) -> tuple[tuple[int, ...], tuple[Dynamic, ...]]:
    """(constant offsets, clamped; run-time offsets) of scalar start positions."""
    constants, offsets = [], []
    for dimension, (start, limit) in enumerate(zip(starts, limits, strict=True)):
        if isinstance(start, ScalarValue) or limit == 0:
            number = int(start.number) if isinstance(start, ScalarValue) else 0
            constants.append(min(max(number, 0), limit))
        else:
            constants.append(0)
            start.materialise()
            offsets.append(Dynamic(dimension, Load(start.buffer, start.dtype, ()), limit))
    return tuple(constants), tuple(offsets)


def _offset_index(index: Sequence[Affine], constants: tuple[int, ...]) -> Index:
    return tuple(i + c for i, c in zip(index, constants, strict=True))


class DynamicSliceValue(DeferredValue):
    """A dynamic slice: a load at register offsets."""

    node: ops.DynamicSlice
    is_work = True

    def __init__(
        self,
        block: NestBlock,
        node: ops.DynamicSlice,
        x: DeferredValue,
        starts: list[DeferredValue],
    ) -> None:
        super().__init__(block, node)
        x.materialise()
        limits = [n - size for n, size in zip(x.shape, node.slice_sizes, strict=True)]
        self.x = x
        self.constants, self.offsets = split_starts(starts, limits)
        self.is_view = not self.offsets
        self.parts = (x,)

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        return self.load_at_offsets(index)

    def load_at_offsets(self, index: Index) -> Load:
        load = Load(self.x.buffer, self.dtype, _offset_index(index, self.constants))
        return replace(load, dynamic=self.offsets)


class UpdatedCopyValue(DeferredValue):
    """A copy of x in a buffer of its own, of which some elements are then updated."""

    needs_buffer = True

    def __init__(
        self, block: NestBlock, node: ops.Scatter | ops.DynamicUpdateSlice, x: DeferredValue
    ) -> None:
        super().__init__(block, node)
        self.x = x

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        self.materialise()
        return self.at(nest, index)

    def write(self, target: StoreTarget) -> None:
        if not (target.is_whole or target.is_shifted):
            self.materialise()
            self.block.store(self, target)
            return
        if self.x.buffer != target.buffer:
            self.x.emit_into(target)
        self.update(target)

    def update(self, target: StoreTarget) -> None:
        """Append the nest that updates the copy at the target."""
        raise TypeError(f"{type(self).__name__} declares no update")


class DynamicUpdateSliceValue(UpdatedCopyValue):
    """A dynamic update: a store at register offsets."""

    node: ops.DynamicUpdateSlice

    def __init__(
        self,
        block: NestBlock,
        node: ops.DynamicUpdateSlice,
        x: DeferredValue,
        update: DeferredValue,
        starts: list[DeferredValue],
    ) -> None:
        super().__init__(block, node, x)
        self.change = update
        limits = [n - size for n, size in zip(x.shape, update.shape, strict=True)]
        self.constants, self.offsets = split_starts(starts, limits)

    def update(self, target: StoreTarget) -> None:
        def place(index: Index) -> Index:
            return target.place(_offset_index(index, self.constants))

        self.block.store(
            self.change,
            StoreTarget(target.buffer, place),
            lambda nest, index, at: Store(target.buffer, at, self.offsets),
            named=self,
        )


class IndexVectors:
    """The index vectors of a gather or scatter: the start of each window."""

    def __init__(self, indices: DeferredValue, vector: int, dims: tuple[int, ...]) -> None:
        self.indices, self.vector, self.dims = indices, vector, dims

    def offsets(
        self, nest: NestBuilder, batch: Index, limits: list[int], *, clamps: bool
    ) -> tuple[Dynamic, ...]:
        """One run-time offset for each indexed dimension, at the batch position."""
        found = []
        for count, dimension in enumerate(self.dims):
            at = list(batch)
            if self.vector < len(self.indices.shape):
                at.insert(self.vector, Affine.of(count))
            load = plain_load(self.indices, nest, tuple(at))
            found.append(Dynamic(dimension, load, limits[dimension], clamps))
        return tuple(found)

    def axis_of(self, dimension: int) -> int:
        """The batch position of a dimension of the indices."""
        return dimension - (dimension > self.vector)


class GatherValue(DeferredValue):
    """A gather: loads at clamped run-time offsets."""

    node: ops.Gather
    needs_buffer = True

    def __init__(
        self, block: NestBlock, node: ops.Gather, x: DeferredValue, indices: DeferredValue
    ) -> None:
        super().__init__(block, node)
        self.first = (0,) * len(x.shape)  # of the elements of x, where x is a part of what it was
        while isinstance(x, SliceValue) and not x.buffer and set(x.node.stride) <= {1}:
            self.first = tuple(map(add, self.first, x.node.start))
            x = x.source
        x.materialise()
        indices.materialise_work()
        self.x = x
        self.vectors = IndexVectors(indices, node.index_vector_dim, node.start_index_map)

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        node = self.node
        batch = tuple(at for d, at in enumerate(index) if d not in node.offset_dims)
        inside = iter(at for d, at in enumerate(index) if d in node.offset_dims)
        dropped = (*node.collapsed_dims, *node.x_batch_dims)
        at = [ZERO if d in dropped else next(inside) for d in range(len(self.x.shape))]
        for d, of_indices in zip(node.x_batch_dims, node.indices_batch_dims, strict=True):
            at[d] = batch[self.vectors.axis_of(of_indices)]
        limits = [n - size for n, size in zip(node.x.shape, node.slice_sizes, strict=True)]
        offsets = self.vectors.offsets(nest, batch, limits, clamps=True)
        return Load(self.x.buffer, self.dtype, _offset_index(at, self.first), dynamic=offsets)


class ScatterValue(UpdatedCopyValue):
    """A scatter: stores at run-time offsets; windows outside x are dropped."""

    node: ops.Scatter

    def __init__(
        self,
        block: NestBlock,
        node: ops.Scatter,
        x: DeferredValue,
        indices: DeferredValue,
        updates: DeferredValue,
    ) -> None:
        super().__init__(block, node, x)
        indices.materialise_work()
        self.updates = updates
        self.vectors = IndexVectors(indices, node.index_vector_dim, node.scatter_dims)
        self.combine = "" if returned_parameter(node.body) == 1 else monoid_of(node.body, node)
        self.dropped = (*node.inserted_window_dims, *node.x_batch_dims)

    def _place(self, index: Index) -> Index:
        node = self.node
        batch = [at for d, at in enumerate(index) if d not in node.update_window_dims]
        inside = iter(at for d, at in enumerate(index) if d in node.update_window_dims)
        at = [ZERO if d in self.dropped else next(inside) for d in range(len(self.shape))]
        for d, of_indices in zip(node.x_batch_dims, node.indices_batch_dims, strict=True):
            at[d] = batch[self.vectors.axis_of(of_indices)]
        return tuple(at)

    def _limits(self) -> list[int]:
        window = iter(self.updates.shape[d] for d in sorted(self.node.update_window_dims))
        extents = enumerate(self.shape)
        return [n - (1 if d in self.dropped else next(window)) for d, n in extents]

    def update(self, target: StoreTarget) -> None:
        limits = self._limits()

        def store(nest: NestBuilder, index: Index, at: Index) -> Store:
            outside = self.node.update_window_dims
            batch = tuple(i for d, i in enumerate(index) if d not in outside)
            offsets = self.vectors.offsets(nest, batch, limits, clamps=False)
            return Store(target.buffer, at, offsets, self.combine)

        def place(index: Index) -> Index:
            return target.place(self._place(index))

        self.block.store(self.updates, StoreTarget(target.buffer, place), store, named=self)
