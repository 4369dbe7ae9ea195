"""Run a program as concurrent engines and DMA queues, in an order chosen against it.

Nothing orders the streams but what the machine orders: an engine takes its instructions one after
the other, a transfer is complete some time after it was issued and in order on its queue, a wait
holds its engine until the semaphore has the count, and at a Barrier all engines meet. Every run
keeps one stream back as long as anything else can move and draws the rest from the seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from glia.base.errors import InternalError
from glia.isa.operand import Wait
from glia.isa.sync import Barrier, register_variable
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.machine.text import print_instruction
from glia.sim.concurrent_order import Execution, Order
from glia.sim.memory import evaluator
from glia.sim.policy import ExecutionFault, Policy
from glia.sim.run import Executor, Step

Array = np.ndarray[Any, Any]

_DECISION = None  # in the program's sequence: what follows depends on a register


class Deadlock(ExecutionFault):
    """No engine can go on; says who waits for what."""


def run_concurrently(
    program: Program, inputs: Mapping[str, Array], *, seed: int = 0, policy: Policy | None = None
) -> dict[str, Array]:
    """Run a program on named inputs, its streams concurrent, and return its named outputs.

    Raises Race when two instructions meet on memory or a register otherwise than in program order,
    Deadlock when no engine can go on, and what `run` raises. A run that ends gives what program
    order gives. The stream kept back is number `seed` modulo their count of `streams_of`: where
    every semaphore is signalled by one stream, one run with each of them kept back finds every
    race there is, since what is not held by waits overtakes the stream that is kept back.
    """
    executor = ConcurrentExecutor(program, seed=seed, policy=policy)
    for binding in program.inputs:
        executor.set_input(binding, np.asarray(inputs[binding.name]))
    executor.execute()
    return {b.name: executor.memories.read(b.tile, b.dtype, b.shape) for b in program.outputs}


def streams_of(program: Program) -> tuple[str, ...]:
    """The engines and `queue.NAME`s of a program, in the order in which seeds keep them back."""
    instructions = list(program.instructions())
    engines = sorted({i.runs_on for i in instructions})
    queues = sorted({f"queue.{i.queue}" for i in instructions if i.queue})
    return (*engines, *queues)


class ConcurrentExecutor(Executor):
    """One core whose engines and queues each go on at their own pace."""

    def __init__(self, program: Program, *, seed: int = 0, policy: Policy | None = None) -> None:
        super().__init__(program, policy=policy)
        _check_queues(program)
        self.streams = streams_of(program)
        self._kept_back = self.streams[seed % len(self.streams)] if self.streams else ""
        self._random = random.Random(seed)
        self._order = Order(self.memories)
        self._steps: dict[int, Step] = {}
        self._waits = {
            id(wait): evaluator(wait.value) for i in program.instructions() for wait in i.waits
        }
        self._registers: dict[str, int] = {}
        self._semaphores: dict[str, int] = {}
        self._source = self._sequence(program.body, {})
        self._issued = 0
        self._is_at_decision = self._is_finished = self._has_met = False
        self._ahead: dict[str, deque[Execution]] = {}
        self._running: dict[str, Execution | None] = {}
        self._queues: dict[str, deque[Execution]] = {}
        for stream in self.streams:
            if stream.startswith("queue."):
                self._queues[stream] = deque()
            else:
                self._ahead[stream], self._running[stream] = deque(), None

    def execute(self) -> None:
        """Run the program once, from its first instruction."""
        self._steps = {id(i): self._guarded(i) for i in self.program.instructions()}
        with np.errstate(all="ignore"):
            while True:
                ready = [stream for stream in self.streams if self._can_move(stream)]
                if ready:
                    self._move(self._choose(ready))
                elif not self._meet():
                    break
        if not self._is_finished or any(self._ahead.values()):
            raise Deadlock("deadlock: " + "; ".join(self._held_up()))

    def _choose(self, ready: list[str]) -> str:
        others = [stream for stream in ready if stream != self._kept_back]
        return self._random.choice(others or ready)

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
                index = self._registers[register_variable(statement.register)]
                arm = index if 0 <= index < len(statement.arms) else -1
                yield from self._sequence(statement.arms[arm], variables)
            else:
                self._issued += 1
                yield Execution(self._issued, statement, variables)

    def _repeat(self, loop: While, variables: dict[str, int]) -> Iterator[Execution | None]:
        while True:
            yield from self._sequence(loop.condition, variables)
            yield _DECISION
            if self._registers[register_variable(loop.register)] == 0:
                return
            yield from self._sequence(loop.body, variables)

    def _head(self, engine: str) -> Execution | None:
        """The engine's next instruction; None when the program has none for it so far."""
        ahead = self._ahead[engine]
        while not ahead and not self._is_at_decision and not self._is_finished:
            self._take()
        return ahead[0] if ahead else None

    def _take(self) -> None:
        """Hand the next execution in program order to its engine, a Barrier to all of them."""
        try:
            execution = next(self._source)
        except StopIteration:
            self._is_finished = True
            return
        if execution is None:
            if not self._has_met:
                raise InternalError("engines do not meet before a while or branch")
            self._is_at_decision = True
            return
        self._has_met = isinstance(execution.instr, Barrier)
        engines = self._ahead if self._has_met else (execution.instr.runs_on,)
        for engine in engines:
            self._ahead[engine].append(execution)

    def _can_move(self, stream: str) -> bool:
        if stream in self._queues:
            return bool(self._queues[stream])
        if self._running[stream] is not None:
            return True
        head = self._head(stream)
        return head is not None and not isinstance(head.instr, Barrier) and not self._unmet(head)

    def _unmet(self, execution: Execution) -> list[tuple[Wait, int]]:
        """The waits that hold an execution up, each with the count it needs."""
        needed = [(w, self._waits[id(w)](execution.variables)) for w in execution.instr.waits]
        return [(w, count) for w, count in needed if self._semaphores.get(w.semaphore, 0) < count]

    def _move(self, stream: str) -> None:
        if stream in self._queues:
            self._complete(self._queues[stream].popleft())
            return
        running = self._running[stream]
        if running is not None:
            self._running[stream] = None
            self._complete(running)
            return
        execution = self._ahead[stream].popleft()
        self._start(execution)
        if execution.instr.queue:
            self._queues[f"queue.{execution.instr.queue}"].append(execution)
        else:
            self._running[stream] = execution

    def _start(self, execution: Execution) -> None:
        execution.environment = {**execution.variables, **self._registers}
        self._order.start(execution)
        execution.is_early = self._random.random() < 0.5
        if execution.is_early:
            self._perform(execution)

    def _complete(self, execution: Execution) -> None:
        if not execution.is_early:
            self._perform(execution)
        self._order.complete(execution)
        for signal in execution.instr.signals:
            count = self._semaphores.get(signal.semaphore, 0)
            self._semaphores[signal.semaphore] = count + signal.amount

    def _perform(self, execution: Execution) -> None:
        """Move the data: whether at the start or at completion must make no difference."""
        self._steps[id(execution.instr)](execution.environment)
        register = getattr(execution.instr, "register", None)
        if register is not None:
            variable = register_variable(register)
            self._registers[variable] = execution.environment[variable]

    def _meet(self) -> bool:
        """Let all engines pass a Barrier or a decision when each is there; False when not."""
        heads = [self._head(engine) for engine in self._ahead]
        if self._is_at_decision and not any(heads):
            self._is_at_decision = False
            return True
        if not heads or not all(h is not None and isinstance(h.instr, Barrier) for h in heads):
            return False
        for ahead in self._ahead.values():
            ahead.popleft()
        self._semaphores = {}
        self._order.meet()
        return True

    def _held_up(self) -> Iterator[str]:
        for engine in self._ahead:
            head = self._head(engine)
            if head is None:
                continue
            if isinstance(head.instr, Barrier):
                yield f"{engine} is at a barrier"
            for wait, needed in self._unmet(head):
                reached = self._semaphores.get(wait.semaphore, 0)
                yield (
                    f"{engine} waits for {wait.semaphore} to reach {needed}, which is at {reached},"
                    f" before {print_instruction(head.instr)}"
                )


def _check_queues(program: Program) -> None:
    """InternalError when two engines issue to one queue: its order would be a race."""
    issuers: dict[str, str] = {}
    for instr in program.instructions():
        if instr.queue and issuers.setdefault(instr.queue, instr.runs_on) != instr.runs_on:
            first = issuers[instr.queue]
            raise InternalError(f"queue {instr.queue} is issued by {first} and {instr.runs_on}")
