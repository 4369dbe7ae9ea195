"""Machine code for matrix products: operands packed as float32, then blocks in registers.

C [m, n] = A.T @ B, or C += A.T @ B, with A [k, m] and B [k, n] of any dtype that widens to float32.
Two bfloat16 operands are packed as they are where the host multiplies pairs of them, neighbours in
k beside each other: half the multiplications, sums in float32 (numbers below 2**-126 count as 0).
A block of C stays in registers over all of k: rows times vectors of columns, as many as the host
has registers for, which is what hides the latency of fused multiply-adds. Columns of one block's
width are packed just before they are used, so that they are in the first cache, zeros where the
operand ends. Rows are shared evenly: of 13 rows, where a block has 12, there are 7 and 6.
A part of a call is some blocks of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import binding, ir

from glia.sim.host.loops import PART, counted_loop, pointer, prefetch, word_at
from glia.sim.host.scalar_code import WORD, Lanes, Value, item_bytes, memory_type

PADDING = 16  # floats between packed rows, so that they do not share cache sets
ROWS_AHEAD = 4  # of the left operand, when the next rows are asked for
LINE_BYTES = 64
FLOAT = ir.FloatType()
FLOAT_BYTES = 4  # also of a pair of bfloat16
HALF, PAIR = ir.IntType(16), ir.IntType(32)
DOT = "llvm.x86.avx512bf16.dpbf16ps.512"
DOT_LANES = 16


@dataclass(frozen=True)
class BlockShape:
    """A block of C in registers: rows, and vectors of so many columns in each."""

    lanes: int
    vectors: int
    rows: int

    @property
    def width(self) -> int:
        """Columns of a block."""
        return self.lanes * self.vectors


def block_shape(features: Mapping[str, bool]) -> BlockShape:
    """The block for a processor's features: all registers but those that operands pass through."""
    if features.get("avx512f"):
        return BlockShape(16, 2, 12)  # 24 of 32 registers
    if features.get("avx"):
        return BlockShape(8, 2, 6)  # 12 of 16
    return BlockShape(4, 3, 8) if features.get("neon") else BlockShape(4, 2, 6)


