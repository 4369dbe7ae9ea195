"""List scheduling of straight-line code over in-order engines, with engine assignment.

Of all instructions whose operands are ready, the scheduler issues the one that can start first, the
longest chain of dependents breaking ties, and assigns it to the engine that would finish it first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.isa.cost import activation_table, engine_cycles
from glia.isa.instructions.dma import Transfer
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import (
    Memset,
    ScalarTensorTensor,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)
from glia.isa.kit import Instr
from glia.isa.operand import Memory, usable_bytes_per_partition
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.footprint import Footprint
from glia.machine.ir import Loop, Program, Statement, with_blocks
from glia.machine.legal_instruction import violations
from glia.machine.overlap.repeated_order import repeated_order
from glia.machine.passes.on_chip_space import occupied_bytes
from glia.machine.queues import stream_of
from glia.options import CompileOptions

MOVABLE = (TensorCopy, TensorScalar, TensorTensor, ScalarTensorTensor, Memset)
RUN_SHARES = {  # of each memory, for the tiles of one run; the rest is for longer lifetimes
    Memory.SBUF: 0.45,
    Memory.PSUM: 0.75,
}
LONGEST_RUN = 1500  # instructions ordered together
# By -O level, the reordering distance: how far ahead of the oldest unissued instruction another may
# be issued, which bounds the tiles that are live together
WINDOWS = {2: 64, 3: 192}
AS_ACTIVATION = "activation"  # of the Scalar Engine, as a variant of another instruction
WIDER_WINDOW = 3  # times as far, where a loop's room bounds what is live together


@dataclass
class Task:
    """A node of the dependence graph of one run of instructions."""

    position: int
    instruction: Instr
    ways: tuple[str, ...]  # of each variant: "" as it is, an engine, or AS_ACTIVATION
    streams: tuple[str, ...]  # the queue or engine of each variant
    durations: tuple[float, ...]  # ns, of each variant
    latency: float  # ns from the end of the instruction to its result being visible
    table: str = ""  # the activation table that it needs on the Scalar Engine
    successors: list[int] = field(default_factory=list)
    readers: set[int] = field(default_factory=set)  # the successors that read what it writes
    waiting_for: int = 0
    ready_ns: float = 0.0
    height_ns: float = 0.0  # longest chain of dependents

    def earliest_start(self, free_ns: dict[str, float]) -> float:
        """The time at which its operands are ready and one of its engines is free."""
        free = min([free_ns.get(stream, 0.0) for stream in self.streams])
        return free if free > self.ready_ns else self.ready_ns

    def seen_ns(self, follower: Task, stream: str, end: float) -> float:
        """When a successor may start, if this one ends on a stream at `end`.

        An engine works in order: it only waits for results of its own that it reads.
        """
        is_ordered = follower.streams == (stream,) and follower.position not in self.readers
        return end if is_ordered else end + self.latency

    def variant(self, number: int) -> Instr:
        """The instruction in one of its variants."""
        way = self.ways[number]
        if way == AS_ACTIVATION:
            return next(_activations(self.instruction))
        return replace(self.instruction, on=way) if way else self.instruction


@dataclass(frozen=True)
class _Facts:
    """What instructions that are alike have in common; `streams` are those of other variants."""

    ways: tuple[str, ...]
    streams: tuple[str, ...]
    durations: tuple[float, ...]
    latency: float
    table: str


def schedule(program: Program, options: CompileOptions) -> Program:
    """Reorder every straight-line run of every block and assign engines."""
    if options.optlevel < 2:
        return replace(program, body=_unwrap_fixed_loops(program.body))
    scheduler = Scheduler(get_target(program.target).arch, WINDOWS[options.optlevel])
    return replace(program, body=scheduler.block(program.body))


def schedule_keeping_engines(
    program: Program, may_move: Callable[[Instr], bool] | None = None
) -> Program:
    """Reorder straight-line runs of a program; only what `may_move` accepts changes its engine.

    Accesses to tiles whose addresses overlap keep their order. An instruction that `may_move`
    accepts, none by default, may change to an engine that gives the same bits.
    """
    scheduler = Scheduler(
        get_target(program.target).arch,
        WINDOWS[3],
        may_move=may_move or (lambda _: False),
        aliases=_aliases_by_tile(program),
        placed=program.addresses,
    )
    return replace(program, body=scheduler.block(program.body))


def _aliases_by_tile(program: Program) -> dict[str, tuple[str, ...]]:
    """By tile, the on-chip tiles whose addresses overlap its own."""
    placed: dict[Memory, list[tuple[int, int, str]]] = {}
    for name, start in program.addresses.items():
        tile = program.tiles[name]
        if tile.memory is not Memory.HBM:
            entry = (start, start + tile.bytes_per_partition, name)
            placed.setdefault(tile.memory, []).append(entry)
    found: dict[str, tuple[str, ...]] = {}
    for entries in placed.values():
        active: list[tuple[int, int, str]] = []
        for start, end, name in sorted(entries):
            active = [entry for entry in active if entry[1] > start]
            for _, _, other in active:
                found[name] = (*found.get(name, ()), other)
                found[other] = (*found.get(other, ()), name)
            active.append((start, end, name))
    return found


def _unwrap_fixed_loops(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements with every fixed one-trip loop replaced by its body."""
    found: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and statement.is_fixed:
            found += statement.body
        else:
            found.append(with_blocks(statement, _unwrap_fixed_loops))
    return tuple(found)


