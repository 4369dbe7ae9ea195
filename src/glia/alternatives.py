"""Alternatives of one compilation, of which the fastest is kept.

`--auto-cast` allows less precision for speed. Where the program with the casts would be slower, the
next one on the ladder is taken: casts of contractions only, then none. So it is with `--model-type`
and programs for generic models, with `--distribution-strategy` and programs without one, with the
cores of a logical core and one of them, and with `--optlevel` and lower levels. What is compared is
the simulated time of complete programs, so that none of these options ever makes a model slower.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from glia.arch import get_target
from glia.base.child_process import ChildProcess, can_fork
from glia.base.errors import CompileError, InternalError, Misfit
from glia.graph.ir import Graph
from glia.graph.ops import Collective
from glia.graph.rules.regions import all_nodes
from glia.isa.instructions.collectives import Collective as CollectiveInstr
from glia.isa.instructions.collectives import CollectivePermute
from glia.isa.kit import Instr
from glia.machine.ir import Block, Branch, Loop, Program, While, blocks
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.timing.cores import simulate_cores
from glia.timing.simulate import simulate_timing

log = logging.getLogger(__name__)
_GLIA = logging.getLogger("glia")

SMALLEST_PARALLEL = 300
"""Nodes of a graph below which another process takes longer to start than to do its work."""

LEAST_SECONDS = 0.5
"""Of the passes that all levels share, from which on lower levels are compiled in processes."""

LOOP_TRIPS = 4
"""How often a loop is taken to run whose exchanges a strategy may move, if that is not known."""

MOST_COUNTED = 256  # executions of a loop in loops; more of them run once

LEAST_PATIENCE_SECONDS = 60
PATIENCE = 10  # times the time of this process's own work, that another process may take


@dataclass(frozen=True)
class Compared:
    """An alternative and its time, which is None where it does not compile."""

    precision: str
    model_type: str
    distribution_strategy: str
    latency_us: float | None


@dataclass(frozen=True)
class ComparedCores:
    """A number of physical cores that share a model and its time; None where it has none."""

    cores: int
    latency_us: float | None


def precision_of(options: CompileOptions) -> str:
    """The precision of a compilation in the words of its options: none, matmult/bf16 ..."""
    if options.auto_cast == "none":
        return "none"
    return f"{options.auto_cast}/{options.auto_cast_type}"


def precision_ladder(options: CompileOptions) -> tuple[CompileOptions, ...]:
    """The options as they are, and those with fewer casts, in that order."""
    steps = {"all": ("all", "matmult", "none"), "matmult": ("matmult", "none"), "none": ("none",)}
    return tuple(dataclasses.replace(options, auto_cast=step) for step in steps[options.auto_cast])


def with_generic(ladder: Sequence[CompileOptions]) -> tuple[CompileOptions, ...]:
    """A ladder, and the same for generic models where it is for a family of models."""
    generic = (dataclasses.replace(options, model_type="generic") for options in ladder)
    return tuple(dict.fromkeys((*ladder, *generic)))


def without_strategy(ladder: Sequence[CompileOptions], graph: Graph) -> tuple[CompileOptions, ...]:
    """A ladder, and the same without a strategy for exchanges where it has one.

    A graph without exchanges needs no strategy.
    """
    plain = (dataclasses.replace(options, distribution_strategy="") for options in ladder)
    is_needed = any(isinstance(node, Collective) for node in all_nodes(graph))
    return tuple(dict.fromkeys((*ladder, *plain) if is_needed else plain))


def latency_us(programs: Sequence[Program], target: str) -> float | None:
    """The simulated time of the programs of a model's cores; None where it has none."""
    arch = get_target(target).arch
    try:
        if len(programs) == 1:
            trips = _assumed_trips(programs[0])
            return simulate_timing(programs[0], arch, trace=False, trips=trips).latency_ns / 1000
        cores = simulate_cores(programs, arch, trace=False)
    except CompileError:
        return None
    return max(core.latency_ns for core in cores) / 1000


def _assumed_trips(program: Program) -> dict[int, list[int]]:
    """Several trips of each loop of a program with exchanges, which a strategy moves out of loops,
    where it is not known how many there are.

    They count as outcomes of run-time control flow do, in program order.
    """
    if not any(
        isinstance(each, CollectiveInstr | CollectivePermute) for each in program.instructions()
    ):
        return {}
    flow = list(_control_flow(program.body, 1))
    return {
        number: [LOOP_TRIPS if isinstance(each, While) else 0] * times
        for number, (each, times) in enumerate(flow)
        if not (isinstance(each, While) and each.iterations)
    }


def _control_flow(body: Block, times: int) -> Iterator[tuple[While | Branch, int]]:
    """The run-time control flow of a block, and how often each runs, up to MOST_COUNTED."""
    for statement in body:
        inner = times
        if isinstance(statement, While | Branch):
            yield statement, times
            trips = statement.iterations or LOOP_TRIPS if isinstance(statement, While) else 1
            inner = min(MOST_COUNTED, times * trips)
        elif isinstance(statement, Loop):
            inner = min(MOST_COUNTED, times * statement.trips)
        for block in () if isinstance(statement, Instr) else blocks(statement):
            yield from _control_flow(block, inner)


