"""Locks that a forked process finds open, held or not in its parent."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from weakref import WeakSet


class ForkSafeLock:
    """A lock that is new in a process that was forked.

    The thread that holds a lock while another one forks does not exist in the child and could not
    release it there. What it guards must be fit for use, though perhaps not complete, at any time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


_LOCKS: WeakSet[ForkSafeLock] = WeakSet()


def _open_all() -> None:
    for each in list(_LOCKS):
        each._lock = threading.Lock()


os.register_at_fork(after_in_child=_open_all)
