"""`Storage`: the tiles behind tensors, one for each block, allocated at first use."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.isa.instructions.vector import Memset
from glia.nki.api import creation
from glia.nki.beta1.errors import AllocatedKernelLimit, TooManyPartitions
from glia.nki.beta1.run.frame import Frame, Scope
from glia.nki.beta1.tensors.buffers import Buffer
from glia.nki.beta1.tensors.masked_part import MaskedPart
from glia.nki.issue.instruction import issue
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.enums import MemoryRegion
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray

if TYPE_CHECKING:
    from glia.nki.beta1.tensors.tensor import Tensor

# Memory, then first and end partition, then first and end byte
AddressRange = tuple[MemoryRegion, int, int, int, int]


@dataclass(frozen=True, eq=False)
class DeferredWrite:
    """An instruction that is issued once its destination is known.

    `write(destination, is_fresh)` issues it; `regions` are the memories it can write to.
    `accumulate(destination)`, for matrix products only, adds to the destination instead. `part` is
    what it writes of the result; None where the data decide, as an index out of bounds. In the box
    of a part an engine writes all elements of a tile of its own, DMA only those of the part. `fill`
    is what it writes to all elements, if that is one number.
    """

    write: Callable[[Any, bool], None]
    regions: tuple[MemoryRegion, ...]
    accumulate: Callable[[Any], None] | None
    part: MaskedPart | None
    by_dma: bool
    fill: float | None = None


@dataclass(eq=False)
class PhysicalTile:
    """A tile of the core.

    `fill` is an initial value not yet written. `holds_sums`: only zeros and sums of products were
    ever written. `last_block` is the block that wrote it last. `overlapping` are tiles that share
    its addresses.
    """

    tensor: NkiTensor
    fill: float | None = None
    holds_sums: bool = False
    is_written: bool = False
    last_block: int = 0
    overlapping: list[weakref.ref[PhysicalTile]] = field(default_factory=list)


class Storage:
    """A tensor's memory: `blocks` is the shape of its block dimensions, `shape` that of a tile.

    Its contents may be deferred (an instruction without a destination) or forwarded (they lie in
    the slot of another tensor that they were assigned to, until that is overwritten).
    """

    def __init__(
        self,
        frame: Frame,
        name: str,
        buffer: Buffer,
        dtype: str,
        blocks: tuple[int, ...],
        shape: tuple[int, ...],
        fill: float | None = None,
    ) -> None:
        self.frame = frame
        self.name = name
        self.buffer = buffer
        self.dtype = dtype
        self.blocks = blocks
        self.shape = shape
        self.fill = fill
        self.scope = frame.bodies[-1].scope
        self.depth = len(frame.bodies)
        self.write_count = 0
        self.is_constant = False  # a parameter that the kernel must not write
        self.deferred: DeferredWrite | None = None
        self.whole: Tensor | None = None  # the view of all of it while `deferred` is set
        self.forwarded_to: Tensor | None = None  # the slot that holds the contents
        self.forwarded_tensors: weakref.WeakSet[Storage] = weakref.WeakSet()  # to slots here
        self._tiles: dict[int, PhysicalTile] = {}
        self._places: dict[tuple[int, int], PhysicalTile] = {}
        self.number = frame.register_storage(self)
        most = frame.session.arch.partitions
        if buffer.region.is_on_chip and shape[0] > most:
            raise TooManyPartitions(count=shape[0], most=most, loc=caller())

    @classmethod
    def wrap(cls, frame: Frame, tensor: NkiTensor, name: str, buffer: Buffer) -> Storage:
        """The storage of an existing core tensor."""
        storage = cls(frame, name, buffer, tensor.dtype, (), tensor.shape)
        storage._tiles[0] = PhysicalTile(tensor, is_written=True)
        return storage

    @property
    def region(self) -> MemoryRegion:
        """The memory it lives in."""
        return self.buffer.region

    @property
    def is_filled(self) -> bool:
        """Whether an instruction has written a tensor in HBM; True for any tensor on chip."""
        written = self.frame.session.written  # type: ignore[attr-defined]  # of both kinds of session
        return self.region.is_on_chip or self.physical_tile(0).tensor.name in written

    def initial_value(self, block: int) -> float | None:
        """What all elements of a block hold from its making; None once anything was written."""
        if self.deferred is not None:
            return self.deferred.fill
        if self.forwarded_to is not None:
            return None
        found = self._tiles.get(block)
        return self.fill if found is None else found.fill

    # --- deferred and forwarded contents -------------------------------------------------------

    def issue_deferred(self) -> None:
        """Issue the deferred instruction, if any, to a tile of its own."""
        offer, whole = self.take_deferred()
        if offer is not None:
            offer.write(whole, True)

    def take_deferred(self) -> tuple[DeferredWrite | None, Tensor | None]:
        """Remove and return the deferred instruction, for the caller to issue, and its result."""
        offer, whole = self.deferred, self.whole
        self.deferred = self.whole = None
        if self.frame.pending is self:
            self.frame.pending = None
        return offer, whole

    def copy_forwarded_contents(self) -> None:
        """Copy contents that lie in the slot of another tensor to a tile of its own."""
        slot, self.forwarded_to = self.forwarded_to, None
        if slot is not None:
            slot.storage.forwarded_tensors.discard(self)
            writes = self.write_count
            slot.copy_to(self)
            self.write_count = writes

    def detach_forwarded_tensors(self) -> None:
        """Before a write: copy the contents of live tensors that were forwarded here."""
        for guest in list(self.forwarded_tensors):
            if guest.scope.is_closed:
                self.forwarded_tensors.discard(guest)
            else:
                guest.copy_forwarded_contents()

    def materialize(self) -> None:
        """Copy forwarded contents to its own tiles, and write initial values not yet written."""
        self.copy_forwarded_contents()
        if self.fill is not None:
            for block in range(math.prod(self.blocks)):
                write_fill(self.frame, self.physical_tile(block))

    def tiles_in_psum(self) -> list[PhysicalTile]:
        """Its allocated tiles when it lives in PSUM, else none."""
        return list(self._tiles.values()) if self.region is MemoryRegion.psum else []

    # --- tiles ---------------------------------------------------------------------------------

    def physical_tile(self, block: int) -> PhysicalTile:
        """The tile of a block, allocated at first use."""
        if self.forwarded_to is not None:
            self.copy_forwarded_contents()
        found = self._tiles.get(block)
        if found is None:
            found = self._tiles[block] = self._allocate_tile(block)
        return found

    def _allocate_tile(self, block: int) -> PhysicalTile:
        frame = self.frame
        if self.buffer.place_block is not None:
            return self._placed_tile(block)
        if self.region is MemoryRegion.psum:
            self._check_bank()
        name = self.name + (f"_{block}" if self.blocks else "")
        tensor = allocate_unchecked(frame, self.shape, self.dtype, self.region, name, self.scope)
        return PhysicalTile(tensor, self.fill, holds_sums=not self.fill, last_block=block)

    def _check_bank(self) -> None:
        arch = self.frame.session.arch
        needed = math.prod(self.shape[1:]) * DTYPES[self.dtype].bytes
        if needed > arch.psum_bytes_per_partition:
            what = f"a tile of {needed} bytes per partition does not fit in PSUM"
            raise AllocatedKernelLimit(what=what, loc=caller())

    def _placed_tile(self, block: int) -> PhysicalTile:
        """The tile at the allocator's address; blocks at one address share a tile."""
        choose = self.buffer.place_block
        assert choose is not None
        size = math.prod(self.shape[1:]) * DTYPES[self.dtype].bytes
        position = (
            tuple(int(n) for n in np.unravel_index(block, self.blocks)) if self.blocks else ()
        )
        partition, byte = (int(each) for each in choose(position, self.shape[0], size))
        self._check_place(partition, byte, size)
        found = self._places.get((partition, byte))
        if found is None:
            span = (self.region, partition, partition + self.shape[0], byte, byte + size)
            found = self._places[partition, byte] = self._allocate_at(partition, byte, span)
            found.last_block = block
        return found

    def _allocate_at(self, partition: int, byte: int, span: AddressRange) -> PhysicalTile:
        """A new tile at an address.

        Tiles held wide get memory of their own and record which others they overlap.
        """
        if not self.frame.session.widens_floats:
            place = (partition, byte)
            tensor = ndarray(self.shape, self.dtype, self.region, self.name, place)
            return PhysicalTile(tensor, holds_sums=True)
        tensor = allocate_unchecked(self.frame, self.shape, self.dtype, self.region, self.name)
        made = PhysicalTile(tensor, holds_sums=True)
        alive = [(s, ref) for s, ref in self.frame.placed_ranges if ref() is not None]
        for other_span, ref in alive:
            other = ref()
            if other is not None and _ranges_overlap(span, other_span):
                made.overlapping.append(ref)
                other.overlapping.append(weakref.ref(made))
        self.frame.placed_ranges = [*alive, (span, weakref.ref(made))]
        return made

    def _check_place(self, partition: int, byte: int, size: int) -> None:
        arch = self.frame.session.arch
        capacity = {
            MemoryRegion.sbuf: arch.sbuf_bytes_per_partition,
            MemoryRegion.psum: arch.psum_bytes_per_partition,
        }[self.region]
        if not 0 <= byte <= byte + size <= capacity or partition + self.shape[0] > arch.partitions:
            what = f"{self.name}: {size} bytes at byte {byte} of partition {partition} are outside"
            raise AllocatedKernelLimit(what=f"{what} {self.buffer.name}", loc=caller())


