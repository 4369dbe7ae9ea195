"""Running the kernels, tests and scripts of one file of a clone."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import runpy
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from glia.conformance.load import (
    MISSING_IMPORTS,
    decorated_kernels,
    extend_search_path,
    imported_modules,
    load,
    undecorated_kernels,
)
from glia.conformance.outcome import Outcome, classify_failure, failure_outcome
from glia.conformance.page_recipes import RECIPES, kernels_of_page
from glia.conformance.tutorial_recipes import Trial
from glia.nki.beta1 import jit as beta1_jit
from glia.nki.beta1.run.launch import Kernel as Beta1Kernel
from glia.nki.beta1.run.launch import simulate_kernel
from glia.nki.run.frameworks import to_numpy
from glia.nki.run.kernel import Kernel, jit
from glia.nki.run.launch import Launch
from glia.nki.run.simulate import simulate

NO_INPUTS = "no recipe has inputs for it, and no test or script that runs here calls it"
RESULTS = ("out", "res")  # prefixes of parameters that a kernel writes
SCRIPT = "as a script"  # the name of a script's run in the table
Step = tuple[str, Callable[[], Outcome | None]]  # name and action
COMPARISONS = (
    ("numpy", "allclose"),
    ("numpy", "isclose"),
    ("numpy.testing", "assert_allclose"),
    ("jax.numpy", "allclose"),
    ("torch", "allclose"),
    ("torch.testing", "assert_close"),
)


# --- kernels -------------------------------------------------------------------------------------


def kernel_steps(path: Path, tree: ast.Module, generation: str) -> Iterator[Step]:
    """A step for each kernel of a file; kernels without a recipe are not run."""
    page = path.name.partition(":")[0]
    names = decorated_kernels(tree)
    plain = [*kernels_of_page(tree, page), *undecorated_kernels(tree)]
    names += [*plain, *_wrappers(tree, names)]
    if not names:
        return
    try:
        module = load(path, tree, is_whole=False)
    except Exception as problem:
        yield from ((n, partial(failure_outcome, path, n, generation, problem)) for n in names)
        return
    made = jit if generation == "current" else beta1_jit
    for name in names:
        kernel = getattr(module, name)
        kernel = made(kernel) if name in plain else kernel
        yield name, partial(_run_kernel, path, kernel, name, generation)


def _wrappers(tree: ast.Module, kernels: list[str]) -> list[str]:
    """Functions with a recipe that launch one of the kernels."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in RECIPES and node.name not in kernels:
            named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if named & set(kernels):
                found.append(node.name)
    return found


def _run_kernel(path: Path, kernel: Any, name: str, generation: str) -> Outcome:
    if package := _missing_package(kernel):
        return failure_outcome(path, name, generation, ModuleNotFoundError(name=package))
    page = path.name.partition(":")[0]
    make = RECIPES.get(f"{page} {name}") or RECIPES.get(name)
    made = make(np.random.default_rng(0), path.name) if make is not None else None
    if made is None:
        return Outcome(str(path), name, generation, "not run", reason=NO_INPUTS)
    trials = tuple(
        _fit_arguments(kernel, each) for each in (made if isinstance(made, tuple) else (made,))
    )
    fitting = [each for each in trials if each is not None]
    if len(fitting) < len(trials):
        return Outcome(str(path), name, generation, "not run", reason=NO_INPUTS)
    outcomes = [_run_trial(path, kernel, name, generation, each) for each in fitting]
    wrong = [each for each in outcomes if each.status != "pass"]
    if wrong:
        return wrong[0]
    reached = {each for outcome in outcomes for each in outcome.reached}
    worst = max((each.error for each in outcomes if each.error is not None), default=None)
    return replace(outcomes[0], error=worst, reached=tuple(sorted(reached)))


def _missing_package(kernel: Any) -> str:
    """A package that a kernel uses and that is not installed; "" for none."""
    function = inspect.unwrap(getattr(kernel, "function", kernel))
    lacking = getattr(function, "__globals__", {}).get(MISSING_IMPORTS, {})
    return next((lacking[n] for n in function.__code__.co_names if n in lacking), "")


