"""When each tile is live, in positions of the static program."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from glia.isa.operand import Memory
from glia.machine.columns.table import WRITES, InstructionSpan, columns_of
from glia.machine.columns.value_numbering import group_rows
from glia.machine.ir import Branch, Program


@dataclass
class Life:
    """First and last position at which a tile holds something, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True)
class _Uses:
    """The first and last position at which instructions inside the same loops use a tile."""

    regions: tuple[int, ...]  # enclosing loops, outermost first
    first: int
    last: int


class _Regions:
    """Which loops are around each instruction: `inside` has a number of `chains`."""

    def __init__(self, instructions: int, body: tuple[InstructionSpan, ...]) -> None:
        self.inside = np.zeros(instructions, np.int64)
        self.chains: list[tuple[int, ...]] = [()]
        self.spans: list[tuple[int, int]] = []  # (first, last) position of each loop
        self._block(body, 0)

    def _block(self, body: tuple[InstructionSpan, ...], inside: int) -> None:
        for span in body:
            if span.statement is None:
                self.inside[span.begin : span.end] = inside
                continue
            within = inside
            if not isinstance(span.statement, Branch):
                within = len(self.chains)
                self.chains.append((*self.chains[inside], len(self.spans)))
                self.spans.append((span.begin, max(span.begin, span.end - 1)))
            for block in span.blocks:
                self._block(block, within)


def find_lives(program: Program) -> dict[str, Life]:
    """The life of every on-chip tile.

    A tile used only inside one iteration of a loop, written before it is read, lives within
    that iteration; one that enters or leaves a loop lives through the whole of it.
    """
    columns = columns_of(program)
    patterns = columns.patterns
    regions = _Regions(len(columns.instructions), columns.body)
    numbers: dict[str, int] = {}
    named = patterns.tile.map(lambda tile: numbers.setdefault(tile.name, len(numbers)))
    is_on_chip = patterns.tile.map(lambda tile: tile.memory is not Memory.HBM)
    rows = np.flatnonzero(is_on_chip)
    tile, position = named[rows], patterns.owner[rows]
    inside = regions.inside[position]
    met = group_rows(tile, inside)
    last = np.zeros(met.first.size, np.int64)
    np.maximum.at(last, met.number, position)
    pairs = zip(
        tile[met.first].tolist(), inside[met.first].tolist(), position[met.first].tolist(),
        last.tolist(), strict=True,
    )  # fmt: skip
    uses: defaultdict[int, list[_Uses]] = defaultdict(list)
    for number, chain, begin, end in pairs:
        uses[number].append(_Uses(regions.chains[chain], begin, end))
    begins = np.zeros(len(numbers), np.int64)
    begins[[*uses]] = [each[0].first for each in uses.values()]
    is_read = (begins[tile] == position) & (patterns.access[rows] != WRITES)
    entering = set(tile[is_read].tolist())
    names = [*numbers]
    return {
        names[number]: _life(each, regions.spans, number in entering)
        for number, each in uses.items()
    }


def _life(uses: list[_Uses], spans: list[tuple[int, int]], enters: bool) -> Life:
    """The life of a tile with these uses; with `enters` the first of them reads it."""
    common = uses[0].regions
    if len(uses) == 1 and not (enters and common):
        return Life(uses[0].first, uses[0].last)
    for use in uses[1:]:
        depth = 0
        while depth < min(len(common), len(use.regions)) and common[depth] == use.regions[depth]:
            depth += 1
        common = common[:depth]
    through = {region for use in uses for region in use.regions[len(common) :]}
    through.update(common if enters else ())
    reached = [*((use.first, use.last) for use in uses), *(spans[region] for region in through)]
    return Life(min(first for first, _ in reached), max(last for _, last in reached))
