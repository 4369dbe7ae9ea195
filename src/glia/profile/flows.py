"""Which execution made what another one reads: the arrows of a trace."""

from __future__ import annotations

import numpy as np

from glia.machine.columns.table import READS, WRITES
from glia.machine.columns.value_numbering import Array, row_offsets
from glia.timing.spans import Executions


def data_flows(run: Executions) -> list[tuple[int, int]]:
    """(producer, consumer) numbers of events, each pair once, by consumer.

    The producer of what an execution reads of a tile is the one that wrote to that tile last, of
    those that had ended when the reader began.
    """
    if not len(run.rows):
        return []
    patterns = run.columns.patterns
    steps = run.rows[:, 0]
    counts = patterns.begin[steps + 1] - patterns.begin[steps]
    events = np.repeat(np.arange(steps.size), counts)
    offsets = np.arange(events.size) - np.repeat(row_offsets(counts)[:-1], counts)
    rows = patterns.begin[steps[events]] + offsets
    tiles, access = patterns.tile.number[rows], patterns.access[rows]
    writes, reads = np.flatnonzero(access != READS), np.flatnonzero(access != WRITES)
    producers = _last_before(
        tiles[writes], run.rows[events[writes], 2], tiles[reads], run.rows[events[reads], 1]
    )
    is_known = producers >= 0
    found = np.stack([events[writes[producers[is_known]]], events[reads[is_known]]], axis=1)
    found = found[found[:, 0] != found[:, 1]]
    pairs = np.unique(found[:, ::-1], axis=0)
    return [(producer, consumer) for consumer, producer in pairs.tolist()]


def _last_before(tiles: Array, ends: Array, wanted: Array, starts: Array) -> Array:
    """For each wanted tile and start, the row of `tiles` and `ends` that ended last by then, or -1.

    Times share their rank, so that a tile and a time are one number.
    """
    moments = np.unique(np.concatenate([ends, starts]))
    width = moments.size + 1
    keys = tiles * width + np.searchsorted(moments, ends)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(
        keys[order], wanted * width + np.searchsorted(moments, starts), side="right"
    )
    found = np.where(place > 0, order[np.maximum(place - 1, 0)], -1) if order.size else place - 1
    is_same = (found >= 0) & (tiles[found] == wanted) if tiles.size else np.zeros(found.size, bool)
    return np.where(is_same, found, -1)
