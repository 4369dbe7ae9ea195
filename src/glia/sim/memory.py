"""The memories while programs run: each core's SBUF and PSUM, and the HBM that cores share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from glia.sim.sparse_buffer import Backing

Array = np.ndarray[Any, Any]
Environment = dict[str, int]

_LINE = 64  # bytes; keeps equal addresses of neighbouring partitions out of one cache set


@dataclass(frozen=True)
class Region:
    """Where a tile lies on the host: bytes `start` + partition * `pitch` + byte of `buffer`.

    `base` is the address of the buffer's first byte in its memory. `backing` fills HBM when it is
    first touched.
    """

    buffer: Array
    start: int
    pitch: int
    base: int = 0
    backing: Backing | None = None


class OutOfTile(Exception):
    """A pattern left its tile; says by how much."""


class DeviceMemory:
    """The HBM that programs share: placed tensors lie where their addresses say.

    Tensors that have bytes in common, of one program or of several, are one piece of memory. It
    costs only what is touched.
    """

    def __init__(self, programs: Sequence[Program], policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._extents = _extents(programs)
        self._pieces: dict[int, Backing] = {}

    def is_alone(self, start: int) -> bool:
        """Whether one tensor of one program has the piece of memory at an address to itself."""
        return self._extents[start][2] == 1

    def region(self, address: int) -> Region:
        """Where a placed tensor lies."""
        start, end, _ = self._extents[address]
        if start not in self._pieces:
            self._pieces[start] = Backing(end - start, self._policy.poison)
        piece = self._pieces[start]
        return Region(piece.bytes, address - start, 0, start, piece)

    @property
    def touched_bytes(self) -> int:
        """Bytes of HBM that take memory of the host so far."""
        return sum(piece.touched_bytes for piece in self._pieces.values())


class Memories:
    """The storage of a program's tiles.

    Tiles with an address share memory as their addresses say; a tile without one has memory of its
    own, so that programs run before placement too. Nothing is allocated until it is used.
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
        self._chips: dict[Memory, Array] = {}

    def bind(self, tile: Tile, array: Array, *, is_shared: bool) -> None:
        """Give an HBM tile its contents; `is_shared` uses the array itself, read-only."""
        contents = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if contents.size != tile.bytes:
            raise InternalError(f"{tile.name} has {tile.bytes} bytes, not {contents.size}")
        address = self._program.addresses.get(tile.name)
        if is_shared and (address is None or self.hbm.is_alone(address)):
            contents = contents[:]
            contents.flags.writeable = False
            self._regions[tile.name] = Region(contents, 0, 0, address or 0)
            return
        region = self.region(tile)
        assert region.backing is not None
        region.backing.overwrite(region.start, contents)

    def address(self, tile: Tile) -> int | None:
        """The tile's address; None before placement."""
        return self._program.addresses.get(tile.name)

    def region(self, tile: Tile) -> Region:
        """Where the tile lies, allocating it on first use."""
        if tile.name not in self._regions:
            self._regions[tile.name] = self._allocate(tile)
        return self._regions[tile.name]

    def read(self, tile: Tile, dtype: DType, shape: tuple[int, ...]) -> Array:
        """A copy of an HBM tile's contents."""
        region = self.region(tile)
        if region.backing is not None:
            region.backing.touch(region.start, (tile.bytes,), (1,), 1)
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
        address = self._program.addresses.get(tile.name)
        if tile.memory is Memory.HBM:
            if address is not None:
                return self.hbm.region(address)
            own = Backing(tile.bytes, self._policy.poison)
            return Region(own.bytes, 0, 0, 0, own)
        if address is None:
            pitch = tile.bytes_per_partition
            return Region(self._fresh(pitch * tile.partitions), 0, pitch)
        if tile.memory not in self._chips:
            self._chips[tile.memory] = self._fresh(
                self._pitches[tile.memory] * self._arch.partitions
            )
        return Region(self._chips[tile.memory], address, self._pitches[tile.memory])

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


def _extents(programs: Sequence[Program]) -> dict[int, tuple[int, int, int]]:
    """By address of a tensor in HBM: start, end and number of tensors of the memory around it."""
    placed = sorted(
        (program.addresses[t.name], program.addresses[t.name] + t.bytes)
        for program in programs
        for t in _placed(program, Memory.HBM)
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
    backing = region.backing

    def view_at(offset: int, partition: int) -> Array:
        if offset + low < 0 or (offset + high + 1) * width > limit:
            raise OutOfTile(_complain(pattern, offset + low, offset + high, limit, region))
        if partition + first < 0 or partition + last >= partitions:
            raise OutOfTile(
                f"partitions {partition + first}..{partition + last} of {tile.name}, which has "
                f"{partitions}"
            )
        start = region.start + partition * region.pitch + offset * width
        if backing is not None:
            backing.touch(start, shape, strides, width)
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


def _complain(pattern: Pattern, low: int, high: int, limit: int, region: Region) -> str:
    tile, width = pattern.tile, pattern.dtype.bytes
    start = region.base + region.start
    return (
        f"elements {low}..{high} of {tile.name} ({tile.memory.value}), which has "
        f"{limit // width} of {pattern.dtype}: bytes {start + low * width}.."
        f"{start + (high + 1) * width - 1} of {tile.memory.value}, where the tile has "
        f"{start}..{start + limit - 1}"
    )
