"""Shared resources on which later work may use the time that earlier work left free."""

from __future__ import annotations

SMALLEST_GAP = 10_000  # picoseconds; a shorter gap serves no descriptor
MOST_GAPS = 64  # remembered per lane; older gaps count as used

Lane = list[int]  # [gap start, gap end, gap start, gap end, ..., start of the free end]


def place(lane: Lane, ready: int, work: int, horizon: int) -> tuple[Lane, int, int]:
    """Serve `work` picoseconds from `ready` on, in the earliest free time.

    Work may be split: it stands for many short descriptors or accesses. Nothing will ever be
    placed before `horizon` again. Returns the new lane, the first and the last moment of service.
    """
    if work <= 0:
        return lane, ready, ready
    kept: Lane = []
    first, end = -1, ready
    for position in range(0, len(lane) - 1, 2):
        start, stop = lane[position], lane[position + 1]
        if stop - max(start, horizon) < SMALLEST_GAP:
            continue
        if stop <= ready or not work:
            kept += (start, stop)
            continue
        begin = max(start, ready)
        taken = min(work, stop - begin)
        if begin - start >= SMALLEST_GAP:
            kept += (start, begin)
        if stop - begin - taken >= SMALLEST_GAP:
            kept += (begin + taken, stop)
        first = begin if first < 0 else first
        work, end = work - taken, begin + taken
    tail = lane[-1]
    if work:
        begin = max(tail, ready)
        if begin - tail >= SMALLEST_GAP:
            kept += (tail, begin)
        first = begin if first < 0 else first
        end = tail = begin + work
    kept = kept[-2 * MOST_GAPS :]
    kept.append(tail)
    return kept, first, end
