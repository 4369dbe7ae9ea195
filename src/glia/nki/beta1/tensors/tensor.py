"""`Tensor`: a view of a tensor, a slot to assign to, and the result of a deferred instruction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.base.affine import Affine
from glia.base.loc import Loc
from glia.nki.beta1.errors import (
    AccessOutOfBound,
    AmbiguousTruth,
    DynamicControlFlow,
    ImmutableParameter,
    IndirectNotSupported,
    LocalOutOfScope,
    NotATile,
    OutputDependency,
    UnsupportedHere,
    UnsupportedIndex,
)
from glia.nki.beta1.run.frame import Frame, running_frame
from glia.nki.beta1.tensors.access import (
    DynamicIndex,
    ShiftedIndex,
    TileAccess,
    resolve_access,
    row_major_steps,
)
from glia.nki.beta1.tensors.dtypes import to_dtype_name, to_numpy_dtype
from glia.nki.beta1.tensors.index import Box, Index, Mask
from glia.nki.beta1.tensors.storage import (
    PhysicalTile,
    Storage,
    poison_overlapping,
    restart_accumulation,
    write_fill,
)
from glia.nki.names.enums import MemoryRegion
from glia.nki.names.language_errors import advise
from glia.nki.names.operators import operator_name
from glia.nki.session.session import caller
from glia.nki.tensors.dynamic_offsets import Indirection
from glia.nki.tensors.nki_tensor import NkiTensor

Dims = tuple[tuple[int, int], ...]
Operator = Callable[[Any, Any], Any]
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # of nl, which operators and methods call


def _operator_method(name: str, *, is_reversed: bool = False) -> Operator:
    """A method that applies the function `name` of nl to its operands, reversed if asked."""
    return lambda tensor, other: tensor._operator(name, other, is_reversed)


def _operator_methods(name: str) -> tuple[Operator, Operator, Operator]:
    """The methods of x op y, y op x and x op= y."""

    def update(tensor: Tensor, other: Any) -> Tensor:
        with tensor.frame.combining():
            FUNCTIONS["assign"](tensor, FUNCTIONS[name](tensor, other, spreads_partitions=False))
        return tensor

    return _operator_method(name), _operator_method(name, is_reversed=True), update


class Tensor:
    """A view of a tensor in SBUF, PSUM or HBM, with block dimensions in front of its tile.

    `shape`, `dtype` (NumPy's), `ndim`, `itemsize` and `buffer` are known when a kernel is traced.
    Operators compute new tiles; `tensor[index] = x` writes a slot and `+=` adds in place.
    """

    is_tile = True
    __slots__ = (
        "__weakref__", "block", "block_dims", "bounds", "dims", "dtype_name", "dynamic", "mask",
        "partition", "start", "storage", "stored",
    )  # fmt: skip
    __hash__ = object.__hash__

    if TYPE_CHECKING:  # the brackets of an annotation, `nt.tensor[128, 512]`

        def __class_getitem__(cls, shape: Any) -> Any: ...

    def __init__(
        self,
        storage: Storage,
        *,
        block: int = 0,
        block_dims: Dims = (),
        dims: Dims = (),
        start: int | Affine = 0,
        partition: int | Affine = 0,
        dtype_name: str = "",
        stored: Any = None,
        bounds: tuple[tuple[int, Index, int], ...] = (),
        dynamic: tuple[DynamicIndex, int, int] | None = None,
        mask: Any = None,
    ) -> None:
        self.storage = storage
        self.block = block
        self.block_dims = block_dims
        self.dims = dims
        self.start = start
        self.partition = partition
        self.dtype_name = dtype_name or storage.dtype
        self.stored = stored
        self.bounds = bounds
        self.dynamic = dynamic
        self.mask = mask

    @classmethod
    def of_storage(cls, storage: Storage) -> Tensor:
        """The view of every block and element of a storage."""
        blocks = tuple(zip(row_major_steps(storage.blocks), storage.blocks, strict=True))
        shape = storage.shape
        if storage.region.is_on_chip:
            free = zip(row_major_steps(shape[1:]), shape[1:], strict=True)
            return cls(storage, block_dims=blocks, dims=((1, shape[0]), *free))
        dims = tuple(zip(row_major_steps(shape), shape, strict=True))
        return cls(storage, block_dims=blocks, dims=dims)

    @classmethod
    def from_core_view(cls, storage: Storage, block: int, view: NkiTensor) -> Tensor:
        """A view of one block of a storage with the dimensions of a core tensor `view`."""
        return cls(
            storage, block=block, dims=view.dims, start=view.start, partition=view.partition,
            dtype_name=view.dtype, stored=view.stored,
        )  # fmt: skip

    def _replace(self, **changed: Any) -> Tensor:
        fields = {name: getattr(self, name) for name in self.__slots__[1:] if name != "storage"}
        return Tensor(self.storage, **{**fields, **changed})

    # --- what is known about it ----------------------------------------------------------------

    @property
    def frame(self) -> Frame:
        """The kernel run that owns it."""
        return self.storage.frame

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension, blocks first."""
        return tuple(count for _, count in (*self.block_dims, *self.dims))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return to_numpy_dtype(self.dtype_name)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.block_dims) + len(self.dims)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def buffer(self) -> Any:
        """The buffer that nl.ndarray was given."""
        return self.storage.buffer

    @property
    def name(self) -> str:
        """The name of its memory."""
        return self.storage.name

    @property
    def region(self) -> MemoryRegion:
        """The memory it lives in."""
        return self.storage.region

    @property
    def is_on_chip(self) -> bool:
        """Whether it is in SBUF or PSUM."""
        return self.region.is_on_chip

    def assert_shape(self, shape: Any) -> Tensor:
        """The tensor itself; AssertionError when it has another shape."""
        assert tuple(shape) == self.shape, f"shape is {self.shape}, not {tuple(shape)}"
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise UnsupportedHere(
            what="iteration over a tensor", why="loop over a range and index with it", loc=caller()
        )

    # --- access --------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Tensor:
        """The view that integers, slices, index objects or a tile of indices choose."""
        if isinstance(key, Mask):
            return self._replace(mask=key)
        if isinstance(key, bool | np.bool_):
            return self._replace(mask=None if key else False)
        entries = key if isinstance(key, tuple) else (key,)
        if all(entry is Ellipsis for entry in entries) and len(entries) < 2:
            return self._replace()
        if self.dynamic is not None:
            raise IndirectNotSupported(loc=caller())
        self.check(None)
        partition = len(self.block_dims) if self.is_on_chip else None
        return self._view_access(resolve_access(self.shape, partition, key))

    def _view_access(self, access: TileAccess) -> Tensor:
        rank = len(access.shape)
        outer, free, rows = [0] * rank, [0] * rank, [0] * rank
        block, start, partition = self.block, self.start, self.partition
        blocks = len(self.block_dims)
        for dim, entry in enumerate(access.entries):
            step = (*self.block_dims, *self.dims)[dim][0]
            if dim < blocks:
                block, moved = block + entry.start * step, outer
            elif dim == blocks and self.is_on_chip:
                partition, moved = partition + entry.start * step, rows
            else:
                start, moved = start + entry.start * step, free
            for axis, each in enumerate(entry.steps):
                moved[axis] += each * step
        count = _block_axes(outer)
        found = self._replace(
            block=block, start=start, partition=partition, mask=None,
            block_dims=tuple(zip(outer[:count], access.shape[:count], strict=True)),
            dims=self._tile_dims(access.shape, rows, free, count),
            bounds=self._out_of_bounds(access),
        )  # fmt: skip
        if access.dynamic is not None:
            return found._offset_by_index(access.dynamic, self)
        return found

    def _tile_dims(
        self, shape: tuple[int, ...], rows: list[int], free: list[int], first: int
    ) -> Dims:
        if not self.is_on_chip:
            return tuple(zip(free[first:], shape[first:], strict=True))
        moving = [axis for axis, step in enumerate(rows) if step and shape[axis] > 1]
        if (moving and moving != [first]) or (free[first] and shape[first] > 1):
            what = f"axes {moving or [first]} of {shape} along the partitions"
            raise UnsupportedIndex(what=what, loc=caller())
        step = rows[first] if shape[first] > 1 else 1
        return ((step, shape[first]), *zip(free[first + 1 :], shape[first + 1 :], strict=True))

    def _out_of_bounds(self, access: TileAccess) -> tuple[tuple[int, Index, int], ...]:
        """(dimension, index, extent) of each dimension that reaches outside unless masked."""
        skipped = access.dynamic.dim if access.dynamic else -1
        bounds = []
        for dim, entry in enumerate(access.entries):
            low, high = entry.value_range()
            is_inside = 0 in access.shape or 0 <= low <= high < self.shape[dim]
            if dim != skipped and not is_inside:
                bounds.append((dim, entry, self.shape[dim]))
        return tuple(bounds)

    def _offset_by_index(self, dynamic: DynamicIndex, base: Tensor) -> Tensor:
        step, rows = (*base.block_dims, *base.dims)[dynamic.dim]
        if dynamic.dim < len(base.block_dims):
            raise UnsupportedIndex(
                what="a block chosen by an index in memory (make blocks a free dimension)",
                loc=caller(),
            )
        if dynamic.is_vector and self.is_on_chip:
            raise IndirectNotSupported(loc=caller())
        return self._replace(dynamic=(dynamic, step, rows))

    def check(self, box: Box | None) -> None:
        """Raise AccessOutOfBound when the elements of `box` reach outside the tensor."""
        for dim, entry, extent in self.bounds:
            low, high = entry.value_range(box)
            if not 0 <= low <= high < extent:
                raise AccessOutOfBound(
                    name=self.name, axis=dim, low=low, high=high, extent=extent, loc=caller()
                )

    def view_of(self, base: NkiTensor, box: Box | None = None) -> NkiTensor:
        """The core tensor of the part of a tile that `box` leaves, within the tile `base`."""
        if self.block_dims:
            raise NotATile(name=self.name, shape=self.shape, loc=caller())
        self.check(box)
        start, partition = self.start, self.partition
        dims = list(self.dims)
        first = box[0][0] if box else 0
        for axis, (low, end) in enumerate(box or ()):
            step = dims[axis][0]
            dims[axis] = (step, end - low)
            if axis == 0 and self.is_on_chip:
                partition = partition + low * step
            else:
                start = start + low * step
        changed: dict[str, Any] = {"dtype": self.dtype_name, "start": start}
        if self.stored is not None:
            changed["stored"] = self.stored
        view = base._derive(tuple(dims), partition=partition, **changed)
        return self._indirect(view, first, dims[0][1]) if self.dynamic else view

    def _indirect(self, view: NkiTensor, first: int, count: int) -> NkiTensor:
        assert self.dynamic is not None
        dynamic, step, rows = self.dynamic
        index = dynamic.tensor.read_view()
        if not dynamic.is_vector:
            return view._derive(view.dims, indirection=Indirection(index, step, rows))
        chosen = index.slice(0, first, first + count)
        start = view.start - first * view.dims[0][0]
        indirection = Indirection(chosen, step, rows, is_vector=True)
        return view._derive(((step, count), *view.dims[1:]), start=start, indirection=indirection)

    # --- use -----------------------------------------------------------------------------------

    def read_view(self, box: Box | None = None) -> NkiTensor:
        """The core tensor to read, after deferred instructions are issued.

        LocalOutOfScope after the loop that made it.
        """
        self.require_scope()
        self.frame.flush()
        found = self._physical_tile()
        write_fill(self.frame, found)
        return self.view_of(found.tensor, box)

    def write_view(
        self, box: Box | None = None, *, is_sum: bool = False, is_partial: bool = False
    ) -> NkiTensor:
        """The core tensor to write; ImmutableParameter for a parameter that is not mutable.

        `is_sum`: products are accumulated. `is_partial`: some elements keep their contents.
        LocalOutOfScope after the loop that made it.
        """
        self.require_scope()
        self.frame.flush()
        if self.storage.is_constant:
            raise ImmutableParameter(name=self.name, loc=caller())
        self.storage.detach_forwarded_tensors()
        self.storage.write_count += 1
        found = self._physical_tile()
        view = self.view_of(found.tensor, box)
        if is_sum:
            restart_accumulation(self.frame, found, self.block)
        found.last_block = self.block
        is_whole = view.size == found.tensor.size and view.indirection is None
        if is_whole and not is_partial:
            found.fill = None
        write_fill(self.frame, found)
        found.holds_sums = found.holds_sums and is_sum
        found.is_written = True
        poison_overlapping(self.frame, found)
        if not is_sum and view.indirection is None:
            self._check_output_dependency(view)
        return view

    def restart_sums(self) -> None:
        """Let products add to a tile all of which was just cleared, as to one made of zeros."""
        found = self._physical_tile()
        if self.view_of(found.tensor).size == found.tensor.size and self.dynamic is None:
            found.holds_sums = True

    def _check_output_dependency(self, view: NkiTensor) -> None:
        """OutputDependency when two iterations of an nl.affine_range write one address."""
        place = self.storage.number, self.block, view.start, view.partition, view.dims
        if self.frame.conflicts_across_iterations(self.storage.depth, place):
            raise OutputDependency(name=self.name, loc=caller())

    def require_scope(self, loc: Loc | None = None) -> None:
        """LocalOutOfScope after the loop, or the run of the kernel, that made the tensor."""
        if self.storage.scope.is_closed or self.frame is not running_frame():
            raise LocalOutOfScope(name=self.storage.name, loc=loc or caller())
        if self.dynamic is not None:
            self.dynamic[0].tensor.require_scope(loc)

    def physical_tile(self) -> PhysicalTile:
        """The tile that it is a view of, after deferred instructions are issued."""
        self.frame.flush()
        return self._physical_tile()

    def _physical_tile(self) -> PhysicalTile:
        if self.block_dims:
            raise NotATile(name=self.name, shape=self.shape, loc=caller())
        for dim, entry, extent in self.bounds:
            if dim == 0 and self.storage.blocks and not 0 <= entry.start < extent:
                self.check(None)
        return self.storage.physical_tile(self.block)

    def copy_to(self, storage: Storage) -> None:
        """Copy the contents to another tensor's memory."""
        FUNCTIONS["assign"](Tensor.of_storage(storage), self)

    def contents(self) -> np.ndarray:
        """A copy of the elements; DynamicControlFlow while a kernel is compiled."""
        held = self.frame.session.read(self.read_view().pattern)
        if held is None:
            raise DynamicControlFlow(loc=caller())
        return held.reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of its contents, known only while simulated; warns with a KernelAdvice."""
        advise("the contents of a tile are known only while simulated: nl.device_print", caller())
        held = self.contents()
        return held.astype(dtype or self.dtype)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise AmbiguousTruth(loc=caller())
        raise DynamicControlFlow(loc=caller())

    def __repr__(self) -> str:
        return f"{self.dtype} {self.name}{list(self.shape)} in {self.region.value}"

    # --- views of the same elements --------------------------------------------------------------

    def _apply_view(self, change: Callable[[NkiTensor], NkiTensor]) -> Tensor:
        """The view of this tile that `change` makes of its core tensor."""
        if self.dynamic is not None:
            raise IndirectNotSupported(loc=caller())
        self.check(None)
        found = self.physical_tile()
        view = change(self.view_of(found.tensor))
        return Tensor.from_core_view(self.storage, self.block, view)

    def reshape(self, shape: Any, *more: int) -> Tensor:
        """The same elements in order in another shape; on chip the partitions stay."""
        sizes = tuple(int(n) for n in ((shape, *more) if isinstance(shape, int) else shape))
        if self.block_dims and sizes[-len(self.dims) :] == self.shape[-len(self.dims) :]:
            return self._reshape_blocks(sizes[: -len(self.dims)])
        return self._apply_view(lambda view: view.reshape(sizes))

    def _reshape_blocks(self, blocks: tuple[int, ...]) -> Tensor:
        counts = tuple(count for _, count in self.block_dims)
        steps = row_major_steps(counts)
        regular = tuple(zip(steps, counts, strict=True)) == self.block_dims
        if not regular or math.prod(blocks) != math.prod(counts):
            raise UnsupportedHere(
                what=f"reshaping blocks {counts} to {blocks}",
                why="their number stays, and all of them lie in order",
                loc=caller(),
            )
        return self._replace(block_dims=tuple(zip(row_major_steps(blocks), blocks, strict=True)))

    def view(self, dtype: Any) -> Tensor:
        """The same bits as another dtype."""
        name = to_dtype_name(dtype)
        return self._apply_view(lambda view: view.view(name))

    def expand_dims(self, axis: int) -> Tensor:
        """A view with a dimension of one element at a position."""
        return self._apply_view(lambda view: view.expand_dim(axis))

    def astype(self, dtype: Any) -> Tensor:
        """A copy in another dtype."""
        copied: Tensor = FUNCTIONS["copy"](self, dtype=dtype)
        return copied

    def broadcast_to(self, shape: Any) -> Tensor:
        """The tile repeated along dimensions of one element; along the partitions it is copied."""
        repeated: Tensor = FUNCTIONS["broadcast_to"](self, shape=tuple(shape))
        return repeated

    # --- assignment ----------------------------------------------------------------------------

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write a slot: a tile, which broadcasts, or a number."""
        slot = self[key]
        if isinstance(value, Tensor) and value.views_same_elements(slot):
            return  # after +=, which has written it already
        FUNCTIONS["assign"](slot, value)

    def views_same_elements(self, other: Tensor) -> bool:
        """Whether `other` views the same elements in the same order."""
        return self.storage is other.storage and all(
            getattr(self, name) == getattr(other, name)
            for name in ("block", "dims", "start", "partition", "block_dims")
        )

    # --- operators -----------------------------------------------------------------------------

    def _operator(self, name: str, other: Any, is_reversed: bool = False) -> Any:
        if other is None and name in ("equal", "not_equal"):
            return name == "not_equal"
        if not is_operand(other):
            what = f"nl.{name} of a tensor and a {type(other).__name__}"
            raise UnsupportedHere(what=what, why="operands are tiles and numbers", loc=caller())
        x, y = (other, self) if is_reversed else (self, other)
        return FUNCTIONS[name](x, y, spreads_partitions=False)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Index):
            return ShiftedIndex(self, other)
        return self._operator("add", other)

    __radd__ = _operator_method("add", is_reversed=True)
    __sub__, __rsub__, __isub__ = _operator_methods("subtract")
    __mul__, __rmul__, __imul__ = _operator_methods("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _operator_methods("divide")
    __pow__, __rpow__, __ipow__ = _operator_methods("power")
    __mod__, __rmod__, __imod__ = _operator_methods("mod")
    __and__, __rand__, __iand__ = _operator_methods("bitwise_and")
    __or__, __ror__, __ior__ = _operator_methods("bitwise_or")
    __xor__, __rxor__, __ixor__ = _operator_methods("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _operator_methods("left_shift")
    __rshift__, __rrshift__, __irshift__ = _operator_methods("right_shift")
    __lt__, __le__ = _operator_method("less"), _operator_method("less_equal")
    __gt__, __ge__ = _operator_method("greater"), _operator_method("greater_equal")
    __eq__, __ne__ = _operator_method("equal"), _operator_method("not_equal")

    def offset_index(self, index: Index, sign: int) -> ShiftedIndex:
        """The index in memory that it holds plus `sign` times an affine one."""
        if sign < 0:
            raise UnsupportedIndex(
                what="an index minus a tensor (negate the tensor, and add it)", loc=caller()
            )
        return ShiftedIndex(self, index)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """NumPy's ufuncs compute the nl functions of the same names."""
        name = operator_name(ufunc)
        if name not in FUNCTIONS or method != "__call__":
            raise UnsupportedHere(
                what=f"numpy.{ufunc.__name__} of a tensor",
                why="of functions of NumPy those are taken that nl has too",
                loc=caller(),
            )
        return FUNCTIONS[name](*inputs)

    def __neg__(self) -> Any:
        return FUNCTIONS["negative"](self)

    def __abs__(self) -> Any:
        return FUNCTIONS["abs"](self)

    def __invert__(self) -> Any:
        is_truth = self.dtype_name == "bool"
        return FUNCTIONS["logical_not" if is_truth else "invert"](self)

    def __iadd__(self, other: Any) -> Any:
        return FUNCTIONS["accumulate"](self, other)


def is_operand(value: Any) -> bool:
    """Whether an operator takes a value: a tensor or a number."""
    return isinstance(value, Tensor | int | float | np.generic)


def _block_axes(outer: list[int]) -> int:
    """How many leading axes step over blocks; UnsupportedIndex when others do."""
    moving = [axis for axis, step in enumerate(outer) if step]
    if moving != list(range(len(moving))):
        raise UnsupportedIndex(what=f"blocks along axes {moving}", loc=caller())
    return len(moving)
