"""A program as a table: operations for `steps.run`, words of calls, what has no machine code."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.isa.kit import Instr, is_register, register_variable
from glia.isa.operand import Memory, Pattern, Tile, reach
from glia.machine.ir import Block, Branch, Loop, Program, Statement, While, walk
from glia.sim.host.classes.calls import HostCall, Lowered, OperandPlace, RowsCall
from glia.sim.host.classes.class_calls import class_calls
from glia.sim.host.classes.class_keys import Choices, Operands, class_key, has_variables
from glia.sim.host.instruction_classes import lower_rows
from glia.sim.host.library import Code, host_library
from glia.sim.host.overlap import must_stage, tile_span
from glia.sim.host.rewriting.unread_results import ALL_READ, LARGE_BYTES, UnreadResults
from glia.sim.host.scalar_code import NotLowered
from glia.sim.host.steps import Op
from glia.sim.host.threads.pool import (
    HEADER,
    MOST_ITERATIONS,
    SHARED_NANOSECONDS,
    PoolCode,
    WaveCode,
    lanes,
)
from glia.sim.host.threads.strips import OperandStart, RowStrip, StripCode, StripPlanner
from glia.sim.host.threads.waves import Duration, Unit, Wave, WavePlanner
from glia.sim.host.traced import NotTraceable
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
    # by number; of a table that was kept, those that Python executes
    instructions: dict[int, Instr] = field(default_factory=dict)
    loops: list[While] = field(default_factory=list)
    decision_words: list[tuple[int, int]] = field(default_factory=list)  # word, and what it is of
    variable_words: list[tuple[int, int]] = field(default_factory=list)  # word, variable
    known_words: list[tuple[int, int]] = field(default_factory=list)  # the same: whether it is set
    guarded: list[Instr] = field(default_factory=list)  # may be executed in Python
    waves: list[int] = field(default_factory=list)  # words of calls that are waves
    strips: list[int] = field(default_factory=list)  # words of calls that are strips
    pool_words: list[int] = field(default_factory=list)  # words that point to the pool's address
    numbers: list[Any] = field(default_factory=list)  # immediates and other arrays of constants
    number_words: list[tuple[int, int]] = field(default_factory=list)  # word, which of these
    codes: dict[int, str] = field(default_factory=dict)  # functions, by the word with the address
    entries: list[int] = field(default_factory=list)  # places in code for `PoolCode`'s address
    scratch: int = 0
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)  # (mnemonic, why) in Python
    native: Counter[str] = field(default_factory=Counter)
    in_python: list[Instr] = field(default_factory=list)


_ROWS: dict[tuple[Any, ...], RowsCall | None] = {}  # of classes


class TableBuilder:
    """Decodes a program once; machine code is compiled for all its classes together."""

    def __init__(
        self,
        executor: Executor,
        program: Program,
        arch: Arch,
        *,
        bases: Mapping[str, Tile] | None = None,
        unread: UnreadResults = ALL_READ,
    ) -> None:
        """`program` is the executor's, or one of the same values in the same memories.

        Instructions run at once, or by rows, where `bases` are given, those of the `MoveTracer`
        that made it. What is `unread` is not computed.
        """
        self.executor, self.program, self.arch = executor, program, arch
        self._unread = unread
        self.table = Table()
        self._waves: WavePlanner | None = None
        self._strips: StripPlanner | None = None
        if bases is not None:
            start = partial(self._start, bases)
            self._strips = StripPlanner(lanes(), PIECES * lanes(), self._rows, start)
        if bases is not None and lanes() > 1:
            self._waves = WavePlanner(program, bases, lanes(), self._duration)
        self.codes: dict[int, Code] = {}  # by the word that takes their address
        self.bases = bases or {}
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
        library, table = host_library(), self.table
        table.code += [Op.BEGIN]
        self._block(self.program.body)
        table.code += [Op.END]
        library.load([PoolCode(), *self.codes.values()])
        table.codes = {word: code.name for word, code in self.codes.items()}
        return table

    def _lowered(self, instr: Instr) -> Variants | str:
        """The calls of an instruction, or why its meaning runs in Python."""
        if not all(map(_fits, expressions_of(instr))):
            return "an expression that 64 bits may not hold"
        if self._follows_sums and any(p.memory is Memory.PSUM for p in instr.written_patterns()):
            return "PSUM of a program whose sums only a run tells apart"
        condition, conditions = sums_condition(instr)
        operands = self.operands_of(instr)
        calls = {}
        for sums in conditions:
            is_staged = must_stage(instr, self.executor.memories, self.program)
            choices = Choices(sums, self._unread_results(instr), self._unread.large_operands(instr))
            made = class_calls(instr, self.arch, operands, choices, is_staged)
            if isinstance(made, str):
                return made
            calls[sums] = made
        return Variants(calls, condition)

    def _unread_results(self, instr: Instr) -> frozenset[str]:
        """Operands and states that need nothing, of an instruction with other results."""
        unread = self._unread.of_instruction(instr)
        if not unread:
            return unread
        written = {
            name
            for name, _, pattern in instr.operands()
            if instr.access(name) != "reads" and (name not in unread or not self._is_fixed(pattern))
        }
        return unread - written if written else frozenset()

    def _is_fixed(self, pattern: Pattern) -> bool:
        """Whether a pattern is at one place, which lies within its tile."""
        parts = pattern_parts(pattern, self._region(pattern.tile))
        return all(
            each.is_constant and low <= each.constant <= high for _, (low, high), each in parts
        )

    def _keeps_states(self, instr: Instr) -> bool:
        """Whether an instruction touches states of engines that some instruction reads."""
        touched = {name for name, _, _ in instr.states_touched()}
        return bool(touched - self._unread_results(instr))

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
                elif isinstance(statement, RowStrip):
                    self._strip(statement)
                else:
                    self._statement(statement)

    def _planned(self, statements: Sequence[Statement]) -> Iterable[Statement | RowStrip | Wave]:
        """Statements that are all instructions, or none is, some of them in strips and waves."""
        units: list[Unit] = [each for each in statements if isinstance(each, Instr)]
        if not units or self._strips is None:
            return statements
        units = list(self._strips.planned([each for each in units if isinstance(each, Instr)]))
        return units if self._waves is None else self._waves.planned(units)

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
        if has_variables(instr):
            self._require_set(instr, number, ends)
        self._by_variant(instr, found, ends, lambda made: self._calls(instr, number, made, ends))
        for end in ends:
            code[end] = len(code)

    def _require_set(self, instr: Instr, number: int, ends: list[int]) -> None:
        """Leave an instruction to Python where a register that its calls read is not set."""
        code = self.table.code
        for value in instr.attributes().values():
            if isinstance(value, Affine) and any(map(is_register, value.variables)):
                target = self._unless(instr, number, value, ends)
                code[target] = len(code)

    def _unless(self, instr: Instr, number: int, test: Affine, ends: list[int]) -> int:
        """Code that goes elsewhere where an expression is 0; the place of where it goes.

        It leaves the instruction to Python where a register is not set.
        """
        code = self.table.code
        if any(map(is_register, test.variables)):
            self.table.guarded.append(instr)
        start = len(code)
        code += [Op.UNLESS, 0, number, 0, *ANYTHING, *self._terms(test)]
        ends.append(start + 3)
        return start + 1

    def _number(self, instr: Instr) -> int:
        number = self._numbers.setdefault(id(instr), len(self._numbers))
        self.table.instructions[number] = instr
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
        target = self._unless(instr, number, found.condition, ends)
        write(found.calls[True])
        code += [Op.JUMP, 0]
        ends.append(len(code) - 1)
        code[target] = len(code)
        write(found.calls[False])

    def _calls(self, instr: Instr, number: int, lowered: Lowered, ends: list[int]) -> None:
        table, code = self.table, self.table.code
        for position, call in enumerate(lowered.all_calls):
            self._call([Op.CALL, 0], instr, lowered, call, ends)
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
        self.codes[start] = call.code
        table.words += [0, call.parts, grain, 0, *call.words]
        if grain < call.parts and head[0] == Op.CALL:
            table.pool_words.append(start + HEADER - 1)
        if head[0] == Op.CALL:
            table.entries.append(len(code) + 1)
        code += [*head, 0, self._number(instr), 0, int(call.nanoseconds) // UNIT, 0]
        at = len(code) - 5
        table.call_words.append((at, start))
        ends.append(at + 2)
        for word, place in call.addresses:
            self._address(instr, start + HEADER + word, place)
        code[at + 4] = len(code) - at - 5

    # --- strips and waves ---------------------------------------------------------------------

    def _rows(self, instr: Instr) -> RowsCall | None:
        """The call of an instruction that may be in a strip."""
        found = self._variants[id(instr)]
        if isinstance(found, str) or found.condition is not None or len(found.calls) != 1:
            return None
        ((sums, made),) = found.calls.items()
        if len(made.all_calls) != 1 or made.scratch or not self._is_always_in_range(instr):
            return None
        operands = self.operands_of(instr)
        choices = Choices(sums, self._unread_results(instr), self._unread.large_operands(instr))
        far = self._far_operands(instr)
        key = class_key(instr, operands), self.arch.name, choices, far
        if key not in _ROWS:
            _ROWS[key] = _rows_call(instr, self.arch, operands, choices, far)
        return _ROWS[key]

    def _far_operands(self, instr: Instr) -> frozenset[str]:
        """The operands that are read from tensors larger than caches."""
        return frozenset(
            name
            for name, _, pattern in instr.operands()
            if instr.access(name) == "reads" and pattern.memory is Memory.HBM
            and pattern.tile.name not in self.bases and pattern.tile.bytes >= LARGE_BYTES
        )  # fmt: skip

    def _start(
        self, bases: Mapping[str, Tile], instr: Instr, place: OperandPlace
    ) -> OperandStart | None:
        """Where an operand of a call begins; None for what no instruction writes."""
        if place.kind == "state":
            values, partition, _ = self.executor.states.lanes(instr, instr.states[place.name])
            return OperandStart(f"state.{id(values)}", partition * values.strides[0])
        if place.kind != "pattern":
            return None
        pattern = _pattern_of(instr, place)
        parts = pattern_parts(pattern, self._region(pattern.tile))
        start = sum((each * scale for scale, _, each in parts), Affine())
        tile = bases.get(pattern.tile.name, pattern.tile)
        return OperandStart(tile.name, start, tile.memory, *tile_span(tile, self.program))

    def _strip(self, strip: RowStrip) -> None:
        """Operations that prepare the calls of a strip, and the one that makes them."""
        start, code = self._prepared_strip(strip), self.table.code
        grain = _grain_of(strip.pieces, strip.nanoseconds)
        self.table.words[start + 2] = grain
        if grain < strip.pieces:
            self.table.pool_words.append(start + HEADER - 1)
        spent = int(strip.nanoseconds) // UNIT
        self.table.entries.append(len(code) + 1)
        code += [Op.CALL, 0, 0, self._number(strip.instructions[0]), 0, spent, 0]
        self.table.call_words.append((len(code) - 5, start))
        code[-3] = len(code)

    def _prepared_strip(self, strip: RowStrip) -> int:
        """The first word of a strip, after operations that prepare its calls."""
        table, start = self.table, len(self.table.words)
        self.codes[start] = StripCode()
        table.words += [0, strip.pieces, strip.pieces, 0, len(strip.calls)]
        slot = len(table.words)
        table.words += [
            number for call in strip.calls for number in (0, call.parts // strip.pieces)
        ]
        for instr, call in zip(strip.instructions, strip.calls, strict=True):
            table.native[instr.mnemonic()] += 1
            ends: list[int] = []
            self._call([Op.PREPARE, slot], instr, Lowered((call,), 0), call, ends)
            for end in ends:
                table.code[end] = len(table.code)
            slot += 2
        table.strips.append(start)
        return start

    def _duration(self, unit: Unit) -> Duration | None:
        """How long a unit takes; None where it is not for a wave."""
        if isinstance(unit, RowStrip):
            if any(map(self._keeps_states, unit.instructions)):
                return None
            shared = unit.nanoseconds / (lanes() * SHARED_EFFICIENCY)
            return Duration(unit.nanoseconds, shared)
        found = self._variants[id(unit)]
        if isinstance(found, str) or not self._is_always_in_range(unit):
            return None
        made = list(found.calls.values())
        if any(each.guards for each in made) or self._keeps_states(unit) or has_variables(unit):
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
        self.codes[start] = WaveCode()
        table.words += [0, len(counts), 1, 0]
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
            for unit in chain:
                spent += self._prepare(unit, slot)
                slot += self._most_calls(unit)
            self._scratch_start += max(map(self._most_scratch, chain))
        self._scratch_start = 0
        table.entries.append(len(code) + 1)
        code += [Op.CALL, 0, 0, self._number(_first_of(wave.chains[0][0])), 0]
        table.call_words.append((len(code) - 3, start))
        code += [int(spent) // UNIT, 0]
        code[-3] = len(code)

    def _most_calls(self, unit: Unit) -> int:
        if isinstance(unit, RowStrip):
            return 1
        return max(len(each.calls) for each in self._variants_of(unit).calls.values())

    def _most_scratch(self, unit: Unit) -> int:
        if isinstance(unit, RowStrip):
            return 0
        return max(each.scratch for each in self._variants_of(unit).calls.values())

    def _variants_of(self, instr: Instr) -> Variants:
        found = self._variants[id(instr)]
        assert isinstance(found, Variants)
        return found

    def _prepare(self, unit: Unit, slot: int) -> float:
        """Operations that prepare the calls of a unit; how long these take."""
        if isinstance(unit, RowStrip):
            start, code = self._prepared_strip(unit), self.table.code
            code += [Op.PREPARE, slot, 0, self._number(unit.instructions[0]), 0, 0, 0]
            self.table.call_words.append((len(code) - 5, start))
            code[-3] = len(code)
            return unit.nanoseconds
        found, ends = self._variants_of(unit), list[int]()

        def prepare(lowered: Lowered) -> None:
            for position, call in enumerate(lowered.calls):
                self._call([Op.PREPARE, slot + position], unit, lowered, call, ends)

        self._by_variant(unit, found, ends, prepare)
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
            self._set_number(word, number)
        elif place.kind == "decision":
            table.decision_words.append((word, len(table.words)))
            table.words.append(0)
        elif place.kind == "term":
            variable, _ = getattr(instr, place.name).terms[place.number]
            table.variable_words.append((word, self._variable(variable)))
        elif place.kind in ("register", "is set"):
            assert instr.sets_register is not None
            words = table.variable_words if place.kind == "register" else table.known_words
            words.append((word, self._variable(instr.sets_register)))
        elif place.held is not None:
            self._set_number(word, place.held.array)
        elif place.kind == "state":
            kept = instr.states[place.name]
            values, partition, count = self.executor.states.lanes(instr, kept)
            limits = (0, len(values) - count)
            self._sum(word, ("", values), [(values.strides[0], limits, partition)])
        else:
            pattern = _pattern_of(instr, place)
            parts = list(pattern_parts(pattern, self._region(pattern.tile)))
            self._sum(word, (pattern.tile.name, pattern.tile), parts)

    def _set_number(self, word: int, array: Any) -> None:
        """Let a word be the address of an array."""
        self.table.number_words.append((word, len(self.table.numbers)))
        self.table.numbers.append(array)

    def _sum(
        self, word: int, base: tuple[str, Any], parts: list[tuple[int, tuple[int, int], Affine]]
    ) -> None:
        """A base and expressions, each with the bytes that it counts and its limits."""
        table, code = self.table, self.table.code
        offset = sum(scale * each.constant for scale, _, each in parts if each.is_constant)
        varying = [part for part in parts if not part[2].is_constant]
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


def _rows_call(
    instr: Instr, arch: Arch, operands: Operands, choices: Choices, far: frozenset[str]
) -> RowsCall | None:
    """The call of an instruction's class by rows, or None; each class is traced once."""
    try:
        found = lower_rows(instr, arch, operands, choices, far)
        has_code = found is not None and not host_library().refusal(found.call.code)
    except (NotTraceable, NotLowered):
        return None
    return found if has_code else None


