"""`glia conformance nki`: run the kernels of a clone of the public NKI repositories.

Kernels are found by their decorator, in files and in the code blocks of pages. One with a recipe
runs on its inputs and is compared with NumPy; a file of tests runs its tests, one that can be
started is started. A kernel that only these call is one that passes when they do. Every file runs
in a process of its own, because its code is the user's.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from glia.conformance.load import imported, kernels_in, parsed, require_dropin
from glia.conformance.outcome import Outcome, text_of_outcome
from glia.conformance.pages import BETA1, KERNEL, excerpts
from glia.conformance.torch_xla import provide_xla
from glia.conformance.trials import (
    NO_INPUTS,
    Step,
    environment,
    is_script,
    is_test,
    kernel_steps,
    script_step,
    test_steps,
)

SECONDS = 900  # that one kernel, test or script may take
__all__ = ["find_files", "generation_of", "run_all", "run_file", "text_of_outcome"]
GENERATIONS = {"neuronxcc": "Beta 1", "nki": "current", "torch_neuronx": "Beta 1"}


def find_files(root: Path) -> list[Path]:
    """Python files that define kernels, and tests and scripts that use NKI or those."""
    trees = {}
    for path in _visible(root, "*.py"):
        tree = parsed(path)
        if tree is not None and "api" not in path.relative_to(root).parts:
            trees[path] = tree
    defining = {path for path, tree in trees.items() if kernels_in(tree)}
    return [
        path
        for path, tree in trees.items()
        if path in defining
        or ((is_test(path, tree) or is_script(tree)) and _uses(path, tree, defining))
    ]


def _visible(root: Path, pattern: str) -> Iterator[Path]:
    """Files of a clone; those for whole models on a device, integration tests, are left out."""
    for path in sorted(root.rglob(pattern)):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(p.startswith(".") or p == "integration" for p in parts):
            yield path


def _uses(path: Path, tree: ast.Module, defining: set[Path]) -> bool:
    """Whether a file imports NKI, or one of these files."""
    names = set(imported(tree))
    if {"nki", "neuronxcc"} & {name.partition(".")[0] for name in names}:
        return True
    for name in names:
        inside = Path(*name.split(".")).with_suffix(".py")
        if path.parent / inside in defining:
            return True
        if len(inside.parts) > 1 and any(each.match(str(inside)) for each in defining):
            return True
    return False


def generation_of(tree: ast.Module | None) -> str:
    """Which generation of NKI a file imports; "" for neither."""
    roots = {name.partition(".")[0] for name in imported(tree)} if tree is not None else set()
    return next((GENERATIONS[root] for root in GENERATIONS if root in roots), "")


def run_file(
    path: Path, start: int = 0, begin: Callable[[int, str], None] = lambda number, name: None
) -> Iterator[Outcome]:
    """Run every kernel or test of a file in this process, one after the other, then its script.

    `begin` hears of each what number and name it has; those before `start` are left out.
    """
    with np.errstate(all="ignore"):
        for number, (name, run) in enumerate(_steps(path.resolve())):
            if number >= start:
                begin(number, name)
                outcome = run()
                if outcome is not None:
                    yield outcome


def _steps(path: Path) -> Iterator[Step]:
    tree = parsed(path)
    assert tree is not None
    generation = generation_of(tree)
    require_dropin()
    provide_xla()
    if is_test(path, tree):
        yield from test_steps(path, tree, generation)
    yield from kernel_steps(path, tree, generation)
    if is_test(path, tree):
        return
    if is_script(tree):
        yield script_step(path, tree, generation)


def run_all(root: Path, only: str = "", seconds: float = SECONDS) -> Iterator[Outcome]:
    """Outcomes of every file and page of a clone whose path holds `only`, one after another.

    Kernels without inputs of their own come last, with the test or script that ran them.
    """
    root = root.resolve()
    waiting: list[tuple[str, Outcome]] = []
    callers: dict[str, dict[str, Outcome]] = {"pass": {}, "explained": {}}
    for outcome in _outcomes(root, only, seconds):
        short = replace(outcome, file=Path(outcome.file).relative_to(root).as_posix())
        if short.status in callers:
            of_status = callers[short.status]
            of_status |= {each: short for each in outcome.reached if each not in of_status}
        if short.reason == NO_INPUTS:
            waiting.append((f"{outcome.file}:{outcome.kernel}", short))
        else:
            yield short
    for place, outcome in waiting:
        yield _through(outcome, callers["pass"].get(place) or callers["explained"].get(place))


def _outcomes(root: Path, only: str, seconds: float) -> Iterator[Outcome]:
    for path in _visible(root, "*.py"):
        if only in path.relative_to(root).as_posix():
            yield from _no_python(path)
    files = find_files(root)
    for path in files:
        if only in path.relative_to(root).as_posix():
            yield from _in_processes(path, seconds)
    is_current = any(generation_of(parsed(path)) == "current" for path in files)
    package = "nki" if is_current else BETA1
    for page in _visible(root, "*.rst"):
        if only in page.relative_to(root).as_posix():
            yield from _of_page(page, package, seconds)


def _of_page(page: Path, package: str, seconds: float) -> Iterator[Outcome]:
    """Outcomes of a page's blocks, each in a file with the place of the block for its name."""
    with tempfile.TemporaryDirectory() as folder:
        for excerpt in excerpts(page, package, Path(folder).resolve()):
            place = f"{page}:{excerpt.line}"
            found = excerpt.outcomes
            if excerpt.path is not None:
                found = _in_processes(excerpt.path, seconds)
            for outcome in found:
                reached = (each.replace(str(excerpt.path), place) for each in outcome.reached)
                yield replace(outcome, file=place, reached=tuple(reached))


