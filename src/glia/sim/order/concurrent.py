"""Run programs on concurrent cores, engines and DMA queues in an adversarial order.

Only the machine's own rules order the streams: an engine issues in order, a transfer completes
some time after it was issued and in order on its queue, a wait blocks its engine until the
semaphore has the count, a Barrier synchronizes the engines of a core, and cross-core instructions
synchronize cores. Every run delays one stream as long as another can advance, and draws the other
choices from the seed.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glia.base.errors import InternalError, Unspecified
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import Instr
from glia.isa.rendezvous import differences
from glia.machine.ir import Program
from glia.machine.queues import stream_of
from glia.machine.text import print_instruction
from glia.sim.float32_mode import apply_precision
from glia.sim.last_writer import WriterTable
from glia.sim.memory import DeviceMemory
from glia.sim.notifications import Notifications
from glia.sim.order.concurrent_core import Core, engines_of, queues_of
from glia.sim.order.deadlock import Deadlock, explain
from glia.sim.order.execution import Execution, Stream
from glia.sim.order.happens_before import HappensBefore
from glia.sim.order.race import Race
from glia.sim.policy import ExecutionFault, Policy
from glia.sim.run import one_blas_thread, run
from glia.sim.uses import UseLog

__all__ = [
    "Deadlock",
    "Race",
    "run_concurrently",
    "run_cores",
    "run_logical_core",
    "run_programs",
    "run_strictly",
    "streams_of",
]

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

MAX_RACES = 200  # a run continues up to so many, to report the first in program order


def run_concurrently(
    program: Program, inputs: Arrays, *, seed: int = 0, policy: Policy | None = None
) -> dict[str, Array]:
    """Run a program on named inputs, its streams concurrent, and return its named outputs.

    Raises Race for conflicting accesses to memory or a register that are unordered, or ordered
    against program order, Deadlock when no engine can advance, and the errors of `run`. A run that
    ends gives the results of program order. The delayed stream is number `seed` modulo their count
    of `streams_of`. Where every semaphore is signalled by one stream, a single run finds every
    race; otherwise one run with each stream delayed does.
    """
    return run_cores([program], [inputs], seed=seed, policy=policy)[0]


def run_logical_core(
    programs: Sequence[Program],
    inputs: Arrays,
    notifications: Notifications | None = None,
    *,
    policy: Policy | None = None,
) -> dict[str, Array]:
    """Run the programs of the cores of one logical core; inputs and outputs of all by name.

    Raises what `run_cores` raises. The seed is NEURON_SIM_SEED in the environment, or 0.
    """
    given = os.environ.get("NEURON_SIM_SEED", "")
    seed = int(given) if given.isdecimal() else 0
    results: dict[str, Array] = {}
    found = run_cores(
        programs,
        [inputs] * len(programs),
        seed=seed,
        policy=policy,
        notifications=notifications,
    )
    for each in reversed(found):
        results.update(each)
    return results


def run_programs(
    programs: Sequence[Program], inputs: Arrays, notifications: Notifications | None = None
) -> dict[str, Array]:
    """Run one program in program order, several (one for each core) concurrently.

    Raises the errors of `run` and `run_cores`.
    """
    if len(programs) == 1:
        return run(programs[0], inputs, notifications=notifications)
    return run_logical_core(programs, inputs, notifications)


def run_strictly(
    programs: Sequence[Program], inputs: Arrays, notifications: Notifications | None = None
) -> dict[str, Array]:
    """`run_logical_core` that also raises UninitializedRead and StaleRead."""
    strict = Policy(check_initialized=True)
    return run_logical_core(programs, inputs, notifications, policy=strict)


def run_cores(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    *,
    lnc: int = 0,
    seed: int = 0,
    policy: Policy | None = None,
    notifications: Notifications | None = None,
    uses: UseLog | None = None,
) -> list[dict[str, Array]]:
    """Run one program on each core, all concurrently, and return each one's named outputs.

    Each `lnc` neighbours are the cores of one logical core, a rank (0: all are one). They share
    HBM: tensors of their programs at one address are the same. Every core has SBUF, PSUM,
    semaphores and registers of its own. Raises what `run_concurrently` raises, races between cores
    included.
    """
    programs, inputs = apply_precision(programs, inputs, policy)
    machine = ConcurrentMachine(programs, lnc=lnc, seed=seed, policy=policy, uses=uses)
    for core, given in zip(machine.cores, inputs, strict=True):
        core.set_inputs(given)
        core.notifications = core.notifications if notifications is None else notifications
    machine.execute()
    if uses is not None:
        for core in machine.cores:
            uses.finish(core.memories, [binding.tile for binding in core.program.outputs])
    return [core.outputs() for core in machine.cores]


def streams_of(*programs: Program) -> tuple[str, ...]:
    """The engines and `queue.NAME`s of each core, in the order in which seeds delay them."""
    return tuple(name for p in programs for name in (*engines_of(p), *queues_of(p)))


class ConcurrentMachine:
    """Cores whose engines and queues advance independently."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        lnc: int = 0,
        seed: int = 0,
        policy: Policy | None = None,
        uses: UseLog | None = None,
    ) -> None:
        numbers, writers = itertools.count(1), WriterTable(programs)
        lnc = lnc or max(1, len(programs))
        memories = [
            DeviceMemory(programs[first : first + lnc], policy)
            for first in range(0, len(programs), lnc)
        ]
        self.cores: list[Core] = []
        self.streams: list[Stream] = []
        for index, program in enumerate(programs):
            shared = {"hbm": memories[index // lnc], "writers": writers, "uses": uses}
            core = Core(program, index, len(self.streams), numbers, policy, **shared)
            core.indices = {"cores": index % lnc, "ranks": index // lnc}
            self.cores.append(core)
            self.streams += [Stream(index, name) for name in core.positions]
        self._delayed_stream = self.streams[seed % len(self.streams)] if self.streams else None
        self._random = random.Random(seed)
        self._fault: Exception | None = None
        self._order = HappensBefore(
            self.streams,
            [core.memories for core in self.cores],
            programs,
        )

    def execute(self) -> None:
        """Run all programs once, each from its first instruction.

        Raises the race whose second access is first in program order; without races, Deadlock;
        else the first fault of data, which may be the consequence of a race.
        """
        for core in self.cores:
            core.prepare()
        try:
            with np.errstate(all="ignore"), one_blas_thread():
                while len(self._order.races) < MAX_RACES and self._advance():
                    pass
        except (ExecutionFault, InternalError, Unspecified) as error:
            self._fault = self._fault or error
        if self._order.races:
            raise min(self._order.races, key=lambda race: race.rank)
        if self._fault is None and not all(core.is_done for core in self.cores):
            raise Deadlock(explain(self.cores))
        if self._fault is not None:
            raise self._fault

    def _advance(self) -> bool:
        """Advance one stream, or the engines of a core past a barrier; False when none can."""
        ready = [stream for stream in self.streams if self._is_ready(stream)]
        self.cores[0].limits.check_time()
        if ready:
            self._advance_stream(self._choose(ready))
            return True
        is_known = self._fault is None and not self._order.races
        if not is_known and any(core.is_at_branch for core in self.cores):
            return False  # after a fault the registers it depends on are unreliable
        return self._pass_barriers()

    def _choose(self, ready: list[Stream]) -> Stream:
        others = [stream for stream in ready if stream != self._delayed_stream]
        return self._random.choice(others or ready)

    def _is_ready(self, stream: Stream) -> bool:
        core = self.cores[stream.core]
        front = self._next_execution(stream)
        if front is None:
            return False
        if _is_rendezvous(front.instr) and not self._is_issuing(front, stream):
            has_arrived = stream.is_queue or not core.unmet_waits(front)
            return has_arrived and self._participants(front) is not None
        if stream.is_queue or core.running[stream.name] is not None:
            return True
        return not isinstance(front.instr, Barrier) and not core.unmet_waits(front)

    def _next_execution(self, stream: Stream) -> Execution | None:
        """The execution that a stream issues or completes next."""
        core = self.cores[stream.core]
        if stream.is_queue:
            queue = core.queues[stream.name]
            return queue[0] if queue else None
        return core.running[stream.name] or core.head(stream.name)

    def _is_issuing(self, front: Execution, stream: Stream) -> bool:
        """Whether the stream only issues the execution to a queue."""
        return bool(front.instr.queue) and not stream.is_queue

    def _advance_stream(self, stream: Stream) -> None:
        core, front = self.cores[stream.core], self._next_execution(stream)
        assert front is not None
        if _is_rendezvous(front.instr) and not self._is_issuing(front, stream):
            self._rendezvous(self._participants(front) or [])
        elif stream.is_queue:
            self._complete(core.queues[stream.name].popleft())
        elif core.running[stream.name] is not None:
            core.running[stream.name] = None
            self._complete(front)
        else:
            core.pending[stream.name].popleft()
            self._start(core, front)

    def _start(self, core: Core, execution: Execution) -> None:
        core.bind_environment(execution)
        instr = execution.instr
        if _is_rendezvous(instr):
            self._order.issue(execution)
            core.queues[stream_of(instr)].append(execution)
            return
        self._order.start(execution)
        execution.is_early = self._random.random() < 0.5
        if execution.is_early:
            self._perform(core, execution)
        if instr.queue:
            core.queues[stream_of(instr)].append(execution)
        else:
            core.running[instr.runs_on] = execution

    def _complete(self, execution: Execution) -> None:
        core = self.cores[execution.core]
        if not execution.is_early:
            self._perform(core, execution)
        self._order.complete(execution)
        core.signal(execution)

    def _perform(self, core: Core, execution: Execution) -> None:
        """Execute an instruction; the first fault is recorded, not raised."""
        try:
            self._order.prepare(execution)
            core.perform(execution)
            self._order.perform(execution)
        except (ExecutionFault, InternalError, Unspecified) as fault:
            self._fault = self._fault or fault

    def _participants(self, execution: Execution) -> list[Execution] | None:
        """The executions of a rendezvous, by rank; None as long as one has not arrived."""
        core = self.cores[execution.core]
        instr: Any = execution.instr
        own = core.indices[instr.among]
        found = []
        for rank in instr.ranks(own):
            other = execution if rank == own else self._arrived_participant(core, instr, rank)
            if other is None:
                return None
            found.append(other)
        return found

    def _arrived_participant(self, own: Core, instr: Any, number: int) -> Execution | None:
        """The execution with which a core has arrived; of several the first in program order.

        Ranks meet core by core: the first of each, the second of each.
        """
        other = "cores" if instr.among == "ranks" else "ranks"
        found = [
            front
            for stream in self.streams
            if (core := self.cores[stream.core]).indices[instr.among] == number
            and core.indices[other] == own.indices[other]
            and (front := self._next_execution(stream)) is not None
            and _is_rendezvous(front.instr)
            and front.instr.topic() == instr.topic()  # type: ignore[attr-defined]
            and (front.clock is not None or not (front.instr.queue or core.unmet_waits(front)))
        ]
        return min(found, key=lambda each: each.number, default=None)

    def _rendezvous(self, participants: list[Execution]) -> None:
        """Complete a rendezvous: exchange data, order the accesses, signal."""
        for execution in participants:
            core = self.cores[execution.core]
            if execution.instr.queue:
                core.queues[stream_of(execution.instr)].popleft()
            else:
                core.pending[execution.instr.runs_on].popleft()
                core.bind_environment(execution)
                self._order.issue(execution)
        self._order.join_clocks(participants)
        self._order.check_accesses(*participants)
        for execution in participants:
            self._order.prepare(execution)
        self._exchange_data(participants)
        for execution in participants:
            self._order.perform(execution)
            self._order.complete(execution)
            self.cores[execution.core].signal(execution)

    def _exchange_data(self, participants: list[Execution]) -> None:
        """Move the data of a rendezvous; the first fault is recorded, not raised."""
        cores = [self.cores[execution.core] for execution in participants]
        pairs = list(zip(cores, participants, strict=True))
        try:
            _require_agreement(pairs)
            checked_participant = [core.checked_participant(execution) for core, execution in pairs]
            results = type(participants[0].instr).compute(checked_participant)
            for (core, execution), result in zip(pairs, results, strict=True):
                core.result_store(execution.instr)(execution.environment, tuple(result))
                core.commit_register(execution)
        except (ExecutionFault, InternalError, Unspecified) as fault:
            self._fault = self._fault or fault

    def _pass_barriers(self) -> bool:
        """Advance every core whose engines are all at a barrier; False when there is none."""
        passed = [core.index for core in self.cores if core.pass_barrier()]
        for index in passed:
            self._order.pass_barrier(index)
        return bool(passed)


def _require_agreement(pairs: Sequence[tuple[Core, Execution]]) -> None:
    """Raise ExecutionFault where those who meet bring different tensors or attributes."""
    (first, leading), *others = pairs
    for core, execution in others:
        instr: Any = execution.instr
        for what in differences(leading.instr, instr):
            mine, other = first.indices[instr.among], core.indices[instr.among]
            raise ExecutionFault(
                f"{instr.among} {mine} and {other} differ in {what}",
                instruction=print_instruction(instr),
                loc=instr.loc,
            )


def _is_rendezvous(instr: Instr) -> bool:
    """Whether an instruction synchronizes cores, see `glia.isa.rendezvous`."""
    return instr.arrives == "participants"