def _pattern_of(instr: Instr, place: OperandPlace) -> Pattern:
    value = getattr(instr, place.name)
    found: Pattern = value[place.number] if isinstance(value, tuple) else value
    return found


def expressions_of(instr: Instr) -> Iterator[Affine]:
    """The expressions of loop variables and registers that decide what an instruction does."""
    for _, _, pattern in instr.operands():
        yield from (pattern.offset, pattern.partition)
    yield from (each for each in instr.attributes().values() if isinstance(each, Affine))


def _fits(expression: Affine) -> bool:
    """Whether 62 bits hold the value, and bytes of it, whatever registers of 32 hold."""
    most = sum(abs(factor) for _, factor in expression.terms) << 32
    return abs(expression.constant) + most < 1 << 58


def _first_of(unit: Unit) -> Instr:
    return unit.instructions[0] if isinstance(unit, RowStrip) else unit


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
    return _grain_of(call.parts, call.nanoseconds) if call.is_parallel else call.parts


def _grain_of(parts: int, nanoseconds: float) -> int:
    if lanes() == 1 or nanoseconds < SHARED_NANOSECONDS or parts > MOST_ITERATIONS:
        return parts
    pieces = min(PIECES * lanes(), max(1, int(nanoseconds / PIECE_NANOSECONDS)))
    return -(-parts // pieces)
