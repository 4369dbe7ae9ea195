"""Residence of temporaries in SBUF between nests, and the dimension on their partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, can_transpose, contraction_operands, row_dim
from glia.tile.ir import Branch, Layout, Load, Nest, Program, Schedule, While, calls, loads
from glia.tile.passes.schedule import LARGEST_SHARE

RESIDENT_SHARE = 0.5  # of SBUF; the rest is for staged operands and temporaries of nests
SMALLEST_TILE = 128  # elements of a free axis at which tiles are no longer halved


@dataclass
class _BufferLifetime:
    """The live interval of a buffer, in positions of nests, and its size."""

    first: int
    last: int
    bytes_per_partition: int


def choose_layouts(program: Program, options: CompileOptions) -> Program:
    """Make temporaries resident in SBUF where all writers and readers allow it and they fit."""
    sbuf_bytes = get_target(options.target).arch.sbuf_usable_bytes_per_partition
    rows = _candidate_rows(program)
    lifetimes = _lifetimes(program, rows)
    capacity = int(sbuf_bytes * RESIDENT_SHARE)
    used: list[tuple[_BufferLifetime, str]] = []
    layouts: dict[str, Layout] = {}
    spilled = 0
    for name, lifetime in sorted(lifetimes.items(), key=lambda item: item[1].first):
        used = [entry for entry in used if entry[0].last >= lifetime.first]
        occupied = sum(entry[0].bytes_per_partition for entry in used)
        fits = lifetime.bytes_per_partition <= sbuf_bytes * LARGEST_SHARE
        if fits and occupied + lifetime.bytes_per_partition <= capacity:
            used.append((lifetime, name))
            layouts[name] = Layout("SBUF", rows[name])
        else:
            spilled += program.buffers[name].bytes
    notes = program.notes
    if spilled:
        notes = (*notes, f"{spilled} bytes of intermediates do not fit SBUF and go through HBM")
    return replace(program, layouts=layouts, notes=notes)


def evict(program: Program, options: CompileOptions) -> Program | None:
    """A program that needs less SBUF, or None when nothing is left to evict or shrink.

    Moves the larger half of the resident buffers to HBM; without any, halves tiles.
    """
    resident = sorted(program.layouts, key=lambda name: program.buffers[name].bytes)
    if not resident:
        return _shrink_tiles(program)
    kept = resident[: len(resident) // 2]
    spilled = sum(program.buffers[name].bytes for name in resident[len(kept) :])
    note = f"{spilled} bytes of intermediates are spilled to HBM to make room for working tiles"
    layouts = {name: program.layouts[name] for name in kept}
    return replace(program, layouts=layouts, notes=(*program.notes, note))


def _shrink_tiles(program: Program) -> Program | None:
    """Halve the longest free tile of every elementwise nest above SMALLEST_TILE."""
    schedules = dict(program.schedules)
    for name, schedule in program.schedules.items():
        free = {a: n for a, n in schedule.tiles.items() if a != schedule.partition}
        longest = max(free, key=lambda axis: free[axis], default="")
        if schedule.engine == "vector" and longest and free[longest] > SMALLEST_TILE:
            tiles = dict(schedule.tiles) | {longest: -(-free[longest] // 2)}
            schedules[name] = replace(schedule, tiles=tiles)
    if schedules == dict(program.schedules):
        return None
    return replace(program, schedules=schedules)


def _candidate_rows(program: Program) -> dict[str, int]:
    """Buffers that could be resident, with the dimension on their partitions."""
    top = [s for s in program.body if isinstance(s, Nest)]
    inside = {n.name for n in program.nests()} - {n.name for n in top}
    rows: dict[str, int] = {}
    excluded: set[str] = _pinned_buffers(program)
    for nest in program.nests():
        target = nest.target
        found = row_dim(target.index, program.schedules[nest.name].partition)
        is_plain = not target.dynamic and not target.combine and found >= 0
        aligned = _block_aligned_axes(nest, program.schedules[nest.name])
        is_reached = is_plain and _is_aligned(program, target.buffer, target.index, found, aligned)
        if nest.name in inside or not is_reached or rows.get(target.buffer, found) != found:
            excluded.add(target.buffer)
        rows[target.buffer] = found
    for nest in program.nests():
        schedule = program.schedules[nest.name]
        aligned = _block_aligned_axes(nest, schedule)
        for load, partition in _reads(nest, schedule):
            row = rows.get(load.buffer, -1)
            if nest.name in inside or not _can_read(program, load, partition, row, aligned):
                excluded.add(load.buffer)
    is_temporary = {n for n, b in program.buffers.items() if b.role == "temporary"}
    return {n: d for n, d in rows.items() if n in is_temporary and n not in excluded}


def _pinned_buffers(program: Program) -> set[str]:
    """Buffers that must be in HBM: those read by control flow, and operands of calls."""
    found = {name for call in calls(program.body) for name in (*call.inputs, *call.outputs)}
    for statement in program.body:
        if isinstance(statement, While | Branch):
            found.add(getattr(statement, "predicate", "") or getattr(statement, "selector", ""))
    return found


def _reads(nest: Nest, schedule: Schedule) -> list[tuple[Load, str]]:
    """(load, axis on its partitions) of every load of a nest."""
    operands = contraction_operands(nest) if schedule.engine == "tensor" else None
    found = [(load, schedule.contract) for load in operands or ()]
    rest = [*(() if operands else loads(nest.body)), *loads(nest.finish)]
    found += [(load, schedule.partition) for load in rest]
    for offset in nest.target.dynamic:
        found.append((offset.load, ""))
    for load in rest:
        found += [(offset.load, "") for offset in load.dynamic]
    return found


def _block_aligned_axes(nest: Nest, schedule: Schedule) -> frozenset[str]:
    """Axes whose tiles all begin at a multiple of the number of partitions."""
    return frozenset(
        axis.name
        for axis in nest.axes
        if schedule.tiles.get(axis.name, axis.extent) >= axis.extent
        or schedule.tiles[axis.name] % PARTITIONS == 0
    )


def _is_aligned(
    program: Program, buffer: str, index: Sequence[Affine], rows: int, aligned: frozenset[str]
) -> bool:
    """Whether a tile's rows begin where a block of rows does, or there is one block only.

    Row i of a resident buffer is on partition i % 128 of block i // 128, which is no affine
    function of a loop that advances by fewer rows.
    """
    is_one_block = program.buffers[buffer].shape[rows] <= PARTITIONS
    return is_one_block or aligned.issuperset(index[rows].variables)


def _can_read(
    program: Program, load: Load, partition: str, rows: int, aligned: frozenset[str]
) -> bool:
    """Whether a reader can read a resident buffer with dimension `rows` on the partitions."""
    if rows < 0 or load.dynamic:
        return False
    if row_dim(load.index, partition) == rows:
        return _is_aligned(program, load.buffer, load.index, rows, aligned)
    return can_transpose(load, partition, rows) and aligned.issuperset(load.index[rows].variables)


def _lifetimes(program: Program, rows: Mapping[str, int]) -> dict[str, _BufferLifetime]:
    lifetimes: dict[str, _BufferLifetime] = {}
    for position, nest in enumerate(program.nests()):
        names = {load.buffer for load, _ in _reads(nest, program.schedules[nest.name])}
        for name in (*names, nest.target.buffer):
            if name not in rows:
                continue
            lifetime = lifetimes.get(name)
            if lifetime is None:
                lifetimes[name] = _BufferLifetime(
                    position, position, _bytes(program, name, rows[name])
                )
            else:
                lifetime.last = position
    return lifetimes


def _bytes(program: Program, name: str, rows: int) -> int:
    buffer = program.buffers[name]
    blocks = -(-buffer.shape[rows] // PARTITIONS)
    return buffer.bytes // max(1, buffer.shape[rows]) * blocks
