"""What must have happened before what: vector clocks over engines, queues and semaphores.

A clock holds, for each stream, the number of its last execution that is complete for certain. An
engine knows what it did itself, and at a wait learns what the stream that brought the semaphore
to the count knew on completion; a transfer knows what its issuer knew, and its queue, which
completes in order, what its transfers knew. Nothing is learned from what merely came first, so a
race is seen in whatever order the run took.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from glia.isa.kit import is_register
from glia.isa.operand import Pattern
from glia.machine.ir import Program
from glia.machine.text import print_instruction
from glia.sim.byte_tags import granule_of
from glia.sim.last_writer import Rows, rows_of
from glia.sim.memory import Environment, Memories, OutOfTile
from glia.sim.order.access_history import Array, Shadow, Span
from glia.sim.order.execution import Clock, Execution, Stream
from glia.sim.order.race import Place, Race, UnsetRegister, missing_wait, unordered_register
from glia.sim.policy import AccessOutOfBounds

NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Signals:
    """What one stream added to one semaphore since its core's engines met."""

    counts: list[int] = field(default_factory=list)  # rising
    clocks: list[Clock] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Access:
    """What one operand does: `view` gives its bytes for an environment."""

    pattern: Pattern
    reads: bool
    writes: bool
    shadow: Shadow
    view: Callable[[Environment], Array]
    rows: Rows


@dataclass(slots=True)
class _Register:
    """Who set a register, and which engines used it since."""

    set_by: Execution | None = None
    read_by: dict[int, Execution] = field(default_factory=dict)


