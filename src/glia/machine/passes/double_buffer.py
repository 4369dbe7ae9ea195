"""Overlap of loop iterations: unroll loops and give each copy private tiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from glia.arch import get_target
from glia.base.affine import Affine
from glia.base.compilation_memo import memoise
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile, usable_bytes_per_partition
from glia.machine.ir import Loop, Program, Statement, walk, with_blocks
from glia.machine.overlap.copier import LoopCopier
from glia.machine.overlap.overlap_plan import OverlapPlanner
from glia.machine.passes.schedule import scheduler_of
from glia.options import CompileOptions
from glia.tile.model_families import FAMILIES

BUFFERED_SHARES = {
    Memory.SBUF: 0.25,
    Memory.PSUM: 0.5,
}  # of each memory, for the private tiles of a loop


@dataclass(frozen=True)
class UnrollLimits:
    """Limits of unrolling at one optimisation level."""

    full_unroll_trips: int  # most trips of a loop that is unrolled completely
    instructions: int  # most instructions of any unrolled body
    copies: int  # most iterations side by side
    inner_instructions: int  # of an inner loop that is unrolled so that the loop around it can be


LIMITS = {2: UnrollLimits(4, 400, 4, 64), 3: UnrollLimits(8, 1200, 8, 64)}


def double_buffer(program: Program, options: CompileOptions) -> Program:
    """Unroll innermost loops by two or more, short ones completely, with tiles for each copy.

    Loads of one iteration can then run while another computes: no tile is shared by both.
    """
    if options.optlevel < 2:
        return replace(program, body=_without_copies(program.body))
    uses = Counter(
        pattern.tile.name
        for instruction in program.instructions()
        for pattern in instruction.patterns()
    )
    tiles = dict(program.tiles)
    arch = get_target(program.target).arch
    capacity = {
        memory: usable_bytes_per_partition(memory, arch) * share
        for memory, share in BUFFERED_SHARES.items()
    }
    is_more = FAMILIES[options.model_type].unrolls_more
    limits = LIMITS[3 if is_more else options.optlevel]
    planner = _planner(program.target, options.optlevel)
    unroller = _Unroller(uses, tiles, limits, planner, capacity)
    with planner.scheduler.summing(program):
        body = unroller.block(program.body)
    return replace(program, body=body, tiles=tiles)


def _planner(target: str, optlevel: int) -> OverlapPlanner:
    """The planner of a target's loops, which remembers plans for a compilation."""
    return memoise(
        (_planner, target, optlevel), lambda: OverlapPlanner(scheduler_of(target, optlevel))
    )


