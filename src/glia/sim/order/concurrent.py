"""Run programs as concurrent cores, engines and DMA queues, in an order chosen against them.

Nothing orders the streams but what the machine orders: an engine takes its instructions one after
the other, a transfer is complete some time after it was issued and in order on its queue, a wait
holds its engine until the semaphore has the count, at a Barrier all engines of a core meet, and
cores meet where an instruction says so. Every run keeps one stream back as long as anything else
can move and draws the rest from the seed.
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
from glia.machine.ir import Program
from glia.machine.queues import stream_of
from glia.sim.float32_mode import as_held
from glia.sim.last_writer import Writers
from glia.sim.memory import DeviceMemory
from glia.sim.order.concurrent_core import Core, engines_of, queues_of
from glia.sim.order.deadlock import Deadlock, explain
from glia.sim.order.execution import Execution, Stream
from glia.sim.order.happens_before import HappensBefore
from glia.sim.order.race import Race
from glia.sim.policy import ExecutionFault, Policy
from glia.sim.run import one_blas_thread, run

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

MOST_RACES = 200  # a run goes on to find the one that comes first, up to so many


def run_concurrently(
    program: Program, inputs: Arrays, *, seed: int = 0, policy: Policy | None = None
) -> dict[str, Array]:
    """Run a program on named inputs, its streams concurrent, and return its named outputs.

    Raises Race when nothing orders two instructions that meet on memory or a register, or orders
    them otherwise than the program does, Deadlock when no engine can go on, and what `run`
    raises. A run that ends gives what program order gives. The stream kept back is number `seed`
    modulo their count of `streams_of`. Where every semaphore is signalled by one stream, a single
    run finds every race there is; otherwise one run with each stream kept back.
    """
    return run_cores([program], [inputs], seed=seed, policy=policy)[0]


def run_logical_core(
    programs: Sequence[Program], inputs: Arrays, *, policy: Policy | None = None
) -> dict[str, Array]:
    """Run the programs of the cores of one logical core; inputs and outputs of all by name.

    Raises what `run_cores` raises. The seed is NEURON_SIM_SEED in the environment, or 0.
    """
    given = os.environ.get("NEURON_SIM_SEED", "")
    seed = int(given) if given.isdecimal() else 0
    results: dict[str, Array] = {}
    for each in reversed(run_cores(programs, [inputs] * len(programs), seed=seed, policy=policy)):
        results.update(each)
    return results


def run_programs(programs: Sequence[Program], inputs: Arrays) -> dict[str, Array]:
    """Run one program in program order, or those of several cores, which can meet, concurrently.

    Raises what `run` and `run_cores` do.
    """
    return run(programs[0], inputs) if len(programs) == 1 else run_logical_core(programs, inputs)


def run_strictly(programs: Sequence[Program], inputs: Arrays) -> dict[str, Array]:
    """`run_logical_core` that also refuses to read what nothing wrote, or what is gone."""
    return run_logical_core(programs, inputs, policy=Policy(check_initialized=True))


def run_cores(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    *,
    lnc: int = 0,
    seed: int = 0,
    policy: Policy | None = None,
) -> list[dict[str, Array]]:
    """Run one program on each core, all concurrently, and return each one's named outputs.

    Each `lnc` neighbours are the cores of one logical core, a rank (0: all are one). They share
    HBM: tensors of their programs at one address are the same. Every core has SBUF, PSUM,
    semaphores and registers of its own. Raises what `run_concurrently` raises, races between cores
    included.
    """
    programs, inputs = as_held(programs, inputs, policy)
    machine = ConcurrentMachine(programs, lnc=lnc, seed=seed, policy=policy)
    for core, given in zip(machine.cores, inputs, strict=True):
        core.set_inputs(given)
    machine.execute()
    return [core.outputs() for core in machine.cores]


def streams_of(*programs: Program) -> tuple[str, ...]:
    """The engines and `queue.NAME`s of each core, in the order in which seeds keep them back."""
    return tuple(name for p in programs for name in (*engines_of(p), *queues_of(p)))


class ConcurrentMachine:
    """Cores whose engines and queues each go on at their own pace."""

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        lnc: int = 0,
        seed: int = 0,
        policy: Policy | None = None,
    ) -> None:
        numbers, writers, lnc = itertools.count(1), Writers(programs), lnc or max(1, len(programs))
        memories = [
            DeviceMemory(programs[first : first + lnc], policy)
            for first in range(0, len(programs), lnc)
        ]
        self.cores: list[Core] = []
        self.streams: list[Stream] = []
        for index, program in enumerate(programs):
            shared = {"hbm": memories[index // lnc], "writers": writers}
            core = Core(program, index, len(self.streams), numbers, policy, **shared)
            core.numbers = {"cores": index % lnc, "ranks": index // lnc}
            self.cores.append(core)
            self.streams += [Stream(index, name) for name in core.positions]
        self._kept_back = self.streams[seed % len(self.streams)] if self.streams else None
        self._random = random.Random(seed)
        self._fault: Exception | None = None
        self._order = HappensBefore(
            self.streams,
            [core.memories for core in self.cores],
            programs,
        )

    def execute(self) -> None:
        """Run all programs once, each from its first instruction.

        What is told is the race whose second access comes first in program order; without one a
        deadlock; without that what was wrong with data first, which a race can be the cause of.
        """
        for core in self.cores:
            core.prepare()
        try:
            with np.errstate(all="ignore"), one_blas_thread():
                while len(self._order.races) < MOST_RACES and self._advance():
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
        """Let one stream move, or all engines of a core pass a barrier; False when none can."""
        ready = [stream for stream in self.streams if self._can_move(stream)]
        if ready:
            self._move(self._choose(ready))
            return True
        is_known = self._fault is None and not self._order.races
        if not is_known and any(core.is_at_decision for core in self.cores):
            return False  # what registers hold cannot be trusted any more
        return self._meet()

    def _choose(self, ready: list[Stream]) -> Stream:
        others = [stream for stream in ready if stream != self._kept_back]
        return self._random.choice(others or ready)

    def _can_move(self, stream: Stream) -> bool:
        core = self.cores[stream.core]
        front = self._front(stream)
        if front is None:
            return False
        if _is_meeting(front.instr) and not self._is_issuing(front, stream):
            has_come = stream.is_queue or not core.unmet(front)
            return has_come and self._gathered(front) is not None
        if stream.is_queue or core.running[stream.name] is not None:
            return True
        return not isinstance(front.instr, Barrier) and not core.unmet(front)

    def _front(self, stream: Stream) -> Execution | None:
        """What a stream has to do next."""
        core = self.cores[stream.core]
        if stream.is_queue:
            queue = core.queues[stream.name]
            return queue[0] if queue else None
        return core.running[stream.name] or core.head(stream.name)

    def _is_issuing(self, front: Execution, stream: Stream) -> bool:
        """Whether the stream only hands an execution to a queue."""
        return bool(front.instr.queue) and not stream.is_queue

    def _move(self, stream: Stream) -> None:
        core, front = self.cores[stream.core], self._front(stream)
        assert front is not None
        if _is_meeting(front.instr) and not self._is_issuing(front, stream):
            self._hold_meeting(self._gathered(front) or [])
        elif stream.is_queue:
            self._complete(core.queues[stream.name].popleft())
        elif core.running[stream.name] is not None:
            core.running[stream.name] = None
            self._complete(front)
        else:
            core.ahead[stream.name].popleft()
            self._start(core, front)

    def _start(self, core: Core, execution: Execution) -> None:
        core.begin(execution)
        instr = execution.instr
        if _is_meeting(instr):
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
        """Move the data; of what is wrong with it the first is kept."""
        try:
            core.perform(execution)
        except (ExecutionFault, InternalError, Unspecified) as fault:
            self._fault = self._fault or fault

    def _gathered(self, execution: Execution) -> list[Execution] | None:
        """All who meet, when each of them has come; None as long as one is missing."""
        core = self.cores[execution.core]
        instr: Any = execution.instr
        own = core.numbers[instr.among]
        found = []
        for rank in instr.ranks(own):
            other = execution if rank == own else self._arrived(core, instr, rank)
            if other is None:
                return None
            found.append(other)
        return found

    def _arrived(self, own: Core, instr: Any, number: int) -> Execution | None:
        """What another core has come to meet with; of several the first in program order."""
        found = [
            front
            for stream in self.streams
            if (core := self.cores[stream.core]).numbers[instr.among] == number
            and (instr.among == "ranks" or core.numbers["ranks"] == own.numbers["ranks"])
            and (front := self._front(stream)) is not None
            and _is_meeting(front.instr)
            and front.instr.topic() == instr.topic()  # type: ignore[attr-defined]
            and (front.clock is not None or not (front.instr.queue or core.unmet(front)))
        ]
        return min(found, key=lambda each: each.number, default=None)

    def _hold_meeting(self, together: list[Execution]) -> None:
        """Let all who meet bring what they have, and take what they get."""
        for execution in together:
            core = self.cores[execution.core]
            if execution.instr.queue:
                core.queues[stream_of(execution.instr)].popleft()
            else:
                core.ahead[execution.instr.runs_on].popleft()
                core.begin(execution)
                self._order.issue(execution)
        self._order.join(together)
        self._order.touch(*together)
        self._exchange(together)
        for execution in together:
            self._order.complete(execution)
            self.cores[execution.core].signal(execution)

    def _exchange(self, together: list[Execution]) -> None:
        """Move the data of a meeting; of what is wrong with it the first is kept."""
        cores = [self.cores[execution.core] for execution in together]
        pairs = list(zip(cores, together, strict=True))
        try:
            brought = [core.brought(execution) for core, execution in pairs]
            results = type(together[0].instr).compute(brought)
            for (core, execution), result in zip(pairs, results, strict=True):
                core.take(execution.instr)(execution.environment, tuple(result))
                core.keep_register(execution)
        except (ExecutionFault, InternalError, Unspecified) as fault:
            self._fault = self._fault or fault

    def _meet(self) -> bool:
        """Let every core whose engines are all at a barrier pass it; False when none is."""
        passed = [core.index for core in self.cores if core.pass_barrier()]
        for index in passed:
            self._order.meet(index)
        return bool(passed)


def _is_meeting(instr: Instr) -> bool:
    """Whether cores meet at an instruction, see `glia.isa.rendezvous`."""
    return instr.arrives == "participants"
