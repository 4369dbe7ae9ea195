"""Hand-written machine programs that tests of the machine level share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import F32, S32, DType
from glia.base.loc import Loc
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.gpsimd import Iota
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.sync import RegisterAlu, RegisterLoad, RegisterMove
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import Memset, TensorCopy, TensorScalar
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.machine.ir import Binding, Branch, Loop, Program, Statement, While


def tile(name: str, memory: str, partitions: int, elements: int, dtype: DType = F32) -> Tile:
    return Tile(name, Memory(memory), dtype, partitions, elements)


def whole(of: Tile) -> Pattern:
    """All of an on-chip tile."""
    return Pattern(of, of.dtype, ((1, of.partitions), (1, of.elements)))


def binding(of: Tile, *shape: int) -> Binding:
    return Binding(of.name, of, shape, of.dtype)


def matmul(
    rows: int, inner: int, columns: int, addresses: Mapping[str, int] | None = None
) -> Program:
    """y = x @ w with three loops of tiles: 128 rows, 128 of the inner extent, 512 columns."""
    x, w = tile("x", "HBM", 1, rows * inner), tile("w", "HBM", 1, inner * columns)
    y = tile("y", "HBM", 1, rows * columns)
    left, right = tile("left", "SBUF", 128, 128), tile("right", "SBUF", 128, 512)
    out, total = tile("out", "SBUF", 128, 512), tile("total", "PSUM", 128, 512)
    m, n, k = Affine.of("m"), Affine.of("n"), Affine.of("k")
    turned = Pattern(x, F32, ((1, 128), (inner, 128)), m * (128 * inner) + k * 128)
    block = Pattern(w, F32, ((columns, 128), (1, 512)), k * (128 * columns) + n * 512)
    result = Pattern(y, F32, ((columns, 128), (1, 512)), m * (128 * columns) + n * 512)
    product = NcMatmul(
        dst=whole(total), stationary=whole(left), moving=whole(right), accumulate=k,
        waits=(Wait("loaded", m * 4 + k * 2 + 2),), signals=(Signal("done", 1),),
        loc=Loc("model.py", 12, "dot"),
    )  # fmt: skip
    inner_loop = Loop(
        "k",
        inner // 128,
        (
            DmaCopy(dst=whole(left), src=turned, queue="q0", signals=(Signal("loaded"),)),
            DmaCopy(dst=whole(right), src=block, queue="q1", signals=(Signal("loaded"),)),
            product,
        ),
    )
    columns_loop = Loop(
        "n",
        columns // 512,
        (
            inner_loop,
            TensorCopy(dst=whole(out), src=whole(total), on="scalar"),
            DmaCopy(dst=result, src=whole(out), queue="q0"),
        ),
    )
    tiles = {t.name: t for t in (x, w, y, left, right, out, total)}
    return Program(
        name="matmul",
        target="trn2",
        tiles=tiles,
        inputs=(binding(x, rows, inner), binding(w, inner, columns)),
        outputs=(binding(y, rows, columns),),
        constants={},
        body=(Loop("m", rows // 128, (columns_loop,)),),
        addresses=addresses or {},
        notes=("written by hand",),
    )


def doubling() -> Program:
    """Doubles x until it reaches the limit, counting the rounds: a while loop and a branch.

    `y` is x * 2 ** rounds with the least rounds such that it reaches 100; `parity` is 1.0 when
    rounds is odd, else 2.0.
    """
    x, y = tile("x", "HBM", 1, 1), tile("y", "HBM", 1, 1)
    parity, rounds = tile("parity", "HBM", 1, 1), tile("rounds", "HBM", 1, 1, S32)
    value, flag = tile("value", "SBUF", 1, 1), tile("flag", "SBUF", 1, 1, S32)
    odd, count = tile("odd", "SBUF", 1, 1), tile("count", "SBUF", 1, 1, S32)

    def move(dst: Tile, src: Tile) -> DmaCopy:
        def pattern(of: Tile) -> Pattern:
            return Pattern(of, of.dtype, ((1, 1),) if of.memory is Memory.HBM else ((1, 1), (1, 1)))

        return DmaCopy(dst=pattern(dst), src=pattern(src), queue="q0")

    condition = (
        TensorScalar(dst=whole(flag), data=whole(value), operand0=100.0, op0="less"),
        RegisterLoad(register="go", src=whole(flag), on="vector"),
    )
    body = (
        TensorScalar(dst=whole(value), data=whole(value), operand0=2.0, op0="multiply"),
        RegisterAlu(register="n", op="add", a=Affine.of("$n"), b=1),
    )
    arms: tuple[tuple[Statement, ...], ...] = (
        (Memset(dst=whole(odd), value=2.0),),
        (Memset(dst=whole(odd), value=1.0),),
    )
    return Program(
        name="doubling",
        target="trn1",
        tiles={t.name: t for t in (x, y, parity, rounds, value, flag, odd, count)},
        inputs=(binding(x, 1),),
        outputs=(binding(y, 1), binding(parity, 1), binding(rounds, 1)),
        constants={},
        body=(
            move(value, x),
            RegisterMove(register="n", value=0),
            While(condition, "go", body),
            RegisterAlu(register="p", op="bitwise_and", a=Affine.of("$n"), b=1),
            Branch("p", arms),
            Iota(dst=whole(count), offset=Affine.of("$n"), steps=(1,)),
            move(y, value),
            move(parity, odd),
            move(rounds, count),
        ),
    )


def constants_and_names() -> Program:
    """A program whose names need quotes, with a constant, reinterpreted bits and odd numbers."""
    table = tile("a table", "HBM", 1, 12)
    out, buffer = tile("out-1", "HBM", 1, 12), tile("buf.%0", "SBUF", 4, 3)
    row = Pattern(table, F32, ((3, 4), (1, 3)))
    reversed_rows = Pattern(out, F32, ((-3, 4), (1, 3)), Affine((), 9))
    as_integers = Pattern(buffer, S32, ((1, 4), (1, 3)))
    contents: dict[str, Any] = {"a table": np.arange(12, dtype=np.float32)}
    return Program(
        name='say "constants"',
        target="trn3",
        tiles={t.name: t for t in (table, out, buffer)},
        inputs=(),
        outputs=(Binding("out-1", out, (4, 3), F32),),
        constants=contents,
        body=(
            DmaCopy(dst=whole(buffer), src=row, queue="q 0"),
            TensorScalar(
                dst=as_integers, data=as_integers, operand0=-1, op0="bitwise_and", operand1=None
            ),
            Activation(
                dst=whole(buffer), data=whole(buffer), function="copy", scale=-1.5, bias=1e-30
            ),
            DmaCopy(dst=reversed_rows, src=whole(buffer), queue="q 0"),
        ),
        addresses={"a table": 0, "out-1": 4096, "buf.%0": 128},
    )


def programs() -> list[Program]:
    """Every hand-written program."""
    addresses = {"left": 0, "right": 512, "out": 2560, "total": 2048, "x": 0, "w": 1 << 20}
    return [
        matmul(256, 256, 512),
        matmul(128, 384, 1024, addresses | {"y": 1 << 22}),
        doubling(),
        constants_and_names(),
    ]
