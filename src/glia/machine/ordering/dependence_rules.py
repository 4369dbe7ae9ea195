"""What must keep its order in a run of instructions: functions in machine code.

An instruction depends on every earlier one that touches what it touches, if one of the two writes,
and on the last that uses the same registers, states or meetings. `m` is the record that
`machine.ordering.task_graph` makes.
"""

from __future__ import annotations

from glia.base.machine_code.native_records import Words, words
from glia.machine.columns.box_rules import (  # noqa: F401 - compiled with the functions here
    BoxRecord,
    extent_modulo,
    interleave,
)

NONE = -1
FUNCTIONS = (
    "find_dependences", "depend_on_chains", "depend_on_tiles", "depend_on_aliases", "depend",
    "may_share", "are_bytes_apart", "interleave", "extent_modulo",
)  # fmt: skip


class RunRecord(BoxRecord):
    """The instructions of a run, which are nodes, and the dependences between them."""

    nodes: Words = words("1", "nodes", "how many there are")
    found: Words = words("1", "dependences", "how many there are so far")
    room: Words = words("1", "dependences", "for which there is space")
    chain: Words = words("node offsets", "link", "the chains it is in")
    chain_of: Words = words("link", "chain", "whose nodes keep their order")
    chain_last: Words = words("chain", "node", "the last so far; -1 for none")
    begin: Words = words("node offsets", "access", "its accesses")
    node_of: Words = words("access", "node", "that makes it")
    tile: Words = words("access", "tile", "it touches; -1 where nothing can conflict")
    is_write: Words = words("access", "flag", "it writes")
    is_read: Words = words("access", "flag", "it reads")
    start: Words = words("access", "terms", "that move its bytes: 0 none, -1 those of registers")
    row: Words = words("access", "terms", "that move its rows, the same")
    earlier: Words = words("access", "access", "of the same tile, the one before; -1 for none")
    latest: Words = words("tile", "access", "the last so far; -1 for none")
    alias: Words = words("tile offsets", "alias", "tiles whose addresses meet its own")
    alias_tile: Words = words("alias", "tile", "such a tile")
    pred: Words = words("node offsets", "dependence", "its dependences")
    source: Words = words("dependence", "node", "that is waited for")
    is_result: Words = words("dependence", "flag", "what the source writes is read")
    slot: Words = words("node", "dependence", "of the present node on this one; -1 for none")


def find_dependences(m: RunRecord) -> int:
    """Fill `pred`, `source` and `is_result`; returns 0, or 1 where the space does not suffice."""
    node = 0
    while node < m.nodes[0]:
        m.pred[node] = m.found[0]
        if m.found[0] + node > m.room[0]:
            return 1
        depend_on_chains(m, node)
        access = m.begin[node]
        while access < m.begin[node + 1]:
            if m.tile[access] >= 0:
                depend_on_tiles(m, access)
                depend_on_aliases(m, access)
            access += 1
        access = m.begin[node]
        while access < m.begin[node + 1]:
            if m.tile[access] >= 0:
                m.earlier[access] = m.latest[m.tile[access]]
                m.latest[m.tile[access]] = access
            access += 1
        edge = m.pred[node]
        while edge < m.found[0]:
            m.slot[m.source[edge]] = NONE
            edge += 1
        node += 1
    m.pred[node] = m.found[0]
    return 0


def depend_on_chains(m: RunRecord, node: int) -> int:
    """What keeps its order whatever it touches."""
    link = m.chain[node]
    while link < m.chain[node + 1]:
        last = m.chain_last[m.chain_of[link]]
        if last >= 0 and last != node:
            depend(m, last, 0)
        m.chain_last[m.chain_of[link]] = node
        link += 1
    return 0


def depend_on_tiles(m: RunRecord, access: int) -> int:
    """Depend on earlier accesses of the same tile that may touch the same bytes."""
    other = m.latest[m.tile[access]]
    while other >= 0:
        if (m.is_write[access] or m.is_write[other]) and may_share(m, access, other):
            depend(m, m.node_of[other], m.is_read[access] and m.is_write[other])
        other = m.earlier[other]
    return 0


def depend_on_aliases(m: RunRecord, access: int) -> int:
    """Depend on earlier accesses of the tiles whose addresses meet this one's."""
    alias = m.alias[m.tile[access]]
    while alias < m.alias[m.tile[access] + 1]:
        other = m.latest[m.alias_tile[alias]]
        while other >= 0:
            if m.is_write[access] or m.is_write[other]:
                depend(m, m.node_of[other], 0)
            other = m.earlier[other]
        alias += 1
    return 0


def depend(m: RunRecord, source: int, is_result: int) -> int:
    """Add a dependence of the present node, once."""
    known = m.slot[source]
    if known >= 0:
        m.is_result[known] = m.is_result[known] | is_result
        return 0
    edge = m.found[0]
    m.slot[source] = edge
    m.source[edge] = source
    m.is_result[edge] = is_result
    m.found[0] = edge + 1
    return 0


def may_share(m: RunRecord, one: int, other: int) -> int:
    """False only where two accesses of a tile touch no common byte, whatever the variables are.

    Those that the same terms move are as far apart as without; of others nothing is known, nor of
    registers, which may change in between.
    """
    if m.start[one] == m.start[other] and m.start[one] >= 0 and are_bytes_apart(m, one, other):
        return 0
    is_known = m.row[one] == m.row[other] and m.row[one] >= 0
    return not (is_known and (m.bottom[one] < m.top[other] or m.bottom[other] < m.top[one]))


def are_bytes_apart(m: RunRecord, one: int, other: int) -> int:
    """Whether two accesses that no variable moves share no byte of a row."""
    if m.last[one] < m.first[other] or m.last[other] < m.first[one]:
        return 1
    if m.is_dense[one] and m.is_dense[other]:
        return 0
    return interleave(m, one, other, one) or interleave(m, one, other, other)
