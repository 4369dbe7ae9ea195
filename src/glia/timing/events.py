"""How time passes on one core: the rules, as functions that `sim.native` compiles.

Every engine goes through a stream of its own, in which loops stay loops. Of all engines whose next
instruction has its counts and operands, the one that can start first is next, so that whatever
engines share is taken in the order in which they come. All times are picoseconds. `m` is the record
that `timing_tables` lays out; nothing else is read or written.
"""

from __future__ import annotations

from typing import Any

ENGINES = 5
TENSOR, VECTOR, SCALAR, GPSIMD, SYNC = 0, 1, 2, 3, 4

# Operations of a stream
STEP, LOOP, END, MEET, WHILE, DECIDE, REPEAT, JUMP, BRANCH, STOP = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
JOIN = 10  # a step at which cores meet
# Kinds of instruction
COMPUTE, ACTIVATION, MATMUL, TRANSFER = 0, 1, 2, 3
# What stands instead of a start for an engine that has none
BLOCKED, FINISHED, MET, ARRIVED, HELD_UP = -1, -2, -3, -4, -5
# Why `run` returns
DONE, STUCK, MARKED, FULL, JOINED = 0, 1, 2, 3, 4

# Parameters
SLOTS, ORDINALS, WAKE, DMA_START, DMA_DONE, TABLE_LOAD = 0, 1, 2, 3, 4, 5
WARM_UP, RAMP, MOST_EVENTS, SEMAPHORES, MARGIN, UNWATCHED, QUEUES = 6, 7, 8, 9, 10, 11, 12
PARAMETERS = 13
# State of the whole core
NOW, LAST, SWAP, TENSOR_END, HEAT, IS_WARM, HELD, HELD_PLACE, HELD_TILE = 0, 1, 2, 3, 4, 5, 6, 7, 8
HELD_STEP, TABLE, EXECUTED, EVENTS, MARK, RELEASED = 9, 10, 11, 12, 13, 14
ARRIVING = 15  # the engine that came to a meeting of cores
GLOBALS = 16
LET_GO = -2  # instead of what an engine is blocked by: it may start the meeting it came to

LANES = 17  # 16 DMA engines and the HBM interface; each has a clock for every queue
NAMES = (
    "begin", "run", "soonest", "next_place", "look", "units_of", "execute", "start_tensor",
    "throttle", "hold", "transfer", "serve", "finish", "signal", "has_room", "meet", "release",
    "outcome", "gather", "is_held_up",
)  # fmt: skip


def begin(m: Any) -> int:
    """Bring every engine to its first instruction."""
    engine = 0
    while engine < ENGINES:
        m.place[engine] -= 1
        next_place(m, engine)
        look(m, engine)
        engine += 1
    return DONE


def run(m: Any) -> int:
    """Execute until all is done, nothing can move, or the caller has something to do.

    That is when a watched loop turns, a buffer is full, or an engine comes to a meeting of cores.
    """
    while True:
        if m.core[RELEASED]:
            release(m)
            continue
        engine = soonest(m)
        if engine < 0:
            if engine == FINISHED:
                return DONE
            if meet(m):
                continue
            return STUCK
        if not has_room(m, m.arg[m.place[engine]]):
            return FULL
        if m.op[m.place[engine]] == JOIN and is_held_up(m, engine):
            return JOINED
        execute(m, engine)
        next_place(m, engine)
        look(m, engine)
        if m.core[MARK]:
            return MARKED


def is_held_up(m: Any, engine: int) -> int:
    """Hold an engine that could start a step at which cores meet, until the caller lets it go."""
    if m.blocked[engine] == LET_GO:
        m.blocked[engine] = 0
        return 0
    m.core[NOW] = m.start[engine]
    m.core[ARRIVING] = engine
    m.start[engine] = HELD_UP
    return 1


def soonest(m: Any) -> int:
    """The engine that can start first, the lowest among equals; FINISHED or BLOCKED if none."""
    found = FINISHED
    best = 0
    engine = 0
    while engine < ENGINES:
        start = m.start[engine]
        if start >= 0:
            if found < 0 or start < best:
                found = engine
                best = start
        elif found < 0 and start != FINISHED:
            found = BLOCKED
        engine += 1
    return found


