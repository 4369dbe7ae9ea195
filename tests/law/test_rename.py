"""Tiles of their own for contents that do not meet, one for equal ones: the same values."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.machine import ProgramBuilder, ds
from glia.machine.builder.program_builder import View
from glia.machine.ir import Program
from glia.machine.passes import liveness_rules
from glia.machine.passes.delay_fills import NOTE, delay_fills
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.machine.passes.rename_tiles import rename_tiles
from glia.machine.passes.schedule import schedule_keeping_engines
from glia.machine.passes.share_loads import share_loads
from glia.machine.passes.share_results import share_results
from glia.sim.order.concurrent import run_concurrently
from glia.sim.run import run
from support.examples import with_examples
from support.targets import CORES

ROWS, COLUMNS, TILES = 8, 12, 3
Step = tuple[str, int, int, int, int]  # what, tile, other tile, first column, columns
KINDS = ["load", "fill", "copy", "double", "store", "product", "more", "loop"]
STEPS = st.tuples(
    st.sampled_from(KINDS), st.integers(0, TILES - 1), st.integers(0, TILES - 1),
    st.sampled_from((0, 0, 0, 4, 6)), st.sampled_from((12, 12, 6, 4)),
)  # fmt: skip


def program_of(steps: list[Step], blocks: int = 0) -> Program:
    """A program that takes the steps on a few tiles, all of them filled before.

    Loads take turns among so many blocks of rows of x; 0: every step has its own.
    """
    b = ProgramBuilder("steps", target="trn1")
    x = b.input("x", (ROWS * len(steps), COLUMNS))
    y = b.output("y", (ROWS * (len(steps) + TILES), COLUMNS))
    tiles = [b.sbuf((ROWS, COLUMNS), name=f"t{n}") for n in range(TILES)]
    total = b.psum((COLUMNS, COLUMNS), name="total")
    for tile in (*tiles, total):
        b.memset(tile, 1.0)
    for number, step in enumerate(steps):
        block = number % (blocks or len(steps))
        _take(b, step, tiles, total, x[ds(ROWS * block, ROWS)], y[ds(ROWS * number, ROWS)])
    for number, tile in enumerate(tiles):
        b.dma_copy(y[ds(ROWS * (len(steps) + number), ROWS)], tile)
    return replace(b.finish(synchronise=False), addresses={})


def _take(b: Any, step: Step, tiles: list[View], total: View, x: View, y: View) -> None:
    kind, first, second, start, count = step
    here = slice(start, min(start + count, COLUMNS))
    one, two = tiles[first][:, here], tiles[second][:, here]
    if kind == "load":
        b.dma_copy(one, x[:, here])
    elif kind == "fill":
        b.memset(one, float(count))
    elif kind == "copy":
        b.tensor_copy(one, two)
    elif kind == "double":
        b.tensor_tensor(one, one, two, op="add")
    elif kind == "store":
        b.dma_copy(y[:, here], one)
    elif kind in ("product", "more"):
        b.nc_matmul(total, tiles[first], tiles[second], accumulate=kind == "more")
        b.tensor_copy(tiles[second], total[:ROWS])
        b.tensor_scalar(tiles[second], tiles[second], 2.0**-6, "multiply")
    else:
        with b.loop(2):
            b.tensor_copy(one, two)


def inputs_of(program: Program) -> dict[str, np.ndarray]:
    shape = program.inputs[0].shape
    return {"x": np.random.default_rng(5).standard_normal(shape, np.float32)}


@with_examples(60)
@given(
    steps=st.lists(STEPS, min_size=2, max_size=14),
    parts=st.sampled_from((1, liveness_rules.MAXIMUM_LIVE)),
)
def test_renaming_keeps_every_value(steps: list[Step], parts: int) -> None:
    program = program_of(steps)
    inputs = inputs_of(program)
    expected = run(program, inputs)["y"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liveness_rules, "MAXIMUM_LIVE", parts)
        renamed = rename_tiles(program)
    np.testing.assert_array_equal(run(renamed, inputs)["y"], expected)
    ordered = insert_semaphores(place(schedule_keeping_engines(renamed, lambda _: True)))
    np.testing.assert_array_equal(run_concurrently(ordered, inputs, seed=1)["y"], expected)


@with_examples(60)
@given(steps=st.lists(STEPS, min_size=2, max_size=14), twice=st.booleans())
def test_sharing_results_keeps_every_value(steps: list[Step], twice: bool) -> None:
    renamed = rename_tiles(program_of(steps * (2 if twice else 1)))
    inputs = inputs_of(renamed)
    expected = run(renamed, inputs)["y"]
    shared = share_results(renamed)
    np.testing.assert_array_equal(run(shared, inputs)["y"], expected)
    ordered = insert_semaphores(place(schedule_keeping_engines(shared, lambda _: True)))
    np.testing.assert_array_equal(run_concurrently(ordered, inputs, seed=1)["y"], expected)


@pytest.mark.parametrize("is_rewritten, left", [(False, 1), (True, 2)])
def test_equal_results_are_computed_once_while_their_operand_stays(
    is_rewritten: bool, left: int
) -> None:
    b = ProgramBuilder("equal", target="trn2")
    x, y = b.input("x", (8, 4)), b.output("y", (16, 4))
    operand, first, second = (b.sbuf((8, 4)) for _ in range(3))
    b.dma_copy(operand, x)
    b.tensor_scalar(first, operand, -1.0, "multiply")
    if is_rewritten:
        b.tensor_tensor(operand, operand, operand, op="add")
    b.tensor_scalar(second, operand, -1.0, "multiply")
    b.dma_copy(y[:8], first)
    b.dma_copy(y[8:], second)
    program = replace(b.finish(synchronise=False), addresses={})
    shared = share_results(program)
    assert Counter(i.mnemonic() for i in shared.instructions())["tensor_scalar"] == left
    inputs = {"x": np.ones((8, 4), np.float32)}
    np.testing.assert_array_equal(run(shared, inputs)["y"], run(program, inputs)["y"])


def test_large_results_are_computed_again() -> None:
    b = ProgramBuilder("large", target="trn2")
    y = b.output("y", (16, 32))
    operand, first, second = (b.sbuf((8, 32)) for _ in range(3))
    b.memset(operand, 1.0)
    b.tensor_scalar(first, operand, -1.0, "multiply")
    b.tensor_scalar(second, operand, -1.0, "multiply")
    b.dma_copy(y[:8], first)
    b.dma_copy(y[8:], second)
    program = replace(b.finish(synchronise=False), addresses={})
    assert share_results(program) is program


def products_of(turns: int, rows: int, *, target: str = "trn1", columns: int = 512) -> Program:
    """In each turn, the sum of each of some rows of blocks of x and a block of z, all loaded."""
    b = ProgramBuilder("products", target=target)
    x, z = b.input("x", (ROWS * rows, columns)), b.input("z", (ROWS * turns, columns))
    y = b.output("y", (ROWS * turns * rows, columns))
    tiles = [b.sbuf((ROWS, columns), name=name) for name in ("left", "right", "sum")]
    for turn in range(turns):
        for row in range(rows):
            b.dma_copy(tiles[0], x[ds(ROWS * row, ROWS)])
            b.dma_copy(tiles[1], z[ds(ROWS * turn, ROWS)])
            b.tensor_tensor(tiles[2], tiles[0], tiles[1], op="add")
            b.dma_copy(y[ds(ROWS * (turn * rows + row), ROWS)], tiles[2])
    return rename_tiles(replace(b.finish(synchronise=False), addresses={}))


def loads_of(program: Program) -> int:
    """How many transfers read an input."""
    names = {each.tile.name for each in program.inputs}
    patterns = [p for i in program.instructions() for _, _, p in i.operands()]
    return sum(pattern.tile.name in names for pattern in patterns)


def check_shared_loads(program: Program, shared: Program, seed: int = 3) -> None:
    """Both give the same, in program order and in a hostile one."""
    values = np.random.default_rng(seed)
    inputs = {each.name: values.standard_normal(each.shape, np.float32) for each in program.inputs}
    expected = run(program, inputs)["y"]
    np.testing.assert_array_equal(run(shared, inputs)["y"], expected)
    ordered = insert_semaphores(place(schedule_keeping_engines(shared, lambda _: True)))
    np.testing.assert_array_equal(run_concurrently(ordered, inputs, seed=1)["y"], expected)


@with_examples(60)
@given(steps=st.lists(STEPS, min_size=2, max_size=14), blocks=st.integers(1, 3))
def test_sharing_loads_keeps_every_value(steps: list[Step], blocks: int) -> None:
    """Loads of few blocks of x, so that many are equal."""
    program = program_of(steps, blocks)
    renamed = rename_tiles(program)
    check_shared_loads(program, share_loads(renamed))


@pytest.mark.parametrize("target", CORES)
def test_loads_that_a_loop_repeats_are_made_once(target: str) -> None:
    program = products_of(3, 4, target=target)
    shared = share_loads(program)
    assert (loads_of(program), loads_of(shared)) == (24, 4 + 3)
    assert sorted(note.split(": ")[1].split(" of")[0] for note in shared.notes) == [
        "8 loads", "9 loads",
    ]  # fmt: skip
    check_shared_loads(program, shared)


def test_the_loads_of_an_argument_leave_their_loop_together_or_not_at_all() -> None:
    """All blocks of x fill more than SBUF, one of z does not: only those of z are loaded once."""
    program = products_of(2, 5, columns=8192)
    shared = share_loads(program)
    assert (loads_of(program), loads_of(shared)) == (20, 10 + 2)
    check_shared_loads(program, shared)


def test_lines_that_share_an_argument_share_its_room() -> None:
    """One line loads the left halves of x, another the right ones: either fits, both do not."""
    b = ProgramBuilder("halves", target="trn1")
    half = 16384
    x, y = b.input("x", (2 * ROWS, 2 * half)), b.output("y", (4 * ROWS, 2 * half))
    tile = b.sbuf((ROWS, half))
    for turn in range(2):
        for row in range(2):
            to = y[ds(ROWS * (2 * turn + row), ROWS)]
            b.dma_copy(tile, x[ds(ROWS * row, ROWS), :half])
            b.dma_copy(to[:, :half], tile)
            b.dma_copy(tile, x[ds(ROWS * row, ROWS), half:])
            b.dma_copy(to[:, half:], tile)
    program = rename_tiles(replace(b.finish(synchronise=False), addresses={}))
    assert share_loads(program) is program


def test_what_the_program_writes_is_loaded_again() -> None:
    b = ProgramBuilder("updated", target="trn2")
    x, y = b.input("x", (8, 4)), b.output("y", (16, 4))
    first, second = (b.sbuf((8, 4)) for _ in range(2))
    b.dma_copy(first, x)
    b.dma_copy(x, first)
    b.dma_copy(second, x)
    b.dma_copy(y[:8], first)
    b.dma_copy(y[8:], second)
    program = replace(b.finish(synchronise=False), addresses={})
    assert share_loads(program) is program


TURNS: list[Step] = [("load", 0, 0, 0, 12), ("copy", 1, 0, 0, 12), ("store", 1, 0, 0, 12)] * 3
PARTS: list[Step] = [("load", 0, 0, 0, 6), ("load", 0, 0, 6, 6), ("store", 0, 0, 0, 12)] * 2


@pytest.mark.parametrize("steps", [TURNS, PARTS])
def test_a_rule_that_forgets_what_is_read_later_changes_values(
    steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the law would hold of a pass whose rule is never asked."""
    program = program_of([*steps, ("load", 0, 0, 0, 4)])
    inputs = inputs_of(program)
    expected = run(program, inputs)["y"]
    monkeypatch.setattr(liveness_rules, "make_live", lambda m, access: 0)
    actual = run(rename_tiles(program), inputs)["y"]
    assert not np.array_equal(actual, expected, equal_nan=True)


