"""Loops on the device with several iterations in a body, so that these can overlap.

A tile that every iteration overwrites delays the next iteration until the last has read it. In a
body of several iterations each but the first gets a tile of its own (`rename_tiles`), and engines
and queues run ahead in it as in straight code. Program order is that of the kernel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile
from glia.machine.instruction_rewriting import substitute
from glia.machine.ir import Block, Loop, Program, Statement, walk, with_blocks
from glia.machine.passes.rename_tiles import free_names
from glia.machine.passes.tile_liveness import find_liveness
from glia.nki.session.ordering import is_fence

MOST_INSTRUCTIONS = 400  # of a body of several iterations
LEAST_TRIPS = 2  # of a loop that is left
FEWEST_DIVIDING = 3  # iterations in a body, to prefer their number where it divides the trips


def unroll_loops(program: Program, copies: int, ordered: Collection[Instr]) -> tuple[Program, int]:
    """The program with up to `copies` iterations in bodies of innermost loops, and in how many.

    Loops that hold some of the `ordered` instructions stay as they are.
    """
    unroller = _Unroller(program, copies, {id(each) for each in ordered})
    body = unroller.block(program.body)
    return replace(program, body=body, tiles=unroller.tiles), unroller.count


@dataclass
class _Unroller:
    """Unrolls loops, `count` of them; `tiles` are those of the program and of what is left over."""

    program: Program
    copies: int
    ordered: set[int]
    count: int = field(default=0, init=False)
    tiles: dict[str, Tile] = field(init=False)

    def __post_init__(self) -> None:
        self.tiles = dict(self.program.tiles)
        names = {p.tile.name for each in self.program.instructions() for p in each.patterns()}
        on_chip = {name for name in names if self.tiles[name].memory is not Memory.HBM}
        self.private = find_liveness(self.program, on_chip).keys()

    def block(self, body: Block) -> Block:
        result: list[Block] = []
        for statement in body:
            if isinstance(statement, Loop) and (copies := self._iterations(statement)) > 1:
                self.count += 1
                result.append(self._unrolled(statement, copies))
            elif isinstance(statement, Instr):
                result.append((statement,))
            else:
                result.append((with_blocks(statement, self.block),))
        return tuple(each for block in result for each in block)

    def _iterations(self, loop: Loop) -> int:
        """How many iterations a body gets; 1 where the loop stays as it is."""
        if not loop.body or any(self._keeps(each) for each in loop.body):
            return 1
        most = min(self.copies, MOST_INSTRUCTIONS // len(loop.body), loop.trips // LEAST_TRIPS)
        whole = (n for n in range(most, FEWEST_DIVIDING - 1, -1) if loop.trips % n == 0)
        return next(whole, max(1, most))

    def _keeps(self, statement: Statement) -> bool:
        """Whether a loop stays because of what is in it: a loop, a fence, a fixed order."""
        is_inner = not isinstance(statement, Instr)
        return is_inner or is_fence(statement) or id(statement) in self.ordered

    def _unrolled(self, loop: Loop, copies: int) -> Block:
        """The loop with so many iterations in its body, then those left over, with own tiles."""
        variable = Affine.of(loop.variable)
        body = _iterations_at(loop, [variable * copies + n for n in range(copies)], {})
        trips = loop.trips // copies
        left = [Affine.of(n) for n in range(trips * copies, loop.trips)]
        rest = _iterations_at(loop, left, self._clones(loop)) if left else ()
        return replace(loop, trips=trips, body=body), *rest

    def _clones(self, loop: Loop) -> dict[str, Tile]:
        """A copy of each tile that only the loop's body accesses, and each iteration overwrites."""
        clones = {}
        for name in {p.tile.name for each in walk(loop.body) for p in each.patterns()}:
            if name in self.private:
                clone = next(free_names(name, self.tiles))
                clones[name] = self.tiles[clone] = replace(self.tiles[name], name=clone)
        return clones


def _iterations_at(loop: Loop, values: list[Affine], tiles: dict[str, Tile]) -> Block:
    return tuple(
        substitute(each, tiles, {loop.variable: value}) for value in values for each in loop.body
    )
