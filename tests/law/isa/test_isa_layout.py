"""Where elements lie does not matter: only their order in each partition, read before written."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.affine import Affine
from glia.base.dtype import BF16, F16, F32, S16, U16, DType
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.random import Dropout
from glia.isa.instructions.scalar import Activate2, Activation
from glia.isa.instructions.vector import (
    Reciprocal,
    ScalarTensorTensor,
    StreamShuffle,
    TensorCopy,
    TensorCopyPredicated,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from glia.isa.instructions.vector_accumulate import (
    Exponential,
    TensorScalarCumulative,
    TensorScalarReduce,
)
from glia.isa.instructions.vector_select import RangeSelect, SelectReduce
from glia.isa.instructions.vector_statistics import TensorTensorScan
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Program
from glia.machine.legal import verify
from glia.sim.run import run
from support.examples import with_examples
from support.isa_bench import indices

Array = np.ndarray[Any, Any]
PARTITIONS, ELEMENTS = 32, 12
Operands = dict[str, Pattern]

# Every instruction that maps elements of a partition to elements: (its tensors but dst, maker).
MAPS: dict[str, tuple[dict[str, DType], Callable[[Operands], Instr]]] = {
    "tensor_copy": ({"a": BF16}, lambda p: TensorCopy(dst=p["dst"], src=p["a"])),
    "tensor_tensor": (
        {"a": BF16, "b": F32},
        lambda p: TensorTensor(dst=p["dst"], data1=p["a"], data2=p["b"], op="subtract"),
    ),
    "tensor_scalar": (
        {"a": F32},
        lambda p: TensorScalar(
            dst=p["dst"], data=p["a"], operand0=p["column"], op0="multiply", operand1=1.5,
            op1="subtract", reverse1=True,
        ),
    ),
    "scalar_tensor_tensor": (
        {"a": F16, "b": F32},
        lambda p: ScalarTensorTensor(
            dst=p["dst"], data=p["a"], operand0=p["column"], op0="add", operand1=p["b"],
            op1="multiply",
        ),
    ),
    "tensor_copy_predicated": (
        {"a": F32, "mask": U16},
        lambda p: TensorCopyPredicated(dst=p["dst"], src=p["a"], predicate=p["mask"]),
    ),
    "reciprocal": ({"a": F32}, lambda p: Reciprocal(dst=p["dst"], data=p["a"])),
    "activation": (
        {"a": S16},
        lambda p: Activation(
            dst=p["dst"], data=p["a"], function="sigmoid", scale=p["column"], bias=p["column"]
        ),
    ),
    "activate2": (
        {"a": F32},
        lambda p: Activate2(
            dst=p["dst"], data=p["a"], function="prelu", operand0=p["column"], op0="subtract",
            op1="bypass", relu_param=p["column"],
        ),
    ),
    "exponential": (
        {"a": BF16},
        lambda p: Exponential(dst=p["dst"], data=p["a"], most=p["column"]),
    ),
    "range_select": (
        {"a": F32},
        lambda p: RangeSelect(
            dst=p["dst"], data=p["a"], bound0=p["column"], compare0="greater", bound1=p["column"],
            compare1="greater_equal", start=-10,
        ),
    ),
    "select_reduce": (
        {"a": F32, "mask": U16},
        lambda p: SelectReduce(
            dst=p["dst"], data=p["a"], predicate=p["mask"], on_false=p["column"]
        ),
    ),
    "tensor_scalar_reduce": (
        {"a": F32},
        lambda p: TensorScalarReduce(
            dst=p["dst"], data=p["a"], operand0=p["column"], op0="maximum", reduce_op="add"
        ),
    ),
    "tensor_scalar_cumulative": (
        {"a": F32},
        lambda p: TensorScalarCumulative(
            dst=p["dst"], data=p["a"], operand0=p["column"], op0="multiply", op1="subtract"
        ),
    ),
    "tensor_tensor_scan": (
        {"a": F32, "b": F32},
        lambda p: TensorTensorScan(
            dst=p["dst"], data0=p["a"], data1=p["b"], initial=p["column"], op0="multiply",
            op1="subtract", reverse1=True,
        ),
    ),
    "dropout": (
        {"a": F32},
        lambda p: Dropout(dst=p["dst"], data=p["a"], probability=0.4),
    ),
    "stream_shuffle": (
        {"a": F32},
        lambda p: StreamShuffle(dst=p["dst"], src=p["a"], mask=(*range(31, 0, -1), 255)),
    ),
}  # fmt: skip


# Every way to write the elements of a partition as one to four factors.
SHAPES = [
    shape
    for rank in range(1, 5)
    for shape in product([n for n in range(1, ELEMENTS + 1) if ELEMENTS % n == 0], repeat=rank)
    if math.prod(shape) == ELEMENTS
]


@st.composite
def layout(draw: st.DrawFn) -> tuple[tuple[tuple[int, int], ...], int, int]:
    """(free dims, offset, elements of the tile): strides may have gaps, swap and go backwards."""
    shape = draw(st.sampled_from(SHAPES))
    order = draw(st.permutations(range(len(shape))))
    dims, step, offset = [(0, 1)] * len(shape), 1, 0
    for axis in order:
        step *= draw(st.integers(1, 2))
        sign = draw(st.sampled_from([1, -1]))
        dims[axis] = (sign * step, shape[axis])
        offset += 0 if sign > 0 else step * (shape[axis] - 1)
        step *= shape[axis]
    return tuple(dims), offset, step


PLAIN = (((1, ELEMENTS),), 0, ELEMENTS)


def place(name: str, dtype: DType, where: Any, memory: str = "SBUF") -> Pattern:
    dims, offset, elements = where
    tile = Tile(name, Memory(memory), dtype, PARTITIONS, elements)
    return Pattern(tile, dtype, ((1, PARTITIONS), *dims), Affine.of(offset))


def result(instr: Instr, operands: Operands, values: dict[str, Array]) -> Array:
    """What dst holds, element by element, after the instruction on these values."""
    tiles = {p.tile.name: p.tile for p in operands.values()}
    contents = {n: np.zeros((PARTITIONS, t.elements), t.dtype.numpy) for n, t in tiles.items()}
    for name, pattern in operands.items():
        for where, value in zip(indices(pattern), values[name].reshape(-1), strict=True):
            contents[pattern.tile.name][where] = value
    away, moves, bindings = {}, [], []
    for name, tile in tiles.items():
        size = PARTITIONS * tile.elements
        there = Tile(f"{name}.hbm", Memory.HBM, tile.dtype, 1, size)
        away[there.name] = there
        here = Pattern(tile, tile.dtype, ((1, PARTITIONS), (1, tile.elements)))
        far = Pattern(there, tile.dtype, ((tile.elements, PARTITIONS), (1, tile.elements)))
        moves.append((here, far))
        bindings.append(Binding(name, there, (PARTITIONS, tile.elements), tile.dtype))
    loads = [DmaCopy(dst=here, src=far, queue="in") for here, far in moves]
    stores = [DmaCopy(dst=far, src=here, queue="out") for here, far in moves]
    body = (*loads, instr, *stores)
    io = tuple(bindings)
    program = Program("one", "trn3", {**tiles, **away}, io, io, {}, body)
    verify(program)
    after = run(program, contents)[operands["dst"].tile.name]
    return np.array([after[where] for where in indices(operands["dst"])])


def values_for(dtypes: dict[str, DType], seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    made = {}
    for name, dtype in dtypes.items():
        numbers = random.normal(0, 2, (PARTITIONS, 1 if name == "column" else ELEMENTS))
        numbers = random.integers(0, 3, numbers.shape) if dtype.is_integer else numbers
        made[name] = numbers.astype(np.float32).astype(dtype.numpy)
    return made


def run_map(name: str, where: dict[str, Any], seed: int) -> Array:
    dtypes, make = MAPS[name]
    dtypes = {**dtypes, "dst": F32, "column": F32}
    where = {**where, "column": (((1, 1),), 0, 1)}
    operands = {each: place(each, dtype, where[each]) for each, dtype in dtypes.items()}
    return result(make(operands), operands, values_for(dtypes, seed))


@pytest.mark.parametrize("name", MAPS)
@with_examples(6)
@given(data=st.data())
def test_only_the_order_of_elements_counts(name: str, data: st.DataObject) -> None:
    names = [*MAPS[name][0], "dst"]
    where = {each: data.draw(layout(), label=each) for each in names}
    seed = data.draw(st.integers(0, 99), label="seed")
    expected = run_map(name, dict.fromkeys(names, PLAIN), seed)
    np.testing.assert_array_equal(run_map(name, where, seed), expected)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("shift", [0, 1, 5])
def test_overlapping_operands_are_read_before_dst_is_written(name: str, shift: int) -> None:
    dtypes, make = MAPS[name]
    first = next(iter(dtypes))
    free = ((1, ELEMENTS),)
    apart = {n: place(n, F32 if n in ("dst", first) else t, PLAIN) for n, t in dtypes.items()}
    apart |= {"dst": place("dst", F32, PLAIN), "column": place("column", F32, (((1, 1),), 0, 1))}
    values = values_for({n: p.dtype for n, p in apart.items()}, 5)
    tile = Tile("both", Memory.SBUF, F32, PARTITIONS, ELEMENTS + shift)
    over = {"dst": shift, first: 0} if shift % 2 else {"dst": 0, first: shift}
    together = dict(apart)
    for each, offset in over.items():
        together[each] = Pattern(tile, F32, ((1, PARTITIONS), *free), Affine.of(offset))
    if shift:  # where they overlap, the operand's values are what memory holds
        kept = slice(shift, None) if over["dst"] else slice(None, -shift)
        other = slice(None, -shift) if over["dst"] else slice(shift, None)
        values["dst"][:, other] = values[first][:, kept]
    else:
        values["dst"] = values[first].copy()
    order = {n: together[n] for n in (*dtypes, "dst", "column") if n != first} | {
        first: together[first]
    }
    expected = result(make(apart), apart, values)
    np.testing.assert_array_equal(result(make(order), order, values), expected)


def test_an_operand_may_repeat_elements_with_a_step_of_0() -> None:
    column = Tile("a", Memory.SBUF, F32, PARTITIONS, 3)
    repeated = Pattern(column, F32, ((1, PARTITIONS), (1, 3), (0, ELEMENTS // 3)))
    out = place("dst", F32, PLAIN)
    values = np.random.default_rng(1).normal(size=(PARTITIONS, 3)).astype(np.float32)
    spread = np.repeat(values, ELEMENTS // 3, axis=1)
    operands = {"a": repeated, "dst": out}
    found = result(TensorCopy(dst=out, src=repeated), operands, {"a": spread, "dst": spread * 0})
    np.testing.assert_array_equal(found, spread.reshape(-1))


@with_examples(20)
@given(data=st.data(), axes=st.integers(1, 3), negate=st.booleans())
def test_a_reduction_takes_the_innermost_dimensions(
    data: st.DataObject, axes: int, negate: bool
) -> None:
    dims, offset, elements = data.draw(layout().filter(lambda found: len(found[0]) >= axes))
    source = place("a", F32, (dims, offset, elements))
    shape = tuple(count for _, count in dims)
    kept = int(np.prod(shape[: len(shape) - axes], dtype=int))
    out = place("dst", F32, (((1, kept),), 0, kept))
    values = np.random.default_rng(2).integers(-9, 9, (PARTITIONS, ELEMENTS)).astype(np.float32)
    instr = TensorReduce(dst=out, data=source, op="add", axes=axes, negate=negate)
    expected = values.reshape(PARTITIONS, kept, -1).sum(2) * (-1 if negate else 1)
    start = {"a": values, "dst": np.zeros((PARTITIONS, kept), np.float32)}
    found = result(instr, {"a": source, "dst": out}, start)
    np.testing.assert_array_equal(found, expected.reshape(-1))
