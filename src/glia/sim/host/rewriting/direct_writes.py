"""Results that are written where a later copy takes them.

A chip computes into its scratchpad and copies results out of it. Where a copy takes all that was
written of a tile on chip, the host writes it to the copy's destination at once, reads it there, and
does not make the copy. Results are the same bit by bit. In program order, which is the order that
the host runs in:

* A *life* of a tile is some writes with all reads that may see them. It lies within one run of
  the block that has all accesses to the tile, since no read sees what an earlier run left.
* A life moves if every access of it has an image in the destination of a copy among its reads,
  no write comes after that copy, and nothing else sees the difference: before the copy nothing
  else accesses the destination, after it nothing else writes there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.instruction_rewriting import rewrite_at
from glia.machine.ir import Block, Loop, Program, blocks
from glia.sim.host.overlap import may_touch, tiles_meet
from glia.sim.host.rewriting.byte_boxes import ByteBox
from glia.sim.host.rewriting.element_moves import (
    Move,
    MoveTracer,
    meets_cores,
    steps_alike,
    takes_arrays,
)
from glia.sim.host.rewriting.forwarding import MOST_ROUNDS, Forwarded

MOST_LOOKED_AT = 256  # accesses, for one read or one life: what has more stays as it is


def with_direct_writes(program: Program, tracer: MoveTracer, exposed: Sequence[Tile]) -> Forwarded:
    """The program for the host: what a copy takes out of a tile is written there at once.

    `exposed` are its `exposed_tiles`, or those of the program that `without_copies` made it of.
    """
    left_out: Counter[str] = Counter()
    for _ in range(MOST_ROUNDS):
        found = _Accesses.of(program, tracer)
        change: dict[int, Instr | None] = {}
        for name in found.moved:
            if not any(tiles_meet(program.tiles[name], other, program) for other in exposed):
                _Tile(found, program, name).move_lives(change)
        if not change:
            break
        left_out.update(found.instructions[n].mnemonic() for n, each in change.items() if not each)
        program = rewrite_at(program, change)
    return Forwarded(program, dict(left_out))


@dataclass(frozen=True, eq=False)
class _Access:
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

    @property
    def is_read(self) -> bool:
        return self.instr.access(self.operand) != "writes"

    @property
    def is_written(self) -> bool:
        return self.instr.access(self.operand) != "reads"


@dataclass
class _Accesses:
    """What a program accesses: tiles on chip by name, and everything in HBM."""

    tracer: MoveTracer
    on_chip: defaultdict[str, list[_Access]] = field(default_factory=lambda: defaultdict(list))
    in_hbm: list[_Access] = field(default_factory=list)  # in program order
    instructions: list[Instr] = field(default_factory=list)
    moves: dict[int, Move] = field(default_factory=dict)  # from a tile on chip to HBM
    moved: dict[str, None] = field(default_factory=dict)  # the tiles that these read
    trips: dict[str, int] = field(default_factory=dict)
    of_several_trips: set[str] = field(default_factory=set)  # variables of loops that differ

    @staticmethod
    def of(program: Program, tracer: MoveTracer) -> _Accesses:
        found = _Accesses(tracer)
        found._block(program.body, (), ())
        return found

    def _block(self, body: Block, path: tuple[int, ...], loops: tuple[str | None, ...]) -> None:
        for place, statement in enumerate(body):
            here = (*path, place)
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

    def _instruction(
        self, instr: Instr, path: tuple[int, ...], loops: tuple[str | None, ...]
    ) -> None:
        number = len(self.instructions)
        self.instructions.append(instr)
        for name, _, pattern in instr.operands():
            access = _Access(number, path, loops, instr, name, pattern)
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


class _Tile:
    """A tile on chip with the lives of what it holds."""

    def __init__(self, found: _Accesses, program: Program, name: str) -> None:
        self._found, self._program, self._tracer = found, program, found.tracer
        self._accesses = found.on_chip[name]
        self._depth = _common_depth([each.path for each in self._accesses])
        self._pitch = max(1, self._tracer.memories.region(program.tiles[name]).pitch)

    def move_lives(self, change: dict[int, Instr | None]) -> None:
        """Add what becomes of instructions where lives move, None for copies that go."""
        if not all(map(self._is_regular, self._accesses)):
            return
        for life in self._accesses_by_life() or ():
            for access in life:
                if self._moves_with(access, life, change):
                    break

    def _is_regular(self, access: _Access) -> bool:
        """Whether loops alone say how often an access happens, and where."""
        inner = access.loops[self._depth :]
        is_counted = all(n and n not in self._found.of_several_trips for n in inner)
        trips = self._found.trips
        return (
            is_counted
            and all(trips[name] > 0 for name in inner if name)
            and set(access.pattern.variables) <= set(access.loops)
        )

    # --- lives --------------------------------------------------------------------------------

    def _accesses_by_life(self) -> list[list[_Access]] | None:
        """The accesses by life, None where a read may see what an earlier run of the block left."""
        group = list(range(len(self._accesses)))

        def root(number: int) -> int:
            while group[number] != number:
                group[number] = group[group[number]]
                number = group[number]
            return number

        for number, access in enumerate(self._accesses):
            if not access.is_read:
                continue
            seen = self._seen_by(number)
            if seen is None:
                return None
            for other in seen:
                group[root(other)] = root(number)
        lives: defaultdict[int, list[_Access]] = defaultdict(list)
        for number, access in enumerate(self._accesses):
            lives[root(number)].append(access)
        return list(lives.values())

    def _seen_by(self, number: int) -> list[int] | None:
        """The writes that a read may see; None if it may see something else."""
        read, seen = self._accesses[number], []
        left: dict[int, list[tuple[int, int]]] = {}  # not yet written, by loops shared with writes
        covered = self._depth_of_own_sum(read)
        for other in range(number - 1, -1, -1):
            if covered is not None:
                break
            if number - other > MOST_LOOKED_AT:
                return None
            write = self._accesses[other]
            if not write.is_written or write.number == read.number:
                continue
            shared = _shared_blocks(write.path, read.path)
            box, wanted = self._box(write, shared), self._box(read, shared)
            if not box.may_meet(wanted):
                continue
            seen.append(other)
            if box.covers_rows(wanted):
                before = left.get(shared, [(wanted.low, wanted.high)])
                left[shared] = _remaining(before, box.low, box.high)
                covered = None if left[shared] else shared
        if covered is None:
            return None
        return [*seen, *self._seen_from_other_iterations(number, covered)]

    def _depth_of_own_sum(self, access: _Access) -> int | None:
        """The blocks around the loops in which a sum begins with what is written; None for others.

        Such a sum adds to what it wrote itself except in the loops' first iteration.
        """
        condition = access.instr.read_condition(access.operand)
        inner = access.loops[self._depth :]
        if condition.constant or not condition.terms or not access.is_written:
            return None
        if any(n not in inner or factor < 0 for n, factor in condition.terms):
            return None
        if set(condition.variables) & set(access.pattern.variables):
            return None
        return min(access.loops.index(name) for name in condition.variables)

    def _seen_from_other_iterations(self, number: int, covered: int) -> Iterator[int]:
        """Writes in loops inside of `covered` blocks, which a read may see an iteration later."""
        read = self._accesses[number]
        wanted = self._box(read, self._depth)
        for others in (range(number, len(self._accesses)), range(number - 1, -1, -1)):
            for other in others:
                write = self._accesses[other]
                if _shared_blocks(write.path, read.path) <= covered:
                    break
                if write.is_written and self._box(write, self._depth).may_meet(wanted):
                    yield other

    def _box(self, access: _Access, shared: int) -> ByteBox:
        """The bytes of an access in all iterations of its loops inside of `shared` blocks."""
        free = {name: self._found.trips[name] for name in access.loops[shared:] if name}
        return ByteBox.of(access.pattern, self._pitch, self._tracer, free)

    # --- moving -------------------------------------------------------------------------------

    def _moves_with(
        self, copied: _Access, life: Sequence[_Access], change: dict[int, Instr | None]
    ) -> bool:
        """Whether a life moves to where an instruction copies it; then also changes the program."""
        move = self._found.moves.get(copied.number)
        inverse = move.inverse() if move is not None else None
        is_direct = len(copied.path) == self._depth + 1
        if move is None or inverse is None or not is_direct or copied.number in change:
            return False
        images: list[tuple[_Access, Pattern]] = []
        for access in life:
            if access is copied:
                continue
            if access.is_written and access.number > copied.number:
                return False
            image = self._image(access, inverse)
            if image is None or change.get(access.number, access.instr) is None:
                return False
            images.append((access, image))
        if not self._may_be_early(move.written, copied, life):
            return False
        change[copied.number] = None
        for access, image in images:
            instr = change.get(access.number) or access.instr
            change[access.number] = replace(instr, **{access.operand: image})  # type: ignore[arg-type]
            insort(self._found.in_hbm, replace(access, pattern=image), key=lambda each: each.number)
        return True

    def _image(self, access: _Access, inverse: Move) -> Pattern | None:
        """What an operand is where its tile's life has moved; None if it cannot be there."""
        instr = access.instr
        is_several = instr.operand_declarations[access.operand].is_several
        has_open_sums = any(getattr(instr, name) is None for name in instr.sums.values())
        if not takes_arrays(instr) or is_several or has_open_sums:
            return None
        trips = {name: self._found.trips[name] for name in access.loops[self._depth :] if name}
        image = self._tracer.image(access.pattern, inverse, trips)
        if image is None:
            return None
        is_packed = instr.runs_on == "tensor" and not access.is_written
        return image if is_packed or steps_alike(image, access.pattern) else None

    def _may_be_early(self, written: Pattern, copied: _Access, life: Sequence[_Access]) -> bool:
        """Whether nothing but a life sees that what it copies is written there from its begin."""
        first, last = life[0], life[-1]
        in_hbm = self._found.in_hbm
        begin = bisect_left(in_hbm, first.number, key=lambda each: each.number)
        end = bisect_right(in_hbm, last.number, key=lambda each: each.number)
        while begin and self._is_in_statement(in_hbm[begin - 1], first):
            begin -= 1
        while end < len(in_hbm) and self._is_in_statement(in_hbm[end], last):
            end += 1
        if end - begin > MOST_LOOKED_AT:
            return False
        is_single = len(first.path) == self._depth + 1
        for other in in_hbm[begin:end]:
            is_own_read = is_single and other.number == first.number and not other.is_written
            is_late_read = other.number > copied.number and not other.is_written
            if other.number == copied.number or is_own_read or is_late_read:
                continue
            if meets_cores(other.instr) or may_touch(written, other.pattern, self._program):
                return False
        return True

    def _is_in_statement(self, one: _Access, other: _Access) -> bool:
        """Whether two accesses are in one statement of the block that has all of the tile."""
        return one.path[: self._depth + 1] == other.path[: self._depth + 1]


def _common_depth(paths: Sequence[tuple[int, ...]]) -> int:
    """How many blocks contain all of these places, the program's own not counted."""
    return min(_shared_blocks(paths[0], path) for path in paths)


def _shared_blocks(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many blocks contain both places, the program's own not counted."""
    shared, most = 0, min(len(one), len(other)) - 1
    while shared < most and one[shared] == other[shared]:
        shared += 1
    return shared


def _remaining(intervals: Sequence[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """What remains of intervals without those from `low` to before `high`."""
    parts = [part for a, b in intervals for part in ((a, min(b, low)), (max(a, high), b))]
    return [(a, b) for a, b in parts if a < b]
