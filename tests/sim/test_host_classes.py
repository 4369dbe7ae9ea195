"""Classes of instructions drawn at random: the host executor gives what the reference gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.isa.kit import Instr
from glia.sim.host.host_program import HostProgram
from glia.sim.notifications import Notifications
from glia.sim.run import run
from sim.drawn_instructions import EXACT, ROUNDED, Draw
from support.isa_bench import assert_agree

EACH = 25  # classes in a program: machine code is made for all together
PROGRAMS, NIGHTLY = 12, 400  # 300 classes of every run of the suite, 10,000 nightly


def _check(makers: tuple[Callable[[Draw], Instr], ...], seed: int, *, is_exact: bool) -> None:
    draw = Draw(seed)
    instructions = tuple(makers[i % len(makers)](draw) for i in range(EACH))
    program = draw.bench.program(instructions, COMPILED_TARGETS[seed % len(COMPILED_TARGETS)])
    host = HostProgram(program)
    assert {name for name, _ in host.table.reasons} <= {"tensor_tensor_scan"}, host.table.reasons
    seen, said = Notifications(), Notifications()
    found = host.run(draw.bench.contents, seen)
    wanted = run(program, draw.bench.contents, notifications=said)
    assert [*seen] == [*said]
    if not is_exact:
        assert_agree(found, wanted)
        return
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name].view(np.uint8), array.view(np.uint8), name)


@pytest.mark.parametrize("seed", range(PROGRAMS // 2))
def test_exact_classes_agree_bit_for_bit(seed: int) -> None:
    _check(EXACT, seed, is_exact=True)


@pytest.mark.parametrize("seed", range(PROGRAMS // 2))
def test_rounded_classes_agree_within_steps(seed: int) -> None:
    _check(ROUNDED, seed, is_exact=False)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(PROGRAMS, NIGHTLY))
def test_many_classes_agree(seed: int) -> None:
    is_exact = seed % 2 == 0
    _check(EXACT if is_exact else ROUNDED, seed, is_exact=is_exact)
