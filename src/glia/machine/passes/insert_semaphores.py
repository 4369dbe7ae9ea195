"""Add the waits and signals under which concurrent engines give the sequential result.

Every engine and every DMA queue is a stream that completes in order and counts what it completed
in a semaphore of its own. An instruction that needs another stream's work waits for that stream's
count. A loop adds the same number of counts in every iteration, so each count is affine in the
loop variables, and so is every wait. A loop body is walked twice: the second walk, entered
with the state that the first one left, finds what an iteration needs of the one before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from glia.base.affine import ZERO, Affine
from glia.base.fast_objects import from_fields
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Signal, Tile, Wait
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
from glia.machine.queues import stream_of

MOST_ACCESSES = 24  # of one tile; more are remembered as accesses to the whole of it
Counts = dict[str, "_Completion"]
Greatest = dict[tuple[tuple[str, int], ...], Affine]  # of counts with the same terms
After = Mapping[int, Sequence[Instr]]
NOTHING: After = MappingProxyType({})
Needs = dict[str, Greatest]  # by stream
Known = dict[tuple[str, str], Greatest]  # by the engine that has waited and the stream


class _Completion:
    """When a stream has completed an instruction.

    `stamp` says when the walk saw it, later in the walk is later in order; `count` is what the
    stream has completed with it.
    """

    __slots__ = ("count", "stamp", "stream")

    def __init__(self, stream: str, stamp: int, count: Affine) -> None:
        self.stream = stream
        self.stamp = stamp
        self.count = count


class _Access(_Completion):
    """One stream's access to part of a tile that later accesses may have to wait for."""

    __slots__ = ("footprint", "is_write")

    def __init__(
        self, footprint: Footprint, is_write: bool, stream: str, stamp: int, count: Affine
    ) -> None:
        self.footprint = footprint
        self.is_write = is_write
        self.stream = stream
        self.stamp = stamp
        self.count = count


class _Record:
    """The accesses to one tile, oldest first."""

    __slots__ = ("accesses", "tile")

    def __init__(self, tile: Tile, accesses: Iterable[_Access] = ()) -> None:
        self.tile = tile
        self.accesses = _summary(tile, accesses)

    def need(self, footprint: Footprint, is_write: bool, needs: Counts) -> None:
        """Add what an access has to wait for; the last access of a stream implies the others."""
        for access in reversed(self.accesses):
            if is_write or access.is_write:
                latest = needs.get(access.stream)
                is_later = latest is None or latest.stamp < access.stamp
                if is_later and footprint.may_overlap(access.footprint):
                    needs[access.stream] = access

    def add(self, new: _Access) -> None:
        """Record an access; those it makes unnecessary to wait for go.

        A write has waited for everything it overlaps, so waiting for it is enough.
        """
        if not self.accesses:
            self.accesses.append(new)
            return
        footprint, stream, is_write = new.footprint, new.stream, new.is_write
        first, last = footprint.first, footprint.last
        kept = [
            old
            for old in self.accesses
            if old.footprint.first < first  # asked first: it tells most parts of a tensor apart
            or last < old.footprint.last
            or not (is_write or (old.stream == stream and not old.is_write))
            or not footprint.covers(old.footprint)
        ]
        kept.append(new)
        self.accesses = kept if len(kept) <= MOST_ACCESSES else _summary(self.tile, kept)


def _summary(tile: Tile, accesses: Iterable[_Access]) -> list[_Access]:
    """One access to the whole tile for every stream and kind."""
    latest: dict[tuple[str, bool], _Access] = {}
    for access in accesses:
        key = (access.stream, access.is_write)
        known = latest.get(key)
        if known is None or known.stamp < access.stamp:
            latest[key] = access
    whole = Footprint.whole(tile) if latest else None
    return [_Access(whole, a.is_write, a.stream, a.stamp, a.count) for a in latest.values()]


