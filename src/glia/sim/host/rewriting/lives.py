"""What tiles on chip hold, from the writes of it to its last read, by reaching definitions.

A *life* of a tile is some writes with all reads that may see them. It lies within one run of the
innermost block that has all accesses to the tile, since no read sees what an earlier run left:
tiles of which one may have no lives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Block, Loop, Program, blocks
from glia.sim.host.rewriting.byte_boxes import ByteBox, Part
from glia.sim.host.rewriting.element_moves import Move, MoveTracer, meets_cores, takes_arrays

LOOKS = 64  # at accesses, for each access of a tile on average and MORE_LOOKS for all of them
MORE_LOOKS = 1 << 14


@dataclass(frozen=True, eq=False)
class OperandAccess:
    """An operand of an instruction, and where in the program that is.

    `path` has the place of a statement in each block that leads there, `loops` the variable of each
    loop on the way; None instead of one is a block that may run or not.
    """

    number: int  # of the instruction
    path: tuple[int, ...]
    loops: tuple[str | None, ...]
    instr: Instr
    operand: str
    pattern: Pattern
    is_read: bool
    is_written: bool


@dataclass
class ProgramAccesses:
    """What a program accesses: tiles on chip by name, and everything in HBM."""

    tracer: MoveTracer
    on_chip: defaultdict[str, list[OperandAccess]] = field(
        default_factory=lambda: defaultdict(list)
    )
    in_hbm: list[OperandAccess] = field(default_factory=list)  # in program order
    instructions: list[Instr] = field(default_factory=list)
    moves: dict[int, Move] = field(default_factory=dict)  # from a tile on chip to HBM
    moved: dict[str, None] = field(default_factory=dict)  # the tiles that these read
    trips: dict[str, int] = field(default_factory=dict)
    of_several_trips: set[str] = field(default_factory=set)  # variables of loops that differ
    _ends: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)  # of statements
    _lives: dict[str, TileLives] = field(default_factory=dict)
    _boxes: dict[int, ByteBox] = field(default_factory=dict)  # by their patterns' identity

    @staticmethod
    def of(program: Program, tracer: MoveTracer) -> ProgramAccesses:
        found = ProgramAccesses(tracer)
        found._block(program.body, (), ())
        return found

    def _block(self, body: Block, path: tuple[int, ...], loops: tuple[str | None, ...]) -> None:
        for place, statement in enumerate(body):
            here, begin = (*path, place), len(self.instructions)
            if isinstance(statement, Instr):
                self._instruction(statement, here, loops)
            elif isinstance(statement, Loop):
                variable = statement.variable
                if statement.trips != self.trips.setdefault(variable, statement.trips):
                    self.of_several_trips.add(variable)
                self._block(statement.body, here, (*loops, variable))
            else:
                for number, inner in enumerate(blocks(statement)):
                    self._block(inner, (*here, number), (*loops, None, None))
            self._ends[here] = begin, len(self.instructions)

    def lives_of(self, name: str, program: Program) -> TileLives:
        """The lives of a tile on chip of the program, found once."""
        if name not in self._lives:
            self._lives[name] = TileLives(self, program, name)
        return self._lives[name]

    def tile_of(self, access: OperandAccess) -> Tile:
        """The tile whose bytes an access is to."""
        return self.tracer.base_of(access.pattern.tile)

    def box(self, pattern: Pattern, tile: Tile) -> ByteBox:
        """The bytes of this tile that one of the program's patterns has in all iterations."""
        if id(pattern) not in self._boxes:
            pitch = max(1, self.tracer.memories.region(tile).pitch)
            self._boxes[id(pattern)] = ByteBox.of(pattern, pitch, self.tracer, self.trips)
        return self._boxes[id(pattern)]

    def statement(self, access: OperandAccess, depth: int) -> tuple[int, int]:
        """The first instruction of the statement inside of `depth` blocks, and the one after it."""
        return self._ends[access.path[: depth + 1]]

    def numbers_inside(self, path: tuple[int, ...]) -> tuple[int, int]:
        """The first instruction inside of the statement with this path, and the one after it."""
        return self._ends[path]

    def accesses_inside(self, name: str, path: tuple[int, ...]) -> list[OperandAccess]:
        """What a statement accesses of a tile on chip, in program order."""
        accesses = self.on_chip[name]
        first, last = (
            bisect_left(accesses, number, key=lambda each: each.number)
            for number in self.numbers_inside(path)
        )
        return accesses[first:last]

    def _instruction(
        self, instr: Instr, path: tuple[int, ...], loops: tuple[str | None, ...]
    ) -> None:
        number = len(self.instructions)
        self.instructions.append(instr)
        for name, _, pattern in instr.operands():
            kind = instr.access(name)
            access = OperandAccess(
                number, path, loops, instr, name, pattern, kind != "writes", kind != "reads"
            )
            tile = self.tracer.base_of(pattern.tile)
            if tile.memory is Memory.HBM or meets_cores(instr):
                self.in_hbm.append(access)
            if tile.memory is not Memory.HBM:
                self.on_chip[tile.name].append(access)
        move = self.tracer.move_of(instr)
        if move is None or move.written.memory is not Memory.HBM:
            return
        source = self.tracer.base_of(move.read.tile)
        is_out = self.tracer.base_of(move.written.tile).memory is Memory.HBM
        if is_out and source.memory is not Memory.HBM:
            self.moves[number] = move
            self.moved[source.name] = None