def _fit_arguments(kernel: Any, trial: Trial) -> Trial | None:
    """The trial with arrays for result parameters; None where it does not fit the signature."""
    signature = inspect.signature(kernel)
    with contextlib.suppress(TypeError):
        signature.bind(*trial.arguments, **trial.named)
        return trial
    names = list(signature.parameters)[len(trial.arguments) :]
    if len(names) != len(trial.expected) or not all(name.startswith(RESULTS) for name in names):
        return None
    results = tuple(np.zeros(each.shape, trial.arguments[0].dtype) for each in trial.expected)
    return replace(trial, arguments=(*trial.arguments, *results), results=len(results))


def _run_trial(path: Path, kernel: Any, name: str, generation: str, trial: Trial) -> Outcome:
    reached: set[str] = set()
    try:
        grid = trial.grid if hasattr(kernel, "__getitem__") and trial.grid else ()
        with _recording_kernels(reached):
            found = _simulator(kernel, generation, grid)(*trial.arguments, **trial.named)
    except Exception as problem:
        return failure_outcome(path, name, generation, problem)
    if trial.results:
        found = trial.arguments[-trial.results :]
    results = found if isinstance(found, tuple | list) else (found,)
    outcome = _compare_results(path, name, generation, list(results), trial)
    return replace(outcome, reached=tuple(sorted(reached)))


def _simulator(kernel: Any, generation: str, grid: tuple[int, ...]) -> Any:
    if not hasattr(kernel, "function"):
        return kernel  # a wrapper that launches a kernel
    if generation == "Beta 1":
        launched = kernel[grid] if grid else kernel
        return lambda *args, **kwargs: simulate_kernel(launched, *args, **kwargs)
    return simulate(kernel)[grid[0]] if grid else simulate(kernel)  # type: ignore[index]


def _compare_results(
    path: Path, name: str, generation: str, found: list[Any], trial: Trial
) -> Outcome:
    worst = 0.0
    for result, expected in zip(found, trial.expected, strict=False):
        array = np.asarray(result, dtype=np.float64).reshape(expected.shape)
        errors = np.abs(array - expected) / (1 + np.abs(expected))
        error = float(np.max(errors, where=~np.isnan(expected), initial=0.0))
        worst = max(worst, float("inf") if np.isnan(error) else error)
    is_right = worst <= trial.tolerance and len(found) >= len(trial.expected)
    if is_right:
        return Outcome(str(path), name, generation, "pass", worst if trial.expected else None)
    text = f"differs from NumPy by more than {trial.tolerance}"
    return replace(classify_failure(path, name, generation, text), error=worst)


@contextlib.contextmanager
def _recording_kernels(reached: set[str]) -> Iterator[None]:
    """Add the kernels that run in the context to `reached`, as `file:name`."""

    def noted(kind: type, method: str) -> Any:
        original = getattr(kind, method)

        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            function = inspect.unwrap(self.kernel if kind is Launch else self.function)
            code = getattr(function, "__code__", None)
            if code is not None:
                reached.add(f"{Path(code.co_filename).resolve()}:{function.__name__}")
            return original(self, *args, **kwargs)

        return mock.patch.object(kind, method, called)

    with (
        noted(Launch, "call"),
        noted(Kernel, "__call__"),
        noted(Beta1Kernel, "__call__"),
    ):
        yield


