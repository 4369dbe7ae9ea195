"""Machine code for matrix products: operands packed as float32, then blocks in registers.

C [m, n] = A.T @ B, or C += A.T @ B, with A [k, m] and B [k, n] of any dtype that widens to float32.
Two bfloat16 operands are packed as they are where the host multiplies pairs of them, neighbours in
k beside each other: half the multiplications, sums in float32 (numbers below 2**-126 count as 0).
A block of C stays in registers over all of k: rows times vectors of columns, as many as the host
has registers for, which is what hides the latency of fused multiply-adds. Columns of one block's
width are packed just before they are used, so that they are in the first cache, zeros where the
operand ends. A part of a call is some blocks of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from glia.sim.host.loops import PART, counted_loop, pointer, prefetch, word_at
from glia.sim.host.packing import (
    DOT_LANES,
    FLOAT_BYTES,
    LINE_BYTES,
    BlockShape,
    MatrixPlace,
    Packer,
    Side,
    are_paired,
    host_block,
    left_words,
)
from glia.sim.host.scalar_code import WORD, Lanes, Value, item_bytes

FLOAT = ir.FloatType()
DOT = "llvm.x86.avx512bf16.dpbf16ps.512"


def is_turned(m: int, n: int) -> bool:
    """Whether the product of the operands in the other order is less work: of few columns."""
    width = host_block().width
    return 2 * n * -(-m // width) < m * -(-n // width)


def scratch_bytes(m: int, k: int, *, is_packed: bool = False) -> int:
    """Bytes that a thread needs beside a product's operands, in whole cache lines."""
    block = host_block()
    words = k * block.width + block.rows * block.width
    if not is_packed:
        words += left_words(m, k)
    return -(-FLOAT_BYTES * words // LINE_BYTES) * LINE_BYTES


@dataclass(frozen=True)
class ProductCode:
    """The code of products of such operands.

    The left one is packed by each part of the call, or `is_packed` for all of them before.
    """

    left: Side
    right: Side
    is_packed: bool = False

    @property
    def is_paired(self) -> bool:
        """Whether pairs of bfloat16 are multiplied."""
        return are_paired(self.left, self.right)

    @property
    def name(self) -> str:
        """A name of the function, the same in every process."""
        left = ("packed",) if self.is_packed else self.left
        return ("pairs_" if self.is_paired else "product_") + "_".join((*left, *self.right))

    def write(self, module: Any) -> None:
        """Add the function to a module; NotLowered for dtypes that do not widen."""
        _ProductWriter(self, module).write()


# m, n, k, whether C accumulates, scratch and its bytes for each thread, then A's address and steps
# along k and m (without steps where it is packed), B's address and steps along k and n, and C's
# address and steps along m and n
WORDS = ("m", "n", "k", "sums", "scratch", "own", "a", "ak", "am", "b", "bk", "bn", "c", "cm", "cn")


class _ProductWriter:
    def __init__(self, code: ProductCode, module: Any) -> None:
        self.code, self.module, self.block = code, module, host_block()
        self.function = ir.Function(module, PART, code.name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        words, self.first, self.end, self.lane = self.function.args
        self.words = {name: word_at(self.builder, words, i) for i, name in enumerate(WORDS)}
        self.packer = Packer(self.builder, self.block, self.words["k"], is_paired=code.is_paired)
        self.depth = self.packer.depth

    def write(self) -> None:
        builder, words, width = self.builder, self.words, self.block.width
        own = builder.add(words["scratch"], builder.mul(words["own"], self.lane))
        most = WORD(self.block.rows)
        panels = builder.sdiv(builder.add(words["m"], WORD(self.block.rows - 1)), most)
        if self.code.is_packed:
            left, right = words["a"], own
        else:
            left, right = own, self.packer.panel(own, panels)
            operand = MatrixPlace(words["a"], words["ak"], words["am"])
            self.packer.pack_left(self.code.left, operand, words["m"], left, (WORD(0), panels))
        edge = builder.add(right, self._floats(builder.mul(self.depth, WORD(width))))

        def block_of_columns(number: Value) -> None:
            start = builder.mul(number, WORD(width))
            rest = builder.sub(words["n"], start)
            is_whole = builder.icmp_signed(">=", rest, WORD(width))
            count = builder.select(is_whole, WORD(width), rest)
            base = builder.add(words["b"], builder.mul(start, words["bn"]))
            operand = MatrixPlace(base, words["bk"], words["bn"])
            self.packer.pack_right(self.code.right, operand, count, right)
            self._rows(_Columns(right, start, count, is_whole), left, panels, edge)

        counted_loop(builder, self.first, self.end, 1, block_of_columns)
        builder.ret(WORD(0))

    def _floats(self, count: Value) -> Value:
        return self.builder.mul(count, WORD(FLOAT_BYTES))

    def _rows(self, columns: _Columns, left: Value, panels: Value, edge: Value) -> None:
        """All rows of one block of columns; by way of scratch where C ends or its columns gape."""
        words, builder, most = self.words, self.builder, WORD(self.block.rows)
        edge_step = WORD(FLOAT_BYTES * self.block.width)
        is_near = builder.icmp_signed("==", words["cn"], WORD(FLOAT_BYTES))
        is_direct = builder.and_(columns.is_whole, is_near)

        def block(number: Value) -> None:
            if self.code.right[1] == "rows":
                self._prefetch_columns(columns, number, panels)
            first = builder.mul(number, most)
            rest = builder.sub(words["m"], first)
            rows = builder.select(builder.icmp_signed("<", rest, most), rest, most)
            at = builder.add(words["c"], builder.mul(first, words["cm"]))
            at = builder.add(at, builder.mul(columns.start, words["cn"]))
            given = (self.packer.panel(left, number), columns.packed, self.depth, words["sums"])
            inside_c = MatrixPlace(at, words["cm"], words["cn"])
            beside = MatrixPlace(edge, edge_step, WORD(FLOAT_BYTES))
            with builder.if_else(is_direct) as (inside, otherwise):
                with inside:
                    self._call(rows, [*given, at, words["cm"]])
                with otherwise:
                    with builder.if_then(builder.icmp_signed("!=", words["sums"], WORD(0))):
                        self._copy(rows, columns.count, inside_c, beside)
                    self._call(rows, [*given, edge, edge_step])
                    self._copy(rows, columns.count, beside, inside_c)

        counted_loop(builder, WORD(0), panels, 1, block)

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

    def _copy(self, rows: Value, columns: Value, source: MatrixPlace, target: MatrixPlace) -> None:
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
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [WORD] * 6), name)
    function.linkage = "internal"
    left, right, depth, sums, c, c_step = function.args
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
        row_at = builder.add(left, builder.mul(k, WORD(FLOAT_BYTES * block.rows)))
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
