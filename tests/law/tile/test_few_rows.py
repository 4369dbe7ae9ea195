"""Products of few rows: their weights arrive in long runs and few transfers, once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.compiler import run_pipeline
from glia.frontend.registry import read_module
from glia.isa.instructions.dma import DmaCopy
from glia.machine.ir import walk
from glia.options import CompileOptions

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "is_left"), [(1, True), (4, True), (1, False)])
def test_weights_move_past_the_few_rows(target: str, rows: int, is_left: bool) -> None:
    x = jax.ShapeDtypeStruct((rows, 2048), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((2048, 1024), jnp.bfloat16)
    lowered = jax.jit(lambda x, w: x @ w if is_left else (w.T @ x.T)).lower(x, w)
    options = CompileOptions(target=target)
    nests = run_pipeline(read_module(lowered), options, stop_after="schedule_nests")
    (schedule,) = (s for s in nests.schedules.values() if s.engine == "tensor")
    assert (schedule.stationary == "left") == is_left
    assert max(schedule.tiles.values()) == 512


def test_blocks_of_a_product_come_in_one_transfer() -> None:
    x, w = np.ones((4, 1024), np.float32), np.ones((1024, 64), np.float32)
    neff = glia.compile(jax.jit(lambda x, w: x @ w).lower(x, w))
    loads = [each for each in walk(neff.program.body) if isinstance(each, DmaCopy)]
    sources = [each.src.tile.name for each in loads if each.queue == "load"]
    assert len(sources) == len(set(sources)) == 2
    (found,) = glia.load(neff)(x, w)
    np.testing.assert_array_equal(found, x @ w)
