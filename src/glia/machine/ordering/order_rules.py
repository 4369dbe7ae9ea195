"""Orders of a run of instructions, and how soon a loop's body repeats: functions in machine code.

Of the instructions whose operands are known and that are near the oldest one left, the next is the
one that can start first; the longest chain of dependents breaks ties, then program order. It is
issued in the way that ends first. Times are picoseconds. `m` is the record that
`machine.ordering.task_graph` makes.
"""

from __future__ import annotations

from glia.base.machine_code.native_records import Words, words
from glia.machine.ordering import list_rules
from glia.machine.ordering.list_rules import (
    AVAILABLE,
    ISSUED,
    NEAR,
    OLDEST_LEFT,
    OWN_STATES,
    ListRecord,
    advance,
    arrive,
    fits,
    hold_tiles,
)

NONE = -1
REPETITIONS = 4  # of a body, after which its iterations follow each other evenly
TABLE = OWN_STATES  # of `state`: the table that is loaded
STATES = OWN_STATES + 1
FUNCTIONS = (
    "list_order", "begin", "find_heights", "choose", "start_of", "load_of", "issue", "release",
    "first_way", "end_way", "shortest", "divide_evenly", "lightest", "repeat", "count_run",
    "start_next", *list_rules.FUNCTIONS,
)  # fmt: skip


class ListOrderRecord(ListRecord):
    """The nodes of a run, their ways, what waits for what, and the state of an order."""

    table_load: Words = words("1", "ps", "to load an activation table where another is loaded")
    first_table: Words = words("1", "table", "that is loaded at first; -1 for none")
    stream_count: Words = words("1", "streams", "how many there are")
    ways: Words = words("node", "ways", "in which it may be issued")
    only: Words = words("node", "variant", "the only one it may be issued in; -1 for any")
    even: Words = words("node", "variant", "with which the busiest engine has the least to do")
    choosing: Words = words("node", "place", "by descending least duration, where it has a choice")
    first_variant: Words = words("ways", "variant", "the first")
    end_variant: Words = words("ways", "variant", "the one after the last")
    issuer: Words = words("ways", "stream", "the engine that issues it; -1 for its own stream")
    issue: Words = words("ways", "ps", "for which it keeps its issuer")
    stream: Words = words("variant", "stream", "that it is issued in")
    duration: Words = words("variant", "ps", "for which it occupies its stream")
    latency: Words = words("variant", "ps", "from its end to its result")
    table: Words = words("variant", "table", "that it needs; -1 for none")
    resource: Words = words("stream", "stream", "that stands for what it occupies")
    is_queue: Words = words("stream", "flag", "it is one of DMA")
    is_used: Words = words("stream", "flag", "a way of a node is in it")
    pred: Words = words("node offsets", "dependence", "what it depends on")
    succ: Words = words("node offsets", "dependent", "what depends on it")
    dependent: Words = words("dependent", "node", "that waits")
    is_read: Words = words("dependent", "flag", "it reads what is written")
    next_succ: Words = words("node offsets", "follower", "in the iteration after it too")
    follower: Words = words("follower", "node", "that waits; of the next iteration beyond `nodes`")
    is_next_read: Words = words("follower", "flag", "it reads what is written")
    uses: Words = words("tile", "uses", "of all nodes")
    is_kept: Words = words("tile", "flag", "it is live throughout")
    start_free: Words = words("stream", "ps", "when it is free at first")
    start_ready: Words = words("node", "ps", "when what it waits for from before is there")
    free: Words = words("stream", "ps", "when it is free")
    ready: Words = words("node", "ps", "when all it waits for has come")
    height: Words = words("node", "ps", "the longest chain from its start to the end")
    order: Words = words("place", "node", "the order")
    chosen: Words = words("place", "variant", "in which the node is issued")
    stream_at: Words = words("node", "stream", "that it is issued in")
    load: Words = words("stream", "ps", "of what it stands for")
    steady_free: Words = words("stream", "ps", "when what it stands for is free, after repetitions")
    steady_ready: Words = words("node, run", "ps", "when it may start")


def list_order(m: ListOrderRecord) -> int:
    """Fill `order` and `chosen`."""
    begin(m)
    find_heights(m)
    while m.state[ISSUED] < m.nodes[0]:
        advance(m)
        issue(m, choose(m))
    return 0


