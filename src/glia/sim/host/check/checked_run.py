"""The host executor beside the reference: instruction by instruction, from the same operands.

The native loop runs one operation at a time. What an instruction's machine code wrote is kept, its
destinations get back what they held, and the reference executor's step runs; the run goes on with
the results of the latter, so that differences do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.base.errors import InternalError
from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.machine.ir import Program
from glia.machine.merge_cores import arch_of, joined_program
from glia.machine.text import print_instruction
from glia.sim.host.check.error_bounds import BoundEvaluator, step_of
from glia.sim.host.classes.calls import OperandPlace
from glia.sim.host.classes.class_keys import Choices
from glia.sim.host.host_program import Arrays, HostProgram, checked_input
from glia.sim.host.instruction_classes import traced_writes
from glia.sim.host.loop_nest import scans_of
from glia.sim.host.steps import Op, RunState, Stop
from glia.sim.host.support import warn_unsupported, why_unsupported
from glia.sim.host.table import sums_condition
from glia.sim.host.traced import HeldArray, LoadTerm, recorded_decisions
from glia.sim.memory import Environment
from glia.sim.notifications import Notifications
from glia.sim.order.concurrent import run_logical_core
from glia.sim.policy import Policy
from glia.sim.run import immediate_operand, one_blas_thread, run
from glia.sim.watchdog import RunLimits

Array = np.ndarray[Any, Any]
# Where operations keep their instruction, and where that ends
_PLACES = {Op.CALL: (3, 4), Op.UNLESS: (2, 3), Op.GUARD: (2, 3)}


class HostDifference(InternalError):
    """Machine code gave something else than the declared meaning of its instruction."""

    def __init__(
        self, instr: Instr, name: str, index: tuple[int, ...], facts: ElementDifference
    ) -> None:
        self.instruction, self.loc, self.operand, self.index = instr, instr.loc, name, index
        self.facts = facts
        super().__init__(_message(instr.loc, print_instruction(instr), name, index, facts))


@dataclass(frozen=True)
class ElementDifference:
    """One element by both executors."""

    found: Any
    wanted: Any
    ulps: float
    allowed: float
    count: int


def _message(
    loc: Loc, text: str, name: str, index: tuple[int, ...], facts: ElementDifference
) -> str:
    what = (
        f"the host executor differs from the reference: {name}{list(index)} is {facts.found!s}, "
        f"by the declaration {facts.wanted!s}: {facts.ulps:.4g} ulps apart, where "
        f"{facts.allowed:.4g} are allowed ({facts.count} elements differ)"
    )
    lines = [what, f"  instruction: {text}"]
    if str(loc):
        lines.append(f"  source: {loc}")
    return "\n".join([*lines, "  help: report this; device='reference' runs the model meanwhile"])


def run_checked(
    programs: Sequence[Program], inputs: Arrays, notifications: Notifications | None = None
) -> dict[str, Array]:
    """Run on the host and compare each instruction's results with the reference executor's.

    Raises HostDifference for the first that differ by more than another order of sums and the
    stated error of functions allow, UninitializedRead and StaleRead, and the errors of `run`. Cores
    that cannot be joined are checked for such reads only.
    """
    if (joined := joined_program(programs)) is None:
        return run_logical_core(
            programs, inputs, notifications, policy=Policy(check_initialized=True)
        )
    if why := why_unsupported():
        warn_unsupported(why)
        return run(
            joined, inputs, policy=Policy(check_initialized=True), notifications=notifications
        )
    return CheckedProgram(joined).run(inputs, notifications)


class CheckedProgram(HostProgram):
    """A program for one run, in memory that knows what has been written."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, Policy(check_initialized=True))
        assert self.plan.builder is not None  # it is made for each such run
        self._builder = self.plan.builder
        self._arch = arch_of(program)

    def run(self, inputs: Arrays, notifications: Notifications | None = None) -> dict[str, Array]:
        """Run once, each instruction by both executors."""
        executor = self.executor
        executor.notifications = Notifications() if notifications is None else notifications
        executor.limits = RunLimits(executor.policy)
        executor.limits.spend(self._fewest_executions)
        for binding in self.program.inputs:  # where the table has them
            executor.set_input(binding, checked_input(binding, inputs), is_copied=True)
        self._begin(executor.policy)
        with np.errstate(all="ignore"), one_blas_thread():
            self._execute(executor.limits)
        return executor.outputs()

    def _execute(self, limits: RunLimits) -> None:
        """Operation by operation; those of an instruction together."""
        state, code = self._state, self._record["code"]
        while True:
            at = int(state[RunState.PC])
            kind = Op(int(code[at]))
            if kind in _PLACES:
                number, end = (int(code[at + place]) for place in _PLACES[kind])
                self._run_by_both(self.instruction(number), end)
                continue
            reason = self._advance()
            if reason == Stop.DONE:
                return
            if reason == Stop.PYTHON:
                self._execute_in_python(self.instruction(int(state[RunState.SUBJECT])))
            elif reason == Stop.PAUSE:
                limits.spend(int(state[RunState.SPENT]))
                state[RunState.SPENT] = 0
            else:
                self._fail(reason)

    def _advance(self) -> int:
        """One operation of the native loop; why it stopped then."""
        self._state[RunState.BUDGET] = 1
        return self._call("run")

    def _run_by_both(self, instr: Instr, end: int) -> None:
        """Run the operations of an instruction up to `end`, and its meaning; compare."""
        once, before = _Execution(self, instr, self._environment(instr)), self._register_of(instr)
        while int(self._state[RunState.PC]) != end:
            if self._advance() == Stop.PYTHON:
                once.is_native = False
        once.take_results()
        found = self._register_of(instr)
        self._set_register(instr, before)
        self._execute_in_python(instr)
        once.compare()
        wanted = self._register_of(instr)
        if once.is_native and found != wanted:
            difference = ElementDifference(found[0], wanted[0], abs(found[0] - wanted[0]), 0.0, 1)
            raise HostDifference(instr, "register", (), difference)

    def _register_of(self, instr: Instr) -> tuple[int, int]:
        """What the register that an instruction sets holds, and whether it is set."""
        number = self.table.variables.get(instr.sets_register or "")
        if number is None:
            return 0, 0
        return int(self._record["variables"][number]), int(self._record["known"][number])

    def _set_register(self, instr: Instr, held: tuple[int, int]) -> None:
        """Give the register that an instruction sets what it held."""
        number = self.table.variables.get(instr.sets_register or "")
        if number is not None:
            self._record["variables"][number], self._record["known"][number] = held

    def _environment(self, instr: Instr) -> Environment:
        """Loop variables and registers of an instruction that are set."""
        numbers, record = self.table.variables, self._record
        return {
            name: int(record["variables"][numbers[name]])
            for name in instr.variables()
            if name in numbers and record["known"][numbers[name]]
        }

    def views(self, instr: Instr, environment: Environment) -> dict[str, Array]:
        """What an instruction writes, by operand or state; {} if that is outside its tiles."""
        is_known = set(instr.variables()) <= set(environment)
        if not is_known or any(
            not low <= each.evaluate(environment) <= high
            for (low, high), each in self._builder.limits_of(instr)
        ):
            return {}
        found = {
            name: self.executor.memories.viewer(pattern)(environment)
            for name, _, pattern in instr.operands()
            if instr.access(name) != "reads"
        }
        for name, _, access in instr.states_touched():
            if access in ("writes", "updates"):
                found[name] = self._lanes(instr, name, environment)
        return found

    def bounds(self, instr: Instr, environment: Environment) -> dict[str, Array]:
        """How far results may lie apart, by operand or state, from what operands hold now."""
        condition, _ = sums_condition(instr)
        sums = None if condition is None else condition.evaluate(environment) != 0
        operands = self._builder.operands_of(instr)
        with recorded_decisions():
            writes, places = traced_writes(instr, self._arch, operands, Choices(sums))
        if instr.arrives == "memory" or any(scans_of(term) for _, term in writes):
            # rows and scans compute each element alike: moved, or rounded after every step
            return {name: np.zeros(v.shape) for name, v in self.views(instr, environment).items()}
        evaluator = BoundEvaluator(lambda term: self._loaded(instr, environment, places, term))
        found = {}
        for store, term in writes:
            error = evaluator.bound(term).error
            is_uniform = error.size == 1
            whole = np.broadcast_to(error.reshape(-1)[0], store.shape) if is_uniform else error
            found[places[store.operand].name] = whole.reshape(store.shape)
        return found

    def _loaded(
        self,
        instr: Instr,
        environment: Environment,
        places: Sequence[OperandPlace],
        term: LoadTerm,
    ) -> Array:
        """What a load of the trace reads."""
        if isinstance(term.operand, HeldArray):
            return term.operand.array
        place = places[term.operand]
        if place.kind == "state":
            return self._lanes(instr, place.name, environment).reshape(term.shape)
        value = getattr(instr, place.name)
        if place.kind == "immediate":
            return np.asarray(immediate_operand(instr, value))
        pattern = value[place.number] if isinstance(value, tuple) else value
        return self.executor.memories.viewer(pattern)(environment).reshape(term.shape)

    def _lanes(self, instr: Instr, name: str, environment: Environment) -> Array:
        values, first, count = self.executor.states.lanes(instr, instr.states[name])
        start = first.evaluate(environment)
        return values[start : start + count]


