"""`check_kernel`: dynamic checks of a kernel on given arguments.

A kernel with the right result may still read uninitialised memory, or depend on the order in which
engines and queues happen to run. It is interpreted, compiled, run in program order, and run under
adversarial orders of engines and queues.
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
from glia.nki.run.advice import advise
from glia.nki.run.kernel import as_kernel
from glia.nki.run.launch import Launch, bind, flatten_outputs
from glia.nki.run.trace import Traced
from glia.nki.session.interpreter import UNWRITTEN, Unwritten
from glia.nki.source.definitions import unwrap
from glia.nki.source.subset import findings
from glia.profile.report import profile_programs
from glia.sim.order.concurrent import run_cores, streams_of
from glia.sim.policy import ExecutionFault, Policy

CHECK_INITIALIZED = Policy(check_initialized=True)
CHECK_ACTIVATION_RANGE = Policy(check_activation_range=True)
OTHER_CONTENTS: Unwritten = 0.75, 1
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Check:
    """The result of one check; `detail` has the numbers; an `is_remark` does not fail a kernel."""

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
        """Whether no check failed."""
        return all(check.passed or check.is_remark for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The failed checks."""
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
    call = _CheckedCall(known, arrays, constants, target_of_kernel(known, target))
    checker = _Checker(call, on_check or (lambda _: None))
    checker.run(orders)
    checker.check_for_nan()
    checker.compare_with_expected(expected or (), rtol, atol)
    if other_targets:
        if not declared_target(known):
            checker.try_other_targets()
        checker.check_language_subset()
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
class _CheckedCall:
    """A kernel and its arguments; each use gets copies, since kernels may write arguments."""

    kernel: Any
    arrays: tuple[Any, ...]
    constants: Mapping[str, Any]
    target: Target

    def launch(self) -> Launch:
        """Bind copies of the arguments."""
        constants = {name: _copy_if_array(value) for name, value in self.constants.items()}
        return bind(self.kernel.function, tuple(map(_copy_if_array, self.arrays)), constants)

    def step(self, unwritten: Unwritten = UNWRITTEN) -> tuple[np.ndarray, ...]:
        """The kernel's results when interpreted."""
        returned = self.kernel.interpret(self.launch(), self.target, unwritten)
        return tuple(np.asarray(each) for each in flatten_outputs(returned))

    def compile(self, target: Target | None = None, **how: Any) -> Traced:
        """The programs for this or another target; `how` are options of `trace_launch`."""
        traced: Traced = self.kernel.traced_launch(self.launch(), target or self.target, **how)
        return traced

    def execute(
        self, compiled: Traced, seed: int = 0, policy: Policy | None = None
    ) -> tuple[np.ndarray, ...]:
        """The compiled kernel's results, with engines and queues concurrent."""
        inputs = self.launch().arrays
        programs = compiled.programs
        outputs: dict[str, np.ndarray] = {}
        found = run_cores(programs, [inputs] * len(programs), seed=seed, policy=policy)
        for each in reversed(found):
            outputs.update(each)
        return tuple(outputs[name] for name in compiled.results)


