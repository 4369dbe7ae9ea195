"""Operands in both memories: the same values, in less time, only where there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import get_target
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.machine.legal import verify
from glia.machine.passes import spread_operands as module
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.machine.passes.place import place
from glia.machine.passes.schedule import schedule_keeping_engines
from glia.machine.passes.spread_operands import use_both_memories
from glia.sim.order.concurrent import run_concurrently
from glia.sim.run import run
from glia.timing.simulate import simulate_timing
from support.examples import with_examples

ARCH = get_target("trn1").arch
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("load", "sum", "scan", "copy", "exp", "product", "store")),
        st.integers(0, 5), st.integers(0, 5),
    ),
    min_size=2, max_size=14,
)  # fmt: skip
Steps = list[tuple[str, int, int]]


def program_of(steps: Steps, columns: int = 32) -> Program:
    """Every step makes a tile of two before it; the last tiles are stored."""
    b = ProgramBuilder("steps", target="trn1")
    x = b.input("x", (len(steps) + 1, 32, columns))
    y = b.output("y", (len(steps) + 2, 32, columns))
    made = [b.sbuf((32, columns), name="first")]
    b.dma_copy(made[0], x[0])
    for number, (kind, back, other) in enumerate(steps, 1):
        one, two = made[-1 - back % len(made)], made[-1 - other % len(made)]
        if kind == "store":
            b.dma_copy(y[number], one)
            continue
        made.append(b.sbuf((32, columns), name=f"{kind}{number}"))
        _make(b, kind, made[-1], one, two, x[number])
    result = b.sbuf((32, columns), name="result")
    b.tensor_copy(result, made[-1])
    b.dma_copy(y[0], result)
    return replace(b.finish(synchronise=False), addresses={})


def _make(b: Any, kind: str, to: Any, one: Any, two: Any, x: Any) -> None:
    if kind == "load":
        b.dma_copy(to, x)
    elif kind == "sum":
        b.tensor_tensor(to, one, two, op="add")
    elif kind == "scan":
        b.tensor_tensor_scan(to, one, two, initial=0.0, op0="minimum", op1="maximum")
    elif kind == "copy":
        b.tensor_copy(to, one)
    elif kind == "exp":
        b.activation(to, one, function="tanh")
    else:
        total = b.psum((32, to.shape[1]))
        b.nc_matmul(total, one[:, :32], two)
        b.tensor_scalar(to, total, 2.0**-8, "multiply")


def inputs_of(program: Program) -> dict[str, np.ndarray]:
    shape = program.inputs[0].shape
    return {"x": np.random.default_rng(5).standard_normal(shape, np.float32)}


@with_examples(50)
@given(steps=STEPS)
def test_it_keeps_every_value(steps: Steps) -> None:
    program = program_of(steps)
    inputs = inputs_of(program)
    expected = run(program, inputs)["y"]
    changed = use_both_memories(program)
    verify(changed)
    np.testing.assert_array_equal(run(changed, inputs)["y"], expected)
    found = run_concurrently(ordered(changed), inputs, seed=1)["y"]
    np.testing.assert_array_equal(found, expected)


def ordered(program: Program) -> Program:
    """Scheduled, placed, with semaphores."""
    return insert_semaphores(place(schedule_keeping_engines(program, lambda _: True)))


CHAIN: Steps = [("load", 0, 0), ("sum", 0, 1), ("sum", 0, 1), ("sum", 0, 1)] * 4


def test_it_takes_less_time() -> None:
    program = program_of(CHAIN, columns=512)
    before, after = (
        simulate_timing(ordered(each), ARCH).latency_ns
        for each in (program, use_both_memories(program))
    )
    assert after < 0.95 * before


def in_psum(program: Program) -> set[str]:
    return {tile.name for tile in program.tiles.values() if tile.memory.value == "PSUM"}


def test_what_transfers_touch_and_what_has_an_address_stays() -> None:
    steps: Steps = [("load", 0, 0), ("sum", 0, 1), ("sum", 0, 1), ("store", 0, 0)]
    program = program_of(steps, columns=512)
    assert in_psum(use_both_memories(program)) == {"sum2"}
    placed = replace(program, addresses={"sum2": 0})
    assert not in_psum(use_both_memories(placed))


def test_without_a_capacity_check_psum_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen sums, each kept for the end: more than PSUM holds."""
    steps: Steps = [("load", 0, 0)] + [("sum", number, number) for number in range(16)]
    steps += [("sum", 15, 16 + number) for number in range(16)]
    program = program_of(steps, columns=512)
    place(use_both_memories(program))
    monkeypatch.setattr(module, "PSUM_SHARE", 100.0)
    with pytest.raises(OnChipMemoryFull):
        place(use_both_memories(program))
