"""Messages of a compilation by severity, on stdout and stderr and in a log file."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from glia.base.output_files import writing

QUIET_SECONDS = 2.0  # before a terminal shows what is compiled
LINE_COLUMNS = 100

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def severity(verbose: str) -> int:
    """The minimum severity: a name of `LEVELS` or a number as in Python's logging."""
    return LEVELS[verbose] if verbose in LEVELS else int(verbose)


class _Stream(logging.StreamHandler[TextIO]):
    """Messages on stdout or stderr; a failure to write them fails the command."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise


class _LogFile(logging.Handler):
    """Messages appended to a file; the first write failure is reported once and ends the log."""

    def __init__(self, path: str, report: Callable[[str], None]) -> None:
        super().__init__()
        self._path, self._report = path, report
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._file, f"{self.format(record)}\n".encode())
        except OSError as problem:
            self.setLevel(logging.CRITICAL + 1)
            self._report(f"the log file {self._path} is incomplete: {problem.strerror}")

    def close(self) -> None:
        os.close(self._file)
        super().close()


def printable(text: str) -> str:
    """A text for a line of a terminal, which nothing in it can leave."""
    return "".join(each if each.isprintable() else "?" for each in text)


class ProgressLine:
    """What is compiled, and how far it is, in a line on a terminal while that takes long.

    It appears when a pass begins after QUIET_SECONDS, and is removed at the end. It needs neither a
    thread nor a timer of the process, which is the user's own.
    """

    def __init__(self, title: str, *, is_silent: bool = False) -> None:
        self._title = printable(title)
        self._is_shown = not is_silent and sys.stderr is not None and sys.stderr.isatty()
        self._is_written = False
        self._started = time.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_written:
            self._write("")

    def begin(self, activity: str) -> None:
        """Something begins."""
        seconds = time.monotonic() - self._started
        if self._is_shown and seconds >= QUIET_SECONDS:
            self._is_written = True
            self._write(f"compiling {self._title}: {activity} ({seconds:.0f} s)"[:LINE_COLUMNS])

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()


class Console:
    """Messages of a compilation: info and debug to stdout, warnings and worse to stderr.

    Everything goes to the log file. Inside the context it takes what glia's modules log.
    """

    def __init__(self, verbose: str, logfile: str | None) -> None:
        self._logger = logging.getLogger("glia")
        minimum = severity(verbose)
        output = _Stream(sys.stdout)
        output.addFilter(lambda record: record.levelno < logging.WARNING)
        errors = _Stream(sys.stderr)
        errors.setLevel(max(minimum, logging.WARNING))
        output.setLevel(minimum)
        self._handlers: list[logging.Handler] = [output, errors]
        for handler in self._handlers:
            handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        if logfile:
            with writing(logfile):
                file = _LogFile(logfile, self.warning)
            line = "%(asctime)s %(process)d %(levelname)s: %(message)s"
            file.setFormatter(logging.Formatter(line))
            self._handlers.append(file)

    def __enter__(self) -> Console:
        self._before = self._logger.level, self._logger.propagate
        self._logger.setLevel(logging.DEBUG)
        self._logger.propagate = False
        for handler in self._handlers:
            self._logger.addHandler(handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handler in self._handlers:
            self._logger.removeHandler(handler)
            handler.close()
        level, self._logger.propagate = self._before
        self._logger.setLevel(level)

    def debug(self, text: str) -> None:
        """A detail for debugging."""
        self._logger.debug(text)

    def info(self, text: str) -> None:
        """A step of the work."""
        self._logger.info(text)

    def warning(self, text: str) -> None:
        """A fact that the user should know; needs no action."""
        self._logger.warning(text)