def _ranges_overlap(one: AddressRange, two: AddressRange) -> bool:
    return (
        one[0] is two[0]
        and one[1] < two[2]
        and two[1] < one[2]
        and one[3] < two[4]
        and two[3] < one[4]
    )


def allocate_unchecked(
    frame: Frame,
    shape: tuple[int, ...],
    dtype: str,
    region: MemoryRegion,
    name: str,
    scope: Scope | None = None,
) -> NkiTensor:
    """A tensor in a new tile, its capacity not checked: the compiler may spill it.

    It lives as long as `scope`, by default the innermost one.
    """
    session = frame.session
    stored = DTYPES[dtype]
    if session.widens_floats and stored.is_float:
        stored = DTYPES["float32"]
    fixed = 1 if region.is_on_chip else 0
    tile = session.new_tile(
        name, region.memory, stored, math.prod(shape[:fixed]), math.prod(shape[fixed:])
    )
    innermost = frame.bodies[-1]
    if region.is_on_chip and scope in (None, innermost.scope):
        innermost.own_tiles.add(tile.name)
    return NkiTensor(shape, dtype, tile, region)


def write_fill(frame: Frame, found: PhysicalTile) -> None:
    """Write the initial value of a tile, if it is still unwritten."""
    value, found.fill = found.fill, None
    if value is None:
        return
    if found.tensor.is_on_chip:
        fields = {"dst": found.tensor, "value": value}
        issue(frame.session, "memset", Memset, fields)
    else:
        creation.fill(found.tensor, value)


def poison_overlapping(frame: Frame, found: PhysicalTile) -> None:
    """Overwrite written tiles at overlapping addresses with NaN (integers: 0)."""
    for ref in found.overlapping:
        other = ref()
        if other is not None and other.is_written:
            other.is_written = False
            value = float("nan") if other.tensor.stored.is_float else 0
            issue(frame.session, "memset", Memset, {"dst": other.tensor, "value": value})


def restart_accumulation(frame: Frame, found: PhysicalTile, block: int) -> None:
    """Zero a tile whose last writer was another block, so that its products start a new sum."""
    if found.last_block != block:
        issue(frame.session, "memset", Memset, {"dst": found.tensor, "value": 0.0})
        found.holds_sums = True
