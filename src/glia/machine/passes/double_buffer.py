"""Overlap loop iterations: unroll by a few and give each copy its own tiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from glia.arch import get_target
from glia.base.affine import Affine
from glia.base.options import CompileOptions
from glia.isa.operand import Memory, Tile
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk
from glia.machine.rewrite import substitute

BUFFERED_SHARE = 0.25  # of SBUF and of PSUM, for the tiles of the copies of one loop


@dataclass(frozen=True)
class Limits:
    """How far loops are unrolled at a level of optimisation."""

    whole_trips: int  # most trips of a loop that is unrolled whole
    instructions: int  # most instructions of any unrolled body
    copies: int  # most iterations side by side
    inner_instructions: int  # of an inner loop that is unrolled so that the loop around it can be


LIMITS = {2: Limits(4, 400, 4, 16), 3: Limits(8, 1200, 8, 64)}


def double_buffer(program: Program, options: CompileOptions) -> Program:
    """Unroll innermost loops by two or more, short ones whole, with separate tiles for each copy.

    Loads of one iteration can then run while another computes: no tile is shared by both.
    """
    if options.optlevel < 2:
        return program
    uses = Counter(
        pattern.tile.name
        for instruction in program.instructions()
        for _, _, pattern in instruction.operands()
    )
    tiles = dict(program.tiles)
    arch = get_target(program.target).arch
    room = {
        Memory.SBUF: arch.sbuf_usable_bytes_per_partition * BUFFERED_SHARE,
        Memory.PSUM: arch.psum_bytes_per_partition * BUFFERED_SHARE,
    }
    unroller = _Unroller(uses, tiles, LIMITS[options.optlevel], room)
    body = unroller.block(program.body, is_nested=False)
    return replace(program, body=body, tiles=tiles)


@dataclass
class _Unroller:
    uses: Counter
    tiles: dict[str, Tile]
    limits: Limits
    room: dict[Memory, float]  # bytes per partition

    def block(self, body: tuple[Statement, ...], *, is_nested: bool) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop):
                result += self.loop(statement, is_nested=is_nested)
            elif isinstance(statement, While):
                condition = self.block(statement.condition, is_nested=False)
                inner = self.block(statement.body, is_nested=False)
                result.append(While(condition, statement.register, inner))
            elif isinstance(statement, Branch):
                arms = tuple(self.block(arm, is_nested=False) for arm in statement.arms)
                result.append(Branch(statement.register, arms))
            else:
                result.append(statement)
        return tuple(result)

    def loop(self, loop: Loop, *, is_nested: bool) -> list[Statement]:
        if loop.is_fixed:
            return [loop]
        body = self.block(loop.body, is_nested=True)
        has_inner = any(isinstance(s, Loop | While | Branch) for s in body)
        if has_inner or loop.trips < 2:
            return [Loop(loop.variable, loop.trips, body)]
        copier = _Copier(loop, body, self.uses, self.tiles)
        count = loop.trips * len(body)
        is_short = loop.trips <= self.limits.whole_trips and count <= self.limits.instructions
        if is_short or (is_nested and count <= self.limits.inner_instructions):
            copies = (copier.copy(Affine((), trip), owns=trip > 0) for trip in range(loop.trips))
            return [statement for copy in copies for statement in copy]
        return self._unrolled(loop, copier, self._copies(loop, copier))

    def _copies(self, loop: Loop, copier: _Copier) -> int:
        """How many iterations to have side by side: what fits, a divisor of the trips if any."""
        most = min(self.limits.copies, self.limits.instructions // len(copier.body))
        for memory, room in self.room.items():
            held = copier.private_bytes(memory)
            most = min(most, int(room // held) if held else most)
        fitting = range(min(most, loop.trips // 2), 1, -1)
        return next((f for f in fitting if loop.trips % f == 0), max(fitting, default=2))

    @staticmethod
    def _unrolled(loop: Loop, copier: _Copier, count: int) -> list[Statement]:
        variable = Affine.of(loop.variable)
        copies = [copier.copy(variable * count + i, owns=i > 0) for i in range(count)]
        done = loop.trips // count * count
        rest = [
            statement
            for trip in range(done, loop.trips)
            for statement in copier.copy(Affine((), trip), owns=trip > done)
        ]
        together = tuple(statement for copy in copies for statement in copy)
        return [Loop(loop.variable, loop.trips // count, together), *rest]


class _Copier:
    """Copies a loop's body, keeping count of how often each tile is used."""

    def __init__(
        self, loop: Loop, body: tuple[Statement, ...], uses: Counter, tiles: dict[str, Tile]
    ) -> None:
        self.variable = loop.variable
        self.body = body
        self.uses = uses
        self.tiles = tiles
        self.inside = Counter(
            pattern.tile.name
            for instruction in walk(body)
            for _, _, pattern in instruction.operands()
        )
        on_chip = (name for name in self.inside if tiles[name].memory is not Memory.HBM)
        self.private = [name for name in on_chip if self.inside[name] == uses[name]]
        uses.subtract(self.inside)

    def private_bytes(self, memory: Memory) -> int:
        """Bytes per partition of the tiles that each copy has of its own."""
        own = (self.tiles[name] for name in self.private)
        return sum(tile.bytes_per_partition for tile in own if tile.memory is memory)

    def copy(self, value: Affine, *, owns: bool) -> list[Statement]:
        """The body at one value of the loop variable; `owns` gives it tiles of its own."""
        others = {name: self._another(name) for name in self.private} if owns else {}
        for name, count in self.inside.items():
            self.uses[others[name].name if name in others else name] += count
        return [substitute(statement, others, {self.variable: value}) for statement in self.body]

    def _another(self, name: str) -> Tile:
        number = 1
        while f"{name}'{number}" in self.tiles:
            number += 1
        made = replace(self.tiles[name], name=f"{name}'{number}")
        self.tiles[made.name] = made
        return made
