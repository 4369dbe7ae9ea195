"""Members of gzip files: read within limits on memory, written alike by every version of Python."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from glia.base.files import release

_MAGIC = b"\x1f\x8b"
GZIP_WBITS = 31  # zlib's number for a gzip member with the largest window
INFLATION_LIMIT = 100  # times the compressed bytes: far above what weights and programs reach
INFLATION_FLOOR = 64 << 20  # bytes any file may inflate to
_PIECE = 1 << 20
_HEADER = _MAGIC + b"\x08\0\0\0\0\0\0\xff"  # deflate; no flags, no time, no system
_LARGEST_BLOCK = 0xFFFF  # bytes of a block that is stored (RFC 1951, 3.2.4)
_LAST_BLOCK = b"\x01\0\0\xff\xff"  # of no bytes


def is_gzip(data: bytes | memoryview) -> bool:
    """Whether data begins like a member."""
    return bytes(data[: len(_MAGIC)]) == _MAGIC


class BadGzip(ValueError):
    """Data that is no gzip, ends early, or inflates beyond its limit; the message says which."""


def inflation_limit(compressed_bytes: int) -> int:
    """How many bytes so many compressed bytes may inflate to."""
    return max(INFLATION_FLOOR, INFLATION_LIMIT * compressed_bytes)


def inflate(data: bytes | memoryview) -> bytearray:
    """The contents of one or several gzip members; BadGzip when broken or beyond the limit.

    The limit holds at every position of the data: what inflates too far is not read to its end.
    """
    view, result = memoryview(data), bytearray()
    position = 0
    while position < len(view):
        position = _inflate_member(view, position, result)
    return result


def _inflate_member(data: memoryview, position: int, result: bytearray) -> int:
    """Append the gzip member at `position` to `result`; returns the position after it."""
    stream = zlib.decompressobj(wbits=GZIP_WBITS)
    piece = data[:0]
    pending: bytes | memoryview = b""
    while not stream.eof:
        if not pending:
            release(piece)
            piece = pending = data[position : position + _PIECE]
            position += len(pending)
            if not pending:
                raise BadGzip("the gzip stream ends early")
        try:
            result += stream.decompress(pending, 4 * _PIECE)
        except zlib.error as problem:
            raise BadGzip(f"gzip: {problem}") from problem
        pending = stream.unconsumed_tail
        if len(result) > inflation_limit(consumed := position - len(pending)):
            raise BadGzip(
                f"{consumed} bytes inflate to more than {INFLATION_LIMIT} times as many; if they "
                "hold that many zeros, give the file uncompressed"
            )
    return position - len(stream.unused_data)


def deflated(data: bytes | memoryview, level: int) -> list[bytes]:
    """A member that holds data in fewer bytes, where they can be."""
    packed = zlib.compress(data, level, wbits=GZIP_WBITS)
    return [_HEADER, packed[len(_HEADER) :]]


def stored(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """A member that holds pieces as they are, which are not copied."""
    yield _HEADER
    checksum = length = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
        length += len(piece)
        for start in range(0, len(piece), _LARGEST_BLOCK):
            block = piece[start : start + _LARGEST_BLOCK]
            yield struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF)
            yield block
    yield _LAST_BLOCK + struct.pack("<II", checksum, length & 0xFFFFFFFF)
