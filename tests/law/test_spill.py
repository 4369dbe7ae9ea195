"""Where memories are too small, contents leave and return: the same values, within capacity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import get_target
from glia.base.errors import InternalError
from glia.isa.instructions.dma import DmaCopy
from glia.isa.operand import Memory, Pattern
from glia.machine import ProgramBuilder, ds
from glia.machine.ir import Program
from glia.machine.legal import verify
from glia.machine.passes import spill as module
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.passes.on_chip_space import on_chip_capacities
from glia.machine.passes.pack_intervals import Block, largest_live_set
from glia.machine.passes.place import place
from glia.machine.passes.rename_tiles import rename_tiles
from glia.machine.passes.schedule import schedule_keeping_engines
from glia.machine.passes.spill import spill
from glia.sim.order.concurrent import run_concurrently
from glia.sim.policy import Policy
from glia.sim.run import run
from support.examples import with_examples
from support.targets import CORES

ROWS, COLUMNS, TILES, SUMS = 32, 512, 6, 4
TILE_BYTES = 4 * COLUMNS  # of a partition: one bank of PSUM
FEW = {Memory.SBUF: 4 * TILE_BYTES, Memory.PSUM: 2 * TILE_BYTES}
ENOUGH = {Memory.SBUF: 20 * TILE_BYTES, Memory.PSUM: 8 * TILE_BYTES}
KINDS = (
    "load", "fill", "copy", "sum", "store", "begin", "add", "take", "put", "part", "loop", "inside",
)  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.integers(0, TILES - 1), st.integers(0, TILES - 1),
        st.sampled_from((0, 0, 128, 256)), st.sampled_from((512, 512, 256, 128)),
    ),
    min_size=4, max_size=24,
)  # fmt: skip
Step = tuple[str, int, int, int, int]


def program_of(steps: list[Step], target: str) -> Program:
    """A program that takes the steps on filled tiles, of which one is filled in part."""
    b = ProgramBuilder("steps", target=target)
    x = b.input("x", (ROWS * len(steps), COLUMNS))
    y = b.output("y", (ROWS * (len(steps) + TILES + SUMS), COLUMNS))
    tiles = [b.sbuf((ROWS, COLUMNS), name=f"t{n}") for n in range(TILES)]
    sums = [b.psum((ROWS, COLUMNS), name=f"s{n}") for n in range(SUMS)]
    part = b.sbuf((ROWS, COLUMNS), name="part")[:, 64:192]
    for tile in (*tiles, *sums, part):
        b.memset(tile, 1.0)
    for number, step in enumerate(steps):
        rows = ds(ROWS * number, ROWS)
        _take(b, step, tiles, sums, part, x[rows], y[rows])
    for number, tile in enumerate((*tiles, *sums)):
        if tile in sums:
            b.tensor_copy(tiles[0], tile)
        b.dma_copy(y[ds(ROWS * (len(steps) + number), ROWS)], tiles[0] if tile in sums else tile)
    b.dma_copy(y[:ROWS, 64:192], part)
    return replace(b.finish(synchronise=False), addresses={})


def _take(b: Any, step: Step, tiles: list[Any], sums: list[Any], part: Any, x: Any, y: Any) -> None:
    kind, first, second, start, count = step
    here = slice(start, min(start + count, COLUMNS))
    one, two, total = tiles[first][:, here], tiles[second][:, here], sums[first % SUMS]
    left, right = tiles[first][:, :ROWS], tiles[second]
    match kind:
        case "load":
            b.dma_copy(one, x[:, here])
        case "fill":
            b.memset(one, float(count))
        case "copy":
            b.tensor_copy(one, two)
        case "sum":
            b.tensor_tensor(one, one, two, op="add")
        case "store":
            b.dma_copy(y[:, here], one)
        case "begin":
            b.nc_matmul(total, left, right, accumulate=False)
        case "add":
            b.nc_matmul(total, left, right, accumulate=False)
            b.nc_matmul(total, left, right, accumulate=True)
            b.tensor_scalar(tiles[second], total, 2.0**-8, "multiply")
        case "take":
            b.tensor_scalar(one, total[:, here], 2.0**-8, "multiply")
        case "put":
            b.tensor_copy(total[:, here], one)
        case "part":
            b.tensor_tensor(part, part, tiles[first][:, :128], op="add")
        case "loop":
            with b.loop(2):
                b.tensor_tensor(one, one, two, op="add")
                b.tensor_copy(total[:, here], one)
        case _:
            with b.loop(2):
                own = b.sbuf((ROWS, COLUMNS), name="own")[:, here]
                b.tensor_copy(own, two)
                b.tensor_tensor(one, one, own, op="add")


def inputs_of(program: Program) -> dict[str, np.ndarray]:
    shape = program.inputs[0].shape
    return {"x": np.random.default_rng(5).standard_normal(shape, np.float32)}


def spilled_to(program: Program, capacities: dict[Memory, int]) -> tuple[Program, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "on_chip_capacities", lambda _: capacities)
        return spill(program)


def live_bytes(program: Program, memory: Memory) -> int:
    """The most bytes of a partition that are live at one time."""
    spans = find_lifetimes(program)
    return largest_live_set([
        Block(program.tiles[name].bytes_per_partition, span.first, span.last)
        for name, span in spans.items() if program.tiles[name].memory is memory
    ])  # fmt: skip


@pytest.mark.parametrize("target", CORES)
@with_examples(8)
@given(steps=STEPS)
def test_spilling_keeps_every_value(target: str, steps: list[Step]) -> None:
    program = program_of(steps, target)
    inputs = inputs_of(program)
    expected = run(program, inputs)["y"]
    for given_program in (program, rename_tiles(program)):
        small, _ = spilled_to(given_program, FEW)
        assert all(live_bytes(small, memory) <= most for memory, most in FEW.items())
        verify(small)
        np.testing.assert_array_equal(run(small, inputs)["y"], expected)
    ordered = insert_semaphores(place(schedule_keeping_engines(small, lambda _: True)))
    strict = Policy(check_initialized=True)
    actual = run_concurrently(ordered, inputs, seed=1, policy=strict)["y"]
    np.testing.assert_array_equal(actual, expected)


STEPS_OF_ALL: list[Step] = [("sum", n, (n + 1) % TILES, 0, 512) for n in range(TILES)] * 2
FAULTS = {
    "_is_legal_at": lambda *_: True,  # a product writes SBUF
    "_record_writes": lambda *_: None,  # what was changed is not stored again
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_spiller_with_a_fault_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the law would hold of programs that nothing leaves."""
    steps = [*STEPS_OF_ALL, *[("begin", n, 0, 0, 512) for n in (0, 1, 2, 3, 0, 1)]]
    program = program_of(steps, "trn1")
    expected = run(program, inputs_of(program))["y"]
    monkeypatch.setattr(module._Spiller, name, FAULTS[name])
    small, _ = spilled_to(program, FEW)
    with pytest.raises((AssertionError, InternalError)):
        verify(small)
        np.testing.assert_array_equal(run(small, inputs_of(small))["y"], expected)


