"""Runs passes of the pipeline in order, calls observers, and goes back where a pass fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glia.base.errors import CompileError, Misfit
from glia.options import CompileOptions
from glia.pipeline import PIPELINE, Pass, resolve

if TYPE_CHECKING:
    from glia.graph.ir import Graph
    from glia.tile import ir as tile

IMPORT = "import"  # the name of the step before the first pass

_RECOVERY_POINTS = {recovery.to for each in PIPELINE for recovery in each.recoveries}

_PRINTERS = {
    "graph": "glia.graph.text:print_graph",
    "tile": "glia.tile.text:print_program",
    "machine": "glia.machine.text:print_program",
}

_VERIFIERS = {
    "graph": "glia.graph.legal:verify",
    "tile": "glia.tile.legal:verify",
    "machine": "glia.machine.legal:verify",
}


@dataclass(frozen=True)
class PassResult:
    """What an observer is given after a pass: the IR, the pass's position and its duration."""

    name: str
    level: str
    ir: Any
    seconds: float
    index: int
    total: int
    core: int | None = None  # of a model that is divided among cores: of which it is the program


@dataclass(frozen=True)
class PassStart:
    """A pass that begins: its name and its position."""

    name: str
    index: int
    total: int

    def __str__(self) -> str:
        return f"[{self.index}/{self.total}] {self.name}"


Observer = Callable[[PassResult], None]
Starting = Callable[[PassStart], None]


def run_pipeline(
    graph: Graph | tile.Program,
    options: CompileOptions,
    observer: Observer | None = None,
    stop_after: str = "",
    start_after: str = "",
    starting: Starting | None = None,
    checkpoints: dict[str, Checkpoint] | None = None,
) -> Any:
    """The result of every pass in order, or of those up to and including `stop_after`.

    With `start_after`, `graph` is what the passes up to and including that one have made, and
    `checkpoints`, by pass, are where a later pass that fails may go back to; those of this run are
    entered. `observer` is called when a pass has ended, `starting` when one begins.
    """
    ir: Any = graph
    total = len(PIPELINE)
    checkpoints = {} if checkpoints is None else checkpoints
    index = 0
    if start_after:
        index = 1 + [each.name for each in PIPELINE].index(start_after)
    elif observer:
        observer(PassResult(IMPORT, "graph", ir, 0.0, 0, total))
    while index < total and stop_after != IMPORT:
        each = PIPELINE[index]
        index += 1
        if starting:
            starting(PassStart(each.name, index, total))
        started = time.perf_counter()
        try:
            ir = _run_pass(each, ir, options)
        except (CompileError, Misfit) as error:
            easier = _recover(each, options, error, checkpoints)
            if easier is None:
                raise
            index, ir = easier.index, easier.ir
            continue
        if each.name in _RECOVERY_POINTS:
            checkpoints[each.name] = Checkpoint(index, ir)
        if observer:
            observer(
                PassResult(each.name, each.makes, ir, time.perf_counter() - started, index, total)
            )
        if stop_after == each.name:
            break
    return ir


@dataclass(frozen=True)
class Checkpoint:
    """The IR after a pass, the position of the next, and how often it was made easier."""

    index: int
    ir: Any
    attempts: int = 0


def _recover(
    failed: Pass, options: CompileOptions, error: Exception, checkpoints: dict[str, Checkpoint]
) -> Checkpoint | None:
    """Where to continue after an error, entered in `checkpoints`; None when nothing is easier."""
    for recovery in failed.recoveries:
        point = checkpoints[recovery.to]
        attempt = point.attempts + 1
        easier = resolve(recovery.function)(point.ir, options, error, attempt)
        if easier is not None:
            checkpoints[recovery.to] = Checkpoint(point.index, easier, attempt)
            return checkpoints[recovery.to]
    return None


def _run_pass(each: Pass, ir: Any, options: CompileOptions) -> Any:
    try:
        result = each(ir, options)
        is_new = result is not ir or each is PIPELINE[0]
        if options.verify and is_new:
            verify(each.makes, result)
        return result
    except CompileError:
        raise
    except Exception as error:
        error.add_note(f"in pass {each.name}")
        raise


def verify(level: str, ir: Any) -> None:
    """InternalError unless a program is legal at its level: graph, tile or machine."""
    resolve(_VERIFIERS[level])(ir)


def text_of(level: str, ir: Any) -> str:
    """The text form of a program at a level: graph, tile or machine."""
    write = resolve(_PRINTERS[level])
    programs = ir if isinstance(ir, tuple) else (ir,)
    return "\n".join(write(program) for program in programs)
