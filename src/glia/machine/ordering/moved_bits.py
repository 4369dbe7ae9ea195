"""Copies of floats whose bits show: those that only engines which keep every bit may run.

The Scalar Engine copies through float32, which makes a signalling NaN quiet. Small negative
integers that are read as floats are such patterns. What arithmetic on floats has made is a number
or any NaN, and where only such arithmetic reads a copy no result differs: those may run anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glia.isa.instructions.dma import Transfer
from glia.isa.instructions.vector import TensorCopy
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.ir import Program, walk


class MovedBits:
    """Which copies of a program show bits that may be any, by the tiles that they copy.

    Bits may be any in inputs, in constants, and in tiles that are read or written in another dtype
    than their own; they show in outputs and in such tiles. Both pass through what moves.
    """

    def __init__(self, program: Program) -> None:
        self._to: dict[str, set[str]] = {}
        self._from: dict[str, set[str]] = {}
        arbitrary = {binding.tile.name for binding in program.inputs} | program.constants.keys()
        shown = {binding.tile.name for binding in program.outputs}
        for instruction in walk(program.body):
            read, written = [*instruction.read_patterns()], [*instruction.written_patterns()]
            views = {p.tile.name for p in (*read, *written) if p.dtype is not p.tile.dtype}
            arbitrary |= views
            shown |= views
            if _may_move_bits(instruction):
                self._add(read, written)
        self._arbitrary = _reached(arbitrary, self._to)
        self._shown = _reached(shown, self._from)

    def _add(self, read: Iterable[Pattern], written: Iterable[Pattern]) -> None:
        for source in read:
            for destination in written:
                self._to.setdefault(source.tile.name, set()).add(destination.tile.name)
                self._from.setdefault(destination.tile.name, set()).add(source.tile.name)

    def __contains__(self, instruction: object) -> bool:
        return (
            isinstance(instruction, TensorCopy)
            and instruction.src.tile.name in self._arbitrary
            and instruction.dst.tile.name in self._shown
            and instruction.is_exact
        )


def _may_move_bits(instruction: Instr) -> bool:
    """Whether bits of what an instruction reads may be in what it writes."""
    return (
        instruction.is_exact
        or isinstance(instruction, Transfer | CrossCoreInstr)
        or instruction.arrives_by_dma
        or instruction.arrives == "memory"
        or any(declared.is_raw for _, declared, _ in instruction.operands())
    )


def _reached(start: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    found = set(start)
    left = list(found)
    while left:
        new = edges.get(left.pop(), set()) - found
        found |= new
        left += new
    return found
