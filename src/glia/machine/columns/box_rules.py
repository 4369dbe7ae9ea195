"""Whether accesses to one tile share bytes: functions that `base.machine_code.native` compiles.

They say what `footprint.Footprint` says of accesses that no variable moves. `m` is a record of
accesses as `columns.extents` has them; NONE stands for an access to all of a tile.
"""

from __future__ import annotations

from glia.base.machine_code.native_records import Words, words

NONE = -1
FUNCTIONS = ("may_overlap", "interleave", "extent_modulo", "covers")


class BoxRecord:
    """The bytes that accesses touch."""

    first: Words = words("access", "bytes", "the first that it touches")
    last: Words = words("access", "bytes", "the last that it touches")
    top: Words = words("access", "rows", "the first that it touches")
    bottom: Words = words("access", "rows", "the last that it touches")
    shape: Words = words("access", "shape", "what repeats alike; -1 for what a variable moves")
    is_dense: Words = words("access", "flag", "it leaves out no byte between first and last")
    width: Words = words("shape", "bytes", "of its runs")
    step: Words = words("shape offsets", "step", "how its runs repeat")
    step_size: Words = words("step", "bytes", "from one run to the next")
    step_count: Words = words("step", "runs", "how many")


def may_overlap(m: BoxRecord, one: int, other: int) -> int:
    """Whether two accesses of one tile may share a byte; NONE accesses all of it."""
    if other == NONE:
        return 1
    if m.last[one] < m.first[other] or m.last[other] < m.first[one]:
        return 0
    if m.bottom[one] < m.top[other] or m.bottom[other] < m.top[one]:
        return 0
    if m.shape[one] < 0 or m.shape[other] < 0 or (m.is_dense[one] and m.is_dense[other]):
        return 1
    if interleave(m, one, other, one) or interleave(m, one, other, other):
        return 0
    return 1


def interleave(m: BoxRecord, one: int, other: int, by: int) -> int:
    """Whether both stay in disjoint parts of a period that one of them leaves gaps in."""
    apart = m.first[other] - m.first[one]
    step = m.step[m.shape[by]]
    while step < m.step[m.shape[by] + 1]:
        period = m.step_size[step]
        step += 1
        if extent_modulo(m, by, period) < period:
            mine = extent_modulo(m, one, period)
            its = extent_modulo(m, other, period)
            if mine <= apart % period and apart % period + its <= period:
                return 1
    return 0


def extent_modulo(m: BoxRecord, access: int, period: int) -> int:
    """Length in bytes of the interval that it touches modulo a period."""
    shape = m.shape[access]
    length = m.width[shape]
    step = m.step[shape]
    while step < m.step[shape + 1]:
        if m.step_size[step] % period != 0:
            length += m.step_size[step] * (m.step_count[step] - 1)
        step += 1
    return length


def covers(m: BoxRecord, one: int, other: int) -> int:
    """Whether every byte of the other is one of the first's, wherever variables move them."""
    if m.shape[one] < 0:
        return 0
    if m.first[one] > m.first[other] or m.last[one] < m.last[other]:
        return 0
    if m.top[one] > m.top[other] or m.bottom[one] < m.bottom[other]:
        return 0
    if m.is_dense[one]:
        return 1
    return m.shape[one] == m.shape[other] and m.first[one] == m.first[other]
