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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from glia.cli.conformance_library import RECIPES
from glia.cli.conformance_load import find_neighbours, imported, kernels_in, load
from glia.cli.conformance_outcome import Outcome, failed, judged
from glia.cli.conformance_recipes import Trial
from glia.nki.beta1.launch import Kernel as EarlierKernel
from glia.nki.beta1.launch import simulate_kernel
from glia.nki.kernel import Kernel
from glia.nki.launch import Launch
from glia.nki.simulate import simulate

NO_INPUTS = "no inputs are known for it, and nothing in the clone that runs here calls it"
RESULTS = ("out", "res")  # how parameters begin that a kernel writes
COMPARISONS = (("numpy", "allclose"), ("jax.numpy", "allclose"), ("torch", "allclose"))


# --- kernels -------------------------------------------------------------------------------------


def run_kernels(path: Path, tree: ast.Module, generation: str) -> Iterator[Outcome]:
    """Run the kernels of a file that have a recipe; the others are not run."""
    names = kernels_in(tree)
    names += _wrappers(tree, names)
    if not names:
        return
    try:
        module = load(path, tree, is_whole=False)
    except Exception as problem:
        yield from (failed(path, name, generation, problem) for name in names)
        return
    for name in names:
        yield _run_kernel(path, getattr(module, name), name, generation)


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
    make = RECIPES.get(name)
    made = make(np.random.default_rng(0), path.name) if make is not None else None
    if made is None:
        return Outcome(str(path), name, generation, "not run", reason=NO_INPUTS)
    trials = tuple(_fitted(kernel, each) for each in (made if isinstance(made, tuple) else (made,)))
    if None in trials:
        return Outcome(str(path), name, generation, "not run", reason=NO_INPUTS)
    outcomes = [_run_trial(path, kernel, name, generation, each) for each in trials]
    wrong = [each for each in outcomes if each.status != "pass"]
    if wrong:
        return wrong[0]
    reached = {each for outcome in outcomes for each in outcome.reached}
    worst = max(outcome.error or 0.0 for outcome in outcomes)
    return replace(outcomes[0], error=worst, reached=tuple(sorted(reached)))


def _fitted(kernel: Any, trial: Trial) -> Trial | None:
    """The trial, with arrays for results that are parameters; None where nothing fits."""
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
    try:
        grid = trial.grid if hasattr(kernel, "__getitem__") and trial.grid else ()
        with _reaching() as reached:
            found = _simulated(kernel, generation, grid)(*trial.arguments, **trial.named)
    except Exception as problem:
        return failed(path, name, generation, problem)
    if trial.results:
        found = trial.arguments[-trial.results :]
    results = found if isinstance(found, tuple | list) else (found,)
    outcome = _compared(path, name, generation, list(results), trial)
    return replace(outcome, reached=tuple(sorted(reached)))


def _simulated(kernel: Any, generation: str, grid: tuple[int, ...]) -> Any:
    if not hasattr(kernel, "function"):
        return kernel  # a wrapper that launches one
    if generation == "beta 1":
        launched = kernel[grid] if grid else kernel
        return lambda *args, **kwargs: simulate_kernel(launched, *args, **kwargs)
    return simulate(kernel)[grid[0]] if grid else simulate(kernel)  # type: ignore[index]


def _compared(path: Path, name: str, generation: str, found: list[Any], trial: Trial) -> Outcome:
    worst = 0.0
    for result, expected in zip(found, trial.expected, strict=False):
        array = np.asarray(result, dtype=np.float64).reshape(expected.shape)
        errors = np.abs(array - expected) / (1 + np.abs(expected))
        error = float(np.max(errors, where=~np.isnan(expected), initial=0.0))
        worst = max(worst, float("inf") if np.isnan(error) else error)
    is_right = worst <= trial.tolerance and len(found) >= len(trial.expected)
    if is_right:
        return Outcome(str(path), name, generation, "pass", worst)
    text = f"differs from NumPy by more than {trial.tolerance}"
    return replace(judged(path, name, generation, text), error=worst)


@contextlib.contextmanager
def _reaching() -> Iterator[set[str]]:
    """The kernels that run meanwhile, as `file:name`."""
    reached: set[str] = set()

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
        noted(EarlierKernel, "__call__"),
    ):
        yield reached


class _Watch:
    """An `allclose` that notes the greatest difference it saw and whether it ever said no."""

    def __init__(self) -> None:
        self.worst: float | None = None
        self.said_no = False

    def over(self, allclose: Any) -> Any:
        """`allclose` of one package, watched."""

        def watched(a: Any, b: Any, *args: Any, **kwargs: Any) -> bool:
            with contextlib.suppress(ValueError, TypeError):
                first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
                error = np.abs(first - second) / (1 + np.abs(second))
                self.worst = max(self.worst or 0.0, float(np.nanmax(error, initial=0.0)))
            is_close = bool(allclose(a, b, *args, **kwargs))
            self.said_no |= not is_close
            return is_close

        return watched