class Scheduler:
    """A list scheduler for one generation.

    `may_move` selects the instructions that may change engines. `aliases` lists, by tile, tiles
    whose addresses overlap. `placed` names the tiles with addresses, which need no capacity.
    """

    def __init__(
        self,
        arch: Arch,
        window: int,
        *,
        may_move: Callable[[Instr], bool] = lambda _: True,
        aliases: Mapping[str, Sequence[str]] | None = None,
        placed: Container[str] = (),
    ) -> None:
        self.arch = arch
        self.window = window
        self.may_move = may_move
        self.aliases = aliases or {}
        self.placed = placed
        self.room = 0  # bytes per partition of SBUF for a loop's tiles; 0 where it is not known
        self._facts: dict[object, _Facts] = {}  # by what instructions have in common

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The block with every straight-line run scheduled."""
        result: list[Statement] = []
        run: list[Instr] = []
        for statement in body:
            if isinstance(statement, Instr):
                run.append(statement)
                continue
            result += self.run(run)
            run = []
            if isinstance(statement, Loop) and statement.is_fixed:
                result += statement.body
            elif isinstance(statement, Loop) and statement.copies and statement.trips == 1:
                result += self._in_room(statement)
            elif isinstance(statement, Loop) and statement.copies:
                result.append(self._loop_of_copies(statement))
            else:
                result.append(with_blocks(statement, self.block))
        return (*result, *self.run(run))

    def _in_room(self, loop: Loop) -> tuple[Statement, ...]:
        """The body of a loop of one trip, in the room that the loop has for its tiles."""
        with self.in_room(loop.room):
            return self.block(loop.body)

    def _loop_of_copies(self, loop: Loop) -> Loop:
        """A loop of iterations that have tiles of their own."""
        run = [each for each in loop.body if isinstance(each, Instr)]
        with self.in_room(loop.room):
            if len(run) == len(loop.body) <= LONGEST_RUN:
                body: tuple[Statement, ...] = (*self._body_in_order(run, loop.variable),)
            else:
                body = self.block(loop.body)
        return replace(loop, body=body, copies=0, room=0)

    @contextmanager
    def in_room(self, room: int) -> Iterator[None]:
        """Inside, tiles of SBUF may take so many bytes per partition, which bounds the reordering.

        The window is wider then: it bounds elsewhere what is live together.
        """
        before, window = self.room, self.window
        self.room, self.window = room, window if before else window * WIDER_WINDOW
        yield
        self.room, self.window = before, window

    def _body_in_order(self, run: Sequence[Instr], variable: str) -> Sequence[Instr]:
        """A loop's body in the order that repeats sooner, with the window or a narrower one."""
        found = repeated_order(run, variable, self)
        if len(run) > self.window // WIDER_WINDOW:
            wide, self.window = self.window, self.window // WIDER_WINDOW
            narrow = repeated_order(run, variable, self)
            self.window = wide
            found = min(found, narrow, key=lambda order: order.interval_ns)
        return found.instructions

    def run(self, instructions: Sequence[Instr]) -> list[Instr]:
        """The instructions in scheduled order."""
        ordered: list[Instr] = []
        for start in range(0, len(instructions), LONGEST_RUN):
            ordered += self.order(self.tasks(instructions[start : start + LONGEST_RUN]))
        return ordered

    def tasks(self, instructions: Sequence[Instr]) -> list[Task]:
        """The dependence graph of instructions."""
        tasks = [self.task(position, each) for position, each in enumerate(instructions)]
        _add_dependencies(tasks, self.aliases)
        return tasks

    def _pressure(self, tasks: Sequence[Task], memory: Memory) -> _MemoryPressure:
        """The memory's state before a run: within a loop's room, or a share of the memory."""
        share = usable_bytes_per_partition(memory, self.arch) * RUN_SHARES[memory]
        if memory is not Memory.SBUF or not self.room:
            return _MemoryPressure(tasks, memory, share, self.arch, self.placed)
        held = _live_across_iterations(tasks)
        return _MemoryPressure(tasks, memory, self.room, self.arch, self.placed, held)

    def task(self, position: int, instruction: Instr) -> Task:
        """The node of an instruction, without edges."""
        key = _signature(instruction), self.may_move(instruction)
        known = self._facts.get(key)
        if known is None:
            known = self._facts[key] = self._facts_of(instruction)
        streams = stream_of(instruction), *known.streams
        return Task(
            position, instruction, known.ways, streams, known.durations, known.latency, known.table
        )

    def _facts_of(self, instruction: Instr) -> _Facts:
        variants = tuple(self.variants(instruction))
        kind = type(instruction)
        return _Facts(
            ("", *(v.runs_on if isinstance(v, kind) else AS_ACTIVATION for v in variants[1:])),
            tuple(map(stream_of, variants[1:])),
            tuple(map(self.duration, variants)),
            self.latency(instruction),
            activation_table(instruction),
        )

    def duration(self, instruction: Instr) -> float:
        """Nanoseconds for which the instruction occupies its stream."""
        if isinstance(instruction, Transfer):
            return instruction.transfer_nanoseconds(self.arch)
        engine = instruction.runs_on
        return engine_cycles(instruction, self.arch) / self.arch.clocks_ghz[engine]

    def latency(self, instruction: Instr) -> float:
        """Nanoseconds from the end of the instruction until another stream sees its result."""
        arch = self.arch
        if isinstance(instruction, Transfer):
            return arch.dma_start_ns + arch.dma_completion_ns
        engine = instruction.runs_on
        cycles = arch.latency_cycles.get(engine, 0.0)
        return cycles / arch.clocks_ghz[engine] + arch.semaphore_wake_ns

    def table_load_ns(self, task: Task, table: str) -> float:
        """Nanoseconds for which the Scalar Engine loads a table before a task, with one loaded."""
        return self.arch.activation_table_load_ns if task.table not in ("", table) else 0.0

    def variants(self, instruction: Instr) -> Iterator[Instr]:
        """The instruction, then its forms on the other engines that give the same result."""
        yield instruction
        if not isinstance(instruction, MOVABLE) or not _is_float(instruction):
            return
        if not self.may_move(instruction):
            return
        others: list[Instr] = [replace(instruction, on=engine) for engine in instruction.engines]
        if self.arch.capabilities.has_shared_sbuf_port:  # moving work to GpSimd gains nothing
            others = [other for other in others if other.on != "gpsimd"]
            others += _activations(instruction)
        for variant in others:
            if variant.on != instruction.runs_on and not violations(variant, self.arch):
                yield variant

    def order(self, tasks: list[Task]) -> list[Instr]:
        """List-schedule the tasks; prefers those whose new tiles fit in the memory's share."""
        for task in reversed(tasks):
            successor_height = max((tasks[s].height_ns for s in task.successors), default=0.0)
            task.height_ns = min(task.durations) + task.latency + successor_height
        free_ns: dict[str, float] = {}
        unissued = dict.fromkeys(range(len(tasks)))
        pressures = [self._pressure(tasks, memory) for memory in RUN_SHARES]
        available = [task.position for task in tasks if not task.waiting_for]
        result = []
        table = next((task.table for task in tasks if task.table), "")
        while unissued:
            limit = next(iter(unissued)) + self.window
            near = [tasks[position] for position in available if position < limit]
            fitting = near
            for pressure in pressures:
                if pressure.may_overflow():
                    fitting = [t for t in fitting if pressure.has_capacity(t.position)]
            task = min(
                fitting or [tasks[next(iter(unissued))]],  # the oldest: it frees tiles soonest
                key=lambda t: (
                    t.earliest_start(free_ns) + self.table_load_ns(t, table),
                    -t.height_ns,
                    t.position,
                ),
            )
            available.remove(task.position)
            for pressure in pressures:
                pressure.issue(task.position)
            del unissued[task.position]
            chosen, end = _fastest_variant(task, free_ns)
            end += self.table_load_ns(task, table)
            table = task.table or table
            free_ns[task.streams[chosen]] = end
            result.append(task.variant(chosen))
            for successor in task.successors:
                follower = tasks[successor]
                seen = task.seen_ns(follower, task.streams[chosen], end)
                follower.ready_ns = max(follower.ready_ns, seen)
                follower.waiting_for -= 1
                if not follower.waiting_for:
                    available.append(successor)
        return result


