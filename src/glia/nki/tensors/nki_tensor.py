"""NkiTensor: a view of a tile of memory, with the whole algebra of views."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.base.fast_objects import allocate
from glia.isa.operand import Dims, Pattern, Tile, reach, regrouped, row_major
from glia.nki.issue.former_signatures import accepts_earlier_signatures
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.enums import MemoryRegion
from glia.nki.names.errors import NotInNki
from glia.nki.session.session import (
    CURRENT,
    caller,
    contents_of,
    current,
    session_or_none,
    truth_of,
)
from glia.nki.tensors.allocation import (
    new_tile,
    refuse_tensor,
    tensor_spec,
    validate_address,
    validate_dtype,
)
from glia.nki.tensors.dynamic_offsets import Indirection
from glia.nki.tensors.indexing import expand_index, require_inside, resolve_entry
from glia.nki.tensors.refused_operators import RefusedOperators
from glia.nki.tensors.registers import VirtualRegister
from glia.nki.tensors.views import (
    EXPRESSIONS,
    ViewLayout,
    as_affine,
    drop_dims,
    group_names,
    is_integer,
    layout_of,
    memoize_view,
    row_major_layout,
    storage_class,
)


class NkiTensor(RefusedOperators):
    """A tensor in SBUF, PSUM or HBM, or a view of one; views share the storage.

    On chip the first dimension lies on the partitions. `shape`, `strides`, `offset` (elements),
    `dtype`, `buffer`, `ndim`, `size` and `name` are known when the kernel is compiled.
    """

    __slots__ = (
        "_pattern",
        "buffer",
        "dtype",
        "fault",
        "indirection",
        "layout",
        "start",
        "stored",
        "tile",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        storage: Any,
        buffer: MemoryRegion = MemoryRegion.sbuf,
        name: str = "",
    ) -> None:
        if isinstance(storage, Tile):
            kind = storage_class(storage.memory, storage.dtype, storage.partitions)
            layout = row_major_layout(tuple(shape), kind)
            self._bind(storage, dtype, storage.dtype, buffer, layout)
        else:
            session = current("nl.ndarray")
            spec = tensor_spec(session, shape, dtype, buffer)
            tile = new_tile(session, spec, name)
            self._bind(tile, spec.dtype, spec.stored, buffer, spec.layout)

    def _bind(
        self, tile: Tile, dtype: str, stored: DType, buffer: MemoryRegion, layout: ViewLayout
    ) -> None:
        """Set all fields; `stored` is the dtype in memory, float32 if the session widens floats."""
        self.tile = tile
        self.dtype = dtype
        self.stored = stored
        self.buffer = buffer
        self.layout = layout
        self.start: int | Affine = 0
        self.indirection: Indirection | None = None
        self.fault = layout.fault  # why an instruction cannot use it
        self._pattern: Pattern | None = None

    def _derive(
        self,
        dims: Dims,
        *,
        dtype: str | None = None,
        stored: DType | None = None,
        start: int | Affine | None = None,
        partition: int | Affine | None = None,
        indirection: Indirection | None = None,
    ) -> NkiTensor:
        """A view of the same tile with other dimensions; properties not given stay."""
        layout, tile = self.layout, self.tile
        storage = layout.storage
        if stored is not None:
            storage = storage_class(tile.memory, stored, tile.partitions)
        row = layout.partition if partition is None else partition
        view = self._view_at(layout_of(dims, storage, row), self.start if start is None else start)
        if dtype is not None:
            view.dtype = dtype
        if stored is not None:
            view.stored = stored
        if indirection is not None:
            view.indirection = indirection
        return view

    def _view_at(self, layout: ViewLayout, start: int | Affine) -> NkiTensor:
        """A view of the same tile with a layout, from element `start` of each partition on."""
        view: NkiTensor = allocate(NkiTensor)
        view.tile = self.tile
        view.dtype = self.dtype
        view.stored = self.stored
        view.buffer = self.buffer
        view.layout = layout
        view.start = start
        view.indirection = self.indirection
        view.fault = self.fault or layout.fault
        view._pattern = None
        return view

    # --- properties ----------------------------------------------------------------------------

    @property
    def dims(self) -> Dims:
        """(step, count) of each dimension, on chip the first in partitions, others in elements."""
        return self.layout.dims

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension."""
        return self.layout.shape

    @property
    def partition(self) -> int | Affine:
        """The first partition, on chip."""
        return self.layout.partition

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance of consecutive indices of each dimension, in elements of the storage."""
        steps = [step for step, _ in self.dims]
        if self.is_on_chip:
            steps[0] *= self._row_elements
        return tuple(steps)

    @property
    def offset(self) -> int:
        """Elements of the storage before the first of the view, without offsets in registers."""
        start = Affine.of(self.start).constant
        rows = Affine.of(self.partition).constant
        return start + rows * self._row_elements if self.is_on_chip else start

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.layout.dims)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        """The name of its storage."""
        return self.tile.name

    @property
    def is_on_chip(self) -> bool:
        """Whether it is in SBUF or PSUM."""
        return self.layout.is_on_chip

    @property
    def pattern(self) -> Pattern:
        """The access pattern of an operand that names this tensor, without its indirection."""
        pattern = self._pattern
        if pattern is None:
            layout, start = self.layout, self.start
            offset: Any = EXPRESSIONS.get(start) if start.__class__ is int else start
            if offset is None:
                offset = as_affine(start)
            pattern = Pattern(
                self.tile, self.stored, layout.operand_dims, offset, layout.operand_partition
            )
            self._pattern = pattern
        return pattern

    @property
    def direct_pattern(self) -> Pattern:
        """The access pattern, to read its contents; ImpossibleTensor for an indirect view."""
        if self.indirection is not None:
            self._refuse("an index is read when an instruction uses it; copy it to a tile first")
        return self.pattern

    @property
    def signature(self) -> ViewLayout:
        """The key of the tensor for rules: everything but its offset within the tile."""
        return self.layout

    @property
    def _row_elements(self) -> int:
        """Elements of the stored dtype in a partition of the tile."""
        return self.tile.bytes_per_partition // self.stored.bytes

    @property
    def _fixed_dims(self) -> int:
        """The number of leading dimensions that views keep: the partitions, or gathered rows."""
        is_gathered = self.indirection is not None and self.indirection.is_vector
        return 1 if self.is_on_chip or is_gathered else 0

    @property
    def is_whole(self) -> bool:
        """Whether it covers its whole tile in order."""
        elements = self.tile.bytes // self.stored.bytes
        return self.size == elements and self.is_contiguous() and not self.is_indirect()

    @property
    def is_element_gather(self) -> bool:
        """Whether indices on chip select its elements, as `.indirect()` makes it."""
        indirection = self.indirection
        return indirection is not None and indirection.is_vector and self.is_on_chip

    def is_contiguous(self) -> bool:
        """Whether its elements are contiguous in row-major order, on chip in each partition."""
        free = self.dims[1:] if self.is_on_chip else self.dims
        expected = row_major(tuple(count for _, count in free))
        return all(
            count == 1 or step == wanted
            for (step, count), (wanted, _) in zip(free, expected, strict=True)
        )

    def is_indirect(self) -> bool:
        """Whether its offset depends on an index in memory or on a register."""
        is_dynamic = isinstance(self.start, Affine) or isinstance(self.partition, Affine)
        return self.indirection is not None or is_dynamic

    def get_pattern(self) -> list[list[int]]:
        """[stride, count] of each dimension, strides in elements of storage."""
        return [list(pair) for pair in zip(self.strides, self.shape, strict=True)]

    # --- indexing ------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NkiTensor:
        """The view selected by integers, slices, nl.ds and `...`; slices are not clamped.

        An empty slice makes a view of no element: an instruction that would write it does nothing.

        An integer drops its dimension, except the last of a tensor in HBM, and on chip the
        partitions and the last free dimension. IndexOutsideTensor when an index is out of range.
        """
        entries = key if key.__class__ is tuple else (key,)
        layout, start = self.layout, self.start
        if self.indirection is not None:
            return self._index_general(entries)
        is_partition = layout.is_on_chip  # whether the next dimension is that of the partitions
        cut: list[int | tuple[int, int]] = [0]
        for (distance, extent), entry in zip(layout.dims, entries):  # noqa: B905 (twice the time)
            if entry.__class__ is slice:
                first, stop, step = entry.start, entry.stop, entry.step
                if first is None:
                    first = 0
                if stop is None:
                    stop = extent
                if not (first.__class__ is int is stop.__class__ and 0 <= first < stop <= extent):
                    break
                if step is None:
                    cut.append(stop - first)
                elif step.__class__ is int and step > 0:
                    cut.append((-(-(stop - first) // step), step))
                else:
                    break
            elif entry.__class__ is int and -extent <= entry < extent:
                first = entry if entry >= 0 else entry + extent
                cut.append(0)
            else:
                break
            if is_partition:
                cut[0] = first * distance
                is_partition = False
            elif first:
                start += first * distance
        else:
            if len(cut) > len(entries):
                to = tuple(cut)
                view: NkiTensor = allocate(NkiTensor)  # _view_at, inlined
                view.tile = self.tile
                view.dtype = self.dtype
                view.stored = self.stored
                view.buffer = self.buffer
                view.layout = layout.cuts.get(to) or layout.cut(to)
                view.start = start
                view.indirection = None
                view.fault = self.fault
                view._pattern = None
                return view
        return self._index_general(entries)

    def _index_general(self, entries: tuple[Any, ...]) -> NkiTensor:
        """The view selected by an index of any kind."""
        if any(entry is Ellipsis for entry in entries):
            return self[expand_index(entries, self.shape)]
        if len(entries) != self.ndim:
            entries = expand_index(entries, self.shape)
        on_chip = self.is_on_chip
        start, partition = self.start, self.partition
        dims: list[tuple[int, int]] = []
        dropped: list[int] = []
        for dimension, entry in enumerate(entries):
            distance, extent = self.dims[dimension]
            first, step, count, is_integer = resolve_entry(entry, dimension, self.shape)
            if self.is_element_gather and (first != 0 or step != 1 or count != extent):
                self._refuse("a view made by .indirect() cannot be sliced")
            if first.__class__ is not int or first:
                self._require_free(dimension)
                if on_chip and not dimension:
                    partition = partition + first * distance
                else:
                    start = start + first * distance
            dims.append((distance * step, count))
            if is_integer:
                dropped.append(dimension)
        if dropped:
            dims = drop_dims(dims, dropped, on_chip)
        return self._derive(tuple(dims), start=start, partition=partition)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        feature = "lvalue assignment (t[i] = x; write with an nki.isa function instead)"
        raise NotInNki(feature=feature, loc=caller())

    def __iter__(self) -> NoReturn:
        raise NotInNki(feature="iterating over a tensor (loop over its indices)", loc=caller())

    def __len__(self) -> int:
        return self.shape[0]

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements start, start + step, ... below `end` of a dimension; bounds are not clamped."""
        dim = self._dimension(dim)
        is_inside = 0 <= start <= end <= self.shape[dim] and step >= 1
        require_inside(is_inside, dim, f"{start}:{end}", self.shape)
        return self._slice_dim(dim, start, -(-(end - start) // step), step)

    def select(self, dim: int, index: int | NkiTensor) -> NkiTensor:
        """The element `index` of a dimension, which is dropped.

        The index may be a register or a tensor of one element in SBUF, read when the view is used;
        a view has at most one such index (ImpossibleTensor).
        """
        dim = self._dimension(dim)
        if isinstance(index, NkiTensor | VirtualRegister):
            return self._select_dynamic(dim, index)
        position = int(index) + (self.shape[dim] if index < 0 else 0)
        require_inside(0 <= position < self.shape[dim], dim, index, self.shape)
        return self._slice_dim(dim, position, 1, 1)._drop_unless_fixed(dim)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row vector_offset[p] of dimension 0 for each p: a gather, or in a dst a scatter.

        `vector_offset` is (rows, 1) in SBUF, the tensor in HBM.
        """
        if self.is_on_chip or self.is_indirect() or dim != 0:
            self._refuse("vector_select takes dimension 0 of a direct view in HBM")
        count = vector_offset.shape[0]
        step, rows = self.dims[0]
        indirection = Indirection(vector_offset, step, rows, is_vector=True)
        return self._derive(((step, count), *self.dims[1:]), indirection=indirection)

    def _select_dynamic(self, dim: int, index: NkiTensor | VirtualRegister) -> NkiTensor:
        if self.is_indirect():
            self._refuse("a view has one dynamic index at most")
        if self.is_on_chip and dim == 0:
            self._refuse("the partition dim cannot be selected at run time")
        step, rows = self.dims[dim]
        return self._offset_by(index, step, rows)._drop_dim(dim)

    def _offset_by(
        self, index: NkiTensor | VirtualRegister, step: int, rows: int, is_partition: bool = False
    ) -> NkiTensor:
        """The view offset by `index` times `step`."""
        if isinstance(index, NkiTensor):
            if index.size != 1:
                self._refuse(f"a dynamic index is one element, not {index.shape}")
            moved = Indirection(index, step, rows, is_partition=is_partition)
            return self._derive(self.dims, indirection=moved)
        distance = index.expression * step
        if is_partition:
            return self._derive(self.dims, partition=Affine.of(self.partition) + distance)
        return self._derive(self.dims, start=Affine.of(self.start) + distance)

    # --- views of the same elements --------------------------------------------------------------

    @memoize_view
    def permute(self, dims: tuple[int, ...]) -> NkiTensor:
        """The dimensions in another order; the partitions stay first."""
        self._require_direct("permuted")
        if sorted(dims) != list(range(self.ndim)) or tuple(dims[: self._fixed_dims]) != (0,) * (
            self._fixed_dims
        ):
            self._refuse(f"cannot permute the dimensions to {tuple(dims)}")
        return self._derive(tuple(self.dims[d] for d in dims))

    @memoize_view
    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dimension of extent 1 repeated `size` times."""
        self._require_direct("repeated")
        dim, dims = self._free_dim(dim, "broadcast"), self.layout.dims
        if dims[dim][1] != 1:
            self._refuse(f"dimension {dim} has {dims[dim][1]} elements, broadcast takes 1")
        return self._derive((*dims[:dim], (0, int(size)), *dims[dim + 1 :]))

    @memoize_view
    def expand_dim(self, dim: int) -> NkiTensor:
        """A new dimension of extent 1 at a position."""
        position = dim + self.ndim + 1 if dim < 0 else dim
        if not self._fixed_dims <= position <= self.ndim:
            self._refuse(f"no dimension can be inserted at {dim}")
        return self._derive((*self.dims[:position], (1, 1), *self.dims[position:]))

    @memoize_view
    def squeeze_dim(self, dim: int) -> NkiTensor:
        """The view without a dimension of extent 1."""
        dim = self._free_dim(dim, "squeezed")
        if self.shape[dim] != 1:
            self._refuse(f"dimension {dim} has {self.shape[dim]} elements and stays")
        return self._drop_dim(dim)

    @memoize_view
    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> NkiTensor:
        """One dimension split into several; one extent may be -1."""
        dim = self._dimension(dim)
        step, extent = self.dims[dim]
        sizes = self._infer_shape(tuple(shape), extent)
        if dim < self._fixed_dims and sizes != (extent,):
            self._refuse("the partition dim cannot be split")
        split = tuple((inner * step, count) for inner, count in row_major(sizes))
        return self._derive((*self.dims[:dim], *split, *self.dims[dim + 1 :]))

    @memoize_view
    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions start_dim to end_dim, both included, as one; they must be neighbours."""
        start, end = self._free_dim(start_dim, "merged"), self._dimension(end_dim)
        merged = regrouped(self.dims[start : end + 1], (math.prod(self.shape[start : end + 1]),))
        if merged is None or end < start:
            self._refuse(f"non-contiguous layout of dimensions {start} to {end}")
        return self._derive((*self.dims[:start], *merged, *self.dims[end + 1 :]))

    @accepts_earlier_signatures("NkiTensor.reshape")
    @memoize_view
    def reshape(self, shape: tuple[int, ...]) -> NkiTensor:
        """The same elements in the same order in another shape; on chip the partitions stay.

        One extent may be -1. ImpossibleTensor when the number of elements differs or no strides
        give that shape.
        """
        wanted = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
        if not all(is_integer(each) for each in wanted):
            self._refuse(f"a shape is a tuple of integers, not {shape!r}")
        sizes = self._infer_shape(tuple(int(n) for n in wanted), self.size)
        fixed = self._fixed_dims
        if sizes[:fixed] != self.shape[:fixed]:
            self._refuse(f"the partition dim cannot be reshaped to {sizes[0]}")
        free = regrouped(self.dims[fixed:], sizes[fixed:])
        if free is None:
            self._refuse(f"non-contiguous layout: it does not allow the shape {sizes}")
        return self._derive((*self.dims[:fixed], *free))

    @memoize_view
    def rearrange(
        self,
        src_pattern: tuple[Any, ...],
        dst_pattern: tuple[Any, ...],
        fixed_sizes: dict[str, int] | None = None,
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name, as in ("b", ("h", "w")) -> ("b", "w", "h").

        `fixed_sizes` gives extents of split dimensions; one of a group may be left out.
        """
        known, view = fixed_sizes or {}, self
        names: list[str] = []
        groups = [group_names(each) for each in src_pattern]
        if len(groups) != self.ndim:
            self._refuse(f"{src_pattern} names {len(groups)} dimensions")
        for group in groups:
            if len(group) > 1:
                sizes = tuple(known.get(name, -1) for name in group)
                view = view.reshape_dim(len(names), sizes)
            names += group
        wanted = [name for each in dst_pattern for name in group_names(each)]
        if sorted(wanted) != sorted(names):
            self._refuse(f"{src_pattern} and {dst_pattern} name different dimensions")
        view = view.permute(tuple(names.index(name) for name in wanted))
        for position, each in enumerate(dst_pattern):
            count = len(group_names(each))
            if count > 1:
                view = view.flatten_dims(position, position + count - 1)
        return view

    def view(self, dtype: str) -> NkiTensor:
        """The same bits as another dtype; the last dimension is scaled by their widths."""
        cast = self._cast(dtype)
        wide, narrow = self.stored.bytes, cast.stored.bytes
        if wide == narrow:
            return cast
        *outer, (step, count) = self.dims
        if self.indirection is not None:
            self._refuse(
                "reinterpret_cast with different element sizes is not supported after "
                "dynamic/vector select"
            )
        if (step != 1 and count != 1) or self.ndim <= self._fixed_dims:
            self._refuse(f"non-contiguous layout: its last elements cannot be viewed as {dtype}")
        first, free = outer[: self._fixed_dims], outer[self._fixed_dims :]
        scaled = [(self._rescale(each, wide, narrow), n) for each, n in free]
        return cast._derive((*first, *scaled, (1, self._rescale(count, wide, narrow))))

    reinterpret_cast = view

    def ap(
        self,
        pattern: list[list[int]],
        offset: int | None = None,
        scalar_offset: NkiTensor | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: str | None = None,
    ) -> NkiTensor:
        """An access pattern of [stride, count] pairs over the storage, whatever this view's shape.

        `offset` elements are added to the view's own. On chip the first stride must be a row of
        the storage. `scalar_offset` (a register or one element in SBUF) or `vector_offset` (one
        index for each row, of HBM) times the stride of this tensor's dimension `indirect_dim` is
        added when the view is used.
        """
        self._require_direct("given another pattern")
        base = self if dtype is None else self._cast(dtype)
        dims, start, partition = base._strided(pattern, offset)
        result = base._derive(dims, start=start, partition=partition)
        if scalar_offset is not None and vector_offset is not None:
            self._refuse("ap takes scalar_offset or vector_offset, not both")
        if scalar_offset is not None or vector_offset is not None:
            result = self._index_dynamically(result, scalar_offset, vector_offset, indirect_dim)
        else:
            result.fault = result._bounds_fault()
        return result

    def _cast(self, dtype: str) -> NkiTensor:
        """The storage from this view's start on as another dtype, with the same dims."""
        name = validate_dtype(dtype, self.shape, self.buffer)
        is_wide = self.stored is not DTYPES[self.dtype]
        new = self.stored if is_wide and DTYPES[name].is_float else DTYPES[name]
        start = Affine.of(self.start)
        wide, narrow = self.stored.bytes, new.bytes
        terms = {v: self._rescale(c, wide, narrow) for v, c in start.terms}
        offset = Affine.build(terms, self._rescale(start.constant, wide, narrow))
        at = offset if offset.terms else offset.constant
        return self._derive(self.dims, dtype=name, stored=new, start=at)

    def _strided(
        self, pattern: list[list[int]], offset: int | None
    ) -> tuple[Dims, int | Affine, int | Affine]:
        """(dims, start, partition) of a pattern over the storage."""
        try:
            pairs = [(int(stride), int(count)) for stride, count in pattern]
        except (TypeError, ValueError):
            self._refuse(f"a pattern is a list of [stride, count], not {pattern!r}")
        if not pairs or any(count < 1 for _, count in pairs):
            self._refuse(f"the pattern {pattern} names no element")
        extra = 0 if offset is None else int(offset)
        if not self.is_on_chip:
            return tuple(pairs), self.start + extra, self.partition
        row = self._row_elements
        stride, count = pairs[0]
        if count > 1 and stride % row:
            self._refuse(f"the first stride is {stride}, not a row of its storage ({row})")
        first = (stride // row if count > 1 else 1, count)
        start = self.start + extra
        if isinstance(start, int):
            return (first, *pairs[1:]), start % row, self.partition + start // row
        return (first, *pairs[1:]), start, self.partition

    def _index_dynamically(
        self, view: NkiTensor, scalar: Any, vector: NkiTensor | None, dimension: int
    ) -> NkiTensor:
        """An ap view offset by `scalar` or `vector` steps of a dimension of this tensor."""
        if view.is_indirect():
            self._refuse("a view has one dynamic index at most")
        dimension = self._dimension(dimension)
        step, rows = self.dims[dimension]
        is_partition = self.is_on_chip and dimension == 0
        if not is_partition:
            step = self._rescale(step, self.stored.bytes, view.stored.bytes)
        if vector is None:
            return view._offset_by(scalar, step, rows, is_partition)
        if dimension != 0 or self.is_on_chip:
            self._refuse("vector_offset takes dimension 0 of a tensor in HBM")
        dims = ((step, view.shape[0]), *view.dims[1:])
        indirection = Indirection(vector, step, rows, is_vector=True)
        return view._derive(dims, indirection=indirection)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Elements of each partition selected by `index`, which is shared by groups of partitions.

        Offset i of a group is index[i % G, i // G] of that group; it counts elements of the free
        dimensions, which must be evenly strided. G is 16, for operands of the Tensor Engine 32.
        `num_elem` defaults to the number of elements of the index. Generation 4 and later; each
        instruction's page says which of its operands may be such views.
        """
        if not self.is_on_chip or self.is_indirect():
            self._refuse("indirect takes a direct view in SBUF or PSUM")
        if index.is_indirect() or index.shape[0] != self.shape[0]:
            self._refuse(f"an index for {self.shape[0]} partitions cannot be {index!r}")
        free = regrouped(self.dims[1:], (math.prod(self.shape[1:]),))
        if free is None:
            self._refuse("non-contiguous layout: offsets need free dimensions that lie evenly")
        ((step, extent),) = free
        count = index.size if num_elem is None else int(num_elem)
        indirection = Indirection(index, step, extent, is_vector=True)
        return self._derive((self.dims[0], (step, count)), indirection=indirection)

    # --- checks --------------------------------------------------------------------------------

    def _require_direct(self, done: str) -> None:
        if self.is_element_gather:
            self._refuse(f"a view made by .indirect() cannot be {done}")

    def _require_free(self, dimension: int) -> None:
        if self.indirection is not None and self.indirection.is_vector and dimension == 0:
            self._refuse("the dimension of an indirection cannot be sliced")

    def _dimension(self, dim: int) -> int:
        position = dim + self.ndim if dim < 0 else dim
        if not 0 <= position < self.ndim:
            self._refuse(f"it has no dimension {dim}")
        return position

    def _free_dim(self, dim: int, done: str) -> int:
        position = self._dimension(dim)
        if position < self._fixed_dims:
            self._refuse(f"the partition dim cannot be {done}")
        return position

    def _slice_dim(self, dim: int, start: int, count: int, step: int) -> NkiTensor:
        """The view with one dimension sliced and none dropped."""
        self._require_direct("sliced")
        if start:
            self._require_free(dim)
        distance = self.dims[dim][0]
        dims = (*self.dims[:dim], (distance * step, count), *self.dims[dim + 1 :])
        if self.is_on_chip and dim == 0:
            return self._derive(dims, partition=self.partition + start * distance)
        return self._derive(dims, start=self.start + start * distance)

    def _drop_unless_fixed(self, dim: int) -> NkiTensor:
        return self if dim < self._fixed_dims else self._drop_dim(dim)

    def _drop_dim(self, dim: int) -> NkiTensor:
        dims = (*self.dims[:dim], *self.dims[dim + 1 :])
        return self._derive(dims if dims and len(dims) > self._fixed_dims else (*dims, (1, 1)))

    def _infer_shape(self, shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
        """The shape with its -1 inferred; ImpossibleTensor unless it has that many elements."""
        known = math.prod(n for n in shape if n != -1)
        if shape.count(-1) == 1 and known > 0 and elements % known == 0:
            shape = tuple(elements // known if n == -1 else n for n in shape)
        if math.prod(shape) != elements or any(n < 1 for n in shape):
            self._refuse(f"size mismatch: {elements} elements cannot be reshaped to {shape}")
        return shape

    def _rescale(self, elements: int, wide: int, narrow: int) -> int:
        if elements * wide % narrow:
            self._refuse(f"{elements} elements of {wide} bytes are no elements of {narrow} bytes")
        return elements * wide // narrow

    def _bounds_fault(self) -> str:
        """How a constant pattern reaches outside its storage; "" when it does not.

        It is an error only of an instruction that uses the view: the last iteration of a loop may
        make one and leave it.
        """
        start, partition = Affine.of(self.start), Affine.of(self.partition)
        free = self.dims[1:] if self.is_on_chip else self.dims
        low, high = reach(free)
        limit = self._row_elements if self.is_on_chip else self.tile.bytes // self.stored.bytes
        if start.is_constant and not 0 <= start.constant + low <= start.constant + high < limit:
            ends = f"{start.constant + low} to {start.constant + high}"
            return f"the pattern reaches elements {ends} of {limit}"
        if self.is_on_chip and partition.is_constant:
            last = partition.constant + self.dims[0][0] * (self.dims[0][1] - 1)
            if not 0 <= partition.constant <= last < self.tile.partitions:
                return f"the pattern reaches partition {last} of {self.tile.partitions}"
        return ""

    def require_inside(self) -> None:
        """ImpossibleTensor when the view reaches outside its storage."""
        if self.fault:
            self._refuse(self.fault)

    def _refuse(self, reason: str) -> NoReturn:
        refuse_tensor(self.shape, self.dtype, self.buffer, reason)

    # --- contents, while a kernel is simulated ----------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of its contents, while the kernel is simulated; UnknownWhenTraced otherwise."""
        contents = contents_of(self.direct_pattern, "its contents").reshape(self.shape)
        return contents if dtype is None else contents.astype(dtype)

    def __bool__(self) -> bool:
        """Whether every element is true, of what a comparison made; True of any other tensor.

        `assert nl.equal(a, b)` asks for contents; `if bias:` whether an argument is None.
        """
        session = session_or_none()
        is_truth = session is not None and self.tile.name in session.truths
        return truth_of(self.direct_pattern) if is_truth else True

    def __repr__(self) -> str:
        text = f"NkiTensor({self.name}, {self.dtype}{list(self.shape)} in {self.buffer.value}"
        session = session_or_none()
        is_known = session is not None and self.indirection is None
        contents = session.read(self.pattern) if session is not None and is_known else None
        return f"{text})" if contents is None else f"{text},\n{contents.reshape(self.shape)})"


def ndarray(
    shape: tuple[int, ...] | list[int],
    dtype: str,
    buffer: MemoryRegion = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A new uninitialised tensor; on chip the first dimension is the partitions.

    `address` fixes (partition, byte in the partition) of an on-chip tensor. ImpossibleTensor
    when the memory cannot hold it.
    """
    session = CURRENT.get() or current("nl.ndarray")
    spec = tensor_spec(session, shape, dtype, buffer)
    tensor = allocate(NkiTensor)
    if address is None:
        tensor._bind(new_tile(session, spec, name), spec.dtype, spec.stored, buffer, spec.layout)
        return tensor
    partition, byte = validate_address(address, spec.shape, spec.dtype, buffer)
    tile = new_tile(session, spec, name, partition, byte)
    storage = storage_class(tile.memory, spec.stored, tile.partitions)
    layout = layout_of(spec.layout.dims, storage, partition)
    tensor._bind(tile, spec.dtype, spec.stored, buffer, layout)
    return tensor
