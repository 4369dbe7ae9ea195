"""Loops whose iterations have tiles of their own compute what they did, at any number of trips."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import glia
from glia.arch.instances import COMPILED_TARGETS
from glia.machine import ProgramBuilder, ds
from glia.machine.ir import Loop, Program
from glia.machine.legal import verify
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
    return b.finish(), values


def _with_copies(program: Program, copies: int, inner_copies: int, room: int) -> Program:
    (loop,) = program.body
    assert isinstance(loop, Loop)
    body = tuple(
        replace(each, copies=inner_copies, room=room) if isinstance(each, Loop) else each
        for each in loop.body
    )
    return replace(program, body=(replace(loop, body=body, copies=copies, room=room),))


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("room", [0, 4096])
@pytest.mark.parametrize("inner", [0, 1, 2, 3, 5])
def test_any_number_of_trips_and_copies(inner: int, room: int, level: int) -> None:
    for number, (trips, copies) in enumerate(product(range(1, 8), range(4))):
        target = COMPILED_TARGETS[number % len(COMPILED_TARGETS)]
        plain, values = _program(trips, inner, target)
        options = CompileOptions(target=target, optlevel=level)
        program = _with_copies(plain, copies, number % 4, room)
        made = insert_semaphores(
            place(schedule(double_buffer(program, options), options), options), options
        )
        verify(made, target)
        rows = values.reshape(trips, max(1, inner), 32, COLUMNS)
        (found,) = glia.load(glia.Neff((made,)), device="adversarial")(values)
        wanted = (rows * rows[:, :1]).reshape(values.shape)
        np.testing.assert_allclose(found, wanted, 1e-5, err_msg=f"{trips} trips, {copies} copies")
