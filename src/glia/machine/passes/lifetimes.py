"""Live intervals of on-chip tiles, in positions of the static program."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from glia.isa.operand import Memory
from glia.machine.columns.table import WRITES, InstructionSpan, columns_of
from glia.machine.columns.value_numbering import group_rows
from glia.machine.ir import Branch, Program


@dataclass
class Lifetime:
    """The live interval of a tile: first and last position, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True)
class _ScopedUse:
    """The first and last use of a tile among the instructions of one loop scope."""

    regions: tuple[int, ...]  # enclosing loops, outermost first
    first: int
    last: int


class _Regions:
    """The enclosing loops of each instruction: `chains[inside[i]]`, outermost first."""

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
            inner = inside
            if not isinstance(span.statement, Branch):
                inner = len(self.chains)
                self.chains.append((*self.chains[inside], len(self.spans)))
                self.spans.append((span.begin, max(span.begin, span.end - 1)))
            for block in span.blocks:
                self._block(block, inner)


def find_lifetimes(program: Program) -> dict[str, Lifetime]:
    """The live interval of every on-chip tile.

    A tile used only inside one iteration of a loop, written before it is read, is live
    in that iteration only; one that is live into or out of a loop is live throughout the loop.
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
    groups = group_rows(tile, inside)
    last = np.zeros(groups.first.size, np.int64)
    np.maximum.at(last, groups.number, position)
    pairs = zip(
        tile[groups.first].tolist(), inside[groups.first].tolist(), position[groups.first].tolist(),
        last.tolist(), strict=True,
    )  # fmt: skip
    uses: defaultdict[int, list[_ScopedUse]] = defaultdict(list)
    for number, chain, begin, end in pairs:
        uses[number].append(_ScopedUse(regions.chains[chain], begin, end))
    begins = np.zeros(len(numbers), np.int64)
    begins[[*uses]] = [each[0].first for each in uses.values()]
    is_read = (begins[tile] == position) & (patterns.access[rows] != WRITES)
    read_first = set(tile[is_read].tolist())
    names = [*numbers]
    return {
        names[number]: _lifetime(each, regions.spans, number in read_first)
        for number, each in uses.items()
    }


def _lifetime(
    uses: list[_ScopedUse], spans: list[tuple[int, int]], is_read_first: bool
) -> Lifetime:
    """The live interval of a tile with these uses, the first a read with `is_read_first`."""
    common = uses[0].regions
    if len(uses) == 1 and not (is_read_first and common):
        return Lifetime(uses[0].first, uses[0].last)
    for use in uses[1:]:
        depth = 0
        while depth < min(len(common), len(use.regions)) and common[depth] == use.regions[depth]:
            depth += 1
        common = common[:depth]
    crossed = {region for use in uses for region in use.regions[len(common) :]}
    crossed.update(common if is_read_first else ())
    intervals = [*((use.first, use.last) for use in uses), *(spans[region] for region in crossed)]
    return Lifetime(min(first for first, _ in intervals), max(last for _, last in intervals))
