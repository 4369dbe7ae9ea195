"""Small machine programs, written by hand, that the timing tests run."""

from __future__ import annotations

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, DType
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import TensorCopy
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Signal, Tile, Wait
from glia.machine.ir import Loop, Program, Statement, walk


def tile(name: str, memory: str, partitions: int, elements: int, dtype: DType = BF16) -> Tile:
    return Tile(name, Memory(memory), dtype, partitions, elements)


def whole(t: Tile, offset: Affine | int = 0) -> Pattern:
    """All of a tile; in HBM in rows of 128."""
    rows = 128 if t.memory is Memory.HBM else t.partitions
    columns = t.partitions * t.elements // rows
    step = columns if t.memory is Memory.HBM else 1
    return Pattern(t, t.dtype, ((step, rows), (1, columns)), Affine.of(offset))


def part(t: Tile, start: Affine | int, count: int) -> Pattern:
    """`count` columns of every partition of an on-chip tile, from column `start` on."""
    return Pattern(t, t.dtype, ((1, t.partitions), (1, count)), Affine.of(start))


def rows(t: Tile, start: Affine | int, count: int, columns: int) -> Pattern:
    """`count` contiguous rows of an HBM tile, from element `start` on."""
    return Pattern(t, t.dtype, ((columns, count), (1, columns)), Affine.of(start))


def waits(**values: Affine | int) -> tuple[Wait, ...]:
    return tuple(Wait(name, Affine.of(value)) for name, value in values.items())


def signals(**amounts: int) -> tuple[Signal, ...]:
    return tuple(Signal(name, amount) for name, amount in amounts.items())


def program(*body: Statement, target: str = "trn2") -> Program:
    tiles = {p.tile.name: p.tile for i in walk(body) for _, _, p in i.operands()}
    return Program("test", target, tiles, (), (), {}, body)


def copy(t: Tile, other: Tile, **keywords: object) -> Instr:
    """A copy of a whole tile on the Vector Engine."""
    return TensorCopy(dst=whole(t), src=whole(other), **keywords)  # type: ignore[arg-type]


def pipelined_matmul(trips: int, buffers: int = 2, columns: int = 512) -> Program:
    """Load, multiply, copy out of PSUM, exponentiate and store; `buffers` tiles in flight."""
    i = Affine.of("i")
    source = tile("x", "HBM", 1, 128 * columns * trips)
    target = tile("y", "HBM", 1, 128 * columns * trips)
    weights, moving = tile("w", "SBUF", 128, 128), tile("m", "SBUF", 128, columns)
    product = tile("p", "PSUM", 128, columns, F32)
    copied, result = tile("c", "SBUF", 128, columns), tile("r", "SBUF", 128, columns)
    given = tile("weights", "HBM", 1, 128 * 128)
    step = 128 * columns
    load = DmaCopy(
        dst=whole(moving),
        src=rows(source, i * step, 128, columns),
        queue="in",
        waits=waits(multiplied=i - (buffers - 1)),
        signals=signals(loaded=16),
    )
    multiply = NcMatmul(dst=whole(product), stationary=whole(weights), moving=whole(moving),
                        waits=waits(loaded=i * 16 + 16, copied=i - (buffers - 1), weights=16),
                        signals=signals(multiplied=1))  # fmt: skip
    out = copy(copied, product, waits=waits(multiplied=i + 1, done=i - (buffers - 1)),
               signals=signals(copied=1))  # fmt: skip
    exp = Activation(dst=whole(result), data=whole(copied), function="exp",
                     waits=waits(copied=i + 1, stored=i * 16 - 16 * (buffers - 1)),
                     signals=signals(done=1))  # fmt: skip
    store = DmaCopy(dst=rows(target, i * step, 128, columns), src=whole(result), queue="out",
                    waits=waits(done=i + 1), signals=signals(stored=16))  # fmt: skip
    loop = Loop("i", trips, (load, multiply, out, exp, store))
    first = DmaCopy(dst=whole(weights), src=whole(given), queue="in", signals=signals(weights=16))
    return program(first, loop)
