"""The programs of a model's cores: divided among those of a logical core, or whole on one.

Of both, and of the levels of optimisation, the fastest is kept. Where the program of a core is that
of another at other addresses, one of them is compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glia.alternatives import LEAST_SECONDS, ComparedCores, fastest, fastest_level, rounded
from glia.arch.instances import get_target
from glia.base.errors import InternalError
from glia.compile_report import group_report, nest_report
from glia.graph.flops import count_flops
from glia.graph.ir import Graph
from glia.graph.passes.product_errors import LimitedInstructions
from glia.machine.ir import Program
from glia.machine.legal import program_violations
from glia.machine.relocation import relocated
from glia.machine.shared_places import separate_memories, shared_places, shared_tiles
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.pass_runner import (
    Checkpoint,
    Observer,
    PassResult,
    Starting,
    run_pipeline,
    verify,
)
from glia.pipeline import BEFORE_CASTS, BEFORE_CORES, BEFORE_LEVELS, PIPELINE
from glia.tile import ir as tile
from glia.tile.cores.divide import divide
from glia.tile.cores.same_code import shifts_between

RELOCATE = "relocate"  # the name of the step that makes a core's program of another's
MOST_INSTRUCTIONS = 5_000_000  # of a program under --product-limits


@dataclass(frozen=True)
class CorePrograms:
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
        whole = run_pipeline(
            self.before, self.options, self.observer, stop_after=BEFORE_CORES,
            start_after=BEFORE_CASTS, starting=self.starting,
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

    def _fastest_level(
        self, way: tuple[tile.Program, ...], watch: _Watched, processes: int
    ) -> Neff:
        """The NEFF of the programs of all cores at the level that is fastest."""
        started = time.monotonic()
        cores = _cores_of(way, watch, self.options, self.starting)
        if time.monotonic() - started < LEAST_SECONDS:
            processes = 1
        watched: dict[int, _Watched] = {}

        def build(level: CompileOptions) -> tuple[Program, ...]:
            is_first = level is self.options
            mine = watched[level.optlevel] = _Watched(
                watch if is_first else None, watch.tile, watch.machine
            )
            starting = self.starting if is_first else None
            made: list[Program] = []
            for core in cores:
                made.append(core.program(level, mine, starting, made))
            return separate_memories(made, cores[0].shared_bytes, level.logical_nc_config)

        results, chosen, compared = fastest_level(self.options, build, processes)
        if chosen != self.options.optlevel:
            for step in watched[chosen].steps:
                watch(step)
        for program in results:
            verify("machine", program)
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


def _cores_of(
    way: tuple[tile.Program, ...],
    watch: _Watched,
    options: CompileOptions,
    starting: Starting | None,
) -> list[_Core]:
    """The cores that have the programs; those that are compiled are prepared."""
    shared_bytes = shared_places(way[0])[1]
    cores = [
        _Core(
            number if len(way) > 1 else None, each, shared_bytes, options, watch, starting,
            way[0], shifts_between(way[0], each) if number else None,
        )
        for number, each in enumerate(way)
    ]  # fmt: skip
    for core in cores:
        if core.shifts is None:
            core.prepare()
    return cores


@dataclass
class _Core:
    """A core of several, or the only one, and what makes its program.

    Where `shifts` is not None, its program is that of the `first` core with accesses of buffers so
    many elements further on.
    """

    number: int | None
    nests: tile.Program
    shared_bytes: int  # of HBM, which all cores of the program address
    options: CompileOptions
    watch: _Watched
    starting: Starting | None
    first: tile.Program
    shifts: Mapping[str, int] | None
    middle: Any = None  # what passes before the levels make of it
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)  # for later passes

    def program(
        self,
        level: CompileOptions,
        watch: _Watched,
        starting: Starting | None,
        made: Sequence[Program],
    ) -> Program:
        """Its program at a level, where those of the cores before it are made."""
        started = time.perf_counter()
        found = self._relocated(made[0]) if made and self.shifts is not None else None
        if found is not None:
            seconds, place = time.perf_counter() - started, len(PIPELINE)
            self._observed(watch)(PassResult(RELOCATE, "machine", found, seconds, place, place))
            return found
        self.prepare()
        finished: Program = run_pipeline(
            self.middle, level, self._observed(watch), start_after=BEFORE_LEVELS,
            starting=starting, checkpoints=dict(self.checkpoints),
        )  # fmt: skip
        return finished

    def prepare(self) -> None:
        """Run the passes that all levels share, unless they have run."""
        if self.middle is None:
            self.middle = run_pipeline(
                self.nests, self.options, self._observed(self.watch), stop_after=BEFORE_LEVELS,
                start_after=BEFORE_CORES, starting=self.starting, checkpoints=self.checkpoints,
            )  # fmt: skip

    def _relocated(self, program: Program) -> Program | None:
        """The first core's program at this one's addresses; None where they leave a tensor."""
        assert self.shifts is not None
        notes = (*self.nests.notes, *program.notes[len(self.first.notes) :])
        tiles = shared_tiles(program, self.first)
        shifts = {tiles[name]: shift for name, shift in self.shifts.items()}
        found = relocated(program, shifts, notes)
        target = get_target(self.options.target)
        is_legal = found and next(program_violations(found, target), None) is None
        return found if is_legal else None

    def _observed(self, observer: Observer) -> Observer:
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
