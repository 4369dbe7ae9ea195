"""Registers: loaded, stored, computed with, and as places that copies read and write."""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import F32, S8, S16, S32, U8, U16, U32, DType
from glia.isa.instructions.sync import (
    REGISTER_OPS,
    RegisterAlu,
    RegisterLoad,
    RegisterMove,
    RegisterStore,
)
from glia.isa.instructions.vector import TensorCopy
from support.isa_bench import Bench, put

N = Affine.of("$n")
OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "minimum": min,
    "maximum": max, "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt,
    "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_,
}  # fmt: skip
EDGES = (-(2**31), -(2**31) + 1, -3, -1, 0, 1, 2, 5, 2**16, 2**31 - 1)


def test_every_operator_of_registers_has_an_oracle() -> None:
    assert set(OPERATORS) == set(REGISTER_OPS)


@pytest.mark.parametrize("op", OPERATORS)
def test_registers_hold_32_bits(op: str) -> None:
    for a, b in itertools.product(EDGES, EDGES):
        exact = int(OPERATORS[op](a, b))
        wrapped = (exact + 2**31) % 2**32 - 2**31
        assert RegisterAlu.compute("n", op, a, b) == wrapped, (a, b)


@pytest.mark.parametrize("memory", ["SBUF", "HBM"])
@pytest.mark.parametrize("dtype", [S32, U32, S16, U16, S8, U8], ids=str)
def test_register_store_writes_the_low_bits(memory: str, dtype: DType) -> None:
    bench = Bench(1)
    cell = bench.pattern((1, 1), dtype, memory=memory)
    program = (
        RegisterMove(register="n", value=-0x12345678),
        RegisterStore(dst=cell, value=N),
    )
    low = -0x12345678 & ((1 << dtype.bits) - 1)
    expected = np.array([[low]], f"u{dtype.bytes}").view(dtype.numpy)
    np.testing.assert_array_equal(bench.results(program, cell)[0], expected)


@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_a_register_keeps_what_was_loaded(value: int) -> None:
    bench = Bench(2)
    source, target = bench.pattern((1, 1), S32), bench.pattern((1, 1), S32)
    put(bench.contents[source.tile.name], source, np.array([[value]], np.int32))
    program = (
        RegisterLoad(src=source, register="n", on="vector"),
        RegisterStore(dst=target, value=N, on="vector"),
    )
    np.testing.assert_array_equal(bench.results(program, target)[0], [[value]])


@pytest.mark.parametrize("dtype,value", [(U8, 255), (S8, -1), (U16, 65535), (S16, -32768),
                                         (U32, 7)], ids=str)  # fmt: skip
def test_a_narrower_integer_is_loaded_with_its_sign(dtype: DType, value: int) -> None:
    bench = Bench(4)
    source, target = bench.pattern((1, 1), dtype), bench.pattern((1, 1), S32)
    put(bench.contents[source.tile.name], source, np.array([[value]], dtype.numpy))
    program = (RegisterLoad(src=source, register="n"), RegisterStore(dst=target, value=N))
    np.testing.assert_array_equal(bench.results(program, target)[0], [[value]])


def test_register_store_takes_an_expression_of_registers() -> None:
    bench = Bench(3)
    target = bench.pattern((1, 1), S32)
    program = (
        RegisterMove(register="n", value=5),
        RegisterMove(register="m", value=N * 2 + 1),
        RegisterAlu(register="k", op="multiply", a=N, b=Affine.of("$m")),
        RegisterStore(dst=target, value=Affine.of("$k") * 3 - N),
    )
    np.testing.assert_array_equal(bench.results(program, target)[0], [[3 * 55 - 5]])


@pytest.mark.parametrize("on", ["vector", "gpsimd", "scalar"])
@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_copy_reads_from_where_a_register_says(on: str, place: int) -> None:
    bench = Bench(4)
    table, out = bench.pattern((6, 12), plain=True), bench.pattern((6, 4))
    chosen = replace(table, dims=(table.dims[0], (1, 4)), offset=N)
    program = (
        RegisterMove(register="n", value=place, on=on),
        TensorCopy(dst=out, src=chosen, on=on),
    )
    expected = bench.value(table)[:, place : place + 4]
    np.testing.assert_array_equal(bench.results(program, out)[0], expected)


@pytest.mark.parametrize("place", [0, 5])
def test_a_copy_writes_to_where_a_register_says(place: int) -> None:
    bench = Bench(5)
    table, data = bench.pattern((6, 12), plain=True), bench.pattern((6, 3))
    index = bench.pattern((1, 1), S32, values=np.array([[place]]))
    chosen = replace(table, dims=(table.dims[0], (2, 3)), offset=N)
    program = (
        RegisterLoad(src=index, register="n", on="vector"),
        TensorCopy(dst=chosen, src=data, on="vector"),
    )
    expected = bench.value(table).copy()
    expected[:, place : place + 6 : 2] = bench.value(data)
    np.testing.assert_array_equal(bench.results(program, table)[0], expected)
    assert table.dtype is F32
