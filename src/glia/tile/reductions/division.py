"""What runs block by block of an axis: nests, how they reach one another, and the blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from glia.base.affine import Affine
from glia.tile.ir import Apply, Axis, Expr, Load, Nest, Store
from glia.tile.masked_columns import KeptColumns
from glia.tile.reductions.shifted_sums import ShiftedExponential, ShiftedSquare

BLOCK_BYTES = 8 * 1024  # per partition, of what is read of a block: four banks of PSUM
BLOCK_MULTIPLE = 128  # values of a block, where there is a choice: tiles that the PE turns


@dataclass(frozen=True)
class BlockedNest:
    """A nest that runs block by block of `axis`.

    Values that have the exponential, in its body or in a map that it reads, are to be multiplied by
    what `repair` loads for each block, which comes last in the index. `source` is the map. A sum of
    squares is repaired by addition.
    """

    nest: Nest
    axis: str
    repair: Load | None = None
    exponential: ShiftedExponential | None = None
    source: str = ""
    square: ShiftedSquare | None = None

    def is_repaired(self, part: Expr) -> bool:
        """Whether a part of the body is what is to be repaired."""
        if self.exponential is not None:
            return part == self.exponential.whole
        return isinstance(part, Load) and part.buffer == self.source

    @property
    def is_summed(self) -> bool:
        """Whether it is a sum along the axis of what is to be repaired."""
        is_along = self.axis in {a.name for a in self.nest.reduced_axes}
        return is_along and (self.repair is not None or self.square is not None)


@dataclass(frozen=True)
class Mask:
    """A choice, in the nest that computes what a maximum is of, of which `kept` is not constant.

    `rows` are the axes of all parts, by nest, on which it depends beside the one in blocks.
    """

    nest: str
    choice: Apply
    value: Expr
    kept: KeptColumns
    rows: dict[str, str]


@dataclass
class Division:
    """A maximum, or a sum for a mean, along an axis of `extent` values, and what is about it.

    All nests that run in blocks are `parts`, by name.

    `split` has the dimension of the axis of buffers that lie in blocks, `produced` are those of
    them that need no repair. `kept` are nests that run as they are too. `repairs` compute factors:
    nests for one block, whose targets lack its number.
    """

    shift: Nest
    extent: int
    parts: dict[str, BlockedNest] = field(default_factory=dict)
    split: dict[str, int] = field(default_factory=dict)
    produced: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    repairs: dict[str, Nest] = field(default_factory=dict)  # by the nest with the exponential
    mask: Mask | None = None

    @property
    def term_bytes(self) -> int:
        """Bytes that are read for one value of the axis."""
        part = self.parts[self.shift.name]
        read = {
            load.buffer: load.dtype.bytes
            for load in self.shift.loads
            if any(each.coefficient(part.axis) for each in load.index)
        }
        return sum(read.values())

    @property
    def map_bytes(self) -> int:
        """Bytes that maps write for one value of the axis."""
        maps = {*self.split} - self.produced
        written = {each.nest.target.buffer: each.nest.dtype for each in self.parts.values()}
        return sum(dtype.bytes for name, dtype in written.items() if name in maps)


@dataclass(frozen=True)
class Rows:
    """Rows first .. last - 1, which blocks from `start` to before `stop` keep something of."""

    first: int
    last: int
    start: int
    stop: int


@dataclass(frozen=True)
class Blocks:
    """`count` blocks of `extent` values from `start` on; the first is number `first` of all.

    With a mask it is one block of some `rows`, of which it keeps all values if it `is_whole`.
    """

    start: int
    count: int
    extent: int
    first: int = 0
    suffix: str = ""
    rows: tuple[int, int] | None = None
    is_whole: bool = False

    def axes(self, name: str) -> tuple[Axis, ...]:
        """The axes of these blocks in place of an axis over all values."""
        own = Axis(name, self.extent)
        return (Axis(f"{name}.block", self.count), own) if self.count > 1 else (own,)

    def value(self, name: str) -> Affine:
        """The value of an axis, by its block and its place there."""
        return self.number(name) * self.extent + name + (self.start - self.first * self.extent)

    def number(self, name: str) -> Affine:
        """The number of a block."""
        return (Affine.of(f"{name}.block") if self.count > 1 else Affine()) + self.first


def blocks_of(division: Division) -> list[Blocks]:
    """Blocks of one extent where some divide the axis well, else with a shorter one at the end.

    What a mask leaves out of them is in none: each is divided in rows of which it keeps all, and
    others.
    """
    extent, mask = division.extent, division.mask
    one = min(extent, _block_extent(extent, division.term_bytes))
    full = extent // one
    found = [Blocks(0, full, one)]
    if left := extent - full * one:
        found.append(Blocks(full * one, 1, left, full, ".last"))
    if mask is None:
        return found
    single = [
        Blocks(each.start + n * one, 1, each.extent, each.first + n)
        for each in found
        for n in range(each.count)
    ]
    return [piece for each in single for piece in _pieces(each, mask.kept)]


def _block_extent(extent: int, term_bytes: int) -> int:
    count = -(-extent // max(BLOCK_MULTIPLE, BLOCK_BYTES // max(1, term_bytes)))
    for divisor in range(count, 2 * count):
        if extent % (divisor * BLOCK_MULTIPLE) == 0:
            return extent // divisor
    return -(-extent // (count * BLOCK_MULTIPLE)) * BLOCK_MULTIPLE


def _pieces(block: Blocks, kept: KeptColumns) -> Iterator[Blocks]:
    """A block in rows of which it keeps all values, and of which it keeps some."""
    first, last = _rows_of(block, kept)
    low, high = block.start, block.start + block.extent
    every = (kept.low[first:last] <= low) & (kept.high[first:last] >= high)
    inside = every.nonzero()[0]
    whole = (first, first)
    if len(inside) and inside[-1] - inside[0] + 1 == len(inside):
        whole = _up(first + int(inside[0])), first + int(inside[-1]) + 1
        if whole[1] < last:
            whole = whole[0], whole[1] // BLOCK_MULTIPLE * BLOCK_MULTIPLE
        whole = whole if whole[0] < whole[1] else (first, first)
    ranges = ((first, whole[0], False), (*whole, True), (whole[1], last, False))
    for number, (start, stop, is_whole) in enumerate(ranges):
        if start < stop:
            suffix = f".{block.first}.{number}"
            yield Blocks(block.start, 1, block.extent, block.first, suffix, (start, stop), is_whole)


def _rows_of(block: Blocks, kept: KeptColumns) -> tuple[int, int]:
    """The rows between the first and the last of which a block keeps some value, in tiles."""
    some = (kept.low < block.start + block.extent) & (kept.high > block.start)
    rows = some.nonzero()[0]
    if not len(rows):
        return 0, 0
    first = int(rows[0]) // BLOCK_MULTIPLE * BLOCK_MULTIPLE
    return first, min(_up(int(rows[-1]) + 1), len(kept.low))


def runs_of(blocks: Sequence[Blocks], kept: KeptColumns) -> list[Rows]:
    """Rows of which the same blocks keep something; none where those do not follow each other."""
    spans: dict[int, tuple[int, int]] = {}
    for each in blocks:
        assert each.rows is not None
        first, last = spans.get(each.first, each.rows)
        spans[each.first] = min(first, each.rows[0]), max(last, each.rows[1])
    edges = sorted({edge for span in spans.values() for edge in span} | {0, len(kept.low)})
    found: list[Rows] = []
    for first, last in itertools.pairwise(edges):
        numbers = sorted(n for n, span in spans.items() if span[0] <= first and last <= span[1])
        if not numbers or numbers[-1] - numbers[0] + 1 != len(numbers):
            return []
        found.append(Rows(first, last, numbers[0], numbers[-1] + 1))
    return found


def dimensions(access: Load | Store, axis: str) -> list[int]:
    """The dimensions that an axis indexes; none where it does not do so alone."""
    found = [at for at, each in enumerate(access.index) if each.coefficient(axis)]
    return found if all(access.index[at] == Affine.of(axis) for at in found) else []


def _up(row: int) -> int:
    return -(-row // BLOCK_MULTIPLE) * BLOCK_MULTIPLE