@contextlib.contextmanager
def _watching(tree: ast.Module) -> Iterator[tuple[_Watch, set[str]]]:
    """Watch what is compared and which kernels run, in a folder of its own."""
    watch = _Watch()
    packages = {"numpy", *(name.partition(".")[0] for name in imported(tree))}
    with contextlib.ExitStack() as stack:
        for package, name in COMPARISONS:
            if package.partition(".")[0] in packages:
                with contextlib.suppress(ModuleNotFoundError):
                    module = importlib.import_module(package)
                    watched = watch.over(getattr(module, name))
                    stack.enter_context(mock.patch.object(module, name, watched))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.chdir(folder))
        yield watch, stack.enter_context(_reaching())


# --- scripts -------------------------------------------------------------------------------------


def is_script(tree: ast.Module) -> bool:
    """Whether the file does something when it is started."""
    return any(
        isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body
    )


def run_script(path: Path, tree: ast.Module, generation: str) -> Iterator[Outcome]:
    """Start the file; it fails when it raises, and when a comparison of its own says no."""
    find_neighbours(path)
    name = "as a script"
    try:
        with _watching(tree) as (watch, reached), mock.patch.object(sys, "argv", [str(path)]):
            runpy.run_path(str(path), run_name="__main__")
    except (Exception, SystemExit) as problem:
        if not isinstance(problem, SystemExit) or problem.code not in (None, 0):
            yield failed(path, name, generation, problem)
            return
    if watch.said_no:
        yield replace(judged(path, name, generation, "its allclose says no"), error=watch.worst)
    elif reached:
        found = tuple(sorted(reached))
        yield Outcome(str(path), name, generation, "pass", watch.worst, reached=found)


# --- files of unit tests -------------------------------------------------------------------------


def is_test(path: Path, tree: ast.Module) -> bool:
    """Whether the file holds tests, as pytest finds them; one that starts itself is a script."""
    frameworks = {"pytest", "unittest"} & set(imported(tree))
    return (
        path.name.startswith("test_")
        and (bool(frameworks) or not is_script(tree))
        and any(
            isinstance(node, ast.ClassDef)
            or (isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))
            for node in tree.body
        )
    )


def run_tests(path: Path, tree: ast.Module, generation: str) -> Iterator[Outcome]:
    """Run the tests of a file, each with all its parameters; measurements, which are long, last."""
    try:
        module = load(path, tree, is_whole=True)
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        yield failed(path, path.stem, generation, problem)
        return
    for label, kind, function in sorted(_tests_of(module), key=_is_measurement):
        cases, missing = _cases(function)
        if missing:
            reason = f"needs the fixture {missing}"
            yield Outcome(str(path), label, generation, "not run", reason=reason)
        for case in cases:
            shown = f"{label}{list(case.values())}" if case else label
            yield _run_test(path, tree, shown[:120], kind, function, case, generation)


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
    path: Path, tree: ast.Module, label: str, kind: Any, function: Any, case: dict[str, Any],
    generation: str,
) -> Outcome:  # fmt: skip
    try:
        with _watching(tree) as (watch, reached):
            _call_test(kind, function, case)
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        expected = _expected_failure(function)
        outcome = failed(path, label, generation, problem)
        return replace(outcome, status="explained", reason=expected) if expected else outcome
    found = tuple(sorted(reached))
    return Outcome(str(path), label, generation, "pass", watch.worst, reached=found)


def _call_test(kind: Any, function: Any, case: dict[str, Any]) -> None:
    if kind is None:
        function(**case)
        return
    name = function.__name__
    instance = kind(name) if issubclass(kind, unittest.TestCase) else kind()
    before, after = ("setUp", "tearDown")
    if not isinstance(instance, unittest.TestCase):
        before, after = ("setup_method", "teardown_method")
    getattr(instance, before, lambda: None)()
    try:
        getattr(instance, name)(**case)
    finally:
        getattr(instance, after, lambda: None)()


def _expected_failure(function: Any) -> str:
    """Why the vendor expects a test to fail; "" when it should pass."""
    for mark in getattr(function, "pytestmark", []):
        if mark.name.endswith("xfail"):
            return f"the test itself is marked as failing ({mark.kwargs.get('reason', 'xfail')})"
    return ""


def _cases(function: Any) -> tuple[list[dict[str, Any]], str]:
    """The arguments of each run of a test as pytest's marks give them, or what they leave open."""
    names = set(inspect.signature(function).parameters) - {"self"}
    cases: list[dict[str, Any]] = [{"simulation_only": True} if "simulation_only" in names else {}]
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            cases = [{**case, **row} for case in cases for row in _rows(*mark.args[:2])]
    missing = sorted(names - (cases[0].keys() if cases else set()))
    return ([], missing[0]) if missing else (cases, "")


def _rows(keys: Any, rows: Any) -> list[dict[str, Any]]:
    """What pytest.mark.parametrize gives the parameters, row by row."""
    names = [key.strip() for key in keys.split(",")] if isinstance(keys, str) else list(keys)
    found = []
    for row in rows:
        values = row.values if type(row).__name__ == "ParameterSet" else row
        is_single = len(names) == 1 and values is row
        found.append(dict(zip(names, [values] if is_single else values, strict=True)))
    return found


def environment() -> dict[str, str]:
    """The environment for a file in a process of its own, which finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
