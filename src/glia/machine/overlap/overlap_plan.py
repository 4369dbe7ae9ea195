"""How the iterations of a loop overlap: in which stages, in how many steps, with which tiles.

Candidates are cut, unrolled and ordered, and the one is taken with which the loop is estimated to
end soonest; the search ends where the busiest engine, or DMA, never waits.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from glia.isa.instructions.dma import Transfer
from glia.isa.kit import Instr
from glia.machine.ir import Loop, Statement
from glia.machine.overlap.copier import LoopCopier
from glia.machine.overlap.repeated_order import least_interval_ns, repeated_order
from glia.machine.overlap.reuse_tiles import merge_unread_tiles, reuse_tiles, unread_tiles
from glia.machine.overlap.stages import Stages, find_stages
from glia.machine.passes.schedule import Scheduler

MORE_STEPS = (3, 4)  # of halves of the usual number: tried for the stages that are best with it
GAIN_OF_STEPS = 0.96  # of the time, for which more steps are worth their code
GOOD_SHARE = 0.98  # of the least time by that of a candidate: good enough


@dataclass(frozen=True)
class OverlapPlan:
    """The stages of a body, the steps that the loop is unrolled to, the copies of each own tile.

    The numbers of copies divide that of steps. `copier` has the body.
    """

    copier: LoopCopier
    stages: Stages
    steps: int
    copies: Mapping[str, int]


def best_plan(
    loop: Loop,
    copier: LoopCopier,
    most: int,
    instructions: int,
    scheduler: Scheduler,
    *,
    may_be_whole: bool = False,
) -> OverlapPlan | None:
    """The plan of the shortest time, if there is one; its body has at most so many instructions.

    Where all of the loop may be its body, it need not run twice.

    It has `most` steps, more where that pays, or fewer where no more fit.
    Bodies in which results take the tiles of operands are tried where nothing else is good.
    """
    with scheduler.in_room(loop.room):
        found = _search(loop, copier, most, instructions, scheduler, may_be_whole=may_be_whole)
    if found is None:
        return None
    is_same = found.copier.body == copier.body
    chosen = copier if is_same else copier.with_body(found.copier.body)
    return replace(found, copier=chosen)


def _search(
    loop: Loop,
    copier: LoopCopier,
    most: int,
    instructions: int,
    scheduler: Scheduler,
    *,
    may_be_whole: bool,
) -> OverlapPlan | None:
    search = _Search(loop, scheduler)
    most = min(most, instructions // len(copier.body))
    for body in _bodies(copier):
        own = copier.trial(body)
        least_ns = least_interval_ns([e for e in body if isinstance(e, Instr)], scheduler)
        search.run(
            _plans(loop, own, range(most, 1, -1), scheduler, may_be_whole=may_be_whole), least_ns
        )
    if search.best is not None:
        found = search.best
        for factor in MORE_STEPS:
            steps = factor * found.steps // 2
            if steps * len(found.copier.body) > instructions:
                break
            copies = _copies_of(loop, found.copier, found.stages, steps, may_be_whole=False)
            if copies is not None:
                search.run([OverlapPlan(found.copier, found.stages, steps, copies)], least_ns)
    return search.best


class _Search:
    """The best plan so far, and the time of the loop with it."""

    def __init__(self, loop: Loop, scheduler: Scheduler) -> None:
        self.loop = loop
        self.scheduler = scheduler
        self.best: OverlapPlan | None = None
        self.best_ns = math.inf

    def run(self, plans: Iterable[OverlapPlan], least_ns: float) -> None:
        """Try plans in turn, until none can be much better with iterations of `least_ns`."""
        for plan in plans:
            if self.best_ns * GOOD_SHARE <= self._total_ns(plan, least_ns):
                break
            long = replace(
                self.loop, trips=max(self.loop.trips, _least_trips(plan.stages, plan.steps))
            )
            trial = plan.copier.trial(plan.copier.body).steps(long, plan)
            steps = next(each for each in trial if isinstance(each, Loop))
            unrolled = [each for each in steps.body if isinstance(each, Instr)]
            order = repeated_order(unrolled, steps.variable, self.scheduler)
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
    body = merge_unread_tiles([e for e in copier.body if isinstance(e, Instr)], private)
    yield tuple(body)
    fewer = reuse_tiles(body, private)
    if fewer != body:
        yield tuple(fewer)


def _plans(
    loop: Loop,
    copier: LoopCopier,
    steps: Iterable[int],
    scheduler: Scheduler,
    *,
    may_be_whole: bool,
) -> Iterator[OverlapPlan]:
    """What fits in the loop's room: the fewest stages first, of each the first number of steps."""
    body = [each for each in copier.body if isinstance(each, Instr)]
    for stages in find_stages(body, frozenset(copier.private), copier.tiles, scheduler):
        for count in steps:
            copies = _copies_of(loop, copier, stages, count, may_be_whole=may_be_whole)
            if copies is not None:
                yield OverlapPlan(copier, stages, count, copies)
                break


def _copies_of(
    loop: Loop, copier: LoopCopier, stages: Stages, steps: int, *, may_be_whole: bool
) -> Mapping[str, int] | None:
    """The copies of each tile where so many steps fit the loop's trips and room; else None."""
    if loop.trips < (steps if may_be_whole else _least_trips(stages, steps)):
        return None
    body = [each for each in copier.body if isinstance(each, Instr)]
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
    what is loaded. As a last resort what one stage accesses shares addresses.
    """
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
