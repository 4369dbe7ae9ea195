"""What the compiler of NKI Beta 1 does to fit a kernel on chip: it schedules, else it spills."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

from glia.arch import get_target
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.ir import Program
from glia.machine.passes.delay_fills import delay_fills
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.machine.passes.rename_tiles import rename_tiles
from glia.machine.passes.schedule import schedule_keeping_engines
from glia.machine.passes.share_loads import share_loads
from glia.machine.passes.share_results import share_results
from glia.machine.passes.spill import SpilledLine, spill
from glia.machine.passes.spread_operands import use_both_memories
from glia.machine.passes.tile_liveness import remove_dead_fills
from glia.nki.names.language_errors import advise
from glia.nki.session.recorder import Recorder
from glia.timing.errors import TimingTooLarge
from glia.timing.simulate import simulate_timing

Change = Callable[[Program], Program]
Order = Callable[..., Program]  # takes `is_generous` of `schedule_keeping_engines`
# Of each memory, for live tiles: gaps between tiles, and instructions that change places, take more
SHARES = (0.8, 0.65, 0.5, 0.35)
ORDERED_TWICE = 10_000  # statements: longer programs are scheduled once


def fit_on_chip(
    program: Program, schedule: Order | None, place: Change, *, spills: bool, moves_fills: bool
) -> Program:
    """Schedule and place a program; in program order where no schedule fits on chip.

    Fills that are overwritten unread go, and tiles are renamed as far as they fit. A kernel that
    fits in program order stays in it unless the schedule takes less time. Fills that may move wait
    for the first use of their tile where a program does not fit otherwise. What does not fit in any
    way is spilled, if it may be: notes on the program, and a warning at each source line, say so.
    OnChipMemoryFull when tiles that cannot leave do not fit.
    """
    scheduled = None
    if schedule is not None and not program.addresses:
        program = remove_dead_fills(program)
        scheduled = _fit_renamed(program, schedule, place)
    try:
        written = place(program)
    except OnChipMemoryFull:
        if scheduled is not None:
            return scheduled.placed
        if moves_fills:
            with suppress(OnChipMemoryFull):
                return place(delay_fills(program))
        if not spills:
            raise
        return _spill_and_place(program, schedule, place)
    if schedule is not None and scheduled is None:
        with suppress(OnChipMemoryFull):
            scheduled = _ordered(program, schedule, place)
    return written if scheduled is None else _soonest(scheduled, _Candidate(written)).placed


class _Candidate:
    """A placed program, and what it takes."""

    def __init__(self, placed: Program) -> None:
        self.placed = placed

    @cached_property
    def nanoseconds(self) -> float:
        """The simulated latency; infinite where it is too long to simulate."""
        arch = get_target(self.placed.target).arch
        with suppress(TimingTooLarge):
            return simulate_timing(insert_semaphores(self.placed), arch, trace=False).latency_ns
        return math.inf


def _soonest(*candidates: _Candidate) -> _Candidate:
    """The one that ends first, of equal ones the first."""
    return min(candidates, key=lambda each: each.nanoseconds)


def _ordered(program: Program, schedule: Order, place: Change) -> _Candidate:
    """A program scheduled and placed: with more live together where that fits and ends sooner."""
    narrow = schedule(program)
    if len(program.body) > ORDERED_TWICE:
        return _Candidate(place(narrow))
    wide = schedule(program, is_generous=True)
    if wide.body == narrow.body:
        return _Candidate(place(narrow))
    try:
        fitted = _Candidate(place(wide))
    except OnChipMemoryFull:
        return _Candidate(place(narrow))
    with suppress(OnChipMemoryFull):
        return _soonest(fitted, _Candidate(place(narrow)))
    return fitted


def scheduler_of(program: Program, session: Recorder) -> Order:
    """The scheduler of a kernel.

    Instructions may move to an idle engine where the kernel names none. With addresses chosen by
    the kernel only the order changes.
    """

    def moves(instruction: Instr) -> bool:
        return not program.addresses and instruction.loc not in session.engines_chosen

    return partial(schedule_keeping_engines, may_move=moves)


def _fit_renamed(program: Program, schedule: Order, place: Change) -> _Candidate | None:
    """The program with renamed tiles and shared results, placed; None where they do not fit.

    What is loaded again is loaded once, if the kernel fits then and ends sooner. Tiles are renamed
    in both memories, else in one.
    """
    renamed = share_results(rename_tiles(program))
    fitted = None
    for given in (use_both_memories(renamed), renamed):
        try:
            fitted = _ordered(given, schedule, place)
            break
        except OnChipMemoryFull as full:
            if full.facts["memory"] == Memory.SBUF.value:
                break  # the next leaves more in SBUF
    shared = share_loads(renamed)
    if shared is not renamed:
        with suppress(OnChipMemoryFull):
            changed = _ordered(use_both_memories(shared), schedule, place)
            return changed if fitted is None else _soonest(fitted, changed)
    return fitted


def _spill_and_place(program: Program, schedule: Order | None, place: Change) -> Program:
    """A program that does not fit, with tiles that leave the chip and return."""
    renamed = rename_tiles(program)
    for share in SHARES:
        spilled, lines = spill(renamed, share)
        if schedule is not None:
            with suppress(OnChipMemoryFull):
                return _report(place(schedule(spilled)), lines)
        with suppress(OnChipMemoryFull):
            return _report(place(spilled), lines)
    spilled, lines = spill(renamed)
    return _report(place(spilled), lines)


def _report(program: Program, lines: tuple[SpilledLine, ...]) -> Program:
    for line in lines:
        advise(f"{line}: use smaller tiles, or fewer that are live together", line.loc)
    return replace(program, notes=(*program.notes, *map(str, lines)))
