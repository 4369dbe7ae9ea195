"""Operands whose elements are selected by indices on chip: views made by `.indirect()`.

An instruction with such operands is issued on staging tiles: operands that it reads are gathered
into them before it, operands that it writes scattered from them after it, on its own engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glia.arch import Arch
from glia.isa.instructions.indirect import TensorGather, TensorScatter
from glia.isa.kit import Indirect, Instr
from glia.isa.operand import Pattern
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray


@dataclass(frozen=True)
class StagedOperand:
    """An indirect operand: its name, view, the table selected from, and the staging tile."""

    name: str
    view: NkiTensor
    table: NkiTensor
    tile: NkiTensor

    @property
    def index(self) -> NkiTensor:
        """The offsets."""
        assert self.view.indirection is not None
        return self.view.indirection.index


def stage_operand(name: str, view: NkiTensor) -> StagedOperand:
    """The operand with a staging tile in the same memory."""
    view.require_inside()
    tile = ndarray(view.shape, view.dtype, view.buffer, "chosen")
    return StagedOperand(name, view, index_table(view), tile)


def index_table(view: NkiTensor) -> NkiTensor:
    """The direct view of all elements that an index may select."""
    indirection = view.indirection
    assert indirection is not None
    table = view._derive((view.dims[0], (indirection.step, indirection.rows)))
    table.indirection = None
    return table


def indirect_violation(
    arch: Arch, instruction: Instr, operands: list[StagedOperand], names: Mapping[str, str]
) -> str:
    """The rule that the indirect operands of an instruction break; "" for none."""
    allowed = instruction.indirect
    found = {each.name: each for each in operands}
    for name in found:
        if allowed is None or name not in allowed.operands:
            operand = names.get(name, name)
            return f"{operand} cannot be an indirect view; copy it to a tile with tensor_copy first"
    assert allowed is not None
    if not arch.capabilities.has_indirect_views:
        first = min(TensorGather.generations)
        return f"takes indirect views ({operands[0].name}) from generation {first} on"
    if allowed.engines and instruction.runs_on not in allowed.engines:
        return f"indirect views are for {' and '.join(allowed.engines)} engines"
    indices = {name: each.index.pattern for name, each in found.items()}
    for sentence, holds in allowed.rules:
        if not holds(instruction, indices):
            return sentence
    return _start_violation(allowed, instruction, found)


def _start_violation(allowed: Indirect, instruction: Instr, found: dict[str, StagedOperand]) -> str:
    """The violation unless the written operand's index starts on its neighbour's partition."""
    written, beside = found.get(allowed.operands[0]), found.get(allowed.beside)
    if written is None:
        return ""
    other = getattr(instruction, allowed.beside)
    if beside is not None:  # an indirect operand starts on the partition of its index
        other = beside.index.pattern
    elif not isinstance(other, Pattern) or other.memory.name != "SBUF":
        return ""
    if written.index.pattern.partition == other.partition:
        return ""
    return f"the index of {written.name} must start on the same partition as {allowed.beside}"


def staging_copy(
    instruction: Instr, each: StagedOperand, is_write: bool
) -> tuple[type[Instr], Any]:
    """The gather or scatter instruction of a staged operand, and its fields."""
    assert instruction.indirect is not None
    fields = {"index": each.index, "group": instruction.indirect.group}
    if is_write:
        return TensorScatter, {"dst": each.table, "src": each.tile, **fields}
    return TensorGather, {"dst": each.tile, "src": each.table, **fields}
