"""Instructions that go over the same rows, run a few rows at a time.

A chip's instructions compute whole tiles. On the host what one of them writes has left the core's
cache when the next one reads it, and threads meet after each. So where instructions that follow
each other touch, in each of their rows, nothing of each other's other rows, some rows run through
all of them before the next rows do: a *strip*, whose pieces threads share. Results are the same:
each row is computed by the same code from the same operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from llvmlite import ir

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.sim.host.classes.calls import HostCall, OperandPlace, RowAccess, RowsCall
from glia.sim.host.loops import PART, counted_loop, pointer
from glia.sim.host.scalar_code import WORD, Value
from glia.sim.host.threads.pool import HEADER, SHARED_NANOSECONDS

MOST_MEMBERS = 64  # instructions that are looked at together
PIECE_BYTES = 1 << 19  # that a piece of a strip touches: half of a core's own cache


class StripCode:
    """`strip(words, first, end, lane)`: pieces of a strip, each through all of its calls.

    Words: how many calls; for each where its header is, and how many iterations a piece has of it.
    """

    name = "pool_strip"

    def write(self, module: Any) -> None:
        """Add the function to a module."""
        function = ir.Function(module, PART, self.name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        words, first, end, lane = function.args

        def word(place: Value, number: Value) -> Value:
            return builder.load(builder.gep(place, [number], source_etype=WORD), typ=WORD)

        def piece(number: Value) -> None:
            def call(position: Value) -> None:
                at = builder.add(builder.shl(position, WORD(1)), WORD(1))
                header = pointer(builder, word(words, at))
                count = word(words, builder.add(at, WORD(1)))
                given = builder.gep(header, [WORD(HEADER)], source_etype=WORD)
                begin = builder.mul(number, count)
                target = builder.inttoptr(word(header, WORD(0)), PART.as_pointer())
                builder.call(target, [given, begin, builder.add(begin, count), lane])

            counted_loop(builder, WORD(0), word(words, WORD(0)), 1, call)

        counted_loop(builder, first, end, 1, piece)
        builder.ret(WORD(0))


@dataclass(frozen=True)
class RowStrip:
    """Instructions in program order, and into how many pieces the rows of each are divided."""

    instructions: tuple[Instr, ...]
    calls: tuple[HostCall, ...]
    pieces: int

    @property
    def nanoseconds(self) -> float:
        """About how long it takes in one thread."""
        return sum(each.nanoseconds for each in self.calls)


class _Relation(Enum):
    """In which rows two instructions touch a byte in common that one of them writes."""

    APART = 0  # nowhere
    ALIGNED = 1  # only in rows of the same number
    CROSSED = 2  # perhaps in others


@dataclass(frozen=True)
class OperandStart:
    """Where an operand begins: `start` bytes from the first of its tile, or of an engine's state.

    Memory and addresses are the tile's in the device, `low` to before `high`; a state has none.
    """

    name: str
    start: Affine
    memory: Memory | None = None
    low: int = 0
    high: int = 1


@dataclass(frozen=True)
class _Access:
    row: RowAccess
    where: OperandStart


@dataclass(frozen=True)
class _Member:
    """An instruction among those that are looked at together."""

    number: int
    instr: Instr
    call: RowsCall
    accesses: tuple[_Access, ...]


class StripPlanner:
    """Divides instructions without loops between them into strips and others."""

    def __init__(
        self,
        threads: int,
        pieces: int,
        rows: Callable[[Instr], RowsCall | None],
        start: Callable[[Instr, OperandPlace], OperandStart | None],
    ) -> None:
        """`rows` gives the call of an instruction that may be in a strip, `start` where an operand
        of it begins, None for numbers. A strip has `pieces` pieces or more, if it has such rows.
        """
        self._threads, self._pieces, self._rows, self._start = threads, pieces, rows, start

    def planned(self, instructions: Sequence[Instr]) -> Iterator[Instr | RowStrip]:
        """The instructions in an order with the same meaning."""
        groups: list[list[_Member]] = []
        count = 0
        for number, instr in enumerate(instructions):
            call = self._rows(instr)
            member = None if call is None else self._member(number, instr, call)
            met = None if member is None else self._groups_met_by(member, groups)
            if met is None or count == MOST_MEMBERS:
                yield from self._closed(groups)
                groups, met, count = [], [], 0
            if member is None:
                yield instr
                continue
            joined = sorted((m for at in met for m in groups[at]), key=lambda each: each.number)
            groups = [group for at, group in enumerate(groups) if at not in met]
            groups.append([*joined, member])
            count += 1
        yield from self._closed(groups)

    def _closed(self, groups: Sequence[list[_Member]]) -> Iterator[Instr | RowStrip]:
        """Strips of members that belong together; all as they were where there is none."""
        strips = [self._strip(group) for group in groups]
        if not any(strips):
            members = sorted((m for group in groups for m in group), key=lambda m: m.number)
            yield from (each.instr for each in members)
            return
        for group, strip in zip(groups, strips, strict=True):
            if strip is not None:
                yield strip
            else:
                yield from (each.instr for each in group)

    def _strip(self, group: Sequence[_Member]) -> RowStrip | None:
        """The strip of members, if there is one that pays."""
        rows = math.gcd(*(each.call.call.parts for each in group))
        nanoseconds = sum(each.call.call.nanoseconds for each in group)
        if len(group) == 1 or rows < self._threads or nanoseconds < SHARED_NANOSECONDS:
            return None
        least = max(self._pieces, -(-_touched(group) // PIECE_BYTES))
        pieces = next((n for n in range(min(rows, least), rows) if rows % n == 0), rows)
        return RowStrip(tuple(m.instr for m in group), _calls(group, pieces), pieces)

    def _member(self, number: int, instr: Instr, call: RowsCall) -> _Member:
        found = ((row, self._start(instr, row.place)) for row in call.accesses)
        accesses = tuple(_Access(row, where) for row, where in found if where is not None)
        return _Member(number, instr, call, accesses)

    def _groups_met_by(self, member: _Member, groups: Sequence[list[_Member]]) -> list[int] | None:
        """Which groups have rows that a member's meet; None if it meets others than its own."""
        met = []
        for at, group in enumerate(groups):
            relations = {_relation(other, member) for other in group}
            if _Relation.CROSSED in relations:
                return None
            if _Relation.ALIGNED in relations:
                met.append(at)
        return met


