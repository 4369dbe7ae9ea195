"""Iterations of a loop as one instruction: the same values, or they stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import get_target
from glia.base.affine import Affine
from glia.isa.kit import INSTRUCTIONS, Instr
from glia.isa.operand import Pattern, Tile
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.machine.legal import verify
from glia.machine.passes import merge_iterations as module
from glia.machine.passes.merge_iterations import may_merge, merge_iterations
from glia.sim.run import run
from support.examples import with_examples
from support.targets import CORES

MAPPED = [kind for kind in INSTRUCTIONS.values() if kind.maps_outer]
ROWS, COLUMNS, COUNT = 16, 96, 6


@pytest.fixture(autouse=True)
def merges_what_is_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the law does not depend on what is faster."""
    monkeypatch.setattr(module, "_is_faster", lambda *_: True)


def merged_program(
    program: Program, iterations: list[list[Instr]], private: set[str]
) -> Program | None:
    """The program with these iterations merged; None where they stay."""
    tiles = dict(program.tiles)

    def new_tile(tile: Tile, count: int) -> Tile:
        made = replace(tile, name=f"{tile.name}*", elements=tile.elements * count)
        tiles[made.name] = made
        return made

    arch = get_target(program.target).arch
    merged = merge_iterations(iterations, private, arch, new_tile)
    if merged is None:
        return None
    count = sum(map(len, iterations))
    first = program.body.index(iterations[0][0])
    body = (*program.body[:first], *merged, *program.body[first + count :])
    return replace(program, body=body, tiles=tiles)


# --- every instruction ----------------------------------------------------------------------------


def loop_of(kind: type[Instr], target: str) -> tuple[Program, list[list[Instr]]]:
    """A program of one instruction of a kind in every iteration, on neighbouring elements."""
    example = kind.example()
    if "reduced" in kind.operand_declarations:
        example = replace(example, reduced=None)  # type: ignore[call-arg]  # such kinds have it
    b = ProgramBuilder("loop", target=target)
    tiles: dict[str, tuple[Any, Any]] = {}
    for name, declared, pattern in example.operands():
        shape = (pattern.partitions, pattern.free * (1 if declared.is_column else COUNT))
        outside = b.input(name, shape, pattern.dtype)
        tiles[name] = b.sbuf(shape, pattern.dtype, name=f"{name}_tile"), outside
        b.dma_copy(*tiles[name])
    iterations = []
    for number in range(COUNT):
        changes = {}
        for name, declared, pattern in example.operands():
            start = 0 if declared.is_column else number * pattern.free
            dims = ((1, pattern.partitions), (1, pattern.free))
            changes[name] = Pattern(tiles[name][0].tile, pattern.dtype, dims, Affine.of(start))
        iterations.append([b.emit(replace(example, **changes))])
    for name, (tile, outside) in tiles.items():
        b.dma_copy(b.output(f"{name}_after", outside.shape, outside.dtype), tile)
    return replace(b.finish(synchronise=False), addresses={}), iterations


def inputs_of(program: Program) -> dict[str, np.ndarray]:
    """Small integers, which every dtype holds, and no two neighbours are equal."""
    random = np.random.default_rng(5)
    return {
        each.name: random.integers(0, 9, each.shape).astype(each.dtype.numpy)
        for each in program.inputs
    }


def assert_same_results(program: Program, other: Program) -> None:
    verify(other)
    inputs = inputs_of(program)
    expected, actual = run(program, inputs), run(other, inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize("kind", MAPPED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("target", CORES)
def test_an_instruction_that_maps_outer_dimensions_does(kind: type[Instr], target: str) -> None:
    program, iterations = loop_of(kind, target)
    merged = merged_program(program, iterations, set())
    assert merged is not None and len(merged.body) == len(program.body) - COUNT + 1
    assert_same_results(program, merged)


def test_what_looks_at_neighbours_is_not_merged() -> None:
    scan = INSTRUCTIONS["tensor_tensor_scan"].example()
    assert not may_merge([scan], 2)
    sums_rows = INSTRUCTIONS["activation"].example()
    assert not may_merge([sums_rows], 2) and may_merge([replace(sums_rows, reduced=None)], 2)  # type: ignore[call-arg]  # it has it


# --- loops of several instructions ----------------------------------------------------------------

PLACE = st.tuples(
    st.integers(0, 2),  # tile
    st.integers(0, 40),  # the first column in the first iteration
    st.sampled_from((0, 1, 2, 4, 4, -4)),  # columns on in the next
)
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "copy", "fill", "sum", "scale")), PLACE, PLACE, PLACE),
    min_size=1, max_size=4,
)  # fmt: skip


