"""Totals that are rounded to bfloat16 may be written as such; others stay exact."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.base.dtype import BF16, F32
from glia.isa.instructions.vector import TensorCopy
from glia.tile.ir import Accumulator, Apply, Literal
from glia.tile.nest_rewriting import rounded_total
from support.targets import CORES

TOTAL = Accumulator(F32)
ROUNDED = Apply("convert", (TOTAL,), BF16)


def test_a_total_that_is_only_read_rounded_is_rounded() -> None:
    assert rounded_total(ROUNDED, BF16) == Accumulator(BF16)
    found = rounded_total(Apply("multiply", (ROUNDED, ROUNDED), BF16), BF16)
    assert found == Apply("multiply", (Accumulator(BF16), Accumulator(BF16)), BF16)


def test_a_total_that_is_also_read_exactly_stays() -> None:
    scaled = Apply("multiply", (TOTAL, Literal(0.5, F32)), F32)
    assert rounded_total(TOTAL, BF16) is None
    assert rounded_total(scaled, BF16) is None
    both = Apply("add", (ROUNDED, Apply("convert", (scaled,), BF16)), BF16)
    assert rounded_total(both, BF16) is None


def totals(x: Any) -> Any:
    """A sum, a maximum, and a mean, which divides the exact sum."""
    return x.sum(-1), x.max(-1), x.mean(-1)


@pytest.mark.parametrize("target", CORES)
def test_totals_are_rounded_once(target: str) -> None:
    x = np.random.default_rng(0).normal(0, 3, (130, 300)).astype(jnp.bfloat16)
    lowered = jax.jit(totals).lower(x)
    found = glia.load(glia.compile(lowered, target=target, verify=True, no_cache=True))(x)
    wide = x.astype(np.float64)
    for value, wanted in zip(found, (wide.sum(-1), wide.max(-1), wide.mean(-1)), strict=True):
        half_a_step = np.abs(wanted) * 2.0**-8 + 2e-5
        assert (np.abs(np.asarray(value).astype(np.float64) - wanted) <= half_a_step).all()


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * jnp.asarray(0.125, q.dtype)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_a_rounded_total_is_written_where_it_stays(target: str) -> None:
    """No column is copied: sums of a row go to SBUF, where the next nest reads them."""
    arrays = [np.zeros((12, 384, 64), jnp.bfloat16)] * 3
    lowered = jax.jit(_attention).lower(*arrays)
    program = glia.compile(lowered, target=target, no_cache=True).program
    copies = [each for each in program.instructions() if isinstance(each, TensorCopy)]
    assert copies
    assert all(each.dst.free > 1 for each in copies)