def _relation(one: _Member, other: _Member) -> _Relation:
    """How the rows of two instructions lie to each other."""
    parts = one.call.call.parts, other.call.call.parts
    found = _Relation.APART
    for some in one.accesses:
        for each in other.accesses:
            if not (some.row.is_written or each.row.is_written):
                continue
            one_at, other_at = some.where, each.where
            if one_at.memory is not other_at.memory:
                continue
            if one_at.low >= other_at.high or other_at.low >= one_at.high:
                continue
            if one_at.memory is None and one_at.name != other_at.name:
                continue
            between = other_at.start - one_at.start
            if one_at.name != other_at.name or not between.is_constant:
                return _Relation.CROSSED
            relation = _of_rows(some.row, each.row, between.constant, parts)
            if relation is _Relation.CROSSED:
                return relation
            if relation is _Relation.ALIGNED:
                found = relation
    return found


def _of_rows(one: RowAccess, other: RowAccess, distance: int, parts: tuple[int, int]) -> _Relation:
    """How rows lie to each other of which the second's begin `distance` bytes after the first's.

    Both are divided into as many pieces as go into both of `parts`; these are looked at.
    """
    pieces = math.gcd(*parts)
    (step, low, high), (other_step, other_low, other_high) = (
        _of_piece(each, count // pieces) for each, count in zip((one, other), parts, strict=True)
    )
    other_low, other_high = other_low + distance, other_high + distance
    reach, other_reach = step * (pieces - 1), other_step * (pieces - 1)
    is_after = other_low + min(0, other_reach) >= high + max(0, reach)
    is_before = other_high + max(0, other_reach) <= low + min(0, reach)
    if is_after or is_before:
        return _Relation.APART
    if step != other_step:
        return _Relation.CROSSED
    apart = abs(step)
    is_aligned = other_low + apart >= high and other_high - apart <= low
    return _Relation.ALIGNED if is_aligned else _Relation.CROSSED


def _of_piece(row: RowAccess, rows: int) -> tuple[int, int, int]:
    """From piece to piece, from where and to before where, of pieces of so many rows."""
    reach = row.step * (rows - 1)
    return row.step * rows, row.low + min(0, reach), row.high + max(0, reach)


def _calls(group: Sequence[_Member], pieces: int) -> tuple[HostCall, ...]:
    """The calls of members; the last that reads a far tensor asks for the next piece of it."""
    found: list[HostCall] = []
    known: set[str] = set()
    for member in reversed(group):
        rows, call = member.call, member.call.call
        names = {each.where.name for each in member.accesses if each.row in rows.far}
        if rows.ahead is not None and not names <= known:
            distances = [each.step * (call.parts // pieces) for each in rows.far]
            words = (*rows.ahead.words[: -len(distances)], *distances)
            call = replace(rows.ahead, words=words)
        known |= names
        found.append(call)
    return tuple(reversed(found))


def _touched(group: Sequence[_Member]) -> int:
    """About how many bytes members touch, each once."""
    found: dict[tuple[str, Affine], int] = {}
    for member in group:
        for each in member.accesses:
            key = each.where.name, each.where.start
            rows = member.call.call.parts if each.row.step else 1
            found[key] = max(found.get(key, 0), rows * each.row.touched)
    return sum(found.values())
