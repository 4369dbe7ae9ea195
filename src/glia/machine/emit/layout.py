"""Ranges of axes, on-chip homes of buffers, and the access patterns between the two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from glia.base.affine import ZERO, Affine
from glia.isa.operand import Pattern, Tile
from glia.isa.rules import may_start_at
from glia.tile.contraction import PARTITIONS


@dataclass(frozen=True)
class AxisRange:
    """Values of an axis: base, base+1, ..., `extent` of them; base is affine in loop variables."""

    base: Affine
    extent: int


Env = Mapping[str, AxisRange]


@dataclass(frozen=True)
class Dim:
    """One free dimension of a tile that holds part of a buffer.

    It runs over a box of buffer dimension `dim` starting at `low`, or, when `axis` is named, over
    that axis' values starting at `low`.
    """

    stride: int
    extent: int
    low: Affine
    dim: int = -1
    axis: str = ""


@dataclass(frozen=True)
class Home:
    """An on-chip tile holding (part of) a buffer.

    The partitions run over `axis` (values from `low`, `block` of them to a block of
    `block_stride` elements), or over buffer dimension `partition_dim` when that is not -1; a tile
    with neither holds the same values on every partition.
    """

    tile: Tile
    dims: tuple[Dim, ...]
    axis: str = ""
    partition_dim: int = -1
    low: Affine = ZERO
    block: int = PARTITIONS
    block_stride: int = 0


@dataclass(frozen=True)
class Point:
    """The iteration space of an instruction: one axis on the partitions, the others free."""

    env: Env
    partition: str
    free: tuple[str, ...]

    @property
    def partitions(self) -> int:
        """The extent of the partition axis; 1 without one."""
        return self.env[self.partition].extent if self.partition else 1

    def extents(self, axes: Sequence[str]) -> tuple[int, ...]:
        """The extents of some axes."""
        return tuple(self.env[a].extent for a in axes)


def bases(env: Env) -> dict[str, Affine]:
    """The first value of every axis, by axis."""
    return {axis: span.base for axis, span in env.items()}


def hbm_pattern(tile: Tile, index: Sequence[Affine], shape: Sequence[int], point: Point) -> Pattern:
    """The row-major access index[...] of an HBM tensor over a point."""
    linear = linearise(index, shape)
    dims = [(linear.coefficient(point.partition), point.partitions)]
    dims += [(linear.coefficient(axis), point.env[axis].extent) for axis in point.free]
    offset = linear.substitute(bases(point.env))
    return Pattern(tile, tile.dtype, tuple(dims), offset)


def linearise(index: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """The row-major element offset of an index."""
    linear, stride = ZERO, 1
    for position, extent in zip(reversed(tuple(index)), reversed(tuple(shape)), strict=True):
        linear, stride = linear + position * stride, stride * extent
    return linear


def home_pattern(home: Home, index: Sequence[Affine], point: Point) -> Pattern | None:
    """The access index[...] of a buffer in its on-chip home; None where layouts do not agree."""
    env = bases(point.env)
    offset = ZERO
    steps = dict.fromkeys(point.free, 0)
    for dim in home.dims:
        along = Affine.of(dim.axis) if dim.axis else index[dim.dim]
        if home.axis and not dim.axis:  # the partitions stand for its part of the index
            along = along - Affine.of(home.axis) * along.coefficient(home.axis)
        if point.partition and along.coefficient(point.partition):
            return None
        offset = offset + (along.substitute(env) - dim.low) * dim.stride
        for axis in point.free:
            steps[axis] += along.coefficient(axis) * dim.stride
    row = _partition_row(home, index, point)
    if row is None:
        return None
    start, block = row
    offset = offset + block * home.block_stride
    for axis in point.free:
        steps[axis] += _rows(home, index).coefficient(axis) // home.block * home.block_stride
    dims = [(1, point.partitions), *((steps[a], point.env[a].extent) for a in point.free)]
    return Pattern(home.tile, home.tile.dtype, tuple(dims), offset, Affine.of(start))


def _rows(home: Home, index: Sequence[Affine]) -> Affine:
    """What runs over the partitions of a home, block by block; 0 where each holds the same."""
    if home.axis:
        return Affine.of(home.axis)
    return index[home.partition_dim] if home.partition_dim >= 0 else ZERO


def _partition_row(home: Home, index: Sequence[Affine], point: Point) -> tuple[int, Affine] | None:
    """(start partition, block) of a point in a home; None when other axes run within its blocks."""
    if home.partition_dim < 0 and not home.axis:
        return 0, ZERO
    along = _rows(home, index)
    if point.partition and along.coefficient(point.partition) != 1:
        return None
    if any(along.coefficient(axis) % home.block for axis in point.free):
        return None
    start = along.substitute(bases(point.env)) - home.low
    if any(coefficient % home.block for _, coefficient in start.terms):
        return None
    row = start.constant % home.block
    if row + point.partitions > home.block or not may_start_at(row, point.partitions):
        return None
    terms = tuple((v, c // home.block) for v, c in start.terms)
    return row, Affine(terms, start.constant // home.block)


def partition_scalar(pattern: Pattern) -> Pattern:
    """The [P, 1] pattern of a value that does not vary along the free dimensions."""
    dims = (pattern.dims[0], (1, 1))
    return Pattern(pattern.tile, pattern.dtype, dims, pattern.offset, pattern.partition)


def drop_replication(pattern: Pattern) -> Pattern:
    """The pattern with step-0 dimensions reduced to one: each element is accessed once."""
    free = ((step, count) if step else (1, 1) for step, count in pattern.dims[1:])
    return replace(pattern, dims=(pattern.dims[0], *free))


def fold_dims(patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """Drop unit dimensions and merge contiguous ones, where all patterns allow it."""
    kept: list[list[tuple[int, int]]] = [[] for _ in patterns]
    for position in range(1, len(patterns[0].dims)):
        column = [pattern.dims[position] for pattern in patterns]
        if column[0][1] == 1:
            continue
        if all(dims and dims[-1][0] == s * n for dims, (s, n) in zip(kept, column, strict=True)):
            for dims, (step, count) in zip(kept, column, strict=True):
                dims[-1] = (step, dims[-1][1] * count)
        else:
            for dims, dim in zip(kept, column, strict=True):
                dims.append(dim)
    return tuple(
        Pattern(p.tile, p.dtype, (p.dims[0], *(dims or [(1, 1)])), p.offset, p.partition)
        for p, dims in zip(patterns, kept, strict=True)
    )


def tile_pattern(tile: Tile, point: Point, axes: Sequence[str]) -> Pattern:
    """A row-major tile over `axes`, seen over the whole point (other axes are replicated)."""
    steps, stride = {}, 1
    for axis in reversed(axes):
        steps[axis], stride = stride, stride * point.env[axis].extent
    dims = [(1, point.partitions)]
    dims += [(steps.get(axis, 0), point.env[axis].extent) for axis in point.free]
    return Pattern(tile, tile.dtype, tuple(dims))
