"""The calls of each class of instructions, traced once in a process."""

from __future__ import annotations

from typing import Any

from glia.arch import Arch
from glia.isa.kit import Instr
from glia.sim.host.classes.calls import Lowered
from glia.sim.host.classes.class_keys import Choices, Operands, class_key
from glia.sim.host.instruction_classes import lower, refusal
from glia.sim.host.scalar_code import NotLowered
from glia.sim.host.traced import NotTraceable

_CLASSES: dict[tuple[Any, ...], Lowered | str] = {}


def class_calls(
    instr: Instr, arch: Arch, operands: Operands, choices: Choices, is_staged: bool
) -> Lowered | str:
    """The calls of the instruction's class, or why there are none; each class is traced once."""
    key = (class_key(instr, operands), arch.name, choices, is_staged)
    if key not in _CLASSES:
        try:
            found: Lowered | str = lower(instr, arch, operands, choices, is_staged)
            if isinstance(found, Lowered) and (why := refusal(found)):
                found = why
        except (NotTraceable, NotLowered) as problem:
            found = str(problem)
        _CLASSES[key] = found
    return _CLASSES[key]