@dataclass(frozen=True)
class ComparedLevel:
    """A level of optimisation and its time; None where it does not compile, or has no time."""

    optlevel: int
    latency_us: float | None


def fastest_level(
    options: CompileOptions,
    build: Callable[[CompileOptions], tuple[Program, ...]],
    processes: int = 1,
) -> tuple[tuple[Program, ...], int, tuple[ComparedLevel, ...]]:
    """The fastest programs of the level asked for and of those below, their level, all times.

    The first is `options` itself and may raise. Among equal times the highest level is kept; where
    what was asked for has no time, it is. With several `processes` lower levels are timed beside
    it; only one that is faster is built in this process too.
    """
    started = time.monotonic()
    lower = [
        dataclasses.replace(options, optlevel=level) for level in range(options.optlevel - 1, 0, -1)
    ]
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(ChildProcess(functools.partial(_time_level, build, level)))
            for level in (lower[: processes - 1] if can_fork() else ())
        ]
        programs = build(options)
        best, chosen = latency_us(programs, options.target), options.optlevel
        patience = _patience(started)
        compared = [ComparedLevel(chosen, rounded(best))]
        for level, child in itertools.zip_longest(lower, children):
            if best is None:
                break
            us = child.number(patience) if child else None
            if us is not None and us >= best:
                compared.append(ComparedLevel(level.optlevel, rounded(us)))
                continue
            with _silence():
                try:
                    tried = build(level)
                except (CompileError, Misfit):
                    compared.append(ComparedLevel(level.optlevel, None))
                    continue
            us = latency_us(tried, options.target)
            compared.append(ComparedLevel(level.optlevel, rounded(us)))
            if us is not None and us < best:
                programs, best, chosen = tried, us, level.optlevel
    return programs, chosen, tuple(compared)


def _time_level(
    build: Callable[[CompileOptions], tuple[Program, ...]], options: CompileOptions
) -> tuple[float, Callable[[], bytes]]:
    """The work of a process that times a level: its programs stay there."""
    logging.disable(logging.CRITICAL)
    us = latency_us(build(options), options.target)
    if us is None:
        raise InternalError(f"no time of level {options.optlevel}")
    return us, bytes


def _patience(started: float) -> float:
    """Seconds that another process may still take when this one has done its work."""
    return LEAST_PATIENCE_SECONDS + PATIENCE * (time.monotonic() - started)


def rounded(us: float | None) -> float | None:
    """A time as reports have it."""
    return None if us is None else round(us, 3)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """No messages of alternatives: the first has given them already."""
    level = _GLIA.level
    _GLIA.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _GLIA.setLevel(level)


@dataclass(frozen=True)
class _Built:
    """An alternative that was built, here or in another process."""

    us: float | None
    get: Callable[[], Neff | None]


def fastest(
    builds: Sequence[Callable[[], Neff]], processes: int, required: int = 0
) -> tuple[Neff, int, tuple[float | None, ...]]:
    """The fastest of several programs, its place, and the times of all; None where one has none.

    The first is built in this process, with its messages. Of those that do not compile, the
    `required` one raises. With several `processes` the others are built beside the first; the
    result is the same.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(ChildProcess(functools.partial(_work, build)))
            for build in (builds[1:processes] if can_fork() else ())
        ]
        found = [_built(builds[0]()) if required == 0 else _attempt(builds[0])]
        patience = _patience(started)
        for place, build in enumerate(builds[1:], 1):
            child = children[place - 1] if place <= len(children) else None
            number = child.number(patience) if child else None
            if child is not None and number is not None:
                found.append(_Built(number, functools.partial(_received, child)))
            elif place == required:
                found.append(_built(build()))
            else:
                with _silence():
                    found.append(_attempt(build))
        times = tuple(each.us for each in found)
        timed = [place for place, us in enumerate(times) if us is not None]
        for place in sorted(timed, key=lambda n: times[n] or 0.0):
            neff = found[place].get()
            if neff is not None:
                return neff, place, times
    neff = found[required].get() or builds[required]()
    return neff, required, times


def _work(build: Callable[[], Neff]) -> tuple[float, Callable[[], bytes]]:
    logging.disable(logging.CRITICAL)
    neff = dataclasses.replace(build(), is_compressed=False)
    us = _latency_of(neff)
    if us is None:
        raise InternalError(f"no time of {neff.name}")
    return us, neff.to_bytes


def _built(neff: Neff) -> _Built:
    return _Built(_latency_of(neff), lambda: neff)


def _attempt(build: Callable[[], Neff]) -> _Built:
    """Build what need not compile."""
    try:
        return _built(build())
    except CompileError:
        return _Built(None, lambda: None)


def _latency_of(neff: Neff) -> float | None:
    """The simulated time of a model, which the comparison of its levels has found."""
    level = neff.report["level"]
    times: dict[int, float | None] = {
        each["optlevel"]: each["latency_us"] for each in level["alternatives"]
    }
    if level["compiled"] in times:
        return times[level["compiled"]]
    return latency_us(neff.programs, neff.target)


def _received(child: ChildProcess) -> Neff | None:
    data = child.result()
    return None if data is None else Neff.from_bytes(data)
