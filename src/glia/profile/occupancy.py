"""How full an on-chip memory is over time, where its tiles are too many to draw."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from glia.machine.columns.value_numbering import Array
from glia.profile.memory import Residence

COLUMNS = 240  # of time
ROWS = 48  # of addresses


def occupancy(tiles: Sequence[Residence], top: int, end_ns: float) -> list[list[int]]:
    """Percent of bytes and time in use: rows of addresses from 0 to `top`, columns of time.

    Time goes from 0 to `end_ns`. The sum over the cells is that over the tiles, where tiles that
    share bytes at one time count once.
    """
    low = np.array([tile.address for tile in tiles], float)
    high = low + np.array([tile.bytes for tile in tiles], float)
    start = np.array([tile.start_ns for tile in tiles], float)
    end = np.array([tile.end_ns for tile in tiles], float)
    edges = np.linspace(0, end_ns, COLUMNS + 1)
    bounds = np.linspace(0, top, ROWS + 1)
    found = []
    for bottom, ceiling in itertools.pairwise(bounds.tolist()):
        share = (np.minimum(high, ceiling) - np.maximum(low, bottom)) / (ceiling - bottom)
        inside = np.flatnonzero(share > 0)
        used = _used_until(edges, start[inside], end[inside], share[inside])
        cells = 100 * np.diff(used) / np.diff(edges)
        found.append(np.minimum(np.rint(cells), 100).astype(int).tolist())
    return found


def _used_until(moments: Array, start: Array, end: Array, share: Array) -> Array:
    """The share in use, integrated from 0 to each of the ascending moments."""
    turns = np.concatenate([[0.0], start, end])
    order = np.argsort(turns, kind="stable")
    slope = np.cumsum(np.concatenate([[0.0], share, -share])[order])
    turns = turns[order]
    total = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(turns))])
    used: Array = np.interp(moments, turns, total)
    return used
