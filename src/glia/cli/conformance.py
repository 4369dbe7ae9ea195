"""`glia conformance nki`: run the kernels of a clone of the public NKI repositories.

Kernels are found by their decorator. One with a recipe runs on its inputs and is compared with
NumPy; a file of tests runs its tests, one that can be started is started. A kernel that only these
call is one that passes when they do. Every file runs in a process of its own, because its code is
the user's.
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
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from glia.cli.conformance_load import imported, kernels_in, parsed, provide_names
from glia.cli.conformance_outcome import Outcome, text_of_outcome
from glia.cli.conformance_trials import (
    NO_INPUTS,
    environment,
    is_script,
    is_test,
    run_kernels,
    run_script,
    run_tests,
)
from glia.cli.conformance_xla import provide_xla

SECONDS = 900  # that one kernel or test may take
__all__ = ["find_files", "generation_of", "run_all", "run_file", "text_of_outcome"]
GENERATIONS = {"neuronxcc": "beta 1", "nki": "current", "torch_neuronx": "beta 1"}


def find_files(root: Path) -> list[Path]:
    """Python files that define kernels, and tests and scripts that use NKI or those."""
    trees = {}
    for path in sorted(root.rglob("*.py")):
        hidden = any(part.startswith(".") or part == "api" for part in path.relative_to(root).parts)
        tree = None if hidden or "integration" in path.parts or not path.is_file() else parsed(path)
        if tree is not None:
            trees[path] = tree
    defining = {path for path, tree in trees.items() if kernels_in(tree)}
    return [
        path
        for path, tree in trees.items()
        if path in defining
        or ((is_test(path, tree) or is_script(tree)) and _uses(path, tree, defining))
    ]


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


def generation_of(tree: ast.Module) -> str:
    """Which generation of NKI a file imports; "" for neither."""
    roots = {name.partition(".")[0] for name in imported(tree)}
    return next((GENERATIONS[root] for root in GENERATIONS if root in roots), "")


def run_file(path: Path) -> Iterator[Outcome]:
    """Run every kernel or test of a file in this process, one after the other, then its script."""
    path = path.resolve()
    tree = parsed(path)
    assert tree is not None
    generation = generation_of(tree)
    provide_names()
    provide_xla()
    with np.errstate(all="ignore"):
        if is_test(path, tree):
            yield from run_tests(path, tree, generation)
            return
        yield from run_kernels(path, tree, generation)
        if is_script(tree):
            yield from run_script(path, tree, generation)


def run_all(root: Path, only: str = "", seconds: float = SECONDS) -> Iterator[Outcome]:
    """Outcomes of every file under a folder whose path holds `only`, one process after another.

    Kernels without inputs of their own come last, with the test or script that ran them.
    """
    root = root.resolve()
    waiting, callers = [], {}
    for path in find_files(root):
        if only not in path.relative_to(root).as_posix():
            continue
        for outcome in _in_process(path, seconds):
            short = replace(outcome, file=Path(outcome.file).relative_to(root).as_posix())
            if short.status == "pass":
                callers |= {each: short for each in outcome.reached if each not in callers}
            if short.reason == NO_INPUTS:
                waiting.append((f"{outcome.file}:{outcome.kernel}", short))
            else:
                yield short
    for place, outcome in waiting:
        yield _through(outcome, callers.get(place))


def _through(outcome: Outcome, caller: Outcome | None) -> Outcome:
    """What came of a kernel that only runs inside something else."""
    if caller is None:
        return outcome
    reason = f"run by {caller.file} {caller.kernel}"
    return replace(outcome, status="pass", error=caller.error, reason=reason)


def _in_process(path: Path, seconds: float) -> Iterator[Outcome]:
    """Outcomes of a file; one that says nothing for so many seconds gives those until then."""
    tree = parsed(path)
    generation = generation_of(tree) if tree is not None else ""
    command = [sys.executable, "-m", "glia.cli.conformance", str(path)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment()
        )
        status, reason = "fail", ""
        try:
            yield from (_read(line) for line in _lines(process, seconds))
            if process.wait():
                errors.seek(0)
                words = errors.read().decode(errors="replace").strip().splitlines()
                reason = (words or [f"ended with {process.returncode} and without a word"])[-1]
        except queue.Empty:
            status, reason = "not run", f"stopped after {seconds:g} seconds"
        finally:
            process.kill()
            process.wait()
    if reason:
        yield Outcome(str(path), path.stem, generation, status, reason=reason)


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


def _read(line: bytes) -> Outcome:
    fields = json.loads(line)
    return Outcome(**{**fields, "reached": tuple(fields["reached"])})


def main(arguments: list[str]) -> int:
    """Run one file; print each outcome as a line of JSON, and nothing that the file prints."""
    with os.fdopen(os.dup(1), "w") as lines, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        for outcome in run_file(Path(arguments[0])):
            lines.write(json.dumps(asdict(outcome)) + "\n")
            lines.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
