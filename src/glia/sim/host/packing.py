"""Operands of matrix products packed: in the order of reading, in float32 or pairs of bfloat16.

The left operand [k, m] becomes panels of as many columns as a block of C has rows, the right one
[k, n] blocks of as many columns as that has: in each all rows follow each other. Rows whose
elements follow each other are copied by vectors. Where those of a column do (the operand is the
transpose of what is stored), square tiles are transposed in registers: read one by one, elements a
power of two apart would share a cache set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import binding, ir

from glia.sim.host.loops import PART, counted_loop, pointer, prefetch, word_at
from glia.sim.host.scalar_code import WORD, Lanes, Value, item_bytes, memory_type, transposed

ROWS_AHEAD = 4  # when rows are asked for
LINE_BYTES = 64
FLOAT_BYTES = 4  # also of a pair of bfloat16
HALF, PAIR = ir.IntType(16), ir.IntType(32)
DOT_LANES = 16
FIRST = WORD(0)
Side = tuple[str, str]
"""An operand's dtype, and which neighbours follow each other: of a "rows", "columns", or "none"."""


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


@cache
def host_has_pairs() -> bool:
    """Whether this processor multiplies pairs of bfloat16 and adds both to a float32."""
    return bool(binding.get_host_cpu_features().get("avx512bf16"))


@cache
def host_block() -> BlockShape:
    """The block for this processor."""
    return block_shape(binding.get_host_cpu_features())


def are_paired(left: Side, right: Side) -> bool:
    """Whether two operands are packed in pairs, which the host multiplies at once."""
    is_narrow = left[0] == right[0] == "bfloat16"
    return is_narrow and host_has_pairs() and host_block().lanes == DOT_LANES


def _beside(block: BlockShape) -> int:
    """Words of 32 bits beside a panel, where its last vector ends."""
    return -block.rows % block.lanes


def left_words(m: int, k: int) -> int:
    """Words of 32 bits that a packed left operand takes at most."""
    block = host_block()
    return packing_parts(m) * (k * block.rows + _beside(block))


