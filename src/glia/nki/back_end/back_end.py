"""The back end of kernels: it decides what their author has left open.

See docs/decisions/back-end-of-kernels.md for what an author fixes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from glia.arch import Arch
from glia.isa.kit import Instr
from glia.machine.columns.table import columns_of
from glia.machine.ir import Block, Loop, Program, blocks
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.nki.back_end.changes import BackEndChanges, fewest_moves
from glia.nki.back_end.plan import BackEndPlan
from glia.nki.back_end.straight_line import MEMORIES
from glia.nki.back_end.unroll_loops import unroll_loops
from glia.nki.session.recorder import Recorder
from glia.timing.errors import TimingTooLarge
from glia.timing.simulate import simulate_timing

LOOP_COPIES = 4  # iterations in a body: 8 take up to 3 % less
SURELY_FITS = 0.9  # of a memory: with so little live at one time there are gaps for all tiles


@dataclass(frozen=True)
class CompiledProgram:
    """A kernel's program with addresses, the same with semaphores, and what was changed in it."""

    placed: Program
    synchronised: Program
    changes: BackEndChanges


def run_back_end(
    program: Program, session: Recorder, place: Callable[[Program], Program]
) -> CompiledProgram:
    """A kernel with the same results in less time; unchanged unless it takes less."""
    if _has_loops(program.body):
        with suppress(OnChipMemoryFull, TimingTooLarge):
            return _run_loops(program, session, place)
    return _run_straight(program, session, place)


def _has_loops(body: Block) -> bool:
    """Whether there are loops of so many trips as the kernel says, not as a register holds."""
    return any(
        isinstance(each, Loop) or any(_has_loops(block) for block in blocks(each))
        for each in body
        if not isinstance(each, Instr)
    )


def _run_loops(
    program: Program, session: Recorder, place: Callable[[Program], Program]
) -> CompiledProgram:
    """A kernel with loops on the device: the soonest of what fits on chip."""
    arch = session.target.arch
    written = _compile(program, place, BackEndChanges(len(columns_of(program).instructions)))
    best, least = written, _nanoseconds(written, arch)
    unrolled, loops = unroll_loops(program, LOOP_COPIES, session.in_order)
    reordered, ordered = (
        BackEndPlan(unrolled, session, orders_loops=orders_loops) for orders_loops in (True, False)
    )
    plans = [ordered] if ordered.promises_gain else []
    if reordered.promises_sooner_order and not np.array_equal(reordered.order, ordered.order):
        plans.append(reordered)
    for plan in plans:
        with suppress(OnChipMemoryFull):
            changed = _apply(plan, place, unrolled=loops)
            took = _nanoseconds(changed, arch)
            if took < least or (took == least and plan.removed):
                best, least = changed, took
    return best


def _run_straight(
    program: Program, session: Recorder, place: Callable[[Program], Program]
) -> CompiledProgram:
    """A kernel whose loops stay as they are; in another order where it does not fit as written."""
    plan = BackEndPlan(program, session)
    try:
        return _soonest_straight(program, plan, session.target.arch, place)
    except OnChipMemoryFull:
        with suppress(OnChipMemoryFull):
            return _apply(plan, place)
        raise


def _soonest_straight(
    program: Program, plan: BackEndPlan, arch: Arch, place: Callable[[Program], Program]
) -> CompiledProgram:
    """A kernel as written, or in the order of a plan if that ends sooner."""
    unchanged = BackEndChanges(plan.is_kept.size)
    if not plan.promises_gain:
        return _compile(program, place, unchanged)
    if any(plan.written.most_live(memory) > SURELY_FITS for memory in MEMORIES):
        place(program)  # another order may fit where this does not
    with suppress(OnChipMemoryFull, TimingTooLarge):
        changed = _apply(plan, place)
        took = _nanoseconds(changed, arch)
        # as written it takes at least what its dependences cost, wherever its tiles lie
        least = plan.written_ps / 1000 + arch.preamble_ns + arch.postamble_ns
        if plan.is_one_line and took < least:
            return changed
        written = _compile(program, place, unchanged)
        limit = _nanoseconds(written, arch)
        return changed if took < limit or (took == limit and plan.removed) else written
    return _compile(program, place, unchanged)


def _compile(
    program: Program, place: Callable[[Program], Program], changes: BackEndChanges
) -> CompiledProgram:
    placed = place(program)
    return CompiledProgram(placed, insert_semaphores(placed), changes)


def _nanoseconds(compiled: CompiledProgram, arch: Arch) -> float:
    return simulate_timing(compiled.synchronised, arch, trace=False).latency_ns


def _apply(
    plan: BackEndPlan, place: Callable[[Program], Program], unrolled: int = 0
) -> CompiledProgram:
    changes = _changes(plan, unrolled)
    return _compile(plan.apply(changes.text), place, changes)


def _changes(plan: BackEndPlan, unrolled: int) -> BackEndChanges:
    order = plan.order[plan.is_kept[plan.order]].tolist()
    return BackEndChanges(
        instructions=plan.is_kept.size,
        removed_fills=len(plan.removed),
        renamed=plan.versions.renamed,
        copies=len(plan.versions.copies),
        moved=fewest_moves(order),
        unrolled=unrolled,
    )
