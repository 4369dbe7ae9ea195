"""Whatever schedule a nest falls back on, values stay; the last can be emitted for every nest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import glia
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.machine.emit import fitting
from glia.machine.emit.fitting import Plan
from glia.machine.emit.nest import EmitContext
from glia.machine.emit.refusal import Refusal, TooLarge
from glia.tile.ir import Axis, Load, Nest, Schedule, Store
from glia.tile.passes import choose_layouts
from glia.tile.passes.easier_schedules import plain_schedules, smaller_schedules
from glia.tile.row_search import whole_axes
from support.corpus import BY_NAME, PROGRAMS, Program, assert_close, hlo_bytes
from support.targets import CORES

SMALL = (
    "matmul", "batched", "conv_dilated", "conv_gradient", "gather_rows", "scatter_add",
    "dynamic_update_slice", "concatenate", "pad", "embedding", "mlp_training_step",
)  # fmt: skip


def _refuse_pe(nest: Nest, plan: Plan) -> None:
    if plan.schedule.engine == "tensor":
        raise Refusal("no PE")


def _refuse_wide_tiles(nest: Nest, plan: Plan) -> None:
    kept = {plan.schedule.partition, plan.schedule.contract, *whole_axes(nest)}
    if plan.hoist_bytes or any(n > 3 for a, n in plan.schedule.tiles.items() if a not in kept):
        raise TooLarge("small tiles only")


def _refuse_free_axes(nest: Nest, plan: Plan) -> None:
    _refuse_pe(nest, plan)
    kept = {plan.schedule.partition, *whole_axes(nest)}
    if any(n > 1 for a, n in plan.schedule.tiles.items() if a not in kept):
        raise Refusal("rows only")


def _refuse_all_but_the_last(nest: Nest, plan: Plan) -> None:
    if plan.schedule.partition or any(n > 1 for n in plan.schedule.tiles.values()):
        raise Refusal("elements only")


REFUSALS: tuple[Callable[[Nest, Plan], None], ...] = (
    _refuse_pe, _refuse_wide_tiles, _refuse_free_axes,
)  # fmt: skip


def _compile_and_compare(
    program: Program,
    target: str,
    refuse: Callable[[Nest, Plan], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt = fitting._attempt

    def attempt_or_refuse(context: EmitContext, nest: Nest, plan: Plan) -> None:
        refuse(nest, plan)
        attempt(context, nest, plan)

    monkeypatch.setattr(fitting, "_attempt", attempt_or_refuse)
    neff = glia.compile(hlo_bytes(program), target=target, verify=True)
    assert_close(program, glia.load(neff)(*(np.asarray(a) for a in program.arguments)))


@pytest.mark.parametrize("refuse", REFUSALS, ids=lambda each: each.__name__.removeprefix("_"))
@pytest.mark.parametrize(
    ("name", "target"),
    [(name, CORES[i % len(CORES)]) for i, name in enumerate(SMALL)],
)
def test_an_easier_schedule_gives_the_same_values(
    name: str,
    target: str,
    refuse: Callable[[Nest, Plan], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _compile_and_compare(BY_NAME[name], target, refuse, monkeypatch)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("name", ["conv_1d", "vector_dot"])
def test_every_nest_can_be_emitted_element_by_element(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compile_and_compare(BY_NAME[name], target, _refuse_all_but_the_last, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("refuse", REFUSALS, ids=lambda each: each.__name__.removeprefix("_"))
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name)
def test_an_easier_schedule_of_any_program_gives_the_same_values(
    program: Program,
    target: str,
    refuse: Callable[[Nest, Plan], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _compile_and_compare(program, target, refuse, monkeypatch)


def test_a_resident_buffer_in_the_way_of_a_nest_goes_to_hbm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = BY_NAME["graph_attention"]
    monkeypatch.setattr(choose_layouts, "_is_aligned", lambda *_: True)
    neff = glia.compile(hlo_bytes(program), verify=True)
    assert any("go through HBM: a nest cannot use them in SBUF" in note for note in neff.notes)
    assert_close(program, glia.load(neff)(*(np.asarray(a) for a in program.arguments)))


def test_a_fallback_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    _compile_and_compare(BY_NAME["matmul"], "trn2", _refuse_pe, monkeypatch)
    neff = glia.compile(hlo_bytes(BY_NAME["matmul"]))
    assert any("is emitted in a slower way: no PE" in note for note in neff.notes)


def test_smaller_schedules_end_with_single_values_of_free_axes() -> None:
    nest, schedule = _nest(), Schedule("vector", "p", {"p": 128, "f": 100, "g": 7}, ("p", "f"))
    found = [*smaller_schedules(nest, schedule)]
    sizes = [s.tiles["f"] * s.tiles["g"] for s in found]
    assert sizes == sorted(set(sizes), reverse=True) and sizes[-1] == 1
    assert all(s.tiles["p"] == 128 and set(s.order) == {"p", "f", "g"} for s in found[-1:])


def test_plain_schedules_end_with_one_element() -> None:
    found = [*plain_schedules(_nest())]
    assert all(schedule.engine == "vector" for schedule in found)
    assert {schedule.partition for schedule in found} == {"p", "f", "g", ""}
    assert not found[-1].partition and set(found[-1].tiles.values()) == {1}


def _nest() -> Nest:
    """A copy of f32[300, 100, 7]."""
    index = tuple(map(Affine.of, ("p", "f", "g")))
    axes = (Axis("p", 300), Axis("f", 100), Axis("g", 7))
    return Nest("copy", axes, Load("x", F32, index), Store("y", index))
