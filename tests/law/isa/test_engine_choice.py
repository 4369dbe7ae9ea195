"""Where the scheduler may send an instruction: every engine it considers gives the same bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from glia.arch import get_target
from glia.base.dtype import BF16, F16, F32, DType
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import Memset, TensorCopy, TensorScalar
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.machine.ir import Program
from glia.machine.passes.schedule import Scheduler
from support.isa_bench import Bench

SHAPE = (8, 64)
AWKWARD = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-41, -3e-39, 65520.0, 3e38, 1.0 + 2.0**-8]
Dtypes = tuple[DType, DType]


def scheduler(target: str) -> Scheduler:
    return Scheduler(get_target(target).arch, 192)


def values(bench: Bench) -> np.ndarray:
    found = bench.random.standard_normal(SHAPE) * 10.0 ** bench.random.integers(-6, 7, SHAPE)
    found[:, : len(AWKWARD)] = AWKWARD
    return found


def instructions(bench: Bench, dtypes: Dtypes) -> list[Instr]:
    to, of = dtypes
    with np.errstate(over="ignore"):
        data = bench.pattern(SHAPE, of, values=values(bench))
    column = bench.pattern((SHAPE[0], 1), values=bench.random.standard_normal((SHAPE[0], 1)))

    def out() -> Pattern:
        return bench.pattern(SHAPE, to)

    steps = product((column, 0.1, -0.0), ("multiply", "add"))
    return [
        TensorCopy(dst=out(), src=data, on="vector"),
        Memset(dst=out(), value=0.3, on="vector"),
        *(TensorScalar(dst=out(), data=data, operand0=value, op0=op, on="vector")
          for value, op in steps),
    ]  # fmt: skip


def wide(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In a dtype of NumPy's own, whose comparisons know NaN."""
    return {name: contents.astype(np.float32) for name, contents in found.items()}


@pytest.mark.parametrize("dtypes", [*product((F32, BF16, F16), repeat=2)], ids=str)
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_every_engine_that_is_considered_gives_the_same_bits(target: str, dtypes: Dtypes) -> None:
    bench = Bench(1, starts=(0,))
    for instr in instructions(bench, dtypes):
        variants = [*scheduler(target).variants(instr)]
        first, *others = (wide(bench.run(each, target=target)) for each in variants)
        for other in others:
            for name, contents in first.items():
                np.testing.assert_array_equal(other[name], contents)
                np.testing.assert_array_equal(np.signbit(other[name]), np.signbit(contents))


@pytest.mark.parametrize(
    ("target", "others"), [("trn1", {"scalar"}), ("trn2", {"scalar", "gpsimd"})]
)
def test_copies_have_a_choice(target: str, others: set[str]) -> None:
    copy = instructions(Bench(2, starts=(0,)), (F32, BF16))[0]
    assert {each.runs_on for each in scheduler(target).variants(copy)} == {"vector", *others}


def test_what_may_not_move_has_none() -> None:
    copy = instructions(Bench(2, starts=(0,)), (F32, BF16))[0]
    stays = Scheduler(get_target("trn1").arch, 192, may_move=lambda _: False)
    assert [*stays.variants(copy)] == [copy]


def summed(bench: Bench, dtype: DType, *, shape: tuple[int, ...] = SHAPE) -> Activation:
    """A sum that the Scalar Engine takes of a copy."""
    with np.errstate(over="ignore"):
        data = bench.pattern(shape, dtype, values=bench.random.standard_normal(shape))
    return Activation(
        dst=bench.pattern(shape, dtype), data=data, function="copy",
        reduced=bench.pattern((shape[0], 1)), command="reset_reduce",
    )  # fmt: skip


def in_program(*instructions: Instr) -> Program:
    tiles = {p.tile.name: p.tile for each in instructions for p in each.patterns()}
    return Program("sums", "trn2", tiles, (), (), {}, instructions)


@pytest.mark.parametrize("shape", [SHAPE, (8, 4, 16)])
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_a_sum_is_the_same_on_either_engine(
    target: str, dtype: DType, shape: tuple[int, ...]
) -> None:
    bench = Bench(3, starts=(0,))
    instr = summed(bench, dtype, shape=shape)
    its = scheduler(target)
    with its.summing(in_program(instr)):
        one, other = its.variants(instr)
    assert (one.runs_on, other.runs_on) == ("scalar", "vector")
    name = instr.reduced.tile.name
    sums = [bench.run(each, target=target)[name] for each in (one, other)]
    np.testing.assert_allclose(*sums, rtol=1e-6)
    if len(shape) == 2:
        np.testing.assert_array_equal(*sums)


def test_a_sum_stays_where_its_copy_is_read_or_it_goes_on() -> None:
    bench = Bench(4, starts=(0,))
    instr = summed(bench, F32)
    reader = TensorCopy(dst=bench.pattern(SHAPE), src=instr.dst, on="vector")
    goes_on = replace(summed(bench, F32), command="reduce")
    shown = replace(summed(bench, F32), command="idle")
    its = scheduler("trn2")
    for others, is_free in (((), True), ((reader,), False), ((goes_on,), False), ((shown,), False)):
        with its.summing(in_program(instr, *others)):
            assert its.has_sums([instr]) == is_free
    for changed in (
        replace(instr, function="exp"), replace(instr, scale=2.0), replace(instr, bias=1.0),
        replace(instr, command="reduce"), replace(instr, reduced=None),
    ):  # fmt: skip
        with its.summing(in_program(changed)):
            assert not its.has_sums([changed])
    assert not its.has_sums([instr]), "nothing is known of its program"
