"""Small machine programs that are right: what planted faults are planted in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from glia.isa.kit import Instr
from glia.machine import ProgramBuilder, ds
from glia.machine.ir import Branch, Loop, Program, Statement, While, with_blocks

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Clean:
    """A program and what to run it on."""

    program: Program
    inputs: Arrays


def _inputs(program: Program) -> Arrays:
    rng = np.random.default_rng(3)
    found: Arrays = {}
    for b in program.inputs:
        is_index = b.dtype.is_integer
        low_high = rng.permutation(int(np.prod(b.shape))).reshape(b.shape)
        found[b.name] = (low_high if is_index else rng.standard_normal(b.shape)).astype(
            b.dtype.numpy
        )
    return found


def elementwise() -> Program:
    """Load, two engines one after the other, store; one buffer for all iterations."""
    b = ProgramBuilder("elementwise")
    x, y = b.input("x", (96, 8)), b.output("y", (96, 8))
    t, u = b.sbuf((32, 8), name="t"), b.sbuf((32, 8), name="u")
    with b.loop(3) as i:
        b.dma_copy(t, x[ds(32 * i, 32)], waits={"squared": i}, signals="loaded")
        b.activation(u, t, "square", waits={"loaded": i + 1, "stored": i}, signals="squared")
        b.tensor_scalar(u, u, 2.0, "multiply", waits={"squared": i + 1}, signals="doubled")
        b.dma_copy(y[ds(32 * i, 32)], u, waits={"doubled": i + 1}, signals="stored")
    return b.finish()


def two_tiles() -> Program:
    """Two buffers in turn, so that a load overlaps the use of the other one."""
    b = ProgramBuilder("two_tiles")
    x, y = b.input("x", (128, 8)), b.output("y", (128, 8))
    tiles = [b.sbuf((32, 8), name=f"t{n}") for n in range(2)]
    with b.loop(2) as i:
        for n, t in enumerate(tiles):
            rows = ds(64 * i + 32 * n, 32)
            b.dma_copy(t, x[rows], waits={"stored": 2 * i + n - 1}, signals="loaded")
            b.activation(t, t, "abs", waits={"loaded": 2 * i + n + 1}, signals="done")
            b.dma_copy(y[rows], t, waits={"done": 2 * i + n + 1}, signals="stored")
    return b.finish()


def product() -> Program:
    """A matrix product that accumulates over two tiles, operands from two queues."""
    b = ProgramBuilder("product")
    left, right = b.input("left", (64, 64)), b.input("right", (64, 16))
    y = b.output("y", (64, 16))
    w, m = b.sbuf((32, 32), name="w"), b.sbuf((32, 16), name="m")
    total, out = b.psum((32, 16), name="total"), b.sbuf((32, 16), name="out")
    with b.loop(2, "r") as r:
        with b.loop(2, "k") as k:
            step = 2 * r + k
            rows, columns = ds(32 * r, 32), ds(32 * k, 32)
            b.dma_copy(w, left[rows, columns].T, waits={"multiplied": step}, signals="left")
            b.dma_copy(m, right[columns], queue="right", on="gpsimd",
                       waits={"multiplied": step}, signals="right")  # fmt: skip
            b.nc_matmul(total, w, m, accumulate=k, signals="multiplied",
                        waits={"left": step + 1, "right": step + 1, "copied": r})  # fmt: skip
        b.tensor_copy(out, total, waits={"multiplied": 2 * r + 2, "stored": r}, signals="copied")
        b.dma_copy(y[rows], out, waits={"copied": r + 1}, signals="stored")
    return b.finish()


def rows_by_index() -> Program:
    """Gather rows, double them, scatter them to the places they came from."""
    b = ProgramBuilder("rows_by_index")
    table, index = b.input("table", (32, 8)), b.input("index", (32, 1), "s32")
    y = b.output("y", (32, 8))
    chosen, rows = b.sbuf((32, 1), "s32", "chosen"), b.sbuf((32, 8), name="rows")
    b.dma_copy(chosen, index, signals="indices")
    b.dma_gather(rows, table, chosen, waits="indices", signals="gathered", queue="rows")
    b.tensor_tensor(rows, rows, rows, "add", waits="gathered", signals="doubled")
    b.dma_scatter(y, rows, chosen, waits="doubled", queue="rows")
    return b.finish()


def transposes() -> Program:
    """Through the Tensor Engine into PSUM, back by the Vector Engine, and by a transfer."""
    b = ProgramBuilder("transposes")
    x, y, z = b.input("x", (32, 32)), b.output("y", (32, 32)), b.output("z", (32, 32))
    t, turned = b.sbuf((32, 32), name="t"), b.psum((32, 32), name="turned")
    back = b.sbuf((32, 32), name="back")
    b.dma_copy(t, x, signals="loaded")
    b.nc_transpose(turned, t, on="tensor", waits="loaded", signals="turned")
    b.nc_transpose(back, turned, on="vector", waits="turned", signals="back")
    b.dma_copy(y, back, waits="back")
    b.dma_copy(z.T, t, waits="loaded", queue="aside", on="gpsimd")
    return b.finish()


def many_queues() -> Program:
    """Quarters of a tile by four queues, each of an engine of its own; HBM to HBM at the end."""
    b = ProgramBuilder("many_queues")
    x, y, middle = b.input("x", (32, 32)), b.output("y", (32, 32)), b.hbm((32, 32), name="middle")
    t = b.sbuf((32, 32), name="t")
    for n, engine in enumerate(("sync", "scalar", "gpsimd", "tensor")):
        columns = ds(8 * n, 8)
        b.dma_copy(t[:, columns], x[:, columns], queue=f"q{n}", on=engine, signals=f"part{n}")
    b.tensor_scalar(t, t, 1.0, "add", signals="added",
                    waits={f"part{n}": 1 for n in range(4)})  # fmt: skip
    b.dma_copy(middle, t, queue="q0", waits="added", signals="middle")
    b.dma_copy(y, middle, queue="q1", waits="middle")
    return b.finish()


def one_address() -> Program:
    """Three tiles one after the other at one address, while they live apart."""
    b = ProgramBuilder("one_address")
    x, y = b.input("x", (32, 8)), b.output("y", (32, 8))
    one, two = b.sbuf((32, 8), name="one", at=64), b.sbuf((32, 8), name="two", at=1024)
    three = b.sbuf((32, 8), name="three", at=64)
    b.dma_copy(one, x, signals="loaded")
    b.activation(two, one, "exp", waits="loaded", signals="exp")
    b.tensor_scalar(three, two, 3.0, "add", waits="exp", signals="added")
    b.dma_copy(y, three, waits="added")
    return b.finish()


def reductions() -> Program:
    """Rows summed while their halves are computed by two engines, and a column broadcast."""
    b = ProgramBuilder("reductions")
    x, y = b.input("x", (32, 16), "bf16"), b.output("y", (32, 16))
    t, u = b.sbuf((32, 16), "bf16", "t"), b.sbuf((32, 16), name="u")
    s = b.sbuf((32, 1), name="s")
    b.dma_copy(t, x, signals="loaded")
    b.activation(u[:, :8], t[:, :8], "square", waits="loaded", signals="left")
    b.tensor_tensor(u[:, 8:], t[:, 8:], t[:, 8:], "multiply", on="gpsimd", waits="loaded",
                    signals="right")  # fmt: skip
    b.tensor_reduce(s, u, "add", waits={"left": 1, "right": 1}, signals="summed")
    b.tensor_tensor(u, u, s.broadcast_to(32, 16), "subtract", on="vector", signals="done")
    b.dma_copy(y, u, waits="done")
    return b.finish()


def register_address() -> Program:
    """A row chosen by a register that the engine which uses it has loaded."""
    b = ProgramBuilder("register_address")
    which, x, y = b.input("which", (1,), "s32"), b.input("x", (4, 32, 8)), b.output("y", (32, 8))
    cell, t = b.sbuf((1, 1), "s32", "cell"), b.sbuf((32, 8), name="t")
    r = b.register("r")
    b.dma_copy(cell, which, signals="known")
    b.register_load(cell, r, on="sync", waits="known")
    b.dma_copy(t, x[r], signals="loaded")
    b.dma_copy(y, t, waits="loaded")
    return b.finish()


def branches() -> Program:
    """A branch and a while loop, with the barriers that synchronisation puts around them."""
    b = ProgramBuilder("branches")
    which, y = b.input("which", (1,), "s32"), b.output("y", (32, 8))
    cell, t = b.sbuf((1, 1), "s32", "cell"), b.sbuf((32, 8), name="t")
    r, left = b.register("r"), b.register("left")
    b.dma_copy(cell, which)
    b.register_load(cell, r)
    with b.branch(r) as arms:
        with arms.arm():
            b.memset(t, 1.0)
        with arms.arm():
            b.memset(t, 2.0, on="gpsimd")
    b.register_move(left, 3)
    with b.while_loop() as loop:
        b.register_alu(left, "subtract", left, 1)
        loop.test(left)
        b.tensor_scalar(t, t, 2.0, "multiply")
    b.dma_copy(y, t)
    return b.finish()


def unrolled() -> Program:
    """The elementwise loop with inserted waits, its iterations in two tiles."""
    b = ProgramBuilder("unrolled")
    x, y = b.input("x", (192, 8)), b.output("y", (192, 8))
    with b.loop(6) as i:
        t = b.sbuf((32, 8), name="t")
        b.dma_copy(t, x[ds(32 * i, 32)])
        b.activation(t, t, "relu")
        b.tensor_scalar(t, t, 2.0, "multiply", on="gpsimd")
        b.dma_copy(y[ds(32 * i, 32)], t)
    return b.finish(double_buffered=True)


BUILDERS: tuple[Callable[[], Program], ...] = (
    elementwise, two_tiles, product, rows_by_index, transposes, many_queues, one_address,
    reductions, register_address, branches, unrolled,
)  # fmt: skip


def clean() -> dict[str, Clean]:
    """Every clean program with its inputs, by name."""
    made = [build() for build in BUILDERS]
    return {program.name: Clean(program, _inputs(program)) for program in made}


def edited(program: Program, old: Instr, *new: Statement) -> Program:
    """The program with one instruction replaced by others, or by none."""
    return replace(program, body=_edited(program.body, old, new))


def _edited(
    body: tuple[Statement, ...], old: Instr, new: tuple[Statement, ...]
) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            result.append(replace(statement, body=_edited(statement.body, old, new)))
        elif isinstance(statement, While):
            condition = _edited(statement.condition, old, new)
            inner = _edited(statement.body, old, new)
            result.append(While(condition, statement.register, inner))
        elif isinstance(statement, Branch):
            arms = tuple(_edited(arm, old, new) for arm in statement.arms)
            result.append(Branch(statement.register, arms))
        else:
            result += new if statement is old else (statement,)
    return tuple(result)


def changed(program: Program, position: int, **fields: Any) -> Program:
    """The program with fields of its instruction number `position` replaced."""
    old = list(program.instructions())[position]
    return edited(program, old, replace(old, **fields))


def without_one_wait(program: Program) -> Iterator[tuple[str, Program]]:
    """Every program that lacks one wait, with what is missing."""
    for number, instr in enumerate(program.instructions()):
        for wait in instr.waits:
            kept = tuple(w for w in instr.waits if w is not wait)
            text = f"{number} {instr.mnemonic()} without {wait.semaphore} >= {wait.value}"
            yield text, edited(program, instr, replace(instr, waits=kept))


def with_a_lower_count(program: Program) -> Iterator[tuple[str, Program]]:
    """Every program in which one wait asks for one count less."""
    for number, instr in enumerate(program.instructions()):
        for wait in instr.waits:
            lower = replace(wait, value=wait.value - 1)
            waits = tuple(lower if w is wait else w for w in instr.waits)
            text = f"{number} {instr.mnemonic()} with {wait.semaphore} >= {lower.value}"
            yield text, edited(program, instr, replace(instr, waits=waits))


def with_neighbours_exchanged(program: Program) -> Iterator[tuple[str, Program]]:
    """Every program in which an instruction comes before the one that precedes it."""
    for number, (first, second) in enumerate(_neighbours(program.body)):
        marked = edited(program, first)
        text = f"{number} {second.mnemonic()} before {first.mnemonic()}"
        yield text, edited(marked, second, second, first)


def _neighbours(body: tuple[Statement, ...]) -> Iterator[tuple[Instr, Instr]]:
    for first, second in pairwise(body):
        if isinstance(first, Instr) and isinstance(second, Instr):
            yield first, second
    for statement in body:
        if isinstance(statement, Loop):
            yield from _neighbours(statement.body)


def plant(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    suits: Callable[[Instr], bool],
    change: Callable[[Any], Instr],
) -> list[Instr]:
    """Make a machine pass change the first instruction of its result that suits.

    The list that is returned has the changed one once the pass has run.
    """
    real, done = getattr(module, name), list[Instr]()

    def changed(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        found = []
        for statement in body:
            if isinstance(statement, Instr) and not done and suits(statement):
                done.append(change(statement))
                statement = done[0]
            found.append(with_blocks(statement, changed))
        return tuple(found)

    def faulty(ir: Any, *rest: Any, **options: Any) -> Program:
        done.clear()
        made: Program = real(ir, *rest, **options)
        return replace(made, body=changed(made.body))

    monkeypatch.setattr(module, name, faulty)
    return done


def plant_inexact_transpose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transpose 4-byte elements on the PE of generation 2, which multiplies.

    Small negative integers have the bits of NaN, which spreads over its row.
    """
    import glia.machine.emit.staging as staging

    (home,) = (
        c for c in vars(staging).values() if "_emit_transposes" in getattr(c, "__dict__", ())
    )

    def on_array(self: Any, strips: Any) -> None:
        self._transpose_on_array(strips, staging._as_float)

    monkeypatch.setattr(home, "_emit_transposes", on_array)
