"""What list schedulers have in common: functions in machine code.

Of the nodes of a run those are available that depend on nothing left and are near the oldest one
left. Tiles are live from their first use to their last, and those that a node adds have to fit.
"""

from __future__ import annotations

from glia.base.machine_code.native_records import Words, words

AVAILABLE, OLDEST_LEFT, NEAR, ISSUED = 0, 1, 2, 3  # of `state`
OWN_STATES = 4  # the first of those that a scheduler has beside them
FUNCTIONS = ("advance", "arrive", "fits", "hold_tiles")


class ListRecord:
    """The nodes of a run, which of them are left, and the tiles that are live."""

    nodes: Words = words("1", "nodes", "how many there are")
    window: Words = words("1", "nodes", "how far behind the oldest one left a node is considered")
    begin_tile: Words = words("node offsets", "use", "the tiles it uses, once each")
    used_tile: Words = words("use", "tile", "that is used")
    tile_memory: Words = words("tile", "memory", "0 for SBUF, 1 for PSUM")
    tile_bytes: Words = words("tile", "bytes", "of a partition; 0 where it has its place already")
    capacity: Words = words("memory", "bytes", "of a partition that may be live")
    waiting: Words = words("node", "nodes", "that it depends on and that are left")
    available: Words = words("slot", "node", "depends on nothing left and is near the oldest")
    is_issued: Words = words("node", "flag", "it has its place")
    uses_left: Words = words("tile", "uses", "that are not issued yet")
    is_live: Words = words("tile", "flag", "it is live")
    live: Words = words("memory", "bytes", "of a partition that are live")
    state: Words = words("state", "see AVAILABLE …", "of the order")


def advance(m: ListRecord) -> int:
    """Find the oldest node left, and bring those that are near it to `available`."""
    while m.state[OLDEST_LEFT] < m.nodes[0] and m.is_issued[m.state[OLDEST_LEFT]]:
        m.state[OLDEST_LEFT] += 1
    end = min(m.nodes[0], m.state[OLDEST_LEFT] + m.window[0])
    while m.state[NEAR] < end:
        if m.waiting[m.state[NEAR]] == 0:
            m.available[m.state[AVAILABLE]] = m.state[NEAR]
            m.state[AVAILABLE] += 1
        m.state[NEAR] += 1
    return 0


def arrive(m: ListRecord, node: int) -> int:
    """Let a node wait for one less."""
    m.waiting[node] -= 1
    if m.waiting[node] == 0 and node < m.state[NEAR]:
        m.available[m.state[AVAILABLE]] = node
        m.state[AVAILABLE] += 1
    return 0


def fits(m: ListRecord, node: int) -> int:
    """Whether the tiles that become live with a node fit beside those that are."""
    added = 0
    other = 0
    use = m.begin_tile[node]
    while use < m.begin_tile[node + 1]:
        tile = m.used_tile[use]
        if not m.is_live[tile]:
            if m.tile_memory[tile] == 0:
                added += m.tile_bytes[tile]
            else:
                other += m.tile_bytes[tile]
        use += 1
    if added and m.live[0] + added > m.capacity[0]:
        return 0
    if other and m.live[1] + other > m.capacity[1]:
        return 0
    return 1


def hold_tiles(m: ListRecord, node: int) -> int:
    """Tiles begin to live at their first use and end at their last."""
    use = m.begin_tile[node]
    while use < m.begin_tile[node + 1]:
        tile = m.used_tile[use]
        if not m.is_live[tile]:
            m.is_live[tile] = 1
            m.live[m.tile_memory[tile]] += m.tile_bytes[tile]
        m.uses_left[tile] -= 1
        if m.uses_left[tile] == 0:
            m.is_live[tile] = 0
            m.live[m.tile_memory[tile]] -= m.tile_bytes[tile]
        use += 1
    return 0
