"""Machine code for products of one row, whose other operand is read once, as it lies.

C [1, n] = A.T @ B, or C += A.T @ B, with A [k, 1] and B [k, n]. Nothing of B is read twice, so that
packing it would be most of the work. Where its rows follow themselves in memory, some of them at a
time are added to C; where its columns do, each is multiplied with A and summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from glia.sim.host.loops import PART, counted_loop, pointer, word_at
from glia.sim.host.packing import FLOAT_BYTES, Side, host_block
from glia.sim.host.product_code import WORDS
from glia.sim.host.scalar_code import WORD, Lanes, Value, folded, item_bytes, memory_type

AT_ONCE = 4  # rows or columns
FLOAT = ir.FloatType()


def row_scratch_bytes(n: int, k: int) -> int:
    """Bytes of scratch: for C where its columns gape, and A."""
    return FLOAT_BYTES * (n + k)


@dataclass(frozen=True)
class RowProductCode:
    """The code of a product of one row; its words are those of `ProductCode`.

    A part of a call is a block of columns.
    """

    left: str  # dtype
    right: Side  # whose neighbours in rows or in columns follow each other

    @property
    def name(self) -> str:
        """A name of the function, the same in every process."""
        return "_".join(("row_product", self.left, *self.right))

    def write(self, module: Any) -> None:
        """Add the function to a module; NotLowered for dtypes that do not widen."""
        _RowProductWriter(self, module).write()


class _RowProductWriter:
    def __init__(self, code: RowProductCode, module: Any) -> None:
        self.code, self.block = code, host_block()
        self.function = ir.Function(module, PART, code.name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        words, self.first, self.end, _ = self.function.args
        self.words = {name: word_at(self.builder, words, i) for i, name in enumerate(WORDS)}

    def write(self) -> None:
        builder, words = self.builder, self.words
        width = WORD(self.block.width)
        start, end = (builder.mul(each, width) for each in (self.first, self.end))
        is_last = builder.icmp_signed(">", end, words["n"])
        end = builder.select(is_last, words["n"], end)
        is_near = builder.icmp_signed("==", words["cn"], WORD(FLOAT_BYTES))
        row = builder.select(is_near, words["c"], words["scratch"])
        is_added = builder.icmp_signed("!=", words["sums"], WORD(0))
        with builder.if_else(is_added) as (added, otherwise):
            with added, builder.if_then(builder.not_(is_near)):
                self._copy(start, end, (words["c"], words["cn"]), (row, WORD(FLOAT_BYTES)))
            with otherwise:
                self._loop_over(
                    start, end, lambda lanes, i: self._store(lanes, row, i, lanes.f32(0))
                )
        (self._by_rows if self.code.right[1] == "rows" else self._by_columns)(row, start, end)
        with builder.if_then(builder.not_(is_near)):
            self._copy(start, end, (row, WORD(FLOAT_BYTES)), (words["c"], words["cn"]))
        builder.ret(WORD(0))

    def _loop_over(self, start: Value, end: Value, body: Callable[[Lanes, Value], None]) -> None:
        """A loop by vectors, and then one by one."""
        builder, lanes = self.builder, self.block.lanes
        whole = builder.add(start, builder.and_(builder.sub(end, start), WORD(-lanes)))
        counted_loop(builder, start, whole, lanes, lambda i: body(Lanes(builder, lanes), i))
        counted_loop(builder, whole, end, 1, lambda i: body(Lanes(builder, 1), i))

    def _by_rows(self, row: Value, start: Value, end: Value) -> None:
        """Some rows of B at a time, so that C is read and written once for all of them."""
        builder, k = self.builder, self.words["k"]
        whole = builder.and_(k, WORD(-AT_ONCE))
        for begin, last, count in ((WORD(0), whole, AT_ONCE), (whole, k, 1)):
            add = partial(self._add_rows, row, (start, end), count)
            counted_loop(builder, begin, last, count, add)

    def _add_rows(self, row: Value, columns: tuple[Value, Value], count: int, k: Value) -> None:
        builder, words = self.builder, self.words
        rows = [builder.add(k, WORD(n)) for n in range(count)]
        factors = [self._factor(each) for each in rows]
        bases = [builder.add(words["b"], builder.mul(each, words["bk"])) for each in rows]

        def add(lanes: Lanes, i: Value) -> None:
            total = self._at(lanes, "float32", row, i)
            for factor, base in zip(factors, bases, strict=True):
                value = self._at(lanes, self.code.right[0], base, i)
                total = lanes.call("llvm.fma", lanes.splat(factor), value, total)
            self._store(lanes, row, i, total)

        self._loop_over(*columns, add)

    def _by_columns(self, row: Value, start: Value, end: Value) -> None:
        """Each column of B times A, which is converted before."""
        builder, words = self.builder, self.words
        one = Lanes(builder, 1)
        left = builder.add(words["scratch"], builder.mul(words["n"], WORD(FLOAT_BYTES)))
        counted_loop(
            builder, WORD(0), words["k"], 1,
            lambda k: self._store(one, left, k, self._factor(k)),
        )  # fmt: skip
        whole = builder.add(start, builder.and_(builder.sub(end, start), WORD(-AT_ONCE)))
        for begin, last, count in ((start, whole, AT_ONCE), (whole, end, 1)):
            sums = [(self._sum(self.block.lanes), self._sum(1)) for _ in range(count)]
            add = partial(self._add_columns, row, left, sums)
            counted_loop(builder, begin, last, count, add)

    def _sum(self, lanes: int) -> Value:
        return self.builder.alloca(Lanes(self.builder, lanes).of(FLOAT))

    def _add_columns(
        self, row: Value, left: Value, sums: Sequence[tuple[Value, Value]], first: Value
    ) -> None:
        """Some columns at a time, so that as many parts of memory are asked for at once."""
        builder, words = self.builder, self.words
        wide, one = Lanes(builder, self.block.lanes), Lanes(builder, 1)
        columns = [builder.add(first, WORD(number)) for number in range(len(sums))]
        bases = [builder.add(words["b"], builder.mul(each, words["bn"])) for each in columns]
        for places in sums:
            for lanes, place in zip((wide, one), places, strict=True):
                builder.store(lanes.f32(0), place)

        def add(lanes: Lanes, k: Value) -> None:
            factor = self._at(lanes, "float32", left, k)
            for base, places in zip(bases, sums, strict=True):
                place = places[lanes.count == 1]
                total = builder.load(place, typ=lanes.of(FLOAT))
                value = self._at(lanes, self.code.right[0], base, k)
                builder.store(lanes.call("llvm.fma", factor, value, total), place)

        self._loop_over(WORD(0), words["k"], add)
        for column, places in zip(columns, sums, strict=True):
            vector = builder.load(places[0], typ=wide.of(FLOAT))
            total = folded(builder, vector, wide.count, lambda _, halves: builder.fadd(*halves))
            total = builder.fadd(total, builder.load(places[1], typ=FLOAT))
            before = self._at(one, "float32", row, column)
            self._store(one, row, column, builder.fadd(total, before))

    def _factor(self, row: Value) -> Value:
        builder, words = self.builder, self.words
        address = builder.add(words["a"], builder.mul(row, words["ak"]))
        return self._at(Lanes(builder, 1), self.code.left, address, WORD(0))

    def _at(self, lanes: Lanes, dtype: str, base: Value, number: Value) -> Value:
        """Elements that follow each other, in float32."""
        builder = self.builder
        place = builder.add(base, builder.mul(number, WORD(item_bytes(dtype))))
        kind = lanes.of(memory_type(dtype))
        value = builder.load(pointer(builder, place), typ=kind, align=1)
        return lanes.cast(dtype, "float32", value)

    def _store(self, lanes: Lanes, base: Value, number: Value, value: Value) -> None:
        builder = self.builder
        place = builder.add(base, builder.mul(number, WORD(FLOAT_BYTES)))
        builder.store(value, pointer(builder, place), align=4)

    def _copy(
        self, start: Value, end: Value, source: tuple[Value, Value], target: tuple[Value, Value]
    ) -> None:
        """Elements of C, between two places of (address, step)."""
        builder = self.builder

        def element(i: Value) -> None:
            places = [builder.add(base, builder.mul(i, step)) for base, step in (source, target)]
            value = builder.load(pointer(builder, places[0]), typ=FLOAT, align=4)
            builder.store(value, pointer(builder, places[1]), align=4)

        counted_loop(builder, start, end, 1, element)
