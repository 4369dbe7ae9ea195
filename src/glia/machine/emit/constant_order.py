"""Packing of constants in HBM in the order in which the program reads them.

A weight that is staged box by box becomes one array [loop iterations..., partition, box]: each
partition then reads one contiguous run, whatever the weight's own layout was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glia.base.affine import ZERO, Affine
from glia.base.dtype import PRED
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.box import Box, storage_dtype
from glia.tile.ir import Load

MAXIMUM_GROWTH = 2  # limit of packed elements over elements: packing repeats overlapping boxes


def pack(
    builder: BlockBuilder, parts: Sequence[tuple[Load, Box]], value: np.ndarray
) -> Pattern | None:
    """Pack a constant's boxes into a new HBM tile; the pattern of the box in the open loops.

    Boxes of several `parts`, which are alike, follow each other along the rows. None when the
    packed constant would be too large, or when a register selects the box.
    """
    load, box = parts[0]
    variables = {v for e in (*box.index, box.low) for v in e.variables}
    loops = [v for v in builder.open_loops if v in variables]
    known = {*loops, *box.env, box.partition}
    if not variables <= known:
        return None
    trips = [builder.open_loops[v] for v in loops]
    rows = box.block if box.partition else 1
    extents = [*trips, rows, box.blocks, *(dim.extent for dim in box.dims)]
    count = int(np.prod(extents, dtype=np.int64)) * len(parts)
    if count > MAXIMUM_GROWTH * max(value.size, 64):
        return None
    names = [*loops, "row", "block", *box.free]
    gathered = [_gather(*part, value, names, extents) for part in parts]
    packed, rows = np.concatenate(gathered, len(trips)).reshape(-1), rows * len(parts)
    dtype = storage_dtype(load.dtype)
    tile = builder.tile(f"{load.buffer}.packed", Memory.HBM, dtype, 1, count)
    builder.constants[tile.name] = packed.astype(np.uint8) if load.dtype is PRED else packed
    run = count // (int(np.prod(trips, dtype=np.int64)) * rows)
    offset, stride = ZERO, run * rows
    for variable, extent in zip(reversed(loops), reversed(trips), strict=True):
        offset = offset + Affine.of(variable) * stride
        stride *= extent
    return Pattern(tile, dtype, ((run if box.partition else 0, rows), (1, run)), offset)


def _gather(
    load: Load, box: Box, value: np.ndarray, names: list[str], extents: list[int]
) -> np.ndarray:
    """The packed array; rows beyond the last and places outside guards hold the fill.

    Where there are none of these it is a view of the constant.
    """
    sizes = dict(zip(names, extents, strict=True))
    row, places = _places(box, names)
    guarded = {load.index.index(g.expression): g.extent for g in load.guards}
    limits = [min(n, guarded.get(position, n)) for position, n in enumerate(value.shape)]
    bounded = [(row, max(box.rows, 1)), *zip(places, limits, strict=True)]
    is_forward = all(factor > 0 for each in places for _, factor in each.terms)
    if is_forward and all(_is_within(each, limit, sizes) for each, limit in bounded):
        begin: tuple[Any, ...] = (*(slice(each.constant, None) for each in places), ...)
        first = value[begin]
        steps = [_bytes_of_step(name, places, value.strides) for name in names]
        return np.lib.stride_tricks.as_strided(first, extents, steps, writeable=False)
    grids = {
        name: np.arange(extent).reshape([-1 if i == at else 1 for i in range(len(extents))])
        for at, (name, extent) in enumerate(zip(names, extents, strict=True))
    }
    inside = _evaluate(row, grids) < max(box.rows, 1)
    found = []
    for each, size, limit in zip(places, value.shape, limits, strict=True):
        place = _evaluate(each, grids)
        inside = inside & (place >= 0) & (place < limit)
        found.append(np.clip(place, 0, size - 1))
    values = np.broadcast_to(value[tuple(found)] if found else value, extents)
    if not np.all(inside):
        values = np.where(inside, values, np.asarray(load.fill, value.dtype))
    return values


def _places(box: Box, names: list[str]) -> tuple[Affine, list[Affine]]:
    """The row of a box, and the index of an element in the constant, by what packs it."""
    at = {name: Affine.of(name) for name in names}
    row = at.pop("row") + at.pop("block") * box.block
    for dim in box.dims:
        if dim.axis:
            at[dim.axis] = at[dim.axis] + dim.low.substitute(at)
    if box.partition:
        at[box.partition] = row + box.low.substitute(at)
    return row, [each.substitute(at) for each in box.index]


def _is_within(expression: Affine, limit: int, sizes: Mapping[str, int]) -> bool:
    low, high = expression.bounds(sizes)
    return low >= 0 and high < limit


def _bytes_of_step(name: str, places: Sequence[Affine], strides: Sequence[int]) -> int:
    """Bytes of a constant from one value of a name to the next."""
    pairs = zip(places, strides, strict=True)
    return sum(place.coefficient(name) * stride for place, stride in pairs)


def _evaluate(expression: Affine, grids: Mapping[str, np.ndarray]) -> np.ndarray:
    total = np.asarray(expression.constant)
    for variable, coefficient in expression.terms:
        total = total + coefficient * grids[variable]
    return total
