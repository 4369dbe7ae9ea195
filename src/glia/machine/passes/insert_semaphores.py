"""Synchronisation: waits and signals with which concurrent engines keep program order.

Every engine and every DMA queue is a stream that completes in order and counts what it completed
in a semaphore of its own. An instruction that needs another stream's work waits for that stream's
count. A loop adds the same number of counts in every iteration, so each count is affine in the
loop variables, and so is every wait. A loop body is analysed twice: the second time, from the state
after the first, finds the dependences on the previous iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from glia.base.affine import ZERO, Affine
from glia.base.fast_objects import from_fields
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Signal, Tile, Wait
from glia.machine.byte_owners import ByteOwners
from glia.machine.columns.table import READS, WRITES, Columns, columns_of
from glia.machine.columns.update import update_semaphores
from glia.machine.footprint import Footprint
from glia.machine.ir import (
    Branch,
    Loop,
    Program,
    Statement,
    While,
    blocks,
    walk,
    with_blocks,
)
from glia.machine.passes.straight_waits import FEW_INSTRUCTIONS, is_straight, synchronise
from glia.machine.queues import stream_of

MAXIMUM_ACCESSES = 24  # recorded of a tile; more are summarised as accesses to all of it
Counts = dict[str, "_Completion"]
Greatest = dict[tuple[tuple[str, int], ...], Affine]  # of counts with the same terms
After = Mapping[int, Sequence[Instr]]
NO_EXTRA_NEEDS: After = MappingProxyType({})
Needs = dict[str, Greatest]  # by stream
Observed = dict[tuple[str, str], Greatest]  # by the engine that has waited and the stream


class _Completion:
    """The completion of an instruction on a stream.

    `stamp` increases in program order; `count` is the stream's semaphore value on completion.
    """

    __slots__ = ("count", "stamp", "stream")

    def __init__(self, stream: str, stamp: int, count: Affine) -> None:
        self.stream = stream
        self.stamp = stamp
        self.count = count


class _StreamAccess(_Completion):
    """A stream's access to part of a tile, on which later accesses may depend."""

    __slots__ = ("footprint", "is_write")

    def __init__(
        self, footprint: Footprint, is_write: bool, stream: str, stamp: int, count: Affine
    ) -> None:
        self.footprint = footprint
        self.is_write = is_write
        self.stream = stream
        self.stamp = stamp
        self.count = count


class _TileRecord:
    """The accesses to one tile, oldest first."""

    __slots__ = ("accesses", "tile")

    def __init__(self, tile: Tile, accesses: Iterable[_StreamAccess] = ()) -> None:
        self.tile = tile
        self.accesses = _summarise(tile, accesses)

    def collect_needs(self, footprint: Footprint, is_write: bool, needs: Counts) -> None:
        """Add the completions an access depends on, the latest of each stream to `needs`."""
        for access in reversed(self.accesses):
            if is_write or access.is_write:
                latest = needs.get(access.stream)
                is_later = latest is None or latest.stamp < access.stamp
                if is_later and footprint.may_overlap(access.footprint):
                    needs[access.stream] = access

    def add(self, new: _StreamAccess) -> None:
        """Record an access and drop those it covers.

        A write has waited for every access it overlaps, so later accesses need only wait for it.
        """
        if not self.accesses:
            self.accesses.append(new)
            return
        footprint, stream, is_write = new.footprint, new.stream, new.is_write
        first, last = footprint.first, footprint.last
        kept = [
            old
            for old in self.accesses
            if old.footprint.first < first  # the cheapest test, and usually decisive
            or last < old.footprint.last
            or not (is_write or (old.stream == stream and not old.is_write))
            or not footprint.covers(old.footprint)
        ]
        kept.append(new)
        self.accesses = kept if len(kept) <= MAXIMUM_ACCESSES else _summarise(self.tile, kept)

    def share(self, other: _StreamAccess) -> None:
        """Record an access to a tile that shares bytes with this one, as one to all of this."""
        whole = Footprint.of_tile(self.tile)
        access = _StreamAccess(whole, other.is_write, other.stream, other.stamp, other.count)
        self.accesses.append(access)
        if len(self.accesses) > MAXIMUM_ACCESSES:
            self.accesses = _summarise(self.tile, self.accesses)


