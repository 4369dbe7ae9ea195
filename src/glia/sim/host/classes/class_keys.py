"""What instructions of one class have in common, and what else decides about their calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.sim.host.traced import Shape
from glia.sim.memory import Memories


@dataclass(frozen=True)
class Operands:
    """Steps of the patterns of one instruction in the memories of this run."""

    pitches: tuple[tuple[str, int], ...]  # bytes from partition to partition, by operand

    @staticmethod
    def of(instr: Instr, memories: Memories) -> Operands:
        """How the operands of an instruction lie in these memories."""
        pitches = {
            name: memories.region(pattern.tile).pitch
            for name, _, pattern in instr.operands()
            if (name not in instr.hints or instr.index_checks())
            and pattern.memory is not Memory.HBM
        }
        return Operands(tuple(pitches.items()))

    def steps(self, name: str, pattern: Pattern) -> Shape:
        """Bytes that each dimension steps by."""
        width = pattern.dtype.bytes
        if pattern.memory is Memory.HBM:
            return tuple(step * width for step, _ in pattern.dims)
        (first, _), *free = pattern.dims
        return (first * dict(self.pitches)[name], *(step * width for step, _ in free))


def class_key(instr: Instr, operands: Operands) -> tuple[Any, ...]:
    """What instructions of one class have in common."""
    parts: list[Any] = [type(instr), instr.runs_on, operands.pitches]
    for name in instr.operand_declarations:
        value = getattr(instr, name)
        several = value if isinstance(value, tuple) else (value,)
        parts += [(name, *map(_operand_key, several))]
    parts += [
        (name, _attribute_key(value, is_chosen=name in _choosing(instr)))
        for name, value in instr.attributes().items()
        if name not in instr.hints and name not in _NAMES_ONLY
    ]
    parts += [("check", each.limit) for each in instr.index_checks()]
    return tuple(parts)


def _operand_key(value: Any) -> Any:
    if isinstance(value, Pattern):
        return value.memory, value.dtype.name, value.dims
    return None if value is None else "number"


_NAMES_ONLY = ("register",)  # attributes that only say which register is set


def _choosing(instr: Instr) -> tuple[str, ...]:
    """Attributes that choose among calls of a class; see `Choices`."""
    return (*instr.read_when.values(), *instr.sums.values())


def _attribute_key(value: Any, *, is_chosen: bool) -> Any:
    if isinstance(value, float):
        return float, repr(value)  # 0.0 is not -0.0
    if not isinstance(value, Affine):
        return type(value), value
    if value.is_constant:
        return value.constant
    return "varies" if is_chosen else (value.constant, *(factor for _, factor in value.terms))


@dataclass(frozen=True)
class Choices:
    """What decides about the calls of an instruction's class besides the class.

    `sums` is the value of the attribute that says whether an operand is added to, where that
    varies; `unread` are the operands and states of which nothing reads what is written, `large`
    operands in tensors that are larger than caches and not read in the program.
    """

    sums: bool | None = None
    unread: frozenset[str] = frozenset()
    large: frozenset[str] = frozenset()


ALL_RESULTS = Choices()
"""Nothing varies, and everything that is written is read."""


def has_variables(instr: Instr) -> bool:
    """Whether calls of an instruction set a register, or read loop variables or registers."""
    if instr.sets_register is not None:
        return True
    choosing = _choosing(instr)
    return any(
        isinstance(value, Affine) and not value.is_constant
        for name, value in instr.attributes().items()
        if name not in choosing
    )
