"""A number beside every few bytes of a buffer, and where in its memory those bytes lie."""

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


class Cells:
    """32-bit numbers beside a region's buffer, one for each `granule` bytes, all 0 at first."""

    def __init__(self, region: Region, granule: int) -> None:
        self.region = region
        self.pitch = region.pitch or max(1, region.buffer.size)
        self._granule = granule
        self._address = _address(region.buffer)
        self._numbers = zeros(-(-region.buffer.size // granule) + 1, np.int32)

    def offset(self, data: Array) -> int:
        """The byte of the buffer at which a view of it begins."""
        return _address(data) - self._address

    def at(self, data: Array) -> Array:
        """The numbers beside a view of the buffer, as a view."""
        granule = self._granule
        strides = tuple(4 * (stride // granule) for stride in data.strides)
        shape = data.shape
        if data.itemsize > granule:
            shape, strides = (*shape, data.itemsize // granule), (*strides, 4)
        start = 4 * (self.offset(data) // granule)
        return np.ndarray(shape, np.int32, self._numbers, start, strides)

    def fill(self, start: int, count: int, number: int) -> None:
        """Set the numbers beside `count` bytes of the buffer from `start` on."""
        granule = self._granule
        self._numbers[start // granule : -(-(start + count) // granule)] = number

    def bytes_of(self, data: Array, chosen: Array) -> tuple[tuple[int, int], tuple[int, int]]:
        """((first, last) byte, (first, last) partition) of the elements of a view where `chosen`.

        On chip bytes count from the start of the partition, in HBM from that of the memory.
        """
        flat = np.array(self.offset(data))
        for stride, count in zip(data.strides, data.shape, strict=True):
            flat = flat[..., None] + np.arange(count) * stride
        if chosen.ndim > flat.ndim:
            chosen = chosen.any(axis=-1)
        columns, rows = flat[chosen] % self.pitch, flat[chosen] // self.pitch
        base = self.region.base
        last = int(columns.max()) + data.itemsize - 1 + base
        return (int(columns.min()) + base, last), (int(rows.min()), int(rows.max()))


def granule_of(programs: Iterable[Program]) -> int:
    """The most bytes, at most four, that every access takes, skips and starts at whole."""
    granule = 4
    for program in programs:
        for tile in program.tiles.values():
            granule = math.gcd(granule, tile.dtype.bytes, _start(program, tile))
        for instr in program.instructions():
            granule = math.gcd(granule, *(p.dtype.bytes for p in instr.patterns()))
    return granule


def _start(program: Program, tile: Tile) -> int:
    """The address of a tile; of one without, the distance of its partitions."""
    return program.addresses.get(tile.name, tile.bytes_per_partition)


def place_text(tile: Tile, bytes_: tuple[int, int], partitions: tuple[int, int]) -> str:
    """Where bytes lie, for messages."""
    text = f"{tile.memory.value} bytes {bytes_[0]}..{bytes_[1]}"
    if tile.memory is not Memory.HBM:
        text += f" of partitions {partitions[0]}..{partitions[1]}"
    return f"{text} (tile {tile.name})"


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