class _Execution:
    """One execution of an instruction, and what both executors make of it."""

    def __init__(self, program: CheckedProgram, instr: Instr, environment: Environment) -> None:
        self._program, self._instr, self._environment = program, instr, environment
        self.is_native = True
        self._views = program.views(instr, environment)
        self._before = _copies(self._views)
        self._found: dict[str, Array] = {}

    def take_results(self) -> None:
        """Keep what machine code has written, and give destinations back what they held."""
        self._found = _copies(self._views) if self.is_native else {}
        self._restore(self._before)

    def compare(self) -> None:
        """HostDifference unless what has been kept is what is there now, or as near as allowed."""
        wanted = _copies(self._views)
        differing = [n for n, each in self._found.items() if not _is_same(each, wanted[n])]
        if not differing:
            return
        self._restore(self._before)
        allowed = self._program.bounds(self._instr, self._environment)
        for name in differing:
            _require_within(self._instr, name, self._found[name], wanted[name], allowed[name])
        self._restore(wanted)

    def _restore(self, contents: Mapping[str, Array]) -> None:
        for name, view in self._views.items():
            view[...] = contents[name]


def _copies(views: Mapping[str, Array]) -> dict[str, Array]:
    return {name: view.copy() for name, view in views.items()}


def _is_same(found: Array, wanted: Array) -> bool:
    return found.tobytes() == wanted.tobytes()


def _require_within(instr: Instr, name: str, found: Array, wanted: Array, allowed: Array) -> None:
    """HostDifference for the first element that is too far from what it should be."""
    with np.errstate(all="ignore"):
        value, goal = (each.astype(np.float64) for each in (found, wanted))
        is_same = (value == goal) | (np.isnan(value) & np.isnan(goal))
        distance = np.where(is_same, 0.0, np.abs(value - goal))
        wrong = ~is_same & ~(distance <= allowed) & ~np.isnan(allowed)
    if not wrong.any():
        return
    index = tuple(map(int, np.argwhere(wrong)[0]))
    step = float(step_of(wanted[index])) or 1.0
    raise HostDifference(
        instr, name, index,
        ElementDifference(
            found[index], wanted[index], float(distance[index]) / step,
            float(allowed[index]) / step, int(wrong.sum()),
        ),
    )  # fmt: skip
