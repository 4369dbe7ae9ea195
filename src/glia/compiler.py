"""`compile`: a model through the pipeline into a NEFF, with an observer after every pass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from glia.arch.instances import get_target
from glia.base.compilation_memo import one_compilation
from glia.base.errors import CompileError, InternalError, Misfit
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
from glia.pipeline import BEFORE_CORES, PIPELINE, Pass, resolve

if TYPE_CHECKING:
    from glia.graph.ir import Graph
    from glia.machine.ir import Program
    from glia.neff.package import Neff


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


log = logging.getLogger(__name__)

Observer = Callable[[PassResult], None]
Starting = Callable[[PassStart], None]

MOST_INSTRUCTIONS = 5_000_000  # of a program under --product-limits

IMPORT = "import"  # the name of the step before the first pass
COMPARE = "compare alternatives"  # and of what follows the last

_BEFORE_CASTS = PIPELINE[[each.name for each in PIPELINE].index("cast_dtypes") - 1].name
_BEFORE_LEVELS = PIPELINE[["optlevel" in each.options for each in PIPELINE].index(True) - 1].name

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

    check_options(options)
    before = run_pipeline(graph, options, observer, stop_after=_BEFORE_CASTS, starting=starting)
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
        finishing = _Finishing(graph, before, alternative, observe, starting)
        neff = finishing.neff(max(1, processes // len(ladder)))
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


@dataclass(frozen=True)
class _Finishing:
    """Compiles a graph, of which `before` is what passes before the casts have made."""

    graph: Graph
    before: Graph
    options: CompileOptions
    observer: Observer | None
    starting: Starting | None

    def neff(self, processes: int) -> Neff:
        """The faster of the model divided among the cores of a logical core, and whole on one.

        The one is compiled beside the other, and lower levels, in up to `processes` processes.
        """
        from glia.alternatives import ComparedCores, fastest, rounded
        from glia.machine.shared_places import shared_places
        from glia.tile.cores.divide import divide

        whole = run_pipeline(
            self.before, self.options, self.observer, stop_after=BEFORE_CORES,
            start_after=_BEFORE_CASTS, starting=self.starting,
        )  # fmt: skip
        divided = divide(whole, self.options) if self.options.cores > 1 else ()
        if divided and shared_places(divided[0])[1] > self._memory:
            divided = ()  # the program of one core says what exceeds it
        ways = [way for way in (divided, (whole,)) if way]
        watched = [_Watched(self.observer if way is ways[0] else None) for way in ways]
        builds = [
            functools.partial(self._fastest_level, way, watch, max(1, processes // len(ways)))
            for way, watch in zip(ways, watched, strict=True)
        ]
        neff, place, times = fastest(builds, processes, required=len(ways) - 1)
        if self.observer and place:
            for step in watched[place].steps:
                self.observer(step)
        compared = [ComparedCores(len(w), rounded(t)) for w, t in zip(ways, times, strict=True)]
        cores = {
            "asked": self.options.cores,
            "compiled": len(neff.programs),
            "alternatives": [dataclasses.asdict(each) for each in compared],
        }
        return dataclasses.replace(neff, report={"cores": cores, **neff.report})

    @property
    def _memory(self) -> int:
        """Bytes of HBM of the logical core."""
        return get_target(self.options.target).device_memory(self.options.cores)

    def _fastest_level(self, way: tuple[Any, ...], watch: _Watched, processes: int) -> Neff:
        """The NEFF of the programs of all cores at the level that is fastest."""
        from glia.alternatives import LEAST_SECONDS, fastest_level
        from glia.compile_report import group_report, nest_report
        from glia.graph.flops import count_flops
        from glia.machine.shared_places import separate_memories
        from glia.neff.package import Neff

        started = time.monotonic()
        cores = self._cores(way, watch)
        if time.monotonic() - started < LEAST_SECONDS:
            processes = 1
        watched: dict[int, _Watched] = {}

        def build(level: CompileOptions) -> tuple[Program, ...]:
            is_first = level is self.options
            mine = watched[level.optlevel] = _Watched(
                watch if is_first else None, watch.tile, watch.machine
            )
            made = [
                run_pipeline(
                    core.middle, level, core.observed(mine), start_after=_BEFORE_LEVELS,
                    starting=self.starting if is_first else None,
                    checkpoints=dict(core.checkpoints),
                )
                for core in cores
            ]  # fmt: skip
            return separate_memories(made, cores[0].shared_bytes, level.logical_nc_config)

        results, chosen, compared = fastest_level(self.options, build, processes)
        if chosen != self.options.optlevel:
            for step in watched[chosen].steps:
                watch(step)
        for program in results:
            resolve(_VERIFIERS["machine"])(program)
        _check_instruction_count(results, self.options)
        mine = watched[chosen]
        return Neff(
            programs=tuple(_restore_boundary_types(each, self.graph) for each in results),
            statistics={"flops": count_flops(self.graph)},
            report={
                "level": {
                    "asked": self.options.optlevel,
                    "compiled": chosen,
                    "alternatives": [dataclasses.asdict(each) for each in compared],
                },
                "groups": group_report(mine.tile, mine.machine),
                "nests": nest_report(mine.tile, mine.machine),
            },
            replicas=max(1, self.before.replicas),
            partitions=max(1, self.before.partitions),
        )

    def _cores(self, way: tuple[Any, ...], watch: _Watched) -> list[_Core]:
        """What passes before the levels make of the program of each core."""
        from glia.machine.shared_places import shared_places

        found = []
        for number, program in enumerate(way):
            core = _Core(number if len(way) > 1 else None, program, shared_places(program)[1])
            core.middle = run_pipeline(
                program, self.options, core.observed(watch), stop_after=_BEFORE_LEVELS,
                start_after=BEFORE_CORES, starting=self.starting, checkpoints=core.checkpoints,
            )  # fmt: skip
            found.append(core)
        return found


@dataclass
class _Core:
    """A core of several, or the only one: what passes before the levels make of its program."""

    number: int | None
    middle: Any
    shared_bytes: int  # of HBM, which all cores of the program address
    checkpoints: dict[str, _Checkpoint] = field(default_factory=dict)  # for later passes

    def observed(self, observer: Observer) -> Observer:
        """An observer of passes, which are said to be of this core."""
        if self.number is None:
            return observer
        return lambda step: observer(dataclasses.replace(step, core=self.number))


class _Watched:
    """Calls an observer, keeps what passes make that the report is of, and steps seen by none.

    The report is of the first core.
    """

    def __init__(self, observer: Observer | None, tile: Any = None, machine: Any = None) -> None:
        self.observer = observer
        self.tile = tile
        self.machine = machine  # as emitted
        self.steps: list[PassResult] = []

    def __call__(self, step: PassResult) -> None:
        if not step.core and step.level == "tile":
            self.tile = step.ir
        elif not step.core and step.level == "machine" and step.ir.emitted:
            self.machine = step.ir
        if self.observer:
            self.observer(step)
        else:
            self.steps.append(step)


def _check_instruction_count(programs: Sequence[Program], options: CompileOptions) -> None:
    """Raise LimitedInstructions for more than the product's limit, under `--product-limits`."""
    from glia.graph.passes.product_errors import LimitedInstructions

    count = sum(1 for program in programs for _ in program.instructions())
    if options.product_limits and count > MOST_INSTRUCTIONS:
        raise LimitedInstructions(count=count, limit=MOST_INSTRUCTIONS)


