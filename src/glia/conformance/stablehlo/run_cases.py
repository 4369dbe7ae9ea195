"""Run the cases of a clone of openxla/stablehlo: compile, simulate, compare.

Cases run in processes that each take a few; one that crashes or hangs costs its own case, as a new
process continues with the next.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from glia.base.dtype import from_numpy
from glia.base.errors import CompileError
from glia.compiler import compile_graph
from glia.conformance.errors import NoChecks
from glia.conformance.run import process_lines
from glia.conformance.stablehlo.cases import Case, find_cases, read_case
from glia.conformance.stablehlo.compare import describe_mismatch
from glia.conformance.stablehlo.outcome import (
    ERROR,
    MISMATCH,
    OUTSIDE,
    PASS,
    REFUSED,
    CaseOutcome,
)
from glia.conformance.stablehlo.program import UNCHECKED, Program, read_program
from glia.conformance.stablehlo.term_magnitudes import term_magnitudes
from glia.conformance.trials import environment
from glia.frontend.stablehlo import import_stablehlo, mlir_bindings
from glia.graph.ir import Graph
from glia.options import CompileOptions
from glia.runtime.model import load

CASES_PER_PROCESS = 50
SECONDS = 120  # time limit of one case on one target
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Settings:
    """What all cases of a run have in common."""

    root: Path
    targets: tuple[str, ...]
    optlevel: int = 2
    seconds: float = SECONDS


def run_all(settings: Settings, only: str = "", jobs: int = 1) -> Iterator[CaseOutcome]:
    """Outcomes of the cases whose names hold `only` on every target, in order of completion.

    Raises FrameworkMissing without jaxlib, and NoChecks when there is no such case.
    """
    mlir_bindings("glia conformance stablehlo")
    cases = list(find_cases(settings.root, only))
    if not cases:
        raise NoChecks(what=settings.root)
    for case in cases:
        if case.scope:
            for target in settings.targets:
                yield CaseOutcome(case.name, case.operation, "", target, OUTSIDE, reason=case.scope)
    taken = [case for case in cases if not case.scope]
    chunks = [taken[i : i + CASES_PER_PROCESS] for i in range(0, len(taken), CASES_PER_PROCESS)]
    yield from _outcomes_of_chunks(chunks, settings, jobs)


def _outcomes_of_chunks(
    chunks: Sequence[Sequence[Case]], settings: Settings, jobs: int
) -> Iterator[CaseOutcome]:
    found: queue.Queue[CaseOutcome | None] = queue.Queue()

    def run(chunk: Sequence[Case]) -> None:
        try:
            for outcome in _outcomes_of_chunk(chunk, settings):
                found.put(outcome)
        finally:
            found.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, chunk) for chunk in chunks]
        left = len(chunks)
        while left:
            outcome = found.get()
            if outcome is None:
                left -= 1
            else:
                yield outcome
        for future in futures:
            future.result()


def _outcomes_of_chunk(cases: Sequence[Case], settings: Settings) -> Iterator[CaseOutcome]:
    """Outcomes of some cases; after a crash or timeout a new process takes those that are left."""
    trials = [(case, target) for case in cases for target in settings.targets]
    done = 0
    while done < len(trials):
        problem = ""
        for line in _lines_of_process(trials[done:], settings):
            if isinstance(line, str):
                problem = line
                break
            yield line
            done += 1
        if done < len(trials):
            case, target = trials[done]
            yield CaseOutcome(case.name, case.operation, "", target, ERROR, reason=problem)
            done += 1


def _lines_of_process(
    trials: Sequence[tuple[Case, str]], settings: Settings
) -> Iterator[CaseOutcome | str]:
    """Outcomes of a process, and the text of what ended it early if anything did."""
    names = json.dumps([(case.name, target) for case, target in trials])
    command = [sys.executable, "-m", "glia.conformance.stablehlo.run_cases"]
    command += [str(settings.root), str(settings.optlevel)]
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as wanted:
        wanted.write(names.encode())
        wanted.seek(0)
        process = subprocess.Popen(
            command, stdin=wanted, stdout=subprocess.PIPE, stderr=errors, env=environment()
        )
        try:
            for line in process_lines(process, settings.seconds):
                yield CaseOutcome(**json.loads(line))
            if process.wait():
                errors.seek(0)
                message = errors.read().decode(errors="replace").strip().splitlines()
                yield (message or [f"exited with status {process.returncode}"])[-1]
        except queue.Empty:
            yield f"stopped after {settings.seconds:g} seconds"
        finally:
            process.kill()
            process.wait()


def run_case(case: Case, target: str, optlevel: int) -> CaseOutcome:
    """The outcome of a case on a target, in this process."""
    started = time.perf_counter()
    blank = CaseOutcome(case.name, case.operation, "", target, PASS)
    try:
        program = read_program(case.text)
        blank = replace(blank, dtype=_dtype(program))
        mismatch = _mismatch(program, target, optlevel)
        outcome = replace(blank, status=MISMATCH if mismatch else PASS, reason=mismatch)
    except CompileError as error:
        outcome = replace(blank, status=REFUSED, code=error.code, reason=_first_line(error))
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        outcome = replace(blank, status=ERROR, reason=reason)
    return replace(outcome, seconds=round(time.perf_counter() - started, 3))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:_LONGEST_REASON]


def _dtype(program: Program) -> str:
    """The dtype of the first value checked, or of the first argument where that is a truth."""
    known = [each.expected for each in program.checks if each.expected is not None]
    names = [str(from_numpy(array.dtype)) for array in (*known[:1], *program.inputs)]
    return next((name for name in names if name != "pred"), "pred")


def _mismatch(program: Program, target: str, optlevel: int) -> str:
    """The first difference between what the program computes and what it must, or ""."""
    options = CompileOptions(target=target, optlevel=optlevel, auto_cast="none")
    graph = import_stablehlo(program.module)
    model = load(compile_graph(graph, options))
    values = [value for found in model.run_ranks(_by_rank(program)) for value in found]
    place = 0
    for check in program.checks:
        if check.kind == UNCHECKED:
            place += 1
            continue
        count = 2 if check.expected is None else 1
        expected = values[place + 1] if check.expected is None else check.expected
        terms = partial(_terms, graph, program, place)
        if text := describe_mismatch(check, values[place], expected, terms):
            return text
        place += count
    return ""


def _by_rank(program: Program) -> list[tuple[np.ndarray, ...]]:
    """The inputs of each rank."""
    count = len(program.inputs) // program.ranks
    return [program.inputs[rank * count :][:count] for rank in range(program.ranks)]


def _terms(graph: Graph, program: Program, place: int) -> np.ndarray:
    found: np.ndarray = term_magnitudes(graph, program.inputs)[place]
    return found


def main(arguments: list[str]) -> int:
    """Run the (case, target) pairs that stdin lists; prints an outcome as JSON for each."""
    root, optlevel = Path(arguments[0]), int(arguments[1])
    with os.fdopen(os.dup(1), "w") as lines, np.errstate(all="ignore"):
        os.dup2(2, 1)
        for name, target in json.load(sys.stdin):
            outcome = run_case(read_case(root, name), target, optlevel)
            lines.write(json.dumps(asdict(outcome)) + "\n")
            lines.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
