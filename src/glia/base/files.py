"""Writing files so that nobody sees half of one, and reading what comes to an end."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path


def read_file(path: Path) -> bytes:
    """The bytes of a file or a pipe; OSError, also for a device, which may have no end."""
    with path.open("rb") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
        return stream.read()


def write_atomically(path: Path, pieces: Iterable[bytes]) -> None:
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
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
