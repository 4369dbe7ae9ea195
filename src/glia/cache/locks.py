"""Locks that end with their holder, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Hold an exclusive lock on a file, made if needed; gives False where another holds it.

    The kernel releases the lock of a process that is killed. Nothing is written in the file, and
    the file may be removed by the holder. Where the file system has no locks the context is entered
    without one.
    """
    descriptor = _acquire(path, waits)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def _acquire(path: Path, waits: bool) -> int | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system without locks
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        if _is_current(path, descriptor):
            return descriptor
        os.close(descriptor)  # its holder has removed the file that this process had opened


def _is_current(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