def _summarise(tile: Tile, accesses: Iterable[_StreamAccess]) -> list[_StreamAccess]:
    """The latest access of each stream and kind, widened to the whole tile."""
    latest: dict[tuple[str, bool], _StreamAccess] = {}
    for access in accesses:
        key = (access.stream, access.is_write)
        known = latest.get(key)
        if known is None or known.stamp < access.stamp:
            latest[key] = access
    whole = Footprint.of_tile(tile)
    return [_StreamAccess(whole, a.is_write, a.stream, a.stamp, a.count) for a in latest.values()]


class _AccessTable:
    """The accesses of all instructions, one row for each pattern."""

    def __init__(self, columns: Columns) -> None:
        patterns = columns.patterns
        self.begin: list[int] = patterns.begin.tolist()
        self.access: list[int] = patterns.access.tolist()
        self.tiles: list[Tile] = patterns.tile.distinct
        self.tile: list[int] = patterns.tile.number.tolist()
        on_chip = patterns.tile.map(lambda tile: tile.memory is not Memory.HBM)
        offset, partition = patterns.offset, patterns.partition
        places = patterns.group_by_place(on_chip)
        self.place: list[int] = places.number.tolist()
        dims, dtypes = patterns.dims.distinct, patterns.dtype.distinct
        rows = [column[places.first].tolist() for column in (
            patterns.dims.number, patterns.dtype.number, on_chip, offset.terms.number,
            offset.constant, partition.terms.number, partition.constant,
        )]  # fmt: skip
        self.footprints = [
            Footprint.at(
                dims[shape], dtypes[dtype].bytes,
                Affine(offset.terms.distinct[terms], start) * dtypes[dtype].bytes,
                Affine(partition.terms.distinct[of_row], row), bool(is_on_chip),
            )
            for shape, dtype, is_on_chip, terms, start, of_row, row in zip(*rows, strict=True)
        ]  # fmt: skip
        forms = [columns.instructions[row] for row in columns.form.first.tolist()]
        streams = [stream_of(form) for form in forms]
        self.stream = [streams[number] for number in columns.form.number.tolist()]


