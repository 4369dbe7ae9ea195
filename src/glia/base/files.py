"""Atomic writes and reads of bounded size."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

_CHUNK_BYTES = 1 << 20


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a file or pipe of at most `most_bytes` bytes.

    Raises OSError, its reason in `strerror`, for a longer file, a path that cannot be opened, and
    a device, which may have no end.
    """
    try:
        with path.open("rb") as stream:
            found = os.fstat(stream.fileno())
            if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
            if not stat.S_ISREG(found.st_mode):
                data = b"".join(_read_chunks(stream, most_bytes))
                held = len(data)
            elif (held := found.st_size) <= most_bytes:
                data = stream.read(held)
    except (ValueError, MemoryError) as problem:
        reason = str(problem) or "it does not fit into memory"
        raise OSError(errno.EINVAL, reason, str(path)) from problem
    if held > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return data


def map_file(path: Path, most_bytes: int) -> memoryview:
    """The content of a file of at most `most_bytes` bytes, mapped: what is not used is not read.

    A file that is written to or cut while it is mapped changes what is read; one that is replaced
    does not. What cannot be mapped, such as a pipe, is read. Raises what `read_file` raises.
    """
    try:
        with path.open("rb") as stream:
            found = os.fstat(stream.fileno())
            if stat.S_ISREG(found.st_mode) and 0 < found.st_size <= most_bytes:
                return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (ValueError, OverflowError) as problem:
        raise OSError(errno.EINVAL, str(problem), str(path)) from problem
    return memoryview(read_file(path, most_bytes))


def read_once(data: memoryview) -> Iterator[memoryview]:
    """Pieces of data in order, each released once the next one is asked for."""
    for start in range(0, len(data), _CHUNK_BYTES):
        piece = data[start : start + _CHUNK_BYTES]
        yield piece
        release(piece)


def release(data: memoryview) -> None:
    """Take the pages of a mapped file that lie within a view out of this process's memory.

    They are read from the file again where they are used again; other memory stays what it is.
    """
    mapped = data.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = _address(data) - _address(mapped)
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + len(data)) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def _address(data: memoryview | mmap.mmap) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


def _read_chunks(stream: BinaryIO, left: int) -> Iterator[bytes]:
    """Chunks of a stream until it ends or more than `left` bytes have been read."""
    while left >= 0 and (piece := stream.read(_CHUNK_BYTES)):
        left -= len(piece)
        yield piece


def write_atomically(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file beside `path` and rename it over `path`; a device is written directly."""
    if path.exists() and not path.is_file():
        with path.open("wb", buffering=0) as device:
            device.writelines(pieces)
        return
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(beside, 0o666 & ~umask())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def user_cache() -> Path:
    """The folder of what the user's processes make again where it is missing; it may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "glia")


def umask() -> int:
    """The permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
