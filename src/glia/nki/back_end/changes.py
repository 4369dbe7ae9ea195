"""What a back end changed in a kernel, for who reads its profile."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.machine.ir import Program, Statement

Key = tuple[object, ...]


@dataclass(frozen=True)
class BackEndChanges:
    """What the back end changed in a program of so many instructions.

    `copies` are the tiles that were added for the `renamed` ones. `shared` instructions compute or
    load what another has in place, `engines` have another engine than they were issued to. The
    bodies of `unrolled` loops on the device hold several iterations.
    """

    instructions: int
    removed_fills: int = 0
    renamed: int = 0
    copies: int = 0
    moved: int = 0
    shared: int = 0
    engines: int = 0
    unrolled: int = 0

    @property
    def text(self) -> str:
        """What was changed; "" for nothing."""
        parts = []
        if self.unrolled:
            parts.append(f"loops with several iterations in their body: {self.unrolled}")
        if self.removed_fills:
            parts.append(f"memsets removed: {self.removed_fills}")
        if self.shared:
            parts.append(f"instructions whose result is there already: {self.shared}")
        if self.renamed:
            parts.append(f"tiles renamed: {self.renamed}, to {self.copies} more")
        if self.moved:
            parts.append(f"instructions moved: {self.moved} of {self.instructions}")
        if self.engines:
            parts.append(f"on another engine: {self.engines}")
        return f"changed by the back end: {'; '.join(parts)}" if parts else ""


def changes_between(before: Program, after: Program) -> BackEndChanges:
    """What differs between two programs of one kernel, loops and branches taken as a whole.

    An instruction is found again by its source line, its kind and its number among those: of a line
    that changes places with itself nothing is seen. Instructions that only `after` has, of spills,
    are not counted.
    """
    first, second = _numbered(before.body), _numbered(after.body)
    places = {key: place for place, (key, _) in enumerate(first)}
    known = [(key, each) for key, each in second if key in places]
    engines = sum(
        isinstance(each, Instr) and each.runs_on != _engine(first[places[key]][1])
        for key, each in known
    )
    left = dict(known)
    renamed = {
        name
        for key, each in first
        if key in left
        for name, other in zip(_written(each), _written(left[key]), strict=False)
        if name != other and other not in before.tiles
    }
    gone = [each for key, each in first if key not in left]
    fills = sum(isinstance(each, Memset) for each in gone)
    return BackEndChanges(
        instructions=len(first),
        removed_fills=fills,
        renamed=len(renamed),
        copies=len(after.tiles.keys() - before.tiles.keys()),
        moved=fewest_moves([places[key] for key, _ in known]),
        shared=len(gone) - fills,
        engines=engines,
    )


def fewest_moves(order: Iterable[int]) -> int:
    """The fewest instructions that have to move to get this order: all but the longest in order."""
    ends: list[int] = []
    count = 0
    for number in order:
        at = bisect_left(ends, number)
        ends[at : at + 1] = [number]
        count += 1
    return count - len(ends)


def _numbered(body: Sequence[Statement]) -> list[tuple[Key, Statement]]:
    counts: Counter[Key] = Counter()
    found = []
    for each in body:
        kind: Key = (type(each), getattr(each, "loc", None))
        found.append(((*kind, counts[kind]), each))
        counts[kind] += 1
    return found


def _engine(statement: Statement) -> str:
    return statement.runs_on if isinstance(statement, Instr) else ""


def _written(statement: Statement) -> list[str]:
    if not isinstance(statement, Instr):
        return []
    return [pattern.tile.name for pattern in statement.written_patterns()]
