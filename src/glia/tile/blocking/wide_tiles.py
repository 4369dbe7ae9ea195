"""Tiles wider than an instruction: the nest with such an axis taken apart into blocks and the rest.

A schedule may sweep more values of an axis in one iteration than one instruction takes: 2048
columns of a product's weights, of which 128 lie on the partitions at a time. Emitters see a nest in
which axis i is two, i = width * blocks + i, and the blocks are one more free axis; accesses stay
affine, and one transfer brings all blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.tile.contraction import PARTITIONS, are_uniform
from glia.tile.ir import Axis, Nest, Schedule
from glia.tile.nest_rewriting import substitute_axes


@dataclass(frozen=True)
class SplitNest:
    """A nest and its schedule, with every tile no wider than an instruction.

    `blocks` has the axis of blocks of each axis that was taken apart.
    """

    nest: Nest
    schedule: Schedule
    blocks: dict[str, str]


def split_wide_tiles(nest: Nest, schedule: Schedule, moving_columns: int) -> SplitNest:
    """Take apart the axes whose tiles are wider than an instruction."""
    rows = {schedule.partition, schedule.contract} - {""}
    blocks: dict[str, str] = {}
    for axis in nest.extents:
        tile = schedule.tiles.get(axis, 1)
        most = PARTITIONS if axis in rows else moving_columns
        if tile <= most or not (axis in rows or schedule.engine == "tensor"):
            continue
        width = instruction_width(nest.extents[axis], tile, most)
        blocks[axis] = f"{axis}/{width}"
        nest, schedule = _split(nest, schedule, axis, blocks[axis], width)
    return SplitNest(nest, schedule, blocks)


def instruction_width(extent: int, tile: int, most: int) -> int:
    """The greatest width, `most` or less, that divides both an axis and its tile."""
    common = math.gcd(extent, tile)
    return next(width for width in range(min(most, common), 0, -1) if common % width == 0)


def can_widen(nest: Nest, axis: str) -> bool:
    """Whether an axis can be taken apart: no guard depends on it, and no offset varies."""
    if nest.target.dynamic or not all(map(are_uniform, nest.loads)):
        return False
    guards = (guard.expression for load in nest.loads for guard in load.guards)
    return not any(part.coefficient(axis) for part in guards)


def _split(
    nest: Nest, schedule: Schedule, axis: str, blocks: str, width: int
) -> tuple[Nest, Schedule]:
    """The nest over `blocks`, of this many values of the axis each, and the axis within them."""
    extent = nest.extents[axis]
    both = {axis: Affine.build({blocks: width, axis: 1})}
    split = substitute_axes(nest, both, {})
    axes: list[Axis] = []
    for each in split.axes:
        is_it = each.name == axis
        axes += [Axis(blocks, extent // width), Axis(axis, width)] if is_it else [each]
    reduction = split.reduction
    if reduction and axis in reduction.axes:
        names = [name for old in reduction.axes for name in _names(old, axis, blocks)]
        reduction = replace(reduction, axes=tuple(names))
    tiles = {**schedule.tiles, blocks: schedule.tiles[axis] // width, axis: width}
    order = tuple(blocks if name == axis else name for name in schedule.order)
    return (
        replace(split, axes=tuple(axes), reduction=reduction),
        replace(schedule, tiles=tiles, order=order),
    )


def _names(name: str, axis: str, blocks: str) -> tuple[str, ...]:
    return (blocks, axis) if name == axis else (name,)
