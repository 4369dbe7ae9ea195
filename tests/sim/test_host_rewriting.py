"""What a program may do so that no copy can be left out and nothing be written early.

Each case is run by both executors, which must agree bit by bit or in the error that they raise.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import F32, U8, U32
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.random import Rng, SetRngSeed
from glia.isa.instructions.sync import RegisterMove
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import Memset, TensorCopy, TensorTensor
from glia.isa.instructions.vector_accumulate import TensorScalarReduce
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While
from glia.sim.host.host_program import HostCores, HostProgram
from glia.sim.run import run

ROWS, COLUMNS = 64, 16
SIZE = ROWS * COLUMNS
I = Affine.of("i")  # noqa: E741
X, Y, Z = (Tile(name, Memory.HBM, F32, 1, SIZE) for name in "xyz")
WHOLE, PART, OTHER = (Tile(n, Memory.SBUF, F32, ROWS, COLUMNS) for n in ("whole", "part", "other"))
LEFT = Tile("left", Memory.SBUF, F32, ROWS, ROWS)
SUM, HELD = (Tile(name, Memory.PSUM, F32, ROWS, COLUMNS) for name in ("sum", "held"))
BITS, SEED = Tile("bits", Memory.SBUF, U32, ROWS, COLUMNS), Tile("seed", Memory.SBUF, U32, 1, 1)
PLACES = {
    "x": 0, "y": 4 * SIZE, "z": 8 * SIZE, "whole": 0, "part": 0, "other": 64, "left": 128,
    "sum": 0, "held": 0, "bits": 384, "seed": 448,
}  # fmt: skip
TILES = (X, Y, Z, WHOLE, PART, OTHER, LEFT, SUM, HELD, BITS, SEED)


def in_hbm(tile: Tile) -> Pattern:
    return Pattern(tile, F32, ((COLUMNS, ROWS), (1, COLUMNS)))


def turned(tile: Tile) -> Pattern:
    return Pattern(tile, F32, ((1, ROWS), (ROWS, COLUMNS)))


def half(tile: Tile, first: int) -> Pattern:
    """Half of a tile's partitions."""
    return Pattern(tile, tile.dtype, ((1, 32), (1, COLUMNS)), Affine(), Affine.of(first))


