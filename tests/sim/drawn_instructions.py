"""Instructions of many kinds drawn at random, with operands in a bench's memories."""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.base.dtype import BF16, F16, F32, S32, U16, U32, DType
from glia.isa.instructions.dma import DmaCopy, DmaGather, DmaScatter
from glia.isa.instructions.gpsimd import AffineSelect
from glia.isa.instructions.gpsimd_gather import NcNGather
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.tensor import NcMatmul, NcTranspose
from glia.isa.instructions.vector import Memset, TensorCopy, TensorReduce, TensorTensor
from glia.isa.instructions.vector_statistics import (
    FindIndex8,
    MatchReplace8,
    Max8,
    TensorTensorScan,
)
from glia.isa.kit import Instr
from support.isa_bench import Bench

FLOATS = (F32, BF16, F16)
MEMORIES = ("SBUF", "PSUM")


class Draw:
    """Random choices, and patterns of a bench."""

    def __init__(self, seed: int) -> None:
        self.random, self.bench = np.random.default_rng(seed), Bench(seed)

    def shape(self) -> tuple[int, ...]:
        """Partitions and one to three free dimensions."""
        free = self.random.integers(1, 7, self.random.integers(1, 4))
        return int(self.random.integers(1, 33)), *map(int, free)

    def dtype(self) -> DType:
        return FLOATS[self.random.integers(len(FLOATS))]

    def operand(self, shape: tuple[int, ...], dtype: DType, memory: str = "") -> object:
        where = memory or MEMORIES[self.random.integers(len(MEMORIES))]
        return self.bench.pattern(shape, dtype, where)

    def among(self, *names: str) -> str:
        return names[self.random.integers(len(names))]

    def among_integers(self, *numbers: int) -> int:
        return numbers[self.random.integers(len(numbers))]

    def indices(self, values: Any) -> object:
        return self.bench.pattern((len(values), 1), S32, "SBUF", values=values.reshape(-1, 1))


def _copy(draw: Draw) -> Instr:
    shape = draw.shape()
    return TensorCopy(
        dst=draw.operand(shape, draw.dtype()), src=draw.operand(shape, draw.dtype()), on="vector"
    )


def _transfer(draw: Draw) -> Instr:
    shape, dtype = draw.shape(), draw.dtype()
    away, here = draw.operand(shape, dtype, "HBM"), draw.operand(shape, dtype, "SBUF")
    both = {"dst": away, "src": here} if draw.random.integers(2) else {"dst": here, "src": away}
    return DmaCopy(**both, queue="q")


def _pairwise(draw: Draw) -> Instr:
    shape = draw.shape()
    op = draw.among("add", "subtract", "multiply", "maximum", "minimum")
    data = [draw.operand(shape, draw.dtype(), "SBUF") for _ in range(3)]
    return TensorTensor(dst=data[0], data1=data[1], data2=data[2], op=op)


def _of_integers(draw: Draw) -> Instr:
    shape = draw.shape()
    op = draw.among("bitwise_and", "bitwise_or", "bitwise_xor")
    data = [draw.operand(shape, S32, "SBUF") for _ in range(3)]
    return TensorTensor(dst=data[0], data1=data[1], data2=data[2], op=op)


def _fill(draw: Draw) -> Instr:
    return Memset(dst=draw.operand(draw.shape(), draw.dtype()), value=draw.random.normal())


def _turn(draw: Draw) -> Instr:
    p, f, dtype = *map(int, draw.random.integers(1, 33, 2)), draw.dtype()
    dst, data = draw.operand((f, p), dtype, "PSUM"), draw.operand((p, f), dtype, "SBUF")
    return NcTranspose(dst=dst, data=data)


def _function(draw: Draw) -> Instr:
    shape = draw.shape()
    function = draw.among("exp", "tanh", "gelu", "relu", "square", "sigmoid", "silu")
    dst, data = (draw.operand(shape, draw.dtype()) for _ in range(2))
    return Activation(dst=dst, data=data, function=function, scale=0.5)


def _reduction(draw: Draw) -> Instr:
    shape = draw.shape()
    op = draw.among("add", "maximum", "minimum")
    dst = draw.operand((shape[0], *shape[1:-1], 1), F32)
    return TensorReduce(dst=dst, data=draw.operand(shape, draw.dtype()), op=op)


def _product(draw: Draw) -> Instr:
    (m, n, k), dtype = map(int, draw.random.integers(1, 129, 3)), draw.dtype()
    left, right = draw.operand((k, m), dtype, "SBUF"), draw.operand((k, n), dtype, "SBUF")
    total = draw.operand((m, n), F32, "PSUM")
    accumulate = bool(draw.random.integers(2))
    return NcMatmul(dst=total, stationary=left, moving=right, accumulate=accumulate)


