"""A run says what it answers without modelling it, and only that."""

from __future__ import annotations

import numpy as np
import pytest

import glia
from glia.base.errors import Unspecified
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.sim.assumptions import ALWAYS, FIRST_GENERATION, SEMAPHORES, TRANSFERS, not_modelled
from glia.sim.order.concurrent import Race, run_concurrently


def program(function: str = "exp", target: str = "trn2", synchronise: bool = True) -> Program:
    b = ProgramBuilder("one", target=target)
    x, y, t = b.input("x", (32, 8)), b.output("y", (32, 8)), b.sbuf((32, 8))
    b.dma_copy(t, x)
    b.activation(t, t, function)
    b.dma_copy(y, t)
    return b.finish(synchronise=synchronise)


def test_every_run_lists_what_none_models() -> None:
    assert glia.load(program()).not_modelled == (*ALWAYS, SEMAPHORES, TRANSFERS)
    assert not_modelled(program(synchronise=False)) == (*ALWAYS, TRANSFERS)


def test_a_function_with_a_range_is_listed_with_it() -> None:
    (text,) = [s for s in not_modelled(program("arctan")) if s.startswith("arctan")]
    assert "outside -1.5708..1.5708, its documented range" in text


def test_the_first_generation_is_said_not_to_be_modelled() -> None:
    assert FIRST_GENERATION in not_modelled(program(target="inf1"))
    assert FIRST_GENERATION not in not_modelled(program(target="trn1"))


def test_what_instructions_assume_is_listed_when_it_matters() -> None:
    b = ProgramBuilder("sums")
    t, s = b.sbuf((32, 8)), b.sbuf((32, 1))
    b.memset(t, 1.0)
    b.activation(t, t, "square", command="reset_reduce", reduced=s)
    found = not_modelled(b.finish())
    assert any(text.startswith("activation: a lane's accumulator") for text in found)
    assert not any(text.startswith("activation: ") for text in not_modelled(program("square")))


def selecting(waits: str | tuple[()]) -> Program:
    """Searches a tile that is being loaded unless the search waits for it."""
    b = ProgramBuilder("selecting")
    index, table = b.input("index", (32, 1), "s32"), b.hbm((8, 4), name="table")
    rows, chosen = b.sbuf((32, 4)), b.sbuf((32, 1), "s32")
    b.dma_copy(chosen, index, signals="loaded")
    b.dma_scatter(table, rows, chosen, unique_indices=True, waits=waits)
    return b.finish()


def test_a_race_comes_before_what_is_unspecified_because_of_it() -> None:
    twice = {"index": np.zeros((32, 1), np.int32)}
    with pytest.raises(Unspecified, match="names a row twice"):
        run_concurrently(selecting("loaded"), twice)
    for seed in range(4):
        with pytest.raises(Race, match="let dma_scatter wait for loaded to reach 1"):
            run_concurrently(selecting(()), twice, seed=seed)
