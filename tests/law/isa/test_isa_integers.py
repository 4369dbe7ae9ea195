"""Operators on integers agree with Python's unbounded ones at every end and edge."""

from __future__ import annotations

import numpy as np
import pytest

from glia.base.dtype import S8, S16, S32, U8, U16, U32, DType
from glia.isa.instructions.vector import TensorScalar, TensorTensor
from support.isa_bench import Bench

INTEGERS = (S8, U8, S16, U16, S32, U32)


def ends(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def edges(dtype: DType) -> list[int]:
    """Numbers near the ends, near 0, and multiples of each other."""
    low, high = ends(dtype)
    near = [low, low + 1, low // 2, -12, -7, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 7, 12, high // 2]
    return sorted({v for v in (*near, high - 1, high) if low <= v <= high})


def wrapped(value: int, dtype: DType) -> int:
    low, high = ends(dtype)
    return (value - low) % (high - low + 1) + low


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


DIVISIONS = {
    "divide": lambda a, b: towards_zero(a, b) if b else -1,
    "mod": lambda a, b: a % b if b else a,
    "fmod": lambda a, b: a - towards_zero(a, b) * b if b else a,
}


@pytest.mark.parametrize("op", DIVISIONS)
@pytest.mark.parametrize("dtype", [S32, U32], ids=str)
def test_words_are_divided_exactly_on_gpsimd(op: str, dtype: DType) -> None:
    bench = Bench(1)
    pairs = [(a, b) for a in edges(dtype) for b in edges(dtype)]
    left, right = (
        bench.pattern((1, len(pairs)), dtype, values=np.array([side]))
        for side in zip(*pairs, strict=True)
    )
    out = bench.pattern((1, len(pairs)), dtype)
    instr = TensorTensor(dst=out, data1=left, data2=right, op=op, on="gpsimd")
    expected = [wrapped(DIVISIONS[op](a, b), dtype) for a, b in pairs]
    assert bench.results(instr, out)[0].tolist() == [expected]


def shifted(op: str, value: int, count: int, dtype: DType) -> int:
    """Bits that leave the width are lost; a count counts as unsigned."""
    count %= 1 << dtype.bits
    if op == "left_shift":
        return wrapped(value << min(count, 64), dtype)
    if op == "right_shift":
        return wrapped((value % (1 << dtype.bits)) >> min(count, 64), dtype)
    signed = wrapped(value, {8: S8, 16: S16, 32: S32}[dtype.bits])
    return wrapped(signed >> min(count, 64), dtype)


@pytest.mark.parametrize("op", ["left_shift", "right_shift", "arithmetic_right_shift"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_any_count(op: str, dtype: DType) -> None:
    bench = Bench(2)
    _, high = ends(dtype)
    counts = (0, 1, dtype.bits - 1, dtype.bits, dtype.bits + 1, high)
    pairs = [(value, count) for value in edges(dtype) for count in counts]
    values, given = (np.array([side]) for side in zip(*pairs, strict=True))
    data, by = (bench.pattern(values.shape, dtype, values=each) for each in (values, given))
    out = bench.pattern(values.shape, dtype)
    expected = [shifted(op, value, count, dtype) for value, count in pairs]
    instr = TensorTensor(dst=out, data1=data, data2=by, op=op)
    assert bench.results(instr, out)[0].tolist() == [expected]
    for count in counts:
        instr = TensorScalar(dst=out, data=data, operand0=count, op0=op)
        expected = [shifted(op, int(value), count, dtype) for value in values[0]]
        assert bench.results(instr, out)[0].tolist() == [expected]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_shift_of_an_immediate_by_elements(dtype: DType) -> None:
    bench = Bench(3)
    counts = np.array([[0, 1, 3, dtype.bits - 1, dtype.bits]])
    data, out = bench.pattern((1, 5), dtype, values=counts), bench.pattern((1, 5), dtype)
    instr = TensorScalar(dst=out, data=data, operand0=11, op0="left_shift", reverse0=True)
    expected = [shifted("left_shift", 11, int(count), dtype) for count in counts[0]]
    assert bench.results(instr, out)[0].tolist() == [expected]
