"""The dependence graph of a run of instructions, and the ways in which each may be issued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import TensorCopy, TensorScalar
from glia.isa.kit import Instr
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.footprint import Footprint
from glia.machine.ordering.unread_copies import UnreadCopies, sums

AS_ACTIVATION = "activation"  # of the Scalar Engine, as a variant of another instruction
AS_SUM = "tensor_reduce"  # of the Vector Engine, as a variant of an activation


@dataclass
class Task:
    """A node of the dependence graph of one run of instructions."""

    position: int
    instruction: Instr
    ways: tuple[str, ...]  # of each variant: "" as it is, an engine, or AS_…
    streams: tuple[str, ...]  # the queue or engine of each variant
    durations: tuple[float, ...]  # ns, of each variant
    latency: float  # ns from the end of the instruction to its result being visible
    table: str = ""  # the activation table that it needs on the Scalar Engine
    issuer: str = ""  # of a transfer: the engine that issues it, once its operands are there
    issue_ns: float = 0.0  # for which it keeps that engine
    successors: list[int] = field(default_factory=list)
    readers: set[int] = field(default_factory=set)  # the successors that read what it writes
    waiting_for: int = 0  # how many tasks it is a successor of

    @property
    def gates(self) -> tuple[str, ...]:
        """The streams of which one must be free to issue it: a transfer waits in its queue."""
        return (self.issuer,) if self.issuer else self.streams

    def seen_ns(self, follower: Task, stream: str, end: float) -> float:
        """When a successor may start, if this one ends on a stream at `end`.

        An engine works in order: it only waits for results of its own that it reads.
        """
        is_ordered = follower.streams == (stream,) and follower.position not in self.readers
        return end if is_ordered else end + self.latency


def in_way(instruction: Instr, way: str) -> Instr:
    """An instruction in one of the ways of its task."""
    if way == AS_ACTIVATION:
        return next(activations(instruction))
    if way == AS_SUM:
        return next(sums(instruction))
    return replace(instruction, on=way) if way else instruction


def without_sums(tasks: list[Task]) -> list[Task]:
    """The tasks with sums on the engine that they are on; the same list where all are."""
    if not any(AS_SUM in task.ways for task in tasks):
        return tasks
    found = []
    for task in tasks:
        kept = [number for number, way in enumerate(task.ways) if way != AS_SUM]
        ways, streams, durations = (
            tuple(each[number] for number in kept)
            for each in (task.ways, task.streams, task.durations)
        )
        found.append(replace(task, ways=ways, streams=streams, durations=durations))  # type: ignore[arg-type]
    return found


def activations(instruction: Instr) -> Iterator[Instr]:
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


def add_dependencies(
    tasks: list[Task], aliases: Mapping[str, Sequence[str]], unread: UnreadCopies | None = None
) -> None:
    """Add a dependence edge for every pair of accesses that must keep their order.

    Writes of what nothing reads need not, nor the accumulators of a sum that nothing goes on with.
    """
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
        if isinstance(instruction, CrossCoreInstr):
            # the n-th of a core meets the n-th of the other; ranks exchange in the order that is
            # planned for the whole program, of which a run shows a part
            topic = instruction.topic() if instruction.among == "cores" else ("ranks",)
            predecessors.add(last_meetings.get(topic, task.position))
            last_meetings[topic] = task.position
        is_only_summed = unread is not None and instruction in unread
        for _, kept, _ in () if is_only_summed else instruction.states_touched():
            place = (instruction.runs_on, kept.state.name)
            predecessors.add(last_state_users.get(place, task.position))
            last_state_users[place] = task.position
        written = [(p, True) for p in instruction.written_patterns()]
        for pattern, is_write in [*written, *((p, False) for p in instruction.read_patterns())]:
            if unread is not None and pattern.tile.name in unread.tiles:
                continue
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
