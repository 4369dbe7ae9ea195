"""How long a tile program takes: compiled by the passes that are left, and timed."""

from __future__ import annotations

from typing import Any

from glia.arch.instances import get_target
from glia.base.errors import CompileError, Misfit
from glia.options import CompileOptions
from glia.pipeline import PIPELINE
from glia.tile.ir import Program
from glia.timing.simulate import simulate_timing


def timed_ns(program: Program, options: CompileOptions, after: str) -> float | None:
    """The simulated nanoseconds of a program on which the passes behind `after` run.

    Nothing recovers: None where the program does not fit on chip as it is.
    """
    names = [each.name for each in PIPELINE]
    made: Any = program
    try:
        for step in PIPELINE[names.index(after) + 1 :]:
            made = step(made, options)
    except (CompileError, Misfit):
        return None
    return simulate_timing(made, get_target(options.target).arch, trace=False).latency_ns
