"""Residence of temporaries in SBUF between nests, and the dimension on their partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.base.errors import CompileError, Misfit
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, can_transpose, contraction_operands, row_dim
from glia.tile.ir import (
    Branch,
    Buffer,
    Layout,
    Load,
    Nest,
    Program,
    Schedule,
    Statement,
    While,
    accessed_buffers,
    control_buffers,
    internal_buffers,
    loads,
    schedules_in_groups,
    walk,
)
from glia.tile.passes.schedule import LARGEST_SHARE

RESIDENT_SHARE = 0.5  # of SBUF; the rest is for staged operands and temporaries of nests
ATTEMPTS_IN_HALVES = 6  # after which no buffer stays resident


@dataclass
class _BufferLifetime:
    """The live interval of a buffer, in positions of nests, and its size."""

    first: int
    last: int
    bytes_per_partition: int


def choose_layouts(program: Program, options: CompileOptions) -> Program:
    """Make temporaries resident in SBUF where all writers and readers allow it and they fit."""
    sbuf_bytes = get_target(options.target).arch.sbuf_usable_bytes_per_partition
    scheduled = replace(program, schedules=schedules_in_groups(program))
    kept = internal_buffers(program)
    rows = {n: d for n, d in _candidate_rows(scheduled).items() if n not in kept}
    lifetimes = _lifetimes(scheduled, rows)
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


def resident_bytes(program: Program) -> dict[str, int]:
    """By nest: bytes of a partition of the resident buffers that are live while it runs."""
    scheduled = replace(program, schedules=schedules_in_groups(program))
    rows = {name: layout.partition_dim for name, layout in program.layouts.items()}
    live = _lifetimes(scheduled, rows).values()
    return {
        nest: sum(each.bytes_per_partition for each in live if each.first <= at <= each.last)
        for nest, at in _positions(program).items()
    }


def evict(
    program: Program, options: CompileOptions, error: Exception, attempt: int
) -> Program | None:
    """The program with resident buffers in HBM that hold what overflowed, or None without any.

    The larger half of those that are live where memory did not suffice; after a few attempts all.
    """
    live = error.facts.get("live") if isinstance(error, CompileError) else None
    if not isinstance(live, Set):
        return None
    names = {str(name).partition("'")[0].rpartition(".")[0] for name in live}
    blamed = sorted(names & set(program.layouts), key=lambda n: (program.buffers[n].bytes, n))
    if attempt > ATTEMPTS_IN_HALVES:
        blamed = sorted(program.layouts)
    if not blamed:
        return None
    evicted = blamed if attempt > ATTEMPTS_IN_HALVES else blamed[len(blamed) // 2 :]
    spilled = sum(program.buffers[name].bytes for name in evicted)
    note = f"{spilled} bytes of intermediates are spilled to HBM to make room for working tiles"
    layouts = {name: at for name, at in program.layouts.items() if name not in evicted}
    return replace(program, layouts=layouts, notes=(*program.notes, note))


def evict_misfits(
    program: Program, options: CompileOptions, error: Exception, attempt: int
) -> Program | None:
    """The program with the buffers in HBM that a nest cannot use where they are."""
    misfits = error.choices if isinstance(error, Misfit) else {}
    layouts = {name: at for name, at in program.layouts.items() if name not in misfits}
    if len(layouts) == len(program.layouts):
        return None
    evicted = sorted(program.layouts.keys() - layouts.keys())
    note = f"{', '.join(evicted)} go through HBM: a nest cannot use them in SBUF"
    return replace(program, layouts=layouts, notes=(*program.notes, note))


def unreached_buffers(
    nest: Nest, schedule: Schedule, rows: Mapping[str, int], buffers: Mapping[str, Buffer]
) -> set[str]:
    """The buffers, resident with these dimensions on their partitions, that a nest cannot access.

    Under the schedule it can neither reach them in place nor, for a read, transpose them.
    """
    found: set[str] = set()
    aligned = _block_aligned_axes(nest, schedule)
    target = nest.target
    if target.buffer in rows:
        row = rows[target.buffer]
        is_plain = not target.dynamic and not target.combine and row >= 0
        in_place = is_plain and row_dim(target.index, schedule.partition) == row
        if not in_place or not _is_aligned(buffers[target.buffer], target.index, row, aligned):
            found.add(target.buffer)
    for load, partition in _reads(nest, schedule):
        if load.buffer not in rows:
            continue
        row = rows[load.buffer]
        is_packed = bool(schedule.packed) and partition == schedule.contract
        is_turned = row_dim(load.index, partition) != row
        can_read = _can_read(buffers, load, partition, row, aligned)
        if (is_packed and is_turned) or not can_read:
            found.add(load.buffer)
    return found


def _candidate_rows(program: Program) -> dict[str, int]:
    """Buffers that could be resident, with the dimension on their partitions."""
    rows: dict[str, int] = {}
    excluded = control_buffers(program.body)  # they must be in HBM
    for nest in program.nests():
        found = row_dim(nest.target.index, program.schedules[nest.name].partition)
        if rows.setdefault(nest.target.buffer, found) != found:
            excluded.add(nest.target.buffer)
    for nest in program.nests():
        excluded |= unreached_buffers(nest, program.schedules[nest.name], rows, program.buffers)
    excluded |= rows.keys() - _of_one_block(program)
    is_temporary = {n for n, b in program.buffers.items() if b.role == "temporary"}
    return {n: d for n, d in rows.items() if n in is_temporary and n not in excluded}


def _of_one_block(program: Program) -> set[str]:
    """The buffers that nests of one block access, which writes them before it reads them.

    A block is the program, or the body of a loop: what one iteration leaves to the next, and what
    arms and conditions access, is not among them.
    """
    accessed: dict[str, set[int]] = {}
    first: dict[str, Nest] = {}
    for number, block in enumerate(_blocks(program.body)):
        for nest in block:
            for name in accessed_buffers(nest):
                accessed.setdefault(name, set()).add(number)
                first.setdefault(name, nest)
    found = {name for name, blocks in accessed.items() if len(blocks) == 1}
    for arm in _arms(program.body):
        for nest in walk(arm):
            found -= accessed_buffers(nest)
    return {name for name in found if _only_writes(first[name], name)}


def _only_writes(nest: Nest, name: str) -> bool:
    return nest.target.buffer == name and all(load.buffer != name for load in nest.loads)


def _blocks(body: tuple[Statement, ...]) -> Iterator[list[Nest]]:
    """The nests of a block, then those of the loops inside of it, arms left out."""
    yield [each for each in body if isinstance(each, Nest)]
    for each in body:
        if isinstance(each, While):
            yield from _blocks(each.body)


def _arms(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """The arms of branches, and the conditions of loops, in a block and in its loops."""
    for each in body:
        if isinstance(each, While):
            yield each.condition
            yield from _arms(each.body)
        elif isinstance(each, Branch):
            yield from each.arms


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
    buffer: Buffer, index: Sequence[Affine], rows: int, aligned: frozenset[str]
) -> bool:
    """Whether a tile's rows begin where a block of rows does, or there is one block only.

    Row i of a resident buffer is on partition i % 128 of block i // 128, which is no affine
    function of a loop that advances by fewer rows.
    """
    is_one_block = buffer.shape[rows] <= PARTITIONS
    return is_one_block or aligned.issuperset(index[rows].variables)


def _can_read(
    buffers: Mapping[str, Buffer],
    load: Load,
    partition: str,
    rows: int,
    aligned: frozenset[str],
) -> bool:
    """Whether a reader can read a resident buffer with dimension `rows` on the partitions."""
    if rows < 0 or load.dynamic:
        return False
    if row_dim(load.index, partition) == rows:
        return _is_aligned(buffers[load.buffer], load.index, rows, aligned)
    return can_transpose(load, partition, rows) and aligned.issuperset(load.index[rows].variables)


def _positions(program: Program) -> dict[str, int]:
    """By nest, its position among nests; those of a group run at the same time."""
    group_of = {m.nest: group.name for group in program.groups for _, m in group.members()}
    found: dict[str, int] = {}
    return {
        nest.name: found.setdefault(group_of.get(nest.name, nest.name), len(found))
        for nest in program.nests()
    }


def _lifetimes(program: Program, rows: Mapping[str, int]) -> dict[str, _BufferLifetime]:
    lifetimes: dict[str, _BufferLifetime] = {}
    positions = _positions(program)
    for nest in program.nests():
        position = positions[nest.name]
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