class _ComparisonMonitor:
    """Records the largest differences that `allclose` functions accepted and rejected."""

    def __init__(self) -> None:
        self.worst: float | None = None
        self.worst_rejected: float | None = None

    def wrap(self, allclose: Any) -> Any:
        """`allclose` of one package, monitored."""

        def watched(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
            result = allclose(a, b, *args, **kwargs)
            error = 0.0
            with contextlib.suppress(ValueError, TypeError):
                first, second = (np.asarray(to_numpy(each), np.float64) for each in (a, b))
                errors = np.abs(first - second) / (1 + np.abs(second))
                error = float(np.nanmax(errors, initial=0.0))
            if result is None or np.all(
                np.asarray(result)
            ):  # assert_allclose returns None and raises on rejection
                self.worst = max(self.worst or 0.0, error)
            else:
                self.worst_rejected = max(self.worst_rejected or 0.0, error)
            return result

        return watched


@contextlib.contextmanager
def _monitoring(tree: ast.Module, reached: set[str]) -> Iterator[_ComparisonMonitor]:
    """Monitor comparisons and record the kernels that run, in a temporary directory."""
    monitor = _ComparisonMonitor()
    packages = {"numpy", *(name.partition(".")[0] for name in imported_modules(tree))}
    with contextlib.ExitStack() as stack:
        for package, name in COMPARISONS:
            if package.partition(".")[0] in packages:
                with contextlib.suppress(ModuleNotFoundError):
                    module = importlib.import_module(package)
                    watched = monitor.wrap(getattr(module, name))
                    stack.enter_context(mock.patch.object(module, name, watched))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(_recording_kernels(reached))
        yield monitor


# --- scripts -------------------------------------------------------------------------------------


def is_script(tree: ast.Module) -> bool:
    """Whether the file runs something as `__main__`, or calls its own tests."""
    return any(
        (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)) or _calls_a_test(node)
        for node in tree.body
    )


