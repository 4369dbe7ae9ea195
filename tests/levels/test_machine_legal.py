"""The verifier of machine programs finds each thing planted in a legal one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.base.errors import InternalError
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import Memset, TensorCopy
from glia.isa.operand import Pattern, Signal, Wait
from glia.machine.ir import Branch, Loop, Program, While
from glia.machine.legal import verify
from support.machine_programs import binding, matmul, programs, tile, whole

BASE = matmul(128, 128, 512)
OUT, TOTAL = BASE.tiles["out"], BASE.tiles["total"]


def _with(*statements: Any, **changes: Any) -> Program:
    return replace(BASE, body=(*BASE.body, *statements), **changes)


def _signalling(count: int) -> list[Memset]:
    return [replace(FILL, signals=(Signal(f"s{i}"),)) for i in range(count)]


def _queued(count: int) -> list[DmaCopy]:
    return [replace(LOAD, queue=f"q{i}", dst=whole(OUT), src=whole(OUT)) for i in range(count)]


def _copy(offset: str | int, partition: str | int = 0, partitions: int = 128) -> TensorCopy:
    pattern = Pattern(OUT, F32, ((1, partitions), (1, 64)), Affine.of(offset), Affine.of(partition))
    return TensorCopy(dst=pattern, src=pattern)


LOAD = next(i for i in BASE.instructions() if isinstance(i, DmaCopy))
FILL = Memset(dst=whole(OUT), value=0.0)
WAIT = Wait("s", Affine.of("j"))
STRAY = tile("stray", "SBUF", 128, 4)

PLANTED: list[tuple[str, Callable[[], Program]]] = [
    ("reaches elements 0..512 of 512", lambda: _with(Loop("i", 450, (_copy("i"),)))),
    ("reaches elements -1..62 of 512", lambda: _with(_copy(-1))),
    ("loop variable i is not set here", lambda: _with(_copy("i"))),
    ("register $r is not set here", lambda: _with(_copy("$r"))),
    ("while reads register r before", lambda: _with(While((), "r", (FILL,)))),
    ("branch reads register r before", lambda: _with(Branch("r", ((FILL,),)))),
    ("loop i hides a loop", lambda: _with(Loop("i", 2, (Loop("i", 2, (FILL,)),)))),
    ("loop i runs 0 times", lambda: _with(Loop("i", 0, (FILL,)))),
    ("stray is not a tile of the program", lambda: _with(Memset(dst=whole(STRAY), value=0.0))),
    ("loop variable j is not set", lambda: _with(replace(FILL, waits=(WAIT,)))),
    ("memset runs on vector, gpsimd, not on tensor", lambda: _with(replace(FILL, on="tensor"))),
    ("more than one bank", lambda: replace(BASE, addresses={"total": 1024})),
    ("tile left ends at byte", lambda: replace(BASE, addresses={"left": 229000})),
    ("tile total ends at byte", lambda: replace(BASE, addresses={"total": 15000})),
    ("overlap in HBM at byte", lambda: replace(BASE, addresses={"x": 0, "w": 64})),
    (
        "tile tall has 129 of 128 partitions",
        lambda: replace(BASE, tiles={**BASE.tiles, "tall": tile("tall", "SBUF", 129, 4)}),
    ),
    ("x does not fill its tile", lambda: replace(BASE, inputs=(binding(BASE.tiles["x"], 3),))),
    ("out is bound to out in SBUF", lambda: replace(BASE, outputs=(binding(OUT, 128, 512),))),
    ("is bound to stray, which is not", lambda: replace(BASE, inputs=(binding(STRAY, 512),))),
    ("constant out has no tile in HBM", lambda: replace(BASE, constants={"out": np.zeros(1)})),
    ("semaphores are named; a core has 256", lambda: _with(*_signalling(257))),
    ("each DMA engine has 16 rings", lambda: _with(*_queued(17))),
    ("constant w does not fill", lambda: replace(BASE, constants={"w": np.zeros(1)})),
]  # fmt: skip


@pytest.mark.parametrize("program", programs(), ids=lambda p: p.name)
def test_hand_written_programs_are_legal(program: Program) -> None:
    verify(program)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p[0])
def test_a_planted_violation_is_found(planted: tuple[str, Callable[[], Program]]) -> None:
    sentence, make = planted
    with pytest.raises(InternalError) as error:
        verify(make())
    assert sentence in str(error.value)


def test_an_instruction_is_shown_with_the_rule_and_its_numbers() -> None:
    wide = Pattern(TOTAL, F32, ((1, 128), (1, 256)))
    bad = NcMatmul(dst=wide, stationary=whole(BASE.tiles["left"]), moving=whole(OUT))
    with pytest.raises(InternalError) as error:
        verify(_with(bad))
    text = str(error.value)
    assert "matmul is not a legal program for trn2" in text
    assert "nc_matmul(dst=total[0 :+128; 0 | 1*256]:f32" in text
    assert "dst must have a partition for each column of stationary" in text
    assert "dst is f32[128, 256] in PSUM" in text


def test_only_the_first_violations_are_listed() -> None:
    with pytest.raises(InternalError, match="and 4 more"):
        verify(_with(*(_copy(-i) for i in range(1, 7))))
