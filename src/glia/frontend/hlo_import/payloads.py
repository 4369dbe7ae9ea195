"""Payloads of large constants, apart from the message of their module.

Protobuf copies every field that it reads or writes, several times, and has no message of 2 GiB. A
literal whose payload is apart has an empty one in the message, and its number in a field that XLA
does not have. `split_payloads` makes serialized modules of this form, and `with_payloads` usual
ones of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from glia.frontend.sharding_fields import varint

APART_BYTES = 1 << 16  # the smallest payload that is kept apart
MOST_FIELDS = 1 << 21  # that are looked at: files can be made of nothing but them
MOST_OF_LITERAL = 64  # of a literal with one payload, which has few
NUMBER_FIELD = 2**29 - 1  # of a literal: one more than its payload's number; protobuf's last

Bytes = bytes | memoryview
_Pieces = list[Bytes]

_DELIMITED = 2
_FIXED = {1: 8, 5: 4}  # bytes by wire type
_LONGEST_VARINT_BITS = 63
_SHAPE, _TUPLE_LITERALS = 1, 10
_DEEPEST = 64  # below protobuf's own limit

# Where literals are: by message, the field that holds the next
_INSIDE = {
    "Hlo": (1, "Module"),
    "Module": (3, "Computation"),
    "Computation": (2, "Instruction"),
    "Instruction": (8, "Literal"),
    "Literal": (_TUPLE_LITERALS, "Literal"),
}


def split_payloads(data: Bytes, message: str) -> tuple[bytes, tuple[memoryview, ...]]:
    """A serialized Module or Hlo without its large payloads, and these, which stay where they are.

    What protobuf would not write so is returned as it is, for protobuf to read or refuse.
    """
    view = memoryview(data)
    payloads: list[memoryview] = []
    left = itertools.repeat(None, MOST_FIELDS)

    def change(literal: _Message) -> _Pieces | None:
        return _without_payload(literal, payloads)

    try:
        whole = _Message(view, 0, len(view), message, left)
        pieces = _rewritten(whole, change, lambda each: each.end - each.start >= APART_BYTES)
    except _NotAMessage:
        return bytes(data), ()
    return (b"".join(pieces), tuple(payloads)) if payloads else (bytes(data), ())


def with_payloads(module: bytes, payloads: Sequence[Bytes]) -> _Pieces:
    """A serialized Module with its payloads in place, in pieces."""
    if not payloads:
        return [module]
    number = _tag(NUMBER_FIELD, 0)

    def has_number(part: _Message) -> bool:
        return module.find(number, part.start, part.end) >= 0

    def change(literal: _Message) -> _Pieces | None:
        return _with_payload(literal, payloads)

    whole = _Message(memoryview(module), 0, len(module), "Module", itertools.repeat(None))
    return _rewritten(whole, change, has_number)


class _NotAMessage(Exception):
    """Bytes that are not fields as protobuf writes them, or more of them than are looked at."""


@dataclass(frozen=True)
class _Message:
    """A message of a kind, and where it lies; `left` gives a value for each field to look at."""

    data: memoryview
    start: int
    end: int
    kind: str
    left: Iterator[None]


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message: where it starts, and where its value does and ends."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int

    @property
    def is_payload(self) -> bool:
        """Whether a literal's field may hold its elements."""
        return self.wire_type == _DELIMITED and self.number not in (_SHAPE, _TUPLE_LITERALS)

    @property
    def bytes(self) -> int:
        """How long its value is."""
        return self.end - self.value


def _rewritten(
    message: _Message,
    change: Callable[[_Message], _Pieces | None],
    is_changed: Callable[[_Message], bool],
    depth: int = 0,
) -> _Pieces:
    """A message whose literals are changed, where a part of it says that it holds such."""
    if message.kind == "Literal" and (changed := change(message)) is not None:
        return changed
    data, kept = message.data, message.start
    number, kind = _INSIDE[message.kind]
    pieces: _Pieces = []
    seen = 0
    for field in _fields(message):
        if (field.number, field.wire_type) != (number, _DELIMITED) or depth == _DEEPEST:
            continue
        seen += 1
        if kind == "Literal" and message.kind == "Instruction" and seen > 1:
            raise _NotAMessage  # protobuf merges them
        inner = _Message(data, field.value, field.end, kind, message.left)
        if is_changed(inner):
            changed = _rewritten(inner, change, is_changed, depth + 1)
            pieces += [data[kept : field.start], *_delimited(number, changed)]
            kept = field.end
    return [*pieces, data[kept : message.end]]


def _without_payload(literal: _Message, payloads: list[memoryview]) -> _Pieces | None:
    """A literal without its only payload, which is entered; None for one whose payloads stay."""
    fields = [*itertools.islice(_fields(literal), MOST_OF_LITERAL)]
    found = [each for each in fields if each.is_payload]
    if len(found) != 1 or found[0].bytes < APART_BYTES or len(fields) == MOST_OF_LITERAL:
        return None
    (payload,) = found
    payloads.append(literal.data[payload.value : payload.end])
    pieces: _Pieces = [
        _tag(each.number, _DELIMITED) + b"\0" if each is payload
        else literal.data[each.start : each.end]
        for each in fields
    ]  # fmt: skip
    return [*pieces, _tag(NUMBER_FIELD, 0), varint(len(payloads))]


def _with_payload(literal: _Message, payloads: Sequence[Bytes]) -> _Pieces | None:
    """A literal with the payload whose number it has; None for one without a number."""
    fields = list(_fields(literal))
    numbers = [
        _read_varint(literal.data, each.value, each.end)[0]
        for each in fields
        if each.number == NUMBER_FIELD and each.wire_type == 0
    ]
    if len(numbers) != 1 or not 0 < numbers[0] <= len(payloads):
        return None
    payload = payloads[numbers[0] - 1]
    pieces: _Pieces = []
    for each in fields:
        if each.is_payload and not each.bytes:
            pieces += _delimited(each.number, [payload])
        elif each.number != NUMBER_FIELD:
            pieces.append(literal.data[each.start : each.end])
    return pieces


def _fields(message: _Message) -> Iterator[_Field]:
    """The fields of a message in order; _NotAMessage where bytes are none."""
    data, position, end = message.data, message.start, message.end
    while position < end:
        start = position
        if next(message.left, _NotAMessage) is _NotAMessage:
            raise _NotAMessage
        tag, position = _read_varint(data, position, end)
        value, wire_type = position, tag & 7
        if wire_type == _DELIMITED:
            length, value = _read_varint(data, position, end)
            position = value + length
        elif wire_type == 0:
            position = _read_varint(data, position, end)[1]
        elif wire_type in _FIXED:
            position += _FIXED[wire_type]
        else:
            raise _NotAMessage
        if position > end:
            raise _NotAMessage
        yield _Field(tag >> 3, wire_type, start, value, position)


def _read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """An integer of seven bits to a byte, and the position after it."""
    value = shift = 0
    while position < end and shift <= _LONGEST_VARINT_BITS:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if not byte and shift:
                break  # protobuf writes no more bytes than it takes
            return value, position
        shift += 7
    raise _NotAMessage


def _tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def _delimited(number: int, pieces: _Pieces) -> _Pieces:
    """A field that holds some bytes."""
    length = sum(len(each) for each in pieces)
    return [_tag(number, _DELIMITED) + varint(length), *pieces]
