"""Machine code for matrix products: both operands packed as float32, then blocks in registers.

C [m, n] = A.T @ B, or C += A.T @ B, with A [k, m] and B [k, n] of any dtype that widens to float32.
A block of C stays in registers over all of k: `ROWS` rows of `VECTORS` vectors, which is what hides
the latency of fused multiply-adds with the registers of the host. The right operand is packed in
columns of one block's width, zeros where it ends; the rows left over run in smaller blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from glia.sim.host.loops import BYTES, counted_loop, pointer, word_at
from glia.sim.host.scalar_code import WORD, Lanes, Value, item_bytes, memory_type

LANES = 8  # float32 values of a vector register
VECTORS = 2
ROWS = 6
WIDTH = LANES * VECTORS  # columns of a block
PADDING = 16  # floats between packed rows, so that they do not share cache sets
FLOAT = ir.FloatType()
FLOAT_BYTES = 4


def scratch_bytes(m: int, n: int, k: int) -> int:
    """Bytes that a product needs beside its operands."""
    left = k * (m + PADDING)
    right = k * -(-n // WIDTH) * WIDTH
    return FLOAT_BYTES * (left + right + ROWS * WIDTH)


@dataclass(frozen=True)
class ProductCode:
    """The code of products of these dtypes, whose operands step by one element or otherwise."""

    left: tuple[str, bool]  # dtype, whether neighbours of a row follow each other
    right: tuple[str, bool]

    @property
    def name(self) -> str:
        """A name of the function, the same in every process."""
        sides = ("_".join((dtype, "rows" if is_unit else "steps"))
                 for dtype, is_unit in (self.left, self.right))  # fmt: skip
        return "product_" + "_".join(sides)

    def write(self, module: Any) -> None:
        """Add the function to a module; NotLowered for dtypes that do not widen."""
        _ProductWriter(self, module).write()


# m, n, k, whether C accumulates, scratch, then A's address and steps along k and m, B's address and
# steps along k and n, and C's address and step along m
WORDS = ("m", "n", "k", "sums", "scratch", "a", "ak", "am", "b", "bk", "bn", "c", "cm")


class _ProductWriter:
    def __init__(self, code: ProductCode, module: Any) -> None:
        self.code, self.module = code, module
        self.function = ir.Function(module, ir.FunctionType(WORD, [BYTES]), code.name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        words = self.function.args[0]
        self.words = {name: word_at(self.builder, words, i) for i, name in enumerate(WORDS)}

    def write(self) -> None:
        builder, words = self.builder, self.words
        pitch = builder.add(words["m"], WORD(PADDING))
        left = words["scratch"]
        right = builder.add(left, self._floats(builder.mul(words["k"], pitch)))
        blocks = builder.sdiv(builder.add(words["n"], WORD(WIDTH - 1)), WORD(WIDTH))
        packed = self._floats(builder.mul(builder.mul(words["k"], blocks), WORD(WIDTH)))
        edge = builder.add(right, packed)
        self._pack_left(left, pitch)
        self._pack_right(right)
        column_bytes = self._floats(builder.mul(words["k"], WORD(WIDTH)))

        def block_of_columns(j: Value) -> None:
            columns = builder.add(right, builder.mul(j, column_bytes))
            start = builder.mul(j, WORD(WIDTH))
            self._rows(left, pitch, columns, start, edge)

        counted_loop(builder, WORD(0), blocks, 1, block_of_columns)
        builder.ret(WORD(0))

    def _floats(self, count: Value) -> Value:
        return self.builder.mul(count, WORD(FLOAT_BYTES))

    def _pack_left(self, target: Value, pitch: Value) -> None:
        words, builder = self.words, self.builder

        def row(k: Value) -> None:
            source = builder.add(words["a"], builder.mul(k, words["ak"]))
            row_at = builder.add(target, self._floats(builder.mul(k, pitch)))
            self._widen(self.code.left, source, words["am"], words["m"], row_at)

        counted_loop(builder, WORD(0), words["k"], 1, row)

    def _pack_right(self, target: Value) -> None:
        words, builder = self.words, self.builder
        blocks = builder.sdiv(builder.add(words["n"], WORD(WIDTH - 1)), WORD(WIDTH))

        def block(j: Value) -> None:
            start = builder.mul(j, WORD(WIDTH))
            left = builder.sub(words["n"], start)
            is_whole = builder.icmp_signed(">=", left, WORD(WIDTH))
            width = builder.select(is_whole, WORD(WIDTH), left)
            base = builder.add(words["b"], builder.mul(start, words["bn"]))

            def row(k: Value) -> None:
                source = builder.add(base, builder.mul(k, words["bk"]))
                number = builder.add(builder.mul(j, words["k"]), k)
                place = builder.add(target, self._floats(builder.mul(number, WORD(WIDTH))))
                with builder.if_then(builder.not_(is_whole)):
                    zeros = ir.VectorType(FLOAT, WIDTH)([FLOAT(0.0)] * WIDTH)
                    builder.store(zeros, pointer(builder, place), align=4)
                self._widen(self.code.right, source, words["bn"], width, place)

            counted_loop(builder, WORD(0), words["k"], 1, row)

        counted_loop(builder, WORD(0), blocks, 1, block)

    def _widen(
        self, side: tuple[str, bool], source: Value, step: Value, count: Value, target: Value
    ) -> None:
        """Write `count` elements in float32 from a target address on."""
        builder, (dtype, is_unit) = self.builder, side
        whole = builder.and_(count, WORD(-WIDTH)) if is_unit else WORD(0)

        def convert(lanes: int, i: Value) -> None:
            stride = WORD(item_bytes(dtype)) if is_unit else step
            place = pointer(builder, builder.add(source, builder.mul(i, stride)))
            writer = Lanes(builder, lanes)
            value = builder.load(place, typ=writer.of(memory_type(dtype)), align=1)
            wide = writer.cast(dtype, "float32", value)
            to = builder.add(target, self._floats(i))
            builder.store(wide, pointer(builder, to), align=4)

        counted_loop(builder, WORD(0), whole, WIDTH, lambda i: convert(WIDTH, i))
        counted_loop(builder, whole, count, 1, lambda i: convert(1, i))

    def _rows(self, left: Value, pitch: Value, columns: Value, start: Value, edge: Value) -> None:
        """All rows of one block of columns; narrower than a block, by way of a block of scratch."""
        words, builder = self.words, self.builder
        rest = builder.sub(words["n"], start)
        is_whole = builder.icmp_signed(">=", rest, WORD(WIDTH))
        count = words["m"]
        whole = builder.mul(builder.sdiv(count, WORD(ROWS)), WORD(ROWS))

        def block(rows: int, i: Value) -> None:
            at = builder.add(words["c"], builder.mul(i, words["cm"]))
            at = builder.add(at, self._floats(start))
            values = builder.add(left, self._floats(i))
            given = (values, self._floats(pitch), columns, words["k"], words["sums"])
            micro = self._micro_kernel(rows)
            with builder.if_else(is_whole) as (inside, otherwise):
                with inside:
                    builder.call(micro, [*given, at, words["cm"]])
                with otherwise:
                    self._copy(rows, rest, at, words["cm"], edge, WORD(FLOAT_BYTES * WIDTH))
                    builder.call(micro, [*given, edge, WORD(FLOAT_BYTES * WIDTH)])
                    self._copy(rows, rest, edge, WORD(FLOAT_BYTES * WIDTH), at, words["cm"])

        counted_loop(builder, WORD(0), whole, ROWS, lambda i: block(ROWS, i))
        remaining = builder.sub(count, whole)
        for rows in range(1, ROWS):
            with builder.if_then(builder.icmp_signed("==", remaining, WORD(rows))):
                block(rows, whole)

    def _copy(
        self, rows: int, columns: Value, source: Value, ss: Value, target: Value, ts: Value
    ) -> None:
        builder = self.builder

        def element(i: Value, j: Value) -> None:
            places = [
                builder.add(builder.add(base, builder.mul(i, step)), self._floats(j))
                for base, step in ((source, ss), (target, ts))
            ]
            value = builder.load(pointer(builder, places[0]), typ=FLOAT, align=4)
            builder.store(value, pointer(builder, places[1]), align=4)

        def row(i: Value) -> None:
            counted_loop(builder, WORD(0), columns, 1, lambda j: element(i, j))

        counted_loop(builder, WORD(0), WORD(rows), 1, row)

    def _micro_kernel(self, rows: int) -> Any:
        name = f"block_{rows}"
        found = self.module.globals.get(name)
        return found or _write_block(self.module, name, rows)


def _write_block(module: Any, name: str, rows: int) -> Any:
    """A block of `rows` rows: sums over k of packed rows and columns, from 0 or from what C has."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [WORD] * 7), name)
    function.linkage = "internal"
    left, pitch, right, depth, sums, c, c_step = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    vector = ir.VectorType(FLOAT, LANES)
    sums_at = [[builder.alloca(vector) for _ in range(VECTORS)] for _ in range(rows)]
    zero = vector([FLOAT(0.0)] * LANES)

    def place(row: int, number: int) -> Value:
        at = builder.add(c, builder.mul(c_step, WORD(row)))
        return pointer(builder, builder.add(at, WORD(FLOAT_BYTES * LANES * number)))

    with builder.if_else(builder.icmp_signed("!=", sums, WORD(0))) as (goes_on, begins):
        for block, is_loaded in ((goes_on, True), (begins, False)):
            with block:
                for row, number in _pairs(rows):
                    start = zero
                    if is_loaded:
                        start = builder.load(place(row, number), typ=vector, align=4)
                    builder.store(start, sums_at[row][number])

    def step(k: Value) -> None:
        at = builder.add(right, builder.mul(k, WORD(FLOAT_BYTES * WIDTH)))
        columns = [
            builder.load(
                pointer(builder, builder.add(at, WORD(FLOAT_BYTES * LANES * n))),
                typ=vector,
                align=4,
            )
            for n in range(VECTORS)
        ]
        row_at = builder.add(left, builder.mul(k, pitch))
        lanes = Lanes(builder, LANES)
        for row in range(rows):
            place = pointer(builder, builder.add(row_at, WORD(FLOAT_BYTES * row)))
            value = lanes.splat(builder.load(place, typ=FLOAT, align=4))
            _multiply_row(lanes, value, columns, sums_at[row])

    counted_loop(builder, WORD(0), depth, 1, step)
    for row, number in _pairs(rows):
        builder.store(builder.load(sums_at[row][number], typ=vector), place(row, number), align=4)
    builder.ret_void()
    return function


def _multiply_row(
    lanes: Lanes, value: Value, columns: Sequence[Value], sums_at: Sequence[Value]
) -> None:
    builder = lanes.builder
    for column, at in zip(columns, sums_at, strict=True):
        before = builder.load(at, typ=column.type)
        builder.store(lanes.call("llvm.fma", value, column, before), at)


def _pairs(rows: int) -> list[tuple[int, int]]:
    return [(row, number) for row in range(rows) for number in range(VECTORS)]