def program_of(steps: Any, target: str) -> tuple[Program, list[list[Instr]], set[str]]:
    """Iterations of the steps on two tiles, and on one that each iteration has for itself."""
    b = ProgramBuilder("steps", target=target)
    x, y = b.input("x", (2 * ROWS, COLUMNS)), b.output("y", (2 * ROWS, COLUMNS))
    shared = [b.sbuf((ROWS, COLUMNS), name=f"t{n}") for n in range(2)]
    for number, tile in enumerate(shared):
        b.dma_copy(tile, x[ROWS * number : ROWS * (number + 1)])
    own = [b.sbuf((ROWS, COLUMNS), name=f"own{n}") for n in range(COUNT)]
    iterations = []
    for number in range(COUNT):
        tiles = [*shared, own[number]]
        filled = b.memset(own[number][:, :8], 1.0)
        iterations.append([filled, *(_emit(b, step, tiles, number) for step in steps)])
    for number, tile in enumerate(shared):
        b.dma_copy(y[ROWS * number : ROWS * (number + 1)], tile)
    program = replace(b.finish(synchronise=False), addresses={})
    return program, iterations, {tile.tile.name for tile in own}


def _emit(b: Any, step: Any, tiles: list[Any], number: int) -> Instr:
    kind, *places = step
    dst, one, two = (_columns(tiles, place, number) for place in places)
    made: dict[str, Callable[[], Instr]] = {
        "add": lambda: b.tensor_tensor(dst, one, two, op="subtract"),
        "copy": lambda: b.tensor_copy(dst, one),
        "fill": lambda: b.memset(dst, 3.0),
        "sum": lambda: b.tensor_reduce(dst[:, :1], one, op="add"),
        "scale": lambda: b.tensor_scalar(dst, one, two[:, :1], op0="subtract"),
    }
    return made[kind]()


def _columns(tiles: list[Any], place: tuple[int, int, int], number: int) -> Any:
    tile, first, step = place
    start = 0 if tile == 2 else 24 + first % 24 + number * step
    return tiles[tile][:, start : start + 4]


@pytest.mark.parametrize("target", CORES)
@with_examples(60)
@given(steps=STEPS)
def test_merging_keeps_every_value(target: str, steps: Any) -> None:
    program, iterations, private = program_of(steps, target)
    merged = merged_program(program, iterations, private)
    if merged is not None:
        assert_same_results(program, merged)


NEIGHBOURS = [("add", (0, 0, 4), (0, 4, 4), (1, 0, 4))]  # reads what the next iteration writes
CARRIED = [("add", (0, 4, 4), (0, 0, 4), (1, 0, 4))]  # reads what the last iteration has written
BEHIND = [("copy", (0, 0, 4), (1, 0, 4)), ("copy", (1, 4, 4), (0, 0, 4))]
FREE = [("add", (2, 0, 0), (0, 0, 4), (1, 0, 1)), ("sum", (1, 0, 1), (2, 0, 0), (0, 0, 4))]


@pytest.mark.parametrize(("steps", "merges"), [(NEIGHBOURS, False), (CARRIED, False), (FREE, True)])
def test_iterations_that_exchange_values_stay(steps: Any, merges: bool) -> None:
    program, iterations, private = program_of(steps, "trn1")
    assert (merged_program(program, iterations, private) is not None) == merges


def test_a_rule_that_forgets_the_order_changes_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the law would hold of loops that always stay."""
    monkeypatch.setattr(module._Merging, "exchanges_values", lambda _: False)
    program, iterations, private = program_of(CARRIED, "trn1")
    merged = merged_program(program, iterations, private)
    assert merged is not None
    inputs = inputs_of(program)
    assert not np.array_equal(run(program, inputs)["y"], run(merged, inputs)["y"])
