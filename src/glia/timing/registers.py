"""The numbered registers of the timing model: what each word of its records means, and its unit.

`timing.events` and `timing.producers` are functions over records of integer arrays, which
`base.machine_code.native` compiles. `CoreRecord` and `DependenceRecord` declare the arrays; the
enumerations name the words of arrays that hold a different quantity in each word, and the codes
that words hold.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from glia.base.machine_code.native_records import Words, arrays_of, words

ENGINES = 5
LANES = 17  # 16 DMA engines and the HBM interface; each has a clock for every queue
EVENT_WORDS = 4  # of one event: step, start, end, and whether the transfer was queued
RENDEZVOUS_OPEN = -2  # in `blocked`: the engine may start the rendezvous it has come to


class Engine(IntEnum):
    """The engines' numbers, as in `isa.kit.ENGINES`."""

    TENSOR = 0
    VECTOR = 1
    SCALAR = 2
    GPSIMD = 3
    SYNC = 4


class StreamOp(IntEnum):
    """The operations of an engine's instruction stream; `arg` and `aux` are their operands."""

    STEP = 0  # execute step arg
    LOOP = 1  # enter the loop of slot arg; aux is the place behind it
    LOOP_END = 2  # next iteration of the loop of slot arg; aux is the place of its body
    BARRIER = 3  # step arg: all engines of the core synchronise
    WHILE = 4  # enter run-time loop arg
    DECIDE = 5  # synchronise with the other engines that decide run-time loop arg
    REPEAT = 6  # leave run-time loop arg for the place aux when no iteration is left
    JUMP = 7  # go to place arg
    BRANCH = 8  # take an arm of branch arg; aux is where `arm` lists them
    STOP = 9  # the end of the stream
    RENDEZVOUS = 10  # execute step arg, at which cores synchronise


class CostKind(IntEnum):
    """How the time of an instruction is counted."""

    COMPUTE = 0
    ACTIVATION = 1
    MATMUL = 2
    TRANSFER = 3


class EngineState(IntEnum):
    """What `start` holds for an engine that has no start time."""

    BLOCKED = -1  # by wait `blocked`
    FINISHED = -2
    AT_BARRIER = -3
    AT_DECISION = -4
    AT_RENDEZVOUS = -5


class StopReason(IntEnum):
    """Why `events.run` returns."""

    DONE = 0
    DEADLOCK = 1
    LOOP_ITERATION = 2  # a watched loop starts another iteration
    RING_FULL = 3  # `Overflow` says which
    RENDEZVOUS = 4  # an engine has come to a step at which cores synchronise
    EVENTS_FULL = 5  # `event` has no room for another
    PAUSED = 6  # as many instructions as the caller allows are executed


class Register(IntEnum):
    """The index of a word of an array, with the word's unit and meaning."""

    unit: str
    meaning: str

    def __new__(cls, index: int, unit: str, meaning: str) -> Register:
        """A member that is its index."""
        member = int.__new__(cls, index)
        member._value_ = index
        member.unit, member.meaning = unit, meaning
        return member


class RunParameter(Register):
    """The words of `parameter`, which a run does not change."""

    SLOTS = 0, "loops", "loops of the program: the stride of an engine in `variable`"
    ORDINALS = 1, "decisions", "run-time loops and branches: the stride of an engine in `seen`"
    WAKE = 2, "ps", "from the moment a count is reached to the start of who waits for it"
    DMA_START = 3, "ps", "from issuing a transfer to its first byte"
    DMA_DONE = 4, "ps", "from a transfer's last byte to its signals"
    TABLE_LOAD = 5, "ps", "loading an activation table"
    WARM_UP = 6, "ps", "busy time after which the array runs at its full rate; 0: at once"
    RAMP = 7, "1/1000", "rate of the array until then, relative to its full rate"
    EVENT_ROOM = 8, "events", "capacity of `event`; 0: none are kept"
    SEMAPHORES = 9, "semaphores", "semaphores of the program"
    MARGIN = 10, "ps", "a moment longer ago than this delays nothing"
    UNWATCHED = 11, "instructions", "executed before loops are watched"
    QUEUES = 12, "queues", "DMA queues of the program: the stride of a lane in `lane`"
    PAUSE = 13, "instructions", "executed before the run pauses"
    REST = 14, "ps", "of stored busy time when the array is warm"
    RAMP_DRAIN = 15, "1/1000", "busy time that an idle one costs while the array is not warm"
    REST_DRAIN = 16, "1/1000", "busy time that an idle one costs while it is"


