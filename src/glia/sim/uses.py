"""Which executions wrote what nothing reads, found by following the bytes of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.sim.byte_tags import ByteTags, access_granule
from glia.sim.last_writer import Rows, untracked_rows
from glia.sim.memory import Environment, Memories, Region, evaluator

Array = np.ndarray[Any, Any]
Step = Callable[[Environment], None]
Accumulating = Callable[[Environment], Array]
FIRST_SIZE = 1024


@dataclass
class InstructionUse:
    """How often an instruction was executed, and how often nothing read any of its results.

    `overwritten_by` is what replaced a product of it in PSUM which nothing had read.
    """

    executions: int = 0
    unused: int = 0
    overwritten_by: Instr | None = None


class UseLog:
    """Follows one run of the programs of some cores; every execution that writes has a number.

    A result counts as used when an instruction reads one byte of it, or it is in an output at the
    end. A product that adds to what it overwrites uses it if its own result is used; any other
    instruction that updates in place reads what was there.
    """

    def __init__(self, *programs: Program) -> None:
        self._instructions: list[Instr] = []
        self._indices: dict[int, int] = {}
        self._instruction = np.zeros(FIRST_SIZE, np.int32)  # by execution
        self._is_read = np.zeros(FIRST_SIZE, bool)
        self._replaced: dict[int, Instr] = {}  # by execution, what overwrote it in PSUM
        self._summands: list[tuple[int, int]] = []  # (execution, the later one that adds to it)
        self._cells: dict[int, ByteTags] = {}
        self._granule = access_granule(programs)
        self._count = 0

    def tags(self, region: Region) -> ByteTags:
        """The numbers of the executions that wrote the bytes of a region's buffer last."""
        key = id(region.buffer)
        if key not in self._cells:
            self._cells[key] = ByteTags(region, self._granule)
        return self._cells[key]

    def beginning(self, instr: Instr) -> Step:
        """A step that gives an execution its number, to be run once it has read."""
        index = self._indices.setdefault(id(instr), len(self._instructions))
        if index == len(self._instructions):
            self._instructions.append(instr)

        def begin(_: Environment) -> None:
            self._count += 1
            if self._count >= self._instruction.size:
                self._instruction = np.append(self._instruction, np.zeros_like(self._instruction))
                self._is_read = np.append(self._is_read, np.zeros_like(self._is_read))
            self._instruction[self._count] = index

        return begin

    def reading(
        self,
        memories: Memories,
        pattern: Pattern,
        instr: Instr,
        name: str,
        accumulating: Accumulating | None,
    ) -> Step:
        """A step that records a read of a pattern; of a sum, where `accumulating` is true."""
        view, tags = memories.viewer(pattern), self.tags(memories.region(pattern.tile))
        condition = evaluator(instr.read_condition(name))
        is_summand = is_product(instr) and name in instr.sums

        def read(environment: Environment) -> None:
            if accumulating is None and not condition(environment):
                return
            found = tags.at(view(environment))
            if accumulating is not None:
                found = found[accumulating(environment)]
            if is_summand:
                self._summands += [(n, self._count + 1) for n in _distinct(found) if n]
            else:
                self._is_read[found] = True

        return read

    def writing(
        self,
        memories: Memories,
        pattern: Pattern,
        instr: Instr,
        rows: Rows = untracked_rows,
    ) -> Step:
        """A step that records a write of (rows of) a pattern."""
        view, tags = memories.viewer(pattern), self.tags(memories.region(pattern.tile))
        replaces = pattern.memory is Memory.PSUM

        def write(environment: Environment) -> None:
            found = tags.at(view(environment))
            if replaces:
                own = self._count, *self._added_to()
                for number in _distinct(found):
                    if number and number not in own and not self._is_read[number]:
                        self._replaced.setdefault(number, instr)
            chosen = rows(environment)
            found[... if chosen is None else chosen] = self._count

        return write

    def finish(self, memories: Memories, outputs: list[Tile]) -> None:
        """Record that the host reads these tiles."""
        for tile in outputs:
            region = memories.region(tile)
            self._is_read[self.tags(region).numbers(region.start, tile.bytes)] = True

    def _added_to(self) -> Iterator[int]:
        """The executions to whose sums the current one adds."""
        for number, by in reversed(self._summands):
            if by != self._count:
                return
            yield number

    def _follow_sums(self) -> None:
        """What became of a sum became of all products in it."""
        for number, by in reversed(self._summands):
            if self._is_read[by]:
                self._is_read[number] = True
            elif by in self._replaced:
                self._replaced.setdefault(number, self._replaced[by])

    def uses(self) -> dict[int, InstructionUse]:
        """What became of the results of each instruction that was executed, by its identity."""
        self._follow_sums()
        count = len(self._instructions)
        numbers = self._instruction[1 : self._count + 1]
        executions = np.bincount(numbers, minlength=count)
        unused = np.bincount(numbers[~self._is_read[1 : self._count + 1]], minlength=count)
        found = {
            id(instr): InstructionUse(int(executions[index]), int(unused[index]))
            for index, instr in enumerate(self._instructions)
        }
        for number, instr in self._replaced.items():
            writer = self._instructions[int(self._instruction[number])]
            if not self._is_read[number] and is_product(writer):
                found[id(writer)].overwritten_by = instr
        return found


def _distinct(numbers: Array) -> list[int]:
    """The distinct values, most often one, in order."""
    if numbers.size and (numbers == numbers.flat[0]).all():
        return [int(numbers.flat[0])]
    found: list[int] = np.unique(numbers).tolist()
    return found


def is_product(instr: Instr) -> bool:
    """Whether an instruction writes a product that others may add to."""
    return bool(instr.sums) and instr.is_sum