class TileLives:
    """A tile on chip with the lives of what it holds."""

    def __init__(
        self, found: ProgramAccesses, program: Program, name: str, within: tuple[int, ...] = ()
    ) -> None:
        """With `within`, the path of a statement, as if there were no accesses outside of it."""
        self._found, self._tracer = found, found.tracer
        self.accesses = found.accesses_inside(name, within) if within else found.on_chip[name]
        self._looks = MORE_LOOKS + LOOKS * len(self.accesses)
        self.depth = _common_depth([each.path for each in self.accesses])
        self._tile = program.tiles[name]
        self._pitch = max(1, self._tracer.memories.region(self._tile).pitch)
        self._boxes: dict[tuple[OperandAccess, int], ByteBox] = {}  # by what is shared

    @cached_property
    def by_life(self) -> list[list[OperandAccess]] | None:
        """The accesses by life, None where a read may see what an earlier run of the block left."""
        if not all(map(self._is_regular, self.accesses)):
            return None
        group = list(range(len(self.accesses)))

        def root(number: int) -> int:
            while group[number] != number:
                group[number] = group[group[number]]
                number = group[number]
            return number

        for number, access in enumerate(self.accesses):
            if not access.is_read:
                continue
            seen = self._seen_by(number)
            if seen is None:
                return None
            for other in seen:
                group[root(other)] = root(number)
        lives: defaultdict[int, list[OperandAccess]] = defaultdict(list)
        for number, access in enumerate(self.accesses):
            lives[root(number)].append(access)
        return list(lives.values())

    def _seen_by(self, number: int) -> list[int] | None:
        """The writes that a read may see; None if it may see something else."""
        read, seen = self.accesses[number], []
        left: dict[int, list[Part]] = {}  # not yet written, by loops shared with writes
        covered = self._depth_of_own_sum(read)
        for other in range(number - 1, -1, -1):
            if covered is not None:
                break
            self._looks -= 1
            if self._looks < 0:
                return None
            write = self.accesses[other]
            if not write.is_written or write.number == read.number:
                continue
            shared = _shared_blocks(write.path, read.path)
            box, wanted = self._box(write, shared), self._box(read, shared)
            if not box.may_meet(wanted):
                continue
            seen.append(other)
            if takes_arrays(write.instr) and box.has_runs_of(wanted):
                whole = (wanted.first, wanted.last, wanted.low, wanted.high)
                left[shared] = box.taken_from(left.get(shared, [whole]))
                self._looks -= len(left[shared])
                if not left[shared]:
                    covered = shared
                    seen += self._seen_beside(other, number)
        if covered is None:
            return None
        return [*seen, *self._seen_from_other_iterations(number, covered)]

    def _seen_beside(self, covering: int, number: int) -> Iterator[int]:
        """Writes before a covering one in loops without the read, where they may come later too."""
        write, read = self.accesses[covering], self.accesses[number]
        shared = _shared_blocks(write.path, read.path)
        wanted = self._box(read, shared)
        for other in range(covering - 1, -1, -1):
            before = self.accesses[other]
            if _shared_blocks(before.path, write.path) <= shared:
                return
            if before.is_written and self._box(before, shared).may_meet(wanted):
                yield other

    def _depth_of_own_sum(self, access: OperandAccess) -> int | None:
        """The blocks around the loops in which a sum begins with what is written; None for others.

        Such a sum adds to what it wrote itself except in the loops' first iteration.
        """
        condition = access.instr.read_condition(access.operand)
        inner = access.loops[self.depth :]
        if condition.constant or not condition.terms or not access.is_written:
            return None
        if any(n not in inner or factor < 0 for n, factor in condition.terms):
            return None
        if set(condition.variables) & set(access.pattern.variables):
            return None
        return min(access.loops.index(name) for name in condition.variables)

    def _seen_from_other_iterations(self, number: int, covered: int) -> Iterator[int]:
        """Writes in loops inside of `covered` blocks, which a read may see an iteration later."""
        read = self.accesses[number]
        wanted = self._box(read, self.depth)
        for others in (range(number, len(self.accesses)), range(number - 1, -1, -1)):
            for other in others:
                write = self.accesses[other]
                if _shared_blocks(write.path, read.path) <= covered:
                    break
                if write.is_written and self._box(write, self.depth).may_meet(wanted):
                    yield other

    def _box(self, access: OperandAccess, shared: int) -> ByteBox:
        """The bytes of an access in all iterations of its loops inside of `shared` blocks."""
        if access.pattern.has_constant_start:
            return self._found.box(access.pattern, self._tile)
        key = access, min(shared, len(access.loops))
        if key not in self._boxes:
            free = {name: self._found.trips[name] for name in access.loops[shared:] if name}
            self._boxes[key] = ByteBox.of(access.pattern, self._pitch, self._tracer, free)
        return self._boxes[key]

    def _is_regular(self, access: OperandAccess) -> bool:
        """Whether loops alone say how often an access happens, and where."""
        inner = access.loops[self.depth :]
        is_counted = all(n and n not in self._found.of_several_trips for n in inner)
        is_counted &= not self._found.of_several_trips & set(access.pattern.variables)
        trips = self._found.trips
        return (
            is_counted
            and all(trips[name] > 0 for name in inner if name)
            and set(access.pattern.variables) <= set(access.loops)
            and self._tracer.is_inside(access.pattern, trips)
        )


def _common_depth(paths: Sequence[tuple[int, ...]]) -> int:
    """How many blocks contain all of these places, the program's own not counted."""
    return min(_shared_blocks(paths[0], path) for path in paths)


def _shared_blocks(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many blocks contain both places, the program's own not counted."""
    shared, most = 0, min(len(one), len(other)) - 1
    while shared < most and one[shared] == other[shared]:
        shared += 1
    return shared