def versions(program: Program) -> Counter:
    """How many tiles there are of each stem."""
    names = {p.tile.name for i in program.instructions() for _, _, p in i.operands()}
    return Counter(name.partition("'")[0] for name in names)


def test_every_turn_has_tiles_of_its_own() -> None:
    found = versions(rename_tiles(program_of(TURNS)))
    assert (found["t0"], found["t1"], found["t2"]) == (4, 4, 1)


def test_what_is_filled_in_parts_or_in_place_stays() -> None:
    steps: list[Step] = [("load", 0, 0, 0, 4), ("double", 0, 0, 0, 12), ("store", 0, 0, 0, 12)] * 2
    assert versions(rename_tiles(program_of(steps)))["t0"] == 1


def test_a_part_that_alone_is_read_is_enough() -> None:
    steps: list[Step] = [("load", 0, 0, 0, 4), ("store", 0, 0, 0, 4)] * 3
    steps += [("fill", 0, 0, 0, 12)]
    assert versions(rename_tiles(program_of(steps)))["t0"] == 5


def test_tiles_with_addresses_and_of_loops_stay() -> None:
    program = replace(program_of([*TURNS, ("loop", 2, 1, 0, 12)]), addresses={"t0": 64})
    found = versions(rename_tiles(program))
    assert (found["t0"], found["t1"]) == (1, 1)


