"""Operands whose elements an index on chip chooses, as `.indirect()` makes them.

An instruction with such operands is issued on tiles that hold the chosen elements alone: what it
reads is gathered before it, what it writes is scattered after it, on the instruction's own engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glia import isa
from glia.arch import Arch
from glia.isa.kit import Indirect, Instr
from glia.isa.operand import Pattern
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray


@dataclass(frozen=True)
class Chosen:
    """An operand by its name, its view, the whole that is chosen from, and the tile for it."""

    name: str
    view: NkiTensor
    table: NkiTensor
    tile: NkiTensor

    @property
    def index(self) -> NkiTensor:
        """The offsets."""
        assert self.view.indirection is not None
        return self.view.indirection.index


def set_aside(name: str, view: NkiTensor) -> Chosen:
    """The operand, with a tile beside it in the same memory."""
    view.require_inside()
    tile = ndarray(view.shape, view.dtype, view.buffer, "chosen")
    return Chosen(name, view, whole_of(view), tile)


def whole_of(view: NkiTensor) -> NkiTensor:
    """All elements that an index may choose."""
    indirection = view.indirection
    assert indirection is not None
    table = view._with((view.dims[0], (indirection.step, indirection.rows)))
    table.indirection = None
    return table


def broken_rule(arch: Arch, instruction: Instr, operands: list[Chosen]) -> str:
    """Which rule of the generation or of the instruction its indirect operands break."""
    allowed = instruction.indirect
    found = {each.name: each for each in operands}
    for name in found:
        if allowed is None or name not in allowed.operands:
            return f"{name} cannot be an indirect view; copy it to a tile with tensor_copy first"
    assert allowed is not None
    if not arch.capabilities.has_indirect_views:
        first = min(isa.TensorGather.generations)
        return f"takes indirect views ({operands[0].name}) from generation {first} on"
    if allowed.engines and instruction.runs_on not in allowed.engines:
        return f"indirect views are for {' and '.join(allowed.engines)} engines"
    indices = {name: each.index.pattern for name, each in found.items()}
    for sentence, holds in allowed.rules:
        if not holds(instruction, indices):
            return sentence
    return _broken_start(allowed, instruction, found)


def _broken_start(allowed: Indirect, instruction: Instr, found: dict[str, Chosen]) -> str:
    """The index of the written operand starts on the partition of the operand beside it."""
    written, beside = found.get(allowed.operands[0]), found.get(allowed.beside)
    if written is None:
        return ""
    other = getattr(instruction, allowed.beside)
    if beside is not None:  # an operand starts on the partition of its own index
        other = beside.index.pattern
    elif not isinstance(other, Pattern) or other.memory.name != "SBUF":
        return ""
    if written.index.pattern.partition == other.partition:
        return ""
    return f"the index of {written.name} must start on the same partition as {allowed.beside}"


def transfer(instruction: Instr, each: Chosen, is_write: bool) -> tuple[type[Instr], Any]:
    """What gathers an operand of the instruction or scatters it, and its arguments."""
    assert instruction.indirect is not None
    fields = {"index": each.index, "group": instruction.indirect.group}
    if is_write:
        return isa.TensorScatter, {"dst": each.table, "src": each.tile, **fields}
    return isa.TensorGather, {"dst": each.tile, "src": each.table, **fields}
