"""Iterations of a parallel loop as one instruction: one more free dimension in each operand.

A loop whose iterations compute a few elements each spends its time on starting instructions. Where
iterations are alike, move through tiles by equal steps and do not touch what others write, all
iterations of an instruction are one instruction. Tiles that each iteration has for itself become
one tile with a part for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from glia.arch import Arch
from glia.isa.cost import engine_cycles
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile
from glia.machine.footprint import Footprint
from glia.machine.ir import Statement
from glia.machine.legal_instruction import violations

# Elements of a partition that a merged operand has at most: those of a bank of PSUM. A loop with
# more stays as it is, whole: the product's compiler took 64 iterations of three elements together,
# and neither 512 nor 2048 (benchmarks/SEQUENCES.md, depthwise convolution).
MOST_ELEMENTS = 512

Iteration = Sequence[Instr]
NewTile = Callable[[Tile, int], Tile]  # (that of one iteration, how many) -> that of all


def may_merge(iteration: Sequence[Statement], count: int) -> bool:
    """Whether `count` such iterations could be merged: a cheap test, which most loops fail."""
    return bool(iteration) and all(
        isinstance(each, Instr)
        and _maps_outer(each)
        and all(count * pattern.free <= MOST_ELEMENTS for pattern in each.patterns())
        for each in iteration
    )


def merge_iterations(
    iterations: Sequence[Iteration], private: Collection[str], arch: Arch, new_tile: NewTile
) -> tuple[Instr, ...] | None:
    """One instruction for each of an iteration's, with the effect of all iterations in order.

    `private` names tiles that nothing outside of one iteration accesses. None where there is no
    such instruction, or where the iterations take less time one after the other.
    """
    if not all(_maps_outer(each) for iteration in iterations for each in iteration):
        return None
    merging = _Merging(iterations, private)
    if not merging.is_regular or merging.exchanges_values():
        return None
    merged = merging.merged(new_tile)
    is_legal = not any(violations(each, arch) for each in merged)
    return merged if is_legal and _is_faster(merged, iterations, arch) else None


def _maps_outer(instruction: Instr) -> bool:
    """Whether every index of an outermost free dimension is computed by itself."""
    if not instruction.maps_outer or instruction.queue or instruction.variables():
        return False
    writes_column = any(
        declared.is_column and instruction.access(name) != "reads"
        for name, declared, _ in instruction.operands()
    )
    keeps_state = any(access != "forgets" for _, _, access in instruction.states_touched())
    return not writes_column and not keeps_state


@dataclass(frozen=True)
class _Access:
    """What an operand accesses in each iteration: `pattern` in the first, `step` bytes on in each.

    `number` is that of the instruction in its iteration.
    """

    number: int
    pattern: Pattern
    step: int
    is_write: bool

    def in_all(self, count: int) -> Footprint:
        """The bytes that `count` iterations touch."""
        dims = (self.pattern.dims[0], (self.step // self.pattern.dtype.bytes, count))
        return Footprint.of(replace(self.pattern, dims=(*dims, *self.pattern.dims[1:])))

    def overlaps_later(self, other: _Access, count: int) -> bool:
        """Whether the other access, in a later iteration, may touch bytes of this one."""
        if not self.in_all(count).may_overlap(other.in_all(count)):
            return False
        if self.step != other.step:
            return True
        mine, its = Footprint.of(self.pattern), Footprint.of(other.pattern)
        return any(
            mine.may_overlap(replace(its, start=its.start + distance * self.step))
            for distance in range(1, count)
        )


class _Merging:
    """Iterations that are compared, operand by operand, and become one."""

    def __init__(self, iterations: Sequence[Iteration], private: Collection[str]) -> None:
        self.iterations = iterations
        self.count = len(iterations)
        self.private = private
        self.owner: dict[str, int] = {}  # the iteration that has a private tile
        self.owned: dict[str, list[Tile]] = {}  # private tiles of all iterations, by the first's
        self.accesses: list[_Access] = []  # to tiles that are not private
        self.steps: dict[tuple[int, str], int] = {}  # bytes, by instruction and operand
        self.is_regular = all(
            self._add(number, column) for number, column in enumerate(zip(*iterations, strict=True))
        )

    def _add(self, number: int, column: tuple[Instr, ...]) -> bool:
        """Compare one instruction of every iteration; False where they are not alike."""
        first = column[0]
        if any(_fixed_fields(each) != _fixed_fields(first) for each in column[1:]):
            return False
        operands = [[pattern for _, _, pattern in instruction.operands()] for instruction in column]
        names = [name for name, _, _ in first.operands()]
        aligned = zip(names, zip(*operands, strict=True), strict=True)
        return all(self._add_operand(number, name, [*patterns]) for name, patterns in aligned)

    def _add_operand(self, number: int, name: str, patterns: list[Pattern]) -> bool:
        first = patterns[0]
        if any(_shape_of(pattern) != _shape_of(first) for pattern in patterns):
            return False
        starts = [pattern.offset.constant for pattern in patterns]
        width = first.dtype.bytes
        if first.tile.name in self.private:
            self.steps[number, name] = first.tile.bytes_per_partition
            return len({*starts}) == 1 and self._add_private([p.tile for p in patterns])
        step = starts[1] - starts[0]
        is_even = all(after - before == step for before, after in pairwise(starts))
        if not is_even or any(p.tile.name != first.tile.name for p in patterns):
            return False
        is_write = self.iterations[0][number].access(name) != "reads"
        self.steps[number, name] = step * width
        self.accesses.append(_Access(number, first, step * width, is_write))
        return True

    def _add_private(self, tiles: list[Tile]) -> bool:
        """Whether each iteration has a tile of its own here, always the same one."""
        for iteration, tile in enumerate(tiles):
            is_alike = replace(tile, name="") == replace(tiles[0], name="")
            owner = self.owner.setdefault(tile.name, iteration)
            if not is_alike or tile.name not in self.private or owner != iteration:
                return False
        return self.owned.setdefault(tiles[0].name, tiles) == tiles

    def exchanges_values(self) -> bool:
        """Whether an access changes places with one in a later iteration that may overlap it."""
        return any(
            earlier.overlaps_later(later, self.count)
            for earlier in self.accesses
            for later in self.accesses
            if earlier.number >= later.number
            and (earlier.is_write or later.is_write)
            and earlier.pattern.tile.name == later.pattern.tile.name
        )

    def merged(self, new_tile: NewTile) -> tuple[Instr, ...]:
        """The instructions of all iterations."""
        wide = {name: new_tile(tiles[0], self.count) for name, tiles in self.owned.items()}
        return tuple(
            self._merged_instruction(number, instruction, wide)
            for number, instruction in enumerate(self.iterations[0])
        )

    def _merged_instruction(
        self, number: int, instruction: Instr, wide: Mapping[str, Tile]
    ) -> Instr:
        changes: dict[str, Any] = {}
        for name, declared, pattern in instruction.operands():
            step = self.steps[number, name]
            if step or not declared.is_column:
                dims = (pattern.dims[0], (step // pattern.dtype.bytes, self.count))
                tile = wide.get(pattern.tile.name, pattern.tile)
                changes[name] = replace(pattern, tile=tile, dims=(*dims, *pattern.dims[1:]))
        return replace(instruction, **changes)


def _fixed_fields(instruction: Instr) -> tuple[object, ...]:
    """What all iterations of an instruction must have in common, besides their operands."""
    declared = instruction.operand_declarations
    values = [getattr(instruction, name) for name in declared]
    immediates = [None if isinstance(value, Pattern) else (value,) for value in values]
    attributes = tuple(instruction.attributes().items())
    return type(instruction), instruction.on, instruction.loc, attributes, *immediates


def _shape_of(pattern: Pattern) -> tuple[object, ...]:
    return pattern.dtype.name, pattern.dims, pattern.partition


def _is_faster(merged: Sequence[Instr], iterations: Sequence[Iteration], arch: Arch) -> bool:
    """Whether the merged instructions in sequence end before the busiest engine would."""

    def nanoseconds(instruction: Instr) -> float:
        engine = instruction.runs_on
        return engine_cycles(instruction, arch) / arch.clocks_ghz[engine]

    busy: defaultdict[str, float] = defaultdict(float)
    for instruction in iterations[0]:
        busy[instruction.runs_on] += nanoseconds(instruction) * len(iterations)
    return sum(map(nanoseconds, merged)) < max(busy.values())
