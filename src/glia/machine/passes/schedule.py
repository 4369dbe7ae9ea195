"""Order straight-line code for instruction-level parallelism, and choose engines as it goes.

Engines are in-order, so the order of one block decides what overlaps. A list scheduler takes, of
all instructions whose operands are ready, the one that can start first, the longest chain of
dependents breaking ties, and gives it to the engine that would finish it first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.isa.cost import engine_cycles
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
from glia.machine.footprint import Footprint
from glia.machine.ir import Loop, Program, Statement, with_blocks
from glia.machine.legal_instruction import violations
from glia.machine.queues import stream_of
from glia.options import CompileOptions

MOVABLE = (TensorCopy, TensorScalar, TensorTensor, ScalarTensorTensor, Memset)
RUN_SHARES = {  # of each memory, for the tiles of one run; the rest for those that outlive it
    Memory.SBUF: 0.45,
    Memory.PSUM: 0.75,
}
LONGEST_RUN = 1500  # instructions ordered together
WINDOWS = {2: 64, 3: 192}  # -O level: how far ahead of the oldest unfinished instruction another
# may run, which bounds the tiles that are live together


@dataclass
class _Task:
    """One instruction while a run is being ordered."""

    position: int
    instruction: Instr
    variants: tuple[Instr, ...]
    streams: tuple[str, ...]  # the queue or engine of each variant
    durations: tuple[float, ...]  # ns, of each variant
    latency: float  # ns from the end of the instruction to its result being visible
    successors: list[int] = field(default_factory=list)
    waiting_for: int = 0
    ready_ns: float = 0.0
    height_ns: float = 0.0  # longest chain of dependents

    def earliest_start(self, free_ns: dict[str, float]) -> float:
        """When its operands are ready and some engine is free for it."""
        free = min([free_ns.get(stream, 0.0) for stream in self.streams])
        return free if free > self.ready_ns else self.ready_ns


def schedule(program: Program, options: CompileOptions) -> Program:
    """Reorder every straight-line run of every block and assign engines."""
    if options.optlevel < 2:
        return replace(program, body=_without_marks(program.body))
    scheduler = Scheduler(get_target(program.target).arch, WINDOWS[options.optlevel])
    return replace(program, body=scheduler.block(program.body))


def schedule_as_given(program: Program, moves: Callable[[Instr], bool] | None = None) -> Program:
    """Reorder straight-line runs of a program whose engines, and some addresses, are chosen.

    Tiles with addresses that overlap keep the order of their accesses. Instructions that `moves`
    holds for, none without it, may change to engines that give the same bits.
    """
    scheduler = Scheduler(
        get_target(program.target).arch,
        WINDOWS[3],
        moves=moves or (lambda _: False),
        sharing=_sharing(program),
        placed=program.addresses,
    )
    return replace(program, body=scheduler.block(program.body))


def _sharing(program: Program) -> dict[str, tuple[str, ...]]:
    """By tile the others on the chip that have some of the same addresses."""
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


def _without_marks(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements with what was written by hand in place of the loop of one trip around it."""
    found: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop) and statement.is_fixed:
            found += statement.body
        else:
            found.append(with_blocks(statement, _without_marks))
    return tuple(found)


class Scheduler:
    """`moves` says which may change engines; `sharing` names tiles that share addresses.

    `placed` names tiles with addresses, which take no room from the others.
    """

    def __init__(
        self,
        arch: Arch,
        window: int,
        *,
        moves: Callable[[Instr], bool] = lambda _: True,
        sharing: Mapping[str, Sequence[str]] | None = None,
        placed: Container[str] = (),
    ) -> None:
        self.arch = arch
        self.window = window
        self.moves = moves
        self.sharing = sharing or {}
        self.placed = placed

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
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
            else:
                result.append(with_blocks(statement, self.block))
        return (*result, *self.run(run))

    def run(self, instructions: Sequence[Instr]) -> list[Instr]:
        """The instructions in scheduled order."""
        ordered: list[Instr] = []
        for start in range(0, len(instructions), LONGEST_RUN):
            tasks = [
                self.task(position, instruction)
                for position, instruction in enumerate(instructions[start : start + LONGEST_RUN])
            ]
            _connect(tasks, self.sharing)
            ordered += self.order(tasks)
        return ordered

    def task(self, position: int, instruction: Instr) -> _Task:
        variants = tuple(self.variants(instruction))
        durations = tuple(self.duration(variant) for variant in variants)
        streams = tuple(map(stream_of, variants))
        return _Task(position, instruction, variants, streams, durations, self.latency(instruction))

    def duration(self, instruction: Instr) -> float:
        """Nanoseconds its stream is busy."""
        if isinstance(instruction, Transfer):
            return instruction.transfer_nanoseconds(self.arch)
        engine = instruction.runs_on
        return engine_cycles(instruction, self.arch) / self.arch.clocks_ghz[engine]

    def latency(self, instruction: Instr) -> float:
        arch = self.arch
        if isinstance(instruction, Transfer):
            return arch.dma_start_ns + arch.dma_completion_ns
        engine = instruction.runs_on
        cycles = arch.latency_cycles.get(engine, 0.0)
        return cycles / arch.clocks_ghz[engine] + arch.semaphore_wake_ns

    def variants(self, instruction: Instr) -> Iterator[Instr]:
        """The instruction, then the same on every other engine that gives the same result."""
        yield instruction
        if not isinstance(instruction, MOVABLE) or not _is_float(instruction):
            return
        if not self.moves(instruction):
            return
        others = [replace(instruction, on=engine) for engine in instruction.engines]
        if self.arch.capabilities.has_shared_sbuf_port:  # moving work to GpSimd gains nothing
            others = [other for other in others if other.on != "gpsimd"]
            others += _activations(instruction)
        for variant in others:
            if variant.on != instruction.runs_on and not violations(variant, self.arch):
                yield variant

    def order(self, tasks: list[_Task]) -> list[Instr]:
        """List scheduling; a tile is begun only when there is room for one more."""
        for task in reversed(tasks):
            below = max((tasks[s].height_ns for s in task.successors), default=0.0)
            task.height_ns = min(task.durations) + task.latency + below
        free_ns: dict[str, float] = {}
        unissued = dict.fromkeys(range(len(tasks)))
        rooms = [_Use(tasks, memory, self.arch, self.placed) for memory in RUN_SHARES]
        available = [task.position for task in tasks if not task.waiting_for]
        result = []
        while unissued:
            limit = next(iter(unissued)) + self.window
            near = [tasks[position] for position in available if position < limit]
            roomy = near
            for room in rooms:
                if room.is_tight():
                    roomy = [t for t in roomy if room.has(t.position)]
            task = min(
                roomy or [tasks[next(iter(unissued))]],  # the oldest leads to tiles that end
                key=lambda t: (t.earliest_start(free_ns), -t.height_ns, t.position),
            )
            available.remove(task.position)
            for room in rooms:
                room.issue(task.position)
            del unissued[task.position]
            chosen, end = _finishing_first(task, free_ns)
            free_ns[task.streams[chosen]] = end
            result.append(task.variants[chosen])
            for successor in task.successors:
                follower = tasks[successor]
                follower.ready_ns = max(follower.ready_ns, end + task.latency)
                follower.waiting_for -= 1
                if not follower.waiting_for:
                    available.append(successor)
        return result