class HappensBefore:
    """Follows executions as they start and complete, and lists the races that it sees.

    `memories` are those of each core, which runs one of `programs`.
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
        self._of_core = [
            np.array([stream.core == core for stream in streams]) for core in range(len(memories))
        ]
        self._granule = granule_of(programs)
        self._shadows: dict[int, Shadow] = {}
        self._accesses: dict[tuple[int, int], list[_Access]] = {}
        self._signals: dict[tuple[int, str], dict[int, _Signals]] = {}
        self._promised: dict[tuple[int, str, int], int] = {}
        self._registers: dict[tuple[int, str], _Register] = {}
        self._executions: dict[int, Execution] = {}
        self._stream_of = np.zeros(1024, np.int16)

    def start(self, execution: Execution) -> None:
        """Note that an execution whose waits are met starts; its accesses are checked."""
        self.issue(execution)
        self.touch(execution)

    def issue(self, execution: Execution) -> None:
        """Note what an execution knows when its engine comes to it."""
        clock = self._clocks[execution.engine]
        for semaphore, count in execution.waited.items():
            self._learn(clock, execution.core, semaphore, count)
        execution.clock = clock.copy()
        if execution.stream != execution.engine:
            clock[execution.engine] = execution.number
        for signal in execution.instr.signals:
            key = execution.core, signal.semaphore, execution.stream
            self._promised[key] = self._promised.get(key, 0) + signal.amount
            execution.targets[signal.semaphore] = self._promised[key]
        self._remember(execution)
        self._check_registers(execution)

    def touch(self, *together: Execution) -> None:
        """Check and note the accesses of executions that touch memory at one time."""
        found = []
        for execution in together:
            bound = self._bound(execution)
            for access in self._accesses_of(execution):
                span = _span(execution, access)
                self._check(execution, access, span, bound)
                found.append((execution, access, span))
        for execution, access, span in found:
            if access.writes:
                access.shadow.note_write(span, execution.stream, execution.number)
            if access.reads:
                access.shadow.note_read(span, execution.stream, execution.number)

    def complete(self, execution: Execution) -> None:
        """Note that all accesses of an execution are done."""
        clock = self._clocks[execution.stream]
        assert execution.clock is not None
        np.maximum(clock, execution.clock, out=clock)
        clock[execution.stream] = execution.number
        for signal in execution.instr.signals:
            by_stream = self._signals.setdefault((execution.core, signal.semaphore), {})
            signals = by_stream.setdefault(execution.stream, _Signals())
            before = signals.counts[-1] if signals.counts else 0
            signals.counts.append(before + signal.amount)
            signals.clocks.append(clock.copy())
        execution.clock, execution.environment = None, {}  # it is kept to be named, no more

    def meet(self, core: int) -> None:
        """Note that all engines of a core met, and that its queues are empty."""
        inside = self._of_core[core]
        self._clocks[inside] = self._clocks[inside].max(axis=0)
        for key in [key for key in self._signals if key[0] == core]:
            del self._signals[key]
        for promised in [key for key in self._promised if key[0] == core]:
            del self._promised[promised]
        for register in [key for key in self._registers if key[0] == core]:
            del self._registers[register]
        if len(self._memories) == 1:
            self._executions.clear()

    def join(self, together: Sequence[Execution]) -> None:
        """Let executions that meet know what each of them knows, and of each other."""
        clocks = [execution.clock for execution in together if execution.clock is not None]
        joined = np.maximum.reduce(clocks)
        for execution in together:
            joined[execution.stream] = max(joined[execution.stream], execution.number)
        for execution in together:
            execution.clock = joined.copy()

    def _learn(self, clock: Clock, core: int, semaphore: str, count: int) -> None:
        """Add to a clock what a semaphore that has reached a count says for certain."""
        by_stream = self._signals.get((core, semaphore), {})
        for stream, signals in by_stream.items():
            certain = _certain(by_stream, stream, count)
            if certain:
                np.maximum(clock, signals.clocks[certain - 1], out=clock)

    def _remember(self, execution: Execution) -> None:
        number = execution.number
        if number >= self._stream_of.size:
            self._stream_of = np.resize(self._stream_of, max(2 * self._stream_of.size, number + 1))
        self._stream_of[number] = execution.stream
        self._executions[number] = execution

    def _check(self, execution: Execution, access: _Access, span: Span, clock: Clock) -> None:
        """Everything that conflicts must be known, and come earlier in program order."""
        shadow = access.shadow
        if shadow.unknown_writes(span, clock):
            numbers = shadow.writes(span)
            wrong = numbers > clock[self._stream_of[numbers]]
            if wrong.any():
                self._found(execution, access, span, numbers, wrong, "writes")
        if not access.writes:
            return
        for stream in shadow.unknown_reads(span, clock):
            numbers = shadow.reads(span, stream)
            wrong = numbers > clock[stream]
            if wrong.any():
                self._found(execution, access, span, numbers, wrong, "reads")

    def _bound(self, execution: Execution) -> Clock:
        """What an execution may find: what it knows, and of its core only what precedes it."""
        assert execution.clock is not None
        limit = np.where(self._of_core[execution.core], execution.number, NEVER)
        return np.minimum(execution.clock, limit)

    def _found(
        self,
        execution: Execution,
        access: _Access,
        span: Span,
        numbers: Array,
        wrong: Array,
        other_does: str,
    ) -> None:
        number = int(numbers[wrong].max())
        other = self._executions[number]
        where = access.shadow.bytes_of(span, wrong & (numbers == number))
        place = Place(access.pattern.tile, *where)
        does = "writes" if access.writes else "reads"
        self._report(execution, does, other, other_does, place)

    def _report(
        self, execution: Execution, does: str, other: Execution, other_does: str, place: Place
    ) -> None:
        pairs = [(other, other_does), (execution, does)]
        if other.core == execution.core and other.number > execution.number:
            pairs.reverse()
        (first, one), (second, two) = pairs
        shared = place.shared
        is_named = isinstance(shared, str)
        cure = unordered_register(shared) if is_named else missing_wait(first, second)
        self.races.append(Race(first, second, place, (one, two), cure))

    def _check_registers(self, execution: Execution) -> None:
        """A register is its engine's own until the engines meet."""
        instr, core = execution.instr, execution.core
        for name in filter(is_register, instr.variables()):
            register = self._registers.setdefault((core, name), _Register())
            if register.set_by is not None and register.set_by.engine != execution.engine:
                place = Place(name)
                self._report(execution, "reads", register.set_by, "sets", place)
            if name not in execution.environment:
                raise UnsetRegister(
                    f"register {name} is not set: {instr.runs_on} has not set it, and knows what "
                    "another engine sets only after a barrier",
                    instruction=print_instruction(instr),
                    loc=instr.loc,
                )
            register.read_by[execution.engine] = execution
        if instr.sets_register is None:
            return
        name = instr.sets_register
        register = self._registers.setdefault((core, name), _Register())
        users = [*register.read_by.values(), *([register.set_by] if register.set_by else [])]
        for other in users:
            if other.engine != execution.engine and other is not execution:
                self._report(execution, "sets", other, "uses", Place(name))
        self._registers[core, name] = _Register(set_by=execution)

    def _accesses_of(self, execution: Execution) -> list[_Access]:
        key = execution.core, id(execution.instr)
        if key not in self._accesses:
            instr, core = execution.instr, execution.core
            memories = self._memories[core]
            self._accesses[key] = [
                self._access(core, pattern, instr.access(name), rows_of(memories, instr, name))
                for name, _, pattern in instr.operands()
            ]
        return self._accesses[key]

    def _access(self, core: int, pattern: Pattern, access: str, rows: Rows) -> _Access:
        memories = self._memories[core]
        region = memories.region(pattern.tile)
        key = id(region.buffer)
        if key not in self._shadows:
            self._shadows[key] = Shadow(region, len(self._streams), self._granule)
        view = memories.viewer(pattern)
        shadow, reads, writes = self._shadows[key], access != "writes", access != "reads"
        return _Access(pattern, reads, writes, shadow, view, rows)


def _certain(by_stream: Mapping[int, _Signals], stream: int, count: int) -> int:
    """How many signals of a stream have come for certain when their semaphore is at a count."""
    signals = by_stream[stream]
    if len(by_stream) == 1:
        return bisect_left(signals.counts, count) + 1 if count > 0 else 0
    low, high = 0, len(signals.counts)
    while low < high:
        middle = (low + high + 1) // 2
        if _without(by_stream, stream, middle) < count:
            low = middle
        else:
            high = middle - 1
    return low


def _without(by_stream: Mapping[int, _Signals], stream: int, number: int) -> int:
    """The count without a stream's signal number `number` and all that came because of it."""
    signals = by_stream[stream]
    execution = signals.clocks[number - 1][stream]
    total = signals.counts[number - 2] if number > 1 else 0
    for other, theirs in by_stream.items():
        if other != stream:
            before = bisect_left(theirs.clocks, execution, key=lambda clock: clock[stream])
            total += theirs.counts[before - 1] if before else 0
    return total


def _span(execution: Execution, access: _Access) -> Span:
    """The bytes of an access; AccessOutOfBounds when they are not all in its tile."""
    instr, environment = execution.instr, execution.environment
    try:
        return access.shadow.span(access.view(environment), access.rows(environment))
    except OutOfTile as error:
        text = print_instruction(instr)
        raise AccessOutOfBounds(str(error), instruction=text, loc=instr.loc) from error
