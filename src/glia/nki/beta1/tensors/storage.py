"""What tensors are views of: tiles, one for each block, made when they are first used."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glia import isa
from glia.nki.api import creation
from glia.nki.beta1.errors import AllocatedKernelLimit, TooManyPartitions
from glia.nki.beta1.run.frame import Frame
from glia.nki.beta1.tensors.buffers import Buffer
from glia.nki.issue.instruction import issue
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.enums import MemoryRegion
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray

Span = tuple[MemoryRegion, int, int, int, int]  # partitions and bytes, each from and below


@dataclass(frozen=True, eq=False)
class Offer:
    """An instruction that waits for its destination.

    `write(destination, is_fresh)` issues it; `regions` are the memories it can write to.
    `accumulate(destination)`, of products, adds to the destination instead.
    """

    write: Callable[[Any, bool], None]
    regions: tuple[MemoryRegion, ...]
    accumulate: Callable[[Any], None] | None = None


@dataclass(eq=False)
class Physical:
    """A tile. `fill` is a value that its contents still have to get, `is_sums` says that nothing
    but zeros and sums of products was ever written, `owner` is the block that wrote it last."""

    tensor: NkiTensor
    fill: float | None = None
    is_sums: bool = False
    is_written: bool = False
    owner: int = 0
    neighbours: list[weakref.ref[Physical]] = field(default_factory=list)  # which overlap


class Storage:
    """A tensor's memory: `blocks` is the shape of its blocks, `shape` that of each tile."""

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
        self.writes = 0  # how often something wrote to it
        self.is_constant = False  # a parameter that the kernel must not write
        self.offer: Offer | None = None
        self.whole: Any = None  # the tensor of all of it, while an offer waits
        self.home: Any = None  # the slot that holds the contents instead
        self.guests: weakref.WeakSet[Storage] = weakref.WeakSet()  # those whose home is here
        self._tiles: dict[int, Physical] = {}
        self._places: dict[tuple[int, int], Physical] = {}
        self.number = frame.keep(self)
        most = frame.session.arch.partitions
        if buffer.region.is_on_chip and shape[0] > most:
            raise TooManyPartitions(count=shape[0], most=most, loc=caller())

    @classmethod
    def of(cls, frame: Frame, tensor: NkiTensor, name: str, buffer: Buffer) -> Storage:
        """The storage of a tensor that exists."""
        storage = cls(frame, name, buffer, tensor.dtype, (), tensor.shape)
        storage._tiles[0] = Physical(tensor, is_written=True)
        return storage

    @property
    def region(self) -> MemoryRegion:
        """Where it lives."""
        return self.buffer.region

    @property
    def is_filled(self) -> bool:
        """Whether an instruction wrote to it, or will at once; known of tensors in HBM."""
        written = self.frame.session.written  # type: ignore[attr-defined]
        return self.region.is_on_chip or self.physical(0).tensor.name in written

    # --- what waits ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Issue the instruction that gives the contents, to a tile of its own."""
        offer, whole = self.take()
        if offer is not None:
            offer.write(whole, True)

    def take(self) -> tuple[Offer | None, Any]:
        """The instruction that waits, which the caller issues, and the tensor of its result."""
        offer, whole = self.offer, self.whole
        self.offer = self.whole = None
        if self.frame.pending is self:
            self.frame.pending = None
        return offer, whole

    def come_home(self) -> None:
        """Take a copy of contents that lie in a slot of another tensor."""
        slot, self.home = self.home, None
        if slot is not None:
            slot.storage.guests.discard(self)
            writes = self.writes
            slot.copy_to(self)
            self.writes = writes

    def before_write(self) -> None:
        """Let every tensor whose contents lie here take its copy."""
        for guest in list(self.guests):
            if guest.scope.is_over:
                self.guests.discard(guest)
            else:
                guest.come_home()

    def settle_contents(self) -> None:
        """Take a copy of contents that lie elsewhere, and write those that were put off."""
        self.come_home()
        if self.fill is not None:
            for block in range(math.prod(self.blocks)):
                fill_now(self.frame, self.physical(block))

    def tiles_in_psum(self) -> list[Physical]:
        """The tiles that there are, where they hold sums."""
        return list(self._tiles.values()) if self.region is MemoryRegion.psum else []

    # --- tiles ---------------------------------------------------------------------------------

    def physical(self, block: int) -> Physical:
        """The tile of a block, made at its first use."""
        if self.home is not None:
            self.come_home()
        found = self._tiles.get(block)
        if found is None:
            found = self._tiles[block] = self._made(block)
        return found

    def _made(self, block: int) -> Physical:
        frame = self.frame
        if self.buffer.choose is not None:
            return self._placed(block)
        if self.region is MemoryRegion.psum:
            self._check_bank()
        name = self.name + (f"_{block}" if self.blocks else "")
        tensor = unchecked(frame, self.shape, self.dtype, self.region, name)
        return Physical(tensor, self.fill, is_sums=not self.fill, owner=block)

    def _check_bank(self) -> None:
        arch = self.frame.session.arch
        needed = math.prod(self.shape[1:]) * DTYPES[self.dtype].bytes
        if needed > arch.psum_bytes_per_partition:
            what = f"a tile of {needed} bytes per partition does not fit in PSUM"
            raise AllocatedKernelLimit(what=what, loc=caller())

    def _placed(self, block: int) -> Physical:
        """The tile at the address that the allocator gives; blocks at one address share it."""
        choose = self.buffer.choose
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
            found = self._places[partition, byte] = self._at(partition, byte, span)
            found.owner = block
        return found

    def _at(self, partition: int, byte: int, span: Span) -> Physical:
        """A new tile at an address; one held wide overlaps others in name only."""
        if not self.frame.session.widens_floats:
            place = (partition, byte)
            tensor = ndarray(self.shape, self.dtype, self.region, self.name, place)
            return Physical(tensor, is_sums=True)
        tensor = unchecked(self.frame, self.shape, self.dtype, self.region, self.name)
        made = Physical(tensor, is_sums=True)
        alive = [(s, ref) for s, ref in self.frame.spans if ref() is not None]
        for other_span, ref in alive:
            other = ref()
            if other is not None and _overlap(span, other_span):
                made.neighbours.append(ref)
                other.neighbours.append(weakref.ref(made))
        self.frame.spans = [*alive, (span, weakref.ref(made))]
        return made

    def _check_place(self, partition: int, byte: int, size: int) -> None:
        arch = self.frame.session.arch
        room = {
            MemoryRegion.sbuf: arch.sbuf_bytes_per_partition,
            MemoryRegion.psum: arch.psum_bytes_per_partition,
        }[self.region]
        if not 0 <= byte <= byte + size <= room or partition + self.shape[0] > arch.partitions:
            what = f"{self.name}: {size} bytes at byte {byte} of partition {partition} are outside"
            raise AllocatedKernelLimit(what=f"{what} {self.buffer.name}", loc=caller())


