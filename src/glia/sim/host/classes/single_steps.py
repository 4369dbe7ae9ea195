"""One instruction at a time as machine code, for who executes instructions as they are issued.

A class gets machine code after it has done some work by its meaning: compiling takes LLVM some
10 ms, where NumPy takes microseconds. Work is counted in elements, not in seconds, so that the
same instructions give the same bits in every run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glia.base.machine_code.native import address_of, invoke
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, reach
from glia.sim.host.classes.calls import HostCall, Lowered, OperandPlace
from glia.sim.host.classes.class_calls import class_calls
from glia.sim.host.classes.class_keys import Choices, Operands, class_key, has_variables
from glia.sim.host.library import host_library
from glia.sim.host.overlap import needs_staging
from glia.sim.host.packing import LINE_BYTES
from glia.sim.host.support import warn_unsupported, why_unsupported
from glia.sim.host.table import sums_condition
from glia.sim.host.threads.pool import HEADER, PoolCode
from glia.sim.memory import MOST_REPEATED, Environment
from glia.sim.run import Executor, immediate_operand

LEAST_WORK = 1 << 20  # elements of a class before it is compiled: some milliseconds by its meaning
STEP_WORK = 1 << 12  # what NumPy needs for any instruction, in elements


def native_steps(executor: Executor) -> SingleSteps | None:
    """Steps of an executor; None where there is no machine code, with a HostUnsupported warning."""
    if why := why_unsupported():
        warn_unsupported(why)
        return None
    return SingleSteps(executor)


class SingleSteps:
    """The instructions of an executor, each by itself as machine code where its class has some.

    That accesses lie within their tiles is checked; that products stay within a bank, and whatever
    else a `Policy` may ask for, is not.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._classes: dict[tuple[Any, ...], _Class] = {}
        host_library().load([PoolCode()])
        self._entry = host_library().address(PoolCode.name)

    def execute(self, instr: Instr, environment: Environment) -> bool:
        """Execute an instruction; or do nothing and return False, for the executor to do it.

        It does what has no machine code, what raises an error, and what is new.
        """
        operands = Operands.of(instr, self._executor.memories)
        key = class_key(instr, operands)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = _Class.of(instr, operands, self._executor)
        found.work += found.elements
        if found.work < LEAST_WORK or not found.is_supported:
            return False
        places = self._places(instr, found, environment)
        if places is None:
            return False
        condition, (sums, *_) = sums_condition(instr)
        if condition is not None:
            if not environment.keys() >= set(condition.variables):
                return False
            sums = condition.evaluate(environment) != 0
        variant = sums, found.must_stage(places)
        if variant not in found.prepared:
            found.prepared[variant] = self._prepared(instr, operands, *variant)
        calls = found.prepared[variant]
        return calls is not None and calls.run(instr, places, self._entry)

    def _places(
        self, instr: Instr, found: _Class, environment: Environment
    ) -> dict[tuple[str, int], int] | None:
        """Addresses of operands and states; None where one is outside of its tile or unknown."""
        places: dict[tuple[str, int], int] = {}
        for each in found.operands:
            value = getattr(instr, each.name)
            pattern: Pattern = value[each.number] if isinstance(value, tuple) else value
            try:
                offset = pattern.offset.evaluate(environment)
                partition = pattern.partition.evaluate(environment)
            except KeyError:  # a register that is not set
                return None
            tile, region = pattern.tile, self._executor.memories.region(pattern.tile)
            is_hbm = tile.memory is Memory.HBM
            elements = (tile.bytes if is_hbm else tile.bytes_per_partition) // each.width
            partitions = 1 if is_hbm else tile.partitions
            if offset + each.low < 0 or offset + each.high >= elements:
                return None
            if partition + each.first < 0 or partition + each.last >= partitions:
                return None
            start = region.start + offset * each.width + partition * region.pitch
            if region.backing is not None:
                region.backing.touch(start, pattern.shape, each.steps, each.width)
            places[each.name, each.number] = address_of(region.buffer) + start
        for name, kept, _ in instr.states_touched():
            values, partition_of, count = self._executor.states.lanes(instr, kept)
            partition = partition_of.evaluate(environment)
            if not 0 <= partition <= len(values) - count:
                return None
            places[name, -1] = address_of(values) + partition * values.strides[0]
        return places

    def _prepared(
        self, instr: Instr, operands: Operands, sums: bool | None, is_staged: bool
    ) -> _Prepared | None:
        arch = self._executor.arch
        lowered = class_calls(instr, arch, operands, Choices(sums), is_staged)
        return None if isinstance(lowered, str) else _Prepared.of(instr, lowered)


@dataclass(frozen=True)
class _Operand:
    """One of a class's patterns, and what it reaches from where it begins."""

    name: str
    number: int
    access: str
    key: Any  # equal for operands that step through elements alike
    steps: tuple[int, ...]  # bytes, of each dimension
    width: int  # bytes of an element
    low: int  # elements, in a partition
    high: int
    first: int  # partitions
    last: int
    least: int  # bytes, in all partitions
    most: int


