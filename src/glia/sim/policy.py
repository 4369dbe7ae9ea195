"""The checks that a simulation makes, and the faults that it raises."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from glia.base.errors import CompileError
from glia.base.loc import UNKNOWN, Loc

DEVICE_VARIABLE = "GLIA_DEVICE"  # in the environment: the device where a call names none
DEFAULT_MAX_ITERATIONS = 10_000_000
DEFAULT_MAX_INSTRUCTIONS = 100_000_000  # of a run: some ten minutes


class BadLimit(CompileError):
    """An environment variable that limits a run is not a whole number.

    Cause: NEURON_RT_EXEC_TIMEOUT, NEURON_SIM_MOST_ITERATIONS or NEURON_SIM_MOST_INSTRUCTIONS has a
        sign, a fraction, a unit or a word in it.
    Fix: Set it to digits, or unset it.
    Example: NEURON_RT_EXEC_TIMEOUT=30s glia run model.neff
    """

    code = "GLIA518"
    message = "NRT_INVALID(2): {name} is {value!r}, which is not a whole number"
    help = "set {name} to digits, or unset it"


def _limit_from_environment(name: str, default: int) -> int:
    limit = os.environ.get(name, "").strip()
    if limit and not (limit.isascii() and limit.isdecimal()):
        raise BadLimit(name=name, value=limit)
    return int(limit) if limit else default


def _most_iterations() -> int:
    return _limit_from_environment("NEURON_SIM_MOST_ITERATIONS", DEFAULT_MAX_ITERATIONS)


def _most_instructions() -> int:
    return _limit_from_environment("NEURON_SIM_MOST_INSTRUCTIONS", DEFAULT_MAX_INSTRUCTIONS)


def _timeout_seconds() -> float | None:
    return _limit_from_environment("NEURON_RT_EXEC_TIMEOUT", 0) or None


@dataclass(frozen=True)
class Policy:
    """Optional checks, and the contents of uninitialized memory.

    `poison` is the byte that fills uninitialized memory (0xFF makes every float a NaN); None is
    zero. `check_initialized` raises UninitializedRead and StaleRead. `check_activation_range`
    raises ArgumentOutOfRange. A while loop raises EndlessLoop after `most_iterations`
    (NEURON_SIM_MOST_ITERATIONS in the environment), a run RunTooLarge when it would execute more
    than `most_instructions` (NEURON_SIM_MOST_INSTRUCTIONS), and ExecutionTimeout after
    `timeout_seconds` (NEURON_RT_EXEC_TIMEOUT; None: never).
    """

    poison: int | None = 0xFF
    check_initialized: bool = False
    check_activation_range: bool = False
    is_precise: bool = True  # else tf32, bf16 and 8-bit floats are stored as float32
    most_iterations: int = field(default_factory=_most_iterations)
    most_instructions: int = field(default_factory=_most_instructions)
    timeout_seconds: float | None = field(default_factory=_timeout_seconds)


class ExecutionFault(Exception):
    """A program violated a rule of the machine; names the instruction and its source line."""

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


class MalformedProgram(ExecutionFault):
    """A program's control flow or order is not one that the machine can execute."""


class AccessOutOfBounds(ExecutionFault):
    """An access pattern or an index exceeds its tile."""


class UninitializedRead(ExecutionFault):
    """An instruction read an uninitialized element."""


class StaleRead(ExecutionFault):
    """An instruction read a tile whose bytes had been overwritten through another tile."""


class ArgumentOutOfRange(ExecutionFault):
    """An activation function's argument is outside its documented range."""
