"""Reduced axes lie on the PE's rows beside the contracted one, in every way that there is."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import glia
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.machine.emit.box import find_box
from glia.tile import ir
from glia.tile.ir import Load
from glia.tile.passes import schedule
from glia.tile.text import parse_program, print_program
from support.targets import CORES


@dataclass(frozen=True)
class Case:
    """A convolution of [N, C, H, W] with [O, C, A, B]."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    is_constant: bool = True

    def __call__(self, x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, kernel, self.stride, self.padding, rhs_dilation=self.dilation
        )


CASES = (
    Case((2, 3, 13, 11), (5, 3, 7, 7), (2, 2), ((3, 3), (3, 3))),
    Case((1, 3, 16, 16), (4, 3, 4, 4), (4, 4)),
    Case((1, 32, 6, 5), (9, 32, 3, 3), (1, 1), ((1, 1), (1, 1)), is_constant=False),
    Case((2, 5, 9, 9), (3, 5, 3, 2), (1, 2), ((0, 2), (1, 0)), (2, 1), is_constant=False),
)
WAYS = range(9)


def _inputs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    found = (random.standard_normal(shape, np.float32) for shape in (case.x, case.kernel))
    x, kernel = found
    return x, kernel


def _compiled(case: Case, target: str, chosen: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program in which every contraction lies on the rows in the way that is chosen."""
    ways = schedule.ways_on_rows
    monkeypatch.setattr(schedule, "ways_on_rows", lambda *given: chosen(ways(*given)))
    x, kernel = _inputs(case)
    if case.is_constant:
        lowered = jax.jit(partial(case, kernel=kernel)).lower(x)
    else:
        lowered = jax.jit(case).lower(x, kernel)
    return glia.compile(lowered, target=target, verify=True)


@pytest.mark.parametrize(
    ("case", "way", "target"),
    [
        (case, way, CORES[(number + way) % len(CORES)])
        for (number, case), way in itertools.product(enumerate(CASES), WAYS)
    ],
)
def test_each_way_gives_the_same_values(
    case: Case, way: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def choose(ways: list[tuple[str, dict[str, int]]]) -> list[tuple[str, dict[str, int]]]:
        taken.append(ways[way % len(ways)])
        return taken[-1:]

    neff = _compiled(case, target, choose, monkeypatch)
    assert taken
    assert not [note for note in neff.programs[0].notes if "slower way" in note]
    x, kernel = _inputs(case)
    arguments = (x,) if case.is_constant else (x, kernel)
    (found,) = glia.load(neff)(*arguments)
    np.testing.assert_allclose(found, case(x, kernel), rtol=1e-4, atol=1e-4)


def test_a_stem_is_packed_and_rows_that_a_step_skips_are_not_loaded() -> None:
    case = Case((1, 3, 224, 224), (64, 3, 7, 7), (2, 2), ((3, 3), (3, 3)))
    x, kernel = _inputs(case)
    neff = glia.compile(jax.jit(partial(case, kernel=kernel)).lower(x), target="trn2")
    products = [i for i in neff.programs[0].instructions() if i.mnemonic() == "nc_matmul"]
    assert {each.moving.partitions for each in products} == {84, 63}  # 7 rows, 3 channels, 4 + 3
    loaded = sum(
        i.dst.bytes for i in neff.programs[0].instructions()
        if i.mnemonic() == "dma_copy" and i.src.tile.name.startswith("x")
    )  # fmt: skip
    assert loaded <= x.nbytes * 7 / 2 * 4


@pytest.mark.parametrize("target", CORES)
def test_weights_that_are_arguments_come_in_runs(target: str) -> None:
    case = Case((1, 3, 112, 112), (384, 3, 16, 16), (16, 16), is_constant=False)
    neff = glia.compile(jax.jit(case).lower(*_inputs(case)), target=target, auto_cast="none")
    loads = [
        i for i in neff.programs[0].instructions()
        if i.mnemonic() == "dma_copy" and i.src.tile.name.startswith("input1")
    ]  # fmt: skip
    assert loads
    assert min(each.src.contiguous_bytes for each in loads) >= 16 * 4


def test_many_channels_fill_the_rows_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(ways: list[tuple[str, dict[str, int]]]) -> list[tuple[str, dict[str, int]]]:
        seen.extend(ways)
        return ways

    _compiled(Case((1, 160, 6, 6), (4, 160, 3, 3)), "trn2", look, monkeypatch)
    assert seen
    assert all(not packed for _, packed in seen)


@pytest.mark.parametrize("target", CORES)
def test_only_the_border_of_an_image_is_filled(target: str) -> None:
    case = Case((1, 128, 20, 20), (8, 128, 3, 3), padding=((1, 1), (1, 1)))
    x, kernel = _inputs(case)
    neff = glia.compile(jax.jit(partial(case, kernel=kernel)).lower(x), target=target)
    filled = [i.dst for i in neff.programs[0].instructions() if i.mnemonic() == "memset"]
    assert sum(each.free for each in filled) == 22 * 22 - 20 * 20
    (found,) = glia.load(neff)(x)
    np.testing.assert_allclose(found, case(x, kernel), rtol=1e-4, atol=1e-3)


def test_a_reshape_of_channels_leaves_the_convolution_whole() -> None:
    case = Case((1, 64, 5, 5), (64, 64, 1, 1))
    x, kernel = _inputs(case)

    def grouped(x: Any) -> Any:
        return case(x, kernel).reshape(1, 16, 100).sum(-1)

    neff = glia.compile(jax.jit(grouped).lower(x), target="trn2")
    products = [i for i in neff.programs[0].instructions() if i.mnemonic() == "nc_matmul"]
    assert {each.dst.partitions for each in products} == {64}
    (found,) = glia.load(neff)(x)
    np.testing.assert_allclose(found, grouped(x), rtol=1e-4, atol=1e-3)


def test_a_box_leaves_out_what_lies_between_steps() -> None:
    load = Load("x", F32, (Affine.of("r") * 4, Affine.of("c")))
    extents = {"r": 8, "c": 32}
    whole = find_box(load, "", {}, extents)
    stepped = find_box(load, "", {}, extents, least_gap=128)
    assert whole.elements == 29 * 32
    assert stepped.elements == 8 * 32
    assert find_box(load, "", {}, extents, least_gap=1024) == whole


def test_a_schedule_with_packed_and_coarse_axes_prints_and_parses() -> None:
    axis = Affine.of("i")
    nest = ir.Nest(
        "n", (ir.Axis("i", 64),), Load("x", F32, (axis,)), ir.Store("y", (axis,))
    )  # fmt: skip
    how = ir.Schedule("vector", "", {"i": 4}, ("i",), packed=("i",), coarse={"i": 16})
    buffers = {
        "x": ir.Buffer("x", F32, (64,), "input"), "y": ir.Buffer("y", F32, (64,), "output")
    }  # fmt: skip
    program = ir.Program("p", buffers, (nest,), ("x",), ("y",), schedules={"n": how})
    assert parse_program(print_program(program)).schedules == {"n": how}