def piece(tile: Tile, start: Affine) -> Pattern:
    """Half of a tile's columns."""
    return Pattern(tile, F32, ((1, ROWS), (1, COLUMNS // 2)), start)


def fill(pattern: Pattern, value: float = -2.0) -> Memset:
    return Memset(dst=pattern, value=value)


def doubled(to: Pattern, source: Pattern) -> TensorTensor:
    return TensorTensor(dst=to, data1=source, data2=source, op="add")


LOAD = DmaCopy(dst=whole_tile(WHOLE), src=in_hbm(X))
STORE = DmaCopy(dst=in_hbm(Y), src=whole_tile(WHOLE))
COPY = DmaCopy(dst=whole_tile(PART), src=turned(X))  # over what `whole` holds
USE = DmaCopy(dst=in_hbm(Z), src=whole_tile(PART))
RESULT = DmaCopy(dst=in_hbm(Y), src=whole_tile(OTHER))
SHOWN = (doubled(whole_tile(OTHER), whole_tile(WHOLE)), RESULT)
REFILL = fill(whole_tile(WHOLE))


def product(condition: Any) -> NcMatmul:
    return NcMatmul(
        dst=whole_tile(SUM), stationary=whole_tile(LEFT), moving=whole_tile(WHOLE),
        accumulate=condition,
    )  # fmt: skip


SUMS = (
    fill(whole_tile(WHOLE), 1.0),
    fill(whole_tile(LEFT), 1.0),
    DmaCopy(dst=whole_tile(HELD), src=turned(X)),
    DmaCopy(dst=in_hbm(Z), src=whole_tile(HELD)),
)
SUMMED = (TensorCopy(dst=whole_tile(OTHER), src=whole_tile(SUM)), RESULT)

SHOWN_THROUGH_ANOTHER: dict[str, tuple[Statement, ...]] = {
    "some partitions": (LOAD, fill(half(PART, 0)), fill(half(WHOLE, 32)), STORE),
    "columns with gaps": (
        LOAD, fill(whole_tile(PART)),
        fill(Pattern(WHOLE, F32, ((1, ROWS), (2, COLUMNS // 2))), 3.0), STORE,
    ),
    "a loop without iterations": (LOAD, COPY, USE, Loop("i", 0, (REFILL,)), *SHOWN),
    "a branch that is not taken": (
        RegisterMove(register="r", value=1), LOAD, COPY, USE, Branch("r", ((REFILL,), ())), *SHOWN,
    ),
    "a while loop that does not begin": (
        RegisterMove(register="r", value=0), LOAD, COPY, USE,
        While((), "r", (REFILL, RegisterMove(register="r", value=0))), *SHOWN,
    ),
    "iterations to come": (
        LOAD, COPY, USE,
        Loop("i", 2, (
            fill(piece(WHOLE, I * 8)), doubled(piece(OTHER, I * 8), piece(WHOLE, I * -8 + 8)),
        )),
        RESULT,
    ),
    "a sum that always adds": (*SUMS, Loop("i", 1, (product(I + 1),)), *SUMMED),
    "a sum by a register": (
        RegisterMove(register="r", value=1), *SUMS, product(Affine.of("$r")), *SUMMED,
    ),
}  # fmt: skip


def reduced(column: int, first: int, command: str, data: Pattern) -> TensorScalarReduce:
    """Sums of rows, whose accumulators are in the lanes of these rows."""
    to = Pattern(OTHER, F32, ((1, 32), (1, 1)), Affine.of(column), Affine.of(first))
    return TensorScalarReduce(
        dst=half(WHOLE, first), data=data, op0="add", operand0=0.0, reduce_op="add", reduced=to,
        command=command,
    )  # fmt: skip


BITS_OUT = Pattern(Y, U32, ((COLUMNS, 32), (1, COLUMNS)), Affine.of(32 * COLUMNS))
STATE_OF_LANES: dict[str, tuple[Statement, ...]] = {
    "accumulators": (
        fill(whole_tile(OTHER), 0.0), LOAD, doubled(whole_tile(WHOLE), whole_tile(WHOLE)),
        reduced(0, 0, "reset_reduce", half(WHOLE, 0)),
        reduced(1, 32, "reset_reduce", half(WHOLE, 32)),
        DmaCopy(dst=half(BITS, 32), src=Pattern(X, U32, ((COLUMNS, 32), (1, COLUMNS)))),
        reduced(2, 32, "reduce", Pattern(BITS, F32, half(BITS, 32).dims, Affine(), Affine.of(32))),
        RESULT,
    ),
    "random numbers": (
        Memset(dst=whole_tile(SEED), value=7), SetRngSeed(seed=whole_tile(SEED)),
        Rng(dst=half(BITS, 32)), DmaCopy(dst=BITS_OUT, src=half(BITS, 32)),
        Rng(dst=half(BITS, 0)),
        DmaCopy(dst=Pattern(Y, U32, BITS_OUT.dims), src=half(BITS, 0)),
    ),
}  # fmt: skip


def oblique(sign: int) -> tuple[Statement, ...]:
    """A loop that copies to the next row and columns, and fills what it copied before."""
    base = 0 if sign > 0 else 12

    def at(tile: Tile, row: Affine) -> Pattern:
        return Pattern(tile, F32, ((1, 1), (1, 2)), row * (2 * sign) + base, row)

    two = Affine.of(2)
    copy = DmaCopy(dst=at(WHOLE, I + 1), src=Pattern(X, F32, ((1, 2),), I * 2))
    return (
        Loop("i", 4, (copy, fill(at(WHOLE, I), 5.0))),
        doubled(at(OTHER, two), at(WHOLE, two)),
        DmaCopy(dst=Pattern(Y, F32, ((1, 2),)), src=at(OTHER, two)),
    )


FILLED_LATER: tuple[Statement, ...] = (  # what an iteration loaded the next one fills
    Loop("i", 2, (
        fill(Pattern(WHOLE, F32, ((1, ROWS), (1, 2)), I * 2), 1.0),
        DmaCopy(
            dst=Pattern(WHOLE, F32, ((1, ROWS), (1, 2)), I * 2 + 2),
            src=Pattern(X, F32, ((COLUMNS, ROWS), (1, 2)), I * 2),
        ),
    )),
    DmaCopy(
        dst=Pattern(Y, F32, ((COLUMNS, ROWS), (1, 4))),
        src=Pattern(WHOLE, F32, ((1, ROWS), (1, 4)), Affine.of(2)),
    ),
)  # fmt: skip

TILES_OF_BYTES = tuple(Tile(name, Memory.SBUF, U8, 8, 6) for name in ("a", "b"))  # without places
IN_BYTES = [Pattern(tile, F32, ((1, 8), (1, 1))) for tile in TILES_OF_BYTES]
ROW = Pattern(OTHER, F32, ((1, 8), (1, 1)))
WIDER_THAN_STEPS: tuple[Statement, ...] = (
    DmaCopy(dst=IN_BYTES[1], src=Pattern(X, F32, ((1, 8), (1, 1)))),
    doubled(IN_BYTES[1], IN_BYTES[1]),
    TensorCopy(dst=IN_BYTES[0], src=IN_BYTES[1]),
    doubled(ROW, IN_BYTES[0]),
    DmaCopy(dst=Pattern(Y, F32, ((1, 8), (1, 1))), src=ROW),
)

BEYOND = Pattern(WHOLE, F32, ((1, ROWS), (1, COLUMNS + 1)))
BEYOND_TILES: dict[str, tuple[Statement, ...]] = {
    "columns": (
        fill(BEYOND), DmaCopy(dst=Pattern(Z, F32, ((1, ROWS), (1, COLUMNS + 1))), src=BEYOND),
    ),
    "partitions": (
        fill(Pattern(WHOLE, F32, ((1, ROWS), (1, COLUMNS)), Affine(), Affine.of(1))),
        DmaCopy(
            dst=in_hbm(Y),
            src=Pattern(WHOLE, F32, ((1, ROWS), (1, COLUMNS)), Affine(), Affine.of(1)),
        ),
    ),
}  # fmt: skip

CASES: dict[str, tuple[Statement, ...]] = {
    **SHOWN_THROUGH_ANOTHER, **STATE_OF_LANES, **BEYOND_TILES,
    "rows and columns at once": oblique(1), "back in columns": oblique(-1),
    "an earlier statement of a later iteration": FILLED_LATER,
    "steps that are no whole elements": WIDER_THAN_STEPS,
}  # fmt: skip


def program(body: tuple[Statement, ...]) -> Program:
    """A program of two results, which begin as the input."""
    start = (DmaCopy(dst=in_hbm(Y), src=in_hbm(X)), DmaCopy(dst=in_hbm(Z), src=in_hbm(X)))
    return Program(
        name="case", target="trn2",
        tiles={each.name: each for each in (*TILES, *TILES_OF_BYTES)},
        inputs=(Binding("x", X, (ROWS, COLUMNS), F32),),
        outputs=tuple(Binding(t.name, t, (ROWS, COLUMNS), F32) for t in (Y, Z)), constants={},
        addresses=PLACES, body=(*start, *body),
    )  # fmt: skip


def outcome(runs: Callable[[], dict[str, Any]]) -> Any:
    """The bits of results, or what is raised."""
    try:
        return {name: array.tobytes() for name, array in runs().items()}
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", CASES)
def test_both_executors_agree(name: str) -> None:
    case = program(CASES[name])
    inputs = {"x": np.arange(1, SIZE + 1, dtype=np.float32).reshape(ROWS, COLUMNS)}
    assert outcome(lambda: HostProgram(case).run(inputs)) == outcome(lambda: run(case, inputs))


@pytest.mark.parametrize("is_near", [False, True])
def test_a_sum_whose_bytes_another_tile_fills_is_not_joined(is_near: bool) -> None:
    """Two products add to one sum, of which another tile of PSUM has the bytes."""
    inside, width = 32, 16
    x = Tile("x", Memory.HBM, F32, 1, 4 * inside * width)
    y = Tile("y", Memory.HBM, F32, 1, width * width)
    operands = [Tile(f"t{n}", Memory.SBUF, F32, inside, width) for n in range(4)]
    total, other = (Tile(name, Memory.PSUM, F32, width, width) for name in ("total", "other"))
    kept = Tile("kept", Memory.SBUF, F32, width, width)

    def part(number: int) -> Pattern:
        start = Affine.of(number * inside * width)
        return Pattern(x, F32, ((width, inside), (1, width)), start)

    def add(first: int, *, is_more: bool) -> NcMatmul:
        return NcMatmul(
            dst=whole_tile(total), stationary=whole_tile(operands[first]),
            moving=whole_tile(operands[first + 2]), accumulate=is_more,
        )  # fmt: skip

    case = Program(
        name="sum", target="trn2",
        tiles={each.name: each for each in (x, y, *operands, total, other, kept)},
        inputs=(Binding("x", x, (4 * inside, width), F32),),
        outputs=(Binding("y", y, (width, width), F32),), constants={},
        addresses={
            "x": 0, "y": 1 << 16, "total": 0, "other": 0, "kept": 4096,
            **{f"t{n}": 64 * n + (0 if is_near else 1024) for n in range(4)},
        },
        body=(
            *(DmaCopy(dst=whole_tile(tile), src=part(n)) for n, tile in enumerate(operands)),
            add(0, is_more=False),
            fill(whole_tile(other), 100.0),
            add(1, is_more=True),
            TensorCopy(dst=whole_tile(kept), src=whole_tile(total)),
            DmaCopy(dst=Pattern(y, F32, ((width, width), (1, width))), src=whole_tile(kept)),
        ),
    )  # fmt: skip
    values = np.random.default_rng(0).integers(-3, 4, (4 * inside, width)).astype(np.float32)
    wanted = 100 + values[inside : 2 * inside].T @ values[3 * inside :]
    assert HostProgram(case).run({"x": values})["y"].tolist() == wanted.tolist()


def test_an_interrupt_ends_the_threads_of_all_cores() -> None:
    rows, columns = 128, 4096
    tile = Tile("a", Memory.SBUF, F32, rows, columns)
    programs = []
    for rank in (0, 1):
        x, y = (Tile(f"{n}{rank}", Memory.HBM, F32, 1, rows * columns) for n in "xy")
        place = ((columns, rows), (1, columns))
        step = (
            doubled(whole_tile(tile), whole_tile(tile)),
            DmaCopy(dst=Pattern(y, F32, place), src=whole_tile(tile)),
        )
        programs.append(
            Program(
                name=f"core{rank}", target="trn2", tiles={each.name: each for each in (x, y, tile)},
                inputs=(Binding(x.name, x, (rows, columns), F32),),
                outputs=(Binding(y.name, y, (rows, columns), F32),), constants={},
                addresses={x.name: rank << 26, y.name: (rank << 26) + (1 << 25), "a": 0},
                body=(
                    DmaCopy(dst=whole_tile(tile), src=Pattern(x, F32, place)),
                    Loop("i", 100_000, step),
                ),
            )
        )  # fmt: skip
    inputs = {f"x{rank}": np.zeros((rows, columns), np.float32) for rank in (0, 1)}
    cores = HostCores(programs)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            cores.run(inputs)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    alive = [each for each in threading.enumerate() if each.name.startswith("glia rank")]
    for each in alive:  # it has left the run and may be about to end
        each.join(timeout=1)
    assert not any(each.is_alive() for each in alive)
