"""Entry points of the console commands; an interrupt while modules load exits with 130."""

from __future__ import annotations

import importlib
import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def _start(command: str) -> None:
    try:
        importlib.import_module(f"glia.cli.{command}").main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


def neuronx_cc() -> None:
    """The `neuronx-cc` command."""
    _start("neuronx_cc")


def glia() -> None:
    """The `glia` command."""
    _start("glia")
