"""What a run may keep on chip while it is reordered: much, where it keeps much as it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glia.arch import get_target
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.machine.passes.schedule import schedule_keeping_engines
from glia.timing.simulate import simulate_timing

CHAINS, LINKS = 8, 9


def chains(target: str, held: float) -> Program:
    """Chains of operations, one after the other, beside tiles with a part of SBUF."""
    usable = get_target(target).arch.sbuf_usable_bytes_per_partition
    b = ProgramBuilder("chains", target=target)
    y = b.output("y", (CHAINS, 128, 128))
    kept = [b.sbuf((128, int(held * usable) // 16)) for _ in range(4)]
    for tile in kept:
        b.memset(tile[:, :128], 1.0)
    for chain in range(CHAINS):
        links = [b.sbuf((128, 128)) for _ in range(LINKS)]
        b.tensor_copy(links[0], kept[chain % 4][:, :128])
        for link in range(1, LINKS):
            b.activation(links[link], links[link - 1], function="exp", on="scalar")
        b.dma_copy(y[chain], links[-1])
    for tile in kept:
        b.tensor_scalar(tile[:, :128], tile[:, :128], 2.0, "multiply")
    return replace(b.finish(synchronise=False), addresses={})


def nanoseconds(program: Program) -> float:
    arch = get_target(program.target).arch
    timing = simulate_timing(insert_semaphores(place(program)), arch, trace=False)
    return timing.end_ns - timing.begin_ns


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("held", [0.1, 0.7])
def test_chains_overlap_however_much_memory_is_held(target: str, held: float) -> None:
    program = chains(target, held)
    scheduled = schedule_keeping_engines(program, is_generous=True)
    assert nanoseconds(scheduled) < 0.8 * nanoseconds(program)
