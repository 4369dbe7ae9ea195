"""`View`: part of a tile, indexed, reshaped and broadcast as a NumPy array is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from glia.base.affine import ZERO, Affine
from glia.base.dtype import DTYPES, DType, from_numpy
from glia.isa.operand import Dims, Memory, Pattern, Tile, regrouped, row_major
from glia.machine.builder.errors import IllegalView
from glia.machine.builder.source_line import caller

Index = int | Affine


def ds(start: Index, count: int) -> slice:
    """The slice of `count` elements from `start` on; `start` may name loop variables."""
    return slice(start, start + count)


def as_dtype(dtype: DTypeLike | DType) -> DType:
    """A dtype from itself, its name ("bf16") or NumPy's; KeyError when there is none."""
    if isinstance(dtype, DType):
        return dtype
    return DTYPES[dtype] if isinstance(dtype, str) and dtype in DTYPES else from_numpy(dtype)


@dataclass(frozen=True, eq=False)
class View:
    """Elements of a tile: `dims` are (step, count) from `offset` on, as in a `Pattern`.

    On chip the first dimension is the partitions. Indices and slices take integers and affine
    expressions of loop variables and registers; a slice must hold a constant number of elements.
    Errors are IllegalView, at the caller's line.
    """

    tile: Tile
    dtype: DType
    dims: Dims
    offset: Affine = ZERO
    partition: Affine = ZERO

    @staticmethod
    def of(tile: Tile, shape: tuple[int, ...]) -> View:
        """All of a tile in this shape, whose first extent is the partitions on chip."""
        first = () if tile.memory is Memory.HBM else ((1, tile.partitions),)
        return View(tile, tile.dtype, (*first, *row_major(shape[len(first) :])))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the dimensions; on chip partitions first."""
        return tuple(count for _, count in self.dims)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.dims)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        """The tile's name."""
        return self.tile.name

    @property
    def pattern(self) -> Pattern:
        """The access pattern of an operand that names this view."""
        dims = self.dims
        if len(dims) == self._partition_dims:
            dims = (*dims, (1, 1))
        return Pattern(self.tile, self.dtype, dims, self.offset, self.partition)

    @property
    def T(self) -> View:  # noqa: N802  NumPy's name
        """The dimensions in opposite order (in HBM)."""
        return self.transpose(*reversed(range(self.ndim)))

    def __getitem__(self, index: Any) -> View:
        """The view that integers, slices, None and `...` select.

        An integer drops its dimension; on chip the partitions always stay.
        """
        entries = self._entries(index if isinstance(index, tuple) else (index,))
        view: View = self
        dims: list[tuple[int, int]] = []
        dimension = 0
        for entry in entries:
            if entry is None:
                dims.append((1, 1))
                continue
            step, count = self.dims[dimension]
            start, stride, kept = self._range(entry, count)
            view = view._offset_by(dimension, start)
            if isinstance(entry, slice) or dimension < self._partition_dims:
                dims.append((step * stride, kept))
            dimension += 1
        return replace(view, dims=tuple(dims))

    def reshape(self, *shape: int) -> View:
        """The same elements in order in another shape; one extent may be -1.

        On chip the partitions stay. Dimensions are split and joined where the steps allow it.
        """
        fixed = self._partition_dims
        target = self._infer_extent(shape)
        if target[:fixed] != self.shape[:fixed]:
            self._refuse(f"cannot reshape to {target}: the partitions stay as they are")
        free = regrouped(self.dims[fixed:], target[fixed:])
        if free is None:
            self._refuse(f"cannot reshape to {target}: the elements are not at even steps")
        return replace(self, dims=(*self.dims[:fixed], *free))

    def transpose(self, *axes: int) -> View:
        """The dimensions in another order; on chip the partitions stay first."""
        fixed = self._partition_dims
        if sorted(axes) != list(range(self.ndim)) or axes[:fixed] != (0,) * fixed:
            self._refuse(f"cannot put the dimensions in order {axes}")
        return replace(self, dims=tuple(self.dims[axis] for axis in axes))

    def broadcast_to(self, *shape: int) -> View:
        """Repeat dimensions of extent 1, and add dimensions in front, through steps of 0.

        On chip dimensions are added right after the partitions.
        """
        fixed, missing = self._partition_dims, len(shape) - self.ndim
        dims = (*self.dims[:fixed], *((0, 1),) * missing, *self.dims[fixed:])
        fits = missing >= 0 and all(
            count in (1, extent) for (_, count), extent in zip(dims, shape, strict=True)
        )
        if not fits:
            self._refuse(f"cannot broadcast to {shape}")
        broadcast = tuple(
            (step if count == extent else 0, extent)
            for (step, count), extent in zip(dims, shape, strict=True)
        )
        return replace(self, dims=broadcast)

    def partitions(self, start: Index, count: int) -> View:
        """`count` partitions from `start` on."""
        return self[ds(start, count)]

    def bitcast(self, dtype: DTypeLike | DType) -> View:
        """The same bytes read as another dtype; the innermost elements must be neighbours."""
        new = as_dtype(dtype)
        wide, narrow = self.dtype.bytes, new.bytes
        if wide == narrow:
            return replace(self, dtype=new)
        *outer, (step, count) = self.dims
        if step != 1 or self.ndim == self._partition_dims:
            self._refuse(f"cannot read as {new}: the innermost elements are not neighbours")
        first, free = outer[: self._partition_dims], outer[self._partition_dims :]
        scaled = [(self._rescale(s, wide, narrow), n) for s, n in free]
        inner = (1, self._rescale(count, wide, narrow))
        terms = {v: self._rescale(c, wide, narrow) for v, c in self.offset.terms}
        offset = Affine.build(terms, self._rescale(self.offset.constant, wide, narrow))
        return replace(self, dtype=new, dims=(*first, *scaled, inner), offset=offset)

    def _rescale(self, elements: int, wide: int, narrow: int) -> int:
        if elements * wide % narrow:
            self._refuse(f"{elements} elements of {wide} bytes are no elements of {narrow}")
        return elements * wide // narrow

    @property
    def _partition_dims(self) -> int:
        """The number of leading dimensions on the partitions: 1 on chip, 0 in HBM."""
        return 0 if self.tile.memory is Memory.HBM else 1

    def _infer_extent(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape of the same size, with its -1 replaced by the extent that follows."""
        known = math.prod(extent for extent in shape if extent != -1)
        has_unknown = shape.count(-1) == 1 and known > 0 and self.size % known == 0
        target = tuple(self.size // known if n == -1 and has_unknown else n for n in shape)
        if math.prod(target) != self.size or any(n < 1 for n in target):
            self._refuse(f"cannot reshape to {shape}")
        return target

    def _entries(self, index: tuple[Any, ...]) -> list[Any]:
        """One entry for each dimension, and the Nones."""
        supplied = sum(entry is not None and entry is not Ellipsis for entry in index)
        ellipses = [i for i, entry in enumerate(index) if entry is Ellipsis]
        if len(ellipses) > 1 or supplied > self.ndim:
            self._refuse(f"{supplied} indices for {self.ndim} dimensions")
        at = ellipses[0] if ellipses else len(index)
        return [*index[:at], *[slice(None)] * (self.ndim - supplied), *index[at + 1 :]]

    def _range(self, entry: Any, extent: int) -> tuple[Affine, int, int]:
        """(start, step, count) of an index or slice of a dimension."""
        if not isinstance(entry, slice):
            start = self._bound(entry, extent)
            self._require(start, 1, 1, extent)
            return start, 1, 1
        step = 1 if entry.step is None else entry.step
        if not isinstance(step, int) or step == 0:
            self._refuse(f"a slice cannot have step {step}")
        ends: tuple[Any, Any] = (0, extent) if step > 0 else (extent - 1, -1)
        start = self._bound(entry.start, extent) if entry.start is not None else Affine.of(ends[0])
        stop = self._bound(entry.stop, extent) if entry.stop is not None else Affine.of(ends[1])
        length = stop - start
        if not length.is_constant:
            self._refuse(f"slice {start} : {stop} has no constant length")
        count = -(-length.constant // step)
        self._require(start, step, count, extent)
        return start, step, count

    def _bound(self, index: Any, extent: int) -> Affine:
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            return Affine((), int(index) + (extent if index < 0 else 0))
        if not isinstance(index, Affine):
            self._refuse(f"cannot index by {index!r}")
        return index

    def _require(self, start: Affine, step: int, count: int, extent: int) -> None:
        """Check constant bounds; `finish` verifies those that depend on loop variables."""
        last = start.constant + step * (count - 1)
        if count < 1 or (start.is_constant and not (0 <= start.constant < extent > last >= 0)):
            self._refuse(f"elements {start} to {last} do not lie in a dimension of {extent}")

    def _offset_by(self, dimension: int, start: Affine) -> View:
        distance = start * self.dims[dimension][0]
        if dimension < self._partition_dims:
            return replace(self, partition=self.partition + distance)
        return replace(self, offset=self.offset + distance)

    def _refuse(self, problem: str) -> NoReturn:
        raise IllegalView(problem=problem, shape=self.shape, loc=caller())
