"""One core of a concurrent run: pending instructions of its engines, queues and semaphores."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from glia.base.loc import UNKNOWN
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import Instr, register_variable
from glia.isa.operand import Wait
from glia.isa.rendezvous import Participant
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.machine.queues import stream_of
from glia.machine.text import print_instruction
from glia.sim.memory import evaluator
from glia.sim.order.execution import Execution
from glia.sim.policy import MalformedProgram, Policy
from glia.sim.run import Executor, Step, register_value
from glia.sim.watchdog import RunLimits, Watchdog, fewest_executions

CONCURRENT_COST = 32  # an execution takes so many times as long as in a run in program order
_BRANCH_POINT = None  # in program order: what follows depends on a register


def engines_of(program: Program) -> tuple[str, ...]:
    """The names of the engines that a program uses, sorted."""
    return tuple(sorted({i.runs_on for i in program.instructions()}))


def queues_of(program: Program) -> tuple[str, ...]:
    """The stream names of the DMA queues that a program uses, sorted."""
    return tuple(sorted({stream_of(i) for i in program.instructions() if i.queue}))


class Core(Executor):
    """One core whose engines and queues advance independently.

    `first` is the index of its first engine among the streams of the run, `numbers` an iterator of
    execution numbers.
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
        self.pending: dict[str, deque[Execution]] = {name: deque() for name in self.engines}
        self.running: dict[str, Execution | None] = dict.fromkeys(self.engines)
        self.queues: dict[str, deque[Execution]] = {name: deque() for name in queues_of(program)}
        self.is_finished = not self.engines
        self._execution_numbers = numbers
        self._steps: dict[int, Step] = {}
        self._waits = {
            id(wait): evaluator(wait.value) for i in program.instructions() for wait in i.waits
        }
        self.is_at_branch = self._is_barrier_last = False
        self._latest: Instr | None = None  # in program order, of those given to their engines
        self._executions = self._program_order(program.body, {})
        _check_queues(program)

    def prepare(self) -> None:
        """Compile every instruction to its step, once the run is within the policy's limits."""
        self.limits = RunLimits(self.policy)
        self.limits.spend(CONCURRENT_COST * fewest_executions(self.program.body))
        self._steps = {id(i): self.reporting_step(i) for i in self.program.instructions()}

    def head(self, engine: str) -> Execution | None:
        """The engine's next execution; None when there is none before a branch or the end."""
        pending = self.pending[engine]
        while not pending and not self.is_at_branch and not self.is_finished:
            self._dispatch_next()
        return pending[0] if pending else None

    def unmet_waits(self, execution: Execution) -> list[tuple[Wait, int]]:
        """The waits whose semaphores are below the needed count, each with that count."""
        needed = [(w, self._waits[id(w)](execution.variables)) for w in execution.instr.waits]
        return [(w, count) for w, count in needed if self.semaphores.get(w.semaphore, 0) < count]

    def bind_environment(self, execution: Execution) -> None:
        """Capture the registers for an execution, and the counts it has waited for."""
        execution.environment = {**execution.variables, **self.registers}
        for wait in execution.instr.waits:
            count = self._waits[id(wait)](execution.variables)
            execution.waited[wait.semaphore] = max(
                count, execution.waited.get(wait.semaphore, count)
            )

    def perform(self, execution: Execution) -> None:
        """Execute the instruction; start and completion must give equal results."""
        self._steps[id(execution.instr)](execution.environment)
        self.commit_register(execution)

    def checked_participant(self, execution: Execution) -> Participant:
        """This core's side of a rendezvous, after the checks of its operands."""
        for check in self._operand_checks(execution.instr):
            check(execution.environment)
        return self.participant(execution.instr)(execution.environment)

    def commit_register(self, execution: Execution) -> None:
        """Copy the register that an execution has set to the core."""
        variable = execution.instr.sets_register
        if variable is not None:
            self.registers[variable] = execution.environment[variable]

    def signal(self, execution: Execution) -> None:
        """Add the signals of a completed execution to the semaphores."""
        for signal in execution.instr.signals:
            count = self.semaphores.get(signal.semaphore, 0)
            self.semaphores[signal.semaphore] = count + signal.amount

    def pass_barrier(self) -> bool:
        """Pass a Barrier or a branch if all engines have arrived; returns whether they have.

        A Barrier resets the core's `semaphores` to 0.
        """
        heads = [self.head(engine) for engine in self.engines]
        if self.is_at_branch and not any(heads):
            self.is_at_branch = False
            return True
        at_barrier = all(h is not None and isinstance(h.instr, Barrier) for h in heads)
        if not heads or not at_barrier or any(self.queues.values()):
            return False
        for pending in self.pending.values():
            pending.popleft()
        self.semaphores = {}
        return True

    @property
    def is_done(self) -> bool:
        """Whether every instruction of the program is complete."""
        return self.is_finished and not any((*self.pending.values(), *self.queues.values()))

    def _program_order(
        self, body: tuple[Statement, ...], variables: dict[str, int]
    ) -> Iterator[Execution | None]:
        """Executions in program order; _DECISION where the next depend on a register."""
        for statement in body:
            if isinstance(statement, Loop):
                for index in range(statement.trips):
                    inside = {**variables, statement.variable: index}
                    yield from self._program_order(statement.body, inside)
            elif isinstance(statement, While):
                yield from self._while_executions(statement, variables)
            elif isinstance(statement, Branch):
                yield _BRANCH_POINT
                arm = statement.arm(
                    register_value(self.registers, register_variable(statement.register))
                )
                yield from self._program_order(statement.arms[arm], variables)
            else:
                engine = self.positions[statement.runs_on]
                stream = self.positions[stream_of(statement)]
                number = next(self._execution_numbers)
                yield Execution(number, self.index, engine, stream, statement, variables)

    def _while_executions(
        self, loop: While, variables: dict[str, int]
    ) -> Iterator[Execution | None]:
        watchdog = Watchdog(loop, self.policy)
        executions = fewest_executions((*loop.condition, *loop.body))
        while True:
            yield from self._program_order(loop.condition, variables)
            yield _BRANCH_POINT
            if register_value(self.registers, register_variable(loop.register)) == 0:
                return
            watchdog.count()
            self.limits.spend(CONCURRENT_COST * executions)
            yield from self._program_order(loop.body, variables)

    def _dispatch_next(self) -> None:
        """Append the next execution in program order to its engine, a Barrier to all engines."""
        try:
            execution = next(self._executions)
        except StopIteration:
            self.is_finished = True
            return
        if execution is None:
            if not self._is_barrier_last:
                raise self._without_barrier()
            self.is_at_branch = True
            return
        self._latest = execution.instr
        self._is_barrier_last = isinstance(execution.instr, Barrier)
        engines = self.engines if self._is_barrier_last else (execution.instr.runs_on,)
        for engine in engines:
            self.pending[engine].append(execution)

    def _without_barrier(self) -> MalformedProgram:
        latest = self._latest
        text, loc = (print_instruction(latest), latest.loc) if latest else ("", UNKNOWN)
        return MalformedProgram("no barrier precedes a while or branch", instruction=text, loc=loc)


def _check_queues(program: Program) -> None:
    """MalformedProgram when two engines issue to one queue, whose order would be undefined."""
    issuers: dict[str, str] = {}
    for instr in program.instructions():
        if instr.queue and issuers.setdefault(instr.queue, instr.runs_on) != instr.runs_on:
            first = issuers[instr.queue]
            raise MalformedProgram(
                f"queue {instr.queue} is issued by {first} and {instr.runs_on}",
                instruction=print_instruction(instr),
                loc=instr.loc,
            )
