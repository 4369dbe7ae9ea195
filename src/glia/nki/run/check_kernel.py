"""`check_kernel`: everything that can be wrong with a kernel, looked for on given arguments.

A kernel that gives the right result once may still read memory that nothing wrote, or be right only
because of the order in which engines and queues happened to run. Here it runs step by step, is
compiled, runs in program order, and runs with engines and queues held back against it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from glia.arch import TARGETS, Target
from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc
from glia.machine.ir import Program
from glia.machine.queues import stream_of
from glia.nki.names.errors import UnsoundKernel
from glia.nki.names.targets import declared_target, target_of_kernel
from glia.nki.run.kernel import as_kernel
from glia.nki.run.launch import Launch, bind, outputs_of
from glia.nki.run.trace import Traced
from glia.nki.session.interpreter import UNWRITTEN, Unwritten
from glia.nki.source.definitions import plain
from glia.nki.source.subset import findings
from glia.profile.report import profile_programs
from glia.sim.order.concurrent import run_cores, streams_of
from glia.sim.policy import ExecutionFault, Policy

WRITTEN = Policy(check_initialized=True)
IN_RANGE = Policy(check_activation_range=True)
OTHER_CONTENTS: Unwritten = 0.75, 1
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Check:
    """One question and its answer; `detail` has the numbers, `is_remark` does not fail a kernel."""

    name: str
    passed: bool
    detail: str = ""
    loc: Loc = UNKNOWN
    is_remark: bool = False

    def __str__(self) -> str:
        mark = "note" if self.is_remark else "ok  " if self.passed else "FAIL"
        first, *rest = f"{self.name}: {self.detail}".rstrip(": ").splitlines()
        return "\n     ".join([f"{mark} {first}", *rest])


@dataclass(frozen=True)
class Report:
    """The checks of one kernel in the order in which they ran; `results` in that of its outputs."""

    kernel: str
    checks: tuple[Check, ...]
    results: tuple[np.ndarray, ...] = field(default=(), repr=False)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return all(check.passed or check.is_remark for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """What is wrong."""
        return tuple(c for c in self.checks if not c.passed and not c.is_remark)

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


def check_kernel(
    kernel: Any,
    *arrays: Any,
    target: str | None = None,
    orders: int | None = None,
    expected: Sequence[np.ndarray] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    other_targets: bool = False,
    on_check: Callable[[Check], None] | None = None,
    **constants: Any,
) -> Report:
    """Look for what is wrong with a kernel of either generation, on arguments it takes.

    `orders` is how many orders of engines and queues are tried; by default as many as find every
    race there is on these arguments. `expected` are the outputs, in order, to compare with.
    `other_targets` also compiles for every other target, asks the parser of earlier releases, and
    says which refuse it. Each check is given to `on_check` as it ends; one that fails leaves out
    those that need its result.
    """
    known = as_kernel(kernel)
    call = _Call(known, arrays, constants, target_of_kernel(known, target))
    checker = _Checker(call, on_check or (lambda _: None))
    checker.run(orders)
    checker.look_for_nan()
    checker.compare(expected or (), rtol, atol)
    if other_targets:
        if not declared_target(known):
            checker.try_other_targets()
        checker.ask_the_parser()
    return Report(call.kernel.__name__, tuple(checker.checks), checker.results)


def assert_sound(kernel: Any, *arrays: Any, **options: Any) -> Report:
    """`check_kernel`, raising UnsoundKernel when a check fails."""
    report = check_kernel(kernel, *arrays, **options)
    if not report.passed:
        first = report.failures[0]
        problem = f"{first.name}: {first.detail}"
        raise UnsoundKernel(kernel=report.kernel, problem=problem, loc=first.loc)
    return report


def orders_needed(*programs: Program) -> int:
    """How many orders find every race of one execution.

    One where every semaphore counts what a single stream completes, else one for each stream held
    back.
    """
    for program in programs:
        signallers: dict[str, set[str]] = {}
        for instr in program.instructions():
            for signal in instr.signals:
                signallers.setdefault(signal.semaphore, set()).add(stream_of(instr))
        if any(len(streams) > 1 for streams in signallers.values()):
            return len(streams_of(*programs))
    return 1


@dataclass(frozen=True)
class _Call:
    """A kernel and its arguments; each use gets copies, since kernels may write arguments."""

    kernel: Any
    arrays: tuple[Any, ...]
    constants: Mapping[str, Any]
    target: Target

    def launch(self) -> Launch:
        """The arguments bound anew."""
        constants = {name: _copied(value) for name, value in self.constants.items()}
        return bind(self.kernel.function, tuple(map(_copied, self.arrays)), constants)

    def step(self, unwritten: Unwritten = UNWRITTEN) -> tuple[np.ndarray, ...]:
        """What the kernel returns when it runs step by step."""
        returned = self.kernel.stepped(self.launch(), self.target, unwritten)
        return tuple(np.asarray(each) for each in outputs_of(returned))

    def compile(self, target: Target | None = None) -> Traced:
        """The programs for this or another target."""
        traced: Traced = self.kernel.traced_launch(self.launch(), target or self.target)
        return traced

    def execute(
        self, compiled: Traced, seed: int = 0, policy: Policy | None = None
    ) -> tuple[np.ndarray, ...]:
        """What the compiled kernel returns, engines and queues concurrent."""
        inputs = self.launch().arrays
        programs = compiled.programs
        outputs: dict[str, np.ndarray] = {}
        found = run_cores(programs, [inputs] * len(programs), seed=seed, policy=policy)
        for each in reversed(found):
            outputs.update(each)
        return tuple(outputs[name] for name in compiled.results)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


class _Checker:
    def __init__(self, call: _Call, on_check: Callable[[Check], None]) -> None:
        self.call, self.on_check = call, on_check
        self.checks: list[Check] = []
        self.results: tuple[np.ndarray, ...] = ()

    def run(self, orders: int | None) -> None:
        """Step by step, compiled, and in orders against the kernel."""
        stepped = self._try("step by step", self.call.step)
        if stepped is not None:
            self.results = stepped
            self._enter(Check("step by step", True, "runs to its end"))
        name = f"compile for {self.call.target.name}"
        compiled = self._try(name, self.call.compile)
        if compiled is not None:
            self._enter(Check(name, True, _size_and_time(compiled, self.call.target)))
            runs = self._compare_ways(compiled, stepped)
            if stepped is not None:
                self._look_for_unwritten(compiled if runs else None, stepped)
            self._run_in_orders(compiled, orders, tried=1 if runs else 0)

    def try_other_targets(self) -> None:
        """A remark for each other target that has NKI: what it takes there, or why not."""
        for name, target in TARGETS.items():
            is_same = target.arch == self.call.target.arch
            if is_same or not target.arch.capabilities.has_nki:
                continue
            try:
                detail = _size_and_time(self.call.compile(target), target)
            except CompileError as refusal:
                detail = f"refused: {refusal}"
            self._enter(Check(f"on {name}", True, detail, is_remark=True))

    def ask_the_parser(self) -> None:
        """A remark: what the parser of earlier releases refuses of a kernel of this generation."""
        if self.call.kernel.widens_floats:
            return
        found = findings(plain(self.call.kernel.function))
        refused = [f"{each.loc}: {each.rule.sentence}" for each in found if not each.rule.is_advice]
        detail = "\n".join(["refused", *refused]) if refused else "taken"
        self._enter(Check("by the parser of NKI 0.2 to 0.6", True, detail, is_remark=True))

    def _compare_ways(self, compiled: Traced, stepped: tuple[np.ndarray, ...] | None) -> bool:
        """The compiled kernel gives what it gives step by step; whether it runs to its end."""
        name = "compiled gives the same"
        results = self._try(name, lambda: self.call.execute(compiled))
        if results is None:
            return False
        self.results = results
        if stepped is None:
            return True
        detail = "bit for bit"
        for number, (one, other) in enumerate(zip(results, stepped, strict=True)):
            wrong = _unequal(one, other)
            if wrong.any():
                detail = f"output {number}: {_difference(one, other, wrong)}"
                break
        is_wide = self.call.kernel.widens_floats and detail != "bit for bit"
        if is_wide:
            detail += "; step by step this generation holds narrow floats in float32"
        self._enter(Check(name, detail == "bit for bit", detail, is_remark=is_wide))
        return True

    def _look_for_unwritten(self, compiled: Traced | None, stepped: tuple[np.ndarray, ...]) -> None:
        """Outputs must not depend on what memory held before; reading it is only remarked.

        A compiled kernel that runs says which instruction reads it.
        """
        name = "memory is written before it is read"
        again = self._try(name, lambda: self.call.step(OTHER_CONTENTS))
        if again is None:
            return
        first = self._fault_of(compiled, WRITTEN)
        changed = _changed(stepped, again)
        if changed:
            said = str(first or changed)
            self._enter(Check(name, False, said, getattr(first, "loc", UNKNOWN)))
        elif first is None:
            self._enter(Check(name, True))
        else:
            said = f"read all the same, but no output depends on it:\n{first}"
            self._enter(Check(name, True, said, first.loc, is_remark=True))
        if (fault := self._fault_of(compiled, IN_RANGE)) is not None:
            said = f"read where the documentation gives no values:\n{fault}"
            self._enter(Check("activation functions", True, said, fault.loc, is_remark=True))

    def _fault_of(self, compiled: Traced | None, policy: Policy) -> ExecutionFault | None:
        """What a stricter run ends in."""
        if compiled is None:
            return None
        try:
            self.call.execute(compiled, 0, policy)
        except ExecutionFault as fault:
            return fault
        return None

    def _run_in_orders(self, compiled: Traced, orders: int | None, tried: int) -> None:
        """No race, no deadlock; the first `tried` orders have shown none."""
        name = "any order of engines and queues"
        count = orders or orders_needed(*compiled.programs)
        for seed in range(tried, count):
            if self._try(name, functools.partial(self.call.execute, compiled, seed)) is None:
                return
        streams = len(streams_of(*compiled.programs))
        self._enter(Check(name, True, f"{count} of them, over {streams} engines and queues"))

    def look_for_nan(self) -> None:
        """A remark only: a kernel may be given NaN or infinity."""
        for number, result in enumerate(self.results):
            if result.dtype.kind not in "iub":
                count = int(np.isnan(result.astype(np.float32)).sum())
                if count:
                    detail = f"{count} of {result.size} elements; fresh memory holds NaN"
                    self._enter(Check(f"NaN in output {number}", False, detail, is_remark=True))

    def compare(self, expected: Sequence[np.ndarray], rtol: float, atol: float) -> None:
        """The outputs are as expected."""
        if self.results and expected and len(self.results) != len(expected):
            detail = f"{len(self.results)} outputs, not {len(expected)}"
            self._enter(Check("as expected", False, detail))
            return
        for number, (result, wanted) in enumerate(zip(self.results, expected, strict=False)):
            name = f"output {number} as expected"
            if result.shape != wanted.shape:
                self._enter(Check(name, False, f"shape {result.shape}, not {wanted.shape}"))
                continue
            a, b = result.astype(np.float64), wanted.astype(np.float64)
            wrong = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
            self._enter(Check(name, not wrong.any(), _difference(a, b, wrong)))

    def _try(self, name: str, work: Callable[[], _Result]) -> _Result | None:
        """What `work` returns; None, with a failed check, for an error of the kernel."""
        try:
            return work()
        except (CompileError, ExecutionFault) as problem:
            said = str(problem)
            if any(check.detail == said for check in self.checks):
                said = "refused likewise"
            self._enter(Check(name, False, said, getattr(problem, "loc", UNKNOWN)))
            return None

    def _enter(self, check: Check) -> None:
        self.checks.append(check)
        self.on_check(check)


def _size_and_time(compiled: Traced, target: Target) -> str:
    """How many instructions, and how long they take."""
    counts = [sum(1 for _ in program.instructions()) for program in compiled.programs]
    profile = profile_programs(compiled.programs, target)
    cores = f" on each of {len(counts)} cores" if len(counts) > 1 else ""
    return f"{max(counts)} instructions{cores}, {profile.latency_us:.2f} us (simulated)"


def _changed(stepped: Sequence[np.ndarray], again: Sequence[np.ndarray]) -> str:
    """The first output that two runs differ in, and where; nothing if they are equal."""
    for number, (one, other) in enumerate(zip(stepped, again, strict=True)):
        differs = _unequal(one, other)
        if differs.any():
            where = ", ".join(map(str, np.argwhere(differs)[0].tolist()))
            return (
                f"output {number} changes with what fresh memory holds: {int(differs.sum())} of "
                f"{one.size} elements, the first at [{where}]"
            )
    return ""


def _unequal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where the bits differ; a NaN is like every other."""
    bits = np.dtype(f"u{one.dtype.itemsize}")
    first, second = (np.ascontiguousarray(each).view(bits) for each in (one, other))
    differs: np.ndarray = first != second
    if one.dtype.kind not in "iub":
        differs &= ~(np.isnan(one) & np.isnan(other))
    return differs


def _difference(one: np.ndarray, other: np.ndarray, wrong: np.ndarray) -> str:
    """How many elements differ, and where most."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(one.astype(np.float64) - other.astype(np.float64))
    largest = float(np.nanmax(distance, initial=0.0))
    if not wrong.any():
        return f"largest difference {largest:.3g}"
    distance = np.where(wrong, np.nan_to_num(distance, nan=np.inf), -1.0)
    place = [int(each) for each in np.unravel_index(int(distance.argmax()), distance.shape)]
    count = int(wrong.sum())
    return f"{count} of {one.size} elements differ, most at {place} by {distance.max():.3g}"
