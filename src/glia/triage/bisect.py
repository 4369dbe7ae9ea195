"""The first pass, nest and instruction after which a model's values depart from its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.base.dtype import from_numpy
from glia.base.errors import CompileError, Unspecified
from glia.base.loc import UNKNOWN, Loc
from glia.graph.ir import Graph
from glia.isa.kit import Instr
from glia.machine.ir import Program
from glia.machine.text import print_instruction
from glia.options import CompileOptions
from glia.pass_runner import IMPORT, PassResult, Starting, run_pipeline
from glia.pipeline import PIPELINE
from glia.sim.order.concurrent import run_concurrently
from glia.sim.policy import Policy
from glia.tile.ir import Program as TileProgram
from glia.tile.ir import loads
from glia.triage.blame import (
    Address,
    Maker,
    NumberedRun,
    changed_by_moving,
    find_maker,
    first_difference,
    whole_pattern,
)
from glia.triage.errors import NotEvaluable
from glia.triage.levels import (
    Value,
    intermediate_values,
    machine_inputs,
    outputs_of,
    reinterpret,
    single_program,
    tile_inputs,
    values_of,
)
from glia.triage.ulps import are_among, rounding, ulps

Array = np.ndarray[Any, Any]
ORDERS = 4  # in which engines and queues are run after waits are inserted


@dataclass(frozen=True)
class Departure:
    """How far outputs are from what is wanted: of all elements the farthest, or what failed."""

    output: int = 0
    element: int = 0
    ulps: float = 0.0
    found: str = ""
    wanted: str = ""
    elements: int = 0  # of this output, that are farther than the tolerance
    error: str = ""

    @property
    def exceeds(self) -> bool:
        """Whether rounding does not explain it."""
        return bool(self.error or self.elements)


@dataclass(frozen=True)
class PassValues:
    """A pass and how far the outputs are after it; None where no evaluator runs its result."""

    name: str
    level: str
    departure: Departure | None


@dataclass(frozen=True)
class FaultSite:
    """Where values depart: a node or nest, an instruction and its variables, the user's line.

    `read` are the first values of the instruction's operands, `passed_on` how many instructions
    moved the value afterwards.
    """

    nest: str = ""
    instruction: str = ""
    source: str = ""
    variables: str = ""
    read: str = ""
    passed_on: int = 0


@dataclass(frozen=True)
class Bisection:
    """Every pass in order, up to the first after which values depart, and where they do."""

    passes: tuple[PassValues, ...]
    tolerances: tuple[float, ...]  # of each output, in units in the last place
    place: FaultSite | None = None

    @property
    def first(self) -> PassValues | None:
        """The first pass after which values depart; None where they never do."""
        last = self.passes[-1]
        return last if last.departure and last.departure.exceeds else None


class _Departed(Exception):
    """Values depart after the pass that was observed last."""


def bisect(
    graph: Graph,
    inputs: Sequence[Array],
    options: CompileOptions,
    tolerance: float | None = None,
    starting: Starting | None = None,
) -> Bisection:
    """Run the pipeline and the program after every pass; stop where values depart.

    The meaning is that of the imported graph. `tolerance` is in units in the last place; without
    one it is what rounding explains in each output's type. A pass that fails is where values
    depart; a CompileError is raised, NotEvaluable where a graph has no meaning to compare with.
    """
    run = _Run(graph, inputs, tolerance)

    try:
        run_pipeline(graph, options, run.after, starting=starting)
    except _Departed:
        pass
    except (CompileError, Unspecified):
        raise
    except Exception as error:
        run.fail(error)
    return run.result()


class _Run:
    """One bisection: what the last two passes made, and what was found so far."""

    def __init__(self, graph: Graph, inputs: Sequence[Array], tolerance: float | None) -> None:
        self.inputs = inputs
        try:
            self.wanted = outputs_of("graph", graph, inputs)
        except Unspecified as error:
            raise NotEvaluable(reason=error) from error
        self.limits = [rounding(e) if tolerance is None else tolerance for e in self.wanted]
        self.before = self.step = PassResult(IMPORT, "graph", graph, 0.0, 0, len(PIPELINE))
        self.tiles: TileProgram | None = None
        self.passes: list[PassValues] = []

    def after(self, step: PassResult) -> None:
        """Evaluate what a pass has made; raises _Departed where its values depart."""
        if step.name == IMPORT:
            return
        self.before, self.step = self.step, step
        if step.level == "tile":
            self.tiles = step.ir
        departure = self._departure(step)
        self.passes.append(PassValues(step.name, step.level, departure))
        if departure and departure.exceeds:
            raise _Departed

    def fail(self, error: Exception) -> None:
        """Record that the pass after the last one observed fails."""
        failed = PIPELINE[self.step.index]
        departure = Departure(error=f"{type(error).__name__}: {error}")
        self.passes.append(PassValues(failed.name, failed.makes, departure))

    def result(self) -> Bisection:
        """What was found."""
        found = Bisection(tuple(self.passes), tuple(self.limits))
        if found.first is None or found.first.departure is None or found.first.departure.error:
            return found
        return replace(found, place=self._place(found.first.departure))

    def _departure(self, step: PassResult) -> Departure | None:
        if step.ir is self.before.ir:
            return self.passes[-1].departure if self.passes else Departure()
        try:
            outputs = outputs_of(step.level, step.ir, self.inputs)
            if step.name == PIPELINE[-1].name:
                self._check_orders(step)
        except Unspecified:
            return None
        except Exception as error:
            return Departure(error=f"{type(error).__name__}: {error}")
        return farthest(outputs, self.wanted, self.limits)

    def _check_orders(self, step: PassResult) -> None:
        """Race or Deadlock where waits are missing, in program order or not."""
        program = single_program(step.ir)
        for seed in range(ORDERS):
            inputs = machine_inputs(program, self.inputs)
            run_concurrently(program, inputs, seed=seed, policy=Policy())

    def _place(self, departure: Departure) -> FaultSite | None:
        if self.step.level == "machine":
            return self._instruction(departure)
        values = values_of(self.step.level, self.step.ir, self.inputs)
        earlier = values_of(self.before.level, self.before.ir, self.inputs)
        for value in values:
            if departs_from_all(value, counterparts(value, earlier)):
                return FaultSite(nest=value.name, source=str(value.loc))
        return FaultSite(nest=values[-1].name, source=str(values[-1].loc)) if values else None

    def _instruction(self, departure: Departure) -> FaultSite | None:
        program = single_program(self.step.ir)
        inputs = machine_inputs(program, self.inputs)
        if self.before.level == "machine":
            earlier = single_program(self.before.ir)
            maker = first_difference(earlier, program, inputs)
        else:
            maker = changed_by_moving(program, inputs) or self._first_wrong(program, inputs)
        if maker is None:
            maker = find_maker(program, inputs, self._wrong_byte(program, departure))
        if maker is None:
            return None
        variables = sorted(maker.variables.items())
        return FaultSite(
            nest=_nest_of(maker.instruction, self.tiles),
            instruction=print_instruction(replace(maker.instruction, loc=UNKNOWN)),
            source=str(maker.instruction.loc),
            variables=", ".join(f"{name}={value}" for name, value in variables),
            read="; ".join(f"{name} {' '.join(few)} ..." for name, few in maker.given.items()),
            passed_on=len(maker.path),
        )

    def _wrong_byte(self, program: Program, departure: Departure) -> Address:
        """The first byte of the output element that is farthest from what is wanted."""
        binding = program.outputs[departure.output]
        offset = departure.element * self.wanted[departure.output].itemsize
        element = offset // binding.tile.dtype.bytes
        run = NumberedRun(program, machine_inputs(program, self.inputs))
        return Address(binding.tile, int(run.offsets(whole_pattern(binding.tile))[element]))

    def _first_wrong(self, program: Program, inputs: Mapping[str, Array]) -> Maker | None:
        """What made the first wrong value of the first nest that has one."""
        if self.tiles is None:
            return None
        values = {v.name: v for v in values_of("tile", self.tiles, self.inputs)}
        arrays = dict(zip(self.tiles.inputs, tile_inputs(self.tiles, self.inputs), strict=True))
        arrays |= {name: np.asarray(each) for name, each in self.tiles.constants.items()}
        run = NumberedRun(program, inputs)
        for nest in self.tiles.nests():
            right = values[nest.name].array
            wrong = _wrong_element(run, program, nest.target.buffer, right)
            if wrong is not None:
                expressions = (nest.body, nest.finish)
                read = {load.buffer for each in expressions for load in loads(each)}
                known = [arrays[name] for name in read if name in arrays]
                known += intermediate_values(nest, arrays)
                return find_maker(program, inputs, wrong, _right_values([*known, right]))
            arrays[nest.target.buffer] = right
        return None


def _wrong_element(run: NumberedRun, program: Program, buffer: str, right: Array) -> Address | None:
    """A wrong byte of the tile that holds a buffer at the end of a run; None where none is.

    Values are compared as multisets: where each lies is the compiler's choice.
    """
    wanted = np.sort(right, axis=None)
    wrong = None
    for tile in program.tiles.values():
        if not _holds(tile.name, buffer) or tile.dtype.numpy != right.dtype:
            continue
        values, offsets = run.written(tile)
        if values.size != wanted.size:
            continue
        order = np.argsort(values, axis=None)
        distances = ulps(values[order], wanted)
        if not (distances > rounding(right)).any():
            return None
        wrong = wrong or Address(tile, int(offsets[order[distances.argmax()]]))
    return wrong


def _right_values(arrays: Sequence[Array]) -> Callable[[Array], Array]:
    """Which values are among those of some arrays, which may have been converted."""

    def is_right(values: Array) -> Array:
        found = np.zeros(values.shape, np.bool_)
        for each in arrays:
            with np.errstate(all="ignore"):
                converted = each.astype(values.dtype)
            found |= are_among(values, converted)
        return found

    return is_right


def farthest(found: Sequence[Array], wanted: Sequence[Array], limits: Sequence[float]) -> Departure:
    """The element that is farthest from what is wanted, as a multiple of its output's limit."""
    worst, worst_ratio = Departure(), 0.0
    for output, (raw, right, limit) in enumerate(zip(found, wanted, limits, strict=True)):
        array = reinterpret(raw, from_numpy(right.dtype), right.shape)
        distances = ulps(array, right).reshape(-1)
        if not distances.size:
            continue
        element = int(distances.argmax())
        ratio = float(distances[element]) / limit if limit else float(distances[element]) * np.inf
        if distances[element] and (ratio > worst_ratio or not worst_ratio):
            per_element = distances.size // max(1, right.size)  # 2 of a complex number
            place = element // per_element
            worst_ratio = ratio
            worst = Departure(
                output, place, float(distances[element]), str(array.reshape(-1)[place]),
                str(right.reshape(-1)[place]), int((distances > limit).sum()),
            )  # fmt: skip
    return worst