class CoreState(Register):
    """The words of `core`: the state that all engines share."""

    NOW = 0, "ps", "start of the latest instruction; nothing starts earlier any more"
    LAST = 1, "ps", "when the latest result so far becomes visible"
    SWAP = 2, "ps", "when the array took the weights it holds, so that others can be loaded"
    TENSOR_END = 3, "ps", "end of the array's latest instruction"
    HEAT = 4, "ps", "busy time that the array has stored towards its full rate"
    IS_WARM = 5, "0 or 1", "whether the array runs at its full rate"
    WEIGHTS = 6, "weights", "which weights the array holds, -1 for none"
    WEIGHTS_PLACE = 7, "elements", "their place in their tile"
    WEIGHTS_TILE = 8, "tile", "their tile, -1 for none"
    WEIGHTS_STEP = 9, "step", "the product that loaded them"
    TABLE = 10, "table", "the activation table that is loaded, -1 for none"
    EXECUTED = 11, "instructions", "executed so far"
    EVENTS = 12, "events", "kept in `event` so far"
    MARK = 13, "slot + 1", "the watched loop that starts another iteration, 0 for none"
    DECIDED = 14, "ordinal + 1", "the run-time loop that all its engines have come to, 0 for none"
    ARRIVING = 15, "engine", "the engine that has come to a rendezvous"


class Overflow(Register):
    """The words of `overflow`: the semaphore ring that is full."""

    SEMAPHORE = 0, "semaphore", "whose ring it is"
    NEEDED = 1, "moments", "the capacity it needs"


class Extent(Register):
    """The words of `extent`."""

    ITEMS = 0, "items", "spans of the schedule"
    FOUND = 1, "steps", "dependences in `read_step` so far"


class LaneRecord(Protocol):
    """What lanes share their time by: a part of every record with transfers."""

    parameter: Words
    lane: Words


class CoreRecord:
    """Everything that the rules of `timing.events` read and write. Times are picoseconds.

    An array "per X offsets" says where each X's rows begin in another array, and where the last
    one's end.
    """

    parameter: Words = words("RunParameter", "see RunParameter", "constants of the run")
    core: Words = words("CoreState", "see CoreState", "what all engines share", is_state=True)

    # The engines' instruction streams, one behind the other
    op: Words = words("place", "StreamOp", "operation")
    arg: Words = words("place", "see StreamOp", "its first operand")
    aux: Words = words("place", "see StreamOp", "its second operand")
    arm: Words = words("entry", "arms, then places", "of each branch: how many arms, and where")
    trips: Words = words("loop slot", "iterations", "trip count")
    watched: Words = words("loop slot", "engine", "whose iterations are watched, -1: none")

    # Engines
    place: Words = words("engine", "place", "where it is in its stream", is_state=True)
    start: Words = words(
        "engine", "ps or EngineState", "when it can start what is at its place", is_state=True
    )
    free: Words = words("engine", "ps", "when it can issue its next instruction", is_state=True)
    generator: Words = words("engine", "ps", "when its descriptor generator is free", is_state=True)
    waited: Words = words("engine", "ps", "earliest start as far as waits say", is_state=True)
    counted: Words = words("engine", "ps", "when the last of its counts is reached", is_state=True)
    blocked: Words = words("engine", "wait", "which blocks it, or RENDEZVOUS_OPEN", is_state=True)
    binding: Words = words("engine", "wait", "which decides its start, -1: none", is_state=True)
    variable: Words = words("engine and loop slot", "iterations", "loop variable", is_state=True)

    # Run-time control flow, numbered by ordinals
    outcomes: Words = words("ordinal offsets", "rows of known_outcome", "outcomes that are given")
    known_outcome: Words = words("outcome", "iterations or arm", "of an execution")
    iterations: Words = words("ordinal", "iterations", "of every execution, 0: not known")
    is_assumed: Words = words("ordinal", "0 or 1", "an outcome was not given", is_state=True)
    seen: Words = words("engine and ordinal", "executions", "so far", is_state=True)
    left: Words = words("engine and ordinal", "iterations", "still to run", is_state=True)
    group_size: Words = words("ordinal", "engines", "that decide together")
    group_arrived: Words = words("ordinal", "engines", "that have come to decide", is_state=True)
    group_first: Words = words("ordinal", "step", "first of the condition")
    group_end: Words = words("ordinal", "step", "behind the condition")

    # Costs, which steps share
    kind: Words = words("cost", "CostKind", "how its time is counted")
    engine: Words = words("step", "engine", "which executes it")
    busy: Words = words("cost", "ps", "that it keeps its engine busy")
    latency: Words = words("engine", "ps", "from an instruction's end to its result")
    load: Words = words("cost", "ps", "loading the weights of a product")
    generation: Words = words("cost", "ps", "making descriptors in hardware")
    queue: Words = words("cost", "queue", "of a transfer")
    skew: Words = words("cost", "ps", "from the last byte of the slowest lane to the end")
    ports: Words = words("step", "bit mask of ports", "memory ports it needs")
    table: Words = words("cost", "table", "activation table it needs, -1: none")

    # Steps: weights, dependences, signals
    weights: Words = words("step", "weights", "of a product, -1: none")
    weights_place: Words = words("step", "elements", "their place, loop variables at 0")
    weights_tile: Words = words("step", "tile", "theirs, -1: none")
    spoils: Words = words("step", "tile", "of weights that it overwrites, -1: none")
    step_read: Words = words("step offsets", "rows of read_step", "steps whose results it reads")
    read_step: Words = words("dependence", "step", "whose result is read")
    step_signal: Words = words("step offsets", "rows of signal_*", "its signals")
    signal_semaphore: Words = words("signal", "semaphore", "which is counted up")
    signal_units: Words = words("signal", "units of the semaphore", "added")
    cost: Words = words("step", "cost", "of the step")
    cost_lane: Words = words("cost offsets", "rows of lane_*", "a transfer's shares of lanes")
    lane_work: Words = words("share", "ps", "on each of its lanes")
    lane_members: Words = words("share", "bit mask of lanes", "lanes with that much work")

    # Waits; a count waited for is a constant and terms, factors of loop variables
    step_wait: Words = words("step offsets", "rows of wait_*", "its waits")
    wait_semaphore: Words = words("wait", "semaphore", "waited for")
    wait_constant: Words = words("wait", "counts", "constant term")
    wait_is_unknown: Words = words("wait", "0 or 1", "it names a register: taken as reached")
    wait_term: Words = words("wait offsets", "rows of term_*", "its terms")
    step_term: Words = words("step offsets", "rows of term_*", "terms of weights_place")
    term_slot: Words = words("term", "loop slot", "of its loop variable")
    term_factor: Words = words("term", "per iteration", "its factor")
    unit: Words = words("semaphore", "counts", "in a unit, which divides all its signals")

    # Results and totals
    visible: Words = words("step", "ps", "when its latest result counts", is_state=True)
    counts: Words = words("step", "executions", "so far", is_state=True)
    busied: Words = words("step", "ps", "executing, in total", is_state=True)
    table_loads: Words = words("step", "loads", "of activation tables", is_state=True)
    throttled: Words = words("step", "ps", "lost while the array was not warm", is_state=True)
    stalled: Words = words("wait", "ps", "that it alone delayed its engine", is_state=True)

    # What engines share
    lane: Words = words("lane and queue", "ps", "when its work so far is done", is_state=True)
    port: Words = words("port", "ps", "when it is free", is_state=True)
    queue_ready: Words = words("queue", "ps", "when its latest transfer was ready", is_state=True)
    count: Words = words("semaphore", "units", "counted so far", is_state=True)
    first: Words = words("semaphore", "units", "counts whose moments are dropped", is_state=True)
    queue_end: Words = words("queue", "ps", "when its transfers so far end", is_state=True)
    queue_busy: Words = words("queue", "ps", "with a transfer in flight, in total", is_state=True)
    latest: Words = words("semaphore", "ps", "when it was last counted up", is_state=True)
    base: Words = words("semaphore", "word of ring", "where its ring begins")
    mask: Words = words("semaphore", "moments", "capacity of its ring, a power of 2, less 1")
    ring: Words = words("moment", "ps", "when each count was reached")
    pending: Words = words("moment", "ps after NOW", "which can still delay a wait")
    event: Words = words("event and EVENT_WORDS", "step, ps, ps, 0 or 1", "executions kept")
    overflow: Words = words("Overflow", "see Overflow", "the ring that is full")


