"""Primitive encodings: bytes, variable-length integers, floats and byte strings."""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np

from glia.machine.binary.errors import DamagedNeff

_FLOAT = struct.Struct("<d")
_SHORT = 7 * 9  # bits of an integer of nine bytes, which 64 bits hold
WINDOW_BYTES = 1 << 15  # that are looked at together
MAXIMUM_VARINT_BYTES = 10
MAXIMUM_MAGNITUDE = 1 << 48  # of places and counts: keeps later 64-bit arithmetic exact


class ByteWriter:
    """Appends primitives to a byte string."""

    def __init__(self) -> None:
        self.data = bytearray()

    def byte(self, value: int) -> None:
        """One byte."""
        self.data.append(value)

    def unsigned(self, value: int) -> None:
        """A non-negative integer below 2**70, seven bits to a byte, low bits first."""
        if not 0 <= value < 1 << 7 * MAXIMUM_VARINT_BYTES:
            raise ValueError(f"{value} does not fit the payload's integers")
        data = self.data
        while value > 0x7F:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        data.append(value)

    def signed(self, value: int) -> None:
        """An integer, zigzag-coded: 0, -1, 1, -2, 2, ..."""
        self.unsigned(value << 1 if value >= 0 else (-value << 1) - 1)

    def real(self, value: float) -> None:
        """A float64 with every bit kept."""
        self.data += _FLOAT.pack(value)

    def raw(self, value: bytes) -> None:
        """A length and that many bytes."""
        self.unsigned(len(value))
        self.data += value


class ByteReader:
    """Reads primitives from one member's bytes; DamagedNeff where they end early.

    The integers that would begin at each of the next bytes are computed together, so that reading
    one is a look into a list.
    """

    def __init__(self, data: bytes | memoryview, part: str) -> None:
        self._data = data
        self._part = part
        self._length = len(data)
        self.position = 0
        self._first, self._count = 0, 0  # bytes of the window
        self._integers: list[int] = []
        self._ends: list[int] = []  # of these integers; 0 where that is not known

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return self._length - self.position

    def fail(self, reason: str) -> NoReturn:
        """Raise DamagedNeff at the current position."""
        raise DamagedNeff(part=f"{self._part} at byte {self.position}", reason=reason)

    def byte(self) -> int:
        """One byte."""
        at = self.position
        if at >= self._length:
            self.fail("it ends early")
        self.position = at + 1
        return self._data[at]

    def unsigned(self) -> int:
        """A non-negative integer."""
        at = self.position - self._first
        if at < self._count and (end := self._ends[at]):
            self.position = end
            return self._integers[at]
        if at >= self._count and self.remaining:
            self._look_ahead()
            return self.unsigned()
        return self._unsigned_by_byte()

    def _look_ahead(self) -> None:
        """Compute the integers of up to nine bytes that would begin at each of the next ones."""
        self._first = self.position
        last = self.position + WINDOW_BYTES
        found = np.frombuffer(self._data[self.position : last + _SHORT // 7], np.uint8)
        self._count = count = min(WINDOW_BYTES, len(found))
        padded = np.concatenate((found, np.full(_SHORT // 7, 0x80, np.uint8)))
        integers = np.zeros(count, np.int64)
        lengths = np.zeros(count, np.int64)
        goes_on = np.ones(count, bool)
        for number in range(_SHORT // 7):
            each = padded[number : number + count]
            part = (each & 0x7F).astype(np.int64) << 7 * number
            integers |= np.where(goes_on, part, 0)
            ends = goes_on & (each < 0x80)
            lengths[ends] = number + 1
            goes_on &= ~ends
            if not goes_on.any():
                break
        ends_at = np.arange(count) + self.position + lengths
        self._integers = integers.tolist()
        self._ends = np.where(goes_on, 0, ends_at).tolist()

    def _unsigned_by_byte(self) -> int:
        value = shift = 0
        for _ in range(MAXIMUM_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        self.fail("an integer is too long")

    def signed(self) -> int:
        """An integer."""
        value = self.unsigned()
        return value >> 1 if not value & 1 else -(value + 1 >> 1)

    def place(self) -> int:
        """An integer that counts elements, bytes or events: of at most MAXIMUM_MAGNITUDE."""
        value = self.signed()
        if not -MAXIMUM_MAGNITUDE <= value <= MAXIMUM_MAGNITUDE:
            self._fail_beyond(value)
        return value

    def extent(self) -> int:
        """A non-negative integer of at most MAXIMUM_MAGNITUDE."""
        value = self.unsigned()
        if value > MAXIMUM_MAGNITUDE:
            self._fail_beyond(value)
        return value

    def _fail_beyond(self, value: int) -> NoReturn:
        self.fail(f"{value} is beyond any memory or count")

    def real(self) -> float:
        """A float64."""
        (value,) = _FLOAT.unpack(self.take(_FLOAT.size))
        return float(value)

    def raw(self) -> bytes:
        """A length and that many bytes."""
        return self.take(self.unsigned())

    def take(self, length: int) -> bytes:
        """Exactly `length` bytes."""
        if length > self.remaining:
            self.fail(f"{length} bytes expected, {self.remaining} left")
        self.position += length
        return bytes(self._data[self.position - length : self.position])

    def count(self) -> int:
        """The number of items that follow, at most the bytes left: an item has at least one."""
        count = self.unsigned()
        if count > self._length - self.position:
            self.fail(f"{count} items expected, {self.remaining} bytes left")
        return count

    def index(self, length: int, what: str) -> int:
        """An index into a table of `length` entries."""
        index = self.unsigned()
        if index >= length:
            self.fail(f"{what} {index} of {length}")
        return index

    def finish(self) -> None:
        """Fail when bytes are left over."""
        if self.remaining:
            self.fail(f"{self.remaining} bytes are left over")
