"""`glia conformance nki`: run the kernels of a clone of the public NKI repositories.

Kernels are found by their decorator. One with a recipe runs on its inputs and is compared with
NumPy; a file of unit tests runs its tests. Every file runs in a process of its own, because its
code is the user's.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.util
import inspect
import io
import json
import os
import subprocess
import sys
import types
import unittest
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

DECORATORS = ("jit", "nki_jit", "trace", "baremetal", "benchmark", "profile")
FRAMEWORKS = (
    "torch",
    "torch_xla",
    "torch_neuronx",
    "jax",
    "jax_neuronx",
    "transformers",
    "ml_dtypes",
)
SECONDS = 900  # that one file may take
GENERATIONS = {"neuronxcc": "beta 1", "nki": "current", "torch_neuronx": "beta 1"}


@dataclass(frozen=True)
class Outcome:
    """What came of one kernel or test: `status` is pass, fail, explained or not run."""

    file: str
    kernel: str
    generation: str
    status: str
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Known:
    """A failure that the vendor documents or that lies in the vendor's file."""

    file: str  # how the path ends
    kernel: str  # "" for all of the file
    text: str  # part of what is raised
    reason: str
    source: str


KNOWN = (
    Known("layout-violation.py", "", "exceed", "the example breaks the limit of 128 partitions on "
          "purpose", "NKI programming model, tile size considerations"),
    Known("layout-dynamic-loop.py", "", "differs", "the kernel returns inside its loop, after the "
          "first tile; tracing goes through the body once for all tiles", "the file itself"),
    Known("layout-loop.py", "", "name 'i_f' is not defined", "the kernel uses a name that it does "
          "not define", "the file itself"),
    Known("mx_kernels.py", "", "nki.jit takes no platform_target", "platform_target of nki.jit has "
          "been an error since NKI 0.3.0", "NKI release notes 2.29"),
    Known("test_nki_isa_dropout.py", "TestNkiIsaExamplesDropout.test_dropout", "True is not false",
          "drops with random probabilities of up to 100, which leaves nothing unless one is below "
          "1", "the file itself"),
    Known("test_nki_isa_tensor_scalar_cumulative.py", "", "Cannot evaluate truth value",
          "branches on the truth of a tensor, which is documented as an error",
          "NKI API errors, err_ambiguous_tensor_truth_value"),
    Known("test_double_row_matmul.py", "", "name 'warnings' is not defined", "the test file does "
          "not import warnings", "nki-samples, test/unit/test_double_row_matmul.py"),
)  # fmt: skip


def text_of_outcome(outcome: Outcome) -> str:
    """One line of the table: status, generation, greatest error, file, kernel and reason."""
    error = "" if outcome.error is None else f"{outcome.error:.1e}"
    text = f"{outcome.status:9} {outcome.generation:8} {error:8} {outcome.file} {outcome.kernel}"
    return f"{text}: {outcome.reason}" if outcome.reason else text


def find_files(root: Path) -> list[Path]:
    """Python files that define kernels or test them."""
    found = []
    for path in sorted(root.rglob("*.py")):
        hidden = any(part.startswith(".") or part == "api" for part in path.relative_to(root).parts)
        if not hidden and "integration" not in path.parts and path.is_file():
            tree = _parsed(path)
            if tree is not None and (kernels_in(tree) or _is_test(path, tree)):
                found.append(path)
    return found


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return None