def _rows_by_index(draw: Draw) -> Instr:
    """A gather or a scatter; some skip indices outside of the table, some report them."""
    shape, rows = draw.shape(), int(draw.random.integers(1, 40))
    is_gather, skips = draw.random.integers(2, size=2)
    chosen = draw.random.integers(0, rows, shape[0])
    checked: dict[str, Any] = {}
    if skips and draw.random.integers(2):
        chosen[draw.random.integers(shape[0])] = draw.among_integers(-1, rows, 2**30)
    if draw.random.integers(2):
        given = chosen + draw.random.integers(-1, 2, shape[0]) * draw.random.integers(2)
        checked = {"given": (draw.indices(given),), "limits": (rows - 1,), "extents": (rows,)}
    table = draw.operand((rows, *shape[1:]), draw.dtype(), "HBM")
    moved = draw.operand(shape, draw.dtype(), draw.among("SBUF", "HBM"))
    ends = {"src": table, "dst": moved} if is_gather else {"src": moved, "dst": table}
    if not is_gather and rows >= shape[0] and not skips and draw.random.integers(2):
        chosen = draw.random.permutation(rows)[: shape[0]]
        checked = {"unique_indices": True}
    return (DmaGather if is_gather else DmaScatter)(
        **ends, indices=draw.indices(chosen), combine=draw.among("", "add"),
        out_of_bounds="skip" if skips else "error", queue="q", **checked,
    )  # fmt: skip


def _scan(draw: Draw) -> Instr:
    shape = draw.shape()
    dst, *data = (draw.operand(shape, draw.dtype(), "SBUF") for _ in range(3))
    initial: Any = float(draw.random.normal())
    if draw.random.integers(2):
        initial = draw.operand((shape[0], 1), F32, "SBUF")
    operators = ("add", "subtract", "multiply", "maximum", "minimum")
    return TensorTensorScan(
        dst=dst, data0=data[0], data1=data[1], initial=initial, op0=draw.among(*operators),
        op1=draw.among(*operators), reverse0=bool(draw.random.integers(2)),
        reverse1=bool(draw.random.integers(2)),
    )  # fmt: skip


def _searched(draw: Draw, extent: int) -> np.ndarray:
    """A row for each partition, with equal elements, infinities and NaN."""
    rows = draw.random.integers(-9, 10, (int(draw.random.integers(1, 33)), extent)) / 2 + 0.25
    rows = np.where(draw.random.random(rows.shape) < 0.05, np.inf, rows)
    return np.where(draw.random.random(rows.shape) < 0.02, np.nan, rows)


def _search(draw: Draw) -> Instr:
    """The eight greatest of each row, where eight values are, or a row with these replaced."""
    rows = _searched(draw, int(draw.random.integers(8, 90)))
    chosen = draw.random.permuted(np.where(draw.random.random(rows.shape) < 0.1, 99, rows), axis=1)
    dtype, eight, integers = draw.dtype(), (len(rows), 8), (U32, U16)[draw.random.integers(2)]
    data = draw.bench.pattern(rows.shape, dtype, draw.among(*MEMORIES), values=rows)
    vals = draw.bench.pattern(eight, dtype, "SBUF", values=chosen[:, :8])
    kind = draw.random.integers(3)
    if kind == 0:
        return Max8(dst=draw.operand(eight, draw.dtype()), data=data)
    found = draw.operand(eight, integers, "SBUF")
    if kind == 1:
        return FindIndex8(dst=found, data=data, vals=vals)
    dst = data if draw.random.integers(2) else draw.operand(rows.shape, draw.dtype(), "SBUF")
    index = found if draw.random.integers(2) else None
    return MatchReplace8(dst=dst, index=index, data=data, vals=vals, imm=draw.random.normal())


def _elements(draw: Draw) -> Instr:
    (rows, count), extent = draw.random.integers(1, 33, 2), int(draw.random.integers(1, 50))
    dtype, shape = draw.dtype(), (int(rows), int(count))
    places = draw.bench.pattern(shape, U32, "SBUF", values=draw.random.integers(0, extent, shape))
    data = draw.operand((shape[0], extent), dtype, "SBUF")
    return NcNGather(dst=draw.operand(shape, dtype, "SBUF"), data=data, indices=places)


def _by_place(draw: Draw) -> Instr:
    shape, dtype = draw.shape(), draw.dtype()
    dst, data = (draw.operand(shape, dtype, "SBUF") for _ in range(2))
    return AffineSelect(
        dst=dst, data=data, steps=tuple(map(int, draw.random.integers(-3, 4, len(shape) - 1))),
        offset=int(draw.random.integers(-20, 20)), channel_multiplier=draw.among_integers(-1, 0, 1),
        compare_op=draw.among("less", "greater_equal", "equal"),
        false_value=float(draw.random.normal()),
    )  # fmt: skip


# Of those the host gives the reference's bits; of the others values within stated steps
EXACT = (
    _copy, _transfer, _pairwise, _of_integers, _fill, _turn, _rows_by_index, _scan, _by_place,
    _search, _elements,
)  # fmt: skip
ROUNDED = (_function, _reduction, _product)
