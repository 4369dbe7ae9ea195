"""Tiles that share bytes on purpose show what was written through the other one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.dtype import F32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.vector import Memset, TensorCopy
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Program
from glia.sim.host import host_plan
from glia.sim.host.host_program import HostProgram
from glia.sim.host.rewriting.element_moves import MoveTracer
from glia.sim.host.rewriting.forwarding import Forwarded
from glia.sim.run import run
from sim import test_direct_writes, test_left_out_copies

ADDRESSES = (0, 64, 128, 256, 384, 512)


def overlapping(seed: int, target: str) -> Program:
    """A random program whose tiles lie anywhere on each other."""
    random = np.random.default_rng(seed)
    draws = test_left_out_copies.Draw(seed, F32, target), test_direct_writes.Draw(seed, target)
    program = draws[seed % 2].program()
    names = (test_left_out_copies.ADDRESSES, "abc")[seed % 2]
    moved = {name: int(random.choice(ADDRESSES)) for name in names}
    return replace(program, addresses={**program.addresses, **moved})


def host_of_same_bits(program: Program, seed: int) -> HostProgram:
    """The program on the host, whose "y" of a random "x" has the reference's bits."""
    shape = program.inputs[0].shape
    inputs = {"x": np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)}
    host = HostProgram(program)
    found, wanted = host.run(inputs)["y"], run(program, inputs)["y"]
    assert found.tobytes() == wanted.tobytes(), f"seed {seed}"
    return host


def check_law(seeds: range, target: str) -> None:
    left_out = 0
    for seed in seeds:
        host = host_of_same_bits(overlapping(seed, target), seed)
        left_out += sum(host.left_out.values())
    assert left_out > len(seeds) // 4


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_random_programs_give_the_same_bits(target: str) -> None:
    first = 1000 * COMPILED_TARGETS.index(target)
    check_law(range(first, first + 60), target)


@pytest.mark.nightly
@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_many_random_programs_give_the_same_bits(target: str) -> None:
    first = 10_000 * (1 + COMPILED_TARGETS.index(target))
    check_law(range(first, first + 2000), target)


@pytest.mark.parametrize("name", ["without_copies", "with_direct_writes"])
def test_the_law_finds_tiles_that_show_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite = getattr(host_plan, name)

    def planted(program: Program, tracer: MoveTracer, _: object) -> Forwarded:
        found: Forwarded = rewrite(program, tracer, [])
        return found

    monkeypatch.setattr(host_plan, name, planted)
    with pytest.raises(AssertionError, match="seed"):
        check_law(range(5000, 5400), "trn2")


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_part_that_is_cleared_is_cleared_in_the_whole(target: str, is_copied: bool) -> None:
    size = 64 * 16
    x, y = (Tile(name, Memory.HBM, F32, 1, size) for name in "xy")
    whole, part = Tile("whole", Memory.SBUF, F32, 64, 16), Tile("part", Memory.SBUF, F32, 64, 8)
    other = Tile("other", Memory.SBUF, F32, 64, 16)
    rows = ((16, 64), (1, 16))
    read = TensorCopy(dst=whole_tile(other), src=whole_tile(whole))
    program = Program(
        name="views", target=target,
        tiles={each.name: each for each in (x, y, whole, part, other)},
        inputs=(Binding("x", x, (64, 16), F32),), outputs=(Binding("y", y, (64, 16), F32),),
        constants={}, addresses={"whole": 0, "part": 32, "other": 64, "x": 0, "y": 4 * size},
        body=(
            DmaCopy(dst=whole_tile(whole), src=Pattern(x, F32, rows)),
            Memset(dst=whole_tile(part), value=0.0),
            *((read,) if is_copied else ()),
            DmaCopy(dst=Pattern(y, F32, rows), src=whole_tile(other if is_copied else whole)),
        ),
    )  # fmt: skip
    values = np.random.default_rng(0).standard_normal((64, 16), np.float32)
    wanted = np.where(np.arange(16) < 8, values, 0)
    assert HostProgram(program).run({"x": values})["y"].tobytes() == wanted.tobytes()
