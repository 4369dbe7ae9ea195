"""How time passes on one core: the rules, as functions that `base.machine_code.native` compiles.

Every engine goes through a stream of its own, in which loops stay loops. Of all engines whose next
instruction has its counts and operands, the one that can start first is next, so that whatever
engines share is taken in the order in which they come. All times are picoseconds. `m` is the core's
record, which `timing.plan_tables` lays out; nothing else is read or written. Functions that return
no result return 0.
"""

from __future__ import annotations

from glia.timing.registers import (
    ENGINES,
    EVENT_WORDS,
    LANES,
    RENDEZVOUS_OPEN,
    CoreRecord,
    CoreState,
    CostKind,
    Engine,
    EngineState,
    LaneRecord,
    Overflow,
    RunParameter,
    StopReason,
    StreamOp,
)

FUNCTIONS = (
    "begin", "run", "next_engine", "advance_stream", "update_start", "awaited_units", "execute",
    "start_product", "throttle", "hold_weights", "start_transfer", "serve_lane", "settle_lanes",
    "complete",
    "count_up", "reserve_ring", "pass_barrier", "pass_decision", "next_outcome", "list_pending",
    "hold_at_rendezvous",
)  # fmt: skip


def begin(m: CoreRecord) -> int:
    """Bring every engine to its first instruction."""
    engine = 0
    while engine < ENGINES:
        m.place[engine] -= 1
        advance_stream(m, engine)
        update_start(m, engine)
        engine += 1
    return StopReason.DONE


def run(m: CoreRecord) -> int:
    """Execute until the program ends or the caller has to act; returns a StopReason."""
    while True:
        room = m.parameter[RunParameter.EVENT_ROOM]
        if room > 0 and m.core[CoreState.EVENTS] == room:
            return StopReason.EVENTS_FULL
        if m.core[CoreState.DECIDED]:
            pass_decision(m)
            continue
        engine = next_engine(m)
        if engine < 0:
            if engine == EngineState.FINISHED:
                settle_lanes(m)
                return StopReason.DONE
            if pass_barrier(m):
                continue
            return StopReason.DEADLOCK
        if not reserve_ring(m, m.arg[m.place[engine]]):
            return StopReason.RING_FULL
        if m.op[m.place[engine]] == StreamOp.RENDEZVOUS and hold_at_rendezvous(m, engine):
            return StopReason.RENDEZVOUS
        execute(m, engine)
        advance_stream(m, engine)
        update_start(m, engine)
        if m.core[CoreState.MARK]:
            return StopReason.LOOP_ITERATION
        if m.core[CoreState.EXECUTED] >= m.parameter[RunParameter.PAUSE]:
            return StopReason.PAUSED


def hold_at_rendezvous(m: CoreRecord, engine: int) -> int:
    """Hold an engine at a rendezvous until the caller opens it; returns whether it is held."""
    if m.blocked[engine] == RENDEZVOUS_OPEN:
        m.blocked[engine] = 0
        return 0
    m.core[CoreState.NOW] = m.start[engine]
    m.core[CoreState.ARRIVING] = engine
    m.start[engine] = EngineState.AT_RENDEZVOUS
    return 1


def next_engine(m: CoreRecord) -> int:
    """The engine that can start first, the lowest among equals; an EngineState if none can."""
    found: int = EngineState.FINISHED
    best = 0
    engine = 0
    while engine < ENGINES:
        start = m.start[engine]
        if start >= 0:
            if found < 0 or start < best:
                found = engine
                best = start
        elif found < 0 and start != EngineState.FINISHED:
            found = EngineState.BLOCKED
        engine += 1
    return found