def _calls_a_test(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name.startswith("test_")
    return False


def script_step(path: Path, tree: ast.Module, generation: str) -> Step:
    """The step that runs the file as `__main__`."""
    return SCRIPT, partial(_run_script, path, tree, generation)


def _run_script(path: Path, tree: ast.Module, generation: str) -> Outcome | None:
    """Fail when it raises or a comparison of its own fails; None when no kernel runs."""
    extend_search_path(path)
    reached: set[str] = set()
    try:
        with (
            _monitoring(tree, reached) as monitor,
            mock.patch.object(sys, "argv", [str(path)]),
        ):
            runpy.run_path(str(path), run_name="__main__")
    except (Exception, SystemExit) as problem:
        if not isinstance(problem, SystemExit) or problem.code not in (None, 0):
            found = tuple(sorted(reached))
            return replace(failure_outcome(path, SCRIPT, generation, problem), reached=found)
    if monitor.worst_rejected is not None:
        text = "its own allclose comparison fails"
        return replace(
            classify_failure(path, SCRIPT, generation, text), error=monitor.worst_rejected
        )
    if not reached:
        return None
    found = tuple(sorted(reached))
    return Outcome(str(path), SCRIPT, generation, "pass", monitor.worst, reached=found)


# --- files of unit tests -------------------------------------------------------------------------


def is_test(path: Path, tree: ast.Module) -> bool:
    """Whether pytest would collect tests from the file; one that runs itself is a script."""
    frameworks = {"pytest", "unittest"} & set(imported_modules(tree))
    return (
        path.name.startswith("test_")
        and (bool(frameworks) or not is_script(tree))
        and any(
            isinstance(node, ast.ClassDef)
            or (isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
            for node in tree.body
        )
    )


def test_steps(path: Path, tree: ast.Module, generation: str) -> Iterator[Step]:
    """A step for each test and parameter set of a file; long performance tests come last."""
    try:
        module = load(path, tree, is_whole=True)
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        yield path.stem, partial(failure_outcome, path, path.stem, generation, problem)
        return
    for label, kind, function in sorted(_tests_of(module), key=_is_measurement):
        fixtures = _fixtures_of(module, kind)
        cases, missing = _cases(function, fixtures)
        if missing:
            reason = f"needs the fixture {missing}"
            yield label, partial(Outcome, str(path), label, generation, "not run", reason=reason)
        for case in cases:
            shown = (f"{label}{list(case.values())}" if case else label)[:120]
            call = partial(_call_test, kind, function, case, fixtures)
            expected = _expected_failure(function)
            yield shown, partial(_run_test, path, tree, shown, call, expected, generation)


def _tests_of(module: ModuleType) -> Iterator[tuple[str, Any, Any]]:
    """(name, class or None, function) of every test."""
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value):
            for method, function in list(vars(value).items()):
                if method.startswith("test") and callable(function):
                    yield f"{name}.{method}", value, function
        elif name.startswith("test_") and inspect.isfunction(value):
            yield name, None, value


def _is_measurement(test: tuple[str, Any, Any]) -> bool:
    label, _, function = test
    marks = {mark.name for mark in getattr(function, "pytestmark", [])}
    return "perf" in label and "simulation" not in marks


def _run_test(
    path: Path, tree: ast.Module, label: str, call: Callable[[], None], expected: str,
    generation: str,
) -> Outcome:  # fmt: skip
    reached: set[str] = set()
    try:
        with _monitoring(tree, reached) as monitor:
            call()
        outcome = Outcome(str(path), label, generation, "pass", monitor.worst)
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        outcome = failure_outcome(path, label, generation, problem)
        if expected:
            outcome = replace(outcome, status="explained", reason=expected)
    return replace(outcome, reached=tuple(sorted(reached)))


def _call_test(kind: Any, function: Any, case: dict[str, Any], fixtures: dict[str, Any]) -> None:
    with contextlib.ExitStack() as stack:
        if kind is None:
            function(**_arguments(function, case, fixtures, stack))
            return
        name = function.__name__
        instance = kind(name) if issubclass(kind, unittest.TestCase) else kind()
        before, after = ("setUp", "tearDown")
        if not isinstance(instance, unittest.TestCase):
            before, after = ("setup_method", "teardown_method")
        getattr(instance, before, lambda: None)()
        stack.callback(getattr(instance, after, lambda: None))
        known = {**case, "self": instance}
        function(**_arguments(function, known, fixtures, stack))


def _arguments(
    function: Any, known: dict[str, Any], fixtures: dict[str, Any], stack: contextlib.ExitStack
) -> dict[str, Any]:
    """The arguments of a test or fixture, from known values or fixtures of that name."""
    found = {}
    for name in inspect.signature(function).parameters:
        if name in known:
            found[name] = known[name]
            continue
        made = fixtures[name](**_arguments(fixtures[name], known, fixtures, stack))
        if inspect.isgenerator(made):  # the code after its yield is the teardown
            stack.callback(next, made, None)
            made = next(made)
        known[name] = found[name] = made
    return found


def _fixtures_of(module: ModuleType, kind: Any) -> dict[str, Any]:
    """Fixture functions by name, of a module and of a test class."""
    places = [*vars(module).items(), *(vars(kind).items() if kind is not None else ())]
    return {
        name: inspect.unwrap(value)
        for name, value in places
        if type(value).__name__ == "FixtureFunctionDefinition"
        or hasattr(value, "_pytestfixturefunction")  # until pytest 8.3
    }


def _expected_failure(function: Any) -> str:
    """The reason of a test's xfail mark; "" without one."""
    for mark in getattr(function, "pytestmark", []):
        if mark.name.endswith("xfail"):
            return f"the test itself is marked as failing ({mark.kwargs.get('reason', 'xfail')})"
    return ""


def _cases(function: Any, fixtures: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """(arguments of each parameter set of a test, ""), or ([], name of an unknown fixture)."""
    names = set(inspect.signature(function).parameters) - {"self"}
    cases: list[dict[str, Any]] = [{"simulation_only": True} if "simulation_only" in names else {}]
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            cases = [{**case, **row} for case in cases for row in _rows(*mark.args[:2])]
    missing = sorted(names - fixtures.keys() - (cases[0].keys() if cases else set()))
    return ([], missing[0]) if missing else (cases, "")


def _rows(keys: Any, rows: Any) -> list[dict[str, Any]]:
    """The argument rows of a pytest.mark.parametrize."""
    names = [key.strip() for key in keys.split(",")] if isinstance(keys, str) else list(keys)
    found = []
    for row in rows:
        values = row.values if type(row).__name__ == "ParameterSet" else row
        is_single = len(names) == 1 and values is row
        found.append(dict(zip(names, [values] if is_single else values, strict=True)))
    return found


def environment() -> dict[str, str]:
    """The environment of a file's process: the same module path, breakpoint() disabled."""
    found = {**os.environ, "PYTHONBREAKPOINT": "0"}
    return {**found, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
