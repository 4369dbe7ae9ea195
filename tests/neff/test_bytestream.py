"""Integers are read as they were written, wherever they lie in what is looked at together."""

from __future__ import annotations

import numpy as np
import pytest

from glia.machine.binary import bytestream
from glia.machine.binary.bytestream import ByteReader, ByteWriter
from glia.machine.binary.errors import DamagedNeff

LARGEST = (1 << 70) - 1


@pytest.mark.parametrize("window", [1, 2, 7, 64, bytestream.WINDOW_BYTES])
def test_what_is_written_is_read(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytestream, "WINDOW_BYTES", window)
    random = np.random.default_rng(window)
    numbers = [0, 127, 128, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, LARGEST]
    numbers += [int(random.integers(1 << 62)) >> int(random.integers(63)) for _ in range(500)]
    writer = ByteWriter()
    for number in numbers:
        writer.unsigned(number)
        writer.raw(bytes([number & 0xFF]) * (number % 5))
        writer.signed(-(number >> 1))
        writer.real(number / 3)
        writer.byte(number & 0xFF)
    reader = ByteReader(bytes(writer.data), "data")
    for number in numbers:
        assert reader.unsigned() == number
        assert reader.raw() == bytes([number & 0xFF]) * (number % 5)
        assert reader.signed() == -(number >> 1)
        assert reader.real() == number / 3
        assert reader.byte() == number & 0xFF
    reader.finish()


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 11, b"\x80" * 40])
@pytest.mark.parametrize("before", [0, 1, bytestream.WINDOW_BYTES - 3])
def test_an_integer_without_end_is_damage(data: bytes, before: int) -> None:
    reader = ByteReader(bytes(before) + data, "data")
    for _ in range(before):
        assert reader.unsigned() == 0
    with pytest.raises(DamagedNeff, match=r"ends early|too long"):
        reader.unsigned()
