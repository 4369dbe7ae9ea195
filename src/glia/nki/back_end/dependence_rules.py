"""Dependences between the instructions of a straight line: functions in machine code.

Every instruction depends on the earlier ones that touch what it touches, if one of the two writes.
What a write covers it replaces: who comes later depends on the write, which depends on the others.
`m` is the record that `nki.back_end.straight_line` makes.
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

MAXIMUM_KNOWN = 256  # accesses of a tile that are told apart; more become one
ORDER, VISIBLE, COMPLETE = 0, 1, 2  # strength of a dependence, ascending
FUNCTIONS = (
    "find_dependences", "depend_on_tiles", "depend_on_chains", "depend", "strength_of", "are_apart",
    "add_entry", "forget", "join", *box_rules.FUNCTIONS,
)  # fmt: skip


class GraphRecord(BoxRecord):
    """The instructions of a straight line, which are nodes, and the dependences between them."""

    nodes: Words = words("1", "nodes", "how many there are")
    found: Words = words("1", "dependences", "how many there are so far")
    room: Words = words("1", "dependences", "for which there is space")
    begin: Words = words("node offsets", "access", "its accesses")
    engine: Words = words("node", "engine", "that issues it")
    queue: Words = words("node", "queue", "it waits in; -1 for none")
    chain: Words = words("node", "link", "its first chain; -1 for none")
    chain_next: Words = words("link", "link", "the node's next chain; -1 for none")
    chain_of: Words = words("link", "chain", "whose nodes keep their order")
    chain_last: Words = words("chain", "node", "the last so far; -1 for none")
    tile: Words = words("access", "tile", "it touches; -1 where nothing can conflict")
    is_write: Words = words("access", "flag", "it writes")
    is_read: Words = words("access", "flag", "it reads")
    known: Words = words("tile", "entry", "the latest access that is remembered; -1 for none")
    known_count: Words = words("tile", "entries", "how many are remembered")
    entry_next: Words = words("entry", "entry", "of the same tile, an earlier one; -1 for none")
    entry_access: Words = words("entry", "access", "that is remembered; -1 for all of the tile")
    entry_node: Words = words("entry", "node", "that accesses")
    entry_write: Words = words("entry", "flag", "it writes")
    unused: Words = words("1", "entry", "the first of the entries to be used again")
    pred: Words = words("node offsets", "dependence", "its dependences")
    source: Words = words("dependence", "node", "that is waited for")
    strength: Words = words("dependence", "strength", "how long")
    slot: Words = words("node", "dependence", "of the present node on this one; -1 for none")


def find_dependences(m: GraphRecord) -> int:
    """Fill `pred`, `source` and `strength`; returns 0, or 1 where the space does not suffice."""
    node = 0
    while node < m.nodes[0]:
        m.pred[node] = m.found[0]
        depend_on_chains(m, node)
        if m.found[0] + 4 * MAXIMUM_KNOWN > m.room[0] or depend_on_tiles(m, node):
            return 1
        m.pred[node + 1] = m.found[0]
        edge = m.pred[node]
        while edge < m.found[0]:
            m.slot[m.source[edge]] = NONE
            edge += 1
        node += 1
    return 0


def depend_on_chains(m: GraphRecord, node: int) -> int:
    """What keeps its order whatever it touches: registers, generators, blocks in written order."""
    link = m.chain[node]
    while link >= 0:
        chain = m.chain_of[link]
        if m.chain_last[chain] >= 0:
            depend(m, m.chain_last[chain], ORDER)
        m.chain_last[chain] = node
        link = m.chain_next[link]
    return 0


def depend_on_tiles(m: GraphRecord, node: int) -> int:
    """Depend on earlier accesses, then remember the node's own; returns 1 without space."""
    access = m.begin[node]
    while access < m.begin[node + 1]:
        if m.tile[access] >= 0:
            entry = m.known[m.tile[access]]
            while entry >= 0:
                conflicts = m.is_write[access] or m.entry_write[entry]
                if conflicts and may_overlap(m, access, m.entry_access[entry]):
                    depend(m, m.entry_node[entry], strength_of(m, node, access, entry))
                entry = m.entry_next[entry]
        access += 1
        if m.found[0] + 2 * MAXIMUM_KNOWN > m.room[0]:
            return 1
    access = m.begin[node]
    while access < m.begin[node + 1]:
        if m.tile[access] >= 0:
            add_entry(m, node, access)
        access += 1
    return 0


def strength_of(m: GraphRecord, node: int, access: int, entry: int) -> int:
    """How much of what it waits for has to have happened."""
    if are_apart(m, node, m.entry_node[entry]):
        return COMPLETE
    if m.is_read[access] and m.entry_write[entry]:
        return VISIBLE
    return ORDER


def are_apart(m: GraphRecord, one: int, other: int) -> int:
    """Whether two nodes complete in different streams, or in one that tells nothing."""
    return m.queue[one] >= 0 or m.queue[other] >= 0 or m.engine[one] != m.engine[other]


def depend(m: GraphRecord, source: int, strength: int) -> int:
    """Add a dependence of the present node, or strengthen the one there is."""
    known = m.slot[source]
    if known >= 0:
        m.strength[known] = max(m.strength[known], strength)
        return 0
    edge = m.found[0]
    m.slot[source] = edge
    m.source[edge] = source
    m.strength[edge] = strength
    m.found[0] = edge + 1
    return 0


def add_entry(m: GraphRecord, node: int, access: int) -> int:
    """Remember an access; a write forgets what it covers."""
    tile = m.tile[access]
    if m.is_write[access]:
        forget(m, tile, access)
    if m.known_count[tile] >= MAXIMUM_KNOWN:
        join(m, tile, node)
    entry = m.unused[0]
    m.unused[0] = m.entry_next[entry]
    m.entry_access[entry] = access
    m.entry_node[entry] = node
    m.entry_write[entry] = m.is_write[access]
    m.entry_next[entry] = m.known[tile]
    m.known[tile] = entry
    m.known_count[tile] += 1
    return 0


def forget(m: GraphRecord, tile: int, access: int) -> int:
    """Drop the remembered accesses that a write covers."""
    before = NONE
    entry = m.known[tile]
    while entry >= 0:
        following = m.entry_next[entry]
        if m.entry_access[entry] >= 0 and covers(m, access, m.entry_access[entry]):
            if before >= 0:
                m.entry_next[before] = following
            else:
                m.known[tile] = following
            m.entry_next[entry] = m.unused[0]
            m.unused[0] = entry
            m.known_count[tile] -= 1
        else:
            before = entry
        entry = following
    return 0


def join(m: GraphRecord, tile: int, node: int) -> int:
    """Let the present node stand for all accesses that are remembered: it comes after them."""
    entry = m.known[tile]
    while entry >= 0:
        following = m.entry_next[entry]
        other = m.entry_node[entry]
        if other != node:
            is_apart = (
                m.engine[node] != m.engine[other] or m.queue[node] >= 0 or m.queue[other] >= 0
            )
            depend(m, other, COMPLETE if is_apart else ORDER)
        if following >= 0:
            m.entry_next[entry] = m.unused[0]
            m.unused[0] = entry
        else:
            m.entry_access[entry] = NONE
            m.entry_node[entry] = node
            m.entry_write[entry] = 1
            m.known[tile] = entry
        entry = following
    m.known_count[tile] = 1
    return 0
