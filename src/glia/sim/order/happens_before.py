"""Race detection by vector clocks over engines, DMA queues and semaphores.

A clock has, for each stream, the number of its last execution that is certainly complete. An
engine's clock advances with its own executions, and a wait joins the clock that the signalling
stream had when it brought the semaphore to the count. A transfer starts with its issuer's clock,
and its queue, which completes in order, joins the clocks of its transfers. Only enforced order
enters the clocks, so a race is found in whatever order a run executes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from glia.isa.kit import is_register
from glia.isa.operand import Memory, Pattern
from glia.machine.ir import Program
from glia.machine.text import print_instruction
from glia.sim.byte_tags import access_granule
from glia.sim.last_writer import Rows, touched_rows
from glia.sim.memory import Environment, Memories, OutOfTile
from glia.sim.order.access_history import AccessHistory, AccessSpan, Array
from glia.sim.order.contest import Contests
from glia.sim.order.execution import Clock, Execution, Stream
from glia.sim.order.race import Place, Race, UnsetRegister, missing_wait, register_fix
from glia.sim.policy import AccessOutOfBounds

NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class _SignalHistory:
    """The signals of one stream to one semaphore since the last barrier of the core."""

    counts: list[int] = field(default_factory=list)  # ascending
    clocks: list[Clock] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _OperandAccess:
    """The access of one operand; `view` gives its bytes in an environment."""

    pattern: Pattern
    reads: bool
    writes: bool
    shadow: AccessHistory
    view: Callable[[Environment], Array]
    rows: Rows


@dataclass(slots=True)
class _RegisterUse:
    """The execution that set a register, and the last readers since by engine."""

    set_by: Execution | None = None
    read_by: dict[int, Execution] = field(default_factory=dict)


class HappensBefore:
    """Tracks executions as they start and complete, and collects `races`.

    `memories` and `programs` are those of each core.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        memories: Sequence[Memories],
        programs: Sequence[Program],
    ) -> None:
        self.races: list[Race] = []
        self._streams = streams
        self._memories = memories
        count = len(streams)
        self._clocks: Array = np.zeros((count, count), np.int64)
        self._core_masks = [
            np.array([stream.core == core for stream in streams]) for core in range(len(memories))
        ]
        self._core_of_stream = np.array([stream.core for stream in streams])
        self._contests = Contests()
        self._granule = access_granule(programs)
        self._shadows: dict[int, AccessHistory] = {}
        self._accesses: dict[tuple[int, int], list[_OperandAccess]] = {}
        self._signals: dict[tuple[int, str], dict[int, _SignalHistory]] = {}
        self._signal_targets: dict[tuple[int, str, int], int] = {}
        self._registers: dict[tuple[int, str], _RegisterUse] = {}
        self._executions: dict[int, Execution] = {}
        self._execution_streams = np.zeros(1024, np.int16)

    def start(self, execution: Execution) -> None:
        """Start an execution whose waits are satisfied, and check its accesses."""
        self.issue(execution)
        self.check_accesses(execution)

    def issue(self, execution: Execution) -> None:
        """Set an execution's clock when its engine issues it."""
        clock = self._clocks[execution.engine]
        for semaphore, count in execution.waited.items():
            self._acquire(clock, execution.core, semaphore, count)
        execution.clock = clock.copy()
        if execution.stream != execution.engine:
            clock[execution.engine] = execution.number
        for signal in execution.instr.signals:
            key = execution.core, signal.semaphore, execution.stream
            self._signal_targets[key] = self._signal_targets.get(key, 0) + signal.amount
            execution.targets[signal.semaphore] = self._signal_targets[key]
        self._record(execution)
        self._check_registers(execution)

    def check_accesses(self, *together: Execution) -> None:
        """Check and record the accesses of simultaneous executions."""
        found = []
        for execution in together:
            self._contests.begin(execution)
            bound = self._visible_clock(execution)
            for access in self._accesses_of(execution):
                span = _access_span(execution, access)
                contested = self._check_conflicts(execution, access, span, bound)
                found.append((execution, access, span, contested))
        for execution, access, span, contested in found:
            if access.writes:
                access.shadow.note_write(span, execution.stream, execution.number, contested)
                if self._is_shared(access):
                    self._contests.add_write(execution, access.shadow, span)
            if access.reads:
                access.shadow.note_read(span, execution.stream, execution.number)

    def complete(self, execution: Execution) -> None:
        """Complete an execution: its stream's clock advances, its signals carry that clock."""
        clock = self._clocks[execution.stream]
        assert execution.clock is not None
        np.maximum(clock, execution.clock, out=clock)
        clock[execution.stream] = execution.number
        for signal in execution.instr.signals:
            by_stream = self._signals.setdefault((execution.core, signal.semaphore), {})
            signals = by_stream.setdefault(execution.stream, _SignalHistory())
            before = signals.counts[-1] if signals.counts else 0
            signals.counts.append(before + signal.amount)
            signals.clocks.append(clock.copy())
        execution.clock, execution.environment = None, {}  # kept for messages only

    def prepare(self, execution: Execution) -> None:
        """Take note that an execution is about to write its results."""
        self._contests.prepare(execution)

    def perform(self, execution: Execution) -> None:
        """Take note that an execution has written its results."""
        execution.is_performed = True
        self.races += self._contests.perform(execution)

    def pass_barrier(self, core: int) -> None:
        """Join the clocks of a core's engines, whose queues are empty."""
        inside = self._core_masks[core]
        self._clocks[inside] = self._clocks[inside].max(axis=0)
        for key in [key for key in self._signals if key[0] == core]:
            del self._signals[key]
        for promised in [key for key in self._signal_targets if key[0] == core]:
            del self._signal_targets[promised]
        for register in [key for key in self._registers if key[0] == core]:
            del self._registers[register]
        if len(self._memories) == 1:
            self._executions.clear()

    def join_clocks(self, together: Sequence[Execution]) -> None:
        """Join the clocks of executions that synchronize, including themselves."""
        clocks = [execution.clock for execution in together if execution.clock is not None]
        joined = np.maximum.reduce(clocks)
        for execution in together:
            joined[execution.stream] = max(joined[execution.stream], execution.number)
        for execution in together:
            execution.clock = joined.copy()

    def _acquire(self, clock: Clock, core: int, semaphore: str, count: int) -> None:
        """Join to a clock the signals that certainly preceded a semaphore's count."""
        by_stream = self._signals.get((core, semaphore), {})
        for stream, signals in by_stream.items():
            certain = _completed_signals(by_stream, stream, count)
            if certain:
                np.maximum(clock, signals.clocks[certain - 1], out=clock)

    def _record(self, execution: Execution) -> None:
        number = execution.number
        if number >= self._execution_streams.size:
            self._execution_streams = np.resize(
                self._execution_streams, max(2 * self._execution_streams.size, number + 1)
            )
        self._execution_streams[number] = execution.stream
        self._executions[number] = execution

    def _check_conflicts(
        self, execution: Execution, access: _OperandAccess, span: AccessSpan, clock: Clock
    ) -> Array | None:
        """Add a race for a conflicting access that is not ordered before `clock`.

        Writes that may yet prove to write what another core's did are returned: by byte its number.
        """
        shadow = access.shadow
        contested = None
        if shadow.unknown_writes(span, clock):
            if access.writes and not access.reads:
                contested = self._contest(execution, access, span, clock)
            else:
                self._check_read(execution, access, span, clock)
        if not access.writes:
            return None
        for stream in shadow.unknown_reads(span, clock):
            self._check_rewrite(execution, access, span, stream, clock)
        return contested

    def _check_rewrite(
        self,
        execution: Execution,
        access: _OperandAccess,
        span: AccessSpan,
        stream: int,
        clock: Clock,
    ) -> None:
        """Add a race for a stream's unordered reads; open contests for those of another core."""
        numbers = access.shadow.reads(span, stream)
        wrong = numbers > clock[stream]
        if not wrong.any():
            return
        if not self._is_shared(access) or self._core_of_stream[stream] == execution.core:
            self._add_conflict(execution, access, span, numbers, wrong, "reads")
            return
        for number in np.unique(numbers[wrong]).tolist():
            chosen = wrong & (numbers == number)
            race = self._conflict(execution, access, span, numbers, chosen, "reads")
            reader = self._executions[number]
            self._contests.add_rewrite(race, reader, execution, access.shadow, span, chosen)

    def _is_shared(self, access: _OperandAccess) -> bool:
        """Whether several cores can reach the memory of an access."""
        return len(self._memories) > 1 and access.pattern.memory is Memory.HBM

    def _check_read(
        self, execution: Execution, access: _OperandAccess, span: AccessSpan, clock: Clock
    ) -> None:
        """Add a race for an unordered write, unless a contested one that is ordered is the same."""
        numbers, others = access.shadow.writes(span), access.shadow.contested_writes(span)
        wrong = self._is_unordered(numbers, clock)
        if others is not None:
            wrong &= (others == 0) | self._is_unordered(others, clock)
        if wrong.any():
            self._add_conflict(execution, access, span, numbers, wrong, "writes")

    def _contest(
        self, execution: Execution, access: _OperandAccess, span: AccessSpan, clock: Clock
    ) -> Array | None:
        """Open contests with unordered writes of other cores; races with others are added."""
        contested = None
        for numbers in (access.shadow.contested_writes(span), access.shadow.writes(span)):
            if numbers is None:
                continue
            wrong = self._is_unordered(numbers, clock)
            if not wrong.any():
                continue
            writers = self._core_of_stream[self._execution_streams[numbers]]
            inside = wrong & (writers == execution.core)
            if inside.any():
                self._add_conflict(execution, access, span, numbers, inside, "writes")
            outside = wrong & ~inside
            for number in np.unique(numbers[outside]).tolist():
                chosen = outside & (numbers == number)
                race = self._conflict(execution, access, span, numbers, chosen, "writes")
                self._contests.add(race, self._executions[number], execution, span, chosen)
            before = 0 if contested is None else contested
            contested = np.where(outside, numbers, before)
        return contested

    def _is_unordered(self, numbers: Array, clock: Clock) -> Array:
        """Whether executions are not ordered before `clock`."""
        unordered: Array = numbers > clock[self._execution_streams[numbers]]
        return unordered

    def _visible_clock(self, execution: Execution) -> Clock:
        """An execution's clock, limited on its own core to what precedes it in program order."""
        assert execution.clock is not None
        limit = np.where(self._core_masks[execution.core], execution.number, NEVER)
        return np.minimum(execution.clock, limit)

    def _add_conflict(
        self,
        execution: Execution,
        access: _OperandAccess,
        span: AccessSpan,
        numbers: Array,
        wrong: Array,
        other_verb: str,
    ) -> None:
        race = self._conflict(execution, access, span, numbers, wrong, other_verb)
        self.races.append(race)

    def _conflict(
        self,
        execution: Execution,
        access: _OperandAccess,
        span: AccessSpan,
        numbers: Array,
        wrong: Array,
        other_verb: str,
    ) -> Race:
        """The race with the latest of the executions `numbers[wrong]`."""
        number = int(numbers[wrong].max())
        other = self._executions[number]
        where = access.shadow.bytes_of(span, wrong & (numbers == number))
        place = Place(access.pattern.tile, *where)
        verb = "writes" if access.writes else "reads"
        return _race(execution, verb, other, other_verb, place)

    def _add_race(
        self, execution: Execution, verb: str, other: Execution, other_verb: str, place: Place
    ) -> None:
        self.races.append(_race(execution, verb, other, other_verb, place))

    def _check_registers(self, execution: Execution) -> None:
        """Check that registers are used only by the engine that set them, or after a barrier."""
        instr, core = execution.instr, execution.core
        for name in filter(is_register, instr.variables()):
            register = self._registers.setdefault((core, name), _RegisterUse())
            if register.set_by is not None and register.set_by.engine != execution.engine:
                place = Place(name)
                self._add_race(execution, "reads", register.set_by, "sets", place)
            if name not in execution.environment:
                raise UnsetRegister(
                    f"register {name} is not set: {instr.runs_on} has not set it, and sees another "
                    "engine's registers only after a barrier",
                    instruction=print_instruction(instr),
                    loc=instr.loc,
                )
            register.read_by[execution.engine] = execution
        if instr.sets_register is None:
            return
        name = instr.sets_register
        register = self._registers.setdefault((core, name), _RegisterUse())
        users = [*register.read_by.values(), *([register.set_by] if register.set_by else [])]
        for other in users:
            if other.engine != execution.engine and other is not execution:
                self._add_race(execution, "sets", other, "uses", Place(name))
        self._registers[core, name] = _RegisterUse(set_by=execution)

    def _accesses_of(self, execution: Execution) -> list[_OperandAccess]:
        key = execution.core, id(execution.instr)
        if key not in self._accesses:
            instr, core = execution.instr, execution.core
            memories = self._memories[core]
            self._accesses[key] = [
                self._access(core, pattern, instr.access(name), touched_rows(memories, instr, name))
                for name, _, pattern in instr.operands()
            ]
        return self._accesses[key]

    def _access(self, core: int, pattern: Pattern, access: str, rows: Rows) -> _OperandAccess:
        memories = self._memories[core]
        region = memories.region(pattern.tile)
        key = id(region.buffer)
        if key not in self._shadows:
            self._shadows[key] = AccessHistory(region, len(self._streams), self._granule)
        view = memories.viewer(pattern)
        shadow, reads, writes = self._shadows[key], access != "writes", access != "reads"
        return _OperandAccess(pattern, reads, writes, shadow, view, rows)


