"""Where a tensor lives: the buffers, and allocators that choose its address."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from glia.nki.names.enums import MemoryRegion

Place = tuple[int, int]  # first partition, byte in the partition
Chooser = Callable[[tuple[int, ...], int, int], Place]  # of a block, its partitions and bytes

PSUM_BANK_BYTES = 2048
NAMES = ("idx", "pdim_size", "fdim_size")  # parameters of an allocator


class Buffer:
    """A memory, as `buffer=` names it; `choose` says where each block goes, None leaves it open."""

    def __init__(self, region: MemoryRegion, name: str, choose: Chooser | None = None) -> None:
        self.region = region
        self.name = name
        self.choose = choose

    @property
    def plain(self) -> Buffer:
        """The same memory without an address."""
        return self if self.choose is None else Buffer(self.region, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buffer) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"nl.{self.name}"


class SbufAllocator(Buffer):
    """`ncc.sbuf`: the buffer itself, left to the compiler, and allocators for it."""

    def auto_alloc(self) -> Buffer:
        """The compiler chooses."""
        return sbuf

    def alloc(self, func: Chooser) -> Buffer:
        """`func(block, partitions, bytes)` gives (first partition, byte address) of a block."""

        def choose(block: tuple[int, ...], partitions: int, size: int) -> Place:
            partition, byte = _asked(func, block, partitions, size)
            return partition, byte

        return Buffer(self.region, self.name, choose)

    def mod_alloc(
        self,
        *,
        base_addr: int,
        base_partition: int = 0,
        num_par_tiles: tuple[int, ...] = (),
        num_free_tiles: tuple[int, ...] = (),
    ) -> Buffer:
        """Blocks take turns on num_par_tiles x num_free_tiles physical tiles from an address."""

        def choose(idx: tuple[int, ...], pdim_size: int, fdim_size: int) -> Place:
            block, partitions, size = idx, pdim_size, fdim_size
            return (
                base_partition + _turn(block, num_par_tiles) * partitions,
                base_addr + _turn(block, num_free_tiles) * size,
            )

        return self.alloc(choose)


class PsumAllocator(Buffer):
    """`ncc.psum`: the buffer itself, left to the compiler, and allocators for it."""

    def auto_alloc(self) -> Buffer:
        """The compiler chooses."""
        return psum

    def alloc(self, func: Callable[[tuple[int, ...], int, int], tuple[int, int, int]]) -> Buffer:
        """`func(block, partitions, bytes)` gives (bank, first partition, byte) of a block."""

        def choose(block: tuple[int, ...], partitions: int, size: int) -> Place:
            bank, partition, byte = _asked(func, block, partitions, size)
            return partition, bank * PSUM_BANK_BYTES + byte

        return Buffer(self.region, self.name, choose)

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
        """Blocks take turns on num_bank_tiles banks, from a bank and an address in it."""

        def choose(idx: tuple[int, ...], pdim_size: int, fdim_size: int) -> tuple[int, int, int]:
            block, partitions, size = idx, pdim_size, fdim_size
            return (
                base_bank + _turn(block, num_bank_tiles),
                base_partition + _turn(block, num_par_tiles) * partitions,
                base_addr + _turn(block, num_free_tiles) * size,
            )

        return self.alloc(choose)


def _asked(func: Any, block: tuple[int, ...], partitions: int, size: int) -> Any:
    """What an allocator answers; by name where its parameters have the documented names."""
    given = dict(zip(NAMES, (block, partitions, size), strict=True))
    if set(NAMES) <= set(inspect.signature(func).parameters):
        return func(**given)
    return func(*given.values())


def _turn(block: tuple[int, ...], counts: Any) -> int:
    """Which of the physical tiles a block takes: each of its numbers modulo a count, row by row."""
    sizes = (counts,) if isinstance(counts, int) else tuple(counts)
    sizes = (1,) * (len(block) - len(sizes)) + sizes if sizes else (1,) * len(block)
    turn = 0
    for number, count in zip(block, sizes, strict=False):
        turn = turn * count + number % count
    return turn


sbuf = SbufAllocator(MemoryRegion.sbuf, "sbuf")
psum = PsumAllocator(MemoryRegion.psum, "psum")
hbm = private_hbm = Buffer(MemoryRegion.private_hbm, "hbm")
shared_hbm = Buffer(MemoryRegion.shared_hbm, "shared_hbm")