def _live_across_iterations(tasks: Sequence[Task]) -> set[str]:
    """The tiles that a loop's body accesses first by a read: the iteration before wrote them."""
    is_read_first: dict[str, bool] = {}
    for task in tasks:
        for pattern in task.instruction.read_patterns():
            is_read_first.setdefault(pattern.tile.name, True)
        for pattern in task.instruction.written_patterns():
            is_read_first.setdefault(pattern.tile.name, False)
    return {name for name, is_first in is_read_first.items() if is_first}


class _MemoryPressure:
    """The tiles of one memory that are live, first access to last, as a run is ordered.

    Those in `held` are live throughout.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        memory: Memory,
        capacity: float,
        arch: Arch,
        placed: Container[str],
        held: Container[str] = (),
    ) -> None:
        self.capacity = capacity
        self.tiles = [_tiles(task.instruction, memory, arch, placed) for task in tasks]
        self.largest = max((sum(tiles.values()) for tiles in self.tiles), default=0)
        self.remaining_uses = Counter(name for tiles in self.tiles for name in tiles)
        self.live = {n: b for tiles in self.tiles for n, b in tiles.items() if n in held}
        self.live_bytes = sum(self.live.values())  # bytes per partition of what is live
        self.remaining_uses.update(self.live.keys())  # one use that never comes

    def may_overflow(self) -> bool:
        """Whether some instruction's tiles might not fit beside the live ones."""
        return self.live_bytes + self.largest > self.capacity

    def has_capacity(self, position: int) -> bool:
        """Whether the tiles that become live at a position fit beside the live ones."""
        added_bytes = sum(b for n, b in self.tiles[position].items() if n not in self.live)
        return not added_bytes or self.live_bytes + added_bytes <= self.capacity

    def issue(self, position: int) -> None:
        """Update the live tiles: allocate those first accessed here, free those last accessed."""
        for name, bytes_used in self.tiles[position].items():
            if name not in self.live:
                self.live[name] = bytes_used
                self.live_bytes += bytes_used
            self.remaining_uses[name] -= 1
            if not self.remaining_uses[name]:
                self.live_bytes -= self.live.pop(name)


