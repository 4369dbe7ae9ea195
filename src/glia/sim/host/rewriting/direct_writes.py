"""Results that are written where a later copy takes them.

A chip computes into its scratchpad and copies results out of it. Where a copy takes all that was
written of a tile on chip, the host writes it to the copy's destination at once, reads it there, and
does not make the copy. Results are the same bit by bit. In program order, which is the order that
the host runs in:

* A life of a tile (`lives.py`) moves if every access of it has an image in the destination of a
  copy among its reads, no write comes after that copy, and nothing else sees the difference:
  before the copy nothing else accesses the destination, after it nothing else writes there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile
from glia.machine.instruction_rewriting import rewrite_at
from glia.machine.ir import Program
from glia.sim.host.overlap import may_touch, tiles_meet
from glia.sim.host.rewriting.element_moves import (
    Move,
    MoveTracer,
    may_relocate,
    meets_cores,
    steps_alike,
    takes_arrays,
)
from glia.sim.host.rewriting.forwarding import MOST_ROUNDS, Forwarded
from glia.sim.host.rewriting.lives import OperandAccess, ProgramAccesses, TileLives

MOST_LOOKED_AT = 256  # accesses in HBM during a life: one with more stays as it is


def with_direct_writes(program: Program, tracer: MoveTracer, exposed: Sequence[Tile]) -> Forwarded:
    """The program for the host: what a copy takes out of a tile is written there at once.

    `exposed` are its `exposed_tiles`, or those of the program that `without_copies` made it of.
    """
    left_out: Counter[str] = Counter()
    for _ in range(MOST_ROUNDS):
        found = ProgramAccesses.of(program, tracer)
        change: dict[int, Instr | None] = {}
        for name in found.moved:
            if not any(tiles_meet(program.tiles[name], other, program) for other in exposed):
                _Mover(found, program, name).move_lives(change)
        if not change:
            break
        left_out.update(found.instructions[n].mnemonic() for n, each in change.items() if not each)
        program = rewrite_at(program, change)
    return Forwarded(program, dict(left_out))


class _Mover:
    """Moves the lives of one tile."""

    def __init__(self, found: ProgramAccesses, program: Program, name: str) -> None:
        self._found, self._program, self._tracer = found, program, found.tracer
        self._lives = TileLives(found, program, name)
        self._depth = self._lives.depth

    def move_lives(self, change: dict[int, Instr | None]) -> None:
        """Add what becomes of instructions where lives move, None for copies that go."""
        for life in self._lives.by_life or ():
            for access in life:
                if self._moves_with(access, life, change):
                    break

    def _moves_with(
        self, copied: OperandAccess, life: Sequence[OperandAccess], change: dict[int, Instr | None]
    ) -> bool:
        """Whether a life moves to where an instruction copies it; then also changes the program."""
        move = self._found.moves.get(copied.number)
        inverse = move.inverse() if move is not None else None
        is_direct = len(copied.path) == self._depth + 1
        if move is None or inverse is None or not is_direct or copied.number in change:
            return False
        images: list[tuple[OperandAccess, Pattern]] = []
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

    def _image(self, access: OperandAccess, inverse: Move) -> Pattern | None:
        """What an operand is where its tile's life has moved; None if it cannot be there."""
        instr = access.instr
        is_several = instr.operand_declarations[access.operand].is_several
        has_open_sums = any(getattr(instr, name) is None for name in instr.sums.values())
        may_change = may_relocate(instr, access.operand, access.pattern)
        if not takes_arrays(instr) or is_several or has_open_sums or not may_change:
            return None
        trips = {name: self._found.trips[name] for name in access.loops[self._depth :] if name}
        image = self._tracer.image(access.pattern, inverse, trips)
        if image is None:
            return None
        is_packed = instr.runs_on == "tensor" and not access.is_written
        return image if is_packed or steps_alike(image, access.pattern) else None

    def _may_be_early(
        self, written: Pattern, copied: OperandAccess, life: Sequence[OperandAccess]
    ) -> bool:
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

    def _is_in_statement(self, one: OperandAccess, other: OperandAccess) -> bool:
        """Whether two accesses are in one statement of the block that has all of the tile."""
        return one.path[: self._depth + 1] == other.path[: self._depth + 1]