class _Owners:
    """Who has the bytes of an on-chip memory: parts that are apart from each other, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[tuple[int, int, str]] = []  # (start, end, tile)
        self.whole: set[str] = set()  # tiles that have all of their bytes

    def clear(self) -> None:
        """Nobody has anything."""
        self._starts.clear()
        self._parts.clear()
        self.whole.clear()

    def take(self, start: int, end: int, name: str) -> tuple[list[str], list[str]]:
        """Give the bytes to a tile; those that had some of them, and those left with none."""
        first = bisect_right(self._starts, start)
        if first and self._parts[first - 1][1] > start:
            first -= 1
        last = bisect_left(self._starts, end, first)
        over = self._parts[first:last]
        if len(over) == 1 and over[0][:2] == (start, end):  # as buffers used in turn
            self._parts[first] = (start, end, name)
            other = over[0][2]
            gone = [other] if other in self.whole else []
            self.whole.discard(other)
            self.whole.add(name)
            return [other], gone
        left = [(start, end, name)]
        if over:
            if over[0][0] < start:
                left.insert(0, (over[0][0], start, over[0][2]))
            if over[-1][1] > end:
                left.append((end, over[-1][1], over[-1][2]))
        self._parts[first:last] = left
        self._starts[first:last] = [part[0] for part in left]
        before = [part[2] for part in over]
        gone = [part[2] for part in over if start <= part[0] and part[1] <= end]
        gone = [other for other in gone if other in self.whole]
        self.whole.difference_update(before)
        self.whole.add(name)
        return before, gone


class _Touches:
    """What instructions touch, one row for each pattern, from the columns of their program."""

    def __init__(self, columns: Columns) -> None:
        patterns = columns.patterns
        self.begin: list[int] = patterns.begin.tolist()
        self.access: list[int] = patterns.access.tolist()
        self.tiles: list[Tile] = patterns.tile.distinct
        self.tile: list[int] = patterns.tile.number.tolist()
        on_chip = patterns.tile.map(lambda tile: tile.memory is not Memory.HBM)
        offset, partition = patterns.offset, patterns.partition
        alike = patterns.group_by_place(on_chip)
        self.place: list[int] = alike.number.tolist()
        dims, dtypes = patterns.dims.distinct, patterns.dtype.distinct
        rows = [column[alike.first].tolist() for column in (
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
    """Finds, for every instruction, the counts of other streams that it has to wait for."""

    def __init__(self, program: Program, columns: Columns, after: After) -> None:
        self.program = program
        self.after = after
        self.awaited = {id(each) for producers in after.values() for each in producers}
        self.completed: dict[int, _Completion] = {}  # of those, when they were seen last
        self.touches = _Touches(columns)
        self.needs: list[Needs] = []
        self.counts: dict[str, Affine] = {}
        self.records: dict[str, _Record] = {}
        self.owners = {Memory.SBUF: _Owners(), Memory.PSUM: _Owners()}
        self.owner = [self.owners.get(tile.memory) for tile in self.touches.tiles]
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
        if _has_meeting(loop.body):  # every iteration starts and ends with all counts at 0
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
        before = Affine.of(loop.variable) - 1
        for access in self._touched_accesses():
            access.footprint = access.footprint.shifted(loop.variable, before)
            access.count = access.count.substitute({loop.variable: before})

    def _to_all_iterations(self, loop: Loop) -> None:
        last = {loop.variable: Affine((), loop.trips - 1)}
        for access in self._touched_accesses():
            access.footprint = access.footprint.swept(loop.variable, loop.trips)
            access.count = access.count.substitute(last)

    def _touched_accesses(self) -> Iterator[_Access]:
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
        touched: list[tuple[_Record, Footprint, bool]] = []
        needs: Counts = {}
        for is_write, other in ((False, WRITES), (True, READS)):
            for row in rows:
                if touches.access[row] != other:
                    record = self._record_of(touches.tile[row])
                    footprint = touches.footprints[touches.place[row]]
                    record.need(footprint, is_write, needs)
                    touched.append((record, footprint, is_write))
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
        for record, footprint, is_write in touched:
            record.add(_Access(footprint, is_write, stream, self.stamp, count))

    def _await(self, instruction: Instr, needs: Counts) -> None:
        """Add the instructions that it waits for besides."""
        for each in self.after.get(id(instruction), ()):
            known = self.completed.get(id(each))
            if known is not None:
                latest = needs.get(known.stream)
                if latest is None or latest.stamp < known.stamp:
                    needs[known.stream] = known

    def _record(self, needs: Counts) -> None:
        """Add what this walk found to what earlier walks of the same instruction did."""
        position = self.position
        self.position += 1
        if position == len(self.needs):
            self.needs.append({s: {a.count.terms: a.count} for s, a in needs.items()})
            return
        known = self.needs[position]
        for stream, access in needs.items():
            _add(known.setdefault(stream, {}), access.count)

    def _record_of(self, number: int) -> _Record:
        """The record of a tile; a tile that takes over memory inherits what used it."""
        tile, owners = self.touches.tiles[number], self.owner[number]
        name = tile.name
        self.touched.add(name)
        record = self.records.get(name)
        if record is not None and (owners is None or name in owners.whole):
            return record
        before: list[_Access] = []
        if owners is not None:
            start = self.program.addresses[name]
            others, gone = owners.take(start, start + tile.bytes_per_partition, name)
            for other in others:
                before += self.records[other].accesses
            for other in gone:  # whoever had its bytes next will be asked instead
                del self.records[other]
        record = self.records[name] = _Record(tile, before)
        return record


def _add(counts: Greatest, count: Affine) -> bool:
    """Add a count, unless one is known that is greater by a constant, or the same."""
    known = counts.get(count.terms)
    if known is not None and known.constant >= count.constant:
        return False
    counts[count.terms] = count
    return True


def count_signals(body: tuple[Statement, ...]) -> dict[str, int]:
    """How many instructions each stream completes in one execution of a block of loops."""
    totals: dict[str, int] = {}
    for statement in body:
        if isinstance(statement, Loop):
            for stream, amount in count_signals(statement.body).items():
                totals[stream] = totals.get(stream, 0) + amount * statement.trips
        elif isinstance(statement, Instr):
            stream = stream_of(statement)
            totals[stream] = totals.get(stream, 0) + 1
    return totals


def insert_semaphores(program: Program, options: object = None, after: After = NOTHING) -> Program:
    """Add barriers around run-time control flow, then waits and signals everywhere.

    `after` names, by the identity of an instruction, others that it waits for besides: earlier
    ones of its block or of those around it.
    """
    body = _with_barriers(program.body)
    if body is not program.body:
        program = replace(program, body=body)
    columns = columns_of(program)
    analysis = _Analysis(program, columns, after)
    analysis.block(program.body)
    writer = _Writer(analysis.needs, analysis.touches.stream)
    result = replace(program, body=writer.block(program.body, {}))
    return update_semaphores(result, columns)


def _with_barriers(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Engines meet around whiles and branches, where counts stop being affine.

    They also meet around loops in which they meet, so that every iteration counts from 0.
    """
    if not _has_choice(body):
        return body
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, While | Branch):
            met = with_blocks(statement, lambda block: (*_with_barriers(block), Barrier()))
            result += [Barrier(), met]
        elif isinstance(statement, Loop):
            inner = _with_barriers(statement.body)
            if _has_meeting(inner):
                result += [Barrier(), replace(statement, body=(*inner, Barrier()))]
            else:
                result.append(replace(statement, body=inner))
        else:
            result.append(statement)
    return tuple(result)


