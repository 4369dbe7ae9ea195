"""The residence of tiles in SBUF and PSUM over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glia.isa.operand import Memory, Tile
from glia.machine.ir import Program
from glia.timing.costs import PS
from glia.timing.simulate import Timing


@dataclass(frozen=True)
class Residence:
    """A tile's bytes in each partition, and the time from its first access to its last."""

    memory: str
    name: str
    address: int
    bytes: int
    partitions: int
    start_ns: float
    end_ns: float


def residences(program: Program, timing: Timing) -> tuple[Residence, ...]:
    """The residence of every placed on-chip tile; one without an event is there throughout."""
    spans = _spans(timing)
    whole = (timing.begin_ns, timing.latency_ns)
    placed = [t for t in program.tiles.values() if _is_placed(program, t)]
    found = [
        Residence(
            tile.memory.value,
            tile.name,
            program.addresses[tile.name],
            tile.bytes_per_partition,
            tile.partitions,
            *spans.get(tile.name, whole),
        )
        for tile in placed
    ]
    return tuple(sorted(found, key=lambda r: (r.memory, r.address, r.start_ns)))


def _is_placed(program: Program, tile: Tile) -> bool:
    return tile.memory is not Memory.HBM and tile.name in program.addresses


def _spans(timing: Timing) -> dict[str, tuple[float, float]]:
    """First start and last end of the executions on each tile.

    A step that was executed but never with an event of its own is there to the end.
    """
    run = timing.executions
    if run is None:
        return {}
    never = np.iinfo(np.int64).max
    starts = np.full(run.count.size, never)
    ends = np.full(run.count.size, -1)
    np.minimum.at(starts, run.rows[:, 0], run.rows[:, 1])
    np.maximum.at(ends, run.rows[:, 0], run.rows[:, 2])
    unseen = (run.count > 0) & (ends < 0)
    starts[unseen] = run.rows[:, 2].max(initial=0)
    ends[unseen] = round(timing.end_ns * PS)
    patterns = run.columns.patterns
    rows = np.flatnonzero(run.count[patterns.owner] > 0)
    tiles, owners = patterns.tile.number[rows], patterns.owner[rows]
    first = np.full(len(patterns.tile.distinct), never)
    last = np.full(len(patterns.tile.distinct), -1)
    np.minimum.at(first, tiles, starts[owners])
    np.maximum.at(last, tiles, ends[owners])
    spans: dict[str, tuple[float, float]] = {}
    for tile, begin, end in zip(patterns.tile.distinct, first.tolist(), last.tolist(), strict=True):
        if end >= 0:  # tiles that differ in more than their name are listed more than once
            known = spans.get(tile.name, (begin / PS, end / PS))
            spans[tile.name] = min(known[0], begin / PS), max(known[1], end / PS)
    return spans
