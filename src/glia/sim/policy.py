"""How strictly a run treats a program, and the faults it can end in."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from glia.base.loc import UNKNOWN, Loc

MOST_ITERATIONS = 10_000_000


def _most_iterations() -> int:
    given = os.environ.get("NEURON_SIM_MOST_ITERATIONS", "")
    return int(given) if given.isdecimal() else MOST_ITERATIONS


@dataclass(frozen=True)
class Policy:
    """What a run checks and how it fills memory nobody has written.

    `poison` is the byte that fills fresh memory (0xFF makes every float a NaN), None leaves it
    zero. `check_initialized` makes it a fault to read an element that nothing has written, or that
    was overwritten through another tile at its address. `check_activation_range` makes an
    argument outside a function's documented range a fault. A while loop ends in EndlessLoop after
    `most_iterations` (NEURON_SIM_MOST_ITERATIONS in the environment).
    """

    poison: int | None = 0xFF
    check_initialized: bool = False
    check_activation_range: bool = False
    is_precise: bool = True  # else tf32, bf16 and 8-bit floats are held in float32
    most_iterations: int = field(default_factory=_most_iterations)


class ExecutionFault(Exception):
    """A program did something the machine cannot do; says which instruction and source line."""

    def __init__(self, message: str, *, instruction: str = "", loc: Loc = UNKNOWN) -> None:
        self.message = message
        self.instruction = instruction
        self.loc = loc
        lines = [message]
        if instruction:
            lines.append(f"  instruction: {instruction}")
        if str(loc):
            lines.append(f"  source: {loc}")
        super().__init__("\n".join(lines))


class AccessOutOfBounds(ExecutionFault):
    """An access pattern or an index left its tile."""


class UninitializedRead(ExecutionFault):
    """An instruction read an element that nothing had written."""


class StaleRead(ExecutionFault):
    """An instruction read a tile whose bytes had been overwritten through another tile."""


class ArgumentOutOfRange(ExecutionFault):
    """An activation function was given an argument outside its documented range."""
