"""Schedules to fall back on: with smaller tiles, and, slower still, those any emitter can take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from glia.tile.contraction import PARTITIONS
from glia.tile.ir import Nest, Schedule
from glia.tile.passes.schedule import partition_candidates, vector_schedule
from glia.tile.row_search import whole_axes


def smaller_schedules(nest: Nest, schedule: Schedule) -> Iterator[Schedule]:
    """The schedule with ever smaller tiles: the longest free axis halves each time.

    The last has one value of every free axis. Tiles along the partitions take no bytes of a
    partition beyond their first block, and keep that.
    """
    extents = nest.extents
    rows = {schedule.partition, schedule.contract}
    least = {axis: min(PARTITIONS, n) if axis in rows else 1 for axis, n in extents.items()}
    tiles = {axis: schedule.tiles.get(axis, extent) for axis, extent in extents.items()}
    least |= {axis: tiles[axis] for axis in (*schedule.packed, *whole_axes(nest))}
    while True:
        blocks = {axis: -(-tile // least[axis]) for axis, tile in tiles.items()}
        longest = max(blocks, key=lambda axis: blocks[axis], default="")
        if not longest or blocks[longest] == 1:
            return
        tiles[longest] = -(-blocks[longest] // 2) * least[longest]
        order = _with_all_tiled(schedule.order, tiles, extents)
        yield replace(schedule, tiles=dict(tiles), order=order)


def plain_schedules(nest: Nest) -> Iterator[Schedule]:
    """Schedules without the PE, from the fastest to one that computes element by element.

    In turn: each axis on the partitions, with full tiles; then with one value of the other axes;
    at last no axis on the partitions and one value of all. Every access of the last is that of one
    element at an affine address.
    """
    candidates = partition_candidates(nest)
    for axis in candidates:
        yield vector_schedule(nest, axis)
    for axis in (*candidates, ""):
        found = vector_schedule(nest, axis)
        ones = dict.fromkeys(nest.extents, 1) | {a: nest.extents[a] for a in whole_axes(nest)}
        kept = {axis: found.tiles[axis]} if axis else {}
        order = _with_all_tiled(found.order, ones, nest.extents)
        yield replace(found, partition=axis, tiles=ones | kept, order=order)


def _with_all_tiled(
    order: tuple[str, ...], tiles: dict[str, int], extents: dict[str, int]
) -> tuple[str, ...]:
    """The loop order, with the axes that it lacks and that are tiled now innermost."""
    missing = [axis for axis, extent in extents.items() if tiles[axis] < extent]
    return (*order, *(axis for axis in missing if axis not in order))