def _tiles(
    instruction: Instr, memory: Memory, arch: Arch, placed: Container[str]
) -> dict[str, int]:
    """The tiles of a memory that an instruction accesses, with their bytes."""
    tiles = (pattern.tile for pattern in instruction.patterns())
    return {
        tile.name: occupied_bytes(tile, arch)
        for tile in tiles
        if tile.memory is memory and tile.name not in placed
    }


def _signature(instruction: Instr) -> object:
    """What the engines that an instruction may run on, and its times, depend on."""
    operands = (
        (name, p.memory, p.tile.dtype, p.tile.partitions, p.dtype, p.dims, p.partition)
        for name, _, p in instruction.operands()
    )
    return type(instruction), instruction.runs_on, *operands, *instruction.attributes().items()


def _fastest_variant(task: Task, free_ns: dict[str, float]) -> tuple[int, float]:
    """The variant that finishes first, and the time at which it does."""
    best, best_end = 0, float("inf")
    for number, (stream, duration) in enumerate(zip(task.streams, task.durations, strict=True)):
        start = max(free_ns.get(stream, 0.0), task.ready_ns)
        if start + duration < best_end:
            best, best_end = number, start + duration
    return best, best_end


def _activations(instruction: Instr) -> Iterator[Instr]:
    """Equivalent activations for the Scalar Engine, as its own copies came later."""
    match instruction:
        case TensorCopy(dst=dst, src=src, loc=loc):
            yield Activation(dst=dst, data=src, function="copy", on="scalar", loc=loc)
        case TensorScalar(dst=dst, data=data, operand0=by, op0="multiply", op1="", loc=loc):
            if by is not None:
                yield Activation(
                    dst=dst, data=data, function="copy", scale=by, on="scalar", loc=loc
                )
        case TensorScalar(dst=dst, data=data, operand0=by, op0="add", op1="", loc=loc):
            yield Activation(dst=dst, data=data, function="copy", bias=by, on="scalar", loc=loc)


