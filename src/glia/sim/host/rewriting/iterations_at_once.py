"""Iterations of loops side by side, for threads to run at once.

A loop whose iterations touch nothing of each other, once each has tiles of its own for what it
makes and uses itself, becomes one of fewer iterations, each with the instructions of several. What
divides instructions into waves and strips sees these then. Values are the same, and so is what
each is computed from.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.instruction_rewriting import substitute_instruction
from glia.machine.ir import Block, Loop, Program, Statement, blocks, with_blocks
from glia.sim.host.overlap import may_touch, tiles_meet
from glia.sim.host.rewriting.element_moves import pattern_at, takes_arrays
from glia.sim.host.rewriting.lives import OperandAccess, ProgramAccesses, TileLives
from glia.sim.host.threads.waves import MOST_UNITS

MOST_BYTES = 1 << 22  # of tiles that iterations have of their own, together
ENOUGH_CHAINS = 3  # in a body, of iterations that a back end merged, for some threads
APART = 1 << 40  # from here on lie tiles that a device does not have


@dataclass(frozen=True)
class Widened:
    """A program of the same values, and its tiles that are copies: of which tile of the given."""

    program: Program
    copies: Mapping[str, str] = field(default_factory=dict)


def with_iterations_at_once(
    program: Program, found: ProgramAccesses, exposed: Sequence[Tile]
) -> Widened:
    """The program with some iterations of innermost loops side by side.

    `found` is what it accesses, `exposed` are its `exposed_tiles`. Copies of tiles lie where no
    device has memory.
    """
    return _Widening(program, found, exposed).widened()


def has_short_loops(body: Block) -> bool:
    """Whether a block has a loop of which iterations may stand side by side."""
    return any(
        _may_widen(each)
        if isinstance(each, Loop) and _is_innermost(each)
        else any(map(has_short_loops, blocks(each)))
        for each in body
    )


def _is_innermost(loop: Loop) -> bool:
    return all(isinstance(each, Instr) for each in loop.body)


def _may_widen(loop: Loop) -> bool:
    """Whether a loop is so short that a wave has several iterations."""
    return (
        loop.trips > 1
        and 0 < 2 * len(loop.body) <= MOST_UNITS
        and all(isinstance(each, Instr) and _may_move(each) for each in loop.body)
    )


def _may_move(instr: Instr) -> bool:
    touches_states = any(True for _ in instr.states_touched())
    has_open_sums = any(getattr(instr, name) is None for name in instr.sums.values())
    is_plain = takes_arrays(instr) and instr.sets_register is None
    return is_plain and not touches_states and not has_open_sums


class _Widening:
    def __init__(self, program: Program, found: ProgramAccesses, exposed: Sequence[Tile]) -> None:
        self._program, self._found, self._exposed = program, found, exposed
        self._tiles: dict[str, Tile] = {}  # that iterations have of their own
        self._addresses: dict[str, int] = {}
        self._copied: dict[str, str] = {}
        self._known_spans: dict[str, dict[OperandAccess, tuple[int, int]] | None] = {}
        self._end = APART

    def widened(self) -> Widened:
        body = self._block(self._program.body, ())
        program = replace(
            self._program,
            body=body,
            tiles={**self._program.tiles, **self._tiles},
            addresses={**self._program.addresses, **self._addresses},
        )
        return Widened(program, self._copied)

    def _block(self, body: Block, path: tuple[int, ...]) -> Block:
        """A block, which the path leads to, with its loops widened."""
        found: list[Statement] = []
        for place, statement in enumerate(body):
            here = (*path, place)
            if isinstance(statement, Loop) and _may_widen(statement):
                found += self._widened(statement, here)
            elif isinstance(statement, Loop):
                found.append(replace(statement, body=self._block(statement.body, here)))
            else:
                paths = ((*here, number) for number in itertools.count())
                found.append(with_blocks(statement, lambda b, p=paths: self._block(b, next(p))))  # type: ignore[misc]
        return tuple(found)

    def _widened(self, loop: Loop, path: tuple[int, ...]) -> list[Statement]:
        """What takes a loop's place; the loop where iterations depend on each other."""
        if not all(isinstance(each, Instr) and self._is_regular(each) for each in loop.body):
            return [loop]
        if self._chains(loop) >= ENOUGH_CHAINS:
            return [loop]
        own = self._own_tiles(loop, path)
        if not self._are_apart(loop, own):
            return [loop]
        size = sum(tile.partitions * tile.bytes_per_partition for tile in own)
        side_by_side = MOST_UNITS // len(loop.body)
        if size:
            side_by_side = min(side_by_side, MOST_BYTES // size)
        side_by_side = min(side_by_side, loop.trips)
        if side_by_side <= 1:
            return [loop]
        names = [self._copies(own, number) for number in range(side_by_side)]
        whole = loop.trips // side_by_side
        if whole == 1:
            found: list[Statement] = [*self._iterations(loop, Affine.of(0), names)]
        else:
            first = Affine.of(loop.variable) * side_by_side
            body = self._iterations(loop, first, names)
            found = [replace(loop, trips=whole, body=body)]
        done = whole * side_by_side
        found += self._iterations(loop, Affine.of(done), names[: loop.trips - done])
        return found

    def _iterations(
        self, loop: Loop, start: Affine, tiles: Sequence[Mapping[str, Tile]]
    ) -> tuple[Instr, ...]:
        """The instructions of iterations from one on, each with these tiles."""
        return tuple(
            substitute_instruction(instr, names, {loop.variable: start + number})
            for number, names in enumerate(tiles)
            for instr in loop.body
            if isinstance(instr, Instr)
        )

    def _chains(self, loop: Loop) -> int:
        """Into how many chains of instructions a body falls apart, by what they touch on chip."""
        chains: list[list[tuple[Pattern, bool]]] = []
        for each in loop.body:
            assert isinstance(each, Instr)
            accesses = [
                (pattern, each.access(name) != "reads")
                for name, _, pattern in each.operands()
                if pattern.memory is not Memory.HBM
            ]
            met = [chain for chain in chains if self._conflict(accesses, chain)]
            chains = [chain for chain in chains if chain not in met]
            chains.append([*accesses, *itertools.chain(*met)])
        return len(chains)

    def _conflict(
        self, some: Sequence[tuple[Pattern, bool]], others: Sequence[tuple[Pattern, bool]]
    ) -> bool:
        """Whether accesses, each of which may be a write, may meet where one of two writes."""
        return any(
            (is_written or other_is_written)
            and one.memory is other.memory
            and may_touch(one, other, self._program)
            for one, is_written in some
            for other, other_is_written in others
        )

    def _is_regular(self, instr: Instr) -> bool:
        """Whether an instruction stays within its tiles and runs as machine code for all data."""
        found = self._found
        return found.tracer.is_expression(instr) and all(
            found.tracer.is_inside(pattern, found.trips)
            and not found.of_several_trips.intersection(pattern.variables)
            for pattern in instr.patterns()
        )

    def _own_tiles(self, loop: Loop, path: tuple[int, ...]) -> list[Tile]:
        """The tiles on chip of which each iteration sees what it wrote, and no other reads that."""
        patterns = (p for each in loop.body if isinstance(each, Instr) for p in each.patterns())
        tiles = {p.tile.name: p.tile for p in patterns if p.memory is not Memory.HBM}
        return [tile for tile in tiles.values() if self._is_own(tile, path)]

    def _is_own(self, tile: Tile, path: tuple[int, ...]) -> bool:
        spans = self._spans(tile)
        if spans is None:
            return False
        inside = TileLives(self._found, self._program, tile.name, path)
        begin, end = self._found.numbers_inside(path)
        is_whole = all(
            begin <= first and last < end for first, last in map(spans.__getitem__, inside.accesses)
        )
        return is_whole and inside.by_life is not None

    def _spans(self, tile: Tile) -> dict[OperandAccess, tuple[int, int]] | None:
        """The first and the last instruction of each access's life; None for one without lives."""
        if tile.name not in self._known_spans:
            self._known_spans[tile.name] = self._spans_of(tile)
        return self._known_spans[tile.name]

    def _spans_of(self, tile: Tile) -> dict[OperandAccess, tuple[int, int]] | None:
        if self._is_exposed(tile):
            return None
        lives = self._found.lives_of(tile.name, self._program).by_life
        if lives is None:
            return None
        return {access: (life[0].number, life[-1].number) for life in lives for access in life}

    def _is_exposed(self, tile: Tile) -> bool:
        return any(
            other.memory is tile.memory and tiles_meet(tile, other, self._program)
            for other in self._exposed
        )

    def _are_apart(self, loop: Loop, own: Sequence[Tile]) -> bool:
        """Whether an iteration touches nothing that the one after it writes, nor the reverse."""
        names = {tile.name for tile in own}
        accesses = [
            (pattern, instr.access(name) != "reads")
            for instr in loop.body
            if isinstance(instr, Instr)
            for name, _, pattern in instr.operands()
            if pattern.tile.name not in names
        ]
        one_later = {loop.variable: Affine.of(loop.variable) + 1}
        later = [(pattern_at(pattern, one_later), is_written) for pattern, is_written in accesses]
        return not self._conflict(accesses, later)

    def _copies(self, own: Sequence[Tile], number: int) -> dict[str, Tile]:
        """The tiles of one of the iterations side by side, by the name of what they stand for."""
        found: dict[str, Tile] = {}
        for tile in own if number else ():
            name = f"{tile.name} of {number}"
            while name in self._program.tiles:
                name += "'"
            found[tile.name] = self._tiles[name] = replace(tile, name=name)
            self._copied[name], self._addresses[name] = tile.name, self._end
            self._end += tile.bytes_per_partition
        return found