class _Analysis:
    """Dependence analysis: the counts of other streams that every instruction waits for."""

    def __init__(self, program: Program, columns: Columns, after: After) -> None:
        self.program = program
        self.after = after
        self.awaited = {id(each) for producers in after.values() for each in producers}
        self.completed: dict[int, _Completion] = {}  # the latest of each of those
        self.touches = _AccessTable(columns)
        self.needs: list[Needs] = []
        self.counts: dict[str, Affine] = {}
        self.records: dict[str, _TileRecord] = {}
        self.owners = {memory: ByteOwners() for memory in Memory}
        overlapping = _overlapping_in_hbm(program)
        self.owner = [
            self.owners[tile.memory]
            if tile.memory is not Memory.HBM or tile.name in overlapping
            else None
            for tile in self.touches.tiles
        ]
        self.position = 0
        self.stamp = 0
        self.touched: set[str] = set()  # tiles accessed since the innermost loop began

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Instr):
                self.instruction(statement)
            else:
                for block in blocks(statement):
                    self.block(block)

    def loop(self, loop: Loop) -> None:
        if _has_barrier(loop.body):  # every iteration starts and ends with all counts at 0
            self.block(loop.body)
            return
        start, entry = self.position, dict(self.counts)
        outside, self.touched = self.touched, set()
        per_iteration = count_signals(loop.body)
        variable = Affine.of(loop.variable)
        for stream, amount in per_iteration.items():
            self.counts[stream] = self.counts.get(stream, ZERO) + variable * amount
        at_start = dict(self.counts)
        if loop.trips > 1:
            self.block(loop.body)
            self._to_previous_iteration(loop)
            self.position, self.counts = start, at_start
        self.block(loop.body)
        self._to_all_iterations(loop)
        self.touched |= outside
        self.counts = entry
        for stream, amount in per_iteration.items():
            self.counts[stream] = entry.get(stream, ZERO) + amount * loop.trips

    def _to_previous_iteration(self, loop: Loop) -> None:
        previous = Affine.of(loop.variable) - 1
        for access in self._touched_accesses():
            access.footprint = access.footprint.substitute(loop.variable, previous)
            access.count = access.count.substitute({loop.variable: previous})

    def _to_all_iterations(self, loop: Loop) -> None:
        last = {loop.variable: Affine((), loop.trips - 1)}
        for access in self._touched_accesses():
            access.footprint = access.footprint.swept(loop.variable, loop.trips)
            access.count = access.count.substitute(last)

    def _touched_accesses(self) -> Iterator[_StreamAccess]:
        for name in self.touched & self.records.keys():
            yield from self.records[name].accesses

    def instruction(self, instruction: Instr) -> None:
        if instruction.__class__ is Barrier:
            self.counts, self.records, self.completed = {}, {}, {}
            for owners in self.owners.values():
                owners.clear()
            self._record({})
            return
        touches, position = self.touches, self.position
        stream = touches.stream[position]
        rows = range(touches.begin[position], touches.begin[position + 1])
        touched: list[tuple[int, Footprint, bool]] = []
        needs: Counts = {}
        for is_write, other in ((False, WRITES), (True, READS)):
            for row in rows:
                if touches.access[row] != other:
                    record = self._record_of(touches.tile[row])
                    footprint = touches.footprints[touches.place[row]]
                    record.collect_needs(footprint, is_write, needs)
                    touched.append((touches.tile[row], footprint, is_write))
        if self.after:
            self._await(instruction, needs)
        if not instruction.queue:
            needs.pop(stream, None)
        self._record(needs)
        count = self.counts.get(stream, ZERO) + 1
        self.counts[stream] = count
        self.stamp += 1
        if id(instruction) in self.awaited:
            self.completed[id(instruction)] = _Completion(stream, self.stamp, count)
        for tile, footprint, is_write in touched:
            self._add(tile, _StreamAccess(footprint, is_write, stream, self.stamp, count))

    def _add(self, number: int, access: _StreamAccess) -> None:
        """Record an access to a tile, and with those that own some of its bytes by now.

        These are tiles of other operands of the same instruction.
        """
        tile, owners = self.touches.tiles[number], self.owner[number]
        record = self.records.get(tile.name)
        if record is not None:
            record.add(access)
        if owners is not None and tile.name not in owners.sole_owners:
            start = self.program.addresses[tile.name]
            for other in owners.owners(start, start + tile.bytes_per_partition):
                if other != tile.name:
                    self.records[other].share(access)

    def _await(self, instruction: Instr, needs: Counts) -> None:
        """Add the completions that `after` demands."""
        for each in self.after.get(id(instruction), ()):
            known = self.completed.get(id(each))
            if known is not None:
                latest = needs.get(known.stream)
                if latest is None or latest.stamp < known.stamp:
                    needs[known.stream] = known

    def _record(self, needs: Counts) -> None:
        """Merge the needs of the current instruction with those that earlier passes found."""
        position = self.position
        self.position += 1
        if position == len(self.needs):
            self.needs.append({s: {a.count.terms: a.count} for s, a in needs.items()})
            return
        known = self.needs[position]
        for stream, access in needs.items():
            _add_greatest(known.setdefault(stream, {}), access.count)

    def _record_of(self, number: int) -> _TileRecord:
        """The record of a tile; a tile that takes over memory inherits what used it."""
        tile, owners = self.touches.tiles[number], self.owner[number]
        name = tile.name
        self.touched.add(name)
        record = self.records.get(name)
        if record is not None and (owners is None or name in owners.sole_owners):
            return record
        previous: list[_StreamAccess] = []
        if owners is not None:
            start = self.program.addresses[name]
            others, evicted = owners.claim(start, start + tile.bytes_per_partition, name)
            for other in others:
                previous += self.records[other].accesses
            for other in evicted:  # its accesses are inherited by the new owner
                del self.records[other]
        record = self.records[name] = _TileRecord(tile, previous)
        return record


def _overlapping_in_hbm(program: Program) -> set[str]:
    """The names of the tiles of HBM that have bytes in common with another."""
    addresses = program.addresses
    placed = sorted(
        (addresses[name], addresses[name] + tile.bytes, name)
        for name, tile in program.tiles.items()
        if tile.memory is Memory.HBM and name in addresses
    )
    found: set[str] = set()
    furthest, owner = 0, ""  # of those before, the one that ends last
    for start, end, name in placed:
        if start < furthest:
            found |= {owner, name}
        if end > furthest:
            furthest, owner = end, name
    return found