def _is_float(instruction: Instr) -> bool:
    """Whether all operands are float tensors: engines treat integers and raw bits differently."""
    patterns = [*instruction.patterns()]
    return all(p.dtype.is_float and p.dtype is p.tile.dtype for p in patterns)


def _add_dependencies(tasks: list[Task], aliases: Mapping[str, Sequence[str]]) -> None:
    """Add a dependence edge for every pair of accesses that must keep their order."""
    accesses: dict[str, dict[bool, list[tuple[int, Footprint]]]] = {}  # by whether they write
    last_state_users: dict[tuple[str, str], int] = {}
    last_meetings: dict[tuple[object, ...], int] = {}
    last_register_user = -1
    for task in tasks:
        predecessors: set[int] = set()
        writers: set[int] = set()
        instruction = task.instruction
        if instruction.uses_registers:
            if last_register_user >= 0:
                predecessors.add(last_register_user)
            last_register_user = task.position
        if isinstance(instruction, CrossCoreInstr) and instruction.among == "cores":
            # the n-th of a core meets the n-th of the other
            topic = instruction.topic()
            predecessors.add(last_meetings.get(topic, task.position))
            last_meetings[topic] = task.position
        for _, kept, _ in instruction.states_touched():
            place = (instruction.runs_on, kept.state.name)
            predecessors.add(last_state_users.get(place, task.position))
            last_state_users[place] = task.position
        written = [(p, True) for p in instruction.written_patterns()]
        for pattern, is_write in [*written, *((p, False) for p in instruction.read_patterns())]:
            footprint = Footprint.of(pattern)
            known = accesses.setdefault(pattern.tile.name, {True: [], False: []})
            written_before = [n for n, other in known[True] if footprint.may_overlap(other)]
            predecessors.update(written_before)
            if is_write:
                read_before = (n for n, other in known[False] if footprint.may_overlap(other))
                predecessors.update(read_before)
            else:
                writers.update(n for n in written_before if n < task.position)
            for name in aliases.get(pattern.tile.name, ()):
                others = accesses.get(name, {})
                for wrote in (True, False) if is_write else (True,):
                    predecessors.update(n for n, _ in others.get(wrote, ()))
            known[is_write].append((task.position, footprint))
        predecessors.discard(task.position)
        for position in predecessors:
            tasks[position].successors.append(task.position)
        for position in writers & predecessors:
            tasks[position].readers.add(task.position)
        task.waiting_for = len(predecessors)
