"""Machine code for functions that compute row by row and are no expression of elements: searches.

Their meaning is the NumPy function of the same name, marked by `numerics.of_rows`; its results are
bit for bit the same, but for which of two equal zeros comes first.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from glia.sim.host.loops import PART, counted_loop, pointer, word_at
from glia.sim.host.scalar_code import WORD, Lanes, NotLowered, Value, item_bytes, memory_type

VECTOR = 16  # lanes
ARGUMENT_WORDS = 3  # address, bytes from row to row, elements of a row
NANOSECONDS = {  # of an element of the first argument, or of the result where that is greater
    "greatest": 0.15,
    "first_occurrences": 0.8,
    "with_elements": 0.15,
    "elements_at": 1.0,
}


@dataclass(frozen=True)
class RowFunctionCode:
    """The code of a function on rows of arrays of these dtypes, whose elements are neighbours.

    The words are `ARGUMENT_WORDS` for each argument and for the result; a part of a call is a row.
    """

    function: str
    dtypes: tuple[str, ...]
    options: tuple[Any, ...]

    @property
    def name(self) -> str:
        """A name of the function, the same in every process."""
        key = self.function, self.dtypes, [np.asarray(each).tobytes() for each in self.options]
        return "rows_" + hashlib.sha256(repr(key).encode()).hexdigest()[:24]

    def write(self, module: Any) -> None:
        """Add the function to a module; NotLowered where there is no code for it."""
        if self.function not in _WRITERS or self.dtypes[1:] != _OTHER_DTYPES[self.function]:
            raise NotLowered(f"{self.function} of {', '.join(self.dtypes)}")
        if self.function != "elements_at" and self.dtypes[0] != "float32":
            raise NotLowered(f"{self.function} of {self.dtypes[0]}")
        _WRITERS[self.function](self, module).write()


@dataclass(frozen=True)
class _Row:
    """A row of an argument or of the result: where it begins, and how many elements it has."""

    address: Value
    count: Value


class _RowWriter(ABC):
    """Writes a loop over rows; what happens in each is `_row`."""

    def __init__(self, code: RowFunctionCode, module: Any) -> None:
        self.code = code
        self.function = ir.Function(module, PART, code.name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.one = Lanes(self.builder, 1)

    def write(self) -> None:
        builder, (words, first, end, _) = self.builder, self.function.args
        starts = [ARGUMENT_WORDS * n for n in range(len(self.code.dtypes) + 1)]
        given = [[word_at(builder, words, at + n) for n in range(ARGUMENT_WORDS)] for at in starts]

        def row(number: Value) -> None:
            rows = [
                _Row(builder.add(address, builder.mul(number, step)), count)
                for address, step, count in given
            ]
            self._row(rows[:-1], rows[-1])

        counted_loop(builder, first, end, 1, row)
        builder.ret(WORD(0))

    @abstractmethod
    def _row(self, given: Sequence[_Row], result: _Row) -> None:
        """Write what computes a row of the result."""

    def _address(self, row: _Row, number: Value, dtype: str) -> Value:
        at = self.builder.mul(number, WORD(item_bytes(dtype)))
        return pointer(self.builder, self.builder.add(row.address, at))

    def _load(self, row: _Row, number: Value, dtype: str, lanes: Lanes | None = None) -> Value:
        kind = (lanes or self.one).of(memory_type(dtype))
        return self.builder.load(self._address(row, number, dtype), typ=kind, align=1)

    def _store(self, row: _Row, number: Value, dtype: str, value: Value) -> None:
        self.builder.store(value, self._address(row, number, dtype), align=1)

    def _by_vectors(self, count: Value, body: Callable[[Lanes, Value], None]) -> None:
        """All numbers below `count`, by vectors and then one by one."""
        whole = self.builder.and_(count, WORD(-VECTOR))
        wide = Lanes(self.builder, VECTOR)
        counted_loop(self.builder, WORD(0), whole, VECTOR, lambda i: body(wide, i))
        counted_loop(self.builder, whole, count, 1, lambda i: body(self.one, i))

    def _bits(self, mask: Value) -> Value:
        """The lanes of a mask as the bits of an integer."""
        return self.builder.bitcast(mask, ir.IntType(VECTOR))


class _GreatestWriter(_RowWriter):
    """Keeps the greatest so far in order; few elements of a row are above the least of them."""

    def __init__(self, code: RowFunctionCode, module: Any) -> None:
        super().__init__(code, module)
        (self.count,) = self.code.options
        kept = self.builder.alloca(ir.FloatType(), self.count)
        address = self.builder.ptrtoint(kept, WORD)
        self.kept = _Row(address, WORD(self.count))

    def _row(self, given: Sequence[_Row], result: _Row) -> None:
        (data,) = given
        builder = self.builder
        for number in range(self.count):
            self._store(self.kept, WORD(number), "float32", self.one.f32(-np.inf))

        def insert_greater(lanes: Lanes, i: Value) -> None:
            if lanes.count == 1:
                self._insert(self._load(data, i, "float32"))
                return
            least = lanes.splat(self._load(self.kept, WORD(self.count - 1), "float32"))
            above = self._is_greater(self._load(data, i, "float32", lanes), least)
            with builder.if_then(builder.icmp_unsigned("!=", self._bits(above), self._no_bits)):
                counted_loop(
                    builder, i, builder.add(i, WORD(VECTOR)), 1,
                    lambda n: self._insert(self._load(data, n, "float32")),
                )  # fmt: skip

        self._by_vectors(data.count, insert_greater)
        for number in range(self.count):
            value = self._load(self.kept, WORD(number), "float32")
            self._store(result, WORD(number), "float32", value)

    @property
    def _no_bits(self) -> Value:
        return ir.IntType(VECTOR)(0)

    def _insert(self, value: Value) -> None:
        """Put a value where it belongs; the least falls off."""
        for number in range(self.count):
            kept = self._load(self.kept, WORD(number), "float32")
            above = self._is_greater(value, kept)
            first = self.builder.select(above, value, kept)
            value = self.builder.select(above, kept, value)
            self._store(self.kept, WORD(number), "float32", first)

    def _is_greater(self, value: Value, other: Value) -> Value:
        """Whether one value sorts above another: NaN is above all numbers."""
        builder = self.builder
        is_number = builder.fcmp_ordered("ord", other, other)
        return builder.and_(builder.fcmp_unordered(">", value, other), is_number)


class _OccurrencesWriter(_RowWriter):
    """Looks for each value from where an equal one before it was found."""

    def __init__(self, code: RowFunctionCode, module: Any) -> None:
        super().__init__(code, module)
        self.start, self.found = (self.builder.alloca(WORD) for _ in range(2))

    def _row(self, given: Sequence[_Row], result: _Row) -> None:
        data, values = given
        (order,) = self.code.options
        builder, step = self.builder, WORD(order.step)

        def search(turn: Value) -> None:
            number = builder.add(WORD(order.start), builder.mul(turn, step))
            value = self._load(values, number, "float32")
            builder.store(WORD(0), self.start)

            def follow(before: Value) -> None:
                other = builder.add(WORD(order.start), builder.mul(before, step))
                is_equal = builder.fcmp_ordered("==", self._load(values, other, "float32"), value)
                with builder.if_then(is_equal):
                    at = self._load(result, other, "int64")
                    is_missing = builder.icmp_signed("<", at, WORD(0))
                    after = builder.select(is_missing, data.count, builder.add(at, WORD(1)))
                    builder.store(after, self.start)

            counted_loop(builder, WORD(0), turn, 1, follow)
            self._find(data, value)
            self._store(result, number, "int64", builder.load(self.found, typ=WORD))

        counted_loop(builder, WORD(0), WORD(len(order)), 1, search)

    def _find(self, data: _Row, value: Value) -> None:
        """Set `found` to the first element from `start` on that is equal, or to -1."""
        builder, wide = self.builder, Lanes(self.builder, VECTOR)
        test, inside, hit, rest, one, same, after = (
            builder.append_basic_block(name)
            for name in ("test", "inside", "hit", "rest", "one", "same", "after")
        )
        builder.store(WORD(-1), self.found)
        builder.branch(test)
        builder.position_at_end(test)
        at = builder.load(self.start, typ=WORD)
        end = builder.add(at, WORD(VECTOR))
        builder.cbranch(builder.icmp_signed("<=", end, data.count), inside, rest)
        builder.position_at_end(inside)
        equal = builder.fcmp_ordered("==", self._load(data, at, "float32", wide), wide.splat(value))
        bits = self._bits(equal)
        builder.store(end, self.start)
        builder.cbranch(builder.icmp_unsigned("!=", bits, bits.type(0)), hit, test)
        builder.position_at_end(hit)
        lane = builder.cttz(bits, ir.IntType(1)(1))
        builder.store(builder.add(at, builder.zext(lane, WORD)), self.found)
        builder.branch(after)
        builder.position_at_end(rest)
        last = builder.load(self.start, typ=WORD)
        builder.cbranch(builder.icmp_signed("<", last, data.count), one, after)
        builder.position_at_end(one)
        is_same = builder.fcmp_ordered("==", self._load(data, last, "float32"), value)
        builder.store(builder.add(last, WORD(1)), self.start)
        builder.cbranch(is_same, same, rest)
        builder.position_at_end(same)
        builder.store(last, self.found)
        builder.branch(after)
        builder.position_at_end(after)


class _ElementsWriter(_RowWriter):
    """Copies a row, then writes the elements that are named."""

    def _row(self, given: Sequence[_Row], result: _Row) -> None:
        data, places = given
        (value,) = self.code.options
        builder = self.builder

        def copy(lanes: Lanes, i: Value) -> None:
            self._store(result, i, "float32", self._load(data, i, "float32", lanes))

        self._by_vectors(data.count, copy)

        def write(number: Value) -> None:
            place = self._load(places, number, "int64")
            with builder.if_then(builder.icmp_signed(">=", place, WORD(0))):
                literal = self.one.literal("float32", np.float32(value).tobytes())
                self._store(result, place, "float32", literal)

        counted_loop(builder, WORD(0), places.count, 1, write)


class _TakingWriter(_RowWriter):
    """Copies the elements of a row that are named."""

    def _row(self, given: Sequence[_Row], result: _Row) -> None:
        data, places = given
        dtype = self.code.dtypes[0]

        def take(number: Value) -> None:
            place = self._load(places, number, "int64")
            self._store(result, number, dtype, self._load(data, place, dtype))

        counted_loop(self.builder, WORD(0), places.count, 1, take)


_WRITERS: dict[str, type[_RowWriter]] = {
    "greatest": _GreatestWriter,
    "first_occurrences": _OccurrencesWriter,
    "with_elements": _ElementsWriter,
    "elements_at": _TakingWriter,
}
_OTHER_DTYPES: dict[str, tuple[str, ...]] = {
    "greatest": (),
    "first_occurrences": ("float32",),
    "with_elements": ("int64",),
    "elements_at": ("int64",),
}
