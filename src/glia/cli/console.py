"""A progress line on a terminal."""

from __future__ import annotations

import sys

from glia.compiler import PassResult


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
