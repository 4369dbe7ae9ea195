"""How the iterations of a loop overlap: in which stages, in how many steps, with which tiles.

Candidates are cut, unrolled and ordered, and the one is taken with which the loop is estimated to
end soonest; the search ends where the busiest engine, or DMA, never waits.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.isa.instructions.dma import Transfer
from glia.isa.kit import Instr
from glia.machine.ir import Loop, Statement
from glia.machine.ordering.repeated_order import least_interval_ns, repeated_order
from glia.machine.ordering.structure import Structure
from glia.machine.overlap.copier import LoopCopier
from glia.machine.overlap.reuse_tiles import merge_unread_tiles, reuse_tiles, unread_tiles
from glia.machine.overlap.stages import Stages, find_stages
from glia.machine.passes.schedule import Scheduler

MORE_STEPS = (3, 4)  # of halves of the usual number: tried for the stages that are best with it
GAIN_OF_STEPS = 0.96  # of the time, for which more steps are worth their code
GOOD_SHARE = 0.98  # of the least time by that of a candidate: good enough


@dataclass(frozen=True)
class OverlapPlan:
    """The stages of a body, the steps that the loop is unrolled to, the copies of each own tile.

    The numbers of copies divide that of steps. `copier` has the body, which is one of several.
    """

    copier: LoopCopier
    body: int
    stages: Stages
    steps: int
    copies: Mapping[str, int]

    def renamed(self, names: Mapping[str, str], copier: LoopCopier) -> OverlapPlan:
        """The plan for a body that differs in the names of its tiles."""
        spans, tile_bytes = self.stages.spans, self.stages.tile_bytes
        stages = replace(
            self.stages,
            spans={names[name]: span for name, span in spans.items()},
            tile_bytes={names[name]: count for name, count in tile_bytes.items()},
        )
        copies = {names[name]: count for name, count in self.copies.items()}
        return OverlapPlan(copier, self.body, stages, self.steps, copies)


class OverlapPlanner:
    """Finds plans for loops, for those that are alike once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._known: dict[Hashable, tuple[OverlapPlan | None, Structure]] = {}

    def plan(
        self,
        loop: Loop,
        copier: LoopCopier,
        most: int,
        instructions: int,
        *,
        may_be_whole: bool = False,
    ) -> OverlapPlan | None:
        """The plan of the shortest time, if there is one; at most so many instructions long.

        Where all of the loop may be its body, it need not run twice.

        It has `most` steps, more where that pays, or fewer where no more fit.
        Bodies in which results take the tiles of operands are tried where nothing else is good.
        """
        bodies = [*_bodies(copier)]
        structure = self.scheduler.structures.of(_instructions(bodies[0]), loop.variable)
        private = tuple(tile.name in copier.private for tile in structure.tiles)
        key = structure, private, loop.trips, loop.room, most, instructions, may_be_whole
        if key not in self._known:
            search = _Search(loop, self.scheduler, instructions, may_be_whole=may_be_whole)
            room = copier.room_with_outside(loop.room, self.scheduler.arch)
            with self.scheduler.in_room(room):
                search.run(copier, bodies, most)
            self._known[key] = search.best, structure
        found, its_structure = self._known[key]
        if found is None:
            return None
        names = {
            its.name: tile.name
            for its, tile in zip(its_structure.tiles, structure.tiles, strict=True)
        }
        body = bodies[found.body]
        return found.renamed(names, copier if body == copier.body else copier.with_body(body))


