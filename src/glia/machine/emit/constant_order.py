"""Packing of constants in HBM in the order in which the program reads them.

A weight that is staged box by box becomes one array [loop iterations..., partition, box]: each
partition then reads one contiguous run, whatever the weight's own layout was.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """The packed array; rows beyond the last and places outside guards hold the fill."""
    grids = {
        name: np.arange(extent).reshape([-1 if i == at else 1 for i in range(len(extents))])
        for at, (name, extent) in enumerate(zip(names, extents, strict=True))
    }
    row = grids.pop("row") + grids.pop("block") * box.block
    for dim in box.dims:
        if dim.axis:
            grids[dim.axis] = grids[dim.axis] + _evaluate(dim.low, grids)
    if box.partition:
        grids[box.partition] = row + _evaluate(box.low, grids)
    inside = row < max(box.rows, 1)
    places = []
    guarded = {load.index.index(g.expression): g.extent for g in load.guards}
    for position, expression in enumerate(box.index):
        place = _evaluate(expression, grids)
        extent = min(value.shape[position], guarded.get(position, value.shape[position]))
        inside = inside & (place >= 0) & (place < extent)
        places.append(np.clip(place, 0, value.shape[position] - 1))
    values = np.broadcast_to(value[tuple(places)] if places else value, extents)
    if not np.all(inside):
        values = np.where(inside, values, np.asarray(load.fill, value.dtype))
    return values


def _evaluate(expression: Affine, grids: dict[str, np.ndarray]) -> np.ndarray:
    total = np.asarray(expression.constant)
    for variable, coefficient in expression.terms:
        total = total + coefficient * grids[variable]
    return total
