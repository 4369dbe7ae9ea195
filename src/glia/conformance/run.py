"""Run the kernels, tests and scripts of a clone of a public NKI repository.

Kernels are found by their decorator, in files and in the code blocks of pages. A kernel with a
recipe runs on its inputs and is compared with NumPy; test files run their tests, scripts run as
`__main__`. A kernel without a recipe has the outcome of a test or script that calls it. Every
file runs in a separate process, because its code is not glia's.
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
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from glia.conformance.load import decorated_kernels, imported_modules, parse_file, require_dropin
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

SECONDS = 900  # time limit of one kernel, test or script
LOOK_SECONDS = 0.5  # between looks at what a process does
__all__ = ["find_files", "generation_of", "run_all", "run_file", "text_of_outcome"]
GENERATIONS = {"neuronxcc": "Beta 1", "nki": "current", "torch_neuronx": "Beta 1"}


def find_files(root: Path) -> list[Path]:
    """Python files that define kernels, and tests and scripts that use NKI or those."""
    trees = {}
    for path in _visible(root, "*.py"):
        tree = parse_file(path)
        if tree is not None and "api" not in path.relative_to(root).parts:
            trees[path] = tree
    defining = {path for path, tree in trees.items() if decorated_kernels(tree)}
    return [
        path
        for path, tree in trees.items()
        if path in defining
        or ((is_test(path, tree) or is_script(tree)) and _imports_nki(path, tree, defining))
    ]


def _visible(root: Path, pattern: str) -> Iterator[Path]:
    """Files of a clone, without hidden ones and integration tests, which need a device."""
    for path in sorted(root.rglob(pattern)):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(p.startswith(".") or p == "integration" for p in parts):
            yield path


def _imports_nki(path: Path, tree: ast.Module, defining: set[Path]) -> bool:
    """Whether a file imports NKI, or a file in `defining`."""
    names = set(imported_modules(tree))
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
    """The NKI generation that a file imports; "" for none."""
    roots = (
        {name.partition(".")[0] for name in imported_modules(tree)} if tree is not None else set()
    )
    return next((GENERATIONS[root] for root in GENERATIONS if root in roots), "")


def run_file(
    path: Path, start: int = 0, begin: Callable[[int, str], None] = lambda number, name: None
) -> Iterator[Outcome]:
    """Run every kernel or test of a file in this process, one after the other, then its script.

    `begin` is called with number and name of each before it runs; those before `start` are skipped.
    """
    with np.errstate(all="ignore"):
        for number, (name, run) in enumerate(_steps(path.resolve())):
            if number >= start:
                begin(number, name)
                outcome = run()
                if outcome is not None:
                    yield outcome


def _steps(path: Path) -> Iterator[Step]:
    tree = parse_file(path)
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

    Kernels without a recipe come last, with the outcome of the test or script that ran them.
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
        yield _indirect_outcome(
            outcome, callers["pass"].get(place) or callers["explained"].get(place)
        )


def _outcomes(root: Path, only: str, seconds: float) -> Iterator[Outcome]:
    for path in _visible(root, "*.py"):
        if only in path.relative_to(root).as_posix():
            yield from _syntax_error_outcomes(path)
    files = find_files(root)
    for path in files:
        if only in path.relative_to(root).as_posix():
            yield from _file_outcomes(path, seconds)
    is_current = any(generation_of(parse_file(path)) == "current" for path in files)
    package = "nki" if is_current else BETA1
    for page in _visible(root, "*.rst"):
        if only in page.relative_to(root).as_posix():
            yield from _page_outcomes(page, package, seconds)


def _page_outcomes(page: Path, package: str, seconds: float) -> Iterator[Outcome]:
    """Outcomes of a page's code blocks; `file` is the page and the line of the block."""
    with tempfile.TemporaryDirectory() as folder:
        for excerpt in excerpts(page, package, Path(folder).resolve()):
            place = f"{page}:{excerpt.line}"
            outcomes: Iterable[Outcome] = excerpt.outcomes
            if excerpt.path is not None:
                outcomes = _file_outcomes(excerpt.path, seconds)
            for outcome in outcomes:
                reached = (each.replace(str(excerpt.path), place) for each in outcome.reached)
                yield replace(outcome, file=place, reached=tuple(reached))