def begin(m: ListOrderRecord) -> int:
    """Set the state to that before the first node."""
    m.state[AVAILABLE] = 0
    m.state[OLDEST_LEFT] = 0
    m.state[NEAR] = 0
    m.state[ISSUED] = 0
    m.state[TABLE] = m.first_table[0]
    node = 0
    while node < m.nodes[0]:
        m.ready[node] = m.start_ready[node]
        m.waiting[node] = m.pred[node + 1] - m.pred[node]
        m.is_issued[node] = 0
        node += 1
    each = 0
    while each < m.stream_count[0]:
        m.free[each] = m.start_free[each]
        each += 1
    m.live[0] = 0
    m.live[1] = 0
    use = 0
    while use < m.begin_tile[m.nodes[0]]:
        tile = m.used_tile[use]
        m.uses_left[tile] = m.uses[tile] + m.is_kept[tile]
        m.is_live[tile] = 0
        use += 1
    use = 0
    while use < m.begin_tile[m.nodes[0]]:
        tile = m.used_tile[use]
        if m.is_kept[tile] and not m.is_live[tile]:
            m.is_live[tile] = 1
            m.live[m.tile_memory[tile]] += m.tile_bytes[tile]
        use += 1
    return 0


def find_heights(m: ListOrderRecord) -> int:
    """Fill `height`, last node first."""
    node = m.nodes[0] - 1
    while node >= 0:
        highest = 0
        edge = m.succ[node]
        while edge < m.succ[node + 1]:
            highest = max(highest, m.height[m.dependent[edge]])
            edge += 1
        own = m.latency[m.first_variant[m.ways[node]]]
        m.height[node] = shortest(m, node) + own + highest
        node -= 1
    return 0


def first_way(m: ListOrderRecord, node: int) -> int:
    """The first variant that a node may be issued in."""
    return m.only[node] if m.only[node] >= 0 else m.first_variant[m.ways[node]]


def end_way(m: ListOrderRecord, node: int) -> int:
    """The variant after the last that a node may be issued in."""
    return m.only[node] + 1 if m.only[node] >= 0 else m.end_variant[m.ways[node]]


def shortest(m: ListOrderRecord, node: int) -> int:
    """The least duration of a node."""
    way = first_way(m, node)
    least = m.duration[way]
    while way < end_way(m, node):
        least = min(least, m.duration[way])
        way += 1
    return least


def choose(m: ListOrderRecord) -> int:
    """The slot of the first of the available nodes that fit; that of the oldest if none does."""
    best = NONE
    best_start = 0
    oldest = 0
    slot = 0
    while slot < m.state[AVAILABLE]:
        node = m.available[slot]
        if node == m.state[OLDEST_LEFT]:
            oldest = slot
        start = start_of(m, node)
        is_better = best == NONE or start < best_start
        if best != NONE and start == best_start:
            other = m.available[best]
            is_better = m.height[node] > m.height[other] or (
                m.height[node] == m.height[other] and node < other
            )
        if is_better and fits(m, node):
            best = slot
            best_start = start
        slot += 1
    return oldest if best == NONE else best


def start_of(m: ListOrderRecord, node: int) -> int:
    """When a node can start; a transfer waits in its queue, and needs only its issuer."""
    free = 0
    issuer = m.issuer[m.ways[node]]
    if issuer >= 0:
        free = m.free[issuer]
    else:
        way = first_way(m, node)
        free = m.free[m.stream[way]]
        while way < end_way(m, node):
            free = min(free, m.free[m.stream[way]])
            way += 1
    return max(free, m.ready[node]) + load_of(m, m.table[m.first_variant[m.ways[node]]])


def load_of(m: ListOrderRecord, table: int) -> int:
    """The time to load a table, if any, where one is loaded."""
    return m.table_load[0] if table >= 0 and table != m.state[TABLE] else 0


def issue(m: ListOrderRecord, slot: int) -> int:
    """Give the node in a slot the next place, in the way that ends first."""
    node = m.available[slot]
    m.state[AVAILABLE] -= 1
    m.available[slot] = m.available[m.state[AVAILABLE]]
    m.is_issued[node] = 1
    hold_tiles(m, node)
    start = m.ready[node]
    issuer = m.issuer[m.ways[node]]
    if issuer >= 0:
        start = max(start, m.free[issuer])
        m.free[issuer] = start + m.issue[m.ways[node]]
    best = first_way(m, node)
    end = max(m.free[m.stream[best]], start) + m.duration[best]
    way = best + 1
    while way < end_way(m, node):
        other = max(m.free[m.stream[way]], start) + m.duration[way]
        if other < end:
            best = way
            end = other
        way += 1
    needed = m.table[m.first_variant[m.ways[node]]]
    end += load_of(m, needed)
    if needed >= 0:
        m.state[TABLE] = needed
    m.free[m.stream[best]] = end
    m.order[m.state[ISSUED]] = node
    m.chosen[m.state[ISSUED]] = best
    m.state[ISSUED] += 1
    release(m, node, m.stream[best], end)
    return 0


