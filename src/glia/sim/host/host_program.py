"""The host executor: a program in program order, its instructions as machine code of the host.

What has no machine code runs by its declared NumPy meaning, as in the reference executor, and is
counted in the report. Memory keeps what earlier runs left in it: a program that reads what it has
not written is found by the other executors, not here.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

import glia.sim.host.steps as steps
from glia.base.dtype import from_numpy
from glia.base.errors import CompileError, InternalError
from glia.base.fork_safe_lock import ForkSafeLock
from glia.base.machine_code.native import Library, address_of, array_at
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Tile
from glia.machine.ir import Binding, Program
from glia.machine.merge_cores import arch_of, joined_program
from glia.sim.host.host_plan import HostPlanner, Why
from glia.sim.host.library import host_library
from glia.sim.host.packing import LINE_BYTES
from glia.sim.host.soundness import require_sound
from glia.sim.host.steps import RunState, Stop
from glia.sim.host.support import warn_unsupported, why_unsupported
from glia.sim.host.table import Table
from glia.sim.host.tensors.result_memory import ResultMemory
from glia.sim.host.tensors.tensor_places import planned_places
from glia.sim.host.tensors.written_tensors import written_tensors
from glia.sim.host.threads.pool import PoolCode, host_pool
from glia.sim.memory import DeviceMemory, Environment
from glia.sim.notifications import Notifications
from glia.sim.order.concurrent import run_programs
from glia.sim.policy import MalformedProgram, Policy
from glia.sim.ranks.errors import RankMissing, RanksDisagree
from glia.sim.ranks.meeting import Meeting
from glia.sim.ranks.rank_threads import run_ranks, run_together
from glia.sim.run import Executor, Step, one_blas_thread
from glia.sim.watchdog import EndlessLoop, RunLimits, condition_loc, fewest_executions

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

BUDGET = 50_000  # operations, or microseconds of calls, between looks at signals
TIMED_BUDGET = 20  # and at the time, where that is limited
PYTHON_COST = 50  # of an instruction that is executed in Python
SMALL_BYTES = 1 << 16  # of a tensor that is copied rather than looked at elsewhere in each run
MOST_COUNTED = 1 << 62  # iterations
_LOOP = Library(steps, steps.NAMES, steps.ARRAYS)


@dataclass(frozen=True)
class HostReport:
    """What runs as machine code, what does not and why, and what is left out and why.

    Instructions as written, by mnemonic, or by (mnemonic, why).
    """

    native: Mapping[str, int] = field(default_factory=dict)
    in_python: Mapping[tuple[str, str], int] = field(default_factory=dict)
    left_out: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def native_share(self) -> float:
        """The part of the instructions that has machine code."""
        native, others = sum(self.native.values()), sum(self.in_python.values())
        return native / max(1, native + others)

    def __str__(self) -> str:
        lines = [f"{sum(self.native.values())} instructions as machine code"]
        for (name, why), count in sorted(self.in_python.items(), key=lambda item: -item[1]):
            lines.append(f"{count} {name} by NumPy: {why}")
        for (name, why), count in sorted(self.left_out.items(), key=lambda item: -item[1]):
            lines.append(f"{count} {name} left out: {why}")
        return "\n".join(lines)


def run_on_host(
    programs: Sequence[Program], inputs: Arrays, notifications: Notifications | None = None
) -> dict[str, Array]:
    """Run the program of each core of a logical core as machine code.

    The reference executor runs where the host is not supported, with a HostUnsupported warning.
    Raises the errors of `glia.sim.run.run`, and of `run_cores` where cores do not meet.
    """
    if why := why_unsupported():
        warn_unsupported(why)
        return run_programs(programs, inputs, notifications)
    if (joined := joined_program(programs)) is not None:
        return host_program(joined).run(inputs, notifications)
    try:
        return _host_cores(programs).run(inputs, notifications)
    except (RankMissing, RanksDisagree):  # which the reference says of cores
        return run_programs(programs, inputs, notifications)


def supported_program(programs: Sequence[Program]) -> HostProgram | None:
    """The one program made ready for the host; None for cores that are not joined, or no host.

    Then `run_on_host` knows what to do, here with a HostUnsupported warning.
    """
    if why := why_unsupported():
        warn_unsupported(why)
        return None
    joined = joined_program(programs)
    return None if joined is None else host_program(joined)


def prepare_where_planned(programs: Sequence[Program]) -> None:
    """Make a program ready for the host where its plan is kept, before its first run asks for it.

    What it would raise, that run raises.
    """
    if why_unsupported() or (joined := joined_program(programs)) is None:
        return
    planner = HostPlanner(joined, rewrites=True)
    if planner.stored_plan is not None:
        with contextlib.suppress(CompileError, MemoryError):
            host_program(joined, planner)


def run_ranks_on_host(
    programs: Sequence[Program],
    inputs: Sequence[Arrays],
    notifications: Notifications | None = None,
) -> list[dict[str, Array]]:
    """Run ranks, each of one or several cores, as machine code with memories of their own.

    Raises the errors of `run_ranks`, which runs where the host is not supported, and says why cores
    of ranks do not meet.
    """
    if why := why_unsupported():
        warn_unsupported(why)
        return run_ranks(programs, inputs, notifications)
    joined = joined_program(programs)
    programs = programs if joined is None else (joined,)
    kept = programs[0].cache.get(_HostRanks)
    if kept is None or [*kept.programs] != [*programs]:
        kept = _HostRanks(programs)
        programs[0].cache.put(kept)
    try:
        return kept.run(inputs, notifications)
    except (RankMissing, RanksDisagree):
        if len(programs) == 1:
            raise
        return run_ranks(programs, inputs, notifications)


def host_report(programs: Sequence[Program]) -> HostReport:
    """How the host executor runs these programs."""
    if why := why_unsupported():
        counts = Counter(i.mnemonic() for each in programs for i in each.instructions())
        return HostReport({}, {(name, why): count for name, count in counts.items()})
    joined = joined_program(programs)
    cores = _host_cores(programs).cores if joined is None else [host_program(joined)]
    native, reasons, left_out = Counter[str](), Counter[Why](), Counter[Why]()
    for each in cores:
        native.update(each.table.native)
        reasons.update(each.table.reasons)
        left_out.update(each.left_out)
    return HostReport(native, reasons, left_out)


def host_program(program: Program, planner: HostPlanner | None = None) -> HostProgram:
    """The program made ready for the host, by its planner if it has one already; kept with it."""
    found = program.cache.get(HostProgram)
    if found is None:
        found = HostProgram(program, planner=planner)
        program.cache.put(found)
    return found


def _host_cores(programs: Sequence[Program]) -> HostCores:
    """The programs of a logical core made ready for the host, kept with the first."""
    found = programs[0].cache.get(HostCores)
    if found is None or [core.program for core in found.cores] != [*programs]:
        found = HostCores(programs)
        programs[0].cache.put(found)
    return found


class HostProgram:
    """One program with its memories, table and machine code; runs follow each other."""

    def __init__(
        self,
        program: Program,
        policy: Policy | None = None,
        *,
        rank: int = 0,
        core: int = 0,
        memory: DeviceMemory | None = None,
        planner: HostPlanner | None = None,
    ) -> None:
        """`policy` is of a program whose tensors all stay in its own memory, as it says.

        `memory` is the HBM that the cores of a logical core share.
        """
        self.program = program
        self._lock = ForkSafeLock()
        arch = arch_of(program)
        self._planner = planner or HostPlanner(program, rewrites=policy is None)
        if self._planner.stored_plan is None:
            require_sound(program, arch)
        memory = memory or DeviceMemory([program], policy or Policy(poison=None))
        self.executor = Executor(
            program, arch=arch, policy=policy or Policy(), hbm=memory, core=rank
        )
        self.executor.indices = {"ranks": rank, "cores": core}
        self.plan = self._planner.plan(self.executor)
        self.table, self.left_out = self.plan.table, self.plan.left_out
        self._steps: dict[int, Step] = {}
        self._registers: Environment = {}
        self._names = {number: name for name, number in self.table.variables.items()}
        self._fewest_executions = fewest_executions(program.body)
        slow = [*self.table.in_python, *self.table.guarded]
        self._is_all_native = not slow
        touching = [(p.tile, id(i)) for i in slow for p in i.patterns()]
        kept = {tile.name for tile, _ in touching if tile.bytes <= SMALL_BYTES}
        if policy:
            kept = {p.tile.name for i in program.instructions() for p in i.patterns()}
        self._places = planned_places(program, self.executor.memories, self.plan.written, kept)
        self._touching: dict[str, set[int]] = {}
        for tile, number in touching:
            self._touching.setdefault(tile.name, set()).add(number)
        self._seen: dict[str, int] = {}  # where tiles are that Python touches and a run places
        self.on_pause: Callable[[], None] = lambda: None  # called now and then in a run
        self._record = self._prepared_record()
        self._bases, self._state = self._record["bases"], self._record["state"]
        numbers = {getattr(t, "name", ""): n for n, t in enumerate(self.table.tiles)}
        self._placed = [
            (numbers[tile], is_output, index)
            for tile, is_output, index in self._places.placed
            if tile in numbers
        ]
        self._call = _LOOP.bind(self._record)
        self.results = ResultMemory(program.outputs, self.cleared_outputs)

    @cached_property
    def cleared_outputs(self) -> list[bool]:
        """By position, whether an output has elements that neither a run nor an input sets."""
        carried = {target for _, target, _ in self._places.carried}
        placed = {n: tile for tile, is_output, n in self._places.placed if is_output}
        open_tiles = {tile for number, tile in placed.items() if number not in carried}
        open_tiles -= written_tensors(self.program, open_tiles)
        return [placed.get(number) in open_tiles for number in range(len(self.program.outputs))]

    def _prepared_record(self) -> dict[str, Any]:
        """The record, with the addresses of what stays where it is."""
        record = _record(self.table)
        moving = {tile for tile, _, _ in self._places.placed}
        for number, tile in enumerate(self.table.tiles):
            if getattr(tile, "name", "") not in moving:
                record["bases"][number] = self._base(tile)
        words, bases, offsets = np.array(self.table.fixed, np.int64).reshape(-1, 3).T
        record["words"][words] = record["bases"][bases] + offsets
        is_moving = np.array([getattr(t, "name", "") in moving for t in self.table.tiles], bool)
        triples = [t for t in self.table.fixed if is_moving[t[1]]]
        head = [len(self.table.variables), len(triples)]
        flat = [number for triple in triples for number in triple]
        return record | {"moving": np.array(head + flat, np.int64)}

    def run(self, inputs: Arrays, notifications: Notifications | None = None) -> dict[str, Array]:
        """Run once on named inputs; the outputs by name. Other threads wait."""
        arrays = [checked_input(binding, inputs) for binding in self.program.inputs]
        results = self.results.arrays()
        self.run_at(list(map(address_of, arrays)), list(map(address_of, results)), notifications)
        return {b.name: each for b, each in zip(self.program.outputs, results, strict=True)}

    def run_at(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        notifications: Notifications | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Run once on tensors at these addresses, row-major, as the program's bindings say.

        An output that is an input's tensor may have its address; others overlap nothing. What the
        program does not write of an output stays as it is. Nothing is checked.
        """
        with self._lock:
            self.prepare(inputs, outputs)
            self.execute(notifications, policy or Policy())
            self.finish(outputs)

    def prepare(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Let a run find the tensors at these addresses."""
        self._places.copy_before_run(inputs, outputs)
        if not self._is_all_native:
            self._move_views(inputs, outputs)
        for number, is_output, index in self._placed:
            self._bases[number] = outputs[index] if is_output else inputs[index]

    def execute(self, notifications: Notifications | None, policy: Policy) -> None:
        """Run once on what is prepared."""
        limits = RunLimits(policy)
        limits.spend(self._fewest_executions)
        self.executor.states.reset()
        self._begin(policy)
        if self._is_all_native:
            self._execute_with_threads(limits)
        else:
            self._execute_partly_in_python(limits, policy, notifications)

    def finish(self, outputs: Sequence[int]) -> None:
        """Let the addresses have the outputs of the run."""
        self._places.copy_after_run(outputs)

    def _move_views(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Let what Python executes see tensors where this run has them."""
        for name, is_output, index in self._places.placed:
            address = outputs[index] if is_output else inputs[index]
            if name in self._touching and self._seen.get(name) != address:
                tile = self.program.tiles[name]
                contents = array_at(address, (tile.bytes,), np.dtype(np.uint8))
                self.executor.memories.place(tile, contents)
                self._seen[name] = address
                for number in self._touching[name]:
                    self._steps.pop(number, None)

    def _begin(self, policy: Policy) -> None:
        """Go to the first operation."""
        self._registers.clear()
        self._state[RunState.PC] = self._state[RunState.SPENT] = 0
        self._state[RunState.MOST] = min(policy.most_iterations, MOST_COUNTED)

    def _execute_partly_in_python(
        self, limits: RunLimits, policy: Policy, notifications: Notifications | None
    ) -> None:
        executor = self.executor
        executor.policy, executor.limits = policy, limits
        executor.notifications = Notifications() if notifications is None else notifications
        with np.errstate(all="ignore"), one_blas_thread():
            self._execute_with_threads(limits)

    def _execute_with_threads(self, limits: RunLimits) -> None:
        """Execute, with the pool where some call is long enough to be shared."""
        if not self.table.pool_words:
            self._execute(limits)
            return
        with host_pool().for_one_run() as address:
            self._record["pool"][0] = address
            self._execute(limits)

    def _base(self, tile: Tile | Array) -> int:
        """Where a tile, or the lanes of a state, begin."""
        if isinstance(tile, np.ndarray):
            return address_of(tile)
        region = self.executor.memories.region(tile)
        return address_of(region.buffer) + region.start

    def _execute(self, limits: RunLimits) -> None:
        state = self._state
        budget = BUDGET if not limits.has_deadline else TIMED_BUDGET
        state[RunState.BUDGET] = budget
        while True:
            reason = self._call("run")
            if reason == Stop.DONE:
                return
            if reason == Stop.PYTHON:
                self._execute_in_python(self.instruction(int(state[RunState.SUBJECT])))
                state[RunState.BUDGET] -= PYTHON_COST
            elif reason == Stop.PAUSE:
                self.on_pause()
                limits.spend(int(state[RunState.SPENT]))
                state[RunState.SPENT] = 0
                state[RunState.BUDGET] = budget
            else:
                self._fail(reason)

    def instruction(self, number: int) -> Instr:
        """An instruction that the table names."""
        found = self.table.instructions.get(number)
        return self._unkept_instructions[number] if found is None else found

    @cached_property
    def _unkept_instructions(self) -> dict[int, Instr]:
        """Those that the table of a stored plan leaves out, for errors."""
        return self._planner.new_plan(self.executor).table.instructions

    def _fail(self, reason: int) -> None:
        """Raise what the native loop stopped for."""
        subject = int(self._state[RunState.SUBJECT])
        if reason == Stop.UNSET:
            name = self._names[subject]
            raise MalformedProgram(f"register {name} is not set before it is read")
        loop, most = self.table.loops[subject], int(self._state[RunState.MOST])
        raise EndlessLoop(register=loop.register, limit=most, loc=condition_loc(loop))

    def _execute_in_python(self, instr: Instr) -> None:
        """Execute an instruction by its meaning."""
        if id(instr) not in self._steps:
            self._steps[id(instr)] = self.executor.reporting_step(instr)
        numbers, record = self.table.variables, self._record
        environment = self._registers
        for name in instr.variables():
            if name in numbers and (not is_register(name) or record["known"][numbers[name]]):
                environment[name] = int(record["variables"][numbers[name]])
        self._steps[id(instr)](environment)
        register = instr.sets_register
        if register is not None and register in environment and register in numbers:
            record["variables"][numbers[register]] = environment[register]
            record["known"][numbers[register]] = 1


class HostCores:
    """The programs of a logical core that are not joined: a thread for each; they meet as they do.

    Each runs in program order. A race between cores is not found, as none between engines is.
    """

    def __init__(self, programs: Sequence[Program], rank: int = 0) -> None:
        memory = DeviceMemory(programs, Policy(poison=None))
        self.cores = [
            HostProgram(each, rank=rank, core=number, memory=memory)
            for number, each in enumerate(programs)
        ]
        self._targets: list[list[int]] = []  # of each core's outputs: which array they are
        places: dict[tuple[str, int], int] = {}
        outputs: list[Binding] = []
        is_cleared: list[bool] = []
        for core in self.cores:
            addresses, numbers = core.program.addresses, []
            for number, binding in enumerate(core.program.outputs):
                place = binding.name, addresses.get(binding.tile.name, 0)
                if place not in places:
                    places[place] = len(outputs)
                    outputs.append(binding)
                    is_cleared.append(core.cleared_outputs[number])
                numbers.append(places[place])
            self._targets.append(numbers)
        self._names, self._lock = [b.name for b in outputs], ForkSafeLock()
        self._results = ResultMemory(outputs, is_cleared)

    def run(self, inputs: Arrays, notifications: Notifications | None = None) -> dict[str, Array]:
        """Run once on named inputs; the outputs of all cores by name. Other threads wait.

        Of two outputs of one name that are different tensors it is the first core's.
        """
        with self._lock:
            return run_meeting_cores([self], [inputs], notifications)[0]

    def checked_inputs(self, inputs: Arrays) -> list[list[Array]]:
        """The inputs of each core, as `checked_input` gives them."""
        return [[checked_input(each, inputs) for each in c.program.inputs] for c in self.cores]

    def prepare(self, given: Sequence[Sequence[Array]]) -> Callable[[], dict[str, Array]]:
        """Let the next run find the inputs of each core; what gives its outputs by name after it.

        The inputs have to live until then.
        """
        arrays = self._results.arrays()
        targets = [[address_of(arrays[n]) for n in numbers] for numbers in self._targets]
        for core, own, outputs in zip(self.cores, given, targets, strict=True):
            core.prepare(list(map(address_of, own)), outputs)

        def finish() -> dict[str, Array]:
            for core, outputs in zip(self.cores, targets, strict=True):
                core.finish(outputs)
            return dict(reversed([*zip(self._names, arrays, strict=True)]))

        return finish


class _HostRanks:
    """Ranks that run the same programs, kept with these."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = tuple(programs)
        self._ranks: list[HostCores] = []
        self._lock = ForkSafeLock()

    def run(
        self, inputs: Sequence[Arrays], notifications: Notifications | None
    ) -> list[dict[str, Array]]:
        """Run a rank on each of the named inputs; the outputs of each by name."""
        with self._lock:
            while len(self._ranks) < len(inputs):
                self._ranks.append(HostCores(self.programs, rank=len(self._ranks)))
            return run_meeting_cores(self._ranks[: len(inputs)], inputs, notifications)


def run_meeting_cores(
    ranks: Sequence[HostCores], inputs: Sequence[Arrays], notifications: Notifications | None
) -> list[dict[str, Array]]:
    """Run all cores of all ranks, a thread for each, on the inputs of each rank; their outputs."""
    cores = [core for rank in ranks for core in rank.cores]
    meeting = Meeting(len(cores), cores=len(cores) // len(ranks))
    reported = [Notifications() for _ in cores]

    def run(place: int) -> dict[str, Array]:
        cores[place].execute(reported[place], Policy())
        return {}

    given = [rank.checked_inputs(each) for rank, each in zip(ranks, inputs, strict=True)]
    finished = [rank.prepare(arrays) for rank, arrays in zip(ranks, given, strict=True)]
    for place, core in enumerate(cores):
        core.executor.exchange = partial(meeting.exchange_at, place)
        core.on_pause = meeting.require_going_on
    run_together(meeting, run, reported, notifications, are_awaited=True)
    return [finish() for finish in finished]


def checked_input(binding: Binding, inputs: Arrays) -> Array:
    """An input's array, row-major; InternalError when it is missing or not what is bound."""
    if binding.name not in inputs:
        raise InternalError(f"input {binding.name} is missing")
    array = np.ascontiguousarray(inputs[binding.name]).reshape(binding.shape)
    if from_numpy(array.dtype) is not binding.dtype:
        raise InternalError(f"input {binding.name} is {array.dtype}, not {binding.dtype}")
    return array


def _record(table: Table) -> dict[str, Any]:
    """The arrays that `steps.run` works on, with addresses of words and scratch in place."""
    words = np.array([*table.words, 0], np.int64)
    scratch = np.zeros(table.scratch + 2 * LINE_BYTES, np.uint8)
    start = -(-address_of(scratch) // LINE_BYTES) * LINE_BYTES
    for word, offset in table.scratch_words:
        words[word] = start + offset
    pool = np.zeros(1, np.int64)
    words[table.pool_words] = address_of(pool)
    code = np.array(table.code, np.int64)
    code[table.entries] = host_library().address(PoolCode.name)
    for word, number in table.number_words:
        words[word] = address_of(table.numbers[number])
    for word, name in table.codes.items():
        words[word] = host_library().address(name)
    for word, decision in table.decision_words:
        words[word] = address_of(words) + 8 * decision
    for place, word in table.call_words:
        code[place] = address_of(words) + 8 * word
    variables, known = (np.zeros(len(table.variables) + 1, np.int64) for _ in range(2))
    for array, places in ((variables, table.variable_words), (known, table.known_words)):
        for word, variable in places:
            words[word] = address_of(array) + 8 * variable
    return {
        "code": code,
        "words": words,
        "variables": variables,
        "known": known,
        "bases": np.zeros(len(table.tiles) + 1, np.int64),
        "iterations": np.zeros(len(table.loops) + 1, np.int64),
        "state": np.zeros(len(RunState), np.int64),
        "scratch": scratch,
        "pool": pool,
    }