def _without_copies(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements without what loops say of copies."""
    found = (with_blocks(statement, _without_copies) for statement in body)
    return tuple(
        replace(each, copies=0, room=0) if isinstance(each, Loop) and each.copies else each
        for each in found
    )


@dataclass
class _Unroller:
    """Unrolls the loops of a block; `uses` counts the accesses to each tile."""

    uses: Counter[str]
    tiles: dict[str, Tile]
    limits: UnrollLimits
    planner: OverlapPlanner
    capacity: dict[Memory, float]  # bytes per partition

    def block(self, body: tuple[Statement, ...], most: int = 0) -> tuple[Statement, ...]:
        """The statements with their loops unrolled, those of `most` instructions completely."""
        result: list[Statement] = []
        for statement in body:
            if isinstance(statement, Loop):
                result += self.loop(statement, most)
            else:
                result.append(with_blocks(statement, self.block))
        return tuple(result)

    def loop(self, loop: Loop, most: int) -> list[Statement]:
        if loop.is_fixed:
            return [replace(loop, body=_without_copies(loop.body))]
        inner = self.limits.inner_instructions
        if loop.copies and 2 * _unrolled_count(loop.body) <= self.limits.instructions:
            inner = self.limits.instructions
        if loop.copies > 1 and not loop.room:
            return self._in_copies(loop, self.block(loop.body, inner))
        body, kept = self._body(loop, inner)
        has_inner = not all(isinstance(each, Instr) for each in body)
        if loop.trips < 2 or loop.copies == 1 or (has_inner and not loop.copies):
            return [Loop(loop.variable, loop.trips, body)]
        copier = LoopCopier(loop.variable, body, self.uses, self.tiles)
        if has_inner:
            copier.private = [name for name in copier.private if name not in kept]
            return self._take_turns(loop, copier)
        count = loop.trips * len(body)
        is_short = loop.trips <= self.limits.full_unroll_trips and count <= self.limits.instructions
        may_be_whole = not most  # no loop around it, for which all of it is a body to overlap
        if loop.copies and (staged := self._in_stages(loop, copier, may_be_whole=may_be_whole)):
            return staged
        sets = self._maximum_sets(copier)
        if is_short or count <= most:
            return copier.copies(range(loop.trips), sets)
        return self._unroll_partially(self._with_outside(loop, copier), copier, sets)

    def _body(self, loop: Loop, most: int) -> tuple[tuple[Statement, ...], set[str]]:
        """(a loop's body, unrolled, the tiles in SBUF that the loops with copies in it write)."""
        body: list[Statement] = []
        written: set[str] = set()
        for statement in loop.body:
            part = self.block((statement,), most)
            body += part
            if isinstance(statement, Loop) and statement.copies:
                loops = tuple(each for each in part if isinstance(each, Loop))
                tiles = (p.tile for each in walk(loops) for p in each.written_patterns())
                written |= {tile.name for tile in tiles if tile.memory is not Memory.PSUM}
        return tuple(body), written

    def _in_copies(self, loop: Loop, body: tuple[Statement, ...]) -> list[Statement]:
        """The loop unrolled by its number of copies, with the loops inside of it."""
        copier = LoopCopier(loop.variable, body, self.uses, self.tiles)
        copies, trips = loop.copies, loop.trips
        count = trips * sum(1 for _ in walk(body))
        is_short = trips <= self.limits.full_unroll_trips and count <= self.limits.instructions
        if is_short or trips < 2 * copies:
            has_inner = not all(isinstance(each, Instr) for each in body)
            # what follows a loop is no earlier than that: it may have the same addresses
            return copier.copies(range(trips), trips if has_inner else copies)
        variable = Affine.of(loop.variable)
        unrolled = copier.copies((variable * copies + i for i in range(copies)), copies)
        rest = copier.copies(range(trips // copies * copies, trips), copies)
        return [Loop(loop.variable, trips // copies, tuple(unrolled)), *rest]

    def _in_stages(self, loop: Loop, copier: LoopCopier, *, may_be_whole: bool) -> list[Statement]:
        """The loop with iterations that overlap, in the way that makes it fastest, if any."""
        most = min(loop.copies, self.limits.copies)
        instructions = self.limits.instructions
        is_whole = may_be_whole and loop.trips * len(copier.body) <= instructions
        plan = self.planner.plan(loop, copier, most, instructions, may_be_whole=is_whole)
        return plan.copier.steps(self._with_outside(loop, copier), plan) if plan else []

    def _with_outside(self, loop: Loop, copier: LoopCopier) -> Loop:
        """The loop with room for all that it accesses, as its body is ordered in."""
        return replace(loop, room=copier.room_with_outside(loop.room, self.planner.scheduler.arch))

    def _maximum_sets(self, copier: LoopCopier) -> int:
        """The number of sets of private tiles that fit in memory; at least 1."""
        most = max(self.limits.copies, self.limits.full_unroll_trips)
        for memory, capacity in self.capacity.items():
            private_bytes = copier.private_bytes(memory)
            most = min(most, int(capacity // private_bytes) if private_bytes else most)
        return max(1, most)

    def _unroll_partially(self, loop: Loop, copier: LoopCopier, sets: int) -> list[Statement]:
        """Unroll by a factor that divides the trips, if one fits; else peel the remainder."""
        most = min(sets, self.limits.copies, self.limits.instructions // len(copier.body))
        fitting = range(min(most, loop.trips // 2), 1, -1)
        count = next((f for f in fitting if loop.trips % f == 0), max(fitting, default=1))
        return self._unroll(loop, copier, count, sets)

    def _take_turns(self, loop: Loop, copier: LoopCopier) -> list[Statement]:
        """The loop around a loop with copies: iterations take turns at what is loaded around it."""
        if loop.trips <= loop.copies:
            return copier.copies(range(loop.trips), loop.copies)
        return self._unroll(loop, copier, loop.copies, loop.copies, has_rest_own=True)

    @staticmethod
    def _unroll(
        loop: Loop, copier: LoopCopier, count: int, sets: int, *, has_rest_own: bool = False
    ) -> list[Statement]:
        """Unroll by a factor, with so many sets of tiles.

        What is left where the factor does not divide the trips may have tiles of its own: those of
        the loop would be live until then.
        """
        variable = Affine.of(loop.variable)
        unrolled = copier.copies((variable * count + i for i in range(count)), sets)
        left = range(loop.trips // count * count, loop.trips)
        rest = copier.copies(left, sets, sets if has_rest_own else 0)
        return [replace(loop, trips=loop.trips // count, body=tuple(unrolled)), *rest]


def _unrolled_count(body: tuple[Statement, ...]) -> int:
    """How many instructions a body has when its loops are unrolled."""
    return sum(
        each.trips * _unrolled_count(each.body)
        if isinstance(each, Loop)
        else sum(1 for _ in walk((each,)))
        for each in body
    )
