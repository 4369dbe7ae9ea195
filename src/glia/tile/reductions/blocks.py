"""The nests of blocks, and those that make totals of what blocks have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.tile.ir import (
    Apply,
    Axis,
    Buffer,
    Expr,
    Literal,
    Load,
    Nest,
    Reduction,
    Store,
)
from glia.tile.nest_rewriting import NO_NAMES, map_leaves, substitute, substitute_axes, with_part
from glia.tile.reductions.division import BlockedNest, Blocks, Division, Rows, blocks_of, runs_of
from glia.tile.reductions.shifted_sums import ShiftedSquare

LARGEST = 3.4028234663852886e38  # of float32: an infinite maximum is no shift


class BlockedNests:
    """Builds nests; `buffers` are those that they need."""

    def __init__(self, division: Division, buffers: Mapping[str, Buffer]) -> None:
        self.division = division
        self.old = buffers
        self.blocks = blocks_of(division)
        self.count = 1 + max(each.first + each.count - 1 for each in self.blocks)
        mask = division.mask
        self.runs: Sequence[Rows | None] = [None]
        if mask is not None:
            self.runs = runs_of(self.blocks, mask.kept)
        self.buffers: dict[str, Buffer] = {}

    # --- blocks -----------------------------------------------------------------------------------

    def nest(self, part: BlockedNest, blocks: Blocks) -> Nest:
        """What a nest computes of some blocks."""
        nest, mask = part.nest, self.division.mask
        body, finish = nest.body, nest.finish
        if part.exponential is not None:
            shift = _shift(
                self._of_block(self._place(part.exponential.axes), blocks.number(part.axis))
            )
            body = with_part(body, part.exponential.whole, part.exponential.about(shift))
        if part.square is not None:
            body = part.square.about(self._mean(part.square, blocks.number(part.axis)))
        if mask is not None and blocks.is_whole and nest.name == mask.nest:
            body = with_part(body, mask.choice, mask.value)
            finish = finish and with_part(finish, mask.choice, mask.value)
        is_total = nest.target.buffer not in self.division.split
        finish = None if is_total else finish
        return replace(
            nest,
            name=f"{nest.name}.blocks{blocks.suffix}",
            axes=self._axes(part, blocks),
            body=self._in_blocks(body, part, blocks),
            finish=finish and self._in_blocks(finish, part, blocks),
            target=self._target(part, blocks),
        )

    def _axes(self, part: BlockedNest, blocks: Blocks) -> tuple[Axis, ...]:
        rows = self._rows(part)
        found: list[Axis] = []
        for axis in part.nest.axes:
            if axis.name == part.axis:
                found += blocks.axes(axis.name)
            elif axis.name == rows and blocks.rows is not None:
                found.append(Axis(rows, blocks.rows[1] - blocks.rows[0]))
            else:
                found.append(axis)
        return tuple(found)

    def _rows(self, part: BlockedNest) -> str:
        """The axis over the rows of the mask."""
        return "" if self.division.mask is None else self.division.mask.rows[part.nest.name]

    def _target(self, part: BlockedNest, blocks: Blocks) -> Store:
        """Where a nest writes what it computes of blocks."""
        nest, target, number = part.nest, part.nest.target, blocks.number(part.axis)
        values = self._values(part, blocks)
        if target.buffer in self.division.split:
            return Store(*self._split(target, part, blocks))
        if nest.name == self.division.shift.name:
            place = self._of_block(target.index, number)
        else:
            index = (*(Affine.of(axis.name) for axis in nest.parallel_axes), number)
            place = Load(_partial(nest), F32, index)
            shape = (*(axis.extent for axis in nest.parallel_axes), self.count)
            self.buffers[place.buffer] = Buffer(place.buffer, F32, shape)
        return Store(place.buffer, tuple(each.substitute(values) for each in place.index))

    def _values(self, part: BlockedNest, blocks: Blocks) -> dict[str, Affine]:
        """What the axes of a nest stand for in some blocks."""
        values = {part.axis: blocks.value(part.axis)}
        if blocks.rows is not None:
            rows = self._rows(part)
            values[rows] = Affine.of(rows) + blocks.rows[0]
        return values

    def _in_blocks(self, expression: Expr, part: BlockedNest, blocks: Blocks) -> Expr:
        """An expression of a nest for a value of the axis in a block."""
        values = self._values(part, blocks)
        own = {part.source, *self.division.produced}

        def leaf(each: Expr) -> Expr:
            if isinstance(each, Load) and each.buffer in own:
                name, index = self._split(each, part, blocks)
                return Load(name, each.dtype, index)
            return substitute(each, values)

        return map_leaves(expression, leaf)

    def _split(
        self, access: Load | Store, part: BlockedNest, blocks: Blocks
    ) -> tuple[str, tuple[Affine, ...]]:
        """(the buffer of these blocks in place of one for all, where a nest accesses it)."""
        at, old = self.division.split[access.buffer], self.old[access.buffer]
        rows = self._rows(part)
        index: list[Affine] = []
        shape: list[int] = []
        for dimension, (each, extent) in enumerate(zip(access.index, old.shape, strict=True)):
            if dimension == at:
                axes = blocks.axes(part.axis)
                index += (Affine.of(axis.name) for axis in axes)
                shape += (axis.extent for axis in axes)
            else:
                is_rows = blocks.rows is not None and each == Affine.of(rows)
                index.append(each)
                shape.append(blocks.rows[1] - blocks.rows[0] if is_rows and blocks.rows else extent)
        name = f"{access.buffer}.blocks{blocks.suffix}"
        self.buffers[name] = Buffer(name, old.dtype, tuple(shape))
        return name, tuple(index)

    def _of_block(self, place: tuple[Affine, ...], number: Affine) -> Load:
        """The maximum, or sum, of a block of the row at a place."""
        target = self.division.shift.target
        name = _partial(self.division.shift)
        shape = (*self.old[target.buffer].shape, self.count)
        self.buffers[name] = Buffer(name, F32, shape)
        return Load(name, F32, (*place, number))

    def _mean(self, square: ShiftedSquare, number: Affine) -> Expr:
        """The mean of a block, from its sum."""
        total = self._of_block(self._place(square.axes), number)
        return Apply("multiply", (total, Literal(1 / self.blocks[0].extent, F32)), F32)

    def _place(self, axes: Mapping[str, str]) -> tuple[Affine, ...]:
        """Where the shift is of the row of a nest, by its axes."""
        names = {old: Affine.of(new) for old, new in axes.items()}
        return tuple(each.substitute(names) for each in self.division.shift.target.index)

    # --- totals -----------------------------------------------------------------------------------

    def totals(self, part: BlockedNest) -> Iterator[Nest]:
        """What a nest computes of all blocks: the shift, and factors, or the repaired sum."""
        for run in self.runs:
            block = Axis("block", self.count if run is None else run.stop - run.start)
            number = Affine.of(block.name) + (0 if run is None else run.start)
            if part.is_summed:
                yield self._in_run(self._sum(part, block, number), part, run)
            elif part.nest is self.division.shift:
                yield self._in_run(self._whole_shift(block, number), part, run)
                for name, nest in self.division.repairs.items():
                    own = self.division.parts[name]
                    yield self._in_run(self._repair(nest, own, block, number), own, run)

    def _in_run(self, nest: Nest, part: BlockedNest, run: Rows | None) -> Nest:
        """A nest for some rows only."""
        if run is None:
            return nest
        rows = self._rows(part)
        axes = tuple(
            Axis(rows, run.last - run.first) if axis.name == rows else axis for axis in nest.axes
        )
        moved = substitute_axes(nest, {rows: Affine.of(rows) + run.first}, NO_NAMES)
        return replace(moved, name=f"{nest.name}.rows{run.first}", axes=axes)

    def _whole_shift(self, block: Axis, number: Affine) -> Nest:
        shift = self.division.shift
        assert shift.reduction is not None
        return replace(
            shift,
            axes=(*shift.parallel_axes, block),
            body=self._of_block(shift.target.index, number),
            reduction=Reduction((block.name,), shift.reduction.function, F32),
        )

    def _repair(self, nest: Nest, part: BlockedNest, block: Axis, number: Affine) -> Nest:
        """The factors of what blocks have about maxima of their own."""
        assert part.exponential is not None
        shift = _shift(self._of_block(self._place(part.exponential.axes), number))
        shape = (*(axis.extent for axis in nest.axes), self.count)
        self.buffers[nest.name] = Buffer(nest.name, F32, shape)
        return replace(
            nest,
            axes=(*nest.axes, block),
            body=part.exponential.repair(shift),
            target=Store(nest.name, (*nest.target.index, number)),
        )

    def _sum(self, part: BlockedNest, block: Axis, number: Affine) -> Nest:
        """The sum of what blocks have, repaired."""
        nest, repair = part.nest, part.repair
        kept = nest.parallel_axes
        index = (*(Affine.of(axis.name) for axis in kept), number)
        own = Load(_partial(nest), F32, index)
        if part.square is not None:
            mean = self._mean(part.square, number)
            body = Apply("add", (own, part.square.repair(mean, self.blocks[0].extent)), F32)
        else:
            assert repair is not None
            factor = replace(repair, index=(*repair.index, number))
            body = Apply("multiply", (own, factor), F32)
        reduction = Reduction((block.name,), "add", F32)
        return replace(nest, axes=(*kept, block), body=body, reduction=reduction)


def _shift(maximum: Load) -> Expr:
    """A maximum as a shift: what is infinite, as where all is masked, as the largest number."""
    above = Apply("maximum", (maximum, Literal(-LARGEST, F32)), F32)
    return Apply("minimum", (above, Literal(LARGEST, F32)), F32)


def _partial(nest: Nest) -> str:
    """The buffer for what a reduction has of each block."""
    return f"{nest.name}.partial"
