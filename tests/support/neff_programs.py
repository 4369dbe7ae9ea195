"""Small machine programs, written by hand, that the container and runtime tests use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import F32, S32
from glia.base.loc import Loc
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.gpsimd import Iota
from glia.isa.instructions.sync import RegisterLoad
from glia.isa.instructions.vector import Memset, TensorScalar, TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While
from glia.neff.package import Neff

ROWS, COLUMNS, BLOCKS = 128, 8, 3
SHAPE = (BLOCKS * ROWS, COLUMNS)

X = Tile("x", Memory.HBM, F32, 1, BLOCKS * ROWS * COLUMNS)
Y = Tile("y", Memory.HBM, F32, 1, BLOCKS * ROWS * COLUMNS)
W = Tile("w", Memory.HBM, F32, 1, ROWS * COLUMNS)
A = Tile("a", Memory.SBUF, F32, ROWS, COLUMNS)
B = Tile("b", Memory.SBUF, F32, ROWS, COLUMNS)

WEIGHTS = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) / 16
WEIGHTS.flags.writeable = False


def rows(tile: Tile, start: Affine | int = 0) -> Pattern:
    """128 rows of 8 elements: of an HBM tile from element `start` on, or a whole on-chip tile."""
    step = COLUMNS if tile.memory is Memory.HBM else 1
    return Pattern(tile, F32, ((step, ROWS), (1, COLUMNS)), Affine.of(start))


def scale_and_add() -> Program:
    """y = 2 * x + w for every block of 128 rows of x."""
    start = Affine.of("i") * (ROWS * COLUMNS)
    load_weights = DmaCopy(dst=rows(B), src=rows(W), queue="in", signals=(Signal("loaded"),))
    load = DmaCopy(dst=rows(A), src=rows(X, start), queue="in", loc=Loc("model.py", 3, "scale"))
    scale = TensorScalar(dst=rows(A), data=rows(A), op0="multiply", operand0=2.0)
    add = TensorTensor(
        dst=rows(A), data1=rows(A), data2=rows(B), op="add", waits=(Wait("loaded", Affine.of(1)),)
    )
    store = DmaCopy(dst=rows(Y, start), src=rows(A), queue="out", on="scalar")
    body = (load_weights, Loop("i", BLOCKS, (load, scale, add, store)))
    return program(body, {"w": WEIGHTS})


def every_statement() -> Program:
    """One of each kind of statement, operand and attribute; it is stored, not run."""
    one = Pattern(A, S32, ((1, 1), (1, 1)))
    load_register = RegisterLoad(src=one, register="r", on="vector")
    instructions: tuple[Instr, ...] = (
        Memset(dst=rows(A), value=0.5),
        Memset(dst=rows(B), value=-3, on="gpsimd"),
        Iota(dst=rows(A), offset=Affine.of("i") + 4, channel_multiplier=-8, steps=(1,)),
        TensorScalar(dst=rows(A), data=rows(A), op0="add", operand0=0.1, reverse0=True),
    )
    body: tuple[Statement, ...] = (
        Loop("i", 2, (instructions[2], Loop("j", 5, ()), instructions[3])),
        While((load_register,), "$r", (instructions[0], instructions[1])),
        Branch("$r", ((instructions[0],), (), (instructions[1],))),
    )
    return program(body, {})


def program(body: tuple[Statement, ...], constants: Mapping[str, object]) -> Program:
    """A program over the module's tiles with input x and output y."""
    hbm_addresses = {"x": 0, "y": X.bytes, "w": X.bytes + Y.bytes}
    return Program(
        name="probe",
        target="trn2",
        tiles={tile.name: tile for tile in (X, Y, W, A, B)},
        inputs=(Binding("x", X, SHAPE, F32),),
        outputs=(Binding("y", Y, SHAPE, F32),),
        constants=constants,
        body=body,
        addresses={**hbm_addresses, "a": 0, "b": A.bytes_per_partition},
        notes=("the weights are resident",),
    )


def example_neff(*, is_compressed: bool = True) -> Neff:
    """A NEFF of `scale_and_add`."""
    return Neff((scale_and_add(),), {"optlevel": 2}, {"flops": 6144}, is_compressed)
