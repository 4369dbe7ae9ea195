"""A program at other addresses of the tensors in HBM that it shares with other cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glia.isa.operand import Pattern
from glia.machine.instruction_rewriting import map_patterns
from glia.machine.ir import Program, walk


def relocated(
    program: Program, shifts: Mapping[str, int], notes: tuple[str, ...]
) -> Program | None:
    """The program with each access of a tile in HBM so many of its elements further on.

    None where that is not a number of elements of an access. Whether accesses stay within their
    tiles, `machine.legal` says.
    """
    distances = {name: shift * program.tiles[name].dtype.bytes for name, shift in shifts.items()}
    for instruction in walk(program.body):
        for pattern in instruction.patterns():
            if distances.get(pattern.tile.name, 0) % pattern.dtype.bytes:
                return None

    def shifted(pattern: Pattern) -> Pattern:
        distance = distances.get(pattern.tile.name, 0)
        if not distance:
            return pattern
        return replace(pattern, offset=pattern.offset + distance // pattern.dtype.bytes)

    body = tuple(map_patterns(each, shifted) for each in program.body)
    return replace(program, body=body, notes=notes)
