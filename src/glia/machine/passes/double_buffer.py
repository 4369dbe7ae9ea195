"""Overlap loop iterations: unroll by two and give each copy its own tiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.base.options import CompileOptions
from glia.isa.operand import Memory, Tile
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk
from glia.machine.rewrite import substitute

UNROLLED = {2: (4, 400), 3: (8, 1200)}  # -O level: most trips, most instructions, to unroll whole


def double_buffer(program: Program, options: CompileOptions) -> Program:
    """Unroll innermost loops by two, short ones whole, with separate tiles for each copy.

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
    unroller = _Unroller(uses, tiles, *UNROLLED[options.optlevel])
    body = unroller.block(program.body)
    return replace(program, body=body, tiles=tiles)


@dataclass
class _Unroller:
    uses: Counter
    tiles: dict[str, Tile]
    most_trips: int
    most_instructions: int

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop):
                result += self.loop(statement)
            elif isinstance(statement, While):
                condition = self.block(statement.condition)
                inner = self.block(statement.body)
                result.append(While(condition, statement.register, inner))
            elif isinstance(statement, Branch):
                arms = tuple(self.block(arm) for arm in statement.arms)
                result.append(Branch(statement.register, arms))
            else:
                result.append(statement)
        return tuple(result)

    def loop(self, loop: Loop) -> list[Statement]:
        body = self.block(loop.body)
        has_inner = any(isinstance(s, Loop | While | Branch) for s in body)
        if has_inner or loop.trips < 2:
            return [Loop(loop.variable, loop.trips, body)]
        copier = _Copier(loop, body, self.uses, self.tiles)
        is_short = loop.trips * len(body) <= self.most_instructions
        if loop.trips <= self.most_trips and is_short:
            copies = (copier.copy(Affine((), trip), owns=trip > 0) for trip in range(loop.trips))
            return [statement for copy in copies for statement in copy]
        variable = Affine.of(loop.variable)
        even = copier.copy(variable * 2, owns=False)
        odd = copier.copy(variable * 2 + 1, owns=True)
        last = Affine((), loop.trips - 1)
        rest = copier.copy(last, owns=False) if loop.trips % 2 else []
        return [Loop(loop.variable, loop.trips // 2, (*even, *odd)), *rest]


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
