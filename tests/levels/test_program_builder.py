"""Programs written by hand mean what their views and loops say, and mistakes are told by line."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import glia
from glia.base.affine import Affine
from glia.base.errors import CompileError
from glia.machine import ProgramBuilder, View, ds
from glia.machine.builder.errors import BrokenProgram, IllegalInstruction, IllegalView
from glia.machine.ir import Loop, Program
from glia.machine.text import parse_program, print_program
from glia.sim.order.concurrent import run_concurrently, streams_of
from glia.sim.run import run

X = np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8)

VIEWS = {
    "whole": lambda v: v,
    "an integer drops its dimension": lambda v: v[2],
    "slices": lambda v: v[1:3, 2:, :4],
    "negative indices": lambda v: v[-1, -3:-1],
    "steps": lambda v: v[::2, 1::3, ::-1],
    "an ellipsis": lambda v: v[..., 3],
    "a new dimension": lambda v: v[:, None, 1],
    "transposed": lambda v: v.T,
    "permuted": lambda v: v.transpose(1, 0, 2),
    "joined": lambda v: v.reshape(24, 8),
    "split": lambda v: v[1:].reshape(3, 2, 3, -1),
    "a part reshaped": lambda v: v[:, 2].reshape(2, 2, 8),
}


def copied(view: View, b: ProgramBuilder) -> Program:
    """A program that copies a view of an input to an output of its shape."""
    b.dma_copy(b.output("y", view.shape or (1,)), view)
    return b.finish()


@pytest.mark.parametrize("take", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_names_what_numpy_would(take: Any) -> None:
    b = ProgramBuilder()
    program = copied(take(b.input("x", X.shape)), b)
    np.testing.assert_array_equal(glia.simulate(program)(X), take(X))


def test_a_broadcast_view_repeats_elements() -> None:
    b = ProgramBuilder()
    program = copied(b.input("x", X.shape)[1, :, 0:1].broadcast_to(3, 6, 4), b)
    expected = np.broadcast_to(X[1, :, 0:1], (3, 6, 4))
    np.testing.assert_array_equal(glia.simulate(program)(X), expected)


def test_bytes_can_be_read_as_another_dtype() -> None:
    b = ProgramBuilder()
    half = b.input("x", X.shape)[2].bitcast("u16")
    b.dma_copy(b.output("y", half.shape, "u16"), half)
    np.testing.assert_array_equal(glia.simulate(b.finish())(X), X[2].view(np.uint16))


def test_on_chip_views_keep_their_partitions() -> None:
    b = ProgramBuilder()
    x, y = b.input("x", (128, 64)), b.output("y", (32, 8))
    tile, part = b.sbuf((128, 64)), b.sbuf((32, 8))
    b.dma_copy(tile, x)
    b.tensor_copy(part, tile.reshape(128, 8, 8)[32:64, :, 3])
    b.dma_copy(y, part)
    data = np.random.default_rng(0).random((128, 64), np.float32)
    expected = data.reshape(128, 8, 8)[32:64, :, 3]
    np.testing.assert_array_equal(glia.simulate(b.finish())(data), expected)


def product() -> Program:
    b = ProgramBuilder("product")
    left, right = b.input("left", (256, 256)), b.input("right", (256, 64))
    result = b.output("result", (256, 64))
    with b.loop(2, "m") as m:
        total = b.psum((128, 64), name="total")
        with b.loop(2, "k") as k:
            stationary, moving = b.sbuf((128, 128)), b.sbuf((128, 64))
            b.dma_copy(stationary, left[ds(128 * m, 128), ds(128 * k, 128)].T)
            b.dma_copy(moving, right[ds(128 * k, 128)], queue="right", on="gpsimd")
            b.nc_matmul(total, stationary, moving, accumulate=k)
        out = b.sbuf((128, 64), name="out")
        b.activation(out, total, "relu")
        b.dma_copy(result[ds(128 * m, 128)], out)
    return b.finish()


def test_loops_stay_loops_and_their_order_is_kept() -> None:
    program = product()
    assert isinstance(program.body[0], Loop) and isinstance(program.body[0].body[0], Loop)
    assert parse_program(print_program(program)) == program
    rng = np.random.default_rng(1)
    arrays = {b.name: rng.standard_normal(b.shape, np.float32) for b in program.inputs}
    expected = np.maximum(arrays["left"] @ arrays["right"], 0)
    for seed in range(len(streams_of(program))):
        found = run_concurrently(program, arrays, seed=seed)["result"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert glia.load(program).profile().latency_us > 0


def test_registers_whiles_and_branches() -> None:
    b = ProgramBuilder()
    limit, y = b.input("limit", (1,), "s32"), b.output("y", (8, 4))
    flag, row = b.sbuf((1, 1), "s32"), b.sbuf((1, 4))
    b.dma_copy(flag, limit)
    left, odd = b.register("left"), b.register("odd")
    b.register_load(flag, left)
    with b.while_loop() as loop:
        b.register_alu(left, "subtract", left, 1)
        loop.test(left)
        b.register_alu(odd, "bitwise_and", left, 1)
        with b.branch(odd) as arms:
            with arms.arm():
                b.memset(row, 2.0)
            with arms.arm():
                b.memset(row, 1.0)
        b.dma_copy(y[left], row)
    program = b.finish()
    found = run(program, {"limit": np.int32([5])})["y"]
    np.testing.assert_array_equal(found[1:5, 0], [1, 2, 1, 2])
    assert parse_program(print_program(program)) == program


def test_addresses_given_are_kept_and_left_alone() -> None:
    b = ProgramBuilder()
    end = 96 * 2**30
    x, y = b.input("x", (128, 8), at=end - 4096), b.output("y", (128, 8))
    fixed, other = b.sbuf((128, 8), name="fixed", at=0), b.sbuf((128, 8), name="other")
    b.dma_copy(fixed, x)
    b.tensor_copy(other, fixed)
    b.dma_copy(y, other)
    program = b.finish()
    assert program.addresses["x"] == end - 4096 and program.addresses["fixed"] == 0
    assert program.addresses["other"] >= 32


def line_of(error: CompileError) -> str:
    return inspect.getsource(inspect.getmodule(line_of)).splitlines()[error.loc.line - 1]  # type: ignore[arg-type]


def test_a_broken_rule_is_told_at_its_line() -> None:
    b = ProgramBuilder()
    total, left = b.psum((128, 512)), b.sbuf((128, 128))
    right = b.sbuf((128, 1024))
    with pytest.raises(
        IllegalInstruction, match=r"(?s)GLIA311.*a column for each of moving"
    ) as caught:
        b.nc_matmul(total, left, right)
    assert "b.nc_matmul(total, left, right)" in line_of(caught.value)
    with pytest.raises(IllegalInstruction, match="it takes dst, src"):
        b.tensor_copy(total, source=left)
    with pytest.raises(IllegalInstruction, match="queue load is issued by sync, not by scalar"):
        b.dma_copy(left, right[:, :128], queue="load", on="scalar")


@pytest.mark.parametrize(
    "take",
    [
        lambda v: v[4],
        lambda v: v[0, 0, 0, 0],
        lambda v: v[1:9],
        lambda v: v["a"],
        lambda v: v[Affine.of("i") : 3],
        lambda v: v[::0],
        lambda v: v.reshape(7, -1),
        lambda v: v.T.reshape(24, 8),
        lambda v: v.transpose(0, 1),
        lambda v: v.broadcast_to(4, 6, 9),
        lambda v: v[..., ::2].bitcast("u8"),
    ],
)
def test_what_a_view_does_not_hold_is_refused(take: Any) -> None:
    with pytest.raises(IllegalView, match=r"GLIA312.*\n") as caught:
        take(ProgramBuilder().input("x", X.shape))
    assert caught.value.loc.file == __file__


def test_a_program_is_checked_as_a_whole() -> None:
    b = ProgramBuilder("outside")
    x, tile = b.input("x", (512, 4)), b.sbuf((128, 4))
    with b.loop(5) as i:
        b.dma_copy(tile, x[ds(128 * i, 128)])
    with pytest.raises(BrokenProgram, match=r"GLIA313.*outside.*reaches elements 0..2559 of 2048"):
        b.finish()


def test_an_open_loop_and_a_loop_without_test_are_refused() -> None:
    b = ProgramBuilder()
    with b.loop(2), pytest.raises(BrokenProgram, match="still open"):
        b.finish()
    with pytest.raises(BrokenProgram, match="no test"), b.while_loop():
        pass


def test_a_misspelt_instruction_brings_the_one_most_like_it() -> None:
    with pytest.raises(AttributeError, match=r"did you mean tensor_scalar\?"):
        _ = ProgramBuilder("wrong").tensor_scaler


def test_a_program_and_what_is_made_of_it_are_shown_in_a_line() -> None:
    b = ProgramBuilder("copy")
    b.dma_copy(b.output("y", (2, 8), "f32"), b.input("x", (2, 8), "f32"))
    program = b.finish()
    assert repr(program) == "<program copy for trn2: 1 instructions>"
    model = glia.load(program)
    assert repr(model.neff) == "<neff copy for trn2: x f32[2, 8] -> y f32[2, 8]>"
    assert repr(model) == f"<model of {model.neff!r} on device {model.device}>"
    assert repr(model.profile()).startswith("<profile of copy: ")
