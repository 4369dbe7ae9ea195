"""Tiles on chip that may show bytes which they did not write themselves.

Tiles may share bytes: one after the other, where each is written before it is read, or on purpose,
so that what one writes is read through another. In the second case no write may be left out or go
elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from glia.isa.operand import Memory, Tile
from glia.machine.ir import Program
from glia.sim.host.rewriting.lives import OperandAccess, ProgramAccesses

MOST_LIVES = 512  # at once in a memory: where more are, all tiles of it are taken for exposed


def exposed_tiles(program: Program, found: ProgramAccesses) -> list[Tile]:
    """The tiles without lives, and those of which another tile writes bytes during a life."""
    exposed: dict[str, Tile] = {}
    spans: defaultdict[Memory, list[_Span]] = defaultdict(list)
    for name, accesses in found.on_chip.items():
        tile, start = found.tile_of(accesses[0]), program.addresses.get(name)
        lives = found.lives_of(name, program)
        if lives.by_life is None:
            exposed[name] = tile
        elif start is not None:  # else it has its bytes alone
            spans[tile.memory] += [_span(life, lives.depth, found, start) for life in lives.by_life]
    writes = _writes(found, program)
    for memory, some in spans.items():
        for tile in _disturbed(some, writes[memory]):
            exposed[tile.name] = tile
    return list(exposed.values())


@dataclass(frozen=True)
class _Span:
    """From which instruction to before which a tile holds something, and in which bytes."""

    tile: Tile
    begin: int
    end: int
    low: int
    high: int


@dataclass(frozen=True)
class _Write:
    """Bytes that an instruction may write of a tile."""

    tile: str
    number: int
    low: int
    high: int


def _span(life: list[OperandAccess], depth: int, found: ProgramAccesses, start: int) -> _Span:
    """The span of a life of a tile that begins at byte `start` of partitions."""
    first, last = life[0], life[-1]
    begin, _ = found.statement(first, depth)
    _, end = found.statement(last, depth)
    if len(last.path) == depth + 1 and not last.is_written:
        end = last.number  # it reads before it writes
    columns = [_columns(each, found) for each in life]
    low, high = min(low for low, _ in columns), max(high for _, high in columns)
    return _Span(found.tile_of(first), begin, end, start + low, start + high)


def _columns(access: OperandAccess, found: ProgramAccesses) -> tuple[int, int]:
    """From which byte of partitions to before which an access may be, wherever loops are."""
    tile, pattern = found.tile_of(access), access.pattern
    if found.of_several_trips and found.of_several_trips.intersection(pattern.variables):
        return 0, tile.bytes_per_partition
    box = found.box(pattern, tile)
    return (0, tile.bytes_per_partition) if box.terms else (box.low, box.high)


def _writes(found: ProgramAccesses, program: Program) -> dict[Memory, list[_Write]]:
    """What is written on chip, in program order."""
    writes: dict[Memory, list[_Write]] = {memory: [] for memory in Memory}
    for name, accesses in found.on_chip.items():
        start = program.addresses.get(name)
        for access in accesses if start is not None else ():
            if start is not None and access.is_written:
                low, high = _columns(access, found)
                memory = found.tile_of(access).memory
                writes[memory].append(_Write(name, access.number, start + low, start + high))
    return {memory: sorted(some, key=lambda w: w.number) for memory, some in writes.items()}


def _disturbed(spans: list[_Span], writes: list[_Write]) -> Iterator[Tile]:
    """The tiles of spans during which another tile writes some of their bytes."""
    ahead = sorted(spans, key=lambda each: each.begin)
    at, now = 0, list[_Span]()
    for write in writes:
        while at < len(ahead) and ahead[at].begin <= write.number:
            now.append(ahead[at])
            at += 1
        now = [each for each in now if each.end > write.number]
        if len(now) > MOST_LIVES:
            yield from (each.tile for each in spans)
            return
        for each in now:
            if each.tile.name != write.tile and each.low < write.high and write.low < each.high:
                yield each.tile