class _Use:
    """Which tiles of a memory are in use while a run is ordered: from first access to last."""

    def __init__(
        self, tasks: Sequence[_Task], memory: Memory, arch: Arch, placed: Container[str]
    ) -> None:
        self.capacity = usable_bytes_per_partition(memory, arch) * RUN_SHARES[memory]
        self.tiles = [_tiles(task.instruction, memory, placed) for task in tasks]
        self.most = max((sum(tiles.values()) for tiles in self.tiles), default=0)
        self.left = Counter(name for tiles in self.tiles for name in tiles)
        self.live: dict[str, int] = {}
        self.held = 0  # bytes per partition of what is live

    def is_tight(self) -> bool:
        """Whether there may be an instruction whose tiles do not fit beside those in use."""
        return self.held + self.most > self.capacity

    def has(self, position: int) -> bool:
        """Whether the tiles that the instruction there begins fit beside those in use."""
        begun = sum(b for n, b in self.tiles[position].items() if n not in self.live)
        return not begun or self.held + begun <= self.capacity

    def issue(self, position: int) -> None:
        """Take the tiles that the instruction there begins, give back those it ends."""
        for name, bytes_used in self.tiles[position].items():
            if name not in self.live:
                self.live[name] = bytes_used
                self.held += bytes_used
            self.left[name] -= 1
            if not self.left[name]:
                self.held -= self.live.pop(name)


def _tiles(instruction: Instr, memory: Memory, placed: Container[str]) -> dict[str, int]:
    """The tiles of a memory that an instruction accesses, with their bytes."""
    tiles = (pattern.tile for pattern in instruction.patterns())
    return {
        t.name: t.bytes_per_partition for t in tiles if t.memory is memory and t.name not in placed
    }


def _finishing_first(task: _Task, free_ns: dict[str, float]) -> tuple[int, float]:
    """The number of the variant that is done first, and when it is."""
    best, best_end = 0, float("inf")
    for number, (stream, duration) in enumerate(zip(task.streams, task.durations, strict=True)):
        start = max(free_ns.get(stream, 0.0), task.ready_ns)
        if start + duration < best_end:
            best, best_end = number, start + duration
    return best, best_end


def _activations(instruction: Instr) -> Iterator[Instr]:
    """The same for the Scalar Engine, which has no copies and sums of its own at first."""
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
    """Whether every tensor holds floats: engines differ in how they treat integers and raw bits."""
    patterns = [*instruction.patterns()]
    return all(p.dtype.is_float and p.dtype is p.tile.dtype for p in patterns)


def _connect(tasks: list[_Task], sharing: Mapping[str, Sequence[str]]) -> None:
    """Add an edge for every pair of accesses that must keep their order."""
    accesses: dict[str, list[tuple[int, bool, Footprint]]] = {}
    last_keepers: dict[tuple[str, str], int] = {}
    last_register_user = -1
    for task in tasks:
        before: set[int] = set()
        instruction = task.instruction
        if instruction.uses_registers:
            if last_register_user >= 0:
                before.add(last_register_user)
            last_register_user = task.position
        for _, kept, _ in instruction.states_touched():
            place = (instruction.runs_on, kept.state.name)
            before.add(last_keepers.get(place, task.position))
            last_keepers[place] = task.position
        written = [(p, True) for p in instruction.written_patterns()]
        for pattern, is_write in [*written, *((p, False) for p in instruction.read_patterns())]:
            footprint = Footprint.of(pattern)
            known = accesses.setdefault(pattern.tile.name, [])
            before.update(
                position
                for position, wrote, other in known
                if (is_write or wrote) and footprint.may_overlap(other)
            )
            before.update(
                position
                for name in sharing.get(pattern.tile.name, ())
                for position, wrote, _ in accesses.get(name, ())
                if is_write or wrote
            )
            known.append((task.position, is_write, footprint))
        before.discard(task.position)
        for position in before:
            tasks[position].successors.append(task.position)
        task.waiting_for = len(before)
