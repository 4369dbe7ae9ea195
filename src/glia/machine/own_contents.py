"""Tiles with addresses of which a program reads only what it has written to them before.

Kernels may give two tiles one address to pass bytes from one to the other. Of a tile with such a
neighbour the bytes belong to both, for as long as they may be read. A tile that is written
before it is read, all of it that is, needs its bytes from its first access to its last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import reduce
from typing import Any

import numpy as np

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.machine.ir import Loop, Program, Statement, walk

Array = np.ndarray[Any, Any]


def tiles_with_own_contents(program: Program, names: Collection[str]) -> set[str]:
    """Those of some tiles on chip whose reads are all of what earlier accesses to them wrote.

    What a variable moves, or control flow at run time may leave out, is not known to be written.
    """
    written: dict[str, Array] = {}
    found = {*names}
    for instruction, is_certain in _in_order(program.body, is_certain=True):
        for pattern in instruction.read_patterns():
            name = pattern.tile.name
            if name in found and not (name in written and _is_written(pattern, written[name])):
                found.discard(name)
        for pattern in instruction.written_patterns():
            if is_certain and pattern.tile.name in found and pattern.has_constant_start:
                tile = pattern.tile
                shape = tile.partitions, tile.bytes_per_partition
                mask = written.setdefault(tile.name, np.zeros(shape, bool))
                mask[_place(pattern)] = True
    return {name for name in found if program.tiles[name].memory is not Memory.HBM}


def _in_order(body: tuple[Statement, ...], *, is_certain: bool) -> Iterator[tuple[Instr, bool]]:
    """Every instruction in program order, and whether it runs whenever its block does."""
    for statement in body:
        if isinstance(statement, Instr):
            yield statement, is_certain
        elif isinstance(statement, Loop):
            yield from _in_order(statement.body, is_certain=is_certain)
        else:
            yield from ((each, False) for each in walk((statement,)))


def _is_written(pattern: Pattern, mask: Array) -> bool:
    """Whether all that a pattern reads is: of one that a variable moves the whole tile."""
    return bool(mask[_place(pattern)].all() if pattern.has_constant_start else mask.all())


def _place(pattern: Pattern) -> tuple[Array, ...]:
    """The rows and the bytes in them that a pattern touches, to index a mask with."""
    (step, rows), *free = pattern.dims
    width = pattern.dtype.bytes
    elements = reduce(_spread, free, np.array([pattern.offset.constant], np.int64))
    columns = (elements[:, None] * width + np.arange(width)).reshape(-1)
    return np.ix_(pattern.partition.constant + step * np.arange(rows), np.unique(columns))


def _spread(starts: Array, dim: tuple[int, int]) -> Array:
    """The elements from each start on, with a step and a count."""
    step, count = dim
    found: Array = (starts[:, None] + step * np.arange(count)).reshape(-1)
    return found
