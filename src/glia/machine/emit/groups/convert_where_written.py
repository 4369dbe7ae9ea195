"""Results that are read by one copy alone are written where, and as what, the copy would.

Engines compute in float32 and round what they write, so that a copy that narrows a float32 tile
takes an engine's time for nothing: exponentials of which float32 sums are needed, and bfloat16
values, are one activation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.dtype import F32
from glia.isa.instructions.dma import Transfer
from glia.isa.instructions.vector import TensorCopy
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.layout import fold_dims
from glia.machine.ir import Program, Statement, walk, with_blocks
from glia.machine.legal_instruction import violations
from glia.options import CompileOptions


def convert_where_written(program: Program, options: CompileOptions) -> Program:
    """The program without copies of what one instruction has written for them alone."""
    names = ({p.tile.name for p in each.patterns()} for each in walk(program.body))
    uses = Counter(name for each in names for name in each)
    merger = _Merger(uses, get_target(program.target).arch)
    body = merger.block(program.body)
    tiles = {name: tile for name, tile in program.tiles.items() if name not in merger.gone}
    return replace(program, body=body, tiles=tiles) if merger.gone else program


class _Merger:
    """Merges copies into what they copy; `uses` counts the instructions that access a tile."""

    def __init__(self, uses: Counter[str], arch: Arch) -> None:
        self.uses = uses
        self.arch = arch
        self.gone: set[str] = set()

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The statements of a block, with copies merged."""
        result: list[Statement] = []
        for each in body:
            if isinstance(each, TensorCopy) and self._is_merged(result, each):
                self.gone.add(each.src.tile.name)
            else:
                result.append(with_blocks(each, self.block))
        return tuple(result)

    def _is_merged(self, before: list[Statement], copy: TensorCopy) -> bool:
        """Whether what a copy reads is written as its result now, by one of those before it."""
        source, target = copy.src, copy.dst
        is_float = source.dtype.is_float and target.dtype.is_float
        narrows = source.dtype is F32 or source.dtype is target.dtype
        is_own = self.uses[source.tile.name] == 2 and source.dtype is source.tile.dtype
        if not (is_float and narrows and is_own) or target.memory is not Memory.SBUF:
            return False
        for position in reversed(range(len(before))):
            accessed = {p.tile.name for i in walk((before[position],)) for p in i.patterns()}
            if source.tile.name in accessed:
                each = before[position]
                merged = self._merged(each, copy) if isinstance(each, Instr) else None
                if merged is not None and target.tile.name not in accessed:
                    before[position] = merged
                    return True
                return False
            if target.tile.name in accessed:
                return False
        return False

    def _merged(self, writer: Instr, copy: TensorCopy) -> Instr | None:
        """An instruction with the result of a copy in place of its own; None where that differs."""
        dst = getattr(writer, "dst", None)
        if not isinstance(dst, Pattern) or isinstance(writer, Transfer) or writer.arrives_by_dma:
            return None
        rounds = not writer.is_exact and any(True for _ in writer.read_patterns())
        is_alike = copy.dst.dtype is copy.src.dtype or isinstance(writer, TensorCopy)
        is_shaped = copy.dst.shape == copy.src.shape
        if writer.runs_on == "tensor" or not (is_shaped and (rounds or is_alike)):
            return None
        target, source = fold_dims((copy.dst, copy.src))
        if fold_dims((dst,))[0] != source or dst in writer.read_patterns():
            return None
        shaped = _shaped(target, dst)
        changed: dict[str, Any] = {"dst": shaped}
        found = replace(writer, **changed)
        return None if shaped is dst or violations(found, self.arch) else found


def _shaped(target: Pattern, dst: Pattern) -> Pattern:
    """The elements of a pattern in the dimensions of another, where its steps allow; else `dst`."""
    if target.shape == dst.shape:
        return target
    if len(target.dims) != 2:
        return dst
    step, dims = target.dims[1][0], []
    for count in reversed(dst.shape[1:]):
        dims.append((step, count))
        step *= count
    return replace(target, dims=(target.dims[0], *reversed(dims)))