class _Search:
    """The best plan so far, and the time of the loop with it."""

    def __init__(
        self, loop: Loop, scheduler: Scheduler, instructions: int, *, may_be_whole: bool
    ) -> None:
        self.loop = loop
        self.scheduler = scheduler
        self.instructions = instructions
        self.may_be_whole = may_be_whole
        self.best: OverlapPlan | None = None
        self.best_ns = math.inf

    def run(self, copier: LoopCopier, bodies: Sequence[tuple[Statement, ...]], most: int) -> None:
        """Try the plans of every body, then more steps for the best."""
        most = min(most, self.instructions // len(bodies[0]))
        for number, body in enumerate(bodies):
            own = copier.trial(body)
            least_ns = least_interval_ns(_instructions(body), self.scheduler)
            self._try(self._plans(own, number, range(most, 1, -1)), least_ns)
        if self.best is None:
            return
        found = self.best
        for factor in MORE_STEPS:
            steps = factor * found.steps // 2
            if steps * len(found.copier.body) > self.instructions:
                break
            copies = _copies_of(self.loop, found.copier, found.stages, steps, may_be_whole=False)
            if copies is not None:
                self._try([replace(found, steps=steps, copies=copies)], least_ns)

    def _plans(self, copier: LoopCopier, body: int, steps: Sequence[int]) -> Iterator[OverlapPlan]:
        """What fits in the loop's room: the fewest stages first, the first number of steps."""
        instructions, private = _instructions(copier.body), frozenset(copier.private)
        for stages in find_stages(instructions, private, copier.tiles, self.scheduler):
            for count in steps:
                copies = _copies_of(
                    self.loop, copier, stages, count, may_be_whole=self.may_be_whole
                )
                if copies is not None:
                    yield OverlapPlan(copier, body, stages, count, copies)
                    break

    def _try(self, plans: Iterable[OverlapPlan], least_ns: float) -> None:
        """Try plans in turn, until none can be much better with iterations of `least_ns`."""
        for plan in plans:
            if self.best_ns * GOOD_SHARE <= self._total_ns(plan, least_ns):
                break
            long = replace(
                self.loop, trips=max(self.loop.trips, _least_trips(plan.stages, plan.steps))
            )
            trial = plan.copier.trial(plan.copier.body).steps(long, plan)
            steps = next(each for each in trial if isinstance(each, Loop))
            order = repeated_order(
                _instructions(steps.body), steps.variable, self.scheduler, self.scheduler.windows
            )
            time_ns = self._total_ns(plan, order.interval_ns / plan.steps)
            is_longer = self.best is not None and plan.steps > self.best.steps
            if time_ns < self.best_ns * (GAIN_OF_STEPS if is_longer else 1):
                self.best, self.best_ns = plan, time_ns

    def _total_ns(self, plan: OverlapPlan, interval_ns: float) -> float:
        """The time of the loop; to fill and to drain stages takes that of an iteration for each."""
        return (self.loop.trips + plan.stages.count - 1) * interval_ns


def _bodies(copier: LoopCopier) -> Iterator[tuple[Statement, ...]]:
    """The body with one tile for what nothing reads; then with results in tiles of operands."""
    private = frozenset(copier.private)
    body = merge_unread_tiles(_instructions(copier.body), private)
    yield tuple(body)
    fewer = reuse_tiles(body, private)
    if fewer != body:
        yield tuple(fewer)


def _instructions(body: Sequence[Statement]) -> list[Instr]:
    return [each for each in body if isinstance(each, Instr)]


def _copies_of(
    loop: Loop, copier: LoopCopier, stages: Stages, steps: int, *, may_be_whole: bool
) -> Mapping[str, int] | None:
    """The copies of each tile where so many steps fit the loop's trips and room; else None."""
    if loop.trips < (steps if may_be_whole else _least_trips(stages, steps)):
        return None
    body = _instructions(copier.body)
    return _copies(stages, steps, _loaded(body), unread_tiles(body), loop.room)


def _least_trips(stages: Stages, steps: int) -> int:
    """The trips from which on a loop of so many steps runs at least twice."""
    return stages.count + 2 * steps


def _loaded(body: Sequence[Instr]) -> set[str]:
    transfers = (each for each in body if isinstance(each, Transfer))
    return {pattern.tile.name for each in transfers for pattern in each.written_patterns()}


def _copies(
    stages: Stages, steps: int, loaded: Container[str], unread: Container[str], room: int
) -> Mapping[str, int] | None:
    """The copies of each own tile; None where they do not fit.

    Of a tile that several stages access as many as there are iterations that use it at once, of any
    other one; and one more where that fits. Up to one for each step where that fits too, first for
    what is loaded. As a last resort what one stage accesses shares addresses. More iterations than
    steps can use no tile at once: there are at most so many copies.
    """
    if max(stages.spans.values(), default=0) > steps:
        return None
    divisors = [each for each in range(1, steps + 1) if steps % each == 0]
    for crossing, within in ((1, 1), (0, 1), (1, 0), (0, 0)):
        least = {
            name: span + crossing if span else 1 + within for name, span in stages.spans.items()
        }
        least |= {name: 1 for name in least if name in unread}
        least |= {name: steps for name, needed in stages.tile_bytes.items() if not needed}  # PSUM
        if max(least.values(), default=1) > steps:
            continue
        copies = {name: next(d for d in divisors if d >= n) for name, n in least.items()}
        if _bytes(stages, copies) <= room:
            return _widened(stages, copies, steps, loaded, unread, room)
    copies = dict.fromkeys(stages.spans, steps)
    shared = stages.within_bytes * min(2, steps)
    crossing_bytes = sum(stages.tile_bytes[name] for name in stages.crossing)
    return copies if crossing_bytes * steps + shared <= room else None


def _widened(
    stages: Stages,
    copies: Mapping[str, int],
    steps: int,
    loaded: Container[str],
    unread: Container[str],
    room: int,
) -> Mapping[str, int]:
    """The copies with one for each step of every tile for which that fits."""
    wider = dict(copies)
    read = [name for name in copies if name not in unread]
    for name in sorted(read, key=lambda each: (each not in loaded, -stages.spans[each], each)):
        more = {**wider, name: steps}
        if _bytes(stages, more) <= room:
            wider = more
    return wider


def _bytes(stages: Stages, copies: Mapping[str, int]) -> int:
    return sum(stages.tile_bytes[name] * count for name, count in copies.items())