def advance_stream(m: CoreRecord, engine: int) -> int:
    """Move an engine on to its next step, barrier, decision or end; returns the place."""
    place = m.place[engine] + 1
    slots = engine * m.parameter[RunParameter.SLOTS]
    while True:
        op = m.op[place]
        if op in (
            StreamOp.STEP,
            StreamOp.BARRIER,
            StreamOp.DECIDE,
            StreamOp.STOP,
            StreamOp.RENDEZVOUS,
        ):
            break
        arg = m.arg[place]
        if op == StreamOp.LOOP:
            m.variable[slots + arg] = 0
            place = place + 1 if m.trips[arg] > 0 else m.aux[place]
        elif op == StreamOp.LOOP_END:
            index = m.variable[slots + arg] + 1
            if index < m.trips[arg]:
                m.variable[slots + arg] = index
                place = m.aux[place]
                if (
                    m.watched[arg] == engine
                    and m.core[CoreState.EXECUTED] >= m.parameter[RunParameter.UNWATCHED]
                ):
                    m.core[CoreState.MARK] = arg + 1
            else:
                place += 1
        elif op == StreamOp.WHILE:
            m.left[engine * m.parameter[RunParameter.ORDINALS] + arg] = next_outcome(
                m, engine, arg, 1, m.iterations[arg]
            )
            place += 1
        elif op == StreamOp.REPEAT:
            slot = engine * m.parameter[RunParameter.ORDINALS] + arg
            place = place + 1 if m.left[slot] > 0 else m.aux[place]
            m.left[slot] -= 1
        elif op == StreamOp.BRANCH:
            arms = m.aux[place]
            arm = min(next_outcome(m, engine, arg, 0, 0), m.arm[arms] - 1)
            place = m.arm[arms + 1 + arm]
        else:
            place = arg
    m.place[engine] = place
    return place


def next_outcome(m: CoreRecord, engine: int, ordinal: int, default: int, known: int) -> int:
    """The outcome of this execution of run-time control flow.

    As given, else what is known of every execution, where that is not 0, else `default`.
    """
    slot = engine * m.parameter[RunParameter.ORDINALS] + ordinal
    position = m.seen[slot]
    m.seen[slot] = position + 1
    if position < m.outcomes[ordinal + 1] - m.outcomes[ordinal]:
        return m.known_outcome[m.outcomes[ordinal] + position]
    if known > 0:
        return known
    m.is_assumed[ordinal] = 1
    return default


def update_start(m: CoreRecord, engine: int) -> int:
    """Set when an engine can start what is at its place, or the EngineState that says why not."""
    place = m.place[engine]
    op = m.op[place]
    step = m.arg[place]
    if op == StreamOp.STOP:
        m.start[engine] = EngineState.FINISHED
        return 0
    if op == StreamOp.DECIDE:
        m.start[engine] = EngineState.AT_DECISION
        m.group_arrived[step] += 1
        if m.group_arrived[step] == m.group_size[step]:
            m.core[CoreState.DECIDED] = step + 1
        return 0
    start = m.free[engine]
    counted = 0
    binding = -1
    wait = m.step_wait[step]
    while wait < m.step_wait[step + 1]:
        semaphore = m.wait_semaphore[wait]
        units = awaited_units(m, engine, wait)
        if units > m.count[semaphore]:
            m.start[engine] = EngineState.BLOCKED
            m.blocked[engine] = wait
            return 0
        if units > m.first[semaphore]:
            at = m.base[semaphore] + ((units - 1) & m.mask[semaphore])
            moment = m.ring[at] + m.parameter[RunParameter.WAKE]
            counted = max(counted, moment)
            if moment > start:
                start = moment
                binding = wait
        wait += 1
    m.counted[engine] = counted
    m.waited[engine] = start
    m.binding[engine] = binding
    if op == StreamOp.BARRIER:
        m.start[engine] = EngineState.AT_BARRIER
        return 0
    read = m.step_read[step]
    while read < m.step_read[step + 1]:
        start = max(start, m.visible[m.read_step[read]])
        read += 1
    if m.generation[m.cost[step]] > 0:
        start = max(start, m.generator[engine])
    m.start[engine] = start
    return 0