def release(m: ListOrderRecord, node: int, stream: int, end: int) -> int:
    """Let the dependents of a node know; an engine only waits for results of its own that it reads.

    Those that wait for nothing else, and are near, become available.
    """
    latency = m.latency[m.first_variant[m.ways[node]]]
    edge = m.succ[node]
    while edge < m.succ[node + 1]:
        other = m.dependent[edge]
        way = first_way(m, other)
        is_ordered = way + 1 == end_way(m, other) and m.stream[way] == stream
        seen = end if is_ordered and not m.is_read[edge] else end + latency
        m.ready[other] = max(m.ready[other], seen)
        arrive(m, other)
        edge += 1
    return 0


def divide_evenly(m: ListOrderRecord) -> int:
    """Fill `even`: the longest choose first, then one by one again as long as that gains."""
    each = 0
    while each < m.stream_count[0]:
        m.load[each] = 0
        each += 1
    choices = 0
    node = 0
    while node < m.nodes[0]:
        first = m.first_variant[m.ways[node]]
        m.even[node] = first
        if first + 1 == m.end_variant[m.ways[node]]:
            m.load[m.resource[m.stream[first]]] += m.duration[first]
        else:
            choices += 1
        node += 1
    place = 0
    while place < choices:
        node = m.choosing[place]
        m.even[node] = lightest(m, node)
        m.load[m.resource[m.stream[m.even[node]]]] += m.duration[m.even[node]]
        place += 1
    turn = 0
    is_changed = 1
    while is_changed and turn < choices:
        is_changed = 0
        node = 0
        while node < m.nodes[0]:
            if m.first_variant[m.ways[node]] + 1 < m.end_variant[m.ways[node]]:
                old = m.even[node]
                m.load[m.resource[m.stream[old]]] -= m.duration[old]
                new = lightest(m, node)
                m.even[node] = new
                m.load[m.resource[m.stream[new]]] += m.duration[new]
                is_changed = is_changed or new != old
            node += 1
        turn += 1
    return 0


def lightest(m: ListOrderRecord, node: int) -> int:
    """The variant of a node with which its resource ends soonest."""
    best = m.first_variant[m.ways[node]]
    least = m.load[m.resource[m.stream[best]]] + m.duration[best]
    way = best + 1
    while way < m.end_variant[m.ways[node]]:
        end = m.load[m.resource[m.stream[way]]] + m.duration[way]
        if end < least:
            best = way
            least = end
        way += 1
    return best


def repeat(m: ListOrderRecord) -> int:
    """What an order comes to, with each engine, and all of DMA, in turn, as its runs follow.

    Returns the time from one run to the next; `steady_free` and `steady_ready` are of the next.
    What waits for the run before the last waits for the last as well.
    """
    place = 0
    while place < m.nodes[0]:
        m.stream_at[m.order[place]] = m.stream[m.chosen[place]]
        place += 1
    each = 0
    while each < m.stream_count[0]:
        m.steady_free[each] = 0
        each += 1
    each = 0
    while each < m.nodes[0] * (REPETITIONS + 1):
        m.steady_ready[each] = 0
        each += 1
    m.state[TABLE] = NONE
    run = 0
    before = 0
    end = 0
    while run < REPETITIONS:
        before = end
        end = count_run(m, run * m.nodes[0])
        run += 1
    return end - before


def count_run(m: ListOrderRecord, first: int) -> int:
    """Count the time of one run of the order; returns its end."""
    place = 0
    while place < m.nodes[0]:
        node = m.order[place]
        way = m.chosen[place]
        start = m.steady_ready[first + node]
        issuer = m.issuer[m.ways[node]]
        if issuer >= 0:
            start = max(start, m.steady_free[issuer])
            m.steady_free[issuer] = start + m.issue[m.ways[node]]
        resource = m.resource[m.stream[way]]
        end = max(m.steady_free[resource], start) + m.duration[way]
        if m.table[way] >= 0:
            end += load_of(m, m.table[way])
            m.state[TABLE] = m.table[way]
        m.steady_free[resource] = end
        edge = m.next_succ[node]
        while edge < m.next_succ[node + 1]:
            other = m.follower[edge]
            seen = end + m.latency[way]
            if m.stream_at[other % m.nodes[0]] == m.stream[way] and not m.is_next_read[edge]:
                seen = end
            m.steady_ready[first + other] = max(m.steady_ready[first + other], seen)
            edge += 1
        place += 1
    last = 0
    each = 0
    while each < m.stream_count[0]:
        last = max(last, m.steady_free[each])
        each += 1
    return last


def start_next(m: ListOrderRecord) -> int:
    """Let an order start as the run after repetitions does.

    Its transfers may be issued at any time, and wait in queues.
    """
    each = 0
    while each < m.stream_count[0]:
        is_engine = m.is_used[each] and not m.is_queue[each]
        m.start_free[each] = m.steady_free[m.resource[each]] if is_engine else 0
        each += 1
    node = 0
    while node < m.nodes[0]:
        m.start_ready[node] = m.steady_ready[REPETITIONS * m.nodes[0] + node]
        node += 1
    return 0