class DependenceRecord:
    """Everything that the rules of `timing.producers` read and write.

    A row is an access pattern of an instruction, in program order; a group is a tile and the engine
    that writes it.
    """

    extent: Words = words("Extent", "see Extent", "lengths")
    item_begin: Words = words("item", "step", "first of the span")
    item_end: Words = words("item", "step", "behind the span")
    item_is_planned: Words = words("item", "0 or 1", "its steps' dependences are looked up")
    begin: Words = words("step offsets", "rows", "its access patterns")
    is_engine: Words = words("step", "0 or 1", "its engine accesses memory itself, in order")
    access: Words = words("row", "READS or WRITES", "what the instruction does")
    group: Words = words("row", "group", "tile and engine, -1: it is not written")
    place: Words = words("row", "place", "equal for equal patterns")
    dtype: Words = words("row", "dtype", "of the elements")
    row_term: Words = words("row", "expression", "variable part of its first partition")
    row_start: Words = words("row", "partitions", "constant part of it")
    row_reach: Words = words("row", "partitions", "from the first to behind the last")
    free_term: Words = words("row", "expression", "variable part of its first element")
    free_start: Words = words("row", "elements", "constant part of it")
    free_reach: Words = words("row", "elements", "from the first to behind the last")
    remembered: Words = words("group", "writers", "remembered, at most REMEMBERED")
    writer_step: Words = words("group and writer", "step", "the latest writers, oldest first")
    writer_row: Words = words("group and writer", "row", "what each wrote")
    register_set: Words = words("step", "register", "which it sets, -1: none")
    register_begin: Words = words("step offsets", "rows of register_read", "registers it reads")
    register_read: Words = words("use", "register", "which is read")
    register_writer: Words = words("register", "step", "which set it last, -1: none")
    step_read: Words = words("step offsets", "rows of read_step", "steps it depends on")
    read_step: Words = words("dependence", "step", "depended on, ascending for each step")


def state_names() -> list[str]:
    """The names of the arrays of a core's state, in declared order."""
    return [name for name, each in arrays_of(CoreRecord).items() if each.is_state]
