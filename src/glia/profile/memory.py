"""The residence of tiles in SBUF and PSUM over time."""

from __future__ import annotations

from dataclasses import dataclass

from glia.isa.operand import Memory, Tile
from glia.machine.ir import Program
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
    """First start and last end of the listed events on each tile."""
    touched: dict[int, tuple[str, ...]] = {}
    spans: dict[str, tuple[float, float]] = {}
    for event in timing.events:
        names = touched.get(id(event.instr))
        if names is None:
            names = tuple({p.tile.name for p in event.instr.patterns()})
            touched[id(event.instr)] = names
        for name in names:
            start, end = spans.get(name, (event.start_ns, event.end_ns))
            spans[name] = min(start, event.start_ns), max(end, event.end_ns)
    return spans
