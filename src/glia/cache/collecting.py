"""Whether a process only collects the programs that it would compile, for a later compilation."""

from __future__ import annotations

import os

VARIABLE = "NEURON_EXTRACT_GRAPHS_ONLY"


def is_collecting() -> bool:
    """Whether programs are put into the compile cache uncompiled, and give zeros when they run."""
    return os.environ.get(VARIABLE, "") not in ("", "0")