def _no_python(path: Path) -> Iterator[Outcome]:
    """Kernels of a file that is no Python."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        ast.parse(text)
    except SyntaxError as problem:
        what = f"the file is no Python: {problem.msg}, line {problem.lineno} (the file itself)"
        for name in KERNEL.findall(text):
            yield Outcome(str(path), name, "", "explained", reason=what)
    except ValueError:
        return  # no text


def _through(outcome: Outcome, caller: Outcome | None) -> Outcome:
    """What came of a kernel that only runs inside something else."""
    if caller is None:
        return outcome
    reason = f"run by {caller.file} {caller.kernel}"
    if caller.status != "pass":
        reason += f": {caller.reason}"
    return replace(outcome, status=caller.status, error=caller.error, reason=reason)


def _in_processes(path: Path, seconds: float) -> Iterator[Outcome]:
    """Outcomes of a file; what ends its process or takes too long is one, and the rest follows."""
    blank = Outcome(str(path), path.stem, generation_of(parsed(path)), "fail")
    start: int | None = 0
    while start is not None:
        start = yield from _in_process(blank, start, seconds)


def _in_process(blank: Outcome, start: int, seconds: float) -> Generator[Outcome, None, int | None]:
    """Outcomes from the one of this number on; the next that is left to run when it breaks off."""
    command = [sys.executable, "-m", "glia.conformance.run", blank.file, str(start)]
    following = None
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment()
        )
        try:
            for line in _lines(process, seconds):
                fields = json.loads(line)
                if "begins" in fields:
                    number, name = fields["begins"]
                    blank, following = replace(blank, kernel=name), number + 1
                else:
                    yield Outcome(**{**fields, "reached": tuple(fields["reached"])})
            if process.wait():
                errors.seek(0)
                words = errors.read().decode(errors="replace").strip().splitlines()
                reason = (words or [f"ended with {process.returncode} and without a word"])[-1]
                yield replace(blank, reason=reason)
                return following
        except queue.Empty:
            yield replace(blank, status="not run", reason=f"stopped after {seconds:g} seconds")
            return following
        finally:
            process.kill()
            process.wait()
    return None


def _lines(process: subprocess.Popen[bytes], seconds: float) -> Iterator[bytes]:
    """Lines as the process writes them; queue.Empty when the next takes too long."""
    assert process.stdout is not None
    stream = process.stdout
    found: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for line in stream:
            found.put(line)
        found.put(b"")

    threading.Thread(target=read, daemon=True).start()
    while line := found.get(timeout=seconds):
        yield line


def main(arguments: list[str]) -> int:
    """Run one file from the kernel or test of a number on, and print nothing that the file prints.

    What comes out is JSON, a line for each that begins and a line for each outcome.
    """
    path, start = arguments
    with os.fdopen(os.dup(1), "w") as lines, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)

        def tell(fields: dict[str, Any]) -> None:
            lines.write(json.dumps(fields) + "\n")
            lines.flush()

        def begin(number: int, name: str) -> None:
            tell({"begins": [number, name]})

        for outcome in run_file(Path(path), int(start), begin):
            tell(asdict(outcome))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