def kernels_in(tree: ast.Module) -> list[str]:
    """Functions that a decorator makes kernels, and wrappers that launch them on a grid."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            words = {_last_name(each) for each in node.decorator_list}
            if words & set(DECORATORS):
                names.append(node.name)
    return names


def _last_name(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def _is_test(path: Path, tree: ast.Module) -> bool:
    return path.name.startswith("test_") and any(isinstance(n, ast.ClassDef) for n in tree.body)


def generation_of(tree: ast.Module) -> str:
    """Which generation of NKI a file imports; "" for neither."""
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            roots.add(node.module.partition(".")[0])
    return next((GENERATIONS[root] for root in GENERATIONS if root in roots), "")


# --- one file ------------------------------------------------------------------------------------


def run_file(path: Path) -> Iterator[Outcome]:
    """Run every kernel or test of a file in this process, one after the other."""
    tree = _parsed(path)
    assert tree is not None
    generation = generation_of(tree)
    provide_names()
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        run = _run_tests if _is_test(path, tree) else _run_kernels
        yield from run(path, tree, generation)


def provide_names() -> None:
    """Let `import nki` and `import neuronxcc` find glia, unless the drop-in is installed."""
    for name, target in MODULES.items():
        if name not in sys.modules:
            sys.modules[name] = importlib.import_module(target)
    for name in MODULES:
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    sys.modules.setdefault("torch_neuronx", types.ModuleType("torch_neuronx"))
    sys.modules["torch_neuronx"].nki_jit = importlib.import_module("glia.nki.beta1").jit  # type: ignore


MODULES = {
    "nki": "glia.nki",
    "nki.language": "glia.nki.language",
    "nki.isa": "glia.nki.isa",
    "nki.collectives": "glia.nki.collectives",
    "nki.typing": "glia.nki.typing",
    "neuronxcc": "glia.nki.beta1.package",
    "neuronxcc.nki": "glia.nki.beta1",
    "neuronxcc.nki.language": "glia.nki.beta1.language",
    "neuronxcc.nki.language.constants": "glia.nki.beta1.constants",
    "neuronxcc.nki.isa": "glia.nki.beta1.isa",
    "neuronxcc.nki.isa.constants": "glia.nki.beta1.isa",
    "neuronxcc.nki.compiler": "glia.nki.beta1.compiler",
    "neuronxcc.nki.typing": "glia.nki.beta1.typing",
    "neuronxcc.nki.compiler.backends": "glia.nki.beta1.internal",
    "neuronxcc.nki.compiler.backends.neuron": "glia.nki.beta1.internal",
    "neuronxcc.nki.compiler.backends.neuron.dimensions": "glia.nki.beta1.internal",
    "neuronxcc.nki.compiler.backends.neuron.indexing": "glia.nki.beta1.internal",
    "neuronxcc.nki.compiler.backends.neuron.tensor": "glia.nki.beta1.internal",
    "neuronxcc.starfish": "glia.nki.beta1.starfish",
    "neuronxcc.starfish.support": "glia.nki.beta1.starfish",
    "neuronxcc.starfish.support.dtype": "glia.nki.beta1.starfish",
}


def _module(path: Path, tree: ast.Module, *, is_whole: bool) -> types.ModuleType:
    """The file as a module: its definitions, without scripts and frameworks unless it is a test."""
    sys.path.insert(0, str(path.parent))
    package = next((p for p in path.parents if (p / "nki_samples").is_dir()), None)
    root = next((p / "src" for p in path.parents if (p / "src" / "nki_samples").is_dir()), package)
    if root is not None:
        sys.path.insert(0, str(root))
    root = root or path.parent
    inside = path.relative_to(root).with_suffix("").parts if root in path.parents else (path.stem,)
    if not all(part.isidentifier() for part in inside):
        inside = (path.stem.replace("-", "_"),)
    name = ".".join(inside)
    if len(inside) > 1:
        importlib.import_module(name.rpartition(".")[0])
    loader = _Loader(path, ast.Module(tree.body if is_whole else _definitions(tree), []))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


class _Loader(importlib.abc.InspectLoader):
    """Loads what is left of a file."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree

    def get_source(self, fullname: str) -> str:
        """The whole text of the file."""
        return self._path.read_text(encoding="utf-8")

    def get_code(self, fullname: str) -> types.CodeType:
        """The code of the part."""
        return self.source_to_code(self._tree, str(self._path))  # type: ignore[arg-type]


def _definitions(tree: ast.Module) -> list[ast.stmt]:
    """Imports, functions, classes and constants, without what runs kernels or needs frameworks."""
    avoided = {*kernels_in(tree), *FRAMEWORKS, "xm", "xla_model"}
    kept: list[ast.stmt] = []
    for node in tree.body:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        is_constant = isinstance(node, ast.Assign | ast.AnnAssign) and not names & avoided
        if _is_definition(node) or is_constant:
            kept.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            avoided |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign):
            avoided |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return kept