def packing_parts(m: int) -> int:
    """How many panels a left operand has."""
    return -(-m // host_block().rows)


@dataclass(frozen=True)
class MatrixPlace:
    """Where a matrix begins, and its steps, in bytes."""

    address: Value
    row_step: Value
    column_step: Value


@dataclass(frozen=True)
class PackingCode:
    """The code that packs a left operand; a part of a call is one panel."""

    side: Side
    is_paired: bool

    @property
    def name(self) -> str:
        """A name of the function, the same in every process."""
        return "_".join(("pack_pairs" if self.is_paired else "pack", *self.side))

    def write(self, module: Any) -> None:
        """Add the function to a module; NotLowered for dtypes that do not widen."""
        function = ir.Function(module, PART, self.name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        given, first, end, _ = function.args
        # k, columns, where to, and the operand's address and steps
        k, columns, target, *operand = (word_at(builder, given, i) for i in range(6))
        packer = Packer(builder, host_block(), k, is_paired=self.is_paired)
        packer.pack_left(self.side, MatrixPlace(*operand), columns, target, (first, end))
        builder.ret(WORD(0))


class Packer:
    """Writes code that packs operands of `k` rows."""

    def __init__(self, builder: Any, block: BlockShape, k: Value, *, is_paired: bool) -> None:
        self.builder, self.block, self.k, self.is_paired = builder, block, k, is_paired
        self.depth, self.whole = k, k  # packed rows, and those that are not half a pair
        if is_paired:
            self.depth = builder.ashr(builder.add(k, WORD(1)), WORD(1))
            self.whole = builder.ashr(k, WORD(1))

    def pack_left(
        self, side: Side, operand: MatrixPlace, m: Value, target: Value, panels: tuple[Value, Value]
    ) -> None:
        """Pack some panels of an operand of `m` columns."""
        builder, rows = self.builder, self.block.rows

        def panel(number: Value) -> None:
            first = builder.mul(number, WORD(rows))
            columns = MatrixPlace(
                builder.add(operand.address, builder.mul(first, operand.column_step)),
                operand.row_step, operand.column_step,
            )  # fmt: skip
            to, left = self.panel(target, number), builder.sub(m, first)
            reads = WORD(rows + _beside(self.block) if side[1] == "rows" else rows)
            with builder.if_else(builder.icmp_signed(">=", left, reads)) as (whole, last):
                with whole:
                    self._columns(side, columns, rows, to)
                with last:
                    is_cut = builder.icmp_signed("<", left, WORD(rows))
                    self._single(
                        side[0], columns, builder.select(is_cut, left, WORD(rows)), rows, to
                    )

        counted_loop(builder, *panels, 1, panel)

    def panel(self, target: Value, number: Value) -> Value:
        """Where a panel begins."""
        builder = self.builder
        words = builder.mul(self.depth, WORD(self.block.rows))
        words = builder.add(words, WORD(_beside(self.block)))
        return builder.add(target, builder.mul(number, _bytes(builder, words)))

    def pack_right(self, side: Side, operand: MatrixPlace, count: Value, target: Value) -> None:
        """Pack the columns of a block: all of it, or `count` and zeros."""
        builder, width = self.builder, self.block.width
        zeros = ir.VectorType(PAIR, width)([PAIR(0)] * width)
        is_whole = builder.icmp_signed("==", count, WORD(width))

        def clear(k: Value) -> None:
            builder.store(zeros, self._packed(target, width, k, 0), align=4)

        with builder.if_else(is_whole) as (inside, otherwise):
            with inside:
                self._columns(side, operand, width, target)
            with otherwise:
                counted_loop(builder, WORD(0), self.depth, 1, clear)
                self._single(side[0], operand, count, width, target)

    def _columns(self, side: Side, operand: MatrixPlace, count: int, target: Value) -> None:
        """Pack as many columns, known now, as each packed row has."""
        if side[1] == "rows":
            self._by_rows(side[0], operand, count, target)
        elif side[1] == "columns":
            self._by_tiles(side[0], operand, count, target)
        else:
            self._single(side[0], operand, WORD(count), count, target)

    def _by_rows(self, dtype: str, operand: MatrixPlace, count: int, target: Value) -> None:
        """Rows by vectors; what the last writes beside a row, the next row overwrites."""
        builder, lanes = self.builder, self.block.lanes
        ahead = builder.mul(operand.row_step, WORD(ROWS_AHEAD * (2 if self.is_paired else 1)))

        def row(k: Value) -> None:
            source = self._source(operand.address, operand.row_step, k)
            for start in range(0, count * item_bytes(dtype), LINE_BYTES):
                prefetch(builder, builder.add(builder.add(source.address, WORD(start)), ahead))
            for column in range(0, count, lanes):
                at = WORD(column * item_bytes(dtype))
                value = self._loaded(Lanes(builder, lanes), dtype, source, at)
                builder.store(value, self._packed(target, count, k, column), align=4)

        counted_loop(builder, WORD(0), self.depth, 1, row)

    def _by_tiles(self, dtype: str, operand: MatrixPlace, count: int, target: Value) -> None:
        """Tiles that are transposed; what they write beside a row, the next row overwrites."""
        builder, lanes = self.builder, self.block.lanes
        tiled = builder.and_(self.whole, WORD(-lanes))

        def tiles(k: Value) -> None:
            parts = [
                transposed(
                    builder, self._tile(dtype, operand, k, column, min(lanes, count - column))
                )
                for column in range(0, count, lanes)
            ]
            for lane in range(lanes):
                row_at = builder.add(k, WORD(lane))
                for number, rows in enumerate(parts):
                    place = self._packed(target, count, row_at, number * lanes)
                    builder.store(rows[lane], place, align=4)

        counted_loop(builder, WORD(0), tiled, lanes, tiles)
        self._single(dtype, operand, WORD(count), count, target, tiled)

    def _tile(
        self, dtype: str, operand: MatrixPlace, k: Value, column: int, count: int
    ) -> list[Value]:
        """`count` columns from packed row `k` on as vectors, and any others up to a square."""
        builder, writer = self.builder, Lanes(self.builder, self.block.lanes)
        step = item_bytes(dtype) * (2 if self.is_paired else 1)
        at = builder.add(operand.address, builder.mul(k, WORD(step)))
        kind = writer.of(PAIR if self.is_paired else memory_type(dtype))
        found = []
        for lane in range(count):
            place = builder.add(at, builder.mul(operand.column_step, WORD(column + lane)))
            value = builder.load(pointer(builder, place), typ=kind, align=1)
            found.append(value if self.is_paired else writer.cast(dtype, "float32", value))
        return found + [found[0]] * (self.block.lanes - count)

    def _single(
        self,
        dtype: str,
        operand: MatrixPlace,
        count: Value,
        pitch: int,
        target: Value,
        begin: Value = FIRST,
    ) -> None:
        """Elements one by one, from a packed row on; `pitch` words from row to row."""
        builder = self.builder

        def row(k: Value) -> None:
            source = self._source(operand.address, operand.row_step, k)
            to = builder.ptrtoint(self._packed(target, pitch, k, 0), WORD)

            def element(column: Value) -> None:
                at = builder.mul(column, operand.column_step)
                value = self._loaded(Lanes(builder, 1), dtype, source, at)
                place = builder.add(to, _bytes(builder, column))
                builder.store(value, pointer(builder, place), align=4)

            counted_loop(builder, WORD(0), count, 1, element)

        counted_loop(builder, begin, self.depth, 1, row)

    def _packed(self, target: Value, pitch: int, row: Value, column: int) -> Value:
        """A pointer to an element that is packed."""
        builder = self.builder
        words = builder.add(builder.mul(row, WORD(pitch)), WORD(column))
        return pointer(builder, builder.add(target, _bytes(builder, words)))

    def _loaded(self, writer: Lanes, dtype: str, source: _Row, at: Value) -> Value:
        """Elements of a row in float32, or in pairs with the next one's."""
        builder, kind = self.builder, writer.of(memory_type(dtype))
        place = pointer(builder, builder.add(source.address, at))
        value = builder.load(place, typ=kind, align=1)
        if source.other is None:
            return writer.cast(dtype, "float32", value)
        place = pointer(builder, builder.add(source.other, at))
        after = builder.and_(builder.load(place, typ=kind, align=1), writer.splat(source.mask))
        word = writer.of(PAIR)
        shifted = builder.shl(builder.zext(after, word), writer.i32(16))
        return builder.or_(builder.zext(value, word), shifted)

    def _source(self, base: Value, step: Value, number: Value) -> _Row:
        """What a packed row is made of: a row of the operand, or two of which it holds pairs."""
        builder = self.builder
        if not self.is_paired:
            return _Row(builder.add(base, builder.mul(number, step)))
        first = builder.shl(number, WORD(1))
        address = builder.add(base, builder.mul(first, step))
        is_last = builder.icmp_signed(">=", builder.add(first, WORD(1)), self.k)
        other = builder.select(is_last, address, builder.add(address, step))
        return _Row(address, other, builder.select(is_last, HALF(0), HALF(-1)))


@dataclass(frozen=True)
class _Row:
    """Where a row of an operand begins, and the next one, masked where there is none, for pairs."""

    address: Value
    other: Value | None = None
    mask: Value | None = None


def _bytes(builder: Any, words: Value) -> Value:
    return builder.mul(words, WORD(FLOAT_BYTES))