def next_place(m: Any, engine: int) -> int:
    """Move an engine past its place to the next instruction, meeting or end."""
    place = m.place[engine] + 1
    slots = engine * m.parameter[SLOTS]
    while True:
        op = m.op[place]
        if op in (STEP, MEET, DECIDE, STOP, JOIN):
            break
        arg = m.arg[place]
        if op == LOOP:
            m.variable[slots + arg] = 0
            place = place + 1 if m.trips[arg] > 0 else m.aux[place]
        elif op == END:
            index = m.variable[slots + arg] + 1
            if index < m.trips[arg]:
                m.variable[slots + arg] = index
                place = m.aux[place]
                if m.watched[arg] == engine and m.core[EXECUTED] >= m.parameter[UNWATCHED]:
                    m.core[MARK] = arg + 1
            else:
                place += 1
        elif op == WHILE:
            m.left[engine * m.parameter[ORDINALS] + arg] = outcome(m, engine, arg, 1)
            place += 1
        elif op == REPEAT:
            slot = engine * m.parameter[ORDINALS] + arg
            place = place + 1 if m.left[slot] > 0 else m.aux[place]
            m.left[slot] -= 1
        elif op == BRANCH:
            arms = m.aux[place]
            arm = min(outcome(m, engine, arg, 0), m.arm[arms] - 1)
            place = m.arm[arms + 1 + arm]
        else:
            place = arg
    m.place[engine] = place
    return place


def outcome(m: Any, engine: int, ordinal: int, default: int) -> int:
    """What this execution of run-time control flow does, as far as it is known."""
    slot = engine * m.parameter[ORDINALS] + ordinal
    position = m.seen[slot]
    m.seen[slot] = position + 1
    if position < m.outcomes[ordinal + 1] - m.outcomes[ordinal]:
        return m.known_outcome[m.outcomes[ordinal] + position]
    m.is_assumed[ordinal] = 1
    return default


def look(m: Any, engine: int) -> int:
    """When an engine can start what is at its place, or why it cannot yet."""
    place = m.place[engine]
    op = m.op[place]
    step = m.arg[place]
    if op == STOP:
        m.start[engine] = FINISHED
        return 0
    if op == DECIDE:
        m.start[engine] = ARRIVED
        m.group_arrived[step] += 1
        if m.group_arrived[step] == m.group_size[step]:
            m.core[RELEASED] = step + 1
        return 0
    start = m.free[engine]
    counted = 0
    binding = -1
    wait = m.step_wait[step]
    while wait < m.step_wait[step + 1]:
        semaphore = m.wait_semaphore[wait]
        units = units_of(m, engine, wait)
        if units > m.count[semaphore]:
            m.start[engine] = BLOCKED
            m.blocked[engine] = wait
            return 0
        if units > m.first[semaphore]:
            at = m.base[semaphore] + ((units - 1) & m.mask[semaphore])
            moment = m.ring[at] + m.parameter[WAKE]
            counted = max(counted, moment)
            if moment > start:
                start = moment
                binding = wait
        wait += 1
    m.counted[engine] = counted
    m.waited[engine] = start
    m.binding[engine] = binding
    if op == MEET:
        m.start[engine] = MET
        return 0
    read = m.step_read[step]
    while read < m.step_read[step + 1]:
        start = max(start, m.visible[m.read_step[read]])
        read += 1
    if m.generation[m.cost[step]] > 0:
        start = max(start, m.generator[engine])
    m.start[engine] = start
    return 0


