"""The constants that simulated times depend on, as text with their sources."""

from __future__ import annotations

from glia.arch import ARCHS
from glia.timing.simulate import TIMED_CONSTANTS


def timing_constants() -> list[str]:
    """One line for each constant of the timing model, those with an assumed value first."""
    rows = [
        (constant.confidence != "assumed", f"{arch.name} {name}", constant)
        for arch in ARCHS
        for name, constant in arch.constants.items()
        if name.partition(".")[0] in TIMED_CONSTANTS
    ]
    return [
        f"{name} = {constant.value:g} {constant.unit} [{constant.confidence}] {constant.source}"
        for _, name, constant in sorted(rows, key=lambda row: row[0])
    ]


def assumed_constants() -> list[str]:
    """One line for each hardware constant whose value no public source gives."""
    return [
        f"{arch.name} {name} = {arch.constants[name].value:g} {arch.constants[name].unit}"
        for arch in ARCHS
        for name in arch.assumed
    ]
