"""Whether what an instruction writes may overlap what it reads, other than element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.ir import Program
from glia.sim.memory import Memories


def must_stage(instr: Instr, memories: Memories, program: Program) -> bool:
    """Whether results have to wait until all operands are read.

    Not for an operand that a meaning reads and writes by itself: it does so in its order.
    """
    operands = list(instr.operands())
    patterns = [pattern for _, _, pattern in operands]
    accesses = [instr.access(name) for name, _, _ in operands]

    def may_meet(number: int, other: int) -> bool:
        written, read = patterns[number], patterns[other]
        if written.memory is not read.memory:
            return False
        if memories.region(written.tile).buffer is not memories.region(read.tile).buffer:
            return False
        return may_touch(written, read, program)

    def are_same(number: int, other: int) -> bool:
        return _elements(patterns[number]) == _elements(patterns[other])

    return needs_staging(instr.arrives, accesses, are_same, may_meet)


def needs_staging(
    arrives: str,
    accesses: Sequence[str],
    are_same: Callable[[int, int], bool],
    may_meet: Callable[[int, int], bool],
) -> bool:
    """Whether results wait until operands, given by their accesses, are read.

    `are_same` says whether two name the same elements in the same order, `may_meet` whether they
    may touch a byte in common.
    """

    def conflict(number: int, other: int) -> bool:
        if number == other and (arrives == "memory" or accesses[other] == "writes"):
            return False
        if arrives == "elementwise" and are_same(number, other):
            return False
        return may_meet(number, other)

    places = range(len(accesses))
    writes = [number for number in places if accesses[number] != "reads"]
    return any(conflict(number, other) for number in writes for other in places)


def _elements(pattern: Pattern) -> tuple[object, ...]:
    """What is equal of patterns that name the same elements in the same order."""
    dims = tuple((step, count) for step, count in pattern.dims if count > 1)
    return pattern.tile.name, pattern.dtype, dims, pattern.offset, pattern.partition


def may_touch(one: Pattern, other: Pattern, program: Program) -> bool:
    """Whether two patterns of a memory may touch a byte in common."""
    spans = []
    for pattern in (one, other):
        address = program.addresses.get(pattern.tile.name, 0)
        free = pattern.dims if pattern.memory is Memory.HBM else pattern.dims[1:]
        low, high = reach(free)
        width, start = pattern.dtype.bytes, pattern.offset
        terms = tuple((variable, step * width) for variable, step in start.terms)
        address += start.constant * width
        spans.append((address + low * width, address + (high + 1) * width, terms))
    (low, high, terms), (other_low, other_high, other_terms) = spans
    if terms == other_terms:
        if low >= other_high or other_low >= high:
            return False
        is_one_tile = one.tile.name == other.tile.name
        if is_one_tile and one.dtype is other.dtype and _interleave(one, other):
            return False
    elif one.tile.name != other.tile.name and not tiles_meet(one.tile, other.tile, program):
        return False
    if one.memory is Memory.HBM:
        return True
    if one.partition.terms != other.partition.terms:
        return True
    first, last = reach(one.dims[:1])
    other_first, other_last = reach(other.dims[:1])
    distance = one.partition.constant - other.partition.constant
    return first + distance <= other_last and other_first <= last + distance


def _interleave(one: Pattern, other: Pattern) -> bool:
    """Whether two patterns of a tile, at a constant distance, alternate without a common element.

    Rows of both are as far apart, and neither's rows reach where the other's are.
    """
    free = [each.dims if each.memory is Memory.HBM else each.dims[1:] for each in (one, other)]
    dims = [[(abs(step), count) for step, count in some if step and count > 1] for some in free]
    starts = [
        each.offset.constant + sum(step * (count - 1) for step, count in some if step < 0)
        for each, some in zip((one, other), free, strict=True)
    ]
    for row in {step for step, _ in dims[0]} & {step for step, _ in dims[1]}:
        widths = [1 + sum(s * (n - 1) for s, n in some if s % row) for some in dims]
        apart = (starts[1] - starts[0]) % row
        if widths[0] <= apart and apart + widths[1] <= row:
            return True
    return False


def tiles_meet(one: Tile, other: Tile, program: Program) -> bool:
    """Whether two tiles of a memory have bytes in common."""
    if one.name == other.name:
        return True
    (low, high), (other_low, other_high) = (tile_span(tile, program) for tile in (one, other))
    return low < other_high and other_low < high


def tile_span(tile: Tile, program: Program) -> tuple[int, int]:
    """From which byte of its memory to before which a tile lies; of partitions on chip."""
    low = program.addresses.get(tile.name, 0)
    return low, low + (tile.bytes if tile.memory is Memory.HBM else tile.bytes_per_partition)
