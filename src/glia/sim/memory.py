"""The memories of one core while a program runs: SBUF, PSUM and the HBM tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.base.dtype import PRED, DType
from glia.base.errors import InternalError
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.ir import Program
from glia.sim.policy import Policy

Array = np.ndarray[Any, Any]
Environment = dict[str, int]

_LINE = 64  # bytes; keeps equal addresses of neighbouring partitions out of one cache set


@dataclass(frozen=True)
class Region:
    """Where a tile lies on the host: bytes `start` + partition * `pitch` + byte of `buffer`."""

    buffer: Array
    start: int
    pitch: int


class OutOfTile(Exception):
    """A pattern left its tile; says by how much."""


class Memories:
    """The storage of a program's tiles.

    Tiles with an address share memory as their addresses say; a tile without one has memory of its
    own, so that programs run before placement too. Nothing is allocated until it is used.
    """

    def __init__(self, arch: Arch, program: Program, policy: Policy | None = None) -> None:
        self._arch = arch
        self._program = program
        self._policy = policy or Policy()
        self._regions: dict[str, Region] = {}
        self._arenas: dict[int, Array] = {}
        self._clusters = _clusters(program)
        self._pitches = {memory: self._pitch(memory) for memory in (Memory.SBUF, Memory.PSUM)}
        self._chips: dict[Memory, Array] = {}

    def bind(self, tile: Tile, array: Array, *, is_shared: bool) -> None:
        """Give an HBM tile its contents; `is_shared` uses the array itself, read-only."""
        contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if contents.size != tile.bytes:
            raise InternalError(f"{tile.name} has {tile.bytes} bytes, not {contents.size}")
        if is_shared and tile.name not in self._clusters:
            contents = contents[:]
            contents.flags.writeable = False
            self._regions[tile.name] = Region(contents, 0, 0)
            return
        region = self.region(tile)
        region.buffer[region.start : region.start + tile.bytes] = contents

    def region(self, tile: Tile) -> Region:
        """Where the tile lies, allocating it on first use."""
        if tile.name not in self._regions:
            self._regions[tile.name] = self._allocate(tile)
        return self._regions[tile.name]

    def read(self, tile: Tile, dtype: DType, shape: tuple[int, ...]) -> Array:
        """A copy of an HBM tile's contents."""
        region = self.region(tile)
        contents = region.buffer[region.start : region.start + tile.bytes].copy()
        if dtype is PRED:
            return (contents != 0).reshape(shape)
        return contents.view(dtype.numpy).reshape(shape)

    def view(self, pattern: Pattern, environment: Mapping[str, int]) -> Array:
        """The elements a pattern names, as a NumPy view; OutOfTile when it leaves its tile."""
        return self.viewer(pattern)(dict(environment))

    def viewer(self, pattern: Pattern) -> Callable[[Environment], Array]:
        """`view` of one pattern, prepared: call it with the loop variables and registers."""
        return viewer(pattern, self.region(pattern.tile), storage_dtype(pattern.dtype))

    def _allocate(self, tile: Tile) -> Region:
        if tile.memory is Memory.HBM:
            return self._allocate_hbm(tile)
        address = self._program.addresses.get(tile.name)
        if address is None:
            pitch = tile.bytes_per_partition
            return Region(self._fresh(pitch * tile.partitions), 0, pitch)
        if tile.memory not in self._chips:
            self._chips[tile.memory] = self._fresh(
                self._pitches[tile.memory] * self._arch.partitions
            )
        return Region(self._chips[tile.memory], address, self._pitches[tile.memory])

    def _allocate_hbm(self, tile: Tile) -> Region:
        if tile.name not in self._clusters:
            return Region(self._fresh(tile.bytes), 0, 0)
        start, end = self._clusters[tile.name]
        if start not in self._arenas:
            self._arenas[start] = self._fresh(end - start)
        return Region(self._arenas[start], self._program.addresses[tile.name] - start, 0)

    def _fresh(self, count: int) -> Array:
        if self._policy.poison is None:
            return np.zeros(count, np.uint8)
        return np.full(count, self._policy.poison, np.uint8)

    def _pitch(self, memory: Memory) -> int:
        """Bytes of a partition that the program uses, kept off powers of two."""
        limit = {
            Memory.SBUF: self._arch.sbuf_bytes_per_partition,
            Memory.PSUM: self._arch.psum_bytes_per_partition,
        }[memory]
        used = 0
        for tile in _placed(self._program, memory):
            end = self._program.addresses[tile.name] + tile.bytes_per_partition
            if end > limit or tile.partitions > self._arch.partitions:
                raise InternalError(
                    f"{tile.name} ends at byte {end} of {limit} in {tile.partitions} partitions "
                    f"of {memory.value}"
                )
            used = max(used, end)
        return -(-used // _LINE) * _LINE + _LINE


def storage_dtype(dtype: DType) -> np.dtype:
    """The host dtype of memory views: predicates are the bytes they are stored as."""
    return np.dtype(np.uint8) if dtype is PRED else dtype.numpy


def _placed(program: Program, memory: Memory) -> Iterable[Tile]:
    for tile in program.tiles.values():
        if tile.memory is memory and tile.name in program.addresses:
            yield tile


def _clusters(program: Program) -> dict[str, tuple[int, int]]:
    """For HBM tiles that share bytes with another, the (start, end) of all that hang together."""
    placed = sorted(
        (program.addresses[t.name], program.addresses[t.name] + t.bytes, t.name)
        for t in _placed(program, Memory.HBM)
    )
    groups: list[tuple[int, int, list[str]]] = []
    for start, end, name in placed:
        if groups and start < groups[-1][1]:
            first, last, names = groups[-1]
            groups[-1] = (first, max(last, end), [*names, name])
        else:
            groups.append((start, end, [name]))
    return {n: (start, end) for start, end, names in groups if len(names) > 1 for n in names}


def evaluator(expression: Affine) -> Callable[[Environment], int]:
    """`expression.evaluate`, prepared for being called often."""
    constant, terms = expression.constant, expression.terms
    if not terms:
        return lambda _: constant
    if len(terms) == 1:
        ((variable, coefficient),) = terms
        return lambda environment: constant + coefficient * environment[variable]
    return expression.evaluate


def viewer(pattern: Pattern, region: Region, dtype: np.dtype) -> Callable[[Environment], Array]:
    """A function from an environment to the view of `pattern` in `region` with that host dtype."""
    tile, width = pattern.tile, pattern.dtype.bytes
    is_hbm = tile.memory is Memory.HBM
    free = pattern.dims if is_hbm else pattern.dims[1:]
    low, high = reach(free)
    limit = tile.bytes if is_hbm else tile.bytes_per_partition
    first, last = (0, 0) if is_hbm else reach(pattern.dims[:1])
    partitions = 1 if is_hbm else tile.partitions
    outer = () if is_hbm else (pattern.dims[0][0] * region.pitch,)
    strides = (*outer, *(step * width for step, _ in free))
    shape = pattern.shape

    def view_at(offset: int, partition: int) -> Array:
        if offset + low < 0 or (offset + high + 1) * width > limit:
            raise OutOfTile(_complain(pattern, offset + low, offset + high, limit // width))
        if partition + first < 0 or partition + last >= partitions:
            raise OutOfTile(
                f"partitions {partition + first}..{partition + last} of {tile.name}, which has "
                f"{partitions}"
            )
        start = region.start + partition * region.pitch + offset * width
        return np.ndarray(shape, dtype, region.buffer, start, strides)

    return _resolve(pattern, view_at)


def _resolve(
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


def _complain(pattern: Pattern, low: int, high: int, limit: int) -> str:
    return (
        f"elements {low}..{high} of {pattern.tile.name} ({pattern.tile.memory.value}), which has "
        f"{limit} of {pattern.dtype}"
    )