def _copy_if_array(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


class _Checker:
    def __init__(self, call: _CheckedCall, on_check: Callable[[Check], None]) -> None:
        self.call, self.on_check = call, on_check
        self.checks: list[Check] = []
        self.results: tuple[np.ndarray, ...] = ()

    def run(self, orders: int | None) -> None:
        """Interpret, compile, compare, and run in adversarial orders."""
        stepped = self._try("step by step", self.call.step)
        if stepped is not None:
            self.results = stepped
            self._add(Check("step by step", True, "runs to its end"))
        name = f"compile for {self.call.target.name}"
        compiled = self._try(name, self.call.compile)
        if compiled is not None:
            self._add(Check(name, True, _size_and_time(compiled, self.call.target)))
            runs = self._compare_with_interpreter(compiled, stepped)
            if stepped is not None:
                self._check_uninitialised_reads(compiled if runs else None, stepped)
            self._check_orders(compiled, orders, tried=1 if runs else 0)
            if runs:
                self._check_uses()

    def try_other_targets(self) -> None:
        """A remark for each other target with NKI: size and time there, or the refusal."""
        for name, target in TARGETS.items():
            is_same = target.arch == self.call.target.arch
            if is_same or not target.arch.capabilities.has_nki:
                continue
            try:
                detail = _size_and_time(self.call.compile(target), target)
            except CompileError as refusal:
                detail = f"refused: {refusal}"
            self._add(Check(f"on {name}", True, detail, is_remark=True))

    def check_language_subset(self) -> None:
        """A remark: what the parser of earlier releases refuses of a kernel of this generation."""
        if self.call.kernel.widens_floats:
            return
        found = findings(unwrap(self.call.kernel.function))
        refused = [f"{each.loc}: {each.rule.sentence}" for each in found if not each.rule.is_advice]
        detail = "\n".join(["refused", *refused]) if refused else "taken"
        self._add(Check("by the parser of NKI 0.2 to 0.6", True, detail, is_remark=True))

    def _compare_with_interpreter(
        self, compiled: Traced, stepped: tuple[np.ndarray, ...] | None
    ) -> bool:
        """Check that compiled and interpreted results are equal; whether the program completes."""
        name = "compiled gives the same"
        results = self._try(name, lambda: self.call.execute(compiled))
        if results is None:
            return False
        self.results = results
        if stepped is None:
            return True
        detail = "bit for bit"
        for number, (one, other) in enumerate(zip(results, stepped, strict=True)):
            wrong = _differing_bits(one, other)
            if wrong.any():
                detail = f"output {number}: {_difference(one, other, wrong)}"
                break
        is_wide = self.call.kernel.widens_floats and detail != "bit for bit"
        if is_wide:
            detail += "; step by step this generation holds narrow floats in float32"
        self._add(Check(name, detail == "bit for bit", detail, is_remark=is_wide))
        return True

    def _check_uninitialised_reads(
        self, compiled: Traced | None, stepped: tuple[np.ndarray, ...]
    ) -> None:
        """Check that outputs do not depend on uninitialised memory; reading it is a remark.

        A compiled kernel that completes also tells which instruction reads it.
        """
        name = "memory is written before it is read"
        again = self._try(name, lambda: self.call.step(OTHER_CONTENTS))
        if again is None:
            return
        first = self._fault_of(compiled, CHECK_INITIALIZED)
        changed = _first_change(stepped, again)
        if changed:
            detail = str(first or changed)
            self._add(Check(name, False, detail, getattr(first, "loc", UNKNOWN)))
        elif first is None:
            self._add(Check(name, True))
        else:
            detail = f"read all the same, but no output depends on it:\n{first}"
            self._add(Check(name, True, detail, first.loc, is_remark=True))
        if (fault := self._fault_of(compiled, CHECK_ACTIVATION_RANGE)) is not None:
            detail = f"read where the documentation gives no values:\n{fault}"
            self._add(Check("activation functions", True, detail, fault.loc, is_remark=True))

    def _fault_of(self, compiled: Traced | None, policy: Policy) -> ExecutionFault | None:
        """The fault of a run under a stricter policy; None without one."""
        if compiled is None:
            return None
        try:
            self.call.execute(compiled, 0, policy)
        except ExecutionFault as fault:
            return fault
        return None

    def _check_orders(self, compiled: Traced, orders: int | None, tried: int) -> None:
        """Check for races and deadlocks; the first `tried` orders have shown none."""
        name = "any order of engines and queues"
        count = orders or orders_needed(*compiled.programs)
        for seed in range(tried, count):
            if self._try(name, functools.partial(self.call.execute, compiled, seed)) is None:
                return
        streams = len(streams_of(*compiled.programs))
        self._add(Check(name, True, f"{count} of them, over {streams} engines and queues"))

    def _check_uses(self) -> None:
        """Check that no product is lost; remark what costs time or memory for nothing."""
        name = "every product is read before the next replaces it"
        found = advise(
            lambda edit, as_written=False: (
                self.call.compile(edit=edit, as_written=as_written).programs
            ),
            self.call.launch().arrays,
            self.call.target,
            chooses_queues=not self.call.kernel.widens_floats,
        )
        faults = [each for each in found if each.is_fault]
        for fault in faults:
            self._add(Check(name, False, fault.text, fault.loc))
        if not faults:
            self._add(Check(name, True))
        for each in found[len(faults) :]:
            self._add(Check("advice", True, each.text, each.loc, is_remark=True))

    def check_for_nan(self) -> None:
        """Remark NaN in outputs; inputs may contain NaN or infinity."""
        for number, result in enumerate(self.results):
            if result.dtype.kind not in "iub":
                count = int(np.isnan(result.astype(np.float32)).sum())
                if count:
                    detail = f"{count} of {result.size} elements; fresh memory holds NaN"
                    self._add(Check(f"NaN in output {number}", False, detail, is_remark=True))

    def compare_with_expected(
        self, expected: Sequence[np.ndarray], rtol: float, atol: float
    ) -> None:
        """Check that outputs equal those expected within the tolerances."""
        if self.results and expected and len(self.results) != len(expected):
            detail = f"{len(self.results)} outputs, not {len(expected)}"
            self._add(Check("as expected", False, detail))
            return
        for number, (result, wanted) in enumerate(zip(self.results, expected, strict=False)):
            name = f"output {number} as expected"
            if result.shape != wanted.shape:
                self._add(Check(name, False, f"shape {result.shape}, not {wanted.shape}"))
                continue
            a, b = result.astype(np.float64), wanted.astype(np.float64)
            wrong = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
            self._add(Check(name, not wrong.any(), _difference(a, b, wrong)))

    def _try(self, name: str, work: Callable[[], _Result]) -> _Result | None:
        """The result of `work`; None, with a failed check, for an error of the kernel."""
        try:
            return work()
        except (CompileError, ExecutionFault) as problem:
            detail = str(problem)
            if any(check.detail == detail for check in self.checks):
                detail = "refused likewise"
            self._add(Check(name, False, detail, getattr(problem, "loc", UNKNOWN)))
            return None

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        self.on_check(check)


def _size_and_time(compiled: Traced, target: Target) -> str:
    """The text of the number of instructions and the simulated time."""
    counts = [sum(1 for _ in program.instructions()) for program in compiled.programs]
    profile = profile_programs(compiled.programs, target)
    cores = f" on each of {len(counts)} cores" if len(counts) > 1 else ""
    return f"{max(counts)} instructions{cores}, {profile.latency_us:.2f} us (simulated)"


def _first_change(stepped: Sequence[np.ndarray], again: Sequence[np.ndarray]) -> str:
    """The text of the first output that differs between two runs; "" if they are equal."""
    for number, (one, other) in enumerate(zip(stepped, again, strict=True)):
        differs = _differing_bits(one, other)
        if differs.any():
            where = ", ".join(map(str, np.argwhere(differs)[0].tolist()))
            return (
                f"output {number} changes with what fresh memory holds: {int(differs.sum())} of "
                f"{one.size} elements, the first at [{where}]"
            )
    return ""


def _differing_bits(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where the bits differ; all NaNs are equal."""
    bits = np.dtype(f"u{one.dtype.itemsize}")
    first, second = (np.ascontiguousarray(each).view(bits) for each in (one, other))
    differs: np.ndarray = first != second
    if one.dtype.kind not in "iub":
        differs &= ~(np.isnan(one) & np.isnan(other))
    return differs


def _difference(one: np.ndarray, other: np.ndarray, wrong: np.ndarray) -> str:
    """The text of how many elements differ, and of the largest difference."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(one.astype(np.float64) - other.astype(np.float64))
    largest = float(np.nanmax(distance, initial=0.0))
    if not wrong.any():
        return f"largest difference {largest:.3g}"
    distance = np.where(wrong, np.nan_to_num(distance, nan=np.inf), -1.0)
    place = [int(each) for each in np.unravel_index(int(distance.argmax()), distance.shape)]
    count = int(wrong.sum())
    return f"{count} of {one.size} elements differ, most at {place} by {distance.max():.3g}"
