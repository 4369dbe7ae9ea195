"""List scheduling of a straight line on in-order engines: functions in machine code.

Engines and DMA queues take time as `timing.events` says, in its words and units, with the waits
that dependences need. Of the instructions that are near the oldest one left, and depend on nothing
left, the next is the one that can start first. A given order takes time by the same rules: there
every engine has its next instruction only. Times are picoseconds. `m` is the record that
`nki.back_end.straight_line` makes.
"""

from __future__ import annotations

from glia.base.machine_code.native_records import Words, words
from glia.machine.ordering import list_rules
from glia.machine.ordering.list_rules import (  # noqa: F401 - compiled with the functions here
    AVAILABLE,
    ISSUED,
    NEAR,
    OLDEST_LEFT,
    ListRecord,
    advance,
    arrive,
    fits,
    hold_tiles,
)
from glia.nki.back_end.dependence_rules import COMPLETE, VISIBLE
from glia.timing.events import serve_lane
from glia.timing.registers import ENGINES, LANES, CostKind, Engine, RunParameter

NONE = -1
GIVEN, OLDEST, LONGEST = 0, 1, 2  # the order is given; of what can start alike, which is first
MEMORIES = 2
FUNCTIONS = (
    "schedule", "reset", "follow_order", "find_heights", "choose", "is_better", "start_of", "issue",
    "occupy", "occupy_array", "transfer", "serve_lane", "release", *list_rules.FUNCTIONS,
)  # fmt: skip


class OrderRecord(ListRecord):
    """The nodes of a straight line, the graph of their dependences, and the state of the core."""

    policy: Words = words("1", "policy", "GIVEN, OLDEST or LONGEST")
    slack: Words = words("1", "ps", "starts so close count as equal")
    parameter: Words = words("RunParameter", "see RunParameter", "constants of the core")
    latency: Words = words("engine", "ps", "from the end of an instruction to its result")
    cost: Words = words("node", "cost", "what it costs")
    engine: Words = words("node", "engine", "that issues it")
    queue: Words = words("node", "queue", "it waits in; -1 for none")
    weights: Words = words("node", "weights", "that a product holds; -1 for none")
    ports: Words = words("node", "bits", "the memory ports it shares")
    kind: Words = words("cost", "CostKind", "how its time is counted")
    busy: Words = words("cost", "ps", "its engine is busy")
    load: Words = words("cost", "ps", "loading its weights takes")
    table: Words = words("cost", "table", "it needs; -1 for none")
    generation: Words = words("cost", "ps", "making its descriptors takes")
    skew: Words = words("cost", "ps", "added to a transfer's end")
    cost_lane: Words = words("cost offsets", "share", "its shares of lanes")
    lane_work: Words = words("share", "ps", "on each of its lanes")
    lane_members: Words = words("share", "bits", "its lanes")
    pred: Words = words("node offsets", "dependence", "what it depends on")
    succ: Words = words("node offsets", "dependent", "what depends on it")
    dependent: Words = words("dependent", "node", "that waits")
    strength: Words = words("dependent", "strength", "how long it waits")
    ready: Words = words("node", "ps", "when all it waits for has come")
    height: Words = words("node", "ps", "the longest chain from its start to the end")
    free: Words = words("engine", "ps", "when it is free")
    generator: Words = words("engine", "ps", "when the hardware that makes descriptors is free")
    port: Words = words("port", "ps", "when a memory port is free")
    queue_ready: Words = words("queue", "ps", "when its latest transfer was ready")
    lane: Words = words("lane, queue", "ps", "when a lane is done with a queue's transfers")
    following: Words = words("node", "node", "that is next on its engine, where the order is given")
    order: Words = words("place", "node", "the schedule; first the order that is given")


LAST, SWAP, WEIGHTS, TABLE = 4, 5, 6, 7  # of `state`, from OWN_STATES on


def schedule(m: OrderRecord) -> int:
    """Fill `order`; returns when the last result is there."""
    reset(m)
    if m.policy[0] == LONGEST:
        find_heights(m)
    if m.policy[0] == GIVEN:
        follow_order(m)
    while m.state[ISSUED] < m.nodes[0]:
        advance(m)
        issue(m, choose(m))
    place = 0
    while place < LANES * m.parameter[RunParameter.QUEUES]:  # work that was put off when sharing
        last = m.lane[place] + m.parameter[RunParameter.DMA_DONE]
        m.state[LAST] = max(m.state[LAST], last)
        place += 1
    return m.state[LAST]


def reset(m: OrderRecord) -> int:
    """Count what every node waits for."""
    node = 0
    while node < m.nodes[0]:
        m.waiting[node] = m.pred[node + 1] - m.pred[node]
        m.following[node] = NONE
        node += 1
    return 0


def follow_order(m: OrderRecord) -> int:
    """Let every node wait for the one before it on its engine in the given order."""
    engine = 0
    while engine < ENGINES:
        before = NONE
        place = 0
        while place < m.nodes[0]:
            node = m.order[place]
            if m.engine[node] == engine:
                if before >= 0:
                    m.following[before] = node
                    m.waiting[node] += 1
                before = node
            place += 1
        engine += 1
    return 0


