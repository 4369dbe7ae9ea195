"""One core of a concurrent run: what its engines have in front of them, and its semaphores."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from glia.base.errors import InternalError
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import register_variable
from glia.isa.operand import Wait
from glia.isa.rendezvous import Participant
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.machine.queues import stream_of
from glia.sim.memory import evaluator
from glia.sim.order.execution import Execution
from glia.sim.policy import Policy
from glia.sim.run import Executor, Step
from glia.sim.watchdog import Watchdog

_DECISION = None  # in the program's sequence: what follows depends on a register


def engines_of(program: Program) -> tuple[str, ...]:
    """The engines that a program uses, by name."""
    return tuple(sorted({i.runs_on for i in program.instructions()}))


def queues_of(program: Program) -> tuple[str, ...]:
    """The streams of the DMA queues that a program uses, by name."""
    return tuple(sorted({stream_of(i) for i in program.instructions() if i.queue}))


class Core(Executor):
    """One core whose engines and queues each go on at their own pace.

    `first` is the position of its first engine in the list of streams of the run, `numbers` gives
    its executions their numbers.
    """

    def __init__(
        self,
        program: Program,
        index: int,
        first: int,
        numbers: Iterator[int],
        policy: Policy | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(program, policy=policy, core=index, **shared)
        self.index = index
        self.engines = engines_of(program)
        names = (*self.engines, *queues_of(program))
        self.positions = {name: first + i for i, name in enumerate(names)}
        self.semaphores: dict[str, int] = {}
        self.registers: dict[str, int] = {}
        self.ahead: dict[str, deque[Execution]] = {name: deque() for name in self.engines}
        self.running: dict[str, Execution | None] = dict.fromkeys(self.engines)
        self.queues: dict[str, deque[Execution]] = {name: deque() for name in queues_of(program)}
        self.is_finished = not self.engines
        self._numbers = numbers
        self._steps: dict[int, Step] = {}
        self._waits = {
            id(wait): evaluator(wait.value) for i in program.instructions() for wait in i.waits
        }
        self.is_at_decision = self._has_met = False
        self._source = self._sequence(program.body, {})
        _check_queues(program)

    def prepare(self) -> None:
        """Get every instruction ready to be executed."""
        self._steps = {id(i): self._guarded(i) for i in self.program.instructions()}

    def head(self, engine: str) -> Execution | None:
        """The engine's next instruction; None when the program has none for it so far."""
        ahead = self.ahead[engine]
        while not ahead and not self.is_at_decision and not self.is_finished:
            self._take()
        return ahead[0] if ahead else None

    def unmet(self, execution: Execution) -> list[tuple[Wait, int]]:
        """The waits that hold an execution up, each with the count it needs."""
        needed = [(w, self._waits[id(w)](execution.variables)) for w in execution.instr.waits]
        return [(w, count) for w, count in needed if self.semaphores.get(w.semaphore, 0) < count]

    def begin(self, execution: Execution) -> None:
        """Take what an execution finds in registers, and the counts it has waited for."""
        execution.environment = {**execution.variables, **self.registers}
        for wait in execution.instr.waits:
            count = self._waits[id(wait)](execution.variables)
            execution.waited[wait.semaphore] = max(
                count, execution.waited.get(wait.semaphore, count)
            )

    def perform(self, execution: Execution) -> None:
        """Move the data: whether at the start or at completion must make no difference."""
        self._steps[id(execution.instr)](execution.environment)
        self.keep_register(execution)

    def brought(self, execution: Execution) -> Participant:
        """What the core brings to a meeting, checked as what every instruction reads."""
        for check in self._checks(execution.instr):
            check(execution.environment)
        return self.bring(execution.instr)(execution.environment)

    def keep_register(self, execution: Execution) -> None:
        """Take over the register that an execution has set."""
        variable = execution.instr.sets_register
        if variable is not None:
            self.registers[variable] = execution.environment[variable]

    def signal(self, execution: Execution) -> None:
        """Add what an execution signals on completion."""
        for signal in execution.instr.signals:
            count = self.semaphores.get(signal.semaphore, 0)
            self.semaphores[signal.semaphore] = count + signal.amount

    def pass_barrier(self) -> bool:
        """Let all engines pass a Barrier or a decision when each is there; False when not.

        After either the core's `semaphores` are 0.
        """
        heads = [self.head(engine) for engine in self.engines]
        if self.is_at_decision and not any(heads):
            self.is_at_decision = False
            return True
        at_barrier = all(h is not None and isinstance(h.instr, Barrier) for h in heads)
        if not heads or not at_barrier or any(self.queues.values()):
            return False
        for ahead in self.ahead.values():
            ahead.popleft()
        self.semaphores = {}
        return True

    @property
    def is_done(self) -> bool:
        """Whether every instruction of the program is complete."""
        return self.is_finished and not any((*self.ahead.values(), *self.queues.values()))

    def _sequence(
        self, body: tuple[Statement, ...], variables: dict[str, int]
    ) -> Iterator[Execution | None]:
        """Executions in program order; _DECISION where the next depend on a register."""
        for statement in body:
            if isinstance(statement, Loop):
                for index in range(statement.trips):
                    inside = {**variables, statement.variable: index}
                    yield from self._sequence(statement.body, inside)
            elif isinstance(statement, While):
                yield from self._repeat(statement, variables)
            elif isinstance(statement, Branch):
                yield _DECISION
                arm = statement.arm(self.registers[register_variable(statement.register)])
                yield from self._sequence(statement.arms[arm], variables)
            else:
                engine = self.positions[statement.runs_on]
                stream = self.positions[stream_of(statement)]
                number = next(self._numbers)
                yield Execution(number, self.index, engine, stream, statement, variables)

    def _repeat(self, loop: While, variables: dict[str, int]) -> Iterator[Execution | None]:
        watchdog = Watchdog(loop, self.policy)
        while True:
            yield from self._sequence(loop.condition, variables)
            yield _DECISION
            if self.registers[register_variable(loop.register)] == 0:
                return
            watchdog.count()
            yield from self._sequence(loop.body, variables)

    def _take(self) -> None:
        """Hand the next execution in program order to its engine, a Barrier to all of them."""
        try:
            execution = next(self._source)
        except StopIteration:
            self.is_finished = True
            return
        if execution is None:
            if not self._has_met:
                raise InternalError("engines do not meet before a while or branch")
            self.is_at_decision = True
            return
        self._has_met = isinstance(execution.instr, Barrier)
        engines = self.engines if self._has_met else (execution.instr.runs_on,)
        for engine in engines:
            self.ahead[engine].append(execution)


def _check_queues(program: Program) -> None:
    """InternalError when two engines issue to one queue: its order would be a race."""
    issuers: dict[str, str] = {}
    for instr in program.instructions():
        if instr.queue and issuers.setdefault(instr.queue, instr.runs_on) != instr.runs_on:
            first = issuers[instr.queue]
            raise InternalError(f"queue {instr.queue} is issued by {first} and {instr.runs_on}")
