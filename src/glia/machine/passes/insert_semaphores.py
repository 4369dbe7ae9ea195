"""Add the waits and signals under which concurrent engines give the sequential result.

Every engine and every DMA queue is a stream that completes in order and counts what it completed
in a semaphore of its own. An instruction that needs another stream's work waits for that stream's
count. A loop adds the same number of counts in every iteration, so each count is affine in the
loop variables, and so is every wait. A loop body is walked twice: the second walk, entered
with the state that the first one left, finds what an iteration needs of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from glia.base.affine import ZERO, Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.isa.sync import Barrier
from glia.machine.footprint import Footprint
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk

MOST_ACCESSES = 24  # of one tile; more are remembered as accesses to the whole of it
Stamped = tuple[int, Affine]  # (when the walk saw it, count): later in the walk is later in order
Counts = dict[str, Stamped]
After = Mapping[int, Sequence[Instr]]
NOTHING: After = MappingProxyType({})


def stream_of(instruction: Instr) -> str:
    """Where an instruction completes in order: its DMA queue, else its engine."""
    return f"queue.{instruction.queue}" if instruction.queue else instruction.runs_on


@dataclass
class _Access:
    """One stream's access to part of a tile that later accesses may have to wait for."""

    footprint: Footprint
    is_write: bool
    stream: str
    stamped: Stamped


@dataclass
class _Record:
    """The accesses to one tile, oldest first."""

    tile: Tile
    accesses: list[_Access] = field(default_factory=list)

    def needs(self, footprint: Footprint, is_write: bool) -> Iterator[tuple[str, Stamped]]:
        """What an access has to wait for."""
        for access in self.accesses:
            if (is_write or access.is_write) and footprint.may_overlap(access.footprint):
                yield access.stream, access.stamped

    def add(self, new: _Access) -> None:
        """Record an access; those it makes unnecessary to wait for go.

        A write has waited for everything it overlaps, so waiting for it is enough.
        """
        self.accesses = [a for a in self.accesses if not _is_implied(a, new)]
        self.accesses.append(new)
        if len(self.accesses) > MOST_ACCESSES:
            self.accesses = self.summary()

    def summary(self) -> list[_Access]:
        """One access to the whole tile for every stream and kind."""
        whole = Footprint.whole(self.tile)
        latest: dict[tuple[str, bool], Stamped] = {}
        for access in self.accesses:
            key = (access.stream, access.is_write)
            latest[key] = max(latest.get(key, access.stamped), access.stamped, key=_stamp)
        return [_Access(whole, write, stream, at) for (stream, write), at in latest.items()]


def _stamp(stamped: Stamped) -> int:
    return stamped[0]


def _is_implied(old: _Access, new: _Access) -> bool:
    is_same = old.stream == new.stream and old.is_write == new.is_write
    return (new.is_write or is_same) and new.footprint.covers(old.footprint)


class _Analysis:
    """Finds, for every instruction, the counts of other streams that it has to wait for."""

    def __init__(self, program: Program, after: After) -> None:
        self.program = program
        self.after = after
        self.awaited = {id(each) for producers in after.values() for each in producers}
        self.stamps: dict[int, tuple[str, Stamped]] = {}  # of those, when they were seen last
        self.needs: list[dict[str, list[Affine]]] = []
        self.counts: dict[str, Affine] = {}
        self.records: dict[str, _Record] = {}
        # (start, end, tile) of the parts of a memory, apart from each other, oldest first
        self.owners: dict[Memory, dict[tuple[int, int, str], None]] = {}
        self.position = 0
        self.stamp = 0
        self.touched: set[str] = set()  # tiles accessed since the innermost loop began

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, While):
                self.block(statement.condition)
                self.block(statement.body)
            elif isinstance(statement, Branch):
                for arm in statement.arms:
                    self.block(arm)
            else:
                self.instruction(statement)

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
            stamp, count = access.stamped
            access.stamped = stamp, count.substitute({loop.variable: before})

    def _to_all_iterations(self, loop: Loop) -> None:
        last = {loop.variable: Affine((), loop.trips - 1)}
        for access in self._touched_accesses():
            access.footprint = access.footprint.swept(loop.variable, loop.trips)
            stamp, count = access.stamped
            access.stamped = stamp, count.substitute(last)

    def _touched_accesses(self) -> Iterator[_Access]:
        for name in self.touched & self.records.keys():
            yield from self.records[name].accesses

    def instruction(self, instruction: Instr) -> None:
        if isinstance(instruction, Barrier):
            self.counts, self.records, self.owners, self.stamps = {}, {}, {}, {}
            self._record({})
            return
        stream = stream_of(instruction)
        touches = [
            (self._record_of(pattern), Footprint.of(pattern), is_write)
            for patterns, is_write in (
                (instruction.read_patterns(), False),
                (instruction.written_patterns(), True),
            )
            for pattern in patterns
        ]
        needs: Counts = {}
        for record, footprint, is_write in touches:
            _keep_latest(needs, record.needs(footprint, is_write))
        known = (self.stamps.get(id(each)) for each in self.after.get(id(instruction), ()))
        _keep_latest(needs, filter(None, known))
        if not instruction.queue:
            needs.pop(stream, None)
        self._record(needs)
        count = self.counts.get(stream, ZERO) + 1
        self.counts[stream] = count
        self.stamp += 1
        if id(instruction) in self.awaited:
            self.stamps[id(instruction)] = stream, (self.stamp, count)
        for record, footprint, is_write in touches:
            record.add(_Access(footprint, is_write, stream, (self.stamp, count)))

    def _record(self, needs: Counts) -> None:
        """Add what this walk found to what earlier walks of the same instruction did."""
        if self.position == len(self.needs):
            self.needs.append({})
        known = self.needs[self.position]
        for stream, (_, count) in needs.items():
            _add(known.setdefault(stream, []), count)
        self.position += 1

    def _record_of(self, pattern: Pattern) -> _Record:
        """The record of a tile; a tile that takes over memory inherits what used it."""
        tile = pattern.tile
        self.touched.add(tile.name)
        if tile.memory is Memory.HBM:
            return self.records.setdefault(tile.name, _Record(tile))
        start = self.program.addresses[tile.name]
        end = start + tile.bytes_per_partition
        owners = self.owners.setdefault(tile.memory, {})
        if (start, end, tile.name) in owners:
            return self.records[tile.name]
        over = [o for o in owners if o[0] < end and start < o[1]]
        record = _Record(tile)
        whole = Footprint.whole(tile)
        for low, high, name in over:
            for access in self.records[name].summary():
                record.accesses.append(replace(access, footprint=whole))
            del owners[low, high, name]
            if low < start:
                owners[low, start, name] = None
            if high > end:
                owners[end, high, name] = None
        owners[start, end, tile.name] = None
        self.records[tile.name] = record
        record.accesses = record.summary()
        return record