def _has_choice(body: tuple[Statement, ...]) -> bool:
    """Whether there is run-time control flow in a block, or a meeting of engines."""
    for kind in set(map(type, body)):
        if kind in (While, Branch, Barrier):
            return True
        if kind is Loop:
            loops = (each.body for each in body if isinstance(each, Loop))
            if any(map(_has_choice, loops)):
                return True
    return False


def _has_meeting(body: tuple[Statement, ...]) -> bool:
    return any(isinstance(instruction, Barrier) for instruction in walk(body))


class _Writer:
    """Puts waits and signals on instructions, leaving out waits that earlier ones imply."""

    def __init__(self, needs: list[Needs], streams: list[str]) -> None:
        signals = {stream: (Signal(stream),) for stream in set(streams)}
        self.given = zip(needs, [signals[stream] for stream in streams], strict=True)

    def block(self, body: tuple[Statement, ...], known: Known) -> tuple[Statement, ...]:
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

    def _instruction(self, instruction: Instr, known: Known) -> Instr:
        needs, signals = next(self.given)
        if instruction.__class__ is Barrier:
            known.clear()
            return instruction
        waits = []
        on = instruction.on or instruction.engine
        for stream in sorted(needs):
            reached = known.get((on, stream))
            if reached is None:
                reached = known[on, stream] = {}
            for count in needs[stream].values():
                if _add(reached, count):
                    waits.append(Wait(stream, count))
        fields = dict(vars(instruction), waits=tuple(waits), signals=signals)
        return from_fields(type(instruction), fields)