def find_heights(m: OrderRecord) -> int:
    """Fill `height`, last node first."""
    node = m.nodes[0] - 1
    while node >= 0:
        highest = 0
        edge = m.succ[node]
        while edge < m.succ[node + 1]:
            highest = max(highest, m.height[m.dependent[edge]])
            edge += 1
        own = m.busy[m.cost[node]] + m.latency[m.engine[node]]
        if m.kind[m.cost[node]] == CostKind.TRANSFER:
            own += m.parameter[RunParameter.DMA_START] + m.parameter[RunParameter.DMA_DONE]
        m.height[node] = highest + own
        node -= 1
    return 0


def choose(m: OrderRecord) -> int:
    """The slot of the best of the available nodes that fit; that of the oldest if none does."""
    best = NONE
    best_start = 0
    oldest = 0
    slot = 0
    while slot < m.state[AVAILABLE]:
        node = m.available[slot]
        if node < m.available[oldest]:
            oldest = slot
        if m.policy[0] == GIVEN or fits(m, node):
            start = start_of(m, node)
            if best == NONE or is_better(m, node, start, m.available[best], best_start):
                best = slot
                best_start = start
        slot += 1
    return oldest if best == NONE else best


def is_better(m: OrderRecord, node: int, start: int, other: int, other_start: int) -> int:
    """Whether a node goes first."""
    if start + m.slack[0] < other_start:
        return 1
    if other_start + m.slack[0] < start:
        return 0
    if m.policy[0] == LONGEST and m.height[node] != m.height[other]:
        return m.height[node] > m.height[other]
    return node < other


def start_of(m: OrderRecord, node: int) -> int:
    """When a node would start if it were next on its engine."""
    cost = m.cost[node]
    engine = m.engine[node]
    start = max(m.free[engine], m.ready[node])
    if m.kind[cost] == CostKind.MATMUL and m.weights[node] != m.state[WEIGHTS]:
        start = max(start, max(m.state[SWAP], m.ready[node]) + m.load[cost])
    if m.generation[cost] > 0:
        start = max(start, m.generator[engine])
    return start


def issue(m: OrderRecord, slot: int) -> int:
    """Give the node in a slot the next place, and let time pass on its engine."""
    node = m.available[slot]
    m.state[AVAILABLE] -= 1
    m.available[slot] = m.available[m.state[AVAILABLE]]
    m.order[m.state[ISSUED]] = node
    m.state[ISSUED] += 1
    m.is_issued[node] = 1
    hold_tiles(m, node)
    done = occupy(m, node, start_of(m, node))
    m.state[LAST] = max(m.state[LAST], done)
    release(m, node, done)
    return 0


def occupy(m: OrderRecord, node: int, earliest: int) -> int:
    """Execute a node; returns when its result is there."""
    cost = m.cost[node]
    engine = m.engine[node]
    start = earliest
    if m.kind[cost] == CostKind.TRANSFER:
        return transfer(m, node, start)
    if engine == Engine.TENSOR:
        return occupy_array(m, node, start)
    if m.kind[cost] == CostKind.ACTIVATION and m.table[cost] != m.state[TABLE]:
        m.state[TABLE] = m.table[cost]
        start += m.parameter[RunParameter.TABLE_LOAD]
    port = 0
    while m.ports[node] >> port > 0:
        if m.ports[node] >> port & 1:
            start = max(start, m.port[port])
        port += 1
    end = start + m.busy[cost]
    port = 0
    while m.ports[node] >> port > 0:
        if m.ports[node] >> port & 1:
            m.port[port] = end
        port += 1
    m.free[engine] = end
    return end + m.latency[engine]


def occupy_array(m: OrderRecord, node: int, start: int) -> int:
    """Execute on the Tensor Engine, whose weights are loaded while it computes."""
    cost = m.cost[node]
    if m.kind[cost] == CostKind.MATMUL:
        m.state[WEIGHTS] = m.weights[node]
        m.state[SWAP] = start
    m.free[Engine.TENSOR] = start + m.busy[cost]
    return m.free[Engine.TENSOR] + m.latency[Engine.TENSOR]


def transfer(m: OrderRecord, node: int, start: int) -> int:
    """Issue a transfer, in order on its queue, and serve it on its lanes."""
    cost = m.cost[node]
    queue = m.queue[node]
    m.free[m.engine[node]] = start + m.busy[cost]
    if m.generation[cost] > 0:
        m.generator[m.engine[node]] = start + m.generation[cost]
    ready = max(start + m.parameter[RunParameter.DMA_START], m.queue_ready[queue])
    m.queue_ready[queue] = ready
    end = ready
    share = m.cost_lane[cost]
    while share < m.cost_lane[cost + 1]:
        members = m.lane_members[share]
        lane = 0
        while members >> lane > 0:
            if members >> lane & 1:
                begun = max(ready, m.lane[lane * m.parameter[RunParameter.QUEUES] + queue])
                end = max(end, serve_lane(m, lane, queue, begun, m.lane_work[share]))
            lane += 1
        share += 1
    return end + m.skew[cost] + m.parameter[RunParameter.DMA_DONE]


def release(m: OrderRecord, node: int, done: int) -> int:
    """Let the dependents of a node know; those that wait for nothing else become available."""
    if m.following[node] >= 0:
        arrive(m, m.following[node])
    edge = m.succ[node]
    while edge < m.succ[node + 1]:
        other = m.dependent[edge]
        if m.strength[edge] == COMPLETE:
            m.ready[other] = max(m.ready[other], done + m.parameter[RunParameter.WAKE])
        elif m.strength[edge] == VISIBLE and m.engine[node] != Engine.TENSOR:
            m.ready[other] = max(m.ready[other], done)
        arrive(m, other)
        edge += 1
    return 0
