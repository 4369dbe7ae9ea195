"""The part of HBM that a program's temporaries share."""

from __future__ import annotations

from collections.abc import Collection

from glia.isa.operand import Memory, Tile
from glia.machine.ir import Program


def temporaries_in_hbm(program: Program, shared: Collection[str] = ()) -> list[Tile]:
    """The tiles of HBM that only this program knows: no inputs, outputs or constants.

    `shared` names tiles that other cores access too.
    """
    known = {binding.tile.name for binding in (*program.inputs, *program.outputs)}
    known.update(program.constants, shared)
    tiles = (tile for name, tile in program.tiles.items() if name not in known)
    return [tile for tile in tiles if tile.memory is Memory.HBM]


def scratchpad(program: Program) -> tuple[int, int]:
    """The first address and the bytes of the temporaries in HBM, (0, 0) for none."""
    addresses = program.addresses
    tiles = [tile for tile in temporaries_in_hbm(program) if tile.name in addresses]
    start = min((addresses[tile.name] for tile in tiles), default=0)
    return start, max((addresses[t.name] + t.bytes for t in tiles), default=start) - start


def bytes_in_hbm(program: Program) -> int:
    """Bytes of inputs, outputs and constants, and of the scratchpad."""
    temporaries = {tile.name for tile in temporaries_in_hbm(program)}
    tiles = (t for t in program.tiles.values() if t.memory is Memory.HBM)
    return sum(t.bytes for t in tiles if t.name not in temporaries) + scratchpad(program)[1]
