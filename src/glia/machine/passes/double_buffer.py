"""Overlap of loop iterations: unroll loops and give each copy private tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from glia.arch import get_target
from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile, usable_bytes_per_partition
from glia.machine.instruction_rewriting import substitute
from glia.machine.ir import Loop, Program, Statement, walk, with_blocks
from glia.machine.passes.schedule import WINDOWS, Scheduler
from glia.machine.passes.stages import Stages, find_stages, interval_ns
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
    unroller = _Unroller(
        uses,
        tiles,
        LIMITS[3 if is_more else options.optlevel],
        Scheduler(arch, WINDOWS[options.optlevel]),
        capacity,
    )
    body = unroller.block(program.body)
    return replace(program, body=body, tiles=tiles)


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
    scheduler: Scheduler
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
        body = self.block(loop.body, inner)
        has_inner = not all(isinstance(each, Instr) for each in body)
        if has_inner or loop.trips < 2 or loop.copies == 1:
            return [Loop(loop.variable, loop.trips, body)]
        copier = _Copier(loop, body, self.uses, self.tiles)
        count = loop.trips * len(body)
        is_short = loop.trips <= self.limits.full_unroll_trips and count <= self.limits.instructions
        if loop.copies and (staged := self._in_stages(loop, copier)):
            return staged
        sets = self._maximum_sets(copier)
        if is_short or count <= most:
            return copier.copies(range(loop.trips), sets)
        return self._unroll_partially(loop, copier, sets)

    def _in_stages(self, loop: Loop, copier: _Copier) -> list[Statement]:
        """The loop with iterations that overlap, in as many stages as make it fastest, if any."""
        most = min(loop.copies, self.limits.copies, self.limits.instructions // len(copier.body))
        body = [each for each in copier.body if isinstance(each, Instr)]
        best: tuple[float, Stages, int] | None = None
        for stages in find_stages(body, frozenset(copier.private), self.tiles, self.scheduler):
            sets = min(most, loop.room // max(1, stages.copy_bytes))
            if sets < max(2, stages.count) or loop.trips < stages.count + 2 * sets:
                continue
            tried = _Copier(loop, copier.body, Counter(copier.own_uses), dict(self.tiles))
            steps = next(s for s in tried.steps(loop, stages, sets) if isinstance(s, Loop))
            time_ns = interval_ns(steps, self.scheduler) / sets
            if best is None or time_ns < best[0]:
                best = time_ns, stages, sets
        return copier.steps(loop, best[1], best[2]) if best else []

    def _maximum_sets(self, copier: _Copier) -> int:
        """The number of sets of private tiles that fit in memory; at least 1."""
        most = max(self.limits.copies, self.limits.full_unroll_trips)
        for memory, capacity in self.capacity.items():
            private_bytes = copier.private_bytes(memory)
            most = min(most, int(capacity // private_bytes) if private_bytes else most)
        return max(1, most)

    def _unroll_partially(self, loop: Loop, copier: _Copier, sets: int) -> list[Statement]:
        """Unroll by a factor that divides the trips, if one fits; else peel the remainder."""
        most = min(sets, self.limits.copies, self.limits.instructions // len(copier.body))
        fitting = range(min(most, loop.trips // 2), 1, -1)
        count = next((f for f in fitting if loop.trips % f == 0), max(fitting, default=1))
        variable = Affine.of(loop.variable)
        unrolled = copier.copies((variable * count + i for i in range(count)), sets)
        rest = copier.copies(range(loop.trips // count * count, loop.trips), sets)
        return [replace(loop, trips=loop.trips // count, body=tuple(unrolled)), *rest]


def _unrolled_count(body: tuple[Statement, ...]) -> int:
    """How many instructions a body has when its loops are unrolled."""
    return sum(
        each.trips * _unrolled_count(each.body)
        if isinstance(each, Loop)
        else sum(1 for _ in walk((each,)))
        for each in body
    )


class _Copier:
    """Copies a loop's body with private tiles, updating the number of uses of each tile."""

    def __init__(
        self, loop: Loop, body: tuple[Statement, ...], uses: Counter[str], tiles: dict[str, Tile]
    ) -> None:
        self.variable = loop.variable
        self.body = body
        self.uses = uses
        self.tiles = tiles
        self.inside = Counter(
            pattern.tile.name for instruction in walk(body) for pattern in instruction.patterns()
        )
        on_chip = (name for name in self.inside if tiles[name].memory is not Memory.HBM)
        self.private = [name for name in on_chip if self.inside[name] == uses[name]]
        self.own_uses = {name: uses[name] for name in self.inside}
        uses.subtract(self.inside)
        self._sets: list[dict[str, Tile]] = [{}]  # private tile -> its clone

    def private_bytes(self, memory: Memory) -> int:
        """Bytes per partition of the tiles private to one copy."""
        own = (self.tiles[name] for name in self.private)
        return sum(tile.bytes_per_partition for tile in own if tile.memory is memory)

    def copies(self, values: Iterable[Affine | int], sets: int) -> list[Statement]:
        """The body at several values of the loop variable, rotating through `sets` sets of tiles.

        The first set is the tiles of the original body.
        """
        result: list[Statement] = []
        for number, value in enumerate(values):
            replacements = self._tile_set(number % sets)
            for name, count in self.inside.items():
                self.uses[replacements[name].name if name in replacements else name] += count
            at = {self.variable: Affine.of(value)}
            result += [substitute(statement, replacements, at) for statement in self.body]
        return result

    def steps(self, loop: Loop, stages: Stages, sets: int) -> list[Statement]:
        """The loop in steps: in step t, stage s of iteration t - s, with the tiles of that.

        The loop has `sets` steps; those in which some stages have no iteration stand around it.
        """
        parts: list[list[Statement]] = [[] for _ in range(stages.count)]
        for statement, stage in zip(self.body, stages.of, strict=True):
            parts[stage].append(statement)

        def step(at: Affine, number: int) -> list[Statement]:
            found = []
            for stage in reversed(range(stages.count)):
                iteration = at + -stage
                is_outside = iteration.is_constant
                if is_outside and not 0 <= iteration.constant < loop.trips:
                    continue
                tiles = self._tile_set((number - stage) % sets)
                if is_outside:
                    tiles = self._tiles_around(tiles, stages.crossing)
                found += self._instance(parts[stage], iteration, tiles)
            return found

        first = stages.count - 1  # the first step in which every stage has an iteration
        trips = (loop.trips - first) // sets
        variable = Affine.of(loop.variable)
        result = [each for t in range(first) for each in step(Affine((), t), t)]
        unrolled = [step(variable * sets + (first + u), first + u) for u in range(sets)]
        body = tuple(each for statements in unrolled for each in statements)
        result.append(replace(loop, trips=trips, body=body))
        for t in range(first + trips * sets, loop.trips + first):
            result += step(Affine((), t), t)
        return result

    def _instance(
        self, statements: Sequence[Statement], value: Affine, tiles: Mapping[str, Tile]
    ) -> list[Statement]:
        """Statements of the body in one iteration, with one set of tiles."""
        found = [substitute(each, tiles, {self.variable: value}) for each in statements]
        self.uses.update(
            pattern.tile.name for instruction in walk(tuple(found))
            for pattern in instruction.patterns()
        )  # fmt: skip
        return found

    def _tiles_around(self, tiles: Mapping[str, Tile], crossing: Set[str]) -> dict[str, Tile]:
        """The tiles of a set for a part of an iteration that is not in the loop.

        Those that live within it are other ones than in the loop, which would keep them live.
        """
        own = {name: self._clone_tile(name) for name in self.private if name not in crossing}
        return {**tiles, **own}

    def _tile_set(self, number: int) -> dict[str, Tile]:
        while len(self._sets) <= number:
            self._sets.append({name: self._clone_tile(name) for name in self.private})
        return self._sets[number]

    def _clone_tile(self, name: str) -> Tile:
        number = 1
        while f"{name}'{number}" in self.tiles:
            number += 1
        clone = replace(self.tiles[name], name=f"{name}'{number}")
        self.tiles[clone.name] = clone
        return clone
