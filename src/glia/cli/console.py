"""Progress of long work: a line on a terminal, or lines in a log."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType

from glia.compile_messages import printable
from glia.pass_runner import PassStart

REFRESH_SECONDS = 0.5  # of the line on a terminal
LOG_SECONDS = 10.0  # between lines where there is no terminal


class Progress:
    """What is under way, and for how long, on stderr while the context is open.

    On a terminal it is one line that is removed at the end; elsewhere a line every LOG_SECONDS. It
    is written by an interval timer, not a thread, so that processes can be forked meanwhile. In
    other threads than the main one, and where there are no such timers, a terminal is updated only
    when something begins, and a log nothing.
    """

    def __init__(self, title: str, *, is_silent: bool = False) -> None:
        self._title = printable(title)
        self._file = None if is_silent else _standard_error()
        self._is_terminal = self._file is not None and os.isatty(self._file)
        self._activity = "read"
        self._started = self._since = time.monotonic()
        self._handler: object = None

    def __enter__(self) -> Progress:
        is_main = threading.current_thread() is threading.main_thread()
        if self._file is not None and is_main and hasattr(signal, "setitimer"):
            self._handler = signal.signal(signal.SIGALRM, self._on_timer)
            seconds = REFRESH_SECONDS if self._is_terminal else LOG_SECONDS
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)  # type: ignore[arg-type]
        self.hide()

    def hide(self) -> None:
        """Remove the line from a terminal, where something else is printed next."""
        if self._is_terminal:
            self._write("\r\x1b[2K")

    def __call__(self, step: PassStart) -> None:
        """A pass begins."""
        self.begin(str(step))

    def begin(self, activity: str) -> None:
        """Something begins that is not a pass."""
        self._activity, self._since = activity, time.monotonic()
        if self._is_terminal:
            self._report()

    def _on_timer(self, number: int, frame: FrameType | None) -> None:
        self._report()

    def _report(self) -> None:
        now = time.monotonic()
        text = f"{self._title}: {self._activity}, {now - self._since:.1f} s"
        text += f" ({now - self._started:.1f} s in all)"
        self._write(f"\r\x1b[2K{text:.100}" if self._is_terminal else f"{text}\n")

    def _write(self, text: str) -> None:
        """Write past Python's buffers, in which a timer may have interrupted another write."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.write(self._file, text.encode(errors="replace"))


def _standard_error() -> int | None:
    """The file of stderr; None where it has none, as in tests and notebooks."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None