def _is_found(name: str) -> bool:
    """Whether a module can be imported and is no framework, which kernels do without."""
    root = name.partition(".")[0]
    if root in sys.modules:
        return root not in FRAMEWORKS or root == "torch_neuronx"
    return root not in FRAMEWORKS and importlib.util.find_spec(root) is not None


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(_is_found(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or _is_found(node.module or "")
    if isinstance(node, ast.FunctionDef):
        annotations = ast.unparse(node.args) + (ast.unparse(node.returns) if node.returns else "")
        return "torch." not in annotations
    return isinstance(node, ast.ClassDef)


def _run_kernels(path: Path, tree: ast.Module, generation: str) -> Iterator[Outcome]:
    from glia.cli.conformance_recipes import RECIPES

    names = kernels_in(tree)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    names += [name for name in functions if name in RECIPES and name not in names]
    try:
        module = _module(path, tree, is_whole=False)
    except Exception as problem:
        yield from (_failed(path, name, generation, problem) for name in names)
        return
    for name in names:
        yield _run_kernel(path, getattr(module, name), name, generation)


def _run_kernel(path: Path, kernel: Any, name: str, generation: str) -> Outcome:
    from glia.cli.conformance_recipes import RECIPES

    make = RECIPES.get(name)
    if make is None:
        reason = "no inputs are known for it; its callers run it"
        return Outcome(str(path), name, generation, "not run", reason=reason)
    trial = make(np.random.default_rng(0), path.name)
    try:
        grid = trial.grid if hasattr(kernel, "__getitem__") and trial.grid else ()
        found = _simulated(kernel, generation, grid)(*trial.arguments, **trial.named)
    except Exception as problem:
        return _failed(path, name, generation, problem)
    results = found if isinstance(found, tuple | list) else (found,)
    return _compared(path, name, generation, list(results), trial)


def _simulated(kernel: Any, generation: str, grid: tuple[int, ...]) -> Any:
    if generation == "beta 1":
        simulate = importlib.import_module("glia.nki.beta1").simulate_kernel
        if not hasattr(kernel, "function"):
            return kernel  # a wrapper that launches one
        launched = kernel[grid] if grid else kernel
        return lambda *args, **kwargs: simulate(launched, *args, **kwargs)
    simulate = importlib.import_module("glia.nki").simulate
    return simulate(kernel) if hasattr(kernel, "function") else kernel


def _compared(path: Path, name: str, generation: str, found: list[Any], trial: Any) -> Outcome:
    worst = 0.0
    for result, expected in zip(found, trial.expected, strict=False):
        array = np.asarray(result, dtype=np.float64).reshape(expected.shape)
        error = float(np.max(np.abs(array - expected) / (1 + np.abs(expected))))
        worst = max(worst, float("inf") if np.isnan(error) else error)
    is_right = worst <= trial.tolerance and len(found) >= len(trial.expected)
    if is_right:
        return Outcome(str(path), name, generation, "pass", worst)
    text = f"differs from NumPy by more than {trial.tolerance}"
    failed = _judged(path, name, generation, text)
    return replace(failed, error=worst)


def _failed(path: Path, name: str, generation: str, problem: BaseException) -> Outcome:
    """A failure, explained when it is a known one."""
    if isinstance(problem, ModuleNotFoundError):
        reason = f"needs the package {problem.name}"
        return Outcome(str(path), name, generation, "not run", reason=reason)
    return _judged(path, name, generation, f"{type(problem).__name__}: {problem}")


def _judged(path: Path, name: str, generation: str, text: str) -> Outcome:
    """Explained by a known reason, or a failure."""
    for known in KNOWN:
        fits = path.name == known.file and known.kernel in ("", name)
        if fits and known.text in text:
            reason = f"{known.reason} ({known.source})"
            return Outcome(str(path), name, generation, "explained", reason=reason)
    return Outcome(str(path), name, generation, "fail", reason=text.splitlines()[0][:300])


# --- files of unit tests ----------------------------------------------------------------------


class _Watch:
    """np.allclose that notes the greatest difference it saw."""

    def __init__(self) -> None:
        self.worst: float | None = None
        self._allclose = np.allclose

    def __call__(self, a: Any, b: Any, *args: Any, **kwargs: Any) -> bool:
        first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
        with contextlib.suppress(ValueError):
            error = np.abs(first - second) / (1 + np.abs(second))
            self.worst = max(self.worst or 0.0, float(np.nanmax(error, initial=0.0)))
        return bool(self._allclose(a, b, *args, **kwargs))


def _run_tests(path: Path, tree: ast.Module, generation: str) -> Iterator[Outcome]:
    try:
        module = _module(path, tree, is_whole=True)
    except Exception as problem:
        yield _failed(path, path.stem, generation, problem)
        return
    for name, kind in vars(module).items():
        if not inspect.isclass(kind) or kind.__module__ != module.__name__:
            continue
        for method, function in vars(kind).items():
            if method.startswith("test"):
                label = f"{name}.{method}"
                yield from _run_test(path, label, kind, method, function, generation)


def _run_test(
    path: Path, label: str, kind: Any, method: str, function: Any, generation: str
) -> Iterator[Outcome]:
    cases = _cases(function)
    if cases is None:
        reason = "a measurement on a device"
        yield Outcome(str(path), label, generation, "not run", reason=reason)
        return
    for case in cases:
        watch = _Watch()
        instance = kind(method) if issubclass(kind, unittest.TestCase) else kind()
        shown = f"{label}{list(case.values())}" if case else label
        try:
            with mock.patch.object(np, "allclose", watch):
                getattr(instance, method)(**case)
        except Exception as problem:
            expected = _expected_failure(function)
            failed = _failed(path, shown[:120], generation, problem)
            if expected:
                failed = replace(failed, status="explained", reason=expected)
            yield failed
        else:
            yield Outcome(str(path), shown[:120], generation, "pass", watch.worst)


def _expected_failure(function: Any) -> str:
    """Why the vendor expects a test to fail; "" when it should pass."""
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "xfail":
            return f"the test itself is marked as failing ({mark.kwargs.get('reason', 'xfail')})"
    return ""


def _cases(function: Any) -> list[dict[str, Any]] | None:
    """The arguments of each run of a test: those that pytest's marks give; None without device."""
    marks = getattr(function, "pytestmark", [])
    parameters = [mark for mark in marks if mark.name == "parametrize"]
    names = set(inspect.signature(function).parameters) - {"self"}
    if names and not any(mark.name == "simulation" for mark in marks):
        return None
    cases: list[dict[str, Any]] = [{"simulation_only": True} if "simulation_only" in names else {}]
    for mark in parameters:
        keys = [key.strip() for key in mark.args[0].split(",")]
        rows = [row if len(keys) > 1 else [row] for row in mark.args[1]]
        cases = [{**case, **dict(zip(keys, row, strict=True))} for case in cases for row in rows]
    return cases


# --- all files -----------------------------------------------------------------------------------


def run_all(root: Path, only: str = "", seconds: float = SECONDS) -> Iterator[Outcome]:
    """Outcomes of every file under a folder whose path holds `only`, one process after another."""
    for path in find_files(root):
        if only in path.as_posix():
            for outcome in _in_process(path, seconds):
                short = Path(outcome.file).relative_to(root).as_posix()
                yield replace(outcome, file=short)


def _in_process(path: Path, seconds: float) -> Iterator[Outcome]:
    """Outcomes of a file; one that takes too long gives those until then."""
    tree = _parsed(path)
    generation = generation_of(tree) if tree is not None else ""
    command = [sys.executable, "-m", "glia.cli.conformance", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    status, reason = "fail", ""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=seconds, env=environment, check=False
        )
        lines = done.stdout
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines()
            reason = (words or ["ended without a word"])[-1]
    except subprocess.TimeoutExpired as expired:
        lines, status, reason = expired.stdout or b"", "not run", f"stopped after {seconds} seconds"
    yield from (Outcome(**json.loads(line)) for line in lines.splitlines() if line.endswith(b"}"))
    if reason:
        yield Outcome(str(path), path.stem, generation, status, reason=reason)


def main(arguments: list[str]) -> int:
    """Run one file and print each outcome as a line of JSON."""
    lines = sys.stdout
    for outcome in run_file(Path(arguments[0])):
        lines.write(json.dumps(asdict(outcome)) + "\n")
        lines.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
