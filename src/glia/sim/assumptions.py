"""What simulated results assume beyond the public documentation."""

from __future__ import annotations

from collections.abc import Iterator

from glia.arch import get_target
from glia.isa.activation import ACTIVATIONS
from glia.isa.instructions.scalar import TableFunction
from glia.isa.kit import Instr
from glia.machine.ir import Program

ALWAYS = (
    "rounding modes other than to nearest, ties to even; stochastic rounding is not modelled",
    "memory errors and their correction",
)
SEMAPHORES = "the number of semaphores of a core, and the width of their counts"
TRANSFERS = "the order in which the bytes of a transfer arrive; those of a queue end in order"
FIRST_GENERATION = "NeuronCore-v1 itself: its programs run as on NeuronCore-v2"
BEYOND_RANGE = "{function} outside {low:g}..{high:g}, its documented range: its own value is taken"


def not_modelled(*programs: Program) -> tuple[str, ...]:
    """The assumptions behind simulated results of these programs, without duplicates."""
    found: dict[str, None] = dict.fromkeys(ALWAYS)
    for program in programs:
        if not get_target(program.target).arch.capabilities.is_documented:
            found[FIRST_GENERATION] = None
        for instr in program.instructions():
            found.update(dict.fromkeys(_instruction_assumptions(instr)))
    return tuple(found)


def _instruction_assumptions(instr: Instr) -> Iterator[str]:
    if instr.waits or instr.signals:
        yield SEMAPHORES
    if instr.queue:
        yield TRANSFERS
    touches_none = instr.states and not any(instr.states_touched())
    if not touches_none:
        yield from (f"{instr.mnemonic()}: {sentence}" for sentence in instr.assumed)
    if isinstance(instr, TableFunction):
        function = ACTIVATIONS.get(getattr(instr, "function", ""))
        if function is not None and (function.low, function.high) != (-_INFINITY, _INFINITY):
            yield BEYOND_RANGE.format(function=function.name, low=function.low, high=function.high)


_INFINITY = float("inf")
