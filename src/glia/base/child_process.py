"""Work in a forked process, whose result comes back as bytes."""

from __future__ import annotations

import gc
import os
import select
import signal
import struct
import warnings
from collections.abc import Callable

_NUMBER = struct.Struct("<d")
_LENGTH = struct.Struct("<Q")
_SEND = b"+"
_PIECE = 1 << 20


class ChildProcess:
    """A forked process that computes a number, and bytes that are sent when they are asked for.

    A process that fails, or that is killed, has neither. Use as a context: the process is ended
    where the context is left.
    """

    def __init__(self, work: Callable[[], tuple[float, Callable[[], bytes]]]) -> None:
        self._results, child_results = os.pipe()
        child_requests, self._requests = os.pipe()
        with warnings.catch_warnings():
            # Frameworks warn of their threads, which the child has not: it computes with Python and
            # NumPy, collects no garbage of theirs, and is killed where it does not answer.
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._results)
            os.close(self._requests)
            _run_child(work, child_requests, child_results)
        os.close(child_results)
        os.close(child_requests)

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._requests)
        os.close(self._results)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def number(self, seconds: float) -> float | None:
        """The number, once the process has computed it; None when it failed or takes longer."""
        if not select.select([self._results], [], [], seconds)[0]:
            return None
        data = _read(self._results, _NUMBER.size)
        return None if data is None else float(_NUMBER.unpack(data)[0])

    def result(self) -> bytes | None:
        """The bytes, asked for now, after the number; None when the process failed."""
        try:
            os.write(self._requests, _SEND)
        except BrokenPipeError:
            return None
        length = _read(self._results, _LENGTH.size)
        return None if length is None else _read(self._results, _LENGTH.unpack(length)[0])


def can_fork() -> bool:
    """Whether the system has forked processes."""
    return hasattr(os, "fork")


def _run_child(
    work: Callable[[], tuple[float, Callable[[], bytes]]], requests: int, results: int
) -> None:
    """Compute, answer and end the process, whatever happens."""
    status = 1
    gc.disable()
    try:
        number, make_bytes = work()
        os.write(results, _NUMBER.pack(number))
        if os.read(requests, 1) == _SEND:
            data = make_bytes()
            _write(results, _LENGTH.pack(len(data)) + data)
        status = 0
    finally:
        os._exit(status)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:_PIECE]) :]


def _read(descriptor: int, count: int) -> bytes | None:
    """`count` bytes; None when the other side has closed before."""
    pieces = []
    while count:
        piece = os.read(descriptor, min(count, _PIECE))
        if not piece:
            return None
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
