"""What the compiler of NKI Beta 1 does to fit a kernel on chip: it schedules, else it spills."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

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

    Tiles are renamed as far as they fit. Fills that may move wait for the first use of their tile
    where a program does not fit otherwise. What does not fit in any way is spilled, if it may be:
    notes on the program, and a warning at each source line, say so. OnChipMemoryFull when tiles
    that cannot leave do not fit.
    """
    if schedule is not None and not program.addresses:
        fitted = _fit_renamed(program, schedule, place)
        if fitted is not None:
            return fitted
    try:
        in_order = place(program)
    except OnChipMemoryFull:
        if moves_fills:
            with suppress(OnChipMemoryFull):
                return place(delay_fills(program))
        if not spills:
            raise
        return _spill_and_place(program, schedule, place)
    if schedule is not None:
        with suppress(OnChipMemoryFull):
            return _ordered(program, schedule, place)
    return in_order


def _ordered(program: Program, schedule: Order, place: Change) -> Program:
    """A program scheduled and placed: with more live together where that fits and ends sooner."""
    narrow = schedule(program)
    if len(program.body) > ORDERED_TWICE:
        return place(narrow)
    wide = schedule(program, is_generous=True)
    if wide.body == narrow.body:
        return place(narrow)
    try:
        fitted = place(wide)
    except OnChipMemoryFull:
        return place(narrow)
    with suppress(OnChipMemoryFull, TimingTooLarge):
        other = place(narrow)
        return min(fitted, other, key=_nanoseconds)
    return fitted


def scheduler_of(program: Program, session: Recorder) -> Order:
    """The scheduler of a kernel.

    Instructions may move to an idle engine where the kernel names none. With addresses chosen by
    the kernel only the order changes.
    """

    def moves(instruction: Instr) -> bool:
        return not program.addresses and instruction.loc not in session.engines_chosen

    return partial(schedule_keeping_engines, may_move=moves)


def _fit_renamed(program: Program, schedule: Order, place: Change) -> Program | None:
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
        with suppress(OnChipMemoryFull, TimingTooLarge):
            changed = _ordered(use_both_memories(shared), schedule, place)
            if fitted is None or _nanoseconds(changed) < _nanoseconds(fitted):
                return changed
    return fitted


def _nanoseconds(placed: Program) -> float:
    arch = get_target(placed.target).arch
    return simulate_timing(insert_semaphores(placed), arch, trace=False).latency_ns


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