def _keep_latest(counts: Counts, others: Iterable[tuple[str, Stamped]]) -> None:
    """Per stream keep the count that comes last in program order: it implies the others."""
    for stream, stamped in others:
        if stream not in counts or counts[stream][0] < stamped[0]:
            counts[stream] = stamped


def _add(counts: list[Affine], count: Affine) -> None:
    """Add a count; of those that differ by a constant the greatest is kept."""
    for position, known in enumerate(counts):
        if known.terms == count.terms:
            if count.constant > known.constant:
                counts[position] = count
            return
    counts.append(count)


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
    program = replace(program, body=_with_barriers(program.body))
    analysis = _Analysis(program, after)
    analysis.block(program.body)
    writer = _Writer(analysis.needs)
    return replace(program, body=writer.block(program.body, {}))


def _with_barriers(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Engines meet around whiles and branches, where counts stop being affine.

    They also meet around loops in which they meet, so that every iteration counts from 0.
    """
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, While):
            condition = (*_with_barriers(statement.condition), Barrier())
            inner = (*_with_barriers(statement.body), Barrier())
            result += [Barrier(), While(condition, statement.register, inner)]
        elif isinstance(statement, Branch):
            arms = tuple((*_with_barriers(arm), Barrier()) for arm in statement.arms)
            result += [Barrier(), Branch(statement.register, arms)]
        elif isinstance(statement, Loop):
            inner = _with_barriers(statement.body)
            if _has_meeting(inner):
                result += [Barrier(), replace(statement, body=(*inner, Barrier()))]
            else:
                result.append(replace(statement, body=inner))
        else:
            result.append(statement)
    return tuple(result)


def _has_meeting(body: tuple[Statement, ...]) -> bool:
    return any(isinstance(instruction, Barrier) for instruction in walk(body))


class _Writer:
    """Puts waits and signals on instructions, leaving out waits that earlier ones imply."""

    def __init__(self, needs: list[dict[str, list[Affine]]]) -> None:
        self.needs = iter(needs)

    def block(
        self, body: tuple[Statement, ...], known: dict[tuple[str, str], list[Affine]]
    ) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop):
                inside = {key: list(counts) for key, counts in known.items()}
                result.append(replace(statement, body=self.block(statement.body, inside)))
            elif isinstance(statement, While):
                condition = self.block(statement.condition, {})
                result.append(While(condition, statement.register, self.block(statement.body, {})))
            elif isinstance(statement, Branch):
                arms = tuple(self.block(arm, {}) for arm in statement.arms)
                result.append(Branch(statement.register, arms))
            else:
                result.append(self._instruction(statement, known))
        return tuple(result)

    def _instruction(self, instruction: Instr, known: dict[tuple[str, str], list[Affine]]) -> Instr:
        needs = next(self.needs)
        if isinstance(instruction, Barrier):
            known.clear()
            return instruction
        waits = []
        for stream, counts in sorted(needs.items()):
            reached = known.setdefault((instruction.runs_on, stream), [])
            for count in counts:
                if not any(
                    k.terms == count.terms and k.constant >= count.constant for k in reached
                ):
                    waits.append(Wait(stream, count))
                    _add(reached, count)
        signal = Signal(stream_of(instruction))
        return replace(instruction, waits=tuple(waits), signals=(signal,))