def _overlap(one: Span, two: Span) -> bool:
    return (
        one[0] is two[0]
        and one[1] < two[2]
        and two[1] < one[2]
        and one[3] < two[4]
        and two[3] < one[4]
    )


def unchecked(
    frame: Frame, shape: tuple[int, ...], dtype: str, region: MemoryRegion, name: str
) -> NkiTensor:
    """A tensor in a tile of its own, whatever its memory could hold: the compiler may spill."""
    session = frame.session
    stored = DTYPES[dtype]
    if session.widens_floats and stored.is_float:
        stored = DTYPES["float32"]
    fixed = 1 if region.is_on_chip else 0
    tile = session.new_tile(
        name, region.memory, stored, math.prod(shape[:fixed]), math.prod(shape[fixed:])
    )
    return NkiTensor(shape, dtype, tile, region)


def fill_now(frame: Frame, found: Physical) -> None:
    """Write the initial contents that were put off."""
    value, found.fill = found.fill, None
    if value is None:
        return
    if found.tensor.is_on_chip:
        fields = {"dst": found.tensor, "value": value}
        issue(frame.session, "memset", isa.Memset, fields)
    else:
        creation.fill(found.tensor, value)


def poison_neighbours(frame: Frame, found: Physical) -> None:
    """What lies at overlapping addresses loses its contents."""
    for ref in found.neighbours:
        other = ref()
        if other is not None and other.is_written:
            other.is_written = False
            value = float("nan") if other.tensor.stored.is_float else 0
            issue(frame.session, "memset", isa.Memset, {"dst": other.tensor, "value": value})


def begin_sum(frame: Frame, found: Physical, block: int) -> None:
    """Products of another block than the last start over."""
    if found.owner != block:
        issue(frame.session, "memset", isa.Memset, {"dst": found.tensor, "value": 0.0})
        found.is_sums = True
