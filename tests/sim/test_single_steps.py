"""Instructions executed one by one as machine code give what the reference executor gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from glia.arch.instances import COMPILED_TARGETS
from glia.base.affine import Affine
from glia.base.dtype import BF16, F32
from glia.isa.instructions.tensor import NcTranspose
from glia.isa.instructions.vector import TensorCopy, TensorTensor
from glia.isa.kit import Instr, register_variable
from glia.isa.operand import Pattern, Tile
from glia.machine.ir import Program
from glia.sim.host.classes import single_steps
from glia.sim.host.classes.single_steps import SingleSteps
from glia.sim.run import Executor, run
from sim.drawn_instructions import EXACT, ROUNDED, Draw
from support.isa_bench import Bench, assert_agree

EACH = 25


@pytest.fixture(autouse=True)
def from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every class is compiled for its first instruction."""
    monkeypatch.setattr(single_steps, "LEAST_WORK", 0)


class _Steps:
    """An executor whose instructions run one by one, and how many ran as machine code."""

    def __init__(self, program: Program, contents: dict[str, Any]) -> None:
        self.executor = Executor(program)
        self.executor.set_inputs(contents)
        self.native = 0
        self._steps = SingleSteps(self.executor)

    def run(self, instructions: Iterable[Instr], environment: dict[str, int]) -> None:
        with np.errstate(all="ignore"):
            for instr in instructions:
                if self._steps.execute(instr, environment):
                    self.native += 1
                else:
                    self.executor.step(instr, environment)


def _check(makers: tuple[Callable[[Draw], Instr], ...], seed: int, *, is_exact: bool) -> None:
    draw = Draw(seed)
    instructions = tuple(makers[i % len(makers)](draw) for i in range(EACH))
    program = draw.bench.program(instructions, COMPILED_TARGETS[seed % len(COMPILED_TARGETS)])
    steps = _Steps(program, draw.bench.contents)
    steps.run(program.instructions(), {})
    _compare(steps, run(program, draw.bench.contents), is_exact=is_exact)


def _compare(steps: _Steps, wanted: dict[str, Any], *, is_exact: bool) -> None:
    found = steps.executor.outputs()
    if not is_exact:
        assert_agree(found, wanted)
        return
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name].view(np.uint8), array.view(np.uint8), name)


@pytest.mark.parametrize("seed", range(10))
def test_exact_classes_agree_bit_for_bit(seed: int) -> None:
    _check(EXACT, seed, is_exact=True)


@pytest.mark.parametrize("seed", range(5))
def test_rounded_classes_agree_within_steps(seed: int) -> None:
    _check(ROUNDED, seed, is_exact=False)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10, 210))
def test_many_classes_agree(seed: int) -> None:
    is_exact = seed % 2 == 0
    _check(EXACT if is_exact else ROUNDED, seed, is_exact=is_exact)


@pytest.mark.parametrize("seed", range(8))
def test_operands_that_share_bytes_are_read_before_results_are_written(seed: int) -> None:
    """Patterns anywhere in one tile, in steps of either sign."""
    bench = Bench(seed)
    whole = bench.pattern((128, 40), F32, plain=True)
    random = np.random.default_rng(seed)

    def anywhere() -> Pattern:
        step = int(random.choice((-2, -1, 1, 2)))
        start = int(random.integers(0, 20)) + (0 if step > 0 else 18)
        return Pattern(whole.tile, F32, ((1, 96), (step, 10)), Affine.of(start))

    instructions = []
    for _ in range(40):
        one, other, third = anywhere(), anywhere(), anywhere()
        instructions.append(
            TensorTensor(dst=one, data1=other, data2=third, op="add")
            if random.integers(2)
            else TensorCopy(dst=one, src=other, on="vector")
        )
    program = bench.program(tuple(instructions))
    steps = _Steps(program, bench.contents)
    steps.run(program.instructions(), {})
    assert steps.native == len([*program.instructions()])
    _compare(steps, run(program, bench.contents), is_exact=True)


@pytest.mark.parametrize("target", COMPILED_TARGETS)
def test_decisions_by_data_are_the_meaning_s(target: str) -> None:
    """The PE of some cores multiplies to transpose: an infinity spoils its row there."""
    bench = Bench(3)
    values = np.ones((16, 24), np.float32)
    values[5, 7] = np.inf
    data = bench.pattern((16, 24), BF16, values=values)
    program = bench.program(
        NcTranspose(dst=bench.pattern((24, 16), BF16, "PSUM"), data=data), target
    )
    steps = _Steps(program, bench.contents)
    steps.run(program.instructions(), {})
    _compare(steps, run(program, bench.contents), is_exact=True)


def _tile() -> tuple[Bench, Tile]:
    bench = Bench(0)
    return bench, bench.pattern((128, 8), F32, plain=True).tile


def _copy(tile: Tile, offset: Affine) -> Instr:
    src = Pattern(tile, F32, ((1, 128), (1, 4)), offset)
    dst = Pattern(tile, F32, ((1, 128), (1, 4)), Affine.of(4))
    return TensorCopy(dst=dst, src=src, on="vector")


def test_places_follow_loops_and_registers() -> None:
    bench, tile = _tile()
    program = bench.program(_copy(tile, Affine.of(0)))
    steps = _Steps(program, bench.contents)
    load, _, store = program.instructions()
    environment = {"i": 3, register_variable("r"): 0}
    copy = _copy(tile, Affine.of("i") + Affine.of(register_variable("r")) - 1)
    steps.run([load, copy, store], environment)
    before = bench.contents[tile.name]
    after = steps.executor.outputs()[tile.name]
    assert steps.native == 3
    np.testing.assert_array_equal(after[:, 4:], before[:, 2:6])


@pytest.mark.parametrize("values", [{"i": -1}, {"i": 5}, {}])
def test_what_raises_is_left_to_the_executor(values: dict[str, int]) -> None:
    """Outside of the tile on either side, and a variable that is not set."""
    bench, tile = _tile()
    program = bench.program(_copy(tile, Affine.of(0)))
    steps = SingleSteps(Executor(program))
    assert not steps.execute(_copy(tile, Affine.of("i")), values)
    assert steps.execute(_copy(tile, Affine.of("i")), {"i": 4})


def test_a_class_is_compiled_after_some_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by instructions and elements, so that every run switches at the same place."""
    monkeypatch.setattr(single_steps, "LEAST_WORK", 3 * (single_steps.STEP_WORK + 1024))
    bench, tile = _tile()
    program = bench.program(_copy(tile, Affine.of(0)))
    steps = SingleSteps(Executor(program))
    ran = [steps.execute(_copy(tile, Affine.of(0)), {}) for _ in range(4)]
    assert ran == [False, False, True, True]
