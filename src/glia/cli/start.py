"""Entry points of the console commands; an interrupt while modules load exits with 130.

The scripts in commands/ let an interrupt that comes earlier end the process without a word. What
is imported before `_start` runs is as little as can be.
"""

from __future__ import annotations

import _signal
import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def _start(command: str) -> None:
    module = f"glia.cli.{command}"
    try:
        if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
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


def neuron_parallel_compile() -> None:
    """The `neuron_parallel_compile` command."""
    _start("parallel_compile")


def neuron_profile() -> None:
    """The `neuron-profile` and `neuron-explorer` commands."""
    _start("neuron_profile")
