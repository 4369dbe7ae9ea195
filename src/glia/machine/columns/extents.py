"""Extents of patterns as columns: the box of bytes and rows that each row's pattern lies in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glia.base.affine import ZERO
from glia.isa.operand import Memory, Tile
from glia.machine.columns.table import PatternTable
from glia.machine.columns.value_numbering import Array, group_rows, row_offsets
from glia.machine.footprint import Footprint


@dataclass(frozen=True)
class Extents:
    """By row: bytes `first` to `last` of a tile in its rows `top` to `bottom`.

    Rows of one `shape` touch runs of bytes that repeat alike; `is_dense` where no byte between the
    first and the last is left out. What loop variables or registers move has the extents of its
    tile and the shape -1.
    """

    first: Array
    last: Array
    top: Array
    bottom: Array
    shape: Array
    is_dense: Array
    shapes: list[Footprint]  # one of each shape, at the start of its tile

    def boxes(self, rows: Array) -> dict[str, Array]:
        """The arrays of `box_rules.BoxRecord` for accesses by these patterns."""
        names = ("first", "last", "top", "bottom", "shape", "is_dense")
        steps = [step for each in self.shapes for step in each.steps]
        counts = np.array([len(each.steps) for each in self.shapes], np.int64)
        return {name: getattr(self, name)[rows] for name in names} | {
            "width": np.array([each.width for each in self.shapes], np.int64),
            "step": row_offsets(counts),
            "step_size": np.array([size for size, _ in steps], np.int64),
            "step_count": np.array([count for _, count in steps], np.int64),
        }


def extents_of(patterns: PatternTable) -> Extents:
    """The extents of all patterns."""
    width = patterns.dtype.map(lambda dtype: dtype.bytes)
    is_on_chip = patterns.tile.map(lambda tile: tile.memory is not Memory.HBM)
    shapes = group_rows(patterns.dims.number, width, is_on_chip)
    known = [
        Footprint.at(patterns.dims.distinct[dims], size, ZERO, ZERO, bool(on_chip))
        for dims, size, on_chip in zip(
            patterns.dims.number[shapes.first].tolist(),
            width[shapes.first].tolist(),
            is_on_chip[shapes.first].tolist(),
            strict=True,
        )
    ]
    repeats: dict[object, int] = {}
    shape = [repeats.setdefault((each.width, each.steps), len(repeats)) for each in known]
    low, high, rows, dense, number = (
        np.array(values, np.int64)[shapes.number]
        for values in (
            [each.first for each in known],
            [each.last for each in known],
            [each.rows for each in known],
            [each.is_dense for each in known],
            shape,
        )
    )
    start, top = patterns.offset.constant * width, patterns.partition.constant
    moves = (patterns.offset.terms.map(bool) | patterns.partition.terms.map(bool)) > 0
    return Extents(
        first=np.where(moves, 0, start + low),
        last=np.where(moves, patterns.tile.map(_last_byte), start + high),
        top=np.where(moves, 0, top),
        bottom=np.where(moves, patterns.tile.map(lambda tile: tile.partitions - 1), top + rows - 1),
        shape=np.where(moves, -1, number),
        is_dense=np.where(moves, 0, dense),
        shapes=[known[shape.index(each)] for each in range(len(repeats))],
    )


def _last_byte(tile: Tile) -> int:
    if tile.memory is Memory.HBM:
        return tile.bytes - 1
    return tile.bytes_per_partition - 1
