"""Loops whose iterations have tiles of their own compute what they did, at any number of trips."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glia
from glia.arch.instances import COMPILED_TARGETS
from glia.machine import ProgramBuilder, ds
from glia.machine.ir import Loop, Program
from glia.machine.legal import verify
from glia.machine.overlap.overlap_plan import _copies as copies_of_tiles
from glia.machine.overlap.stages import Stages
from glia.machine.passes.double_buffer import double_buffer
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.machine.passes.schedule import schedule
from glia.options import CompileOptions

COLUMNS = 8


def _program(trips: int, inner: int, target: str) -> tuple[Program, np.ndarray]:
    """Rows squared and scaled by what is loaded for all of an outer iteration."""
    b = ProgramBuilder("copies", target=target)
    rows = 32 * trips * max(1, inner)
    x, y = b.input("x", (rows, COLUMNS)), b.output("y", (rows, COLUMNS))
    scale, part, squared = (b.sbuf((32, COLUMNS), name=name) for name in ("scale", "part", "out"))
    with b.loop(trips) as i:
        b.dma_copy(scale, x[ds(32 * max(1, inner) * i, 32)])
        if inner:
            with b.loop(inner) as j:
                at = ds(32 * inner * i + 32 * j, 32)
                b.dma_copy(part, x[at])
                b.tensor_tensor(squared, part, scale, op="multiply")
                b.dma_copy(y[at], squared)
        else:
            b.activation(squared, scale, function="square")
            b.dma_copy(y[ds(32 * i, 32)], squared)
    values = np.random.default_rng(trips).standard_normal((rows, COLUMNS), np.float32)
    return replace(b.finish(), addresses={}), values


def _with_copies(program: Program, copies: int, inner_copies: int, room: int) -> Program:
    (loop,) = program.body
    assert isinstance(loop, Loop)
    body = tuple(
        replace(each, copies=inner_copies, room=room) if isinstance(each, Loop) else each
        for each in loop.body
    )
    return replace(program, body=(replace(loop, body=body, copies=copies, room=room),))


@pytest.mark.parametrize("room", [0, 4096])
@pytest.mark.parametrize("inner", [0, 1, 2, 3, 5])
def test_any_number_of_trips_and_copies(inner: int, room: int) -> None:
    for number, (trips, copies) in enumerate(product(range(1, 8), range(4))):
        target = COMPILED_TARGETS[number % len(COMPILED_TARGETS)]
        plain, values = _program(trips, inner, target)
        options = CompileOptions(target=target, optlevel=2 + number % 2)
        program = _with_copies(plain, copies, number % 4, room)
        made = insert_semaphores(
            place(schedule(double_buffer(program, options), options), options), options
        )
        verify(made, target)
        rows = values.reshape(trips, max(1, inner), 32, COLUMNS)
        (found,) = glia.load(glia.Neff((made,)), device="adversarial")(values)
        wanted = (rows * rows[:, :1]).reshape(values.shape)
        np.testing.assert_allclose(found, wanted, 1e-5, err_msg=f"{trips} trips, {copies} copies")


def _order_beside(columns: int) -> list[str]:
    """The order of a loop's body that multiplies rows by a tile of so many columns around it."""
    b = ProgramBuilder("table", target="trn2")
    x, y = b.input("x", (32 * 12, COLUMNS)), b.output("y", (32 * 12, COLUMNS))
    table, part, out = b.sbuf((32, columns)), b.sbuf((32, COLUMNS)), b.sbuf((32, COLUMNS))
    b.dma_copy(table, b.input("table", (32, columns)))
    with b.loop(12) as i:
        b.dma_copy(part, x[ds(32 * i, 32)])
        b.tensor_tensor(out, part, table[:, ds(0, COLUMNS)], op="multiply")
        b.dma_copy(y[ds(32 * i, 32)], out)
    plain = replace(b.finish(), addresses={})
    *first, loop = plain.body
    assert isinstance(loop, Loop)
    program = replace(plain, body=(*first, replace(loop, copies=4, room=2048)))
    options = CompileOptions(target="trn2", optlevel=2)
    made = schedule(double_buffer(program, options), options)
    return [str(each.dst.tile.name) for each in made.instructions()]


def test_what_lies_around_a_loop_takes_none_of_its_room() -> None:
    assert _order_beside(COLUMNS) == _order_beside(1024 * COLUMNS)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 64)), min_size=1, max_size=8),
    st.integers(1, 8),
    st.integers(0, 512),
)
def test_a_tile_has_a_copy_for_every_iteration_that_uses_it_at_once(
    tiles: list[tuple[int, int]], steps: int, room: int
) -> None:
    spans = {f"tile{n}": span for n, (span, _) in enumerate(tiles)}
    sizes = {f"tile{n}": size for n, (_, size) in enumerate(tiles)}
    within = max((sizes[name] for name, span in spans.items() if not span), default=0)
    stages = Stages((0,), 1 + max(spans.values()), spans, sizes, within)
    for loaded, unread in ((set(), set()), ({"tile0"}, {"tile1"})):
        copies = copies_of_tiles(stages, steps, loaded, unread - {"tile0"}, room)
        if copies is not None:
            assert all(steps % count == 0 for count in copies.values())
            assert all(copies[n] >= span for n, span in spans.items() if n not in unread)


@pytest.mark.parametrize(
    ("trips", "target"), [(7, "trn1"), (9, "trn2"), (12, "trn3"), (13, "trn2")]
)
def test_a_tile_read_by_many_stages_is_not_overwritten(trips: int, target: str) -> None:
    """Of four stages the last reads what the first has loaded."""
    b = ProgramBuilder("stages", target=target)
    x, y = b.input("x", (32 * trips, 512)), b.output("y", (32 * trips, 512))
    loaded, *parts = (b.sbuf((32, 512), name=f"t{n}") for n in range(6))
    with b.loop(trips) as i:
        b.dma_copy(loaded, x[ds(32 * i, 32)])
        b.activation(parts[0], loaded, function="tanh")
        for before, after in pairwise(parts):
            b.activation(after, before, function="tanh")
        b.tensor_tensor(parts[-1], parts[-1], loaded, op="add")
        b.dma_copy(y[ds(32 * i, 32)], parts[-1])
    plain = replace(b.finish(), addresses={})
    values = np.random.default_rng(trips).standard_normal((32 * trips, 512), np.float32)
    (wanted,) = glia.load(glia.Neff((insert_semaphores(place(plain)),)))(values)
    for copies, room in product((2, 3, 4), (6 * 2048, 14 * 2048, 60 * 2048)):
        (loop,) = plain.body
        assert isinstance(loop, Loop)
        program = replace(plain, body=(replace(loop, copies=copies, room=room),))
        for level in (2, 3):
            options = CompileOptions(target=target, optlevel=level)
            made = schedule(double_buffer(program, options), options)
            (found,) = glia.load(glia.Neff((insert_semaphores(place(made)),)))(values)
            np.testing.assert_array_equal(found, wanted, f"{copies} copies in {room} bytes")
