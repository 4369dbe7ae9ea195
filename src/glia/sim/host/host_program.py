"""The host executor: a program in program order, its instructions as machine code of the host.

What has no machine code runs by its declared NumPy meaning, as in the reference executor, and is
counted in the report. Memory keeps what earlier runs left in it: a program that reads what it has
not written is found by the other executors, not here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

import glia.sim.host.steps as steps
from glia.arch import get_target
from glia.base.dtype import PRED
from glia.base.native import Library, address_of
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Tile
from glia.machine.ir import Binding, Program
from glia.sim.host.pool import host_pool
from glia.sim.host.steps import RunState, Stop
from glia.sim.host.table import Table, TableBuilder
from glia.sim.memory import DeviceMemory, Environment
from glia.sim.notifications import Notifications
from glia.sim.order.concurrent import run_logical_core
from glia.sim.policy import MalformedProgram, Policy
from glia.sim.run import Executor, Step, one_blas_thread
from glia.sim.watchdog import EndlessLoop, RunLimits, condition_loc, fewest_executions

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

BUDGET = 2000  # operations between looks at signals
TIMED_BUDGET = 20  # and at the time, where that is limited
_LOOP = Library(steps, steps.NAMES, steps.ARRAYS)


@dataclass(frozen=True)
class HostReport:
    """What runs as machine code, and what does not and why; instructions as written."""

    native: Mapping[str, int] = field(default_factory=dict)  # by mnemonic
    in_python: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (mnemonic, why)

    @property
    def native_share(self) -> float:
        """The part of the instructions that has machine code."""
        native, others = sum(self.native.values()), sum(self.in_python.values())
        return native / max(1, native + others)

    def __str__(self) -> str:
        lines = [f"{sum(self.native.values())} instructions as machine code"]
        for (name, why), count in sorted(self.in_python.items(), key=lambda item: -item[1]):
            lines.append(f"{count} {name} by NumPy: {why}")
        return "\n".join(lines)


def run_on_host(
    programs: Sequence[Program], inputs: Arrays, notifications: Notifications | None = None
) -> dict[str, Array]:
    """Run one program as machine code; several (one for each core) by the reference executor.

    Raises the errors of `glia.sim.run.run` and `run_cores`.
    """
    if len(programs) != 1:
        return run_logical_core(programs, inputs, notifications)
    return host_program(programs[0]).run(inputs, notifications)


def host_report(programs: Sequence[Program]) -> HostReport:
    """How the host executor runs these programs."""
    if len(programs) != 1:
        counts = Counter(i.mnemonic() for each in programs for i in each.instructions())
        why = "several cores run by the reference executor"
        return HostReport({}, {(name, why): count for name, count in counts.items()})
    table = host_program(programs[0]).table
    return HostReport(dict(table.native), dict(table.reasons))


def host_program(program: Program) -> HostProgram:
    """The program made ready for the host, kept with it."""
    found = program.cache.get(HostProgram)
    if found is None:
        found = HostProgram(program)
        program.cache.put(found)
    return found


class HostProgram:
    """One program with its memories, table and machine code; runs follow each other."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._lock = Lock()
        arch = get_target(program.target).arch
        policy = Policy()
        memory = DeviceMemory([program], Policy(poison=None))
        self.executor = Executor(program, arch=arch, policy=policy, hbm=memory)
        self.table = TableBuilder(self.executor, arch).build()
        self._steps: dict[int, Step] = {}
        self._registers: Environment = {}
        slow = [*self.table.in_python, *self.table.guarded]
        touched = {p.tile.name for i in slow for p in i.patterns()}
        self._given_outputs = self._outputs_by_themselves(touched)
        self._copied_inputs = {b.name for b in program.inputs if b.tile.name in touched}
        self._names = {number: name for name, number in self.table.variables.items()}
        self._fewest_executions = fewest_executions(program.body)
        self._record = _record(self.table)
        moving = {b.tile.name for b in (*program.inputs, *program.outputs)}
        numbered = list(enumerate(self.table.tiles))
        self._moving = [(n, t) for n, t in numbered if getattr(t, "name", "") in moving]
        self._record["bases"][: len(numbered)] = [self._base(tile) for _, tile in numbered]
        self._call = _LOOP.bind(self._record)

    def _outputs_by_themselves(self, touched: set[str]) -> tuple[Binding, ...]:
        """Outputs that can be written where they are returned: no copy, no other tensor there."""
        others = {*touched, *self.program.constants, *(b.tile.name for b in self.program.inputs)}
        return tuple(
            binding
            for binding in self.program.outputs
            if binding.tile.name not in others
            and binding.dtype is not PRED
            and self.executor.memories.is_alone(binding.tile)
        )

    def run(self, inputs: Arrays, notifications: Notifications | None = None) -> dict[str, Array]:
        """Run once on named inputs; the outputs by name. Other threads wait."""
        with self._lock:
            return self._run(inputs, notifications or Notifications())

    def _run(self, inputs: Arrays, notifications: Notifications) -> dict[str, Array]:
        executor, policy = self.executor, Policy()
        executor.policy, executor.notifications = policy, notifications
        executor.limits = limits = RunLimits(policy)
        limits.spend(self._fewest_executions)
        executor.states.reset()
        for binding in self.program.inputs:
            is_copied = binding.name in self._copied_inputs
            executor.set_input(binding, inputs[binding.name], is_copied=is_copied)
        results = {b.name: np.zeros(b.shape, b.dtype.numpy) for b in self._given_outputs}
        for binding in self._given_outputs:
            executor.memories.place(binding.tile, results[binding.name])
        self._begin()
        with np.errstate(all="ignore"), self._threads():
            if self.table.in_python or self.table.guarded:
                with one_blas_thread():
                    self._execute(limits)
            else:
                self._execute(limits)
        for binding in self._given_outputs:
            executor.memories.forget(binding.tile)
        return {
            b.name: results[b.name] if b.name in results else self._kept_output(b)
            for b in self.program.outputs
        }

    def _kept_output(self, binding: Binding) -> Array:
        """A copy of an output that lies in the program's own memory."""
        return self.executor.memories.read(binding.tile, binding.dtype, binding.shape)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """The pool for this run, where some call is long enough to be shared."""
        if not self.table.pool_words:
            yield
            return
        with host_pool().for_one_run() as address:
            self._record["pool"][0] = address
            yield

    def _begin(self) -> None:
        """Set what depends on where inputs and outputs lie, and go to the first operation."""
        record = self._record
        for number, tile in self._moving:
            record["bases"][number] = self._base(tile)
        words, bases, offsets = record["fixed"]
        record["words"][words] = record["bases"][bases] + offsets
        self._registers.clear()
        record["known"][:] = 0
        record["state"][:] = 0

    def _base(self, tile: Tile | Array) -> int:
        """Where a tile, or the lanes of a state, begin."""
        if isinstance(tile, np.ndarray):
            return address_of(tile)
        region = self.executor.memories.region(tile)
        return address_of(region.buffer) + region.start

    def _execute(self, limits: RunLimits) -> None:
        state = self._record["state"]
        while True:
            state[RunState.BUDGET] = BUDGET if not limits.has_deadline else TIMED_BUDGET
            reason = self._call("run")
            if reason == Stop.DONE:
                return
            subject = int(state[RunState.SUBJECT])
            if reason == Stop.PYTHON:
                self._execute_in_python(self.table.instructions[subject])
            elif reason == Stop.PAUSE:
                limits.spend(int(state[RunState.SPENT]))
                state[RunState.SPENT] = 0
            elif reason == Stop.UNSET:
                name = self._names[subject]
                raise MalformedProgram(f"register {name} is not set before it is read")
            else:
                loop, most = self.table.loops[subject], self.executor.policy.most_iterations
                raise EndlessLoop(register=loop.register, limit=most, loc=condition_loc(loop))

    def _execute_in_python(self, instr: Instr) -> None:
        """Execute an instruction by its meaning; only such instructions set registers."""
        if id(instr) not in self._steps:
            self._steps[id(instr)] = self.executor.reporting_step(instr)
        numbers, record = self.table.variables, self._record
        environment = self._registers
        for name in instr.variables():
            if name in numbers and not is_register(name):
                environment[name] = int(record["variables"][numbers[name]])
        self._steps[id(instr)](environment)
        register = instr.sets_register
        if register is not None and register in environment and register in numbers:
            record["variables"][numbers[register]] = environment[register]
            record["known"][numbers[register]] = 1


def _record(table: Table) -> dict[str, Any]:
    """The arrays that `steps.run` works on, with addresses of words and scratch in place."""
    words = np.array([*table.words, 0], np.int64)
    scratch = np.zeros(table.scratch + 64, np.uint8)
    for word, offset in table.scratch_words:
        words[word] = address_of(scratch) + offset
    pool = np.zeros(1, np.int64)
    words[table.pool_words] = address_of(pool)
    code = np.array(table.code, np.int64)
    for word, decision in table.decision_words:
        words[word] = address_of(words) + 8 * decision
    for place, word in table.call_words:
        code[place] = address_of(words) + 8 * word
    fixed = np.array(table.fixed, np.int64).reshape(-1, 3).T
    return {
        "code": code,
        "words": words,
        "variables": np.zeros(len(table.variables) + 1, np.int64),
        "known": np.zeros(len(table.variables) + 1, np.int64),
        "bases": np.zeros(len(table.tiles) + 1, np.int64),
        "iterations": np.zeros(len(table.loops) + 1, np.int64),
        "state": np.zeros(len(RunState), np.int64),
        "fixed": tuple(fixed),
        "scratch": scratch,
        "pool": pool,
    }
