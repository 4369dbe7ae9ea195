"""Messages between the process of a rank and the one where ranks meet: a header and arrays.

Headers are JSON on a socket. Arrays lie in anonymous memory that both processes map, so that it
goes away with the last of them, however they end.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Header = dict[str, Any]

MOST_HEADER_BYTES = 1 << 26
ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")
_LEAST_BYTES = 1 << 16
_PIECE = 1 << 20


class ChannelClosed(Exception):
    """The other side has ended, or sends what no side of ours sends."""


@dataclass(frozen=True)
class Message:
    """What one side tells the other. Arrays may be views, valid until the next message."""

    header: Header
    arrays: tuple[Array, ...] = ()


class Channel(Protocol):
    """One side of a connection."""

    def send(self, header: Header, arrays: Sequence[Array] = ()) -> None:
        """Tell the other side; ChannelClosed where it has ended."""

    def receive(self) -> Message:
        """What the other side tells next; ChannelClosed where it has ended."""


def described_array(array: Array, offset: int) -> list[Any]:
    """What `array_in` needs to find the array again at that offset of some bytes."""
    return [array.dtype.name, list(array.shape), offset]


def array_in(data: memoryview | mmap.mmap, described: Any) -> Array:
    """The array that lies in some bytes; ChannelClosed where it does not fit into them."""
    try:
        name, shape, offset = described
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        count = math.prod(shape)
        if dtype.hasobject or min([0, offset, *shape]) < 0:
            raise ValueError("no array of numbers")
        return (
            np.frombuffer(data, dtype, count, offset).reshape(shape)
            if count
            else np.zeros(shape, dtype)
        )
    except (TypeError, ValueError) as problem:
        raise ChannelClosed(f"it describes an array as {described!s:.100}") from problem


def packed(arrays: Sequence[Array], start: int = 0) -> tuple[list[list[Any]], int]:
    """The descriptions of arrays that lie behind each other, and how many bytes they take."""
    described, end = [], start
    for array in arrays:
        described.append(described_array(array, end))
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return described, end


def as_bytes(array: Array) -> Array:
    """The array's bytes in row-major order, not copied where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class SharedMemory:
    """Anonymous memory that one process writes arrays to, and others map by its descriptor."""

    def __init__(self, descriptor: int | None = None, *, is_written: bool = True) -> None:
        self.descriptor = _anonymous_file() if descriptor is None else descriptor
        self._is_written = is_written
        self._mapped: mmap.mmap | None = None

    def place(self, arrays: Sequence[Array]) -> list[list[Any]]:
        """Write arrays over what was there; where they lie."""
        described, end = packed(arrays)
        mapped = self._map(end)
        for array, (_, _, offset) in zip(arrays, described, strict=True):
            if array.nbytes:
                target = np.frombuffer(mapped, np.uint8, array.nbytes, offset)
                target[:] = as_bytes(array)
        return described

    def arrays(self, described: Sequence[Any], needed: int) -> tuple[Array, ...]:
        """The arrays that lie where the other side says, within its `needed` bytes."""
        mapped = self._map(needed)
        return tuple(array_in(mapped, each) for each in described)

    def close(self) -> None:
        """Leave the memory; arrays that are in use keep their part of it."""
        os.close(self.descriptor)
        self._mapped = None

    def _map(self, needed: int) -> mmap.mmap:
        """The memory, of so many bytes or more."""
        if self._mapped is not None and len(self._mapped) >= needed:
            return self._mapped
        has = os.fstat(self.descriptor).st_size
        if has < max(needed, _LEAST_BYTES):
            if not self._is_written:
                raise ChannelClosed(f"it has {has} bytes where {needed} are said to be")
            has = max(_LEAST_BYTES, 1 << (needed - 1).bit_length())
            os.ftruncate(self.descriptor, has)
        access = mmap.ACCESS_WRITE if self._is_written else mmap.ACCESS_READ
        self._mapped = mmap.mmap(self.descriptor, has, access=access)
        return self._mapped


def _anonymous_file() -> int:
    """A descriptor of memory that has no name; of a file without one where there is no such."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("glia-ranks")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedChannel:
    """A channel between two processes of one machine; each side writes to memory of its own."""

    def __init__(
        self, connection: socket.socket, outgoing: SharedMemory, incoming: SharedMemory
    ) -> None:
        self._connection, self._outgoing, self._incoming = connection, outgoing, incoming

    def send(self, header: Header, arrays: Sequence[Array] = ()) -> None:
        """Tell the other side; ChannelClosed where it has ended."""
        described = self._outgoing.place(arrays) if arrays else []
        _, needed = packed(arrays)
        text = json.dumps([header, described, needed]).encode()
        try:
            self._connection.sendall(_LENGTH.pack(len(text)) + text)
        except OSError as problem:
            raise ChannelClosed(str(problem)) from problem

    def receive(self) -> Message:
        """What the other side tells next; ChannelClosed where it has ended."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MOST_HEADER_BYTES:
            raise ChannelClosed(f"it sends a header of {length} bytes")
        header, described, needed = parsed(self._read(length), 3)
        return Message(header, self._incoming.arrays(described, needed) if described else ())

    def close(self) -> None:
        """End the connection, which the other side sees."""
        self._connection.close()
        for memory in (self._outgoing, self._incoming):
            memory.close()

    def _read(self, count: int) -> bytes:
        pieces = []
        while count:
            try:
                piece = self._connection.recv(min(count, _PIECE))
            except OSError as problem:
                raise ChannelClosed(str(problem)) from problem
            if not piece:
                raise ChannelClosed("its connection has ended")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)


def parsed(text: bytes, fields: int) -> list[Any]:
    """The fields of a header; ChannelClosed where it has others."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ChannelClosed("it sends a header that is not JSON") from problem
    if not (isinstance(found, list) and len(found) == fields and isinstance(found[0], dict)):
        raise ChannelClosed("it sends a header of other fields")
    return found
