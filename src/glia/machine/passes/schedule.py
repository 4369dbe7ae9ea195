"""List scheduling of straight-line code over in-order engines, with engine assignment.

Of all instructions whose operands are ready, the scheduler issues the one that can start first, the
longest chain of dependents breaking ties, and assigns it to the engine that would finish it first.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.affine import Affine
from glia.base.compilation_memo import memoise
from glia.isa.cost import activation_table, engine_cycles
from glia.isa.instructions.dma import Transfer
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import (
    Memset,
    ScalarTensorTensor,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from glia.isa.kit import Instr
from glia.isa.operand import Memory, usable_bytes_per_partition
from glia.machine.instruction_rewriting import substitute
from glia.machine.ir import Loop, Program, Statement, with_blocks
from glia.machine.legal_instruction import violations
from glia.machine.ordering.moved_bits import MovedBits
from glia.machine.ordering.repeated_order import RepeatedOrder, repeated_order
from glia.machine.ordering.structure import Structure, Structures
from glia.machine.ordering.task_graph import InstructionRun, Orders, TaskGraph
from glia.machine.ordering.unread_copies import UnreadCopies, sums
from glia.machine.ordering.ways import (
    AS_ACTIVATION,
    AS_SUM,
    IssueWays,
    Variant,
    WayTable,
    activations,
    in_way,
)
from glia.machine.queues import stream_of
from glia.options import CompileOptions

MOVABLE = (TensorCopy, TensorScalar, TensorTensor, ScalarTensorTensor, Memset)
AS: Mapping[type[Instr], str] = {Activation: AS_ACTIVATION, TensorReduce: AS_SUM}
RUN_SHARES = {  # of each memory, for the tiles of one run; the rest is for longer lifetimes
    Memory.SBUF: 0.45,
    Memory.PSUM: 0.75,
}
LONGEST_RUN = 1500  # instructions ordered together
# By -O level, the reordering distance: how far ahead of the oldest unissued instruction another may
# be issued, which bounds the tiles that are live together
WINDOWS = {2: 64, 3: 192}
WIDER_WINDOW = 3  # times as far, where a loop's room bounds what is live together
WIDEST_WINDOW = 6  # the same, for the order of a body whose overlap is decided


def schedule(program: Program, options: CompileOptions) -> Program:
    """Reorder every straight-line run of every block and assign engines."""
    if options.optlevel < 2:
        return replace(program, body=_unwrap_fixed_loops(program.body))
    scheduler = scheduler_of(program.target, options.optlevel)
    return replace(program, body=scheduler.body(program))


def scheduler_of(target: str, optlevel: int) -> Scheduler:
    """The scheduler of programs without addresses, which remembers orders for a compilation."""

    def make() -> Scheduler:
        return Scheduler(get_target(target).arch, WINDOWS[optlevel])

    return memoise((scheduler_of, target, optlevel), make)


def schedule_keeping_engines(
    program: Program,
    may_move: Callable[[Instr], bool] | None = None,
    *,
    is_generous: bool = False,
) -> Program:
    """Reorder straight-line runs of a program; only what `may_move` accepts changes its engine.

    `is_generous` lets runs that hold much of a memory hold more, which may not fit.

    Accesses to tiles whose addresses overlap keep their order. An instruction that `may_move`
    accepts, none by default, may change to an engine that gives the same values: where a kernel
    leaves the engine of a copy open, it may be the one that makes signalling NaNs quiet.
    """
    scheduler = Scheduler(
        get_target(program.target).arch,
        WINDOWS[3],
        may_move=may_move or (lambda _: False),
        aliases=_aliases_by_tile(program),
        placed=program.addresses,
        is_generous=is_generous,
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
        is_generous: bool = False,
    ) -> None:
        self.arch = arch
        self.window = window
        self.may_move = may_move
        self.aliases = aliases or {}
        self.placed = placed
        self.is_generous = is_generous
        self.room = 0  # bytes per partition of SBUF for a loop's tiles; 0 where it is not known
        self.moved_bits: Container[Instr] = ()  # copies that keep theirs
        self.unread_copies: UnreadCopies | None = None  # of the program that is scheduled
        self.structures = Structures()
        self.orders: dict[Hashable, RepeatedOrder] = {}  # of bodies, by what they have in common
        self._listed: dict[Hashable, list[tuple[int, int]]] = {}  # of runs: nodes, and variants
        self.way_table = WayTable(arch)
        self._ways: dict[Hashable, int] = {}  # by what instructions have in common
        self._ways_of_forms: dict[tuple[int, bool, bool, bool, bool], int] = {}

    def body(self, program: Program) -> tuple[Statement, ...]:
        """The body of a program with every straight-line run scheduled."""
        self.moved_bits = MovedBits(program)
        try:
            with self.summing(program):
                return self.block(program.body)
        finally:
            self.moved_bits = ()

    @contextmanager
    def summing(self, program: Program) -> Iterator[None]:
        """Inside, sums of a program's copies that nothing reads may be on either engine."""
        self.unread_copies = UnreadCopies(program)
        try:
            yield
        finally:
            self.unread_copies = None

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
        """The iteration of a loop of one trip, in the room that the loop has for its tiles."""
        first = {loop.variable: Affine()}
        with self.in_room(loop.room):
            return self.block(tuple(substitute(each, {}, first) for each in loop.body))

    def _loop_of_copies(self, loop: Loop) -> Loop:
        """A loop of iterations that have tiles of their own."""
        run = [each for each in loop.body if isinstance(each, Instr)]
        with self.in_room(loop.room):
            if len(run) == len(loop.body) <= LONGEST_RUN:
                body: tuple[Statement, ...] = tuple(self._repeating_body(run, loop.variable))
            else:
                body = self.block(loop.body)
        return replace(loop, body=body, copies=0, room=0)

    def _repeating_body(self, run: Sequence[Instr], variable: str) -> Iterator[Instr]:
        """A loop's body in the order that repeats soonest."""
        windows = [*self.windows, *([self.window * WIDEST_WINDOW] if self.room else ())]
        for position, way in repeated_order(run, variable, self, windows).issues:
            yield in_way(run[position], way)

    @contextmanager
    def in_room(self, room: int) -> Iterator[None]:
        """Inside, tiles of SBUF may take so many bytes per partition; 0 where that is not known."""
        before = self.room
        self.room = room
        try:
            yield
        finally:
            self.room = before

    @property
    def windows(self) -> Sequence[int]:
        """How far ahead of the oldest unissued instruction another may be issued.

        Wider ones are worth trying where a loop's room bounds the tiles that are live together,
        which elsewhere the window does.
        """
        return [self.window, self.window * WIDER_WINDOW] if self.room else [self.window]

    def key_of(self, structure: Structure, body: Sequence[Instr]) -> Hashable:
        """What the order of a body depends on."""
        by_name = self.aliases or self.placed
        tiles = tuple(tile.name for tile in structure.tiles) if by_name else ()
        names = (tiles, *map(self.may_move, body)) if by_name else ()
        kept = tuple(n for n, each in enumerate(body) if each in self.moved_bits)
        sums = tuple(n for n, each in enumerate(body) if self._is_only_summed(each))
        return structure, names, kept, sums, self.room

    def run(self, instructions: Sequence[Instr]) -> list[Instr]:
        """The instructions in scheduled order."""
        ordered: list[Instr] = []
        for start in range(0, len(instructions), LONGEST_RUN):
            part = instructions[start : start + LONGEST_RUN]
            for node, variant in self._listed_order(part):
                ordered.append(in_way(part[node], self.way_table.variants[variant].way))
        return ordered

    def _listed_order(self, run: Sequence[Instr]) -> list[tuple[int, int]]:
        """The order of a run by nodes and their variants; of runs that are alike found once."""
        structure = self.structures.of(run, "")
        key = self.key_of(structure, run)
        if key not in self._listed:
            order = self.orders_of(self.graph(run, structure)).listed(self.windows[-1])
            pairs = zip(order.nodes.tolist(), order.variants.tolist(), strict=True)
            self._listed[key] = list(pairs)
        return self._listed[key]

    def graph(
        self,
        instructions: Sequence[Instr],
        structure: Structure | None = None,
        *,
        moves_sums: bool = False,
    ) -> TaskGraph:
        """The dependence graph of instructions; whether sums may change their engine.

        `structure` is theirs where it is known.
        """
        structure = structure or self.structures.of(instructions, "")
        ways, is_stateless = [], []
        for form, each in zip(structure.forms, instructions, strict=True):
            is_summed = self._is_only_summed(each)
            key = form, self.may_move(each), each in self.moved_bits, is_summed, moves_sums
            found = self._ways_of_forms.get(key)
            if found is None:
                found = self._ways_of_forms[key] = self._ways_of(each, key[1:])
            ways.append(found)
            is_stateless.append(moves_sums and is_summed)
        unread = self.unread_copies.tiles if moves_sums and self.unread_copies else ()
        run = InstructionRun(
            self.structures, structure, np.array(ways, np.int64), np.array(is_stateless, bool),
            unread, self.aliases, self.placed, self.arch,
        )  # fmt: skip
        return TaskGraph(run, self.way_table)

    def orders_of(self, graph: TaskGraph, *, repeats: bool = False) -> Orders:
        """The orders of a graph whose tiles fit in the memories' shares, or in a loop's room.

        Of a scheduler that is generous a run that takes more than the share in the order given may
        take as much in any, and the share of what is left then.
        """
        capacity: dict[Memory, float] = {}
        for memory, share in RUN_SHARES.items():
            usable = usable_bytes_per_partition(memory, self.arch)
            capacity[memory] = usable * share
            most = graph.run.most_live_bytes(memory) if self.is_generous else 0
            if capacity[memory] < most < usable:
                capacity[memory] = most + (usable - most) * share
        kept = None
        if self.room:
            capacity[Memory.SBUF] = self.room
            kept = graph.run.is_live_before & graph.run.is_in(Memory.SBUF)
        return Orders(graph, capacity, kept, repeats=repeats)

    def _ways_of(self, instruction: Instr, choice: tuple[bool, ...]) -> int:
        """The number of the ways of an instruction; `choice` ends with whether sums may move."""
        key = _signature(instruction), stream_of(instruction), *choice
        known = self._ways.get(key)
        if known is None:
            ways = self.ways(instruction)
            known = self.way_table.number(ways if choice[-1] else ways.without_sums())
            self._ways[key] = known
        return known

    def ways(self, instruction: Instr) -> IssueWays:
        """The ways in which an instruction may be issued."""
        kind = type(instruction)
        variants = tuple(
            Variant(
                AS.get(type(each), "") if type(each) is not kind else each.runs_on if place else "",
                stream_of(each), round(1000 * self.duration(each)),
                round(1000 * self.latency(each)), activation_table(each),
            )
            for place, each in enumerate(self.variants(instruction))
        )  # fmt: skip
        if isinstance(instruction, Transfer):
            return IssueWays(variants, instruction.runs_on, round(1000 * self.arch.dma_issue_ns))
        return IssueWays(variants)

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

    def variants(self, instruction: Instr) -> Iterator[Instr]:
        """The instruction, then its forms on the other engines that give the same result."""
        yield instruction
        if not _is_float(instruction) or not self.may_move(instruction):
            return
        if self._is_only_summed(instruction):
            yield from (each for each in sums(instruction) if not violations(each, self.arch))
        if not isinstance(instruction, MOVABLE):
            return
        others: list[Instr] = [replace(instruction, on=engine) for engine in instruction.engines]
        if self.arch.capabilities.has_shared_sbuf_port:  # moving work to GpSimd gains nothing
            others = [other for other in others if other.on != "gpsimd"]
            others += activations(instruction)
        if instruction in self.moved_bits:
            others = [other for other in others if other.is_exact]
        for variant in others:
            if variant.on != instruction.runs_on and not violations(variant, self.arch):
                yield variant

    def has_sums(self, instructions: Sequence[Instr]) -> bool:
        """Whether there are sums that may change their engine."""
        return any(map(self._is_only_summed, instructions))

    def _is_only_summed(self, instruction: Instr) -> bool:
        """Whether an instruction copies what nothing reads, for its sum."""
        return self.unread_copies is not None and instruction in self.unread_copies


def _signature(instruction: Instr) -> Hashable:
    """What the engines that an instruction may run on, and its times, depend on."""
    operands = (
        (name, p.memory, p.tile.dtype, p.tile.partitions, p.dtype, p.dims, p.partition)
        for name, _, p in instruction.operands()
    )
    return type(instruction), instruction.runs_on, *operands, *instruction.numbers()


def _is_float(instruction: Instr) -> bool:
    """Whether all operands are float tensors: engines treat integers and raw bits differently."""
    patterns = [*instruction.patterns()]
    return all(p.dtype.is_float and p.dtype is p.tile.dtype for p in patterns)
