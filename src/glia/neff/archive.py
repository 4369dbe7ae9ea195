"""The archive after the header: a tar of regular files, gzip or plain, read as hostile input."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from typing import NoReturn

from glia.base.gzip_members import BadGzip, deflated, inflate, is_gzip, stored
from glia.machine.binary.errors import DamagedNeff

BLOCK = 512
MAXIMUM_MEMBERS = 1 << 20

Member = tuple[str, bytes | memoryview]


def pack_archive(
    texts: Iterable[Member], weights: Iterable[Member], compress: bool
) -> list[bytes | memoryview]:
    """The archive's bytes in pieces; with `compress`, texts are deflated and weights stored.

    Weights hardly shrink and dominate the time to write and load, so their gzip member only wraps
    them, and they are not copied. Nothing in the result depends on the time or the machine.
    """
    head = b"".join(_tar_blocks(texts))
    tail = [*_tar_blocks(weights), bytes(2 * BLOCK)]
    return [*deflated(head, 6), *stored(tail)] if compress else [head, *tail]


def _tar_blocks(members: Iterable[Member]) -> Iterator[bytes | memoryview]:
    for name, data in members:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        yield entry.tobuf(tarfile.GNU_FORMAT)
        yield data
        yield bytes(-len(data) % BLOCK)


def unpack_archive(data: memoryview) -> dict[str, memoryview]:
    """Every regular file of the archive by name, in order; DamagedNeff when anything is off.

    Refuses archives that inflate beyond reason, names that leave the archive, duplicates, links and
    devices. Members are views of one buffer.
    """
    buffer = _inflated(data) if is_gzip(data) else data
    members: dict[str, memoryview] = {}
    position = 0
    while True:
        block = bytes(buffer[position : position + BLOCK])
        if not block.strip(b"\0"):
            break
        entry = _read_entry(block)
        start, end = position + BLOCK, position + BLOCK + entry.size
        if end > len(buffer):
            _fail(f"member {entry.name!r} is cut short: {entry.size} bytes promised")
        if not entry.isdir():
            if entry.name in members:
                _fail(f"member {entry.name!r} occurs twice")
            if len(members) == MAXIMUM_MEMBERS:
                _fail(f"more than {MAXIMUM_MEMBERS} members")
            members[entry.name] = buffer[start:end]
        position = end + -entry.size % BLOCK
    return members


def _inflated(data: memoryview) -> memoryview:
    try:
        return memoryview(inflate(data))
    except BadGzip as problem:
        _fail(str(problem))


def _read_entry(block: bytes) -> tarfile.TarInfo:
    try:
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as problem:
        _fail(f"tar header: {problem}")
    if not (entry.isdir() or entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
        _fail(f"member {entry.name!r} is not a regular file")
    if entry.size < 0:
        _fail(f"member {entry.name!r} has a negative size")
    parts = entry.name.rstrip("/").split("/")
    if entry.name.startswith("/") or not entry.name.isprintable() or {"", "..", "."} & {*parts}:
        _fail(f"member name {entry.name!r} is not allowed")
    return entry


def _fail(reason: str) -> NoReturn:
    raise DamagedNeff(part="archive", reason=reason)