def sums_in_turn(order: list[int], target: str) -> Program:
    """Products that add to one of some sums after the other, each of operands of its own."""
    b = ProgramBuilder("sums", target=target)
    x = b.input("x", (ROWS * len(order), COLUMNS))
    y = b.output("y", (ROWS * len(set(order)), COLUMNS))
    sums = {n: b.psum((ROWS, COLUMNS), name=f"s{n}") for n in order}
    for number, n in enumerate(order):
        moving = b.sbuf((ROWS, COLUMNS), name=f"x{number}")
        b.dma_copy(moving, x[ds(ROWS * number, ROWS)])
        b.nc_matmul(sums[n], moving[:, :ROWS], moving, accumulate=n in order[:number])
    for number, total in enumerate(sums.values()):
        out = b.sbuf((ROWS, COLUMNS), name=f"y{number}")
        b.tensor_copy(out, total)
        b.dma_copy(y[ds(ROWS * number, ROWS)], out)
    return replace(b.finish(synchronise=False), addresses={})


@pytest.mark.parametrize("target", CORES)
@with_examples(20)
@given(st.lists(st.integers(0, 7), min_size=3, max_size=30))
def test_sums_that_leave_before_their_last_product_go_on(target: str, order: list[int]) -> None:
    program = sums_in_turn(order, target)
    inputs = inputs_of(program)
    expected = run(program, inputs)["y"]
    small, lines = spilled_to(program, FEW)
    assert all(live_bytes(small, memory) <= most for memory, most in FEW.items())
    verify(small)
    np.testing.assert_allclose(run(small, inputs)["y"], expected, rtol=1e-5, atol=1e-4)
    assert lines or len(set(order)) <= 2
    ordered = insert_semaphores(place(schedule_keeping_engines(small, lambda _: True)))
    strict = Policy(check_initialized=True)
    actual = run_concurrently(ordered, inputs, seed=1, policy=strict)["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


CUT_FAULTS = {
    "_join": lambda spiller, value: setattr(value, "first_part", None),
    "_add": lambda *_: None,  # what came between the first part and the rest is lost
}


@pytest.mark.parametrize("name", CUT_FAULTS)
def test_a_cut_with_a_fault_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = sums_in_turn([0, 1, 2] * 4, "trn2")
    inputs = inputs_of(program)
    monkeypatch.setattr(module._Spiller, name, CUT_FAULTS[name])
    small, _ = spilled_to(program, FEW)
    found, expected = run(small, inputs)["y"], run(program, inputs)["y"]
    assert not np.allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_tiles_with_addresses_leave_their_bytes_to_no_other() -> None:
    """Their bytes count once, however many tiles share them."""
    program = replace(program_of(STEPS_OF_ALL, "trn1"), addresses={"t0": 64, "t1": 64, "t2": 64})
    found = module._capacities(program, get_target("trn1").arch, 1.0)
    assert found[Memory.SBUF] == on_chip_capacities(get_target("trn1").arch)[Memory.SBUF] - 2048
    roomy = {**FEW, Memory.SBUF: FEW[Memory.SBUF] + TILE_BYTES}
    small, lines = spilled_to(program, roomy)
    assert lines and not any(name.startswith(("t0'", "t1'", "t2'")) for name in small.tiles)
    expected = run(program, inputs_of(program))["y"]
    np.testing.assert_array_equal(run(small, inputs_of(small))["y"], expected)


def test_nothing_leaves_where_everything_fits() -> None:
    program = program_of(STEPS_OF_ALL, "trn1")
    same, lines = spilled_to(program, ENOUGH)
    assert same.body == program.body and not lines


def test_what_leaves_is_counted_by_line_and_memory() -> None:
    """Every transfer to or from a tile of HBM that the spiller made is in its account."""
    program = program_of(STEPS_OF_ALL, "trn1")
    small, lines = spilled_to(program, FEW)
    copies = [i for i in small.instructions() if isinstance(i, DmaCopy)]
    out = sum(i.dst.bytes for i in copies if _is_copy(i.dst, program))
    back = [i.src.bytes for i in copies if _is_copy(i.src, program)]
    of_hbm = [line for line in lines if line.to is Memory.HBM]
    assert out == sum(line.stored_bytes for line in of_hbm) > 0
    assert sum(back) == sum(line.reloaded_bytes for line in of_hbm) > 0
    assert len(back) == sum(line.reloads for line in of_hbm)


def _is_copy(pattern: Pattern, program: Program) -> bool:
    return pattern.memory is Memory.HBM and pattern.tile.name not in program.tiles


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("changed", [None, "tile", "argument"])
def test_what_was_loaded_of_an_argument_is_loaded_again(target: str, changed: str | None) -> None:
    """And stored where the tile, or the argument, changes after its load."""
    b = ProgramBuilder("loaded", target=target)
    x = b.input("x", (ROWS * TILES, COLUMNS))
    y = b.output("y", (ROWS * TILES, COLUMNS))
    tiles = [b.sbuf((ROWS, COLUMNS), name=f"t{n}") for n in range(TILES)]
    for number, tile in enumerate(tiles):
        for half in (slice(0, 100), slice(100, COLUMNS)):
            b.dma_copy(tile[:, half], x[ds(ROWS * number, ROWS), half])
        if changed == "tile":
            b.tensor_scalar(tile, tile, 1.0, "add")
    if changed == "argument":
        b.dma_copy(x[ds(0, ROWS)], tiles[0])
    for number, tile in enumerate(tiles):
        b.dma_copy(y[ds(ROWS * number, ROWS)], tile)
    program = replace(b.finish(synchronise=False), addresses={})
    inputs = inputs_of(program)
    small, (line,) = spilled_to(program, FEW)
    assert line.reloads > 0 and line.copy_ns > 0
    assert (line.stored_bytes == 0) == (changed is None)
    assert (" spill " in str(line)) == (changed is not None)
    np.testing.assert_array_equal(run(small, inputs)["y"], run(program, inputs)["y"])
