"""A program as a table: operations for `steps.run`, words of calls, what has no machine code."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.base.machine_code.native import address_of
from glia.isa.kit import Instr, register_variable
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.ir import Block, Branch, Loop, Program, Statement, While, walk
from glia.sim.host.instruction_classes import (
    HostCall,
    Lowered,
    OperandPlace,
    Operands,
    class_key,
    lower,
    refusal,
)
from glia.sim.host.library import host_library
from glia.sim.host.overlap import must_stage
from glia.sim.host.pool import (
    HEADER,
    MOST_ITERATIONS,
    SHARED_NANOSECONDS,
    PoolCode,
    WaveCode,
    lanes,
)
from glia.sim.host.scalar_code import NotLowered
from glia.sim.host.steps import Op
from glia.sim.host.traced import NotTraceable
from glia.sim.host.waves import Duration, Wave, WavePlanner
from glia.sim.memory import Region
from glia.sim.run import Executor, immediate_operand
from glia.sim.watchdog import fewest_executions

PIECE_NANOSECONDS = 2_500  # of the least piece of it
PIECES = 4  # for each thread, so that all end at about the same time
SHARED_EFFICIENCY = 0.8  # of threads that share a call
UNIT = 1000  # nanoseconds, of what operations spend
ANYTHING = (-(2**61), 2**61)  # limits of an expression that needs none


@dataclass(frozen=True)
class Variants:
    """The calls of an instruction, by whether it adds to what its destination holds.

    None is the key where that does not vary.
    """

    calls: dict[bool | None, Lowered]
    condition: Affine | None = None


@dataclass
class Table:
    """A program that can run, and the places in it that each run sets."""

    code: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    variables: dict[str, int] = field(default_factory=dict)
    tiles: list[Tile] = field(default_factory=list)  # by number of base
    fixed: list[tuple[int, int, int]] = field(default_factory=list)  # word, base, bytes
    scratch_words: list[tuple[int, int]] = field(default_factory=list)  # word, bytes
    call_words: list[tuple[int, int]] = field(default_factory=list)  # place in code, word
    instructions: list[Instr] = field(default_factory=list)
    loops: list[While] = field(default_factory=list)
    decision_words: list[tuple[int, int]] = field(default_factory=list)  # word, and what it is of
    guarded: list[Instr] = field(default_factory=list)  # may be executed in Python
    waves: list[int] = field(default_factory=list)  # words of calls that are waves
    pool_words: list[int] = field(default_factory=list)  # words that point to the pool's address
    numbers: list[Any] = field(default_factory=list)  # immediates, kept where words point
    scratch: int = 0
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # (mnemonic, why) in Python
    native: Counter[str] = field(default_factory=Counter)
    in_python: list[Instr] = field(default_factory=list)


_CLASSES: dict[tuple[Any, ...], Lowered | str] = {}


class TableBuilder:
    """Decodes a program once; machine code is compiled for all its classes together."""

    def __init__(
        self,
        executor: Executor,
        program: Program,
        arch: Arch,
        *,
        bases: Mapping[str, Tile] | None = None,
    ) -> None:
        """`program` is the executor's, or one of the same values in the same memories.

        Instructions run at once where `bases` are given, those of the `MoveTracer` that made it.
        """
        self.executor, self.program, self.arch = executor, program, arch
        self.table = Table()
        self._planner: WavePlanner | None = None
        if bases is not None and lanes() > 1:
            self._planner = WavePlanner(program, bases, lanes(), self._duration)
        self._trips: dict[str, int] = {}  # of the loops around
        self._scratch_start = 0  # where scratch of the current instruction begins
        self._numbers: dict[int, int] = {}
        self._bases: dict[str, int] = {}
        self._variants: dict[int, Variants | str] = {}
        self._follows_sums = any(
            getattr(i, name) is None for i in walk(self.program.body) for name in i.sums.values()
        )

    def build(self) -> Table:
        """The table of the program."""
        for instr in walk(self.program.body):
            if id(instr) not in self._variants:
                self._variants[id(instr)] = self._lowered(instr)
        found = [each for each in self._variants.values() if isinstance(each, Variants)]
        calls = [call for each in found for made in each.calls.values() for call in made.all_calls]
        host_library().load([PoolCode(), WaveCode(), *(call.code for call in calls)])
        self._entry = host_library().address(PoolCode())
        self.table.code += [Op.BEGIN]
        self._block(self.program.body)
        self.table.code += [Op.END]
        return self.table

    def _lowered(self, instr: Instr) -> Variants | str:
        """The calls of an instruction, or why its meaning runs in Python."""
        if self._follows_sums and any(p.memory is Memory.PSUM for p in instr.written_patterns()):
            return "PSUM of a program whose sums only a run tells apart"
        if instr.index_checks():
            return "it reports indices"
        condition, choices = sums_condition(instr)
        operands = self.operands_of(instr)
        calls = {}
        for sums in choices:
            is_staged = must_stage(instr, self.executor.memories, self.program)
            made = _class_calls(instr, self.arch, operands, sums, is_staged)
            if isinstance(made, str):
                return made
            calls[sums] = made
        return Variants(calls, condition)

    def operands_of(self, instr: Instr) -> Operands:
        """How the operands of an instruction lie in the memories."""
        return Operands.of(instr, self.executor.memories)

    def _region(self, tile: Tile) -> Region:
        return self.executor.memories.region(tile)

    def _block(self, body: Block) -> None:
        for _, group in itertools.groupby(body, lambda each: isinstance(each, Instr)):
            for statement in self._planned(list(group)):
                if isinstance(statement, Wave):
                    self._wave(statement)
                else:
                    self._statement(statement)

    def _planned(self, statements: Sequence[Statement]) -> Iterable[Statement | Wave]:
        """Statements that are all instructions, or none is, some of them in waves."""
        instructions = [each for each in statements if isinstance(each, Instr)]
        if self._planner is None or not instructions:
            return statements
        return self._planner.planned(instructions)

    def _statement(self, statement: Statement) -> None:
        code = self.table.code
        if isinstance(statement, Loop):
            variable = self._variable(statement.variable)
            code += [Op.LOOP, variable, statement.trips, 0]
            end = len(code) - 1
            outer, self._trips = self._trips, {**self._trips, statement.variable: statement.trips}
            self._block(statement.body)
            self._trips = outer
            code += [Op.NEXT, variable, statement.trips, end + 1]
            code[end] = len(code)
        elif isinstance(statement, While):
            self._while(statement)
        elif isinstance(statement, Branch):
            self._branch(statement)
        else:
            self._instruction(statement)

    def _while(self, loop: While) -> None:
        table, code = self.table, self.table.code
        number = len(table.loops)
        table.loops.append(loop)
        executions = fewest_executions((*loop.condition, *loop.body))
        code += [Op.CLEAR, number]
        start = len(code)
        self._block(loop.condition)
        variable = self._variable(register_variable(loop.register))
        code += [Op.WHILE, variable, 0, number, executions]
        end = len(code) - 3
        self._block(loop.body)
        code += [Op.JUMP, start]
        code[end] = len(code)

    def _branch(self, branch: Branch) -> None:
        code = self.table.code
        variable = self._variable(register_variable(branch.register))
        code += [Op.BRANCH, variable, len(branch.arms), *(0 for _ in branch.arms)]
        starts = len(code) - len(branch.arms)
        ends = []
        for number, arm in enumerate(branch.arms):
            code[starts + number] = len(code)
            self._block(arm)
            code += [Op.JUMP, 0]
            ends.append(len(code) - 1)
        for end in ends:
            code[end] = len(code)

    def _variable(self, name: str) -> int:
        return self.table.variables.setdefault(name, len(self.table.variables))

    def _instruction(self, instr: Instr) -> None:
        table, code = self.table, self.table.code
        number = self._number(instr)
        found = self._variants[id(instr)]
        if isinstance(found, str) or not self._is_in_range(instr):
            why = found if isinstance(found, str) else "an access outside its tile"
            table.reasons[instr.mnemonic(), why] += 1
            table.in_python.append(instr)
            code += [Op.PYTHON, number]
            return
        ends: list[int] = []
        self._by_variant(instr, found, ends, lambda made: self._calls(instr, number, made, ends))
        for end in ends:
            code[end] = len(code)

    def _number(self, instr: Instr) -> int:
        number = self._numbers.setdefault(id(instr), len(self.table.instructions))
        if number == len(self.table.instructions):
            self.table.instructions.append(instr)
        return number

    def _by_variant(
        self, instr: Instr, found: Variants, ends: list[int], write: Callable[[Lowered], None]
    ) -> None:
        """Write code for each variant; places in `ends` are to become where all of it ends."""
        table, code = self.table, self.table.code
        table.native[instr.mnemonic()] += 1
        if found.condition is None:
            for lowered in found.calls.values():
                write(lowered)
            return
        number = self._number(instr)
        code += [Op.UNLESS, 0, number, 0, *ANYTHING, *self._terms(found.condition)]
        target, end = (len(code) - 8 - 2 * len(found.condition.terms) + i for i in (1, 3))
        ends.append(end)
        write(found.calls[True])
        code += [Op.JUMP, 0]
        ends.append(len(code) - 1)
        code[target] = len(code)
        write(found.calls[False])

    def _calls(self, instr: Instr, number: int, lowered: Lowered, ends: list[int]) -> None:
        table, code = self.table, self.table.code
        for position, call in enumerate(lowered.all_calls):
            self._call([Op.CALL, self._entry], instr, lowered, call, ends)
            if position < len(lowered.guards):
                table.guarded.append(instr)
                code += [Op.GUARD, table.decision_words[-1][1], number, 0]
                ends.append(len(code) - 1)

    def _call(
        self, head: list[int], instr: Instr, lowered: Lowered, call: HostCall, ends: list[int]
    ) -> None:
        """A call's words, and the operation that makes it or prepares it."""
        table, code = self.table, self.table.code
        table.scratch = max(table.scratch, self._scratch_start + lowered.scratch)
        start, grain = len(table.words), _grain(call)
        table.words += [host_library().address(call.code), call.parts, grain, 0, *call.words]
        if grain < call.parts and head[0] == Op.CALL:
            table.pool_words.append(start + HEADER - 1)
        code += [*head, 0, self._number(instr), 0, int(call.nanoseconds) // UNIT, 0]
        at = len(code) - 5
        table.call_words.append((at, start))
        ends.append(at + 2)
        for word, place in call.addresses:
            self._address(instr, start + HEADER + word, place)
        code[at + 4] = len(code) - at - 5

    # --- waves --------------------------------------------------------------------------------

    def _duration(self, instr: Instr) -> Duration | None:
        """How long an instruction takes; None where it is not for a wave."""
        found = self._variants[id(instr)]
        if isinstance(found, str) or not self._is_always_in_range(instr):
            return None
        made = list(found.calls.values())
        if any(each.guards for each in made) or any(True for _ in instr.states_touched()):
            return None
        if found.condition is not None and not set(found.condition.variables) <= set(self._trips):
            return None
        single = max(sum(call.nanoseconds for call in each.calls) for each in made)
        shared = max(sum(map(_elapsed, each.calls)) for each in made)
        return Duration(single, shared)

    def _wave(self, wave: Wave) -> None:
        """Operations that prepare the calls of all chains, and the one that makes these."""
        table, code = self.table, self.table.code
        counts = [sum(map(self._most_calls, chain)) for chain in wave.chains]
        start, first = len(table.words), 2 * len(counts)
        table.words += [host_library().address(WaveCode()), len(counts), 1, 0]
        table.pool_words.append(start + HEADER - 1)
        for count in counts:
            table.words += [first, count]
            first += count
        slot = len(table.words)
        table.words += [0] * sum(counts)
        table.waves.append(start)
        code += [Op.OPEN, slot, sum(counts)]
        spent = 0.0
        for chain in wave.chains:
            for instr in chain:
                spent += self._prepare(instr, slot)
                slot += self._most_calls(instr)
            self._scratch_start += max(map(self._most_scratch, chain))
        self._scratch_start = 0
        code += [Op.CALL, self._entry, 0, self._number(wave.chains[0][0]), 0]
        table.call_words.append((len(code) - 3, start))
        code += [int(spent) // UNIT, 0]
        code[-3] = len(code)

    def _most_calls(self, instr: Instr) -> int:
        return max(len(each.calls) for each in self._variants_of(instr).calls.values())

    def _most_scratch(self, instr: Instr) -> int:
        return max(each.scratch for each in self._variants_of(instr).calls.values())

    def _variants_of(self, instr: Instr) -> Variants:
        found = self._variants[id(instr)]
        assert isinstance(found, Variants)
        return found

    def _prepare(self, instr: Instr, slot: int) -> float:
        """Operations that prepare the calls of an instruction; how long these take."""
        found, ends = self._variants_of(instr), list[int]()

        def prepare(lowered: Lowered) -> None:
            for position, call in enumerate(lowered.calls):
                self._call([Op.PREPARE, slot + position], instr, lowered, call, ends)

        self._by_variant(instr, found, ends, prepare)
        for end in ends:
            self.table.code[end] = len(self.table.code)
        return max(sum(call.nanoseconds for call in each.calls) for each in found.calls.values())

    def _address(self, instr: Instr, word: int, place: OperandPlace) -> None:
        """Code that sets a word to the address of a place, or the word where that is constant."""
        table = self.table
        if place.kind == "scratch":
            table.scratch_words.append((word, self._scratch_start + place.number))
        elif place.kind == "immediate":
            number = np.asarray(immediate_operand(instr, getattr(instr, place.name))).reshape(1)
            table.numbers.append(number)
            table.words[word] = address_of(number)
        elif place.kind == "decision":
            table.decision_words.append((word, len(table.words)))
            table.words.append(0)
        elif place.held is not None:
            table.numbers.append(place.held.array)
            table.words[word] = address_of(place.held.array)
        elif place.kind == "state":
            kept = instr.states[place.name]
            values, partition, count = self.executor.states.lanes(instr, kept)
            limits = (0, len(values) - count)
            self._sum(word, ("", values), [(values.strides[0], limits, partition)])
        else:
            value = getattr(instr, place.name)
            pattern = value[place.number] if isinstance(value, tuple) else value
            parts = list(pattern_parts(pattern, self._region(pattern.tile)))
            self._sum(word, (pattern.tile.name, pattern.tile), parts)

    def _sum(
        self, word: int, base: tuple[str, Any], parts: list[tuple[int, tuple[int, int], Affine]]
    ) -> None:
        """A base and expressions, each with the bytes that it counts and its limits."""
        table, code = self.table, self.table.code
        offset = sum(scale * each.constant for scale, _, each in parts if each.is_constant)
        varying = [part for part in parts if not part[2].is_constant]
        if not base[0]:
            number, start = -1, address_of(base[1])
            if not varying:
                table.words[word] = start + offset
                return
        number = self._base(base[0], base[1])
        if not varying:
            table.fixed.append((word, number, offset))
            return
        code += [word, number, len(varying) + 1, offset, 1, 1, 1, 0]
        for scale, limits, each in varying:
            code += [scale, *limits, *self._terms(each)]

    def _base(self, name: str, tile: Any) -> int:
        if not name:
            name = f"state.{id(tile)}"
        if name not in self._bases:
            self._bases[name] = len(self.table.tiles)
            self.table.tiles.append(tile)
        return self._bases[name]

    def _terms(self, expression: Affine) -> list[int]:
        terms = [(self._variable(name), factor) for name, factor in expression.terms]
        return [expression.constant, len(terms), *(word for term in terms for word in term)]

    def _is_in_range(self, instr: Instr) -> bool:
        """Whether every operand whose place is constant lies within its tile."""
        return all(
            low <= each.constant <= high
            for (low, high), each in self.limits_of(instr)
            if each.is_constant
        )

    def _is_always_in_range(self, instr: Instr) -> bool:
        """Whether every operand lies within its tile, whatever the loops are at."""
        for (low, high), each in self.limits_of(instr):
            if not set(each.variables) <= self._trips.keys():
                return False
            least, greatest = each.bounds(self._trips)
            if least < low or greatest > high:
                return False
        return True

    def limits_of(self, instr: Instr) -> Iterator[tuple[tuple[int, int], Affine]]:
        """Expressions in an instruction's operands, with what keeps these within their tiles."""
        for _, _, pattern in instr.operands():
            for _, limits, each in pattern_parts(pattern, self._region(pattern.tile)):
                yield limits, each


def _class_calls(
    instr: Instr, arch: Arch, operands: Operands, sums: bool | None, is_staged: bool
) -> Lowered | str:
    """The calls of the instruction's class, or why there are none; each class is traced once."""
    key = (class_key(instr, operands), arch.name, sums, is_staged)
    if key not in _CLASSES:
        try:
            found: Lowered | str = lower(instr, arch, operands, sums, is_staged)
            if isinstance(found, Lowered) and (why := refusal(found)):
                found = why
        except (NotTraceable, NotLowered) as problem:
            found = str(problem)
        _CLASSES[key] = found
    return _CLASSES[key]


def sums_condition(instr: Instr) -> tuple[Affine | None, tuple[bool | None, ...]]:
    """The expression that says whether a destination is added to, where it varies."""
    for name in instr.read_when.values():
        value = getattr(instr, name)
        if isinstance(value, Affine):
            if value.is_constant:
                return None, (value.constant != 0,)
            return value, (True, False)
    return None, (None,)


def pattern_parts(
    pattern: Pattern, region: Region
) -> Iterator[tuple[int, tuple[int, int], Affine]]:
    """(bytes, limits, expression) whose sum is where a pattern begins in its tile."""
    tile, width = pattern.tile, pattern.dtype.bytes
    is_hbm = tile.memory is Memory.HBM
    low, high = reach(pattern.dims if is_hbm else pattern.dims[1:])
    limit = tile.bytes if is_hbm else tile.bytes_per_partition
    yield width, (-low, limit // width - 1 - high), pattern.offset
    if not is_hbm:
        first, last = reach(pattern.dims[:1])
        yield region.pitch, (-first, tile.partitions - 1 - last), pattern.partition


def _elapsed(call: HostCall) -> float:
    """Nanoseconds of a call that threads share where it is long enough."""
    if _grain(call) >= call.parts:
        return call.nanoseconds
    return call.nanoseconds / (lanes() * SHARED_EFFICIENCY)


def _grain(call: HostCall) -> int:
    """How many iterations a thread takes at once; all, where sharing them would not be faster."""
    is_short = lanes() == 1 or call.nanoseconds < SHARED_NANOSECONDS
    if is_short or not call.is_parallel or call.parts > MOST_ITERATIONS:
        return call.parts
    pieces = min(PIECES * lanes(), int(call.nanoseconds / PIECE_NANOSECONDS))
    return -(-call.parts // pieces)
