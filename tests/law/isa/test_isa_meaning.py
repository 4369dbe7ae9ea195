"""What compute engines' instructions do, against an independent statement of their meaning."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia.base.dtype import BF16, F8E4M3, F16, F32, S8, S16, S32, U8, U16, U32, DType
from glia.isa.alu import ALU_OPS
from glia.isa.instructions.gpsimd import AffineSelect, Iota, TensorPartitionReduce
from glia.isa.instructions.tensor import NcMatmul, NcTranspose
from glia.isa.instructions.vector import (
    Memset,
    Reciprocal,
    ScalarTensorTensor,
    StreamShuffle,
    TensorCopy,
    TensorCopyPredicated,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from glia.isa.instructions.vector_statistics import (
    BnAggr,
    BnStats,
    FindIndex8,
    MatchReplace8,
    Max8,
    TensorTensorScan,
)
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.sim.policy import Policy, UninitializedRead
from glia.sim.run import run
from support.isa_bench import FLOATS, SCALAR_MEANING, Bench, elementwise, put, take, wide

Array = np.ndarray[Any, Any]


def positive(bench: Bench, shape: tuple[int, ...]) -> Array:
    return bench.random.uniform(0.25, 4, shape).astype(np.float32)


BINARY = [n for n, op in ALU_OPS.items() if op.arity == 2 and op.family == "arithmetic"]
UNARY = [n for n, op in ALU_OPS.items() if op.arity == 1 and op.family == "arithmetic"]
BITS = {
    "bitwise_and": lambda a, b, w: a & b,
    "bitwise_or": lambda a, b, w: a | b,
    "bitwise_xor": lambda a, b, w: a ^ b,
    "left_shift": lambda a, b, w: a << b if b < w else 0,
    "right_shift": lambda a, b, w: a >> b if b < w else 0,
    "arithmetic_right_shift": lambda a, b, w: (a - (1 << w) * (a >> (w - 1))) >> min(b, w - 1),
}


def test_the_oracle_covers_every_operator() -> None:
    assert set(SCALAR_MEANING) | set(BITS) | {"invert"} == set(ALU_OPS)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("seed", [0, 1])
def test_tensor_tensor(op: str, seed: int) -> None:
    bench = Bench(seed)
    shape, on = (20, 3, 5), ALU_OPS[op].engines[0]
    dtype = FLOATS[seed]
    data1 = bench.pattern(shape, dtype, values=positive(bench, shape))
    data2 = bench.pattern((20, 15), F32, values=positive(bench, (20, 15)))
    dst = bench.pattern((20, 5, 3), FLOATS[-seed])
    expected = elementwise(op, bench.value(data1).reshape(20, 15), bench.value(data2))
    bench.check(TensorTensor(dst=dst, data1=data1, data2=data2, op=op, on=on), dst=expected)


@pytest.mark.parametrize("op", BITS)
@pytest.mark.parametrize("dtype", [S32, U32, S16, U8], ids=str)
def test_bitvec_operators_work_on_the_bits(op: str, dtype: DType) -> None:
    bench = Bench(3)
    data1, dst = bench.pattern((8, 12), dtype), bench.pattern((8, 12), dtype)
    data2 = bench.pattern((8, 12), dtype)
    if "shift" in op:
        put(bench.contents[data2.tile.name], data2, np.arange(96).astype(dtype.numpy) % 40)
    width, mask = dtype.bits, (1 << dtype.bits) - 1
    pairs = zip(bench.value(data1).flat, bench.value(data2).flat, strict=True)
    bits = [BITS[op](int(a) & mask, int(b) & mask, width) & mask for a, b in pairs]
    expected = np.array(bits, np.uint64).astype(f"u{dtype.bytes}").view(dtype.numpy)
    instr = TensorTensor(dst=dst, data1=data1, data2=data2, op=op)
    bench.check(instr, dst=expected.reshape(8, 12))


def test_bitvec_immediates_keep_all_their_bits() -> None:
    bench = Bench(4)
    data, dst = bench.pattern((8, 6), S32), bench.pattern((8, 6), S32)
    instr = TensorScalar(dst=dst, data=data, operand0=0x89ABCDEF, op0="bitwise_xor", op1="invert")
    expected = ~(bench.value(data) ^ np.int32(0x89ABCDEF - (1 << 32)))
    bench.check(instr, dst=expected)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide", "fmod", "mod", "maximum"])
def test_gpsimd_is_exact_on_32_bit_integers(op: str) -> None:
    bench = Bench(5)
    data1, data2, dst = (bench.pattern((16, 9), S32) for _ in range(3))
    a, b = bench.value(data1), bench.value(data2)
    a[0, :4], b[0, :4] = [-7, 7, -7, 5], [2, -2, -2, 0]
    put(bench.contents[data1.tile.name], data1, a)
    put(bench.contents[data2.tile.name], data2, b)
    expected = np.array(
        [_integer(op, int(x), int(y)) for x, y in zip(a.flat, b.flat, strict=True)], np.int64
    )
    instr = TensorTensor(dst=dst, data1=data1, data2=data2, op=op, on="gpsimd")
    bench.check(instr, dst=expected.astype(np.int32).reshape(a.shape))


def _integer(op: str, a: int, b: int) -> int:
    quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    exact = {
        "add": a + b,
        "subtract": a - b,
        "multiply": a * b,
        "divide": quotient if b else -1,
        "fmod": a - quotient * b,
        "mod": a % b if b else a,
        "maximum": max(a, b),
    }[op]
    return (exact + 2**31) % 2**32 - 2**31


def test_vector_computes_integers_in_float32() -> None:
    bench = Bench(6)
    big = np.full((4, 3), 2**24, np.int32)
    data1 = bench.pattern((4, 3), S32, values=big)
    data2 = bench.pattern((4, 3), S32, values=np.ones((4, 3)))
    dst = bench.pattern((4, 3), S32)
    bench.check(TensorTensor(dst=dst, data1=data1, data2=data2, op="add"), dst=big)


@pytest.mark.parametrize("op", UNARY)
def test_unary_operators(op: str) -> None:
    bench = Bench(7)
    data = bench.pattern((10, 7), values=positive(bench, (10, 7)) - (op not in ("rsqrt",)) * 2)
    dst = bench.pattern((10, 7))
    expected = elementwise(op, bench.value(data), np.zeros(1))
    on = ALU_OPS[op].engines[0]
    bench.check(TensorScalar(dst=dst, data=data, op0=op, on=on), dst=expected)


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, S16], ids=str)
def test_tensor_scalar(reverse0: bool, reverse1: bool, dtype: DType) -> None:
    bench = Bench(8)
    data, dst = bench.pattern((12, 2, 6), dtype), bench.pattern((12, 12), dtype)
    column = bench.pattern((12, 1))
    instr = TensorScalar(
        dst=dst, data=data, operand0=column, op0="subtract", operand1=1.5, op1="subtract",
        reverse0=reverse0, reverse1=reverse1,
    )  # fmt: skip
    first = wide(bench.value(data)).reshape(12, 12) - bench.value(column)
    first = -first if reverse0 else first
    second = np.float32(1.5) - first if reverse1 else first - np.float32(1.5)
    bench.check(instr, dst=second)


@pytest.mark.parametrize("reverse1", [False, True])
def test_scalar_tensor_tensor(reverse1: bool) -> None:
    bench = Bench(9)
    data, dst = bench.pattern((12, 2, 6)), bench.pattern((12, 12))
    tensor, column = bench.pattern((12, 12), BF16), bench.pattern((12, 1))
    instr = ScalarTensorTensor(
        dst=dst, data=data, operand0=column, op0="multiply", operand1=tensor, op1="subtract",
        reverse1=reverse1,
    )  # fmt: skip
    scaled = bench.value(data).reshape(12, 12) * bench.value(column)
    difference = scaled - wide(bench.value(tensor))
    bench.check(instr, dst=-difference if reverse1 else difference)


@pytest.mark.parametrize("op", ["add", "maximum", "minimum", "multiply", "abs_max", "logical_or"])
@pytest.mark.parametrize("axes", [1, 2])
def test_tensor_reduce(op: str, axes: int) -> None:
    bench = Bench(10)
    data = bench.pattern((9, 3, 4), memory="PSUM")
    dst = bench.pattern((9, 3) if axes == 1 else (9, 1), BF16)
    rows = bench.value(data).reshape(9, 3 if axes == 1 else 1, -1)
    expected = rows[..., 0]
    for i in range(1, rows.shape[-1]):
        expected = elementwise(op, expected, rows[..., i])
    for negate in (False, True):
        instr = TensorReduce(dst=dst, data=data, op=op, axes=axes, negate=negate)
        bench.check(instr, dst=-expected if negate else expected)


def test_bitwise_reductions_keep_all_bits() -> None:
    bench = Bench(11)
    data, dst = bench.pattern((9, 5), U32), bench.pattern((9, 1), U32)
    expected = [[int(np.bitwise_xor.reduce(row))] for row in bench.value(data)]
    instr = TensorReduce(dst=dst, data=data, op="bitwise_xor")
    bench.check(instr, dst=np.array(expected, np.uint32))


@pytest.mark.parametrize("to", [F32, BF16, F16, F8E4M3, S32, S16, S8, U8, U16], ids=str)
@pytest.mark.parametrize("source", [F32, BF16, S32, S8, U16], ids=str)
@pytest.mark.parametrize("on", ["vector", "gpsimd"])
def test_tensor_copy_converts(source: DType, to: DType, on: str) -> None:
    bench = Bench(12)
    values = bench.random.normal(0, 60, (6, 8))
    values[0, :4] = [0.5, 1.5, 2.5, 100]
    src = bench.pattern((6, 8), source, values=np.abs(values) if source is U16 else values)
    dst = bench.pattern((6, 2, 4), to)
    bench.check(TensorCopy(dst=dst, src=src, on=on), dst=bench.value(src))


def test_a_copy_of_one_dtype_keeps_nan_payloads() -> None:
    bench = Bench(13)
    bits = np.array([[0x7FC12345, 0x7F812345, 0x80000000, 1]], np.uint32)
    src, dst = bench.pattern((1, 4), U32, values=bits), bench.pattern((1, 4), U32)
    as_float = [Pattern(p.tile, F32, p.dims, p.offset, p.partition) for p in (dst, src)]
    after = bench.run(TensorCopy(dst=as_float[0], src=as_float[1]))
    np.testing.assert_array_equal(take(after[dst.tile.name], dst), bits)


def test_float_to_integer_saturates_and_rounds_to_even() -> None:
    bench = Bench(14)
    values = np.array([[1e20, -1e20, np.inf, -np.inf, 2.5, 3.5, -2.5, np.nan]])
    src, dst = bench.pattern((1, 8), values=values), bench.pattern((1, 8), S32)
    after = bench.run(TensorCopy(dst=dst, src=src))
    high, low = 2**31 - 1, -(2**31)
    expected = [[high, low, high, low, 2, 4, -2, 0]]
    np.testing.assert_array_equal(take(after[dst.tile.name], dst), expected)


@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_copy_predicated(reverse: bool) -> None:
    bench = Bench(15)
    src, dst = bench.pattern((7, 9)), bench.pattern((7, 9))
    chosen = bench.random.integers(0, 3, (7, 9))
    predicate = bench.pattern((7, 9), U8, values=chosen)
    instr = TensorCopyPredicated(dst=dst, src=src, predicate=predicate, reverse=reverse)
    copies = (chosen == 0) if reverse else (chosen != 0)
    bench.check(instr, dst=np.where(copies, bench.value(src), bench.value(dst)))


@pytest.mark.parametrize("dtype,value", [(F32, 0.1), (BF16, -1e9), (S32, 2**24 + 1), (U8, 7)])
def test_a_predicated_copy_of_a_number_keeps_what_dst_can_hold_of_it(
    dtype: DType, value: float
) -> None:
    bench = Bench(33)
    dst, chosen = bench.pattern((5, 6), dtype), bench.random.integers(0, 2, (5, 6))
    predicate = bench.pattern((5, 6), U16, values=chosen)
    instr = TensorCopyPredicated(dst=dst, src=value, predicate=predicate)
    number = np.array(value).astype(dtype.numpy)
    bench.check(instr, dst=np.where(chosen, number, bench.value(dst)))


def test_reciprocal() -> None:
    bench = Bench(16)
    data, dst = bench.pattern((5, 6), BF16), bench.pattern((5, 6), F16)
    bench.check(Reciprocal(dst=dst, data=data), dst=1 / wide(bench.value(data)))


@pytest.mark.parametrize("dtype,value", [(F32, 1.5), (BF16, -3.0), (S32, -7), (U8, 200)])
def test_memset(dtype: DType, value: float) -> None:
    bench = Bench(17)
    dst = bench.pattern((5, 2, 3), dtype)
    bench.check(Memset(dst=dst, value=value), dst=np.full((5, 2, 3), value).astype(dtype.numpy))


@pytest.mark.parametrize(("given", "taken"), [(64, 64), (1, 32), (33, 64), (32, 20)])
def test_stream_shuffle(given: int, taken: int) -> None:
    bench = Bench(18)
    src, dst = bench.pattern((given, 3)), bench.pattern((taken, 3))
    most = (given - 1) % 32 + 1
    mask = (*(int(m) for m in bench.random.integers(0, most, 31)), 255)
    source, expected = bench.value(src), bench.value(dst)
    for p in range(taken):
        if mask[p % 32] != 255:
            expected[p] = source[p // 32 * 32 + mask[p % 32]]
    bench.check(StreamShuffle(dst=dst, src=src, mask=mask), dst=expected)


@pytest.mark.parametrize("ops", [("multiply", "add"), ("add", "maximum"), ("subtract", "multiply")])
@pytest.mark.parametrize("initial", [0.5, None])
def test_tensor_tensor_scan(ops: tuple[str, str], initial: float | None) -> None:
    bench = Bench(19)
    data0, data1, dst = (bench.pattern((6, 11)) for _ in range(3))
    start: Any = bench.pattern((6, 1)) if initial is None else initial
    state = bench.value(start)[:, 0] if initial is None else np.full(6, initial, np.float32)
    columns = []
    for i in range(11):
        state = elementwise(ops[0], bench.value(data0)[:, i], state)
        state = elementwise(ops[1], state, bench.value(data1)[:, i])
        columns.append(state)
    instr = TensorTensorScan(
        dst=dst, data0=data0, data1=data1, initial=start, op0=ops[0], op1=ops[1]
    )
    bench.check(instr, dst=np.stack(columns, 1))


def test_bn_stats_and_aggr_give_mean_and_variance() -> None:
    bench = Bench(20)
    data, stats = bench.pattern((6, 31)), bench.pattern((6, 6))
    rows = bench.value(data).astype(np.float64)
    halves = [rows[:, 0::2], rows[:, 1::2]]
    triples = [[np.full(6, h.shape[1]), h.mean(1), h.var(1) * h.shape[1]] for h in halves]
    expected = np.stack([column for triple in triples for column in triple], 1)
    bench.check(BnStats(dst=stats, data=data), dst=expected.astype(np.float32))
    put(bench.contents[stats.tile.name], stats, expected.astype(np.float32))
    pair = bench.pattern((6, 2))
    joint = np.stack([rows.mean(1), rows.var(1)], 1).astype(np.float32)
    bench.check(BnAggr(dst=pair, data=stats), dst=joint)


def test_max8_find_index8_and_match_replace8() -> None:
    bench = Bench(21)
    values = bench.random.integers(0, 6, (5, 20))
    data, eight = bench.pattern((5, 20), values=values), bench.pattern((5, 8))
    greatest = np.array([sorted(row, reverse=True)[:8] for row in values.tolist()], np.float32)
    bench.check(Max8(dst=eight, data=data), dst=greatest)
    greatest[:, 7] = 99  # a value that is missing
    put(bench.contents[eight.tile.name], eight, greatest)
    found, replaced = bench.pattern((5, 8), U32), bench.pattern((5, 20))
    index, left = np.full((5, 8), 2**32 - 1, np.uint32), values.astype(np.float32)
    for p in range(5):
        taken: set[int] = set()
        for i in range(8):
            places = [j for j in range(20) if values[p, j] == greatest[p, i] and j not in taken]
            if places:
                index[p, i] = places[0]
                left[p, places[0]] = -1
                taken.add(places[0])
    bench.check(FindIndex8(dst=found, data=data, vals=eight), dst=index)
    bench.check(MatchReplace8(dst=replaced, data=data, vals=eight, imm=-1.0), dst=left)


@pytest.mark.parametrize("dtype", [U32, U16], ids=str)
def test_match_replace8_finds_repeated_values_from_the_last_one_on(dtype: DType) -> None:
    """The documented example: seven equal values take their places in descending order."""
    bench = Bench(31)
    data = bench.pattern((1, 12), values=np.array([[1, 2, 3, 4, *[8] * 7, 5]]))
    vals = bench.pattern((1, 8), values=np.array([[3, *[8] * 7]]))
    out, index = bench.pattern((1, 12)), bench.pattern((1, 8), dtype)
    instr = MatchReplace8(dst=out, data=data, vals=vals, imm=-1.0, index=index)
    expected = np.array([[2, 10, 9, 8, 7, 6, 5, 4]], dtype.numpy)
    left = np.array([[1, 2, -1, 4, *[-1] * 7, 5]], np.float32)
    bench.check(instr, dst=left, index=expected)


@pytest.mark.parametrize("dtype,missing", [(U32, 2**32 - 1), (U16, 2**16 - 1)], ids=str)
def test_an_index_of_a_missing_value_is_all_ones(dtype: DType, missing: int) -> None:
    bench = Bench(32)
    data = bench.pattern((1, 9), values=np.arange(9)[None])
    vals = bench.pattern((1, 8), values=np.array([[4, 99, 0, np.nan, 8, 2, 2, 1]]))
    found = bench.pattern((1, 8), dtype)
    expected = np.array([[4, missing, 0, missing, 8, 2, missing, 1]], dtype.numpy)
    bench.check(FindIndex8(dst=found, data=data, vals=vals), dst=expected)


@pytest.mark.parametrize("dtype", [BF16, S16, U8, S32], ids=str)
def test_max8_takes_its_elements_through_float32(dtype: DType) -> None:
    bench = Bench(23)
    data, eight = bench.pattern((4, 3, 5), dtype), bench.pattern((4, 8))
    rows = bench.value(data).reshape(4, 15).astype(np.float32)
    greatest = [sorted(row, reverse=True)[:8] for row in rows.tolist()]
    bench.check(Max8(dst=eight, data=data), dst=np.array(greatest, np.float32))


def test_max8_of_exactly_eight_elements_sorts_them() -> None:
    bench = Bench(22)
    data, eight = bench.pattern((3, 8)), bench.pattern((3, 8))
    expected = np.array([sorted(row, reverse=True) for row in bench.value(data).tolist()])
    bench.check(Max8(dst=eight, data=data), dst=expected.astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
def test_nc_matmul(dtype: DType, accumulate: bool) -> None:
    bench = Bench(23)
    stationary, moving = bench.pattern((40, 2, 6), dtype), bench.pattern((40, 3, 7), dtype)
    dst = bench.pattern((12, 21), memory="PSUM", plain=True)
    a = bench.value(stationary).astype(np.float64).reshape(40, 12)
    expected = a.T @ bench.value(moving).astype(np.float64).reshape(40, 21)
    if accumulate:
        expected = expected + bench.value(dst)
    instr = NcMatmul(dst=dst, stationary=stationary, moving=moving, accumulate=accumulate)
    after = bench.run(instr)
    actual = take(after[dst.tile.name], dst)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("on,memory,side", [("tensor", "PSUM", 100), ("vector", "SBUF", 32)])
@pytest.mark.parametrize("dtype", [F32, BF16, S32, U16, U8], ids=str)
def test_nc_transpose(on: str, memory: str, side: int, dtype: DType) -> None:
    bench = Bench(24)
    data = bench.pattern((side, 3, 6), dtype)
    dst = bench.pattern((18, side), dtype, memory=memory)
    expected = bench.value(data).reshape(side, 18).T
    bench.check(NcTranspose(dst=dst, data=data, on=on), dst=expected)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_a_transposition_into_float32_is_a_product(dtype: DType) -> None:
    """On every generation: what is not finite spreads over its row of dst."""
    bench = Bench(25)
    data = bench.pattern((6, 9), dtype)
    dst = bench.pattern((9, 6), F32, memory="PSUM")
    expected = bench.value(data).astype(np.float32).T
    bench.check(NcTranspose(dst=dst, data=data), dst=expected)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    values[1, 2] = np.inf
    with np.errstate(invalid="ignore"):
        turned = NcTranspose.compute(
            values, on_array=True, is_product=True, has_bit_exact_transpose=True
        )
    np.testing.assert_array_equal(turned[:2], values.T[:2])
    assert turned[2, 1] == np.inf and np.isnan(np.delete(turned[2], 1)).all()


def test_iota_counts_partitions_and_steps() -> None:
    bench = Bench(27)
    for dtype in (S32, F32):
        dst = bench.pattern((5, 3, 4), dtype)
        expected = [
            [[7 - 2 * p + 100 * i + j for j in range(4)] for i in range(3)] for p in range(5)
        ]
        instr = Iota(dst=dst, offset=7, channel_multiplier=-2, steps=(100, 1))
        bench.check(instr, dst=np.array(expected, np.int32))


@pytest.mark.parametrize("op", ["less", "greater_equal", "equal"])
def test_affine_select(op: str) -> None:
    bench = Bench(28)
    data, dst = bench.pattern((6, 2, 5), BF16), bench.pattern((6, 2, 5), BF16)
    value = bench.value(data)
    for p, i, j in np.ndindex(6, 2, 5):
        if not SCALAR_MEANING[op](-3 + p + 2 * i - j, 0):
            value[p, i, j] = ml_dtypes.bfloat16(-1)
    instr = AffineSelect(
        dst=dst, data=data, offset=-3, channel_multiplier=1, steps=(2, -1), compare_op=op,
        false_value=-1.0,
    )  # fmt: skip
    bench.check(instr, dst=value)


@pytest.mark.parametrize("op", ["add", "average", "maximum"])
@pytest.mark.parametrize("dtype", [F32, BF16, S16], ids=str)
def test_tensor_partition_reduce(op: str, dtype: DType) -> None:
    bench = Bench(29)
    values = bench.random.integers(-90, 90, (33, 2, 4))
    data, dst = bench.pattern((33, 2, 4), dtype, values=values), bench.pattern((1, 8), F32)
    reduce = {"add": np.sum, "average": np.mean, "maximum": np.max}[op]
    rows = bench.value(data).astype(np.float64).reshape(33, 8)
    instr = TensorPartitionReduce(dst=dst, data=data, op=op)
    bench.check(instr, dst=reduce(rows, axis=0, keepdims=True).astype(np.float32))


@pytest.mark.parametrize("op", ["bitwise_or", "bitwise_and"])
@pytest.mark.parametrize("dtype", [S32, U32, U8], ids=str)
def test_tensor_partition_reduce_of_bits(op: str, dtype: DType) -> None:
    bench = Bench(30)
    data, dst = bench.pattern((5, 6), dtype), bench.pattern((1, 6), dtype)
    expected = bench.value(data)[0]
    for row in bench.value(data)[1:]:
        expected = expected | row if op == "bitwise_or" else expected & row
    bench.check(TensorPartitionReduce(dst=dst, data=data, op=op), dst=expected[None])


def test_an_instruction_may_write_what_it_reads() -> None:
    bench = Bench(34)
    data = bench.pattern((6, 9))
    shifted = Pattern(data.tile, F32, data.dims, data.offset, data.partition)
    bench.check(
        TensorTensor(dst=shifted, data1=data, data2=data, op="add"), dst=2 * bench.value(data)
    )


def test_reading_what_nothing_wrote_is_found() -> None:
    tile = Tile("t", Memory.SBUF, F32, 128, 8)
    left, whole = Pattern(tile, F32, ((1, 4), (1, 4))), Pattern(tile, F32, ((1, 4), (1, 8)))
    body = (Memset(dst=left, value=1.0), TensorCopy(dst=whole, src=whole))
    program = Program("p", "trn2", {"t": tile}, (), (), {}, body)
    with pytest.raises(UninitializedRead, match="16 elements of src"):
        run(program, {}, policy=Policy(check_initialized=True))
