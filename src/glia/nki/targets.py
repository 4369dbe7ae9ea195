"""Which device kernels are for: the environment says it in the words of the documentation."""

from __future__ import annotations

import os

from glia.arch import Target, get_target
from glia.nki.errors import BadLaunch

VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
DEFAULT = "trn3"  # what the documented simulator takes where no device is found
NAMES = {
    "trn1": "trn1", "trn1n": "trn1n", "inf2": "inf2", "gen2": "trn1",
    "trn2": "trn2", "gen3": "trn2",
    "trn3": "trn3", "gen4": "trn3", "trn3pre": "trn3", "trn3_a0": "trn3",
}  # fmt: skip


def platform_target(name: str | None = None) -> Target:
    """The target of this name, else that of the environment, else trn3; BadLaunch for others."""
    given = name or os.environ.get(VARIABLE) or DEFAULT
    if given not in NAMES:
        known = ", ".join(NAMES)
        raise BadLaunch(kernel="", problem=f"target {given!r} is none of {known}")
    return get_target(NAMES[given])
