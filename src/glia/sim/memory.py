"""Simulated memories: SBUF and PSUM of each core, and the HBM that cores share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.base.dtype import PRED, U8, DType
from glia.base.errors import InternalError
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.ir import Program
from glia.sim.policy import Policy
from glia.sim.sparse_buffer import Backing, dense_zeros

Array = np.ndarray[Any, Any]
Environment = dict[str, int]

_CACHE_LINE_BYTES = 64  # keeps equal addresses of neighbouring partitions out of one cache set
MOST_REPEATED = 1 << 28  # elements of a pattern that names some of a smaller tile's again
MOST_VIEWED = 1 << 62  # bytes of an array, elements named again included


@dataclass(frozen=True)
class Region:
    """Where a tile lies in host memory: its byte b is `buffer[start + partition * pitch + b]`.

    `base` is the device address of the buffer's first byte. `backing` fills HBM with poison on
    first access.
    """

    buffer: Array
    start: int
    pitch: int
    base: int = 0
    backing: Backing | None = None


class OutOfTile(Exception):
    """An access pattern exceeds its tile; the message has both ranges."""


class DeviceMemory:
    """The HBM that programs share: tensors lie at their addresses.

    Overlapping tensors, of one program or of several, share one allocation. Host memory is used
    for accessed bytes only.
    """

    def __init__(self, programs: Sequence[Program], policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._extents = _extents(programs)
        self._pieces: dict[int, Backing] = {}

    def is_exclusive(self, start: int) -> bool:
        """Whether a single tensor of a single program uses the allocation at an address."""
        return self._extents[start][2] == 1

    def region(self, address: int) -> Region:
        """The region of the tensor at an address."""
        start, end, _ = self._extents[address]
        if start not in self._pieces:
            self._pieces[start] = Backing(end - start, self._policy.poison)
        piece = self._pieces[start]
        return Region(piece.bytes, address - start, 0, start, piece)

    @property
    def touched_bytes(self) -> int:
        """Bytes of HBM that use host memory so far."""
        return sum(piece.touched_bytes for piece in self._pieces.values())


class Memories:
    """The storage of a program's tiles, allocated on first use.

    Tiles with an address alias as their addresses say; a tile without one has an allocation of its
    own, so that programs run before placement too.
    """

    def __init__(
        self,
        arch: Arch,
        program: Program,
        policy: Policy | None = None,
        hbm: DeviceMemory | None = None,
    ) -> None:
        self._arch = arch
        self._program = program
        self._policy = policy or Policy()
        self.hbm = hbm or DeviceMemory([program], self._policy)
        self._regions: dict[str, Region] = {}
        self._pitches = {memory: self._pitch(memory) for memory in (Memory.SBUF, Memory.PSUM)}
        self._on_chip_buffers: dict[Memory, Array] = {}

    def bind(self, tile: Tile, array: Array, *, is_shared: bool) -> None:
        """Set an HBM tile's contents; `is_shared` aliases the array itself, read-only."""
        contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if contents.size != tile.bytes:
            raise InternalError(f"{tile.name} has {tile.bytes} bytes, not {contents.size}")
        if is_shared and self.is_alone(tile):
            contents = contents[:]
            contents.flags.writeable = False
            self.place(tile, contents)
            return
        region = self.region(tile)
        assert region.backing is not None
        region.backing.overwrite(region.start, contents)

    def is_alone(self, tile: Tile) -> bool:
        """Whether no other tensor shares bytes with an HBM tile."""
        address = self._program.addresses.get(tile.name)
        return address is None or self.hbm.is_exclusive(address)

    def place(self, tile: Tile, array: Array) -> None:
        """Let an HBM tile that is alone be this array, row-major and as long, until `forget`."""
        contents = array.reshape(-1).view(np.uint8)
        self._regions[tile.name] = Region(contents, 0, 0, self.address(tile) or 0)

    def forget(self, tile: Tile) -> None:
        """Let a tile be its own memory again."""
        self._regions.pop(tile.name, None)

    def address(self, tile: Tile) -> int | None:
        """The tile's address; None before placement."""
        return self._program.addresses.get(tile.name)

    def region(self, tile: Tile) -> Region:
        """The tile's region, allocated on first use."""
        if tile.name not in self._regions:
            self._regions[tile.name] = self._allocate(tile)
        return self._regions[tile.name]

    def as_bytes(self, tile: Tile) -> Tile:
        """A tile for patterns that step through one on chip as through HBM, from its first byte."""
        region = self.region(tile)
        size = (tile.partitions - 1) * region.pitch + tile.bytes_per_partition
        name = f"{tile.name} as bytes"
        while name in self._program.tiles:
            name += "'"
        found = Tile(name, Memory.HBM, U8, 1, size)
        self._regions[found.name] = Region(region.buffer, region.start, 0)
        return found

    def read(self, tile: Tile, dtype: DType, shape: tuple[int, ...]) -> Array:
        """A copy of an HBM tile's contents."""
        region = self.region(tile)
        if region.backing is not None:
            region.backing.touch(region.start, (tile.bytes,), (1,), 1)
        contents = region.buffer[region.start : region.start + tile.bytes].copy()
        values: Array = contents != 0 if dtype is PRED else contents.view(dtype.numpy)
        return values.reshape(shape)

    def view(self, pattern: Pattern, environment: Mapping[str, int]) -> Array:
        """The elements a pattern addresses, as a NumPy view; OutOfTile when it exceeds its tile."""
        return self.viewer(pattern)(dict(environment))

    def viewer(self, pattern: Pattern) -> Callable[[Environment], Array]:
        """`view` of one pattern as a function of loop variables and registers."""
        return viewer(pattern, self.region(pattern.tile), storage_dtype(pattern.dtype))

    def _allocate(self, tile: Tile) -> Region:
        address = self._program.addresses.get(tile.name)
        if tile.memory is Memory.HBM:
            if address is not None:
                return self.hbm.region(address)
            own = Backing(tile.bytes, self._policy.poison)
            return Region(own.bytes, 0, 0, 0, own)
        if address is None:
            pitch = tile.bytes_per_partition
            return Region(self._poisoned_bytes(pitch * tile.partitions), 0, pitch)
        if tile.memory not in self._on_chip_buffers:
            self._on_chip_buffers[tile.memory] = self._poisoned_bytes(
                self._pitches[tile.memory] * self._arch.partitions
            )
        return Region(self._on_chip_buffers[tile.memory], address, self._pitches[tile.memory])

    def _poisoned_bytes(self, count: int) -> Array:
        contents = dense_zeros(count)
        if self._policy.poison:
            contents.fill(self._policy.poison)
        return contents

    def _pitch(self, memory: Memory) -> int:
        """Host bytes from one partition to the next: those in use, not a power of two."""
        limit = {
            Memory.SBUF: self._arch.sbuf_bytes_per_partition,
            Memory.PSUM: self._arch.psum_bytes_per_partition,
        }[memory]
        used = 0
        for tile in _placed_tiles(self._program, memory):
            end = self._program.addresses[tile.name] + tile.bytes_per_partition
            if end > limit or tile.partitions > self._arch.partitions:
                raise InternalError(
                    f"{tile.name} ends at byte {end} of {limit} in {tile.partitions} partitions "
                    f"of {memory.value}"
                )
            used = max(used, end)
        return -(-used // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES + _CACHE_LINE_BYTES


def storage_dtype(dtype: DType) -> np.dtype:
    """The host dtype of memory views; a predicate is viewed as its byte."""
    return np.dtype(np.uint8) if dtype is PRED else dtype.numpy


def _placed_tiles(program: Program, memory: Memory) -> Iterable[Tile]:
    for tile in program.tiles.values():
        if tile.memory is memory and tile.name in program.addresses:
            yield tile


def _extents(programs: Sequence[Program]) -> dict[int, tuple[int, int, int]]:
    """By address of an HBM tensor: start, end and number of tensors of its overlap group."""
    placed = sorted(
        (program.addresses[t.name], program.addresses[t.name] + t.bytes)
        for program in programs
        for t in _placed_tiles(program, Memory.HBM)
    )
    groups: list[tuple[int, int, list[int]]] = []
    for start, end in placed:
        if groups and start < groups[-1][1]:
            first, last, members = groups[-1]
            groups[-1] = (first, max(last, end), [*members, start])
        else:
            groups.append((start, end, [start]))
    return {
        address: (start, end, len(members)) for start, end, members in groups for address in members
    }


def evaluator(expression: Affine) -> Callable[[Environment], int]:
    """`expression.evaluate`, specialized for repeated calls."""
    constant, terms = expression.constant, expression.terms
    if not terms:
        return lambda _: constant
    if len(terms) == 1:
        ((variable, coefficient),) = terms
        return lambda environment: constant + coefficient * environment[variable]
    return expression.evaluate


def oversized(instr: Instr) -> Pattern | None:
    """The first operand that names more elements than a host could go through, most of them again.

    No dimension may be longer either, though another has no extent. Of a table only the rows that
    an index chooses are gone through; they may overlap.
    """
    for name, _, pattern in instr.operands():
        swept = pattern.shape[1:] if name in instr.tables else pattern.shape
        most = max(math.prod(swept), *pattern.shape)
        if most > max(pattern.tile.bytes, MOST_REPEATED) or not _is_viewable(pattern):
            return pattern
    return None


def elements_message(pattern: Pattern) -> str:
    """That a pattern names too many elements."""
    return f"a pattern of {pattern.tile.name} names {list(pattern.shape)} elements"


def _is_viewable(pattern: Pattern) -> bool:
    """Whether an array can have its shape."""
    shape = (max(1, count) for count in pattern.shape)
    return math.prod(shape) * pattern.dtype.bytes < MOST_VIEWED


def viewer(pattern: Pattern, region: Region, dtype: np.dtype) -> Callable[[Environment], Array]:
    """A function from an environment to the view of `pattern` in `region` with that host dtype."""
    tile, width = pattern.tile, pattern.dtype.bytes
    is_hbm = tile.memory is Memory.HBM
    free = pattern.dims if is_hbm else pattern.dims[1:]
    low, high = reach(free)
    limit = tile.bytes if is_hbm else tile.bytes_per_partition
    first, last = (0, 0) if is_hbm else reach(pattern.dims[:1])
    partitions = 1 if is_hbm else tile.partitions
    pitches = [width] * len(pattern.dims) if is_hbm else [region.pitch, *[width] * len(free)]
    steps = (step if count > 1 else 0 for step, count in pattern.dims)  # any fits one element
    strides = tuple(step * pitch for step, pitch in zip(steps, pitches, strict=True))
    shape = pattern.shape
    backing = region.backing
    is_viewable = _is_viewable(pattern)

    def view_at(offset: int, partition: int) -> Array:
        if not is_viewable:
            raise OutOfTile(elements_message(pattern))
        if offset + low < 0 or (offset + high + 1) * width > limit:
            raise OutOfTile(
                _out_of_tile_message(pattern, offset + low, offset + high, limit, region)
            )
        if partition + first < 0 or partition + last >= partitions:
            raise OutOfTile(
                f"partitions {partition + first}..{partition + last} of {tile.name}, which has "
                f"{partitions}"
            )
        start = region.start + partition * region.pitch + offset * width
        if backing is not None:
            backing.touch(start, shape, strides, width)
        return np.ndarray(shape, dtype, region.buffer, start, strides)

    return _bind_address(pattern, view_at)


def _bind_address(
    pattern: Pattern, view_at: Callable[[int, int], Array]
) -> Callable[[Environment], Array]:
    offset, partition = evaluator(pattern.offset), evaluator(pattern.partition)
    if pattern.offset.is_constant and pattern.partition.is_constant:
        cache: list[Array] = []

        def fixed(environment: Environment) -> Array:
            if not cache:
                cache.append(view_at(offset(environment), partition(environment)))
            return cache[0]

        return fixed
    if pattern.partition.is_constant:
        constant = pattern.partition.constant
        return lambda environment: view_at(offset(environment), constant)
    return lambda environment: view_at(offset(environment), partition(environment))


def _out_of_tile_message(pattern: Pattern, low: int, high: int, limit: int, region: Region) -> str:
    tile, width = pattern.tile, pattern.dtype.bytes
    start = region.base + region.start
    return (
        f"elements {low}..{high} of {tile.name} ({tile.memory.value}), which has "
        f"{limit // width} of {pattern.dtype}: bytes {start + low * width}.."
        f"{start + (high + 1) * width - 1} of {tile.memory.value}, where the tile has "
        f"{start}..{start + limit - 1}"
    )
