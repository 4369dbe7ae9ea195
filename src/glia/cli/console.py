"""Output of a compilation: messages by severity, a log file, and a progress line."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from glia.cli.guard import writing
from glia.compiler import PassResult

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


class Console:
    """Info and debug go to stdout, warnings and worse to stderr, everything to the log file."""

    def __init__(self, verbose: str, logfile: str | None) -> None:
        self._logger = logging.Logger("neuronx-cc", logging.DEBUG)
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
        for handler in self._handlers:
            self._logger.addHandler(handler)

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handler in self._handlers:
            handler.close()

    def debug(self, text: str) -> None:
        """A detail for debugging."""
        self._logger.debug(text)

    def info(self, text: str) -> None:
        """A step of the work."""
        self._logger.info(text)

    def warning(self, text: str) -> None:
        """A fact that the user should know; needs no action."""
        self._logger.warning(text)


class Progress:
    """One line on a terminal's stderr with the pass that has just finished."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, step: PassResult) -> None:
        """Show a finished pass."""
        self._write(f"{self._title} [{step.index}/{step.total}] {step.name}")

    def clear(self) -> None:
        """Remove the line."""
        self._write("")

    def _write(self, text: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[2K{text:.100}")
            sys.stderr.flush()
