"""Packing: offsets for blocks of memory that are live in intervals of time, in little space.

The problem is dynamic storage allocation, which is NP-hard. Seen as rectangles (time across, memory
up) whose place in time is given, the heuristic fills a skyline from the bottom: of the blocks that
fit into the lowest span of time, the one that ranks first by some measure comes to lie there; where
none fits, the span rises to its lower neighbour. Several measures are tried, the best result wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SHUFFLED_TRIES = 24  # further attempts with perturbed measures
SHUFFLED_BLOCKS = 1 << 12  # blocks of all such attempts together, at most
CHUNK = 256  # blocks whose greatest rank is kept, so that most are not looked at
NEVER = 1 << 62
GOOD_ENOUGH = 1.02  # times the most that is live at one time: no further attempt
QUICK_BLOCKS = 1 << 16  # of all attempts together; after them less is good enough
GOOD_ENOUGH_AFTER = 1.1


@dataclass(frozen=True)
class Block:
    """`extent` units of memory from the first to the last point in time, both inclusive."""

    extent: int
    first: int
    last: int


def largest_live_set(blocks: Sequence[Block]) -> int:
    """The most memory that is live at one time: no placement needs less."""
    changes = sorted(
        change
        for each in blocks
        for change in ((each.first, 1, each.extent), (each.last + 1, 0, -each.extent))
    )
    live = most = 0
    for _, _, amount in changes:
        live += amount
        most = max(most, live)
    return most


def pack(blocks: Sequence[Block]) -> list[int]:
    """An offset for each block; blocks that are live at one time do not overlap."""
    if not blocks:
        return []
    bound = largest_live_set(blocks)
    timeline = _Timeline(blocks)
    best: tuple[int, list[int]] | None = None
    for number, measure in enumerate(_measures(blocks), start=1):
        offsets = timeline.fill(measure)
        top = max(at + each.extent for at, each in zip(offsets, blocks, strict=True))
        if best is None or top < best[0]:
            best = top, offsets
        is_quick = number * len(blocks) < QUICK_BLOCKS
        if best[0] <= (GOOD_ENOUGH if is_quick else GOOD_ENOUGH_AFTER) * bound:
            break
    assert best is not None
    return best[1]


def _measures(blocks: Sequence[Block]) -> Iterator[Array]:
    """Ranks of the blocks, greatest first: area, duration, both within classes, then perturbed."""
    extent = np.array([each.extent for each in blocks], np.float64)
    duration = np.array([each.last - each.first + 1 for each in blocks], np.float64)
    # of equals the earliest, so that the result does not depend on how they are named
    tie = 1 - np.arange(len(blocks)) / (1 << 40)
    yield extent * duration * tie
    yield duration * tie
    yield extent * np.sqrt(duration) * tie
    yield extent * tie
    generator = np.random.default_rng(0)
    for number in range(min(SHUFFLED_TRIES, SHUFFLED_BLOCKS // len(blocks))):
        power = (0.5, 1.0, 0.0)[number % 3]
        yield extent**power * duration * generator.uniform(0.5, 2.0, len(blocks))


class _Timeline:
    """The blocks in order of their start, with times numbered by the starts and ends of blocks."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        starts = np.array([each.first for each in blocks], np.int64)
        ends = np.array([each.last + 1 for each in blocks], np.int64)
        times = np.unique(np.concatenate([starts, ends]))
        self.order = np.argsort(starts, kind="stable")
        self.start = np.searchsorted(times, starts[self.order])
        self.end = np.searchsorted(times, ends[self.order])
        self.extent = [blocks[row].extent for row in self.order.tolist()]
        self.times = times.size
        # blocks that start at time t have rows row_at[t] to row_at[t + 1]
        self.row_at: list[int] = np.searchsorted(self.start, np.arange(times.size + 1)).tolist()

    def fill(self, measure: Array) -> list[int]:
        """The offsets that the skyline heuristic gives with a measure."""
        skyline, waiting = _Skyline(self.times - 1), _WaitingBlocks(measure[self.order], self.end)
        offsets = [0] * len(self.extent)
        order = self.order.tolist()
        for _ in order:
            begin, end = skyline.lowest()
            while (row := waiting.best(self.row_at[begin], self.row_at[end], end)) < 0:
                skyline.raise_lowest()
                begin, end = skyline.lowest()
            waiting.remove(row)
            place = int(self.start[row]), int(self.end[row])
            offsets[order[row]] = skyline.place(*place, self.extent[row])
        return offsets


