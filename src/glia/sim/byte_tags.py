"""Shadow memory: a 32-bit tag for every few bytes of a buffer, and the addresses of tags."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from glia.isa.operand import Memory, Tile
from glia.machine.ir import Program
from glia.sim.memory import Region
from glia.sim.sparse_buffer import zeros

Array = np.ndarray[Any, Any]


class ByteTags:
    """32-bit tags of a region's buffer, one for each `granule` bytes, initially 0."""

    def __init__(self, region: Region, granule: int) -> None:
        self.region = region
        self.pitch = region.pitch or max(1, region.buffer.size)
        self._granule = granule
        self._address = _address(region.buffer)
        self._numbers = zeros(-(-region.buffer.size // granule) + 1, np.int32)

    def offset(self, data: Array) -> int:
        """The byte offset of a view in the buffer."""
        return _address(data) - self._address

    def at(self, data: Array) -> Array:
        """The tags of a view of the buffer, as a view."""
        granule = self._granule
        strides = tuple(4 * (stride // granule) for stride in data.strides)
        shape = data.shape
        if data.itemsize > granule:
            shape, strides = (*shape, data.itemsize // granule), (*strides, 4)
        start = 4 * (self.offset(data) // granule)
        return np.ndarray(shape, np.int32, self._numbers, start, strides)

    def number(self, offset: int) -> int:
        """The tag of the byte at an offset in the buffer."""
        return int(self._numbers[offset // self._granule])

    def numbers(self, start: int, count: int) -> Array:
        """The tags of `count` bytes of the buffer from `start` on."""
        granule = self._granule
        return self._numbers[start // granule : -(-(start + count) // granule)]

    def fill(self, start: int, count: int, number: int) -> None:
        """Set the tags of `count` bytes of the buffer from `start` on."""
        self.numbers(start, count)[...] = number

    def bytes_of(self, data: Array, chosen: Array) -> tuple[tuple[int, int], tuple[int, int]]:
        """((first, last) byte, (first, last) partition) of the elements of a view where `chosen`.

        Byte addresses are relative to the partition on chip, to the memory in HBM.
        """
        flat = np.array(self.offset(data))
        for stride, count in zip(data.strides, data.shape, strict=True):
            flat = flat[..., None] + np.arange(count) * stride
        if chosen.ndim > flat.ndim:
            chosen = np.asarray(chosen.any(axis=-1))
        columns, rows = flat[chosen] % self.pitch, flat[chosen] // self.pitch
        base = self.region.base
        last = int(columns.max()) + data.itemsize - 1 + base
        return (int(columns.min()) + base, last), (int(rows.min()), int(rows.max()))


def access_granule(programs: Iterable[Program]) -> int:
    """The largest granule, at most 4 bytes, that divides every access's start, step and width."""
    granule = 4
    for program in programs:
        for tile in program.tiles.values():
            granule = math.gcd(granule, tile.dtype.bytes, _tile_alignment(program, tile))
        for instr in program.instructions():
            granule = math.gcd(granule, *(p.dtype.bytes for p in instr.patterns()))
    return granule


def _tile_alignment(program: Program, tile: Tile) -> int:
    """The address of a tile; without one, its bytes per partition."""
    return program.addresses.get(tile.name, tile.bytes_per_partition)


def address_text(tile: Tile, bytes_: tuple[int, int], partitions: tuple[int, int]) -> str:
    """An address range for messages: memory, bytes, partitions and tile."""
    text = f"{tile.memory.value} bytes {bytes_[0]}..{bytes_[1]}"
    if tile.memory is not Memory.HBM:
        text += f" of partitions {partitions[0]}..{partitions[1]}"
    return f"{text} (tile {tile.name})"


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
