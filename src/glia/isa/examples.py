"""Legal examples of instructions, and makers of the tiles and patterns they name."""

from __future__ import annotations

import math

from glia.base.affine import Affine
from glia.base.dtype import F32, DType
from glia.isa.kit import INSTRUCTIONS, Instr
from glia.isa.operand import Memory, Pattern, Tile, row_major


def chip(
    name: str,
    *shape: int,
    dtype: DType = F32,
    memory: str = "SBUF",
    partition: int | Affine = 0,
    offset: int | Affine = 0,
) -> Pattern:
    """A contiguous on-chip pattern [partitions, ...] of a tile just large enough and 128 high."""
    tile = Tile(name, Memory(memory), dtype, 128, max(1, math.prod(shape[1:])))
    dims = ((1, shape[0]), *row_major(shape[1:]))
    return Pattern(tile, dtype, dims, Affine.of(offset), Affine.of(partition))


def hbm(name: str, *shape: int, dtype: DType = F32) -> Pattern:
    """A contiguous pattern over a whole HBM tile."""
    tile = Tile(name, Memory.HBM, dtype, 1, math.prod(shape))
    return Pattern(tile, dtype, row_major(shape))


def examples() -> dict[str, Instr]:
    """The declared example of every instruction, by mnemonic."""
    return {name: instruction.example() for name, instruction in INSTRUCTIONS.items()}