def _race(execution: Execution, verb: str, other: Execution, other_verb: str, place: Place) -> Race:
    pairs = [(other, other_verb), (execution, verb)]
    if other.core == execution.core and other.number > execution.number:
        pairs.reverse()
    (first, one), (second, two) = pairs
    shared = place.shared
    fix = register_fix(shared) if isinstance(shared, str) else missing_wait(first, second)
    return Race(first, second, place, (one, two), fix)


def _completed_signals(by_stream: Mapping[int, _SignalHistory], stream: int, count: int) -> int:
    """How many signals of a stream certainly precede a semaphore's count."""
    signals = by_stream[stream]
    if len(by_stream) == 1:
        return bisect_left(signals.counts, count) + 1 if count > 0 else 0
    low, high = 0, len(signals.counts)
    while low < high:
        middle = (low + high + 1) // 2
        if _count_without(by_stream, stream, middle) < count:
            low = middle
        else:
            high = middle - 1
    return low


def _count_without(by_stream: Mapping[int, _SignalHistory], stream: int, number: int) -> int:
    """The count without a stream's signal number `number` and all that depend on it."""
    signals = by_stream[stream]
    execution = signals.clocks[number - 1][stream]
    total = signals.counts[number - 2] if number > 1 else 0
    for other, theirs in by_stream.items():
        if other != stream:
            before = bisect_left(theirs.clocks, execution, key=lambda clock: clock[stream])
            total += theirs.counts[before - 1] if before else 0
    return total


def _access_span(execution: Execution, access: _OperandAccess) -> AccessSpan:
    """The bytes of an access; AccessOutOfBounds when they are not all in its tile."""
    instr, environment = execution.instr, execution.environment
    try:
        return access.shadow.span(access.view(environment), access.rows(environment))
    except OutOfTile as error:
        text = print_instruction(instr)
        raise AccessOutOfBounds(str(error), instruction=text, loc=instr.loc) from error