def awaited_units(m: CoreRecord, engine: int, wait: int) -> int:
    """The count that a wait needs in this iteration, in the semaphore's units, rounded up."""
    semaphore = m.wait_semaphore[wait]
    if m.wait_is_unknown[wait]:
        return m.count[semaphore]
    value = m.wait_constant[wait]
    slots = engine * m.parameter[RunParameter.SLOTS]
    term = m.wait_term[wait]
    while term < m.wait_term[wait + 1]:
        value += m.term_factor[term] * m.variable[slots + m.term_slot[term]]
        term += 1
    if m.unit[semaphore] == 1:
        return value
    return -(-value // m.unit[semaphore])


def execute(m: CoreRecord, engine: int) -> int:
    """Run the instruction at an engine's place."""
    step = m.arg[m.place[engine]]
    start = m.start[engine]
    m.core[CoreState.NOW] = start
    if m.binding[engine] >= 0:
        m.stalled[m.binding[engine]] += m.waited[engine] - m.free[engine]
    cost = m.cost[step]
    kind = m.kind[cost]
    if kind == CostKind.TRANSFER:
        return start_transfer(m, engine, step, start)
    if engine == Engine.TENSOR:
        return start_product(m, step, start)
    if kind == CostKind.ACTIVATION and m.table[cost] != m.core[CoreState.TABLE]:
        m.core[CoreState.TABLE] = m.table[cost]
        start += m.parameter[RunParameter.TABLE_LOAD]
        m.table_loads[step] += 1
    ports = m.ports[step]
    port = 0
    while ports >> port > 0:
        if ports >> port & 1:
            start = max(start, m.port[port])
        port += 1
    end = start + m.busy[cost]
    port = 0
    while ports >> port > 0:
        if ports >> port & 1:
            m.port[port] = end
        port += 1
    m.free[engine] = end
    return complete(m, step, start, end, end + m.latency[engine], 0)


def start_product(m: CoreRecord, step: int, start: int) -> int:
    """Run an instruction of the Tensor Engine, loading its weights if the array lacks them.

    Loading overlaps the product before: it begins when the weights are there and that product has
    taken its own.
    """
    if m.kind[m.cost[step]] == CostKind.MATMUL:
        if hold_weights(m, step):
            start = max(
                start, max(m.core[CoreState.SWAP], m.counted[Engine.TENSOR]) + m.load[m.cost[step]]
            )
        m.core[CoreState.SWAP] = start
    end = start + throttle(m, step, start)
    m.free[Engine.TENSOR] = end
    return complete(m, step, start, end, end + m.latency[Engine.TENSOR], 0)


def hold_weights(m: CoreRecord, step: int) -> int:
    """Make a product's weights the held ones; returns whether they have to be loaded."""
    place = m.weights_place[step]
    slots = Engine.TENSOR * m.parameter[RunParameter.SLOTS]
    term = m.step_term[step]
    while term < m.step_term[step + 1]:
        place += m.term_factor[term] * m.variable[slots + m.term_slot[term]]
        term += 1
    if m.core[CoreState.WEIGHTS] == m.weights[step] and m.core[CoreState.WEIGHTS_PLACE] == place:
        return 0
    m.core[CoreState.WEIGHTS] = m.weights[step]
    m.core[CoreState.WEIGHTS_PLACE] = place
    m.core[CoreState.WEIGHTS_TILE] = m.weights_tile[step]
    m.core[CoreState.WEIGHTS_STEP] = step
    return 1


def throttle(m: CoreRecord, step: int, start: int) -> int:
    """The picoseconds that an instruction keeps the array busy, longer while it is not warm.

    Busy time fills and idle time empties a store, at rates that differ as the array is warm or not;
    it is at its full rate from the moment the store is full to the moment it is empty.
    """
    busy = m.busy[m.cost[step]]
    warm_up = m.parameter[RunParameter.WARM_UP]
    if warm_up == 0:
        m.core[CoreState.TENSOR_END] = start + busy
        return busy
    idle = start - m.core[CoreState.TENSOR_END]
    rest = m.parameter[RunParameter.REST]
    if m.core[CoreState.IS_WARM]:
        heat = max(0, m.core[CoreState.HEAT] - idle * m.parameter[RunParameter.REST_DRAIN] // 1000)
        if heat == 0:
            m.core[CoreState.IS_WARM] = 0
    else:
        heat = max(0, m.core[CoreState.HEAT] - idle * m.parameter[RunParameter.RAMP_DRAIN] // 1000)
    if m.core[CoreState.IS_WARM]:
        heat = min(rest, heat + busy)
    else:
        slow = busy * 1000 // m.parameter[RunParameter.RAMP]
        m.throttled[step] += slow - busy
        busy = slow
        heat += busy
        if heat >= warm_up:
            m.core[CoreState.IS_WARM] = 1
            heat = rest
    m.core[CoreState.HEAT] = heat
    m.core[CoreState.TENSOR_END] = start + busy
    return busy


def start_transfer(m: CoreRecord, engine: int, step: int, start: int) -> int:
    """Issue a DMA transfer, in order on its queue, and serve it on its lanes."""
    cost = m.cost[step]
    queue = m.queue[cost]
    m.free[engine] = start + m.busy[cost]
    if m.generation[cost] > 0:
        m.generator[engine] = start + m.generation[cost]
    ready = max(start + m.parameter[RunParameter.DMA_START], m.queue_ready[queue])
    m.queue_ready[queue] = ready
    first = -1
    end = ready
    queued = 0
    share = m.cost_lane[cost]
    while share < m.cost_lane[cost + 1]:
        work = m.lane_work[share]
        members = m.lane_members[share]
        lane = 0
        while members >> lane > 0:
            if members >> lane & 1:
                free = m.lane[lane * m.parameter[RunParameter.QUEUES] + queue]
                begun = max(ready, free)
                served = serve_lane(m, lane, queue, begun, work)
                if served > end:
                    end = served
                    queued = 0
                    if free > ready:
                        queued = 1
                if lane < LANES - 1 and (first < 0 or begun < first):
                    first = begun
            lane += 1
        share += 1
    end += m.skew[cost]
    # transfers come in the order in which they are ready: each adds what earlier ones do not cover
    m.queue_busy[queue] += max(0, end - max(ready, m.queue_end[queue]))
    m.queue_end[queue] = max(m.queue_end[queue], end)
    return complete(
        m, step, max(first, ready), end, end + m.parameter[RunParameter.DMA_DONE], queued
    )


def serve_lane(m: LaneRecord, lane: int, queue: int, begun: int, work: int) -> int:
    """When a lane has done a queue's work, sharing its time evenly with queues that have work left.

    Those queues' remaining work ends as much later; the ends of transfers already completed stand.
    """
    queues = m.parameter[RunParameter.QUEUES]
    end = begun + work
    other = 0
    while other < queues:
        left = m.lane[lane * queues + other] - begun
        if other != queue and left > 0:
            shared = min(work, left)
            end += shared
            m.lane[lane * queues + other] += shared
        other += 1
    m.lane[lane * queues + queue] = end
    return end


def settle_lanes(m: CoreRecord) -> int:
    """Nothing is over before each lane has done the work that its queues put off when sharing."""
    queues = m.parameter[RunParameter.QUEUES]
    place = 0
    while place < LANES * queues:
        if m.lane[place] > m.queue_end[place % queues]:
            done = m.lane[place] + m.parameter[RunParameter.DMA_DONE]
            m.core[CoreState.LAST] = max(m.core[CoreState.LAST], done)
        place += 1
    return 0


def complete(m: CoreRecord, step: int, start: int, end: int, done: int, queued: int) -> int:
    """Record an execution from start to end, whose results and signals count from `done` on.

    `queued` is 1 for a transfer whose slowest lane still had work of its own queue.
    """
    m.visible[step] = done
    m.counts[step] += 1
    m.busied[step] += end - start
    m.core[CoreState.LAST] = max(m.core[CoreState.LAST], done)
    m.core[CoreState.EXECUTED] += 1
    if m.spoils[step] >= 0 and m.spoils[step] == m.core[CoreState.WEIGHTS_TILE]:
        m.core[CoreState.WEIGHTS] = -1
        m.core[CoreState.WEIGHTS_TILE] = -1
    events = m.core[CoreState.EVENTS]
    if events < m.parameter[RunParameter.EVENT_ROOM]:
        m.event[EVENT_WORDS * events] = step
        m.event[EVENT_WORDS * events + 1] = start
        m.event[EVENT_WORDS * events + 2] = end
        m.event[EVENT_WORDS * events + 3] = queued
        m.core[CoreState.EVENTS] = events + 1
    one = m.step_signal[step]
    while one < m.step_signal[step + 1]:
        count_up(m, m.signal_semaphore[one], m.signal_units[one], done)
        one += 1
    return 0


def count_up(m: CoreRecord, semaphore: int, units: int, moment: int) -> int:
    """Count a semaphore up at a moment, not before its latest, and wake engines blocked by it."""
    moment = max(moment, m.latest[semaphore])
    m.latest[semaphore] = moment
    count = m.count[semaphore]
    end = count + units
    while count < end:
        m.ring[m.base[semaphore] + (count & m.mask[semaphore])] = moment
        count += 1
    m.count[semaphore] = count
    engine = 0
    while engine < ENGINES:
        if (
            m.start[engine] == EngineState.BLOCKED
            and m.wait_semaphore[m.blocked[engine]] == semaphore
        ):
            update_start(m, engine)
        engine += 1
    return 0


def reserve_ring(m: CoreRecord, step: int) -> int:
    """Whether the rings can take an instruction's signals, once expired moments are dropped.

    Nothing starts before NOW any more: a moment longer ago than MARGIN delays no wait. If not,
    `overflow` says which ring is full.
    """
    one = m.step_signal[step]
    while one < m.step_signal[step + 1]:
        semaphore = m.signal_semaphore[one]
        needed = m.count[semaphore] + m.signal_units[one]
        capacity = m.mask[semaphore] + 1
        if needed - m.first[semaphore] > capacity:
            first = m.first[semaphore]
            while first < m.count[semaphore]:
                moment = m.ring[m.base[semaphore] + (first & m.mask[semaphore])]
                if moment + m.parameter[RunParameter.MARGIN] > m.core[CoreState.NOW]:
                    break
                first += 1
            m.first[semaphore] = first
            if needed - first > capacity:
                m.overflow[Overflow.SEMAPHORE] = semaphore
                m.overflow[Overflow.NEEDED] = needed - first
                return 0
        one += 1
    return 1


def list_pending(m: CoreRecord) -> int:
    """Fill `pending` with the moments that can still delay a wait, by semaphore, relative to NOW.

    Expired moments are dropped. Returns how many are listed.
    """
    position = 0
    semaphore = 0
    while semaphore < m.parameter[RunParameter.SEMAPHORES]:
        first = m.first[semaphore]
        while first < m.count[semaphore]:
            moment = m.ring[m.base[semaphore] + (first & m.mask[semaphore])]
            if moment + m.parameter[RunParameter.MARGIN] > m.core[CoreState.NOW]:
                break
            first += 1
        m.first[semaphore] = first
        while first < m.count[semaphore]:
            moment = m.ring[m.base[semaphore] + (first & m.mask[semaphore])]
            m.pending[position] = moment - m.core[CoreState.NOW]
            position += 1
            first += 1
        semaphore += 1
    return position


def pass_barrier(m: CoreRecord) -> int:
    """Let all engines pass a barrier if each has come to it; returns whether they could.

    Everything issued before is complete then, and semaphores count from 0.
    """
    engine = 0
    while engine < ENGINES:
        if m.start[engine] != EngineState.AT_BARRIER:
            return 0
        engine += 1
    settle_lanes(m)
    start = m.core[CoreState.LAST]
    engine = 0
    while engine < ENGINES:
        start = max(start, m.waited[engine])
        engine += 1
    step = m.arg[m.place[0]]
    end = start + m.busy[m.cost[step]]
    m.core[CoreState.NOW] = start
    semaphore = 0
    while semaphore < m.parameter[RunParameter.SEMAPHORES]:
        m.count[semaphore] = 0
        m.first[semaphore] = 0
        m.latest[semaphore] = 0
        semaphore += 1
    owner = m.engine[step]
    if m.binding[owner] >= 0:
        m.stalled[m.binding[owner]] += m.waited[owner] - m.free[owner]
    complete(m, step, start, end, end, 0)
    engine = 0
    while engine < ENGINES:
        m.free[engine] = end
        advance_stream(m, engine)
        update_start(m, engine)
        engine += 1
    return 1


def pass_decision(m: CoreRecord) -> int:
    """Let the engines that decide a run-time loop go on when its condition is known."""
    group = m.core[CoreState.DECIDED] - 1
    m.core[CoreState.DECIDED] = 0
    m.group_arrived[group] = 0
    known = 0
    step = m.group_first[group]
    while step < m.group_end[group]:
        known = max(known, m.visible[step])
        step += 1
    engine = 0
    while engine < ENGINES:
        if m.start[engine] == EngineState.AT_DECISION and m.arg[m.place[engine]] == group:
            m.free[engine] = max(m.free[engine], known)
            advance_stream(m, engine)
            update_start(m, engine)
        engine += 1
    return 0
