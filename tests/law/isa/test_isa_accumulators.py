"""What the Scalar and Vector Engines accumulate over several instructions, against plain loops."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import BF16, F8E5M2, F16, F32, PRED, S8, S16, U8, U16, DType
from glia.isa.instructions.scalar import PAIRS, Activate2, Activation
from glia.isa.instructions.vector import Memset
from glia.isa.instructions.vector_accumulate import (
    Exponential,
    TensorScalarCumulative,
    TensorScalarReduce,
)
from glia.isa.instructions.vector_select import LEAST, RANGE_COMPARISONS, RangeSelect, SelectReduce
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.sim.policy import ArgumentOutOfRange, Policy, UninitializedRead
from support.isa_bench import Bench, assert_same, rounded, wide

Array = np.ndarray[Any, Any]
OPERATORS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "abs_max": lambda a, b: b if abs(b) > abs(a) else a,  # of equals the later one
    "abs_min": lambda a, b: b if abs(b) < abs(a) else a,
    "bypass": lambda a, _: a,
    "less": lambda a, b: float(a < b),
    "less_equal": lambda a, b: float(a <= b),
    "greater": lambda a, b: float(a > b),
    "greater_equal": lambda a, b: float(a >= b),
    "equal": lambda a, b: float(a == b),
}
STARTS = {
    "add": 0.0, "multiply": 1.0, "subtract": 0.0, "maximum": -math.inf, "minimum": math.inf,
    "abs_max": 0.0, "abs_min": math.inf,
}  # fmt: skip


def folded(op: str, rows: Array, start: Any = None) -> Array:
    """Each row reduced from the left, in float64; [rows, 1]."""
    result = []
    for number, row in enumerate(rows.reshape(len(rows), -1).astype(np.float64).tolist()):
        state = STARTS[op] if start is None else float(np.reshape(start, -1)[number])
        for value in row:
            state = OPERATORS[op](value, state)
        result.append([state])
    return np.array(result)


def rows_of(values: Array) -> Array:
    return wide(values).reshape(len(values), -1)


# --- the Scalar Engine --------------------------------------------------------------------------


def test_scalar_accumulators_persist_until_they_are_reset() -> None:
    bench = Bench(1, starts=(32,))
    parts = [bench.pattern((10, 2, 4), dtype) for dtype in (F32, BF16, F16, F32)]
    out, first, last = bench.pattern((10, 8)), bench.pattern((10, 1)), bench.pattern((10, 1), BF16)
    program = (
        Activation(dst=out, data=parts[3], function="exp", command="reset_reduce"),
        Activation(dst=out, data=parts[0], function="square", command="reset_reduce"),
        Activation(dst=out, data=parts[1], function="abs", command="reduce"),
        Activation(dst=out, data=parts[3], function="exp"),  # idle leaves the sum alone
        Activation(dst=out, data=parts[3], function="exp", reduced=first),  # and gives it
        Activation(dst=out, data=parts[2], function="copy", command="reduce", reduced=last),
    )
    values = [rows_of(bench.value(part)).astype(np.float64) for part in parts]
    partial = np.square(values[0]).sum(1) + np.abs(values[1]).sum(1)
    total = partial + values[2].sum(1)
    actual = bench.results(program, first, last)
    assert_same(actual[0], partial[:, None].astype(np.float32))
    assert_same(actual[1], rounded(total[:, None], BF16))


def test_a_reset_alone_does_not_reduce() -> None:
    bench = Bench(2, starts=(32,))
    data, out, total = bench.pattern((6, 5)), bench.pattern((6, 5)), bench.pattern((6, 1))
    program = (
        Activation(dst=out, data=data, function="exp", command="reset_reduce"),
        Activation(dst=out, data=data, function="copy", command="reset", reduced=total),
    )
    found, sums = bench.results(program, out, total)
    np.testing.assert_array_equal(found, bench.value(data))
    np.testing.assert_array_equal(sums, 0)


def test_the_sum_may_be_written_over_an_element_of_the_result() -> None:
    bench = Bench(3, starts=(32,))
    data, out = bench.pattern((6, 5)), bench.pattern((6, 5), plain=True)
    column = Pattern(out.tile, F32, (out.dims[0], (1, 1)), out.offset + 2, out.partition)
    program = Activation(
        dst=out, data=data, function="copy", command="reset_reduce", reduced=column
    )
    expected = bench.value(data).copy()
    expected[:, 2] = expected.sum(1)
    assert_same(bench.results(program, out)[0], expected)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0]}, {p[1]}")
@pytest.mark.parametrize("reverse", [False, True])
def test_activate2_applies_two_operators_before_the_function(
    pair: tuple[str, str], reverse: bool
) -> None:
    bench = Bench(4, starts=(32,))
    data, out = bench.pattern((9, 2, 3), BF16), bench.pattern((9, 6), F16)
    column = bench.pattern((9, 1))
    reverses = [reverse and op != "bypass" for op in pair]
    program = Activate2(
        dst=out, data=data, function="tanh", operand0=column, op0=pair[0], operand1=0.25,
        op1=pair[1], reverse0=reverses[0], reverse1=reverses[1],
    )  # fmt: skip
    others = [bench.value(column)[:, 0], np.full(9, 0.25)]
    expected = rows_of(bench.value(data)).astype(np.float64)
    for p, i in np.ndindex(9, 6):
        for op, other, reversed_ in zip(pair, others, reverses, strict=True):
            sides = (float(other[p]), expected[p, i])
            expected[p, i] = OPERATORS[op](*(sides if reversed_ else sides[::-1]))
    bench.check(program, dst=np.tanh(expected).astype(np.float32))


@pytest.mark.parametrize("op", ["add", "maximum", "minimum", "abs_max", "abs_min"])
def test_activate2_reduces_into_the_accumulators_of_activation(op: str) -> None:
    bench = Bench(5, starts=(32,))
    first, second = bench.pattern((7, 6)), bench.pattern((7, 2, 3), BF16)
    out, total = bench.pattern((7, 6)), bench.pattern((7, 1))
    plain: dict[str, Any] = {"op0": "bypass", "op1": "bypass", "function": "copy"}
    program = (
        Activate2(dst=out, data=first, command="reset_reduce", reduce_op=op, **plain),
        Activate2(dst=out, data=second, command="reduce", reduce_op=op, **plain),
        Activation(dst=out, data=second, function="exp", reduced=total),
    )
    rows = np.concatenate([rows_of(bench.value(first)), rows_of(bench.value(second))], 1)
    assert_same(bench.results(program, total)[0], folded(op, rows).astype(np.float32))


@pytest.mark.parametrize("is_column", [False, True])
def test_prelu_scales_what_is_negative_by_its_parameter(is_column: bool) -> None:
    bench = Bench(6, starts=(32,))
    data, out, column = bench.pattern((8, 5)), bench.pattern((8, 5)), bench.pattern((8, 1))
    program = Activate2(
        dst=out, data=data, function="prelu", op0="bypass", op1="bypass",
        relu_param=column if is_column else 0.1,
    )  # fmt: skip
    slope = bench.value(column) if is_column else np.float32(0.1)
    values = bench.value(data)
    bench.check(program, dst=np.where(values > 0, values, values * slope))


def test_the_argument_of_activate2_is_checked_against_the_range_too() -> None:
    bench = Bench(7, starts=(32,))
    data, out = bench.pattern((1, 2), values=np.array([[1.0, 2.0]])), bench.pattern((1, 2))
    program = Activate2(
        dst=out, data=data, function="sin", operand0=2.0, op0="multiply", op1="bypass"
    )
    with pytest.raises(ArgumentOutOfRange, match=r"sin\(4.0\) is outside"):
        bench.run(program, Policy(check_activation_range=True))


# --- the Vector Engine --------------------------------------------------------------------------


def test_vector_accumulators_are_shared_by_all_that_use_them() -> None:
    bench = Bench(8, starts=(32,))
    a, b, c = (bench.pattern((6, 5)) for _ in range(3))
    out, total, start = bench.pattern((6, 5)), bench.pattern((6, 1)), bench.pattern((6, 1))
    program = (
        Exponential(dst=out, data=a, most=1.0, initial=start, command="load_reduce"),
        TensorScalarReduce(
            dst=out, data=b, operand0=2.0, op0="multiply", reduce_op="add", command="reduce"
        ),
        TensorScalarCumulative(
            dst=out, data=c, operand0=0.5, op0="subtract", op1="add", command="reduce"
        ),
        TensorScalarReduce(
            dst=out, data=a, op0="abs", reduce_op="maximum", command="reduce", reduced=total
        ),
    )
    x, y, z = (bench.value(each).astype(np.float64) for each in (a, b, c))
    summed = bench.value(start)[:, 0] + np.exp(x - 1).sum(1) + (2 * y).sum(1) + (z - 0.5).sum(1)
    expected = np.maximum(summed, np.abs(x).max(1))[:, None].astype(np.float32)
    assert_same(bench.results(program, total)[0], expected)


def test_scalar_and_vector_accumulators_are_apart() -> None:
    bench = Bench(9, starts=(32,))
    a, out, total = bench.pattern((6, 5)), bench.pattern((6, 5)), bench.pattern((6, 1))
    program = (
        Activation(dst=out, data=a, function="copy", command="reset_reduce"),
        TensorScalarReduce(dst=out, data=a, op0="square", reduce_op="multiply"),
        Activation(dst=out, data=a, function="exp", reduced=total),
    )
    expected = bench.value(a).astype(np.float64).sum(1, keepdims=True).astype(np.float32)
    assert_same(bench.results(program, total)[0], expected)


def test_an_accumulator_belongs_to_the_partition_of_its_lane() -> None:
    bench = Bench(10)
    tile = Tile("rows", Memory.SBUF, F32, 128, 4)
    low, high = (Pattern(tile, F32, ((1, 32), (1, 4)), partition=Affine.of(p)) for p in (0, 64))
    bench.tiles["rows"], bench.contents["rows"] = tile, bench.fill((128, 4), F32)
    out, total = bench.pattern((32, 4)), bench.pattern((32, 1))
    rest: dict[str, Any] = {"op0": "bypass", "reduce_op": "add"}
    program = (
        TensorScalarReduce(dst=out, data=low, **rest),
        TensorScalarReduce(dst=out, data=high, **rest),
        TensorScalarReduce(dst=out, data=low, command="reduce", reduced=total, **rest),
    )
    expected = 2 * bench.contents["rows"][:32].sum(1, keepdims=True)
    assert_same(bench.results(program, total)[0], expected)


FORGETTING: list[Any] = [
    lambda out, a, c: SelectReduce(dst=out, data=a, predicate=c, on_false=0.0),
    lambda out, a, c: Exponential(dst=out, data=a),
    lambda out, a, c: RangeSelect(
        dst=out, data=a, bound0=_column(out), compare0="less", bound1=_column(out),
        compare1="less", command="idle",
    ),
]  # fmt: skip


def _column(pattern: Pattern) -> Pattern:
    return Pattern(pattern.tile, F32, (pattern.dims[0], (1, 1)), pattern.offset, pattern.partition)


@pytest.mark.parametrize("make", FORGETTING, ids=["select_reduce", "exponential", "range_select"])
def test_an_idle_vector_instruction_leaves_the_accumulators_unknown(make: Any) -> None:
    bench = Bench(11, starts=(32,))
    a, out, total = bench.pattern((6, 5)), bench.pattern((6, 5)), bench.pattern((6, 1))
    predicate = bench.pattern((6, 5), U8)
    program = (
        TensorScalarReduce(dst=out, data=a, op0="bypass", reduce_op="add"),
        make(out, a, predicate),
        TensorScalarReduce(
            dst=out, data=a, op0="bypass", reduce_op="add", command="reduce", reduced=total
        ),
    )
    assert np.isnan(bench.results(program, total)[0]).all()
    with pytest.raises(UninitializedRead, match="the accumulator of 6 lanes of vector"):
        bench.run(program, Policy(check_initialized=True))


def test_reading_accumulators_that_nothing_set_is_found() -> None:
    bench = Bench(12, starts=(32,))
    a, out, total = bench.pattern((6, 5)), bench.pattern((6, 5)), bench.pattern((6, 1))
    program = Activation(dst=out, data=a, function="copy", command="reduce", reduced=total)
    with pytest.raises(UninitializedRead, match="the accumulator of 6 lanes of scalar"):
        bench.run(program, Policy(check_initialized=True))


@pytest.mark.parametrize("pair", list(product(RANGE_COMPARISONS, repeat=2)), ids=" and ".join)
def test_range_select_compares_indices_with_both_bounds(pair: tuple[str, str]) -> None:
    bench = Bench(13, starts=(32,))
    data, out, most = bench.pattern((6, 3, 4), BF16), bench.pattern((6, 12)), bench.pattern((6, 1))
    bounds = [np.arange(-3, 3)[:, None] + 5.0, np.arange(6)[:, None] + 4.0]
    bound0, bound1 = (bench.pattern((6, 1), values=values) for values in bounds)
    program = RangeSelect(
        dst=out, data=data, bound0=bound0, compare0=pair[0], bound1=bound1, compare1=pair[1],
        start=-2, reduced=most,
    )  # fmt: skip
    expected = rows_of(bench.value(data))
    for p, i in np.ndindex(6, 12):
        inside = [OPERATORS[op](i - 2, b[p, 0]) for op, b in zip(pair, bounds, strict=True)]
        expected[p, i] = expected[p, i] if all(inside) else LEAST
    bench.check(program, dst=expected, reduced=expected.max(1, keepdims=True))


def test_range_select_fills_narrow_floats_with_minus_infinity_and_reduces_in_float32() -> None:
    bench = Bench(14, starts=(32,))
    data, out, most = bench.pattern((4, 6)), bench.pattern((4, 6), BF16), bench.pattern((4, 1))
    never = bench.pattern((4, 1), values=np.full((4, 1), -1.0))
    program = RangeSelect(
        dst=out, data=data, bound0=never, compare0="less", bound1=never, compare1="less",
        reduced=most,
    )  # fmt: skip
    found, greatest = bench.results(program, out, most)
    assert (found.astype(np.float32) == -np.inf).all()
    np.testing.assert_array_equal(greatest, np.float32(LEAST))


def test_range_select_goes_on_from_one_tile_to_the_next() -> None:
    bench = Bench(15, starts=(32,))
    parts = [bench.pattern((5, 4)) for _ in range(3)]
    out, most = bench.pattern((5, 4)), bench.pattern((5, 1))
    bound = bench.pattern((5, 1), values=np.array([[3.0], [5.0], [8.0], [0.0], [11.0]]))
    program = tuple(
        RangeSelect(
            dst=out, data=part, bound0=bound, compare0="less_equal", bound1=bound,
            compare1="less_equal", start=4 * number, command="reduce" if number else "reset_reduce",
            reduced=most if number == 2 else None,
        )
        for number, part in enumerate(parts)
    )  # fmt: skip
    rows = np.concatenate([bench.value(part) for part in parts], 1)
    ends = bench.value(bound)[:, 0].astype(int)
    expected = [[max(row[: end + 1])] for row, end in zip(rows.tolist(), ends, strict=True)]
    assert_same(bench.results(program, most)[0], np.array(expected, np.float32))


@pytest.mark.parametrize("predicate_dtype", [S8, U8, S16, U16, PRED], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16, F8E5M2, S16], ids=str)
def test_select_reduce(predicate_dtype: DType, reverse: bool, dtype: DType) -> None:
    bench = Bench(16, starts=(32,))
    data, out = bench.pattern((6, 2, 5), dtype), bench.pattern((6, 10), F16)
    most, column = bench.pattern((6, 1), BF16), bench.pattern((6, 1))
    chosen = bench.random.integers(-1, 2, (6, 10)) * (1 if predicate_dtype in (S8, S16) else -1)
    predicate = bench.pattern((6, 10), predicate_dtype, values=np.abs(chosen))
    program = SelectReduce(
        dst=out, data=data, predicate=predicate, on_false=column, reverse=reverse,
        command="reset_reduce", reduced=most,
    )  # fmt: skip
    takes = (chosen != 0) ^ reverse
    expected = np.where(takes, rows_of(bench.value(data)), bench.value(column))
    bench.check(program, dst=expected, reduced=expected.max(1, keepdims=True))


@pytest.mark.parametrize("dtype", [F32, BF16, S8, U16], ids=str)
@pytest.mark.parametrize("command", ["idle", "reset_reduce", "load_reduce"])
def test_exponential(dtype: DType, command: str) -> None:
    bench = Bench(17, starts=(32,))
    values = bench.random.integers(0, 4, (6, 8))
    data, out = bench.pattern((6, 2, 4), dtype, values=values.reshape(6, 2, 4)), None
    out, most = bench.pattern((6, 8), BF16), bench.pattern((6, 1))
    total = bench.pattern((6, 1)) if command != "idle" else None
    start = bench.pattern((6, 1)) if command == "load_reduce" else None
    program = Exponential(
        dst=out, data=data, most=most, initial=start, command=command, reduced=total
    )
    exponents = values - bench.value(most).astype(np.float64)
    expected = np.vectorize(math.exp)(exponents)
    sums = expected.sum(1, keepdims=True)
    sums = sums + bench.value(start) if start is not None else sums
    reduced = {} if total is None else {"reduced": sums.astype(np.float32)}
    bench.check(program, dst=expected.astype(np.float32), **reduced)


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("load", [False, True])
def test_tensor_scalar_reduce(op: str, negate: bool, load: bool) -> None:
    bench = Bench(18, starts=(32,))
    data, out = bench.pattern((6, 2, 3), BF16), bench.pattern((6, 6), BF16)
    column, total, start = (bench.pattern((6, 1)) for _ in range(3))
    program = TensorScalarReduce(
        dst=out, data=data, operand0=column, op0="subtract", reduce_op=op, reduced=total,
        negate=negate, initial=start if load else None,
        command="load_reduce" if load else "reset_reduce",
    )  # fmt: skip
    mapped = rows_of(bench.value(data)) - bench.value(column)
    held = folded(op, mapped, bench.value(start) if load else None).astype(np.float32)
    bench.check(program, dst=mapped, reduced=-held if negate else held)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("command", ["reset_reduce", "load_reduce", "reduce"])
@pytest.mark.parametrize("dtype", [F32, BF16, S8], ids=str)
def test_tensor_scalar_cumulative(op: str, command: str, dtype: DType) -> None:
    bench = Bench(19, starts=(32,))
    values = bench.random.integers(-3, 4, (6, 2, 4))
    data, out = bench.pattern((6, 2, 4), dtype, values=values), bench.pattern((6, 8), F32)
    column, start = bench.pattern((6, 1)), bench.pattern((6, 1))
    before: tuple[Instr, ...] = (
        TensorScalarReduce(dst=out, data=column_as(start, out), op0="bypass", reduce_op="maximum"),
    )
    program = TensorScalarCumulative(
        dst=out, data=data, operand0=column, op0="add", op1=op, command=command,
        initial=start if command == "load_reduce" else None,
    )  # fmt: skip
    mapped = (values.reshape(6, 8) + bench.value(column)).astype(np.float32)
    begin = None if command == "reset_reduce" else bench.value(start)
    expected = np.concatenate([folded(op, mapped[:, : i + 1], begin) for i in range(8)], 1)
    actual = bench.results((*before, program), out)[0]
    assert_same(actual, expected.astype(np.float32))


def column_as(column: Pattern, like: Pattern) -> Pattern:
    """The column repeated along free dimensions, so that it can be reduced to itself."""
    dims = (column.dims[0], *((0, count) for _, count in like.dims[1:]))
    return Pattern(column.tile, column.dtype, dims, column.offset, column.partition)


def test_a_cumulative_result_goes_on_from_one_tile_to_the_next() -> None:
    bench = Bench(20, starts=(32,))
    parts, outs = [bench.pattern((4, 5)) for _ in "abc"], [bench.pattern((4, 5)) for _ in "abc"]
    program = tuple(
        TensorScalarCumulative(
            dst=out, data=part, operand0=2.0, op0="multiply", op1="add",
            command="reduce" if number else "reset_reduce",
        )
        for number, (part, out) in enumerate(zip(parts, outs, strict=True))
    )  # fmt: skip
    rows = np.concatenate([bench.value(part).astype(np.float64) for part in parts], 1)
    expected = np.cumsum(2 * rows, 1).astype(np.float32)
    assert_same(np.concatenate(bench.results(program, *outs), 1), expected)


SPECIAL = np.array([[math.nan, 1.0, -0.0, 2.0], [math.inf, -math.inf, 1e-42, 3.0],
                    [-1e-45, 1e-45, 0.0, -0.0], [3e38, 3e38, 1.0, -1.0]])  # fmt: skip


def test_special_values_reduce_as_ieee_numbers_do() -> None:
    bench = Bench(21, starts=(32,))
    data = bench.pattern((4, 4), values=SPECIAL)
    out, total, most = bench.pattern((4, 4)), bench.pattern((4, 1)), bench.pattern((4, 1))
    program = (
        TensorScalarReduce(dst=out, data=data, op0="bypass", reduce_op="add", reduced=total),
        TensorScalarReduce(dst=out, data=data, op0="bypass", reduce_op="maximum", reduced=most),
    )
    copied, sums, greatest = bench.results(program, out, total, most)
    np.testing.assert_array_equal(copied.view(np.uint32), SPECIAL.astype("f4").view(np.uint32))
    np.testing.assert_array_equal(sums[:, 0], [math.nan, math.nan, 0.0, math.inf])
    np.testing.assert_array_equal(greatest[:, 0], np.float32([math.nan, math.inf, 1e-45, 3e38]))


def test_exponentials_of_special_values() -> None:
    bench = Bench(22, starts=(32,))
    values = np.array([[math.inf, -math.inf, 200.0, -200.0, -0.0, 1e-45]])
    data, out, total = bench.pattern((1, 6), values=values), bench.pattern((1, 6)), None
    total = bench.pattern((1, 1))
    program = Exponential(dst=out, data=data, command="reset_reduce", reduced=total)
    found, sums = bench.results(program, out, total)
    np.testing.assert_array_equal(found, [[math.inf, 0, math.inf, 0, 1, 1]])
    assert sums[0, 0] == math.inf


def test_a_state_lives_beside_the_memories() -> None:
    bench = Bench(23, starts=(32,))
    data, out, total = bench.pattern((4, 4)), bench.pattern((4, 4)), bench.pattern((4, 1))
    program = (
        Activation(dst=out, data=data, function="copy", command="reset_reduce"),
        Memset(dst=data, value=0.0),
        Memset(dst=out, value=0.0),
        Activation(dst=out, data=data, function="copy", command="idle", reduced=total),
    )
    expected = bench.value(data).sum(1, keepdims=True)
    assert_same(bench.results(program, total)[0], expected)