def _add_greatest(counts: Greatest, count: Affine) -> bool:
    """Add a count; False where a known one with equal terms is at least as great."""
    known = counts.get(count.terms)
    if known is not None and known.constant >= count.constant:
        return False
    counts[count.terms] = count
    return True


def count_signals(body: tuple[Statement, ...]) -> dict[str, int]:
    """The number of instructions that each stream completes in one execution of a block."""
    totals: dict[str, int] = {}
    for statement in body:
        if isinstance(statement, Loop):
            for stream, amount in count_signals(statement.body).items():
                totals[stream] = totals.get(stream, 0) + amount * statement.trips
        elif isinstance(statement, Instr):
            stream = stream_of(statement)
            totals[stream] = totals.get(stream, 0) + 1
    return totals


def insert_semaphores(
    program: Program, options: object = None, after: After = NO_EXTRA_NEEDS
) -> Program:
    """Add barriers around run-time control flow, then waits and signals everywhere.

    `after` lists, by the identity of an instruction, extra instructions that it waits for: earlier
    ones of its block or of enclosing blocks.
    """
    body = _with_barriers(program.body)
    if body is not program.body:
        program = replace(program, body=body)
    columns = columns_of(program)
    is_long = len(columns.instructions) > FEW_INSTRUCTIONS
    if is_long and not after and is_straight(columns):
        return synchronise(program, columns, _overlapping_in_hbm(program))
    analysis = _Analysis(program, columns, after)
    analysis.block(program.body)
    writer = _Writer(analysis.needs, analysis.touches.stream)
    result = replace(program, body=writer.block(program.body, {}))
    return update_semaphores(result, columns)


def _with_barriers(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Add barriers around whiles and branches, where counts are not affine.

    Loops that contain barriers get barriers too, so that every iteration counts from 0.
    """
    if not _has_dynamic_control(body):
        return body
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, While | Branch):
            synchronised = with_blocks(statement, lambda block: (*_with_barriers(block), Barrier()))
            result += [Barrier(), synchronised]
        elif isinstance(statement, Loop):
            inner = _with_barriers(statement.body)
            if _has_barrier(inner):
                result += [Barrier(), replace(statement, body=(*inner, Barrier()))]
            else:
                result.append(replace(statement, body=inner))
        else:
            result.append(statement)
    return tuple(result)


def _has_dynamic_control(body: tuple[Statement, ...]) -> bool:
    """Whether a block contains run-time control flow or a barrier."""
    for kind in set(map(type, body)):
        if kind in (While, Branch, Barrier):
            return True
        if kind is Loop:
            loops = (each.body for each in body if isinstance(each, Loop))
            if any(map(_has_dynamic_control, loops)):
                return True
    return False


def _has_barrier(body: tuple[Statement, ...]) -> bool:
    return any(isinstance(instruction, Barrier) for instruction in walk(body))


class _Writer:
    """Sets waits and signals on instructions, without waits that earlier ones imply."""

    def __init__(self, needs: list[Needs], streams: list[str]) -> None:
        signals = {stream: (Signal(stream),) for stream in set(streams)}
        self.given = zip(needs, [signals[stream] for stream in streams], strict=True)

    def block(self, body: tuple[Statement, ...], known: Observed) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop):
                inside = {key: dict(counts) for key, counts in known.items()}
                result.append(replace(statement, body=self.block(statement.body, inside)))
            elif isinstance(statement, Instr):
                result.append(self._instruction(statement, known))
            else:
                result.append(with_blocks(statement, lambda block: self.block(block, {})))
        return tuple(result)

    def _instruction(self, instruction: Instr, known: Observed) -> Instr:
        needs, signals = next(self.given)
        if instruction.__class__ is Barrier:
            known.clear()
            return instruction
        waits = []
        on = instruction.on or instruction.engine
        for stream in sorted(needs):
            observed = known.get((on, stream))
            if observed is None:
                observed = known[on, stream] = {}
            for count in needs[stream].values():
                if _add_greatest(observed, count):
                    waits.append(Wait(stream, count))
        fields = dict(vars(instruction), waits=tuple(waits), signals=signals)
        return from_fields(type(instruction), fields)