def _syntax_error_outcomes(path: Path) -> Iterator[Outcome]:
    """Outcomes of the kernels of a file with a syntax error."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        ast.parse(text)
    except SyntaxError as problem:
        what = (
            f"the file is not valid Python: {problem.msg}, line {problem.lineno} (the file itself)"
        )
        for name in KERNEL.findall(text):
            yield Outcome(str(path), name, "", "explained", reason=what)
    except ValueError:
        return  # not text


def _indirect_outcome(outcome: Outcome, caller: Outcome | None) -> Outcome:
    """The outcome of a kernel without a recipe: that of its caller, if any."""
    if caller is None:
        return outcome
    reason = f"run by {caller.file} {caller.kernel}"
    if caller.status != "pass":
        reason += f": {caller.reason}"
    return replace(outcome, status=caller.status, error=caller.error, reason=reason)


def _file_outcomes(path: Path, seconds: float) -> Iterator[Outcome]:
    """Outcomes of a file; after a crash or timeout a new process continues with the next step."""
    blank = Outcome(str(path), path.stem, generation_of(parse_file(path)), "fail")
    start: int | None = 0
    while start is not None:
        start = yield from _run_process(blank, start, seconds)


def _run_process(
    blank: Outcome, start: int, seconds: float
) -> Generator[Outcome, None, int | None]:
    """Outcomes from step `start` on; returns the step to continue with after a crash, or None."""
    command = [sys.executable, "-m", "glia.conformance.run", blank.file, str(start)]
    following = None
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment()
        )
        try:
            for line in process_lines(process, seconds):
                fields = json.loads(line)
                if "begins" in fields:
                    number, name = fields["begins"]
                    blank, following = replace(blank, kernel=name), number + 1
                else:
                    yield Outcome(**{**fields, "reached": tuple(fields["reached"])})
            if process.wait():
                errors.seek(0)
                messages = errors.read().decode(errors="replace").strip().splitlines()
                reason = (
                    messages or [f"exited with status {process.returncode} without a message"]
                )[-1]
                yield replace(blank, reason=reason)
                return following
        except queue.Empty:
            yield replace(blank, status="not run", reason=f"stopped after {seconds:g} seconds")
            return following
        finally:
            process.kill()
            process.wait()
    return None


def process_lines(process: subprocess.Popen[bytes], seconds: float) -> Iterator[bytes]:
    """Lines of a process's stdout; queue.Empty when the next one exceeds the time limit.

    While the process computes, only its processor time counts: what runs beside it fails nothing.
    """
    assert process.stdout is not None
    stream = process.stdout
    found: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        for line in stream:
            found.put(line)
        found.put(b"")

    threading.Thread(target=read, daemon=True).start()
    while line := _next_line(found, process.pid, seconds):
        yield line


def _next_line(found: queue.Queue[bytes], pid: int, seconds: float) -> bytes:
    taken, (_, before), looked = 0.0, _activity(pid), time.monotonic()
    while True:
        try:
            return found.get(timeout=min(seconds, LOOK_SECONDS))
        except queue.Empty:
            (computes, used), now = _activity(pid), time.monotonic()
            taken += used - before if computes else now - looked
            before, looked = used, now
            if taken >= seconds:
                raise


def _activity(pid: int) -> tuple[bool, float]:
    """Whether a process computes, or would, and its processor time; not where nothing says it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] == "R", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return False, 0.0


def main(arguments: list[str]) -> int:
    """Run one file from a step number on; the file's own output is discarded.

    Prints JSON lines: one when a step begins, one for each outcome.
    """
    path, start = arguments
    with os.fdopen(os.dup(1), "w") as lines, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)

        def write_line(fields: dict[str, Any]) -> None:
            lines.write(json.dumps(fields) + "\n")
            lines.flush()

        def begin(number: int, name: str) -> None:
            write_line({"begins": [number, name]})

        for outcome in run_file(Path(path), int(start), begin):
            write_line(asdict(outcome))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