class _WaitingBlocks:
    """The blocks without an offset, in chunks of rows, each with its greatest rank and least end.

    A block that has its offset ends NEVER.
    """

    def __init__(self, ranks: Array, end: Array) -> None:
        shape = -(-ranks.size // CHUNK), CHUNK
        self.ranks, self.end = np.zeros(shape), np.full(shape, NEVER)
        self.ranks.reshape(-1)[: ranks.size] = ranks
        self.end.reshape(-1)[: end.size] = end
        self.greatest_rank, self.least_end = self.ranks.max(axis=1), self.end.min(axis=1)

    def remove(self, row: int) -> None:
        """Take a block out."""
        chunk, place = divmod(row, CHUNK)
        self.end[chunk, place] = NEVER
        self.ranks[chunk, place] = -1.0
        self.greatest_rank[chunk] = self.ranks[chunk].max()
        self.least_end[chunk] = self.end[chunk].min()

    def best(self, low: int, high: int, end: int) -> int:
        """Of the rows from `low` to `high` that end by `end`, that of first rank; -1 for none."""
        if high - low <= 4 * CHUNK:
            return self._best_of(low, high, end, 0.0)[0]
        found, rank, first = -1, 0.0, low // CHUNK
        promising = first + np.flatnonzero(self.least_end[first : -(-high // CHUNK)] <= end)
        order = np.argsort(-self.greatest_rank[promising], kind="stable")
        for chunk in promising[order].tolist():
            if self.greatest_rank[chunk] <= rank:
                break
            rows = max(low, chunk * CHUNK), min(high, (chunk + 1) * CHUNK)
            row, its_rank = self._best_of(*rows, end, rank)
            if row >= 0:
                found, rank = row, its_rank
        return found

    def _best_of(self, low: int, high: int, end: int, above: float) -> tuple[int, float]:
        if low == high:
            return -1, above
        ends, ranks = self.end.reshape(-1)[low:high], self.ranks.reshape(-1)[low:high]
        fits = np.where(ends <= end, ranks, -1.0)
        row = int(fits.argmax())
        rank = float(fits[row])
        return (low + row, rank) if rank > above else (-1, above)


class _Skyline:
    """How high memory is filled at each time: spans of equal height, linked in order of time."""

    def __init__(self, end: int) -> None:
        self.height = {0: 0}  # of the span that begins there
        self.next = {0: end}
        self.previous: dict[int, int] = {end: 0}
        self.heap = [(0, 0)]  # (height, begin); entries of spans that changed are stale
        self.end = end

    def lowest(self) -> tuple[int, int]:
        """The begin and end of the lowest span, the first of equals."""
        while self.height.get(self.heap[0][1]) != self.heap[0][0]:
            heapq.heappop(self.heap)
        begin = self.heap[0][1]
        return begin, self.next[begin]

    def raise_lowest(self) -> None:
        """Raise the lowest span to the lower of its neighbours."""
        begin, end = self.lowest()
        sides = [self.height[end]] if end != self.end else []
        if begin:
            sides.append(self.height[self.previous[begin]])
        self._set(begin, min(sides))
        self._merge(begin)

    def place(self, begin: int, end: int, extent: int) -> int:
        """Fill a part of the lowest span; the height before."""
        at, stop = self.lowest()
        height = self.height[at]
        if at < begin:
            self._link(at, begin)
        if end < stop:
            self._link(end, stop)
            self._set(end, height)
        self._link(begin, end)
        self._set(begin, height + extent)
        self._merge(begin)
        return height

    def _link(self, begin: int, end: int) -> None:
        self.next[begin], self.previous[end] = end, begin

    def _set(self, begin: int, height: int) -> None:
        self.height[begin] = height
        heapq.heappush(self.heap, (height, begin))

    def _merge(self, begin: int) -> None:
        """Join a span with neighbours of its height."""
        end = self.next[begin]
        if end != self.end and self.height[end] == self.height[begin]:
            self._absorb(begin, end)
        if begin and self.height[self.previous[begin]] == self.height[begin]:
            self._absorb(self.previous[begin], begin)

    def _absorb(self, begin: int, follower: int) -> None:
        self._link(begin, self.next.pop(follower))
        del self.height[follower]
