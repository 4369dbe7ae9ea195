"""Where the scheduler may send an instruction: every engine it considers gives the same bits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glia.arch import get_target
from glia.base.dtype import BF16, F16, F32, DType
from glia.isa.instructions.vector import Memset, TensorCopy, TensorScalar
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
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
