"""Which element goes where, of instructions that do nothing else.

A *move* is an instruction whose declared meaning is one load: a nest of loops with a step in the
destination and one in the source for each. It is found by tracing, so that copies and transposes
of every kind are moves. A pattern inside of what a move writes has an image in what it reads, and
by the inverse move one inside of what it reads has an image in what it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Dims, Memory, Pattern, Tile
from glia.isa.rendezvous import CrossCoreInstr
from glia.sim.host.classes.class_keys import Operands, class_key
from glia.sim.host.instruction_classes import traced_writes
from glia.sim.host.loop_nest import build_nest
from glia.sim.host.table import pattern_parts
from glia.sim.host.traced import HeldArray, NotTraceable, Shape, recorded_decisions
from glia.sim.memory import Memories


@dataclass(frozen=True)
class ElementMoves:
    """Which element of a source each element of a destination is.

    Loops over `extents`, longest step in the destination first; steps and `width`, an element's
    size, in bytes.
    """

    width: int
    extents: Shape
    to_steps: Shape
    from_steps: Shape

    @staticmethod
    def build(
        width: int, extents: Shape, to_steps: Shape, from_steps: Shape
    ) -> ElementMoves | None:
        """The moves of loops in any order; None where several write an element, or mix them."""
        loops = sorted(zip(to_steps, extents, from_steps, strict=True), reverse=True)
        span = width
        for step, extent, _ in reversed(loops):
            if step < span:
                return None
            span += step * (extent - 1)
        to_steps, extents, from_steps = zip(*loops, strict=True) if loops else ((), (), ())
        return ElementMoves(width, extents, to_steps, from_steps)

    def inverse(self) -> ElementMoves | None:
        """The moves back; None where an element of the source went to several places."""
        return ElementMoves.build(self.width, self.extents, self.from_steps, self.to_steps)


@dataclass(frozen=True, eq=False)
class Move:
    """A move at its place in a program, or all iterations of one in loops that have ended.

    The elements begin where the patterns do; of an instruction's move they are the patterns'.
    """

    elements: ElementMoves
    written: Pattern
    read: Pattern
    is_of_loop: bool = False

    def inverse(self) -> Move | None:
        """The move from what this one writes to what it reads."""
        elements = self.elements.inverse()
        return None if elements is None else Move(elements, self.read, self.written)


class MoveTracer:
    """The moves of a program's instructions, traced once for each class.

    `bases` has the tiles on chip that patterns step through as plain bytes, by the name of what
    these patterns call their tile.
    """

    def __init__(self, arch: Arch, memories: Memories) -> None:
        self._arch, self.memories = arch, memories
        self._traced: dict[tuple[Any, ...], tuple[ElementMoves, str, str] | None] = {}
        self._expressions: dict[tuple[Any, ...], bool] = {}
        self._as_bytes: dict[str, Tile] = {}
        self.bases: dict[str, Tile] = {}
        # By identity, of what is kept with it
        self._moves: dict[int, tuple[Instr, Move | None]] = {}
        self._flat: dict[int, tuple[Pattern, Affine, Dims]] = {}

    def move_of(self, instr: Instr) -> Move | None:
        """What an instruction moves, if that is all that it does."""
        if id(instr) not in self._moves:
            self._moves[id(instr)] = instr, self._move_of(instr)
        return self._moves[id(instr)][1]

    def _move_of(self, instr: Instr) -> Move | None:
        patterns = list(instr.patterns())
        if len(patterns) != 2 or not takes_arrays(instr) or instr.sets_register:
            return None
        if any(True for _ in instr.states_touched()):
            return None
        one, other = patterns
        if one.dtype is not other.dtype or any(map(is_register, instr.variables())):
            return None
        operands = Operands.of(instr, self.memories)
        key = class_key(instr, operands)
        if key not in self._traced:
            self._traced[key] = _traced_moves(instr, self._arch, operands)
        found = self._traced[key]
        if found is None:
            return None
        elements, written, read = found
        return Move(elements, getattr(instr, written), getattr(instr, read))

    def is_expression(self, instr: Instr) -> bool:
        """Whether its meaning is one expression, whatever its operands hold."""
        operands = Operands.of(instr, self.memories)
        key = class_key(instr, operands)
        if key not in self._expressions:
            try:
                with recorded_decisions() as decisions:
                    traced_writes(instr, self._arch, operands)
                self._expressions[key] = not decisions
            except NotTraceable:
                self._expressions[key] = False
        return self._expressions[key]

    def base_of(self, tile: Tile) -> Tile:
        """The tile whose bytes a pattern's tile stands for."""
        return self.bases.get(tile.name, tile)

    def flat(self, pattern: Pattern) -> tuple[Affine, Dims]:
        """Where a pattern begins, and its dimensions, in bytes from its tile's first."""
        if id(pattern) not in self._flat:
            self._flat[id(pattern)] = pattern, *self._flattened(pattern)
        _, start, dims = self._flat[id(pattern)]
        return start, dims

    def _flattened(self, pattern: Pattern) -> tuple[Affine, Dims]:
        width, dims = pattern.dtype.bytes, pattern.dims
        start, steps = pattern.offset * width, tuple((step * width, count) for step, count in dims)
        if pattern.memory is Memory.HBM:
            return start, steps
        pitch = self.memories.region(pattern.tile).pitch
        (rows, count), *_ = dims
        return start + pattern.partition * pitch, ((rows * pitch, count), *steps[1:])

    def is_inside(self, pattern: Pattern, trips: Mapping[str, int]) -> bool:
        """Whether a pattern stays within its tile, whatever loops of so many trips are at."""
        for _, (low, high), start in pattern_parts(pattern, self.memories.region(pattern.tile)):
            if not set(start.variables) <= trips.keys():
                return False
            least, greatest = start.bounds(trips)
            if least < low or greatest > high:
                return False
        return True

    def image(self, pattern: Pattern, move: Move, trips: Mapping[str, int]) -> Pattern | None:
        """Where what `pattern` names of `move.written` is in `move.read`; None if in no pattern.

        `trips` are of the loops whose variables may occur in one of the two and not in the other.
        """
        elements, width = move.elements, pattern.dtype.bytes
        (start, dims), (first_written, _) = self.flat(pattern), self.flat(move.written)
        distance = start - first_written
        if elements.width != width or not set(distance.variables) <= trips.keys():
            return None
        first = _positions(distance.constant, elements)
        if first is None:
            return None
        last, image_dims = list(first), []
        image_start, _ = self.flat(move.read)
        image_start += sum(at * s for at, s in zip(first, elements.from_steps, strict=True))
        for step, count in dims:
            found = _axis_of(step if count > 1 else 0, elements)
            if found is None:
                return None
            axis, times, image_step = found
            if times:
                last[axis] += times * (count - 1)
            image_dims.append((image_step, count))
        for name, factor in distance.terms:
            found = _axis_of(factor, elements)
            if found is None:
                return None
            axis, times, image_step = found
            last[axis] += times * (trips[name] - 1)
            image_start += Affine.of(name) * image_step
        if any(at >= extent for at, extent in zip(last, elements.extents, strict=True)):
            return None
        numbers = [image_start.constant, *(factor for _, factor in image_start.terms)]
        if any(number % width for number in (*numbers, *(step for step, _ in image_dims))):
            return None
        offset = Affine(
            tuple((name, factor // width) for name, factor in image_start.terms),
            image_start.constant // width,
        )
        image_steps = tuple((step // width, count) for step, count in image_dims)
        return Pattern(self._tile_of_bytes(move.read.tile), pattern.dtype, image_steps, offset)

    def over_loop(self, move: Move, variable: str, trips: int) -> Move | None:
        """What all iterations of a loop move; None if several write to one place."""
        (to, _), (source, _) = self.flat(move.written), self.flat(move.read)
        step, from_step = to.coefficient(variable), source.coefficient(variable)
        elements = ElementMoves.build(
            move.elements.width,
            (*move.elements.extents, trips),
            (*move.elements.to_steps, abs(step)),
            (*move.elements.from_steps, from_step if step > 0 else -from_step),
        )
        if elements is None:
            return None
        first: dict[str, Affine | str | int] = {variable: 0 if step > 0 else trips - 1}
        return Move(elements, pattern_at(move.written, first), pattern_at(move.read, first), True)

    def _tile_of_bytes(self, tile: Tile) -> Tile:
        """A tile as plain bytes; in HBM it is that."""
        if tile.memory is Memory.HBM:
            return tile
        if tile.name not in self._as_bytes:
            found = self._as_bytes[tile.name] = self.memories.as_bytes(tile)
            self.bases[found.name] = tile
        return self._as_bytes[tile.name]


def pattern_at(pattern: Pattern, values: Mapping[str, Affine | str | int]) -> Pattern:
    """A pattern where loops are at these values."""
    return replace(
        pattern,
        offset=pattern.offset.substitute(values),
        partition=pattern.partition.substitute(values),
    )


def takes_arrays(instr: Instr) -> bool:
    """Whether operands arrive as arrays that only their patterns decide."""
    return instr.arrives not in ("memory", "participants") and not instr.index_checks()


def may_relocate(instr: Instr, name: str, pattern: Pattern) -> bool:
    """Whether an operand can be elsewhere: lanes of an engine's state are those of a partition."""
    lies_first = pattern.partition == Affine()
    return lies_first or all(kept.lanes != name for _, kept, _ in instr.states_touched())


def meets_cores(instr: Instr) -> bool:
    """Whether what another core wrote to HBM may be there from now on."""
    return isinstance(instr, CrossCoreInstr) and instr.among == "cores"


def steps_alike(one: Pattern, other: Pattern) -> bool:
    """Whether neighbours of a pattern's last dimension are as far apart as another's."""
    step, count = one.dims[-1]
    return count == 1 or step == other.dims[-1][0]


def _traced_moves(
    instr: Instr, arch: Arch, operands: Operands
) -> tuple[ElementMoves, str, str] | None:
    """The nest of an instruction whose meaning is a load, what it writes and what it reads."""
    try:
        with recorded_decisions() as decisions:
            writes, places = traced_writes(instr, arch, operands)
        if decisions or len(writes) != 1:
            return None
        nest = build_nest(writes)
    except NotTraceable:
        return None
    value = nest.stores[0][1] if len(nest.stores) == 1 else ("",)
    if value[0] != "load" or nest.inner:
        return None
    to, source = nest.slots[nest.stores[0][0]], nest.slots[value[1]]
    names = [
        places[slot.operand].name
        for slot in (to, source)
        if not isinstance(slot.operand, HeldArray)
    ]
    if len(names) != 2:
        return None
    width = np.dtype(to.dtype).itemsize
    elements = ElementMoves.build(width, nest.outer, to.steps, source.steps)
    return None if elements is None else (elements, names[0], names[1])


def _positions(distance: int, moves: ElementMoves) -> list[int] | None:
    """The position of each loop at so many bytes from the destination's first element."""
    found = []
    for step, extent in zip(moves.to_steps, moves.extents, strict=True):
        at = distance // step
        if not 0 <= at < extent:
            return None
        found.append(at)
        distance -= at * step
    return None if distance else found


def _axis_of(stride: int, moves: ElementMoves) -> tuple[int, int, int] | None:
    """(loop, how many of its iterations so many bytes are, bytes that these are in the source).

    None if no loop steps so.
    """
    if stride == 0:
        return 0, 0, 0
    for axis, step in enumerate(moves.to_steps):
        if 0 < step <= stride and stride % step == 0:
            times = stride // step
            return axis, times, times * moves.from_steps[axis]
    return None