@with_examples(60)
@given(steps=st.lists(STEPS, min_size=2, max_size=14))
def test_waiting_fills_keep_every_value(steps: list[Step]) -> None:
    program = program_of(steps)
    inputs = inputs_of(program)
    delayed = delay_fills(program)
    expected = run(program, inputs)["y"]
    np.testing.assert_array_equal(run(delayed, inputs)["y"], expected)
    ordered = insert_semaphores(place(delayed))
    np.testing.assert_array_equal(run_concurrently(ordered, inputs, seed=1)["y"], expected)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("has_addresses", [False, True])
def test_a_fill_stands_before_the_next_use_of_its_tile(target: str, has_addresses: bool) -> None:
    b = ProgramBuilder("fills", target=target)
    y = b.output("y", (8, 4))
    first, second, third = (b.sbuf((8, 4)) for _ in range(3))
    b.memset(first, 0.0)
    b.memset(second, 1.0)
    with b.loop(2):
        b.tensor_copy(third, second)
    b.tensor_tensor(first, first, third, op="add")
    b.dma_copy(y, first)
    program = b.finish(synchronise=False)
    if not has_addresses:
        program = replace(program, addresses={})
    delayed = delay_fills(program)
    names = [each.mnemonic() for each in delayed.instructions()]
    if has_addresses:
        assert delayed is program
        return
    assert names == ["memset", "tensor_copy", "memset", "tensor_tensor", "dma_copy"]
    assert delayed.notes == (NOTE,)
    assert delay_fills(delayed) is delayed