@dataclass
class _Class:
    """What one executor knows of a class of instructions."""

    is_supported: bool
    elements: int  # work of one instruction
    operands: tuple[_Operand, ...]
    arrives: str  # as of its instructions
    work: int = 0
    prepared: dict[tuple[bool | None, bool], _Prepared | None] = field(default_factory=dict)

    @staticmethod
    def of(instr: Instr, given: Operands, executor: Executor) -> _Class:
        """The class of an instruction."""
        is_supported = (
            instr.arrives != "participants"
            and not has_variables(instr)
            and all(pattern.elements <= MOST_REPEATED for pattern in instr.patterns())
        )
        counts: dict[str, int] = {}
        operands = []
        for name, _, pattern in instr.operands():
            number = counts[name] = counts.get(name, -1) + 1
            if name not in instr.hints or instr.index_checks():
                pitch = executor.memories.region(pattern.tile).pitch
                steps = given.steps(name, pattern)
                operands.append(_operand(name, number, instr.access(name), pattern, steps, pitch))
        elements = STEP_WORK + sum(pattern.elements for pattern in instr.patterns())
        return _Class(is_supported, elements, tuple(operands), instr.arrives)

    def must_stage(self, places: dict[tuple[str, int], int]) -> bool:
        """Whether results have to wait until all operands are read."""
        starts = [places[each.name, each.number] for each in self.operands]

        def may_meet(number: int, other: int) -> bool:
            one, two = self.operands[number], self.operands[other]
            distance = starts[other] - starts[number]
            return one.least < distance + two.most and distance + two.least < one.most

        def are_same(number: int, other: int) -> bool:
            is_alike = self.operands[number].key == self.operands[other].key
            return is_alike and starts[number] == starts[other]

        accesses = [each.access for each in self.operands]
        return needs_staging(self.arrives, accesses, are_same, may_meet)


def _operand(
    name: str, number: int, access: str, pattern: Pattern, steps: tuple[int, ...], pitch: int
) -> _Operand:
    width = pattern.dtype.bytes
    is_hbm = pattern.memory is Memory.HBM
    low, high = reach(pattern.dims if is_hbm else pattern.dims[1:])
    first, last = (0, 0) if is_hbm else reach(pattern.dims[:1])
    swept = zip(steps, pattern.shape, strict=True)
    key = pattern.dtype.name, tuple((step, count) for step, count in swept if count > 1)
    return _Operand(
        name, number, access, key, steps, width, low, high, first, last,
        low * width + first * pitch, (high + 1) * width + last * pitch,
    )  # fmt: skip


class _Prepared:
    """The calls of a class with words of their own, whose addresses each instruction sets."""

    def __init__(self) -> None:
        self._kept: list[Any] = []  # memory that words point to
        self._guards: list[tuple[int, np.ndarray]] = []  # words of a call, and what it decides
        self._calls: list[int] = []
        self._moving: list[tuple[Any, int, tuple[str, int]]] = []  # words, which, of what
        self._numbers: list[tuple[np.ndarray, str]] = []  # immediates, by operand

    @staticmethod
    def of(instr: Instr, lowered: Lowered) -> _Prepared:
        """Calls that are compiled and loaded."""
        prepared = _Prepared()
        host_library().load([call.code for call in lowered.all_calls])
        scratch = np.zeros(lowered.scratch + 2 * LINE_BYTES, np.uint8)
        prepared._kept.append(scratch)
        start = -(-address_of(scratch) // LINE_BYTES) * LINE_BYTES
        for call in lowered.guards:
            words, decision = prepared._words(instr, call, start)
            assert decision is not None
            prepared._guards.append((words, decision))
        prepared._calls = [prepared._words(instr, call, start)[0] for call in lowered.calls]
        return prepared

    def _words(self, instr: Instr, call: HostCall, scratch: int) -> tuple[int, np.ndarray | None]:
        """The address of a call's header and words; the word that it decides, of a guard."""
        function = host_library().address(call.code.name)
        words = np.array([function, call.parts, call.parts, 0, *call.words], np.int64)
        self._kept.append(words)
        decision = None
        for number, place in call.addresses:
            at = HEADER + number
            if place.kind in ("pattern", "state"):
                key = place.name, -1 if place.kind == "state" else place.number
                self._moving.append((words.data, at, key))
                continue
            array = self._array(instr, place)
            words[at] = scratch + place.number if array is None else address_of(array)
            if place.kind == "decision":
                decision = array
        return address_of(words), decision

    def _array(self, instr: Instr, place: OperandPlace) -> np.ndarray | None:
        """The memory of an operand that has some of its own; None for scratch."""
        if place.kind == "scratch":
            return None
        if place.held is not None:
            array = place.held.array
        elif place.kind == "decision":
            array = np.zeros(1, np.int64)
        else:
            array = np.asarray(immediate_operand(instr, getattr(instr, place.name))).reshape(1)
            self._numbers.append((array, place.name))
        self._kept.append(array)
        return array

    def run(self, instr: Instr, places: dict[tuple[str, int], int], entry: int) -> bool:
        """Make the calls; False, and nothing is done, where the meaning decides otherwise."""
        for words, at, key in self._moving:
            words[at] = places[key]
        for array, name in self._numbers:
            array[0] = immediate_operand(instr, getattr(instr, name))
        for words, decision in self._guards:
            invoke(entry, words)
            if not decision[0]:
                return False
        for words in self._calls:
            invoke(entry, words)
        return True