def is_turned(m: int, n: int) -> bool:
    """Whether the product of the operands in the other order is less work: of few columns."""
    width = host_block().width
    return 2 * n * -(-m // width) < m * -(-n // width)


@cache
def host_has_pairs() -> bool:
    """Whether this processor multiplies pairs of bfloat16 and adds both to a float32."""
    return bool(binding.get_host_cpu_features().get("avx512bf16"))


@cache
def host_block() -> BlockShape:
    """The block for this processor."""
    return block_shape(binding.get_host_cpu_features())


def scratch_bytes(m: int, k: int) -> int:
    """Bytes that a thread needs beside a product's operands, in whole cache lines."""
    block = host_block()
    floats = k * (m + PADDING) + k * block.width + block.rows * block.width
    return -(-FLOAT_BYTES * floats // 64) * 64


@dataclass(frozen=True)
class ProductCode:
    """The code of products of these dtypes, whose operands step by one element or otherwise."""

    left: tuple[str, bool]  # dtype, whether neighbours of a row follow each other
    right: tuple[str, bool]

    @property
    def is_paired(self) -> bool:
        """Whether pairs of bfloat16 are multiplied."""
        is_narrow = self.left[0] == self.right[0] == "bfloat16"
        return is_narrow and host_has_pairs() and host_block().lanes == DOT_LANES

    @property
    def name(self) -> str:
        """A name of the function, the same in every process."""
        sides = ("_".join((dtype, "rows" if is_unit else "steps"))
                 for dtype, is_unit in (self.left, self.right))  # fmt: skip
        return ("pairs_" if self.is_paired else "product_") + "_".join(sides)

    def write(self, module: Any) -> None:
        """Add the function to a module; NotLowered for dtypes that do not widen."""
        _ProductWriter(self, module).write()


# m, n, k, whether C accumulates, scratch and its bytes for each thread, then A's address and steps
# along k and m, B's address and steps along k and n, and C's address and steps along m and n
WORDS = ("m", "n", "k", "sums", "scratch", "own", "a", "ak", "am", "b", "bk", "bn", "c", "cm", "cn")


class _ProductWriter:
    def __init__(self, code: ProductCode, module: Any) -> None:
        self.code, self.module, self.block = code, module, host_block()
        self.function = ir.Function(module, PART, code.name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        words, self.first, self.end, self.lane = self.function.args
        self.words = {name: word_at(self.builder, words, i) for i, name in enumerate(WORDS)}
        self.depth = self.words["k"]  # packed rows
        if code.is_paired:
            more = self.builder.add(self.depth, WORD(1))
            self.depth = self.builder.ashr(more, WORD(1))

    def write(self) -> None:
        builder, words, width = self.builder, self.words, self.block.width
        pitch = builder.add(words["m"], WORD(PADDING))
        left = builder.add(words["scratch"], builder.mul(words["own"], self.lane))
        right = builder.add(left, self._floats(builder.mul(self.depth, pitch)))
        edge = builder.add(right, self._floats(builder.mul(self.depth, WORD(width))))
        self._pack_left(left, pitch)

        def block_of_columns(number: Value) -> None:
            start = builder.mul(number, WORD(width))
            rest = builder.sub(words["n"], start)
            is_whole = builder.icmp_signed(">=", rest, WORD(width))
            columns = builder.select(is_whole, WORD(width), rest)
            self._pack_right(right, start, columns, is_whole)
            self._rows(_Columns(right, start, columns, is_whole), left, pitch, edge)

        counted_loop(builder, self.first, self.end, 1, block_of_columns)
        builder.ret(WORD(0))

    def _floats(self, count: Value) -> Value:
        return self.builder.mul(count, WORD(FLOAT_BYTES))

    def _pack_left(self, target: Value, pitch: Value) -> None:
        words, builder = self.words, self.builder

        def row(k: Value) -> None:
            source = self._row(words["a"], words["ak"], k)
            row_at = builder.add(target, self._floats(builder.mul(k, pitch)))
            ahead = builder.mul(words["ak"], WORD(ROWS_AHEAD))
            self._pack(self.code.left, source, words["am"], words["m"], row_at, ahead)

        counted_loop(builder, WORD(0), self.depth, 1, row)

    def _pack_right(self, target: Value, start: Value, columns: Value, is_whole: Value) -> None:
        """A block of columns from `start` on, beside each other for each k."""
        words, builder, width = self.words, self.builder, self.block.width
        base = builder.add(words["b"], builder.mul(start, words["bn"]))

        def row(k: Value, count: Value) -> None:
            source = self._row(base, words["bk"], k)
            place = builder.add(target, self._floats(builder.mul(k, WORD(width))))
            self._pack(self.code.right, source, words["bn"], count, place)

        def cut_row(k: Value) -> None:
            place = builder.add(target, self._floats(builder.mul(k, WORD(width))))
            zeros = ir.VectorType(FLOAT, width)([FLOAT(0.0)] * width)
            builder.store(zeros, pointer(builder, place), align=4)
            row(k, columns)

        with builder.if_else(is_whole) as (inside, otherwise):
            with inside:
                counted_loop(builder, WORD(0), self.depth, 1, lambda k: row(k, WORD(width)))
            with otherwise:
                counted_loop(builder, WORD(0), self.depth, 1, cut_row)

    def _row(self, base: Value, step: Value, number: Value) -> _Row:
        """What a packed row is made of: a row of the operand, or two of which it holds pairs."""
        builder = self.builder
        if not self.code.is_paired:
            return _Row(builder.add(base, builder.mul(number, step)))
        first = builder.shl(number, WORD(1))
        address = builder.add(base, builder.mul(first, step))
        is_last = builder.icmp_signed(">=", builder.add(first, WORD(1)), self.words["k"])
        other = builder.select(is_last, address, builder.add(address, step))
        return _Row(address, other, builder.select(is_last, HALF(0), HALF(-1)))

    def _pack(
        self,
        side: tuple[str, bool],
        row: _Row,
        step: Value,
        count: Value,
        target: Value,
        ahead: Value | None = None,
    ) -> None:
        """Write `count` elements in float32, or pairs, from a target address on.

        What lies `ahead` bytes on is asked for meanwhile.
        """
        builder, (dtype, is_unit), width = self.builder, side, self.block.lanes
        whole = builder.and_(count, WORD(-width)) if is_unit else WORD(0)

        def convert(lanes: int, i: Value) -> None:
            stride = WORD(item_bytes(dtype)) if is_unit else step
            at = builder.mul(i, stride)
            address = builder.add(row.address, at)
            if ahead is not None:
                prefetch(builder, builder.add(address, ahead))
            writer = Lanes(builder, lanes)
            kind = writer.of(memory_type(dtype))
            value = builder.load(pointer(builder, address), typ=kind, align=1)
            to = pointer(builder, builder.add(target, self._floats(i)))
            if row.other is None:
                builder.store(writer.cast(dtype, "float32", value), to, align=4)
                return
            address = builder.add(row.other, at)
            after = builder.load(pointer(builder, address), typ=kind, align=1)
            builder.store(
                _pairs(writer, value, builder.and_(after, writer.splat(row.mask))), to, align=4
            )

        counted_loop(builder, WORD(0), whole, width, lambda i: convert(width, i))
        counted_loop(builder, whole, count, 1, lambda i: convert(1, i))

    def _rows(self, columns: _Columns, left: Value, pitch: Value, edge: Value) -> None:
        """All rows of one block of columns; by way of scratch where C ends or its columns gape."""
        words, builder, most = self.words, self.builder, self.block.rows
        blocks = builder.sdiv(builder.add(words["m"], WORD(most - 1)), WORD(most))
        fewer = builder.sdiv(words["m"], blocks)
        longer = builder.sub(words["m"], builder.mul(fewer, blocks))
        edge_step = WORD(FLOAT_BYTES * self.block.width)

        is_near = builder.icmp_signed("==", words["cn"], WORD(FLOAT_BYTES))
        is_direct = builder.and_(columns.is_whole, is_near)

        def block(rows: Value, i: Value) -> None:
            at = builder.add(words["c"], builder.mul(i, words["cm"]))
            at = builder.add(at, builder.mul(columns.start, words["cn"]))
            values = builder.add(left, self._floats(i))
            given = (values, self._floats(pitch), columns.packed, self.depth, words["sums"])
            inside_c = _Place(at, words["cm"], words["cn"])
            beside = _Place(edge, edge_step, WORD(FLOAT_BYTES))
            with builder.if_else(is_direct) as (inside, otherwise):
                with inside:
                    self._call(rows, [*given, at, words["cm"]])
                with otherwise:
                    with builder.if_then(builder.icmp_signed("!=", words["sums"], WORD(0))):
                        self._copy(rows, columns.count, inside_c, beside)
                    self._call(rows, [*given, edge, edge_step])
                    self._copy(rows, columns.count, beside, inside_c)

        def evenly(number: Value) -> None:
            is_longer = builder.icmp_signed("<", number, longer)
            before = builder.select(is_longer, number, longer)
            rows = builder.add(fewer, builder.zext(is_longer, WORD))
            if self.code.right[1]:
                self._prefetch_columns(columns, number, blocks)
            block(rows, builder.add(builder.mul(number, fewer), before))

        counted_loop(builder, WORD(0), blocks, 1, evenly)

    def _prefetch_columns(self, columns: _Columns, number: Value, blocks: Value) -> None:
        """Ask for this block of rows' share of the next block of columns."""
        words, builder, width = self.words, self.builder, self.block.width
        bytes_each = item_bytes(self.code.right[0])
        after = builder.mul(builder.add(columns.start, WORD(width)), WORD(bytes_each))
        base = builder.add(words["b"], after)
        share = builder.add(builder.sdiv(words["k"], blocks), WORD(1))
        first = builder.mul(number, share)

        def row(k: Value) -> None:
            address = builder.add(base, builder.mul(k, words["bk"]))
            for line in range(0, width * bytes_each, LINE_BYTES):
                prefetch(builder, builder.add(address, WORD(line)))

        counted_loop(builder, first, builder.add(first, share), 1, row)

    def _call(self, rows: Value, given: Sequence[Value]) -> None:
        """The block of so many rows."""
        builder = self.builder
        after = builder.append_basic_block("called")
        choice = builder.switch(rows, after)
        for count in range(1, self.block.rows + 1):
            case = builder.append_basic_block(f"rows_{count}")
            choice.add_case(WORD(count), case)
            builder.position_at_end(case)
            builder.call(self._micro_kernel(count), given)
            builder.branch(after)
        builder.position_at_end(after)

    def _copy(self, rows: Value, columns: Value, source: _Place, target: _Place) -> None:
        builder = self.builder

        def element(i: Value, j: Value) -> None:
            places = []
            for each in (source, target):
                at = builder.add(each.address, builder.mul(i, each.row_step))
                places.append(builder.add(at, builder.mul(j, each.column_step)))
            value = builder.load(pointer(builder, places[0]), typ=FLOAT, align=4)
            builder.store(value, pointer(builder, places[1]), align=4)

        def row(i: Value) -> None:
            counted_loop(builder, WORD(0), columns, 1, lambda j: element(i, j))

        counted_loop(builder, WORD(0), rows, 1, row)

    def _micro_kernel(self, rows: int) -> Any:
        name = f"block_{rows}"
        found = self.module.globals.get(name)
        multiply = _multiply_pairs if self.code.is_paired else _multiply_row
        return found or _write_block(self.module, name, self.block, rows, multiply)


@dataclass(frozen=True)
class _Place:
    """Where a block of float32 begins, and its steps in bytes."""

    address: Value
    row_step: Value
    column_step: Value


@dataclass(frozen=True)
class _Row:
    """Where a row of an operand begins, and the next one, masked where there is none, for pairs."""

    address: Value
    other: Value | None = None
    mask: Value | None = None


def _pairs(lanes: Lanes, low: Value, high: Value) -> Value:
    """Halves of 16 bits beside each other, as words."""
    builder, word = lanes.builder, lanes.of(PAIR)
    shifted = builder.shl(builder.zext(high, word), lanes.i32(16))
    return builder.or_(builder.zext(low, word), shifted)


@dataclass(frozen=True)
class _Columns:
    """A block of columns: where they are packed, where they begin in C, how many."""

    packed: Value
    start: Value
    count: Value
    is_whole: Value


Multiply = Callable[[Lanes, Value, Sequence[Value], Sequence[Value]], None]


def _write_block(module: Any, name: str, block: BlockShape, rows: int, multiply: Multiply) -> Any:
    """A block of `rows` rows: sums over k of packed rows and columns, added to what C has or not.

    C is asked for first, so that it has come when the sums are made.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [WORD] * 7), name)
    function.linkage = "internal"
    left, pitch, right, depth, sums, c, c_step = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    vector = ir.VectorType(FLOAT, block.lanes)
    sums_at = [[builder.alloca(vector) for _ in range(block.vectors)] for _ in range(rows)]
    pairs = [(row, number) for row in range(rows) for number in range(block.vectors)]
    zero = vector([FLOAT(0.0)] * block.lanes)

    def place(row: int, number: int) -> Value:
        at = builder.add(c, builder.mul(c_step, WORD(row)))
        return pointer(builder, builder.add(at, WORD(FLOAT_BYTES * block.lanes * number)))

    for row, number in pairs:
        builder.store(zero, sums_at[row][number])
        at = builder.add(builder.mul(c_step, WORD(row)), WORD(FLOAT_BYTES * block.lanes * number))
        prefetch(builder, builder.add(c, at), is_written=True)

    def step(k: Value) -> None:
        at = builder.add(right, builder.mul(k, WORD(FLOAT_BYTES * block.width)))
        columns = [
            builder.load(
                pointer(builder, builder.add(at, WORD(FLOAT_BYTES * block.lanes * n))),
                typ=vector,
                align=4,
            )
            for n in range(block.vectors)
        ]
        row_at = builder.add(left, builder.mul(k, pitch))
        lanes = Lanes(builder, block.lanes)
        for row in range(rows):
            place = pointer(builder, builder.add(row_at, WORD(FLOAT_BYTES * row)))
            value = lanes.splat(builder.load(place, typ=FLOAT, align=4))
            multiply(lanes, value, columns, sums_at[row])

    counted_loop(builder, WORD(0), depth, 1, step)
    with builder.if_then(builder.icmp_signed("!=", sums, WORD(0))):
        for row, number in pairs:
            before = builder.load(place(row, number), typ=vector, align=4)
            total = builder.fadd(before, builder.load(sums_at[row][number], typ=vector))
            builder.store(total, sums_at[row][number])
    for row, number in pairs:
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


class _Bfloat(ir.Type):  # type: ignore[misc]
    """LLVM's type, of which llvmlite has no name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


def _multiply_pairs(
    lanes: Lanes, value: Value, columns: Sequence[Value], sums_at: Sequence[Value]
) -> None:
    """As `_multiply_row`, of words that hold pairs: both products are added to the sum."""
    builder, halves = lanes.builder, ir.VectorType(_Bfloat(), 2 * DOT_LANES)
    sums = lanes.of(FLOAT)
    dot = builder.module.globals.get(DOT) or ir.Function(
        builder.module, ir.FunctionType(sums, [sums, halves, halves]), DOT
    )
    left = builder.bitcast(value, halves)
    for column, at in zip(columns, sums_at, strict=True):
        before = builder.load(at, typ=sums)
        builder.store(builder.call(dot, [before, left, builder.bitcast(column, halves)]), at)
