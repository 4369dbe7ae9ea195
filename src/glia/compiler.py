"""`compile`: a model through the pipeline into a NEFF, with an observer after every pass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from glia.base.compilation_memo import one_compilation
from glia.base.garbage_collection import collector_paused
from glia.base.output_files import writing
from glia.cc_flags import resolve_options, tracing_for
from glia.compile_messages import Console, ProgressLine, severity
from glia.options import (
    UNRECORDED_OPTIONS,
    CompileOptions,
    OptionArguments,
    check_options,
)
from glia.pass_runner import Observer, PassResult, PassStart, Starting, run_pipeline, text_of
from glia.pipeline import BEFORE_CASTS, PIPELINE

if TYPE_CHECKING:
    from glia.graph.ir import Graph
    from glia.neff.package import Neff


log = logging.getLogger(__name__)

COMPARE = "compare alternatives"  # and of what follows the last


def compile(
    module: object,
    *,
    target: str | None = None,
    optlevel: int | None = None,
    auto_cast: str | None = None,
    observer: Observer | None = None,
    **options: Unpack[OptionArguments],
) -> Neff:
    """Compile a model for `target` and return it as a `Neff`.

    `module` is what `read_module` takes; further keyword arguments are the fields of
    `CompileOptions`. What a call leaves out is taken from NEURON_CC_FLAGS, and then from the
    defaults: the target of NEURON_PLATFORM_TARGET_OVERRIDE or trn2, no casts, level 2. `output`,
    `logfile`, `verbose` and `dump` write, and print, only where they are given. Raises a
    CompileError for what the user can fix.
    """
    explicit = {"target": target, "optlevel": optlevel, "auto_cast": auto_cast, **options}
    return compile_titled(module, _title_of(module), explicit, observer)


def _title_of(module: object) -> str:
    """What a model is called in messages: by its file, if it is in one."""
    if isinstance(module, str | os.PathLike) and "\n" not in (path := os.fspath(module)):
        return Path(path).name
    return "a model"


def compile_titled(
    module: object, title: str, explicit: Mapping[str, object], observer: Observer | None = None
) -> Neff:
    """What `compile` returns for a module and keyword arguments; messages name it by `title`."""
    chosen, given = _chosen(explicit)
    observers = [each for each in (observer,) if each]
    if chosen.dump:
        observers.append(functools.partial(write_dump, chosen.dump))
    is_silent = severity(chosen.verbose) > logging.WARNING
    with _messages(title, chosen, given), ProgressLine(title, is_silent=is_silent) as line:

        def starting(step: PassStart) -> None:
            line.begin(str(step))

        is_observed = observer is not None
        neff = compile_module(module, chosen, _all_of(observers), starting, is_observed=is_observed)
    if "output" in given:
        with writing(chosen.output):
            neff.save(chosen.output)
    return neff


def _chosen(explicit: Mapping[str, object]) -> tuple[CompileOptions, frozenset[str]]:
    """The options of a compilation in Python, and which of them the user has given."""
    chosen, given = resolve_options("glia.compile", explicit, {"auto_cast": "none"})
    check_options(chosen)
    return chosen, given


def collect(hlo: bytes, **options: object) -> None:
    """Put a serialized HLO module into the compile cache, to be compiled later.

    It is put where `compile` with the same options looks for it. Raises NoCacheToCollectIn, what
    is wrong with options, and UnwritableOutput.
    """
    from glia.cache.collecting import VARIABLE
    from glia.cache.errors import NoCacheToCollectIn
    from glia.cache.store import cache_of

    chosen, _ = _chosen(options)
    cache = cache_of(chosen)
    if cache is None:
        raise NoCacheToCollectIn(variable=VARIABLE)
    cache.collect(hlo, chosen)


def compile_collected(place: Path, processes: int = 1) -> Neff:
    """Compile a collected entry of the compile cache; its NEFF is kept in it.

    Raises what `compile` raises, and UnreadableFile.
    """
    from glia.cache.store import read_collected

    hlo, options = read_collected(place)
    return compile_module(hlo, dataclasses.replace(options, num_parallel_jobs=processes))


def compile_module(
    module: object,
    options: CompileOptions,
    observer: Observer | None = None,
    starting: Starting | None = None,
    *,
    is_observed: bool = False,
) -> Neff:
    """The NEFF of what `read_module` takes, from the compile cache where the options name one.

    A compilation that is observed, dumped or verified runs every pass, and is not taken from the
    cache; a graph, which has no serialized form, is not stored in it. `observer` and `starting` are
    those of `compile_graph`.
    """
    from glia.cache.store import cache_of
    from glia.frontend.hlo import import_hlo
    from glia.frontend.registry import read_module, serialized_hlo

    check_options(options)
    cache = None if is_observed or options.dump or options.verify else cache_of(options)
    with tracing_for(options.target):
        hlo = serialized_hlo(module) if cache else None
    if cache is None or hlo is None:
        with tracing_for(options.target):
            graph = read_module(module)
        return compile_graph(graph, options, observer, starting)
    return cache.compiled(
        hlo, options, lambda: compile_graph(import_hlo(hlo), options, observer, starting)
    )


def _all_of(observers: Sequence[Observer]) -> Observer | None:
    """One observer that calls several."""

    def observe(step: PassResult) -> None:
        for each in observers:
            each(step)

    return observe if observers else None


@contextlib.contextmanager
def _messages(title: str, options: CompileOptions, given: frozenset[str]) -> Iterator[None]:
    """Messages on the standard streams and in a log file, where the user has asked for either."""
    if not given & {"verbose", "logfile"}:
        yield
        return
    with Console(options.verbose, options.logfile if "logfile" in given else None) as console:
        console.info(f"compiling {title} for {options.target}")
        console.debug(f"options: {dataclasses.asdict(options)}")
        yield


def write_dump(directory: str, step: PassResult) -> None:
    """Write the text of the IR after a pass into a directory."""
    core = "" if step.core is None else f".core{step.core}"
    path = Path(directory) / f"{step.index:02d}-{step.name}{core}.{step.level}.txt"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(step.level, step.ir), encoding="utf-8")


@collector_paused()
@one_compilation()
def compile_graph(
    graph: Graph,
    options: CompileOptions,
    observer: Observer | None = None,
    starting: Starting | None = None,
) -> Neff:
    """Run the pipeline on an imported graph and wrap the result.

    `starting` is called when a pass begins in this process, the observer when one has ended.

    Where `--auto-cast` allows several precisions, the program that runs fastest is kept, and so it
    is among the levels up to `--optlevel`. The observer sees the passes of the first, and of what
    is kept where that was made in this process.
    """
    from glia.alternatives import (
        SMALLEST_PARALLEL,
        Compared,
        fastest,
        precision_ladder,
        precision_of,
        rounded,
        with_generic,
        without_strategy,
    )
    from glia.compile_report import cast_report, casts_anything
    from glia.core_programs import CorePrograms

    check_options(options)
    before = run_pipeline(graph, options, observer, stop_after=BEFORE_CASTS, starting=starting)
    ladder = precision_ladder(options)
    if not casts_anything(before, options):
        ladder = ladder[-1:]
    ladder = without_strategy(with_generic(ladder), before)
    is_parallel = len(before.nodes) >= SMALLEST_PARALLEL and not options.dump
    processes = options.num_parallel_jobs if is_parallel else 1
    steps: dict[CompileOptions, list[PassResult]] = {}

    def build(alternative: CompileOptions) -> Neff:
        passed = steps.setdefault(alternative, [])
        observe = observer if alternative is ladder[0] else observer and passed.append
        programs = CorePrograms(graph, before, alternative, observe, starting)
        neff = programs.neff(max(1, processes // len(ladder)))
        if starting:
            starting(PassStart(COMPARE, len(PIPELINE), len(PIPELINE)))
        return neff

    neff, place, times = fastest([functools.partial(build, each) for each in ladder], processes)
    if place and observer:
        for step in steps.get(ladder[place]) or ():
            observer(step)
    compared = [
        Compared(precision_of(o), o.model_type, o.distribution_strategy, rounded(us))
        for o, us in zip(ladder, times, strict=True)
    ]
    for each in compared[1:]:
        if each.latency_us is None:
            words = (each.precision, each.model_type, each.distribution_strategy)
            log.warning("no program with the options %s", " ".join(filter(None, words)))
    report = {
        "precision": {
            "asked": precision_of(options),
            "compiled": precision_of(ladder[place]),
            "model_type": ladder[place].model_type,
            "distribution_strategy": ladder[place].distribution_strategy,
            "alternatives": [dataclasses.asdict(each) for each in compared],
        },
        "casts": cast_report(before, options, ladder[place]),
        **neff.report,
    }
    return dataclasses.replace(
        neff,
        options=_recorded(options),
        is_compressed=not options.fast_loading_neuron_binaries,
        report=report,
    )


def _recorded(options: CompileOptions) -> dict[str, Any]:
    """The options that a NEFF names."""
    named = dataclasses.asdict(options)
    return {name: value for name, value in named.items() if name not in UNRECORDED_OPTIONS}
