"""Buffers that a tensor can live in, and allocators that place its blocks at addresses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from glia.nki.names.enums import MemoryRegion

Place = tuple[int, int]  # first partition, byte in the partition
# (block number, partitions, bytes per partition) -> Place
PlaceBlock = Callable[[tuple[int, ...], int, int], Place]

PSUM_BANK_BYTES = 2048
NAMES = ("idx", "pdim_size", "fdim_size")  # parameters of an allocator


class Buffer:
    """A memory, as `buffer=` names it; `place_block` gives each block its address, if not None."""

    def __init__(
        self, region: MemoryRegion, name: str, place_block: PlaceBlock | None = None
    ) -> None:
        self.region = region
        self.name = name
        self.place_block = place_block

    @property
    def unplaced(self) -> Buffer:
        """The same memory, its addresses left to the compiler."""
        return self if self.place_block is None else Buffer(self.region, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buffer) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"nl.{self.name}"


class SbufAllocator(Buffer):
    """`ncc.sbuf`: the buffer itself, left to the compiler, and allocators for it."""

    def auto_alloc(self) -> Buffer:
        """The buffer with addresses left to the compiler."""
        return sbuf

    def alloc(self, func: PlaceBlock) -> Buffer:
        """`func(block, partitions, bytes)` gives (first partition, byte address) of a block."""

        def place_block(block: tuple[int, ...], partitions: int, size: int) -> Place:
            partition, byte = _call_allocator(func, block, partitions, size)
            return partition, byte

        return Buffer(self.region, self.name, place_block)

    def mod_alloc(
        self,
        *,
        base_addr: int,
        base_partition: int = 0,
        num_par_tiles: tuple[int, ...] = (),
        num_free_tiles: tuple[int, ...] = (),
    ) -> Buffer:
        """Blocks rotate over num_par_tiles x num_free_tiles physical tiles from an address."""

        def place_block(idx: tuple[int, ...], pdim_size: int, fdim_size: int) -> Place:
            block, partitions, size = idx, pdim_size, fdim_size
            return (
                base_partition + _physical_tile_number(block, num_par_tiles) * partitions,
                base_addr + _physical_tile_number(block, num_free_tiles) * size,
            )

        return self.alloc(place_block)


class PsumAllocator(Buffer):
    """`ncc.psum`: the buffer itself, left to the compiler, and allocators for it."""

    def auto_alloc(self) -> Buffer:
        """The buffer with addresses left to the compiler."""
        return psum

    def alloc(self, func: Callable[[tuple[int, ...], int, int], tuple[int, int, int]]) -> Buffer:
        """`func(block, partitions, bytes)` gives (bank, first partition, byte) of a block."""

        def place_block(block: tuple[int, ...], partitions: int, size: int) -> Place:
            bank, partition, byte = _call_allocator(func, block, partitions, size)
            return partition, bank * PSUM_BANK_BYTES + byte

        return Buffer(self.region, self.name, place_block)

    def mod_alloc(
        self,
        *,
        base_bank: int,
        base_addr: int = 0,
        base_partition: int = 0,
        num_bank_tiles: tuple[int, ...] = (),
        num_par_tiles: tuple[int, ...] = (),
        num_free_tiles: tuple[int, ...] = (),
    ) -> Buffer:
        """Blocks rotate over num_bank_tiles banks, from a bank and an address in it."""

        def place_block(
            idx: tuple[int, ...], pdim_size: int, fdim_size: int
        ) -> tuple[int, int, int]:
            block, partitions, size = idx, pdim_size, fdim_size
            return (
                base_bank + _physical_tile_number(block, num_bank_tiles),
                base_partition + _physical_tile_number(block, num_par_tiles) * partitions,
                base_addr + _physical_tile_number(block, num_free_tiles) * size,
            )

        return self.alloc(place_block)


def _call_allocator(func: Any, block: tuple[int, ...], partitions: int, size: int) -> Any:
    """The allocator's result; arguments go by name where it has the documented names."""
    arguments = dict(zip(NAMES, (block, partitions, size), strict=True))
    if set(NAMES) <= set(inspect.signature(func).parameters):
        return func(**arguments)
    return func(*arguments.values())


def _physical_tile_number(block: tuple[int, ...], counts: Any) -> int:
    """The row-major number of a block's physical tile: each block index modulo its count."""
    sizes = (counts,) if isinstance(counts, int) else tuple(counts)
    sizes = (1,) * (len(block) - len(sizes)) + sizes if sizes else (1,) * len(block)
    tile = 0
    for number, count in zip(block, sizes, strict=False):
        tile = tile * count + number % count
    return tile


sbuf = SbufAllocator(MemoryRegion.sbuf, "sbuf")
psum = PsumAllocator(MemoryRegion.psum, "psum")
hbm = private_hbm = Buffer(MemoryRegion.private_hbm, "hbm")
shared_hbm = Buffer(MemoryRegion.shared_hbm, "shared_hbm")
