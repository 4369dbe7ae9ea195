"""One random program through every level: do graph, nests and the machine compute the same?"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import glia
from glia.alternatives import ComparedLevel
from glia.arch import get_target
from glia.base.errors import CompileError
from glia.compiler import compile_graph
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph
from glia.machine.ir import Program as MachineProgram
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.pass_runner import PassResult, run_pipeline
from glia.tile.cores.divide import divided
from glia.tile.cores.sharing import Sharing
from glia.tile.evaluate import evaluate as evaluate_nests
from glia.tile.ir import Program
from support.random_graphs.cases import Case
from support.random_graphs.noise import mismatches, tolerances

Array = np.ndarray[Any, Any]


# Programs of even seeds run on the host too; those of odd ones on the reference executor only
LEVELS_OF_DEVICES = (("host", "host"), ("machine", "reference"))

NESTS = "update_in_place"  # the pass after which nests are evaluated

# One program in so many is compiled with its alternatives, of which most are thrown away
WITH_ALTERNATIVES = 8

# And one is divided among two cores in any way
DIVIDED = 4


@dataclass(frozen=True)
class Failure:
    """Which class of failure it is, and the details."""

    kind: str
    detail: str


def check(case: Case) -> Failure | None:
    """The first level at which the program fails; None when all agree."""
    options = CompileOptions(verify=True, **case.options)
    try:
        return _compare_levels(case, options)
    except CompileError as error:
        return Failure(f"{type(error).__name__} {error.code}", str(error))
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        return Failure(type(error).__name__, f"{error} {notes}")


def _with_casts(graph: Graph, options: CompileOptions) -> Graph:
    """The program with every cast that the options ask for; itself where that has other types."""
    if options.auto_cast == "none":
        return graph
    cast = run_pipeline(graph, options, stop_after="cast_dtypes")
    return cast if _boundary(cast) == _boundary(graph) else graph


def _boundary(graph: Graph) -> list[object]:
    return [node.type for node in (*graph.parameters, *graph.results)]


def _compare_levels(case: Case, options: CompileOptions) -> Failure | None:
    cast = _with_casts(case.graph, options)
    if cast is case.graph:
        options = dataclasses.replace(options, auto_cast="none")
    wanted = [np.asarray(value) for value in evaluate(cast, case.arrays)]
    allowed = tolerances(cast, case.arrays, wanted)
    if not all(map(_is_finite, (*case.arrays, *wanted))):
        # With the option infinities change and a NaN may spread over its row, as documented.
        options = dataclasses.replace(options, saturate_infinity=False)
    neff, nests = _compiled(case, cast, options)
    inputs = [_reinterpret(array, nests, name) for array, name in zip(
        case.arrays, nests.inputs, strict=True)]  # fmt: skip
    found = [
        np.frombuffer(np.ascontiguousarray(value).tobytes(), goal.dtype).reshape(goal.shape)
        for value, goal in zip(evaluate_nests(nests, inputs), wanted, strict=True)
    ]
    failure = _difference("nests", found, wanted, allowed)
    for level, device in LEVELS_OF_DEVICES[case.seed % 2 :]:
        if failure is None:
            model = glia.load(neff, device=device)
            failure = _difference(level, model(*case.arrays), wanted, allowed)
    if failure is None and case.seed % DIVIDED == 1 and options.cores > 1:
        failure = _difference("two cores", _by_two_cores(case, cast, options), wanted, allowed)
    return failure


def _by_two_cores(case: Case, cast: Graph, options: CompileOptions) -> Sequence[Array]:
    """What two cores give, with a choice for each nest drawn at random, without a race."""

    def drawn(program: Program, options: CompileOptions) -> tuple[Program, ...]:
        sharing = Sharing(program, get_target(options.target).arch)
        sharing.chosen = [str(random.choice(choices)) for choices in sharing.choices]
        return divided(sharing)

    random = np.random.default_rng(case.seed)
    with (
        mock.patch("glia.core_programs.divide", drawn),
        mock.patch("glia.core_programs.fastest", _first_of),
        mock.patch("glia.core_programs.fastest_level", _level_asked_for),
    ):
        neff = compile_graph(cast, dataclasses.replace(options, auto_cast="none"))
    return glia.load(neff, device="reference")(*case.arrays)


def _first_of(
    builds: Sequence[Callable[[], Neff]], processes: int, required: int = 0
) -> tuple[Neff, int, tuple[None, ...]]:
    return builds[0](), 0, (None,) * len(builds)


def _compiled(case: Case, cast: Graph, options: CompileOptions) -> tuple[Neff, Program]:
    """The NEFF of a program with all its casts, and its nests.

    The compiler may leave a cast out that does not pay: what is compiled here has them all.
    """
    seen: list[Program] = []

    def observe(step: PassResult) -> None:
        if step.name == NESTS and step.core is None:
            seen.append(step.ir)

    with _alternatives(case.seed % WITH_ALTERNATIVES == 0):
        neff = compile_graph(cast, dataclasses.replace(options, auto_cast="none"), observe)
    if cast is case.graph and seen:
        return neff, seen[0]
    return neff, run_pipeline(case.graph, options, stop_after=NESTS)


@contextlib.contextmanager
def _alternatives(are_made: bool) -> Iterator[None]:
    """Compile without alternatives unless they are made: the level and model type asked for."""
    if are_made:
        yield
        return
    with (
        mock.patch("glia.alternatives.with_generic", lambda ladder: tuple(ladder)),
        mock.patch("glia.core_programs.fastest_level", _level_asked_for),
    ):
        yield


def _level_asked_for(
    options: CompileOptions,
    build: Callable[[CompileOptions], tuple[MachineProgram, ...]],
    processes: int,
) -> tuple[tuple[MachineProgram, ...], int, tuple[ComparedLevel, ...]]:
    return build(options), options.optlevel, ()


def _is_finite(array: Array) -> bool:
    if array.dtype.kind in "biu":
        return True
    wide = array if array.dtype.kind == "c" else array.astype(np.float64)
    return bool(np.isfinite(wide).all())


def _reinterpret(array: Array, nests: Program, name: str) -> Array:
    """An input's bytes as the nests hold it: complex numbers and 64-bit integers as pairs."""
    buffer = nests.buffers[name]
    held = np.frombuffer(np.ascontiguousarray(array).tobytes(), buffer.dtype.numpy)
    return held.reshape(buffer.shape)


def _difference(
    level: str, found: Sequence[Array], wanted: Sequence[Array], allowed: Sequence[Array]
) -> Failure | None:
    for number, (value, goal, tolerance) in enumerate(zip(found, wanted, allowed, strict=True)):
        value = np.asarray(value)
        if (value.dtype, value.shape) != (goal.dtype, goal.shape):
            return Failure(f"{level}: type", f"{value.dtype}{value.shape}")
        wrong = mismatches(value, goal, tolerance)
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            return Failure(
                f"{level}: values",
                f"result {number}: {int(wrong.sum())} of {wrong.size} differ, first at {at}: "
                f"{value[at]} instead of {goal[at]} (tolerance {tolerance[at]:.3g})",
            )
    return None