def _restore_boundary_types(program: Any, graph: Graph) -> Any:
    """The program with the model's own types on its inputs and outputs.

    Passes keep the bytes of inputs and outputs, not their types: complex numbers become pairs of
    floats, 64-bit integers pairs of words.
    """
    inputs = _retype_bindings(program.inputs, [p.type for p in graph.parameters])
    outputs = _retype_bindings(program.outputs, [r.type for r in graph.results])
    return dataclasses.replace(program, inputs=inputs, outputs=outputs)


def _retype_bindings(bindings: tuple[Any, ...], types: list[Any]) -> tuple[Any, ...]:
    found = []
    for binding, kind in zip(bindings, types, strict=True):
        if binding.tile.bytes != kind.bytes:
            raise InternalError(f"{binding.name} has {binding.tile.bytes} bytes, not {kind.bytes}")
        found.append(dataclasses.replace(binding, shape=kind.shape, dtype=kind.dtype))
    return tuple(found)


def run_pipeline(
    graph: Graph,
    options: CompileOptions,
    observer: Observer | None = None,
    stop_after: str = "",
    start_after: str = "",
    starting: Starting | None = None,
    checkpoints: dict[str, _Checkpoint] | None = None,
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
            checkpoints[each.name] = _Checkpoint(index, ir)
        if observer:
            observer(
                PassResult(each.name, each.makes, ir, time.perf_counter() - started, index, total)
            )
        if stop_after == each.name:
            break
    return ir


@dataclass(frozen=True)
class _Checkpoint:
    """The IR after a pass, the position of the next, and how often it was made easier."""

    index: int
    ir: Any
    attempts: int = 0


def _recover(
    failed: Pass, options: CompileOptions, error: Exception, checkpoints: dict[str, _Checkpoint]
) -> _Checkpoint | None:
    """Where to continue after an error, entered in `checkpoints`; None when nothing is easier."""
    for recovery in failed.recoveries:
        point = checkpoints[recovery.to]
        attempt = point.attempts + 1
        easier = resolve(recovery.function)(point.ir, options, error, attempt)
        if easier is not None:
            checkpoints[recovery.to] = _Checkpoint(point.index, easier, attempt)
            return checkpoints[recovery.to]
    return None


def _run_pass(each: Pass, ir: Any, options: CompileOptions) -> Any:
    try:
        result = each(ir, options)
        is_new = result is not ir or each is PIPELINE[0]
        if options.verify and is_new and each.makes in _VERIFIERS:
            resolve(_VERIFIERS[each.makes])(result)
        return result
    except CompileError:
        raise
    except Exception as error:
        error.add_note(f"in pass {each.name}")
        raise


def text_of(level: str, ir: Any) -> str:
    """The text form of a program at a level: graph, tile or machine."""
    write = resolve(_PRINTERS[level])
    programs = ir if isinstance(ir, tuple) else (ir,)
    return "\n".join(write(program) for program in programs)
