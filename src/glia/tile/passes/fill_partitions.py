"""Axes are split so that all partitions have something to do.

A sum of all elements of a matrix has one result, whose partition alone would do the work; a map
over one long axis has one element for each partition and instruction. Where an axis that is reduced
can be on the partitions, one nest reduces for each of its rows and another what the rows come to. A
long parallel axis becomes rows of equal length, and so do temporaries between nests that agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, contraction_operands
from glia.tile.ir import (
    Accumulator,
    Apply,
    Axis,
    Buffer,
    Load,
    Nest,
    Program,
    Statement,
    Store,
    WholeBuffers,
    accessed_buffers,
    ordered_axes,
)
from glia.tile.nest_rewriting import (
    substitute_axes,
    unused_name,
    with_replacements,
    with_total,
)
from glia.tile.row_search import picked
from glia.tile.split_dimensions import split_dimensions

LEAST_SAVED_ELEMENTS = 4096  # of one partition: what one more nest takes to begin
MOST_ROWS = 1024  # their results are reduced on one partition
LEAST_LONG = 1024  # values of an axis that is worth splitting
FEW_LANES = 32  # of another axis, which could be on the partitions instead
FEW_ELEMENTS = 64  # for each value of a long axis


@dataclass(frozen=True)
class _Rows:
    """How the values of an axis become rows: `count` of `length` each, and a rest."""

    axis: str
    count: int
    length: int
    rest: int

    @property
    def row(self) -> Axis:
        """The axis of the rows."""
        return Axis(f"{self.axis}.row", self.count)

    @property
    def in_rows(self) -> Affine:
        """The value of the axis at a row and a place in it."""
        return Affine.of(self.row.name) * self.length + Affine.of(self.axis)

    @property
    def in_rest(self) -> Affine:
        return Affine.of(self.axis) + self.count * self.length


def fill_partitions(program: Program, options: CompileOptions) -> Program:
    """Split reductions that would leave most partitions idle, and maps over one long axis."""
    splitter = _Splitter(program)
    body = with_replacements(program.body, splitter.statements)
    program = replace(program, body=body, buffers={**program.buffers, **splitter.partials})
    return split_dimensions(program)


class _Splitter:
    """Makes nests of parts, with the buffers between them."""

    def __init__(self, program: Program) -> None:
        self.names = {*program.buffers, *(nest.name for nest in program.nests())}
        self.partials: dict[str, Buffer] = {}
        self.multiplied = {
            name
            for nest in program.nests()
            if contraction_operands(nest) is not None
            for name in accessed_buffers(nest)
        }

    def statements(self, statement: Nest | WholeBuffers) -> Sequence[Statement]:
        """What a nest, or another statement without statements in it, becomes."""
        if not isinstance(statement, Nest) or not _is_plain(statement):
            return (statement,)
        rows = _reduced_rows(statement)
        if rows is not None:
            return tuple(self._split_reduction(statement, rows))
        rows = self._parallel_rows(statement)
        return (statement,) if rows is None else tuple(self._split_map(statement, rows))

    def _split_reduction(self, nest: Nest, rows: _Rows) -> Iterator[Nest]:
        reduction = nest.reduction
        assert reduction is not None
        partial = self._partial(nest, "rows", (rows.row, *nest.parallel_axes))
        yield _part(nest, rows, rows.length, rows.in_rows, (rows.row,), partial)
        finish = nest.finish
        if rows.rest:
            tail = self._partial(nest, "rest", nest.parallel_axes)
            yield _part(nest, rows, rows.rest, rows.in_rest, (), tail)
            acc = Accumulator(reduction.dtype)
            total = Apply(reduction.function, (acc, tail.load), reduction.dtype)
            finish = with_total(finish, total)
        yield replace(
            nest,
            axes=(*nest.parallel_axes, rows.row),
            body=partial.load,
            reduction=replace(reduction, axes=(rows.row.name,)),
            finish=finish,
        )

    def _split_map(self, nest: Nest, rows: _Rows) -> Iterator[Nest]:
        yield _part(nest, rows, rows.length, rows.in_rows, (rows.row,))
        if rows.rest:
            rest = _part(nest, rows, rows.rest, rows.in_rest, ())
            yield replace(rest, name=unused_name(f"{nest.name}.rest", self.names))

    def _parallel_rows(self, nest: Nest) -> _Rows | None:
        """The rows of a long axis where no other axis has as many lanes, and each few elements.

        What products read or write is left to their own layouts.
        """
        along = ordered_axes(nest)
        long = max(nest.parallel_axes, key=lambda axis: axis.extent, default=None)
        if long is None or long.extent < LEAST_LONG or long.name in along:
            return None
        others = [a.extent for a in nest.parallel_axes if a is not long and a.name not in along]
        each = math.prod(nest.extents.values()) // long.extent
        if max(others, default=1) >= FEW_LANES or each > FEW_ELEMENTS:
            return None
        return None if accessed_buffers(nest) & self.multiplied else _equal_rows(long)

    def _partial(self, nest: Nest, part: str, axes: Sequence[Axis]) -> _Partial:
        """A new buffer with a value for each point of the axes."""
        assert nest.reduction is not None
        name = unused_name(f"{nest.name}.{part}", self.names)
        shape = tuple(axis.extent for axis in axes)
        self.partials[name] = Buffer(name, nest.reduction.dtype, shape)
        return _Partial(self.partials[name], tuple(Affine.of(axis.name) for axis in axes))


@dataclass(frozen=True)
class _Partial:
    """A buffer of partial results, and the index of the one at a point."""

    buffer: Buffer
    index: tuple[Affine, ...]

    @property
    def load(self) -> Load:
        return Load(self.buffer.name, self.buffer.dtype, self.index)


def _part(
    nest: Nest,
    rows: _Rows,
    extent: int,
    place: Affine,
    more: tuple[Axis, ...],
    result: _Partial | None = None,
) -> Nest:
    """The nest for some values of an axis, at `place`, for each point of `more` axes.

    What it reduces goes to `result` as it is, where there is one.
    """
    if result is not None:
        target = Store(result.buffer.name, result.index)
        nest = replace(nest, name=result.buffer.name, target=target, finish=None)
    axes = (replace(a, extent=extent) if a.name == rows.axis else a for a in nest.axes)
    axes = (axis for axis in axes if axis.name != rows.axis or extent > 1)
    at = {rows.axis: place if extent > 1 else place.substitute({rows.axis: Affine()})}
    reduction = nest.reduction
    if reduction is not None and extent == 1:
        swept = tuple(name for name in reduction.axes if name != rows.axis)
        reduction = replace(reduction, axes=swept)
    moved = substitute_axes(replace(nest, reduction=reduction), at, {})
    return replace(moved, axes=(*more, *axes))


def _is_plain(nest: Nest) -> bool:
    """Whether a nest without the PE writes each element once, and nothing by a run-time index.

    A product with one result has neither rows nor columns for the PE.
    """
    has_results = any(axis.extent > 1 for axis in nest.parallel_axes)
    if contraction_operands(nest) is not None and has_results:
        return False
    if nest.target.combine or nest.target.dynamic:
        return False
    return not any(load.dynamic for load in nest.loads)


def _reduced_rows(nest: Nest) -> _Rows | None:
    """How to split a reduction; None where that gains nothing."""
    if nest.reduction is None or ordered_axes(nest) or picked(nest):
        return None
    candidates = [found for axis in nest.reduced_axes if (found := _rows_of_reduced(nest, axis))]
    best = max(candidates, key=lambda rows: min(PARTITIONS, rows.count), default=None)
    if best is None:
        return None
    total = math.prod(nest.extents.values())
    lanes = max([1, *(min(PARTITIONS, axis.extent) for axis in nest.parallel_axes)])
    saved = total // lanes - total // min(PARTITIONS, best.count) - best.count
    return best if saved >= LEAST_SAVED_ELEMENTS else None


def _rows_of_reduced(nest: Nest, axis: Axis) -> _Rows | None:
    """The rows that a reduced axis gives: its values, or equal parts of it and a rest."""
    is_alone = all(each.extent == 1 for each in nest.reduced_axes if each.name != axis.name)
    if not is_alone and 1 < axis.extent <= MOST_ROWS:
        return _Rows(axis.name, axis.extent, 1, 0)
    return None if axis.extent < 2 * PARTITIONS else _equal_rows(axis)


def _equal_rows(axis: Axis) -> _Rows:
    """A row for nearly every partition, without a rest if that can be."""
    even = [n for n in range(PARTITIONS, PARTITIONS // 2, -1) if axis.extent % n == 0]
    count = even[0] if even else PARTITIONS
    return _Rows(axis.name, count, axis.extent // count, axis.extent % count)
