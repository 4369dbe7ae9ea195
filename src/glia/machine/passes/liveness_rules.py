"""A backward pass over the accesses to each tile, as functions in machine code.

`m` is the record that `machine.passes.tile_liveness` makes.
"""

from __future__ import annotations

from glia.base.machine_code.native_records import Words, words
from glia.machine.columns import box_rules
from glia.machine.columns.box_rules import (  # noqa: F401 - compiled with the functions here
    NONE,
    BoxRecord,
    covers,
    extent_modulo,
    interleave,
    may_overlap,
)

MAXIMUM_LIVE = 64  # live accesses of a tile; with more all of the tile counts as live
FUNCTIONS = (
    "find_liveness", "pass_backward", "visit", "is_live", "kill", "covers_live", "make_live",
    "covers_tile", *box_rules.FUNCTIONS,
)  # fmt: skip


class LivenessRecord(BoxRecord):
    """The accesses to tiles on chip, grouped by tile and in program order."""

    tiles: Words = words("1", "tiles", "how many there are")
    begin: Words = words("tile offsets", "access", "its accesses")
    tile_last: Words = words("tile", "bytes", "its last byte")
    tile_bottom: Words = words("tile", "rows", "its last row")
    position: Words = words("access", "instruction", "that accesses")
    is_read: Words = words("access", "flag", "it reads what it touches")
    is_full: Words = words("access", "flag", "it writes all that it touches and reads none of it")
    live: Words = words("slot", "access", "whose bytes are read later; NONE: all of the tile")
    live_first: Words = words("slot", "bytes", "the first of them that are still live")
    live_last: Words = words("slot", "bytes", "the last of them that are still live")
    live_count: Words = words("1", "slots", "how many are in use")
    redefines: Words = words("access", "flag", "no byte of the tile is live before it")
    is_dead: Words = words("access", "flag", "a full write of which nothing is read")
    is_live_in: Words = words("tile", "flag", "bytes are read that no access has written")


def find_liveness(m: LivenessRecord) -> int:
    """Fill `redefines`, `is_dead` and `is_live_in`."""
    tile = 0
    while tile < m.tiles[0]:
        pass_backward(m, tile)
        tile += 1
    return 0


def pass_backward(m: LivenessRecord, tile: int) -> int:
    """Go through the accesses to one tile, those of one instruction together."""
    m.live_count[0] = 0
    end = m.begin[tile + 1]
    while end > m.begin[tile]:
        start = end - 1
        while start > m.begin[tile] and m.position[start - 1] == m.position[end - 1]:
            start -= 1
        visit(m, tile, start, end)
        end = start
    m.is_live_in[tile] = m.live_count[0] > 0
    return 0


def visit(m: LivenessRecord, tile: int, start: int, end: int) -> int:
    """One instruction: its writes end lives and its reads begin them."""
    dead = 1
    reads = 0
    access = start
    while access < end:
        if not m.is_full[access] or is_live(m, access):
            dead = 0
        if m.is_read[access]:
            reads = 1
        access += 1
    access = start
    while access < end:
        m.is_dead[access] = dead
        if m.is_full[access]:
            kill(m, tile, access)
        access += 1
    if m.live_count[0] == 0 and not reads and start > m.begin[tile]:
        m.redefines[start] = 1
    access = start
    while access < end:
        if m.is_read[access]:
            make_live(m, access)
        access += 1
    return 0


def is_live(m: LivenessRecord, access: int) -> int:
    """Whether any byte of an access is read later."""
    slot = 0
    while slot < m.live_count[0]:
        known = m.live[slot]
        meets = m.first[access] <= m.live_last[slot] and m.live_first[slot] <= m.last[access]
        if known == NONE or (meets and may_overlap(m, access, known)):
            return 1
        slot += 1
    return 0


def kill(m: LivenessRecord, tile: int, access: int) -> int:
    """Remove what a full write covers, whole accesses or their bytes at one end."""
    kept = 0
    slot = 0
    while slot < m.live_count[0]:
        if not covers_live(m, tile, access, slot):
            m.live[kept] = m.live[slot]
            m.live_first[kept] = m.live_first[slot]
            m.live_last[kept] = m.live_last[slot]
            kept += 1
        slot += 1
    m.live_count[0] = kept
    return 0


def covers_live(m: LivenessRecord, tile: int, access: int, slot: int) -> int:
    """Whether an access touches all of what a slot of `live` holds; what it leaves is trimmed."""
    known = m.live[slot]
    if known == NONE:
        return covers_tile(m, tile, access)
    if covers(m, access, known):
        return 1
    is_partial = m.top[access] > m.top[known] or m.bottom[access] < m.bottom[known]
    if is_partial or not m.is_dense[access]:
        return 0
    if m.first[access] <= m.live_first[slot]:
        m.live_first[slot] = max(m.live_first[slot], m.last[access] + 1)
    elif m.last[access] >= m.live_last[slot]:
        m.live_last[slot] = min(m.live_last[slot], m.first[access] - 1)
    return m.live_first[slot] > m.live_last[slot]


def make_live(m: LivenessRecord, access: int) -> int:
    """Add what an access reads, unless it is covered already."""
    slot = 0
    while slot < m.live_count[0]:
        known = m.live[slot]
        if known == NONE:
            return 0
        is_whole = m.live_first[slot] == m.first[known] and m.live_last[slot] == m.last[known]
        if is_whole and covers(m, known, access):
            return 0
        slot += 1
    if slot == MAXIMUM_LIVE:
        slot = 0
        m.live[slot] = NONE
    else:
        m.live[slot] = access
        m.live_first[slot] = m.first[access]
        m.live_last[slot] = m.last[access]
    m.live_count[0] = slot + 1
    return 0


def covers_tile(m: LivenessRecord, tile: int, access: int) -> int:
    """Whether an access touches all of a tile."""
    if m.first[access] > 0 or m.last[access] < m.tile_last[tile]:
        return 0
    return m.is_dense[access] and m.top[access] == 0 and m.bottom[access] == m.tile_bottom[tile]
