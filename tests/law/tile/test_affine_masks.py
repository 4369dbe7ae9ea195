"""What affine predicates choose: one instruction a condition, and the same values."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.base.affine import Affine
from glia.base.dtype import F32, PRED, S8, S32, U32, DType
from glia.graph.scalar import OPPOSITE
from glia.isa.instructions.gpsimd import AffineSelect, Iota
from glia.machine.ir import walk
from glia.tile.affine_predicates import masked
from glia.tile.evaluate import evaluate
from glia.tile.ir import (
    Apply,
    Axis,
    Buffer,
    Expr,
    Index,
    Literal,
    Load,
    Nest,
    Program,
    Store,
)
from support.targets import CORES

AXES = Axis("i", 7), Axis("j", 9)
ROWS_AND_COLUMNS = (300, 260)  # more than are folded into a constant
EXTENTS = {axis.name: axis.extent for axis in AXES}


def random_value(rng: random.Random, dtype: DType) -> Expr:
    """An index, a number, or arithmetic on them, which may wrap around in a narrow type."""
    kind = rng.randrange(4)
    if kind == 0:
        return Literal(rng.randrange(9), dtype)
    if kind < 3:
        terms = {name: rng.choice((0, 1, 1, 2, 17)) for name in EXTENTS}
        return Index(Affine.build(terms, rng.randrange(3)), dtype)
    function = rng.choice(("add", "subtract", "multiply"))
    return Apply(function, (random_value(rng, dtype), random_value(rng, dtype)), dtype)


def random_predicate(rng: random.Random, depth: int = 2) -> Expr:
    if depth and rng.random() < 0.5:
        if rng.random() < 0.3:
            return Apply("not", (random_predicate(rng, depth - 1),), PRED)
        both = random_predicate(rng, depth - 1), random_predicate(rng, depth - 1)
        return Apply(rng.choice(("and", "or")), both, PRED)
    dtype = rng.choice((S32, S8, U32, F32))
    left, right = random_value(rng, dtype), random_value(rng, dtype)
    return Apply(rng.choice(tuple(OPPOSITE)), (left, right), PRED)


def values_of(expression: Expr) -> np.ndarray:
    """An expression at every point of the axes, by the evaluator."""
    i, j = (Affine.of(axis.name) for axis in AXES)
    shape = tuple(axis.extent for axis in AXES)
    buffers = {
        "x": Buffer("x", F32, shape, "input"),
        "y": Buffer("y", expression.dtype, shape, "output"),
    }
    nest = Nest("n", AXES, expression, Store("y", (i, j)))
    program = Program("p", buffers, (nest,), ("x",), ("y",))
    x = np.arange(63, dtype=np.float32).reshape(shape) + 1
    return evaluate(program, [x])[0]


def test_conditions_are_the_predicate() -> None:
    found = 0
    for seed in range(400):
        rng = random.Random(seed)
        x = Load("x", F32, (Affine.of("i"), Affine.of("j")))
        arms: list[Expr] = [x, Literal(-2.5, F32)]
        rng.shuffle(arms)
        selection = Apply("select", (random_predicate(rng), *arms), F32)
        parts = masked(selection, EXTENTS)
        if parts is None:
            continue
        found += 1
        conditions, value, number = parts
        again: Expr = value
        for each in conditions:
            difference = Index(each.difference, S32)
            holds = Apply(each.comparison, (difference, Literal(0, S32)), PRED)
            again = Apply("select", (holds, again, number), F32)
        np.testing.assert_array_equal(values_of(again), values_of(selection))
    assert found > 80


def window(x: Any) -> Any:
    """A band of a matrix, and half of it in a narrower type, with numbers of both signs around."""
    i, j = (jax.lax.broadcasted_iota(jnp.int32, x.shape, d) for d in (0, 1))
    band = (2 * i + 3 >= j) & (j > i - 9)
    half = jnp.where(i - j < 0, jnp.bfloat16(7), x.astype(jnp.bfloat16))
    return jnp.where(band, x * 2, -jnp.inf), half, jnp.where(~band, -1e30, x).sum(-1)


@pytest.mark.parametrize("target", CORES)
def test_a_mask_is_one_instruction_for_each_condition(target: str) -> None:
    x = np.random.default_rng(0).integers(-99, 99, ROWS_AND_COLUMNS).astype(np.float32)
    neff = glia.compile(jax.jit(window).lower(x), target=target, verify=True, no_cache=True)
    found = glia.load(neff)(x)
    for value, wanted in zip(found, jax.jit(window)(x), strict=True):
        np.testing.assert_allclose(np.asarray(value), np.asarray(wanted), rtol=1e-6)
    kinds = [type(each) for program in neff.programs for each in walk(program.body)]
    assert AffineSelect in kinds and Iota not in kinds
