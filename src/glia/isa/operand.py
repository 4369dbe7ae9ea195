"""Operands: tiles of memory, access patterns over them, waits and signals of semaphores."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from glia.base.affine import ZERO, Affine
from glia.base.dtype import DType
from glia.base.fast_objects import frozen_value

if TYPE_CHECKING:
    from glia.arch import Arch

Dims = tuple[tuple[int, int], ...]  # (step, count), outermost first


class Memory(Enum):
    """The three memories an access pattern can name."""

    HBM = "HBM"
    SBUF = "SBUF"
    PSUM = "PSUM"


def usable_bytes_per_partition(memory: Memory, arch: Arch) -> int:
    """Bytes of each partition of an on-chip memory that a program may use."""
    if memory is Memory.PSUM:
        return arch.psum_bytes_per_partition
    return arch.sbuf_usable_bytes_per_partition


@frozen_value
class Tile:
    """A piece of memory with a name.

    On chip it spans `partitions` partitions with `elements` elements in each, always starting at
    partition 0 of its rows; in HBM `partitions` is 1 and `elements` counts everything. Its address
    is not part of it: `Program.addresses` says where placement put it (bytes from the start of the
    memory, on chip from the start of the partition).
    """

    name: str
    memory: Memory
    dtype: DType
    partitions: int
    elements: int

    def __hash__(self) -> int:  # of a field that tells tiles apart: the others' is slow
        return hash(self.name)

    @property
    def bytes_per_partition(self) -> int:
        return self.elements * self.dtype.bytes

    @property
    def bytes(self) -> int:
        return self.partitions * self.bytes_per_partition


@frozen_value
class Pattern:
    """An access pattern: which elements of a tile an operand names, in order.

    `dims` lists (step, count) outermost first. On chip the first is the partition dimension (step
    in partitions, start `partition`) and up to four free dimensions follow, steps in elements of
    `dtype`; in HBM all dimensions step through the tile's linear elements and `partition` is 0.
    `offset` is in elements of `dtype` from the tile's start, in every partition. `offset` and
    `partition` may name loop variables and registers (`$name`).
    """

    tile: Tile
    dtype: DType
    dims: tuple[tuple[int, int], ...]
    offset: Affine = ZERO
    partition: Affine = ZERO

    @property
    def memory(self) -> Memory:
        return self.tile.memory

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for _, count in self.dims)

    @property
    def partitions(self) -> int:
        """How many partitions are touched (in HBM: the outermost count)."""
        return self.dims[0][1]

    @property
    def free(self) -> int:
        """Elements per partition."""
        count = 1
        for _, extent in self.dims[1:]:
            count *= extent
        return count

    @property
    def elements(self) -> int:
        return self.partitions * self.free

    @property
    def variables(self) -> tuple[str, ...]:
        """The loop variables and registers that say where it begins."""
        return (*self.offset.variables, *self.partition.variables)

    @property
    def has_constant_start(self) -> bool:
        """Whether it begins at the same element always."""
        return not self.offset.terms and not self.partition.terms

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.bytes

    @property
    def contiguous_bytes(self) -> int:
        """Bytes of the longest contiguous run, from the innermost dimension outwards."""
        run = 1
        inner = self.dims[1:] if self.memory is not Memory.HBM else self.dims
        for step, count in reversed(inner):
            if count == 1:
                continue
            if step != run:
                break
            run *= count
        return run * self.dtype.bytes


def whole_tile(tile: Tile) -> Pattern:
    """All of a tile on chip, elements in order."""
    return Pattern(tile, tile.dtype, ((1, tile.partitions), (1, tile.elements)))


def row_major(shape: tuple[int, ...]) -> Dims:
    """(step, count) of each dimension of a row-major array."""
    dims: list[tuple[int, int]] = []
    step = 1
    for count in reversed(shape):
        dims.append((step, count))
        step *= count
    return tuple(reversed(dims))


def merged(dims: Iterable[tuple[int, int]]) -> Dims:
    """The same elements without unit dimensions, neighbours that step evenly made one."""
    joined: list[tuple[int, int]] = []
    for step, count in dims:
        if count == 1:
            continue
        if joined and joined[-1][0] == step * count:
            joined[-1] = step, joined[-1][1] * count
        else:
            joined.append((step, count))
    return tuple(joined)


def regrouped(dims: Dims, shape: tuple[int, ...]) -> Dims | None:
    """Dimensions of another shape over the same elements; None when no steps give that."""
    joined = list(merged(dims))
    result: list[tuple[int, int]] = []
    for extent in reversed(shape):
        if extent == 1:
            result.append((1, 1))
            continue
        step, count = joined.pop()
        if count % extent:
            return None
        result.append((step, extent))
        if count > extent:
            joined.append((step * extent, count // extent))
    return tuple(reversed(result))


def reach(dims: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The least and greatest index that dimensions of (step, count) reach from 0."""
    least = greatest = 0
    for step, count in dims:
        end = step * (count - 1)
        if end < 0:
            least += end
        else:
            greatest += end
    return least, greatest


@frozen_value
class Wait:
    """Do not start before `semaphore` is at least `value` (affine in the loop variables)."""

    semaphore: str
    value: Affine


@frozen_value
class Signal:
    """Add `amount` to `semaphore` on completion."""

    semaphore: str
    amount: int = 1
