"""Entry points of the console commands; an interrupt while modules load exits with 130.

What is imported before `_start` runs is as little as can be: an interrupt there is a traceback.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def _start(command: str) -> None:
    module = f"glia.cli.{command}"
    try:
        __import__(module)
        sys.modules[module].main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


def neuronx_cc() -> None:
    """The `neuronx-cc` command."""
    _start("neuronx_cc")


def glia() -> None:
    """The `glia` command."""
    _start("glia")


def neuron_profile() -> None:
    """The `neuron-profile` and `neuron-explorer` commands."""
    _start("neuron_profile")
