"""Which tensors a program writes from end to end, whatever its data are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile
from glia.machine.ir import Block, Loop, Program
from glia.sim.host.rewriting.element_moves import takes_arrays

MOST_UNITS = 1 << 22  # parts of a tensor that are looked at; of one with more nothing is said

Dims = list[tuple[int, int]]


def written_tensors(program: Program, names: Collection[str]) -> set[str]:
    """Which of these tiles in HBM have every byte written in every run.

    What is written in branches and in loops whose iterations data decide does not count, nor what
    data choose the elements of.
    """
    found: defaultdict[str, list[tuple[int, Dims]]] = defaultdict(list)
    tiles: dict[str, Tile] = {}
    for pattern, trips in _always_written(program.body, names, {}):
        if set(pattern.offset.variables) <= trips.keys():
            tiles[pattern.tile.name] = pattern.tile
            found[pattern.tile.name].append(_bytes_of(pattern, trips))
    return {name for name, parts in found.items() if _is_whole(tiles[name].bytes, parts)}


def _always_written(
    body: Block, names: Collection[str], trips: Mapping[str, int]
) -> Iterator[tuple[Pattern, dict[str, int]]]:
    """What instructions write whole of these tiles, with the loops around these."""
    for statement in body:
        if isinstance(statement, Loop) and statement.trips > 0:
            yield from _always_written(
                statement.body, names, {**trips, statement.variable: statement.trips}
            )
        elif isinstance(statement, Instr):
            for name, declared, pattern in statement.operands():
                is_whole = declared.access == "writes" or name in statement.read_when
                is_named = is_whole and pattern.tile.name in names
                if is_named and name not in statement.tables and takes_arrays(statement):
                    yield pattern, dict(trips)


def _bytes_of(pattern: Pattern, trips: Mapping[str, int]) -> tuple[int, Dims]:
    """Where in its tile the first byte of a pattern is in all iterations, and the dimensions.

    The first of these is the run of neighbours.
    """
    width = pattern.dtype.bytes
    steps = [(step * width, count) for step, count in pattern.dims]
    steps += [(step * width, trips[name]) for name, step in pattern.offset.terms]
    start = pattern.offset.constant * width
    start += sum(step * (count - 1) for step, count in steps if step < 0)
    run, apart = width, []
    for step, count in sorted((abs(step), count) for step, count in steps if step and count > 1):
        if step <= run:
            run += step * (count - 1)
        else:
            apart.append((step, count))
    return start, [(1, run), *apart]


def _is_whole(size: int, parts: list[tuple[int, Dims]]) -> bool:
    """Whether parts are all bytes of a tile."""
    if not size:
        return True
    unit = math.gcd(size, *(n for start, dims in parts for n in (start, dims[0][1])))
    unit = math.gcd(unit, *(step for _, dims in parts for step, _ in dims[1:]))
    if size // unit > MOST_UNITS:
        return False
    is_written = np.zeros(size // unit, np.bool_)
    for start, ((_, run), *apart) in parts:
        last = start + run - 1 + sum(step * (count - 1) for step, count in apart)
        if start < 0 or last >= size:
            return False  # a run ends there
        shape = [*(count for _, count in apart), run // unit]
        strides = [*(step // unit for step, _ in apart), 1]
        part = is_written[start // unit :]
        np.lib.stride_tricks.as_strided(part, shape, strides)[...] = True
    return bool(is_written.all())
