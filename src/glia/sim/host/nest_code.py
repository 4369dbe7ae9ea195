"""Machine code for nests: loops over operands with run-time extents and steps.

Code depends on what is computed, on dtypes, the number of loops and how each operand steps in the
innermost one (by its own width, not at all, or otherwise); extents, addresses and steps are its
arguments. So instructions of many shapes share it. The innermost loop computes whole vectors and
then the rest one by one, with the same instructions, so that no lane's result depends on its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from llvmlite import binding, ir

from glia.sim.host.functions import IDENTITIES, apply
from glia.sim.host.loop_nest import (
    TILE,
    LoopNest,
    NestReduction,
    NestScan,
    Scalar,
    Slot,
    loaded_slots,
    walk_scalar,
)
from glia.sim.host.loops import PART, counted_loop, pointer, prefetch, word_at
from glia.sim.host.scalar_code import (
    WORD,
    Lanes,
    NotLowered,
    Value,
    folded,
    is_float,
    item_bytes,
    memory_type,
    register_type,
    transposed,
)

SHORT_VECTOR = 4  # lanes of what is left, and of loops of a window's width
NOTHING: Mapping[int, Value] = MappingProxyType({})
VECTOR = 16  # lanes; several registers of most hosts, so that long latencies overlap
WIDE_VECTOR = 64  # lanes of sums of what takes little to compute: each waits for the one before
STREAMED_BYTES = 64  # of a cache line: what begins there is stored past the caches
FENCE = "llvm.x86.sse.sfence"
MOST_APPLIED = 2  # functions of a value that is summed in wide vectors


@dataclass(frozen=True)
class NestCode:
    """All that the code of a nest depends on; equal keys share code."""

    loops: tuple[int, int]  # outer, inner
    slots: tuple[tuple[str, str], ...]  # (dtype, how it steps in the innermost loop)
    stores: tuple[tuple[int, Scalar], ...]
    reductions: tuple[NestReduction, ...]
    results: tuple[tuple[int, Scalar], ...]
    transposes: bool = False
    streamed: tuple[int, ...] = ()  # slots that are stored past the caches where they are aligned
    ahead: tuple[int, ...] = ()  # slots of which other lines are asked for, some bytes further
    rows: tuple[tuple[int, Scalar], ...] = ()  # slots with rows, and what chooses these
    scans: tuple[NestScan, ...] = ()

    @property
    def inner_loads(self) -> set[int]:
        """The slots that are loaded in every iteration of the inner loops."""
        values = [value for _, value in self.stores]
        values += [reduction.value for reduction in self.reductions]
        values += [scan.update for scan in self.scans]
        return set().union(*map(loaded_slots, values))

    @property
    def name(self) -> str:
        """A name of the function, the same in every process."""
        return "nest_" + hashlib.sha256(repr(self).encode()).hexdigest()[:24]

    def write(self, module: Any) -> None:
        """Add the function to a module; NotLowered where something has no code."""
        _NestWriter(self, module).write()


def nest_code(
    nest: LoopNest, unread: Collection[int] = (), ahead: Collection[int] = ()
) -> NestCode:
    """The code that runs a simplified nest.

    `unread` are slots that are not read for long; lines of `ahead` are asked for in advance, as
    many bytes further as words behind the others say.
    """
    slots = tuple((slot.dtype, _stepping(slot, nest)) for slot in nest.slots)
    loops = (len(nest.outer), len(nest.inner))
    code = NestCode(
        loops, slots, nest.stores, nest.reductions, nest.results, nest.transposes,
        ahead=tuple(sorted(ahead)), scans=nest.scans,
        rows=tuple((number, slot.rows[0]) for number, slot in enumerate(nest.slots) if slot.rows),
    )  # fmt: skip
    if nest.transposes:
        return code
    read = code.inner_loads
    streamed = [
        number
        for number, _ in nest.stores
        if number in unread and number not in read and slots[number][1] == "unit"
        and nest.inner[-1] >= VECTOR and _can_stream()
    ]  # fmt: skip
    return replace(code, streamed=tuple(sorted(set(streamed))))


@cache
def _can_stream() -> bool:
    """Whether this host stores past its caches, and `FENCE` is what orders that."""
    triple: str = binding.get_process_triple()
    return triple.startswith("x86_64")


def _stepping(slot: Slot, nest: LoopNest) -> str:
    """How a slot steps in the innermost loop; "across" by its width in the last outer one."""
    if slot.steps[-1] == 0:
        return "none"
    width = item_bytes(slot.dtype)
    if slot.steps[-1] == width:
        return "unit"
    return "across" if nest.transposes and slot.steps[-2] == width else "any"


class _NestWriter:
    """Writes the function of one nest, a part of which is some iterations of its first outer loop.

    The words are the extents of all loops, then for each slot its address and its steps, then how
    far ahead lines are asked for, then the bytes of rows.
    """

    def __init__(self, code: NestCode, module: Any) -> None:
        self.code, self.module = code, module
        self.function = ir.Function(module, PART, code.name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.count = sum(code.loops)
        self.extents = [self._word(i) for i in range(self.count)]
        each = 1 + self.count
        starts = [self.count + each * number for number in range(len(code.slots))]
        self.addresses = [self._word(start) for start in starts]
        self.steps = [[self._word(start + 1 + v) for v in range(self.count)] for start in starts]
        end = self.count + each * len(code.slots)
        self.distances = {number: self._word(end + n) for n, number in enumerate(code.ahead)}
        end += len(code.ahead)
        self.row_bytes = {number: self._word(end + n) for n, (number, _) in enumerate(code.rows)}
        applied = max((_applied(each.value) for each in code.reductions), default=0)
        is_wide = applied <= MOST_APPLIED and not code.stores
        self.sum_lanes = (WIDE_VECTOR, VECTOR, 1) if is_wide else (VECTOR, 1)
        self.is_streaming = False
        self.sums: list[dict[int, Value]] = []  # per reduction: places of sums, by their lanes
        self.states: list[Value] = []  # per scan: its place

    def write(self) -> None:
        for reduction in self.code.reductions:
            kind = register_type(reduction.dtype)
            kinds = {n: ir.VectorType(kind, n) if n > 1 else kind for n in self.sum_lanes}
            self.sums.append({n: self.builder.alloca(each) for n, each in kinds.items()})
        for scan in self.code.scans:
            self.states.append(self.builder.alloca(register_type(scan.dtype)))
        self._outer_loops(0, self.addresses)
        if self.code.streamed:
            kind = ir.FunctionType(ir.VoidType(), [])
            self.builder.call(ir.Function(self.module, kind, FENCE), [])
        self.builder.ret(WORD(0))

    def _word(self, number: int) -> Value:
        return word_at(self.builder, self.function.args[0], number)

    def _outer_loops(self, depth: int, addresses: Sequence[Value]) -> None:
        if self.code.transposes and depth == self.code.loops[0] - 1:
            self._tiles(depth, addresses)
            return
        if depth < self.code.loops[0]:
            self._loop_over(depth, addresses, self._outer_loops)
            return
        if self.code.rows:
            addresses = self._at_rows(addresses)
        if self.code.reductions:
            self._start_sums()
        for scan, place in zip(self.code.scans, self.states, strict=True):
            load = self._single_loader(addresses)
            self.builder.store(self._value(Lanes(self.builder, 1), scan.initial, {}, load), place)
        self._inner_loops_by_alignment(depth, addresses)
        if self.code.results:
            self._store_results(addresses)

    def _at_rows(self, addresses: Sequence[Value]) -> list[Value]:
        """Where slots are, those with rows in the ones that are chosen."""
        lanes, found = Lanes(self.builder, 1), list(addresses)
        values: dict[Scalar, tuple[Value, str]] = {}
        for number, chosen in self.code.rows:
            index, dtype = self._typed(lanes, chosen, values, self._single_loader(addresses))
            distance = self.builder.mul(lanes.cast(dtype, "int64", index), self.row_bytes[number])
            found[number] = self.builder.add(found[number], distance)
        return found

    def _tiles(self, depth: int, addresses: Sequence[Value]) -> None:
        """The last outer loop and the inner one, by squares that are transposed in registers."""
        builder = self.builder
        start, end = self._range_of(depth)
        whole = builder.add(start, builder.and_(builder.sub(end, start), WORD(-TILE)))
        inner_whole = builder.and_(self.extents[-1], WORD(-TILE))

        def row_of_tiles(j: Value) -> None:
            rows = [self._moved(addresses, depth, builder.add(j, WORD(n))) for n in range(TILE)]
            counted_loop(builder, WORD(0), inner_whole, TILE, lambda i: self._tile(i, rows))
            for row in rows:
                fixed = self._fixed(row)
                self._counted_iterations(inner_whole, self.extents[-1], 1, row, fixed)

        counted_loop(builder, start, whole, TILE, row_of_tiles)

        def row(j: Value) -> None:
            self._inner_loops(depth + 1, self._moved(addresses, depth, j))

        counted_loop(builder, whole, end, 1, row)

    def _tile(self, i: Value, rows: Sequence[Sequence[Value]]) -> None:
        """A square from `i` on, whose rows have these addresses."""
        lanes, builder = Lanes(self.builder, TILE), self.builder
        turned: dict[int, list[Value]] = {}
        for number, (dtype, stepping) in enumerate(self.code.slots):
            if stepping == "across":
                step, kind = self.steps[number][-1], lanes.of(memory_type(dtype))
                places = [builder.mul(builder.add(i, WORD(n)), step) for n in range(TILE)]
                found = [
                    builder.load(
                        pointer(builder, builder.add(rows[0][number], at)), typ=kind, align=1
                    )
                    for at in places
                ]
                turned[number] = transposed(builder, found)
        for row, addresses in enumerate(rows):
            columns = {number: vectors[row] for number, vectors in turned.items()}
            self._iteration(i, TILE, addresses, self._fixed(addresses), columns)

    def _inner_loops_by_alignment(self, depth: int, addresses: Sequence[Value]) -> None:
        """The inner loops, twice where some slots are stored past the caches if they are aligned.

        Inner loops beside the innermost one keep to what is aligned if their steps do.
        """
        if not self.code.streamed:
            self._inner_loops(depth, addresses)
            return
        builder, bits = self.builder, WORD(0)
        for number in self.code.streamed:
            inner_steps = self.steps[number][self.code.loops[0] : -1]
            for each in (addresses[number], *inner_steps):
                bits = builder.or_(bits, each)
        rest = builder.and_(bits, WORD(STREAMED_BYTES - 1))
        with builder.if_else(builder.icmp_signed("==", rest, WORD(0))) as (aligned, other):
            with aligned:
                self.is_streaming = True
                self._inner_loops(depth, addresses)
                self.is_streaming = False
            with other:
                self._inner_loops(depth, addresses)

    def _inner_loops(self, depth: int, addresses: Sequence[Value]) -> None:
        if depth < self.count - 1:
            self._loop_over(depth, addresses, self._inner_loops)
            return
        fixed = self._fixed(addresses)
        builder, extent = self.builder, self.extents[-1]
        start = WORD(0)
        counts: tuple[int, ...] = (VECTOR, SHORT_VECTOR, 1)
        if self.code.reductions:
            counts = self.sum_lanes
        if self.code.scans:
            counts = (1,)
        for count in counts:
            end = builder.and_(extent, WORD(-count))
            self._counted_iterations(start, end, count, addresses, fixed)
            start = end

    def _fixed(self, addresses: Sequence[Value]) -> dict[int, Value]:
        """What is loaded from one place for all of the innermost loop."""
        return {
            number: self.builder.load(
                pointer(self.builder, addresses[number]), typ=memory_type(dtype), align=1
            )
            for number, (dtype, stepping) in enumerate(self.code.slots)
            if stepping == "none" and number in self.code.inner_loads
        }

    def _counted_iterations(
        self,
        start: Value,
        end: Value,
        count: int,
        addresses: Sequence[Value],
        fixed: dict[int, Value],
    ) -> None:
        """The innermost loop over a range, `count` lanes at a time."""
        counted_loop(
            self.builder, start, end, count,
            lambda i: self._iteration(i, count, addresses, fixed),
        )  # fmt: skip

    def _loop_over(
        self, depth: int, addresses: Sequence[Value], body: Callable[[int, list[Value]], None]
    ) -> None:
        start, end = self._range_of(depth)
        counted_loop(
            self.builder, start, end, 1,
            lambda i: body(depth + 1, self._moved(addresses, depth, i)),
        )  # fmt: skip

    def _range_of(self, depth: int) -> tuple[Value, Value]:
        """Where a loop begins and ends: the part's range for the first outer one."""
        if depth == 0 and self.code.loops[0]:
            _, start, end, _ = self.function.args
            return start, end
        return WORD(0), self.extents[depth]

    def _moved(self, addresses: Sequence[Value], depth: int, i: Value) -> list[Value]:
        """Where slots are in an iteration of a loop."""
        return [
            self.builder.add(address, self.builder.mul(i, steps[depth]))
            for address, steps in zip(addresses, self.steps, strict=True)
        ]

    def _iteration(
        self,
        i: Value,
        count: int,
        addresses: Sequence[Value],
        fixed: Mapping[int, Value],
        columns: Mapping[int, Value] = NOTHING,
    ) -> None:
        """`count` lanes from `i` on; `columns` are vectors that are loaded already."""
        lanes = Lanes(self.builder, count)
        values: dict[Scalar, tuple[Value, str]] = {}

        def load(number: int) -> Value:
            if number in fixed:
                return _from_memory(lanes, self._dtype(number), lanes.splat(fixed[number]))
            if number in columns:
                return _from_memory(lanes, self._dtype(number), columns[number])
            places = self._places(lanes, number, addresses[number], i)
            if number in self.distances and count == VECTOR and len(places) == 1:
                address = self.builder.ptrtoint(places[0], WORD)
                prefetch(self.builder, self.builder.add(address, self.distances[number]))
            return _from_memory(lanes, self._dtype(number), self._load(lanes, number, places))

        stored = [
            (n, _in_memory(lanes, self._dtype(n), self._value(lanes, value, values, load)))
            for n, value in self.code.stores
        ]
        for number, value in stored:
            self._store(lanes, number, self._places(lanes, number, addresses[number], i), value)
        for reduction, places in zip(self.code.reductions, self.sums, strict=True):
            place = places[count]
            value = self._value(lanes, reduction.value, values, load)
            kind = lanes.of(register_type(reduction.dtype))
            before = self.builder.load(place, typ=kind)
            after = apply(lanes, reduction.function, reduction.dtype, (before, value))
            self.builder.store(after, place)

    def _dtype(self, number: int) -> str:
        return self.code.slots[number][0]

    def _places(self, lanes: Lanes, number: int, address: Value, i: Value) -> list[Value]:
        """The address of the first lane, or of each where they do not follow each other."""
        dtype, stepping = self.code.slots[number]
        builder = self.builder
        step = WORD(item_bytes(dtype)) if stepping == "unit" else self.steps[number][-1]
        first = builder.add(address, builder.mul(i, step))
        if stepping == "unit" or lanes.count == 1:
            return [pointer(builder, first)]
        steps = [builder.mul(step, WORD(lane)) for lane in range(lanes.count)]
        return [pointer(builder, builder.add(first, each)) for each in steps]

    def _load(self, lanes: Lanes, number: int, places: list[Value]) -> Value:
        kind = memory_type(self._dtype(number))
        if len(places) == 1:
            return self.builder.load(places[0], typ=lanes.of(kind), align=1)
        vector = ir.Constant(ir.VectorType(kind, lanes.count), ir.Undefined)
        for lane, place in enumerate(places):
            one = self.builder.load(place, typ=kind, align=1)
            vector = self.builder.insert_element(vector, one, ir.IntType(32)(lane))
        return vector

    def _store(self, lanes: Lanes, number: int, places: list[Value], value: Value) -> None:
        if len(places) == 1:
            width = lanes.count * item_bytes(self._dtype(number))
            if self.is_streaming and number in self.code.streamed and lanes.count == VECTOR:
                stored = self.builder.store(value, places[0], align=min(width, STREAMED_BYTES))
                once = self.module.add_metadata([ir.IntType(32)(1)])
                stored.set_metadata("nontemporal", once)
                return
            self.builder.store(value, places[0], align=1)
            return
        for lane, place in enumerate(places):
            one = self.builder.extract_element(value, ir.IntType(32)(lane))
            self.builder.store(one, place, align=1)

    def _value(
        self,
        lanes: Lanes,
        value: Scalar,
        known: dict[Scalar, tuple[Value, str]],
        load: Callable[[int], Value],
    ) -> Value:
        return self._typed(lanes, value, known, load)[0]

    def _typed(
        self,
        lanes: Lanes,
        value: Scalar,
        known: dict[Scalar, tuple[Value, str]],
        load: Callable[[int], Value],
    ) -> tuple[Value, str]:
        """The value and its dtype, computed once where it is used several times."""
        if value in known:
            return known[value]
        match value:
            case ("load", number):
                found = load(number), self._dtype(number)
            case ("constant", dtype, data):
                found = lanes.literal(dtype, data), dtype
            case ("cast", source, target, argument):
                wide = self._value(lanes, argument, known, load)
                found = lanes.cast(source, target, wide), target
            case ("reduced", number):
                found = self._reduced(number), self.code.reductions[number].dtype
            case ("state", number):
                dtype = self.code.scans[number].dtype
                found = self.builder.load(self.states[number], typ=register_type(dtype)), dtype
            case ("scan", number):
                scan = self.code.scans[number]
                found = self._value(lanes, scan.update, known, load), scan.dtype
                self.builder.store(found[0], self.states[number])
            case ("apply", function, dtype, *arguments):
                typed = [self._typed(lanes, each, known, load) for each in arguments]
                given = [each for each, _ in typed]
                found = apply(lanes, function, typed[-1][1], given), dtype
            case _:
                raise NotLowered(str(value[0]))
        known[value] = found
        return found

    def _start_sums(self) -> None:
        for reduction, places in zip(self.code.reductions, self.sums, strict=True):
            for count, place in places.items():
                lanes = Lanes(self.builder, count)
                start = lanes.constant(reduction.dtype, identity(reduction))
                self.builder.store(start, place)

    def _reduced(self, number: int) -> Value:
        """The sum over all lanes, halves onto each other, and over the rest."""
        reduction, builder = self.code.reductions[number], self.builder
        kind = register_type(reduction.dtype)

        def combine(lanes: Lanes, values: Sequence[Value]) -> Value:
            return apply(lanes, reduction.function, reduction.dtype, values)

        total: Value | None = None
        for count, place in self.sums[number].items():
            found = builder.load(place, typ=ir.VectorType(kind, count) if count > 1 else kind)
            one = folded(builder, found, count, combine)
            total = one if total is None else combine(Lanes(builder, 1), (total, one))
        return total

    def _single_loader(self, addresses: Sequence[Value]) -> Callable[[int], Value]:
        """Loads one element of a slot outside of the inner loops."""
        lanes = Lanes(self.builder, 1)

        def load(number: int) -> Value:
            dtype = self._dtype(number)
            place = pointer(self.builder, addresses[number])
            one = self.builder.load(place, typ=memory_type(dtype), align=1)
            return _from_memory(lanes, dtype, one)

        return load

    def _store_results(self, addresses: Sequence[Value]) -> None:
        lanes, load = Lanes(self.builder, 1), self._single_loader(addresses)
        values: dict[Scalar, tuple[Value, str]] = {}
        stored = [
            (n, _in_memory(lanes, self._dtype(n), self._value(lanes, value, values, load)))
            for n, value in self.code.results
        ]
        for number, value in stored:
            place = pointer(self.builder, addresses[number])
            self.builder.store(value, place, align=1)


def identity(reduction: NestReduction) -> Any:
    """What a reduction starts with; NotLowered for a function without an identity."""
    if reduction.function not in IDENTITIES:
        raise NotLowered(f"a reduction by {reduction.function}")
    start = IDENTITIES[reduction.function]
    if not isinstance(start, str):
        return start
    sign = 1 if start == "greatest" else -1
    if is_float(reduction.dtype):
        return sign * float("inf")
    limits = np.iinfo(reduction.dtype)
    return limits.max if sign > 0 else limits.min


def _from_memory(lanes: Lanes, dtype: str, value: Value) -> Value:
    if dtype != "bool":
        return value
    return lanes.builder.icmp_unsigned("!=", value, lanes.constant("uint8", 0))


def _in_memory(lanes: Lanes, dtype: str, value: Value) -> Value:
    return lanes.builder.zext(value, lanes.of(ir.IntType(8))) if dtype == "bool" else value


def _applied(value: Scalar) -> int:
    """How many functions a value applies."""
    found = 0

    def count(part: Scalar) -> None:
        nonlocal found
        found += part[0] in ("apply", "cast")

    walk_scalar(value, count)
    return found