def units_of(m: Any, engine: int, wait: int) -> int:
    """The count waited for now, in the semaphore's units."""
    semaphore = m.wait_semaphore[wait]
    if m.wait_is_unknown[wait]:
        return m.count[semaphore]
    value = m.wait_constant[wait]
    slots = engine * m.parameter[SLOTS]
    term = m.wait_term[wait]
    while term < m.wait_term[wait + 1]:
        value += m.term_factor[term] * m.variable[slots + m.term_slot[term]]
        term += 1
    if m.unit[semaphore] == 1:
        return value
    return -(-value // m.unit[semaphore])


def execute(m: Any, engine: int) -> int:
    """Run the instruction at an engine's place."""
    step = m.arg[m.place[engine]]
    start = m.start[engine]
    m.core[NOW] = start
    if m.binding[engine] >= 0:
        m.stalled[m.binding[engine]] += m.waited[engine] - m.free[engine]
    cost = m.cost[step]
    kind = m.kind[cost]
    if kind == TRANSFER:
        return transfer(m, engine, step, start)
    if engine == TENSOR:
        return start_tensor(m, step, start)
    if kind == ACTIVATION and m.table[cost] != m.core[TABLE]:
        m.core[TABLE] = m.table[cost]
        start += m.parameter[TABLE_LOAD]
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
    return finish(m, step, start, end, end + m.latency[engine], 0)


def start_tensor(m: Any, step: int, start: int) -> int:
    """An instruction of the array; weights that it does not hold are loaded behind the one before.

    Loading begins when they are there and the product before has taken its own.
    """
    if m.kind[m.cost[step]] == MATMUL:
        if hold(m, step):
            start = max(start, max(m.core[SWAP], m.counted[TENSOR]) + m.load[m.cost[step]])
        m.core[SWAP] = start
    end = start + throttle(m, step, start)
    m.free[TENSOR] = end
    return finish(m, step, start, end, end + m.latency[TENSOR], 0)


def hold(m: Any, step: int) -> int:
    """Make a product's weights the held ones; whether they were not."""
    place = m.weights_place[step]
    slots = TENSOR * m.parameter[SLOTS]
    term = m.step_term[step]
    while term < m.step_term[step + 1]:
        place += m.term_factor[term] * m.variable[slots + m.term_slot[term]]
        term += 1
    if m.core[HELD] == m.weights[step] and m.core[HELD_PLACE] == place:
        return 0
    m.core[HELD] = m.weights[step]
    m.core[HELD_PLACE] = place
    m.core[HELD_TILE] = m.weights_tile[step]
    m.core[HELD_STEP] = step
    return 1


def throttle(m: Any, step: int, start: int) -> int:
    """Time an instruction of the array takes: more until it has been busy enough.

    Busy time fills and idle time empties a store; the array is at its full rate from the moment the
    store is full to the moment it is empty.
    """
    busy = m.busy[m.cost[step]]
    warm_up = m.parameter[WARM_UP]
    if warm_up == 0:
        m.core[TENSOR_END] = start + busy
        return busy
    heat = max(0, m.core[HEAT] - (start - m.core[TENSOR_END]))
    if heat == 0:
        m.core[IS_WARM] = 0
    if not m.core[IS_WARM]:
        slow = busy * 1000 // m.parameter[RAMP]
        m.throttled[step] += slow - busy
        busy = slow
    heat = min(warm_up, heat + busy)
    if heat == warm_up:
        m.core[IS_WARM] = 1
    m.core[HEAT] = heat
    m.core[TENSOR_END] = start + busy
    return busy


def transfer(m: Any, engine: int, step: int, start: int) -> int:
    """A DMA transfer: issued by its engine, in order on its queue, served by engines and HBM."""
    cost = m.cost[step]
    queue = m.queue[cost]
    m.free[engine] = start + m.busy[cost]
    if m.generation[cost] > 0:
        m.generator[engine] = start + m.generation[cost]
    ready = max(start + m.parameter[DMA_START], m.queue_ready[queue])
    m.queue_ready[queue] = ready
    first = -1
    end = ready
    behind = 0
    share = m.cost_lane[cost]
    while share < m.cost_lane[cost + 1]:
        work = m.lane_work[share]
        members = m.lane_members[share]
        lane = 0
        while members >> lane > 0:
            if members >> lane & 1:
                free = m.lane[lane * m.parameter[QUEUES] + queue]
                begun = max(ready, free)
                served = serve(m, lane, queue, begun, work)
                if served > end:
                    end = served
                    behind = 0
                    if free > ready:
                        behind = 1
                if lane < LANES - 1 and (first < 0 or begun < first):
                    first = begun
            lane += 1
        share += 1
    end += m.skew[cost]
    # in the order in which they are ready, so that each adds what the ones before do not cover
    m.queue_busy[queue] += max(0, end - max(ready, m.queue_end[queue]))
    m.queue_end[queue] = max(m.queue_end[queue], end)
    return finish(m, step, max(first, ready), end, end + m.parameter[DMA_DONE], behind)


def serve(m: Any, lane: int, queue: int, begun: int, work: int) -> int:
    """When a lane has done a queue's work: its queues take turns as long as they have work.

    The other queues' work so far ends as much later, and later work after it; what has been said of
    earlier transfers stands.
    """
    queues = m.parameter[QUEUES]
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


def finish(m: Any, step: int, start: int, end: int, done: int, behind: int) -> int:
    """Record an instruction that ran from start to end and whose results count from `done` on.

    A transfer is behind another where what served it last had work of its queue left.
    """
    m.visible[step] = done
    m.counts[step] += 1
    m.busied[step] += end - start
    m.core[LAST] = max(m.core[LAST], done)
    m.core[EXECUTED] += 1
    if m.spoils[step] >= 0 and m.spoils[step] == m.core[HELD_TILE]:
        m.core[HELD] = -1
        m.core[HELD_TILE] = -1
    events = m.core[EVENTS]
    if events < m.parameter[MOST_EVENTS]:
        m.event[4 * events] = step
        m.event[4 * events + 1] = start
        m.event[4 * events + 2] = end
        m.event[4 * events + 3] = behind
        m.core[EVENTS] = events + 1
    one = m.step_signal[step]
    while one < m.step_signal[step + 1]:
        signal(m, m.signal_semaphore[one], m.signal_units[one], done)
        one += 1
    return 0


def signal(m: Any, semaphore: int, units: int, moment: int) -> int:
    """Count, never before what was counted earlier, and look again at engines that wait for it."""
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
        if m.start[engine] == BLOCKED and m.wait_semaphore[m.blocked[engine]] == semaphore:
            look(m, engine)
        engine += 1
    return 0


def has_room(m: Any, step: int) -> int:
    """Whether the rings have room for an instruction's signals, once what is past is dropped.

    Nothing starts before NOW any more, so when a count was reached long before no longer matters.
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
                if moment + m.parameter[MARGIN] > m.core[NOW]:
                    break
                first += 1
            m.first[semaphore] = first
            if needed - first > capacity:
                m.full[0] = semaphore
                m.full[1] = needed - first
                return 0
        one += 1
    return 1


def gather(m: Any) -> int:
    """List the moments that can still delay a wait, by semaphore and relative to NOW.

    Counts reached before are dropped. Returns how many are listed.
    """
    position = 0
    semaphore = 0
    while semaphore < m.parameter[SEMAPHORES]:
        first = m.first[semaphore]
        while first < m.count[semaphore]:
            moment = m.ring[m.base[semaphore] + (first & m.mask[semaphore])]
            if moment + m.parameter[MARGIN] > m.core[NOW]:
                break
            first += 1
        m.first[semaphore] = first
        while first < m.count[semaphore]:
            moment = m.ring[m.base[semaphore] + (first & m.mask[semaphore])]
            m.pending[position] = moment - m.core[NOW]
            position += 1
            first += 1
        semaphore += 1
    return position


def meet(m: Any) -> int:
    """Let all engines pass a barrier when each has come to it: all is complete, counts start again.

    Returns whether they could.
    """
    start = m.core[LAST]
    engine = 0
    while engine < ENGINES:
        if m.start[engine] != MET:
            return 0
        start = max(start, m.waited[engine])
        engine += 1
    step = m.arg[m.place[0]]
    end = start + m.busy[m.cost[step]]
    m.core[NOW] = start
    semaphore = 0
    while semaphore < m.parameter[SEMAPHORES]:
        m.count[semaphore] = 0
        m.first[semaphore] = 0
        m.latest[semaphore] = 0
        semaphore += 1
    owner = m.engine[step]
    if m.binding[owner] >= 0:
        m.stalled[m.binding[owner]] += m.waited[owner] - m.free[owner]
    finish(m, step, start, end, end, 0)
    engine = 0
    while engine < ENGINES:
        m.free[engine] = end
        next_place(m, engine)
        look(m, engine)
        engine += 1
    return 1


def release(m: Any) -> int:
    """Let the engines that know a run-time condition go on, not before it is known."""
    group = m.core[RELEASED] - 1
    m.core[RELEASED] = 0
    m.group_arrived[group] = 0
    known = 0
    step = m.group_first[group]
    while step < m.group_end[group]:
        known = max(known, m.visible[step])
        step += 1
    engine = 0
    while engine < ENGINES:
        if m.start[engine] == ARRIVED and m.arg[m.place[engine]] == group:
            m.free[engine] = max(m.free[engine], known)
            next_place(m, engine)
            look(m, engine)
        engine += 1
    return 0
