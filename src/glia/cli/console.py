"""What a compilation says while it runs: messages by severity, a log file, and progress."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from types import TracebackType

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
    """The least severity shown: a name of `LEVELS` or a number as in Python's logging."""
    return LEVELS[verbose] if verbose in LEVELS else int(verbose)


class _Stream(logging.StreamHandler):
    """Messages on stdout or stderr; a failure to write them is the command's failure."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise


class _LogFile(logging.Handler):
    """Messages at the end of a file; when the disk is full, says so once and stops."""

    def __init__(self, path: str, complain: Callable[[str], None]) -> None:
        super().__init__()
        self._path, self._complain = path, complain
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._file, f"{self.format(record)}\n".encode())
        except OSError as problem:
            self.setLevel(logging.CRITICAL + 1)
            self._complain(f"the log file {self._path} ends early: {problem.strerror}")

    def close(self) -> None:
        os.close(self._file)
        super().close()


class Console:
    """Info and debug go to stdout, warnings and worse to stderr, everything to the log file."""

    def __init__(self, verbose: str, logfile: str | None) -> None:
        self._logger = logging.Logger("neuronx-cc", logging.DEBUG)
        least = severity(verbose)
        quiet = _Stream(sys.stdout)
        quiet.addFilter(lambda record: record.levelno < logging.WARNING)
        loud = _Stream(sys.stderr)
        loud.setLevel(max(least, logging.WARNING))
        quiet.setLevel(least)
        self._handlers: list[logging.Handler] = [quiet, loud]
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
        """Detail for someone who looks for an error."""
        self._logger.debug(text)

    def info(self, text: str) -> None:
        """What goes on."""
        self._logger.info(text)

    def warning(self, text: str) -> None:
        """What the user should know but need not act on."""
        self._logger.warning(text)


class Progress:
    """One line on a terminal's stderr that names the pass that has just run."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_shown = sys.stderr.isatty()

    def __call__(self, step: PassResult) -> None:
        """Show a finished pass."""
        self._write(f"{self._what} [{step.index}/{step.total}] {step.name}")

    def clear(self) -> None:
        """Remove the line."""
        self._write("")

    def _write(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(f"\r\x1b[2K{text:.100}")
            sys.stderr.flush()