def counterparts(value: Value, earlier: Iterable[Value]) -> list[Array]:
    """What an earlier program computes for the same line of the user's program, or nest."""
    alike = [v for v in earlier if v.array.nbytes == value.array.nbytes]
    named = [v.array for v in alike if v.name == value.name and v.loc == value.loc]
    return named or [v.array for v in alike if v.loc == value.loc]


def departs_from_all(value: Value, wanted: Sequence[Array]) -> bool:
    """Whether a value departs from every one of some arrays of its bytes."""
    if not wanted:
        return False
    limits = [rounding(each) for each in wanted]
    pairs = zip(wanted, limits, strict=True)
    return all(farthest([value.array], [each], [limit]).exceeds for each, limit in pairs)


def _nest_of(instruction: Instr, program: TileProgram | None) -> str:
    """The nests that an instruction was emitted for, as its source line and its tiles tell."""
    nests = list(program.nests()) if program else []
    of_line = [nest for nest in nests if nest.loc == instruction.loc] or nests
    written = {pattern.tile.name for pattern in instruction.written_patterns()}
    of_tile = [n for n in of_line if any(_holds(tile, n.target.buffer) for tile in written)]
    chosen = of_tile or (of_line if instruction.loc != Loc() else [])
    return ", ".join(dict.fromkeys(nest.name for nest in chosen))


def _holds(tile: str, buffer: str) -> bool:
    return tile == buffer or tile.rpartition(".")[0] == buffer
