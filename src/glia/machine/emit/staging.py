"""Staging of a nest's loads in SBUF: the box of the buffer, its layout, and how it is moved.

A load is staged as a copy over *box axes*: for every buffer dimension the nest sweeps, a box axis
runs over the interval it touches. The same two pattern functions that serve instructions then give
both sides of the copy, so halos, strides, blocks and padding need no special case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from glia.arch.kit import Arch
from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, U8, DType, float_limits
from glia.isa.instructions.tensor import NcTranspose
from glia.isa.instructions.vector import Memset, TensorCopy, TensorScalar
from glia.isa.operand import Memory, Pattern, Tile, whole_tile
from glia.isa.rules import start_partition_holds
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.box import GAP_BYTES, Box, storage_dtype
from glia.machine.emit.clipping import (
    is_inside,
    join_values,
    overlap,
    parts_around,
    range_in_bounds,
    values_inside,
)
from glia.machine.emit.constant_order import pack
from glia.machine.emit.layout import (
    AxisRange,
    Home,
    Point,
    fold_dims,
    hbm_pattern,
    home_pattern,
)
from glia.machine.emit.refusal import Refusal
from glia.tile.contraction import PARTITIONS, TRANSPOSABLE_BYTES
from glia.tile.ir import Load

MOST_PARTS_AROUND = 4  # boxes in a tile of which only what is outside is filled
MERGED_BYTES = 1 << 18  # of one transfer that stands for several
MOST_PIECES = 64  # of one box, where that takes no larger transfers than a box can be
SHORT_RUN_BYTES = 64  # below this a DMA copies elements one by one, and one that transposes none
GOOD_TURNED_RUN_BYTES = 1024  # contiguous in HBM, of a transfer that transposes


@dataclass(frozen=True)
class Source:
    """Where a buffer can be read: its HBM tile and shape, its home in SBUF, its constant value.

    `queue` is the one on which it comes from HBM.
    """

    tile: Tile | None
    shape: tuple[int, ...]
    home: Home | None = None
    constant: np.ndarray | None = None
    queue: str = "load"


@dataclass(frozen=True)
class _Strip:
    """Blocks whose transposes lie side by side in `dst`, on the same partitions."""

    dst: Pattern
    blocks: Sequence[Pattern]


class Stager:
    """Copies boxes of buffers into SBUF tiles: the homes of loads."""

    def __init__(
        self, builder: BlockBuilder, arch: Arch, *, saturates_infinity: bool = False
    ) -> None:
        self.builder = builder
        self.arch = arch
        self.saturates_infinity = saturates_infinity
        self.joins_transposes = True  # where engines that empty PSUM have more to do than the PE
        self.queue = ""  # of all transfers, in place of their source's and of the transposing ones'

    def stage(self, load: Load, box: Box, source: Source, partitions: int) -> Home:
        """Copy a box into a new SBUF tile and return its home.

        `partitions` is how many partitions a value without a partition axis is replicated to.
        """
        if source.home is None and self._wants_transpose(load, box, source):
            box = box.with_innermost(f"box{self._row_axis(box)}")
        home = self.new_home(load, box, partitions)
        if source.constant is not None:
            packed = pack(self.builder, [(load, box)], source.constant)
            if packed is not None:
                self._copy_packed(home, packed)
                return home
        if self._is_clipped(load, box):
            self._fill(home, [(load, box)])
        self._move(load, box, source, home, partitions)
        return home

    def stage_packed(self, parts: Sequence[tuple[Load, Box]], source: Source) -> Home:
        """Copy boxes of one block of rows each to the partitions of a new tile, one after another.

        They are alike but for where they begin. The home returned is that of the first box, with
        the rows of all.
        """
        load, first = parts[0]
        elements, rows = first.elements, first.block * len(parts)
        stem, dtype = load.buffer, storage_dtype(load.dtype)
        tile = self.builder.tile(stem, Memory.SBUF, dtype, rows, elements)
        axis = first.partition if first.partition_dim < 0 else ""
        whole = Home(tile, first.dims, axis, first.partition_dim, first.low, rows, elements)
        if source.constant is not None:
            packed = pack(self.builder, parts, source.constant)
            if packed is not None:
                self._copy_packed(whole, packed)
                return whole
        if any(self._is_clipped(*part) for part in parts):
            self._fill(whole, parts)
        for number, (each, box) in enumerate(parts):
            low = box.low - number * first.block
            self._move(each, box, source, replace(whole, dims=box.dims, low=low), first.block)
        return whole

    def least_gap(self, load: Load, box: Box, source: Source) -> int | None:
        """The bytes from which on gaps are not loaded; None where only a whole interval can be."""
        if source.constant is not None:
            return 0
        if source.home is not None or self._wants_transpose(load, box, source):
            return None
        return GAP_BYTES

    def _move(self, load: Load, box: Box, source: Source, home: Home, partitions: int) -> None:
        """Bring what is inside the guards of a box into its home."""
        if source.home is not None and not self._is_aligned(source.home, box):
            self._transpose_resident(load, box, source.home, home)
        elif source.home is None and self._wants_transpose(load, box, source):
            self._load_transposed(load, box, source, home)
        else:
            self._copy(load, box, source, home, partitions)

    def new_home(self, load: Load, box: Box, partitions: int) -> Home:
        """A home for a box, in a new tile."""
        rows = box.block if box.partition else partitions
        elements = box.elements * box.blocks
        dtype = storage_dtype(load.dtype)
        tile = self.builder.tile(load.buffer, Memory.SBUF, dtype, rows, elements)
        axis = box.partition if box.partition_dim < 0 else ""
        return Home(
            tile, box.dims, axis, box.partition_dim, box.low, box.block, box.elements
        )  # fmt: skip

    def _copy_packed(self, home: Home, packed: Pattern) -> None:
        """Load a packed constant: one contiguous run for each partition."""
        dims = ((packed.dims[0][0], home.tile.partitions), packed.dims[1])
        self.builder.dma(whole_tile(home.tile), replace(packed, dims=dims), self.queue or "load")

    def _fill(self, home: Home, parts: Sequence[tuple[Load, Box]]) -> None:
        """Write what loads have outside of their guards, around all that is inside for each part.

        Everything is filled where what is inside is no box, as where rows are clipped.
        """
        whole, inside = whole_tile(home.tile), self._inside_of_all(parts)
        for filled in [whole] if inside is None else parts_around(whole, parts[0][1], inside):
            fill, loc = parts[0][0].fill, self.builder.loc
            self.builder.emit(Memset(dst=filled, value=fill, on="gpsimd", loc=loc))

    def _inside_of_all(self, parts: Sequence[tuple[Load, Box]]) -> dict[str, range] | None:
        """By box axis that a guard clips, the positions inside for all parts; None for no box."""
        inside: dict[str, range] = {}
        if len(parts) > MOST_PARTS_AROUND:
            return None
        for load, box in parts:
            found = self._inside_of_dims(load, box)
            if found is None or box.blocks > 1:
                return None
            for axis, values in found.items():
                inside[axis] = overlap(inside.get(axis, values), values)
        return inside

    def _inside_of_dims(self, load: Load, box: Box) -> dict[str, range] | None:
        """By box axis that a guard clips, the positions inside; None where rows are clipped."""
        found: dict[str, range] = {}
        dims = {box.axis_of(dim): dim for dim in box.dims}
        for position, extent in self._clipped_dims(load, box):
            expression = box.index[position]
            along = [a for a in expression.variables if a in dims and dims[a].extent > 1]
            if len(along) != 1:
                return None
            axis = along[0]
            if box.partition and expression.coefficient(box.partition):
                values = values_inside(box, axis, {position: extent})
            else:
                spans = {a: box.env[a] for a in dims}
                first = AxisRange(box.low, 1)
                span = range_in_bounds(expression, axis, spans | {box.partition: first}, extent)
                start = (span.base - box.env[axis].base).constant if span else 0
                values = range(start, start + span.extent) if span else range(0)
            found[axis] = overlap(found.get(axis, values), values)
        return found

    def _is_clipped(self, load: Load, box: Box) -> bool:
        return any(True for _ in self._clipped_dims(load, box))

    def _clipped_dims(self, load: Load, box: Box) -> Iterator[tuple[int, int]]:
        """(dimension, extent) of every guard that part of the box violates."""
        extents = {axis: span.extent for axis, span in box.env.items()}
        if box.partition:
            extents[box.partition] = box.rows
        lows = {axis: span.base for axis, span in box.env.items()} | {box.partition: box.low}
        for guard in load.guards:
            position = self._guarded_dim(load, guard.expression)
            local = box.index[position].substitute({a: lows[a] + a for a in extents})
            reached = self.builder.open_loops | extents
            if any(v not in reached for v in local.variables):
                raise Refusal(f"a guard on {load.buffer} depends on a register: {local}")
            low, high = local.bounds(reached)
            if low < 0 or high >= guard.extent:
                if any(v not in extents for v in local.variables):
                    raise Refusal(f"a guard on {load.buffer} clips in a loop: {local}")
                yield position, guard.extent

    @staticmethod
    def _guarded_dim(load: Load, expression: Affine) -> int:
        return load.index.index(expression)

    def _copy(self, load: Load, box: Box, source: Source, home: Home, partitions: int) -> None:
        """Copy block by block; clipped dimensions shrink to what is inside the buffer."""
        pairs: list[tuple[Pattern, Pattern]] = []
        clipped = dict(self._clipped_dims(load, box))
        crosses = bool(box.partition) and any(
            box.index[d].coefficient(box.partition) for d in clipped
        )
        for start, rows in self._row_blocks(box):
            for env in self._unroll_shared_axes(box, clipped) if crosses else (box.env,):
                point = self._clip_point(box, start, rows, env, clipped, partitions)
                if point is None:
                    continue
                if source.home is None:
                    pairs.append(self._transfer(box, source, home, point))
                else:
                    self._copy_on_chip(load, box, source.home, home, point)
        for dst, src in merge_transfers(pairs):
            self.builder.dma(dst, src, self.queue or source.queue)

    def _row_blocks(self, box: Box) -> Iterator[tuple[int, int]]:
        return _pieces(box.rows, box.block)

    @staticmethod
    def _unroll_shared_axes(box: Box, clipped: Mapping[int, int]) -> Iterator[dict[str, AxisRange]]:
        """Environments for the axes that are clipped together with the rows.

        A single axis has one for all its values at which no row is clipped; each other value has
        one of its own.
        """
        coupled = [
            d.axis for d in box.dims
            if d.axis and any(box.index[c].coefficient(d.axis) for c in clipped)
        ]  # fmt: skip
        choices = [[(v, 1) for v in range(box.env[a].extent)] for a in coupled]
        if len(coupled) == 1:
            choices = [join_values(choices[0], values_inside(box, coupled[0], clipped))]
        for values in product(*choices):
            fixed = {
                a: AxisRange(box.env[a].base + v, n)
                for a, (v, n) in zip(coupled, values, strict=True)
            }
            yield box.env | fixed

    def _clip_point(
        self,
        box: Box,
        start: int,
        rows: int,
        env: Mapping[str, AxisRange],
        clipped: Mapping[int, int],
        partitions: int,
    ) -> Point | None:
        """The part of a box that is inside the guards; None when it is empty."""
        spans = dict(env)
        partition = box.partition
        spans[partition or "_rows"] = AxisRange(box.low + start, rows if partition else partitions)
        for position, extent in clipped.items():
            expression = box.index[position]
            moving = [a for a in expression.variables if a in spans and spans[a].extent > 1]
            if len(moving) > 1 and is_inside(expression, spans, extent):
                continue
            if not moving:
                value = expression.substitute({a: s.base for a, s in spans.items()})
                if not 0 <= value.constant < extent:
                    return None
                continue
            if len(moving) != 1:
                raise Refusal(f"a guard is over several axes at once: {expression}")
            inside = range_in_bounds(expression, moving[0], spans, extent)
            if inside is None:
                return None
            spans[moving[0]] = inside
        return Point(spans, partition or "_rows", box.free)

    @staticmethod
    def _transfer(box: Box, source: Source, home: Home, point: Point) -> tuple[Pattern, Pattern]:
        """(destination, source) of the load of one point from HBM."""
        assert source.tile is not None
        dst = home_pattern_at_any_row(home, box.index, point)
        src = hbm_pattern(source.tile, box.index, source.shape, point)
        return dst, replace(src, dtype=dst.dtype)

    def _copy_on_chip(self, load: Load, box: Box, source: Home, home: Home, point: Point) -> None:
        dst = home_pattern_at_any_row(home, box.index, point)
        found = home_pattern(source, box.index, point)
        if found is None:
            raise Refusal(f"{load.buffer} in SBUF does not line up with it", load.buffer)
        pair = fold_dims((dst, found))
        if not all(start_partition_holds(each) for each in pair):
            self.builder.dma(pair[0], pair[1], "load")
            return
        self.builder.emit(TensorCopy(dst=pair[0], src=pair[1], on="gpsimd", loc=self.builder.loc))

    def _is_aligned(self, home: Home, box: Box) -> bool:
        if not box.partition:
            return False
        return home.partition_dim >= 0 and home.partition_dim == box.partition_dim

    # --- transposition --------------------------------------------------------------------------

    def _wants_transpose(self, load: Load, box: Box, source: Source) -> bool:
        """Whether the transfer shall transpose: one that copies would move short runs."""
        if not box.partition or box.partition_dim < 0 or load.guards or load.dynamic:
            return False
        if any(dim.axis for dim in box.dims):
            return False
        if box.rows < 16 or load.dtype.bytes not in TRANSPOSABLE_BYTES:
            return False
        row_axis = self._row_axis(box)
        if row_axis is None or box.env[f"box{row_axis}"].extent < 8:
            return False
        assert source.tile is not None
        point = Point(
            box.env | {box.partition: AxisRange(box.low, box.block)}, box.partition, box.free
        )
        pattern = hbm_pattern(source.tile, box.index, source.shape, point)
        pattern = fold_dims((pattern,))[0]
        is_row_major = pattern.dims[0][0] == 1
        inner = pattern.dims[-1]
        run = inner[1] * load.dtype.bytes if inner[0] == 1 else load.dtype.bytes
        return is_row_major and run < SHORT_RUN_BYTES

    @staticmethod
    def _row_axis(box: Box) -> int | None:
        """The buffer dimension whose rows a transfer that transposes reads: the largest.

        Of several the innermost, in whatever order the box has them.
        """
        plain = [d.dim for d in box.dims if not d.axis]
        return max(plain, key=lambda d: (box.env[f"box{d}"].extent, d), default=None)

    def _load_transposed(self, load: Load, box: Box, source: Source, home: Home) -> None:
        """Fill `home` from HBM by transfers that transpose, which keeps all engines free.

        Each takes some rows of HBM and enough blocks of columns that its runs there are long.
        """
        along = self._row_axis(box)
        assert along is not None and source.tile is not None
        axis = f"box{along}"
        others = [a for a in box.free if a != axis]
        columns = max(GOOD_TURNED_RUN_BYTES // load.dtype.bytes, box.block)
        rows = max(columns, MERGED_BYTES // (columns * load.dtype.bytes))
        pieces = -(-box.rows // columns) * -(-box.env[axis].extent // rows)
        pieces *= math.prod(box.env[a].extent for a in others)
        rows *= -(-pieces // MOST_PIECES)
        for values in product(*(range(box.env[a].extent) for a in others)):
            fixed = {
                a: AxisRange(box.env[a].base + v, 1) for a, v in zip(others, values, strict=True)
            }
            for start, count in _pieces(box.env[axis].extent, rows):
                fixed[axis] = AxisRange(box.env[axis].base + start, count)
                self._transfer_transposed(box, source, home, axis, fixed, columns)

    def _transfer_transposed(
        self,
        box: Box,
        source: Source,
        home: Home,
        axis: str,
        fixed: Mapping[str, AxisRange],
        columns: int,
    ) -> None:
        """Load some rows of a box transposed, `columns` at most in one transfer."""
        pairs: list[tuple[Pattern, Pattern]] = []
        for start, count in self._row_blocks(box):
            spans = {**fixed, box.partition: AxisRange(box.low + start, count)}
            assert source.tile is not None
            point = Point(spans, axis, (box.partition,))
            src = hbm_pattern(source.tile, box.index, source.shape, point)
            point = Point(spans, box.partition, (axis,))
            dst = home_pattern_at_any_row(home, box.index, point)
            pairs.append((dst, replace(src, dtype=dst.dtype)))
        for dst, src in merge_transfers(pairs, columns // box.block):
            self.builder.dma_transposed(dst, src, self.queue or "move")

    def _transpose_resident(self, load: Load, box: Box, source: Home, home: Home) -> None:
        """Fill `home` from a resident buffer that has another dimension on the partitions."""
        if f"box{source.partition_dim}" not in box.env:
            raise Refusal(f"{load.buffer} cannot be transposed into place", load.buffer)
        axis = f"box{source.partition_dim}"
        others = [a for a in box.free if a != axis]
        fixed = {a: box.env[a] for a in others}
        most = self._turned_columns(load.dtype)
        columns = min(box.env[axis].extent, most)
        rows = box.block * (most // columns)

        def block(start: Affine, count: int, column: Affine, extent: int) -> None:
            spans = {
                box.partition: AxisRange(box.low + start, count),
                axis: AxisRange(column, extent),
            }
            self._transpose_blocks(load, box, source, home, axis, {**fixed, **spans}, others)

        self._in_blocks(
            box.rows,
            rows,
            lambda start, count: self._in_blocks(
                box.env[axis].extent,
                columns,
                lambda column, extent: block(start, count, column, extent),
            ),
        )

    def _in_blocks(self, total: int, size: int, visit: Callable[[Affine, int], None]) -> None:
        """Visit (start, count) of every block: a loop over full blocks, then the remainder."""
        full, left = divmod(total, size)
        if full:
            with self.builder.loop(full) as index:
                visit(index * size, size)
        if left:
            visit(Affine((), full * size), left)

    def _transpose_blocks(
        self,
        load: Load,
        box: Box,
        source: Home,
        home: Home,
        axis: str,
        spans: dict[str, AxisRange],
        others: Sequence[str],
    ) -> None:
        if others:
            with self.builder.loop(spans[others[0]].extent) as index:
                inner = spans | {others[0]: AxisRange(spans[others[0]].base + index, 1)}
                self._transpose_blocks(load, box, source, home, axis, inner, others[1:])
            return
        strips = []
        for rows in _parts_of(spans[box.partition], box.block):
            at = {**spans, box.partition: rows}
            dst = home_pattern(home, box.index, Point(at, box.partition, (axis,)))
            blocks = [
                home_pattern(source, box.index, Point({**at, axis: part}, axis, (box.partition,)))
                for part in _parts_of(spans[axis], PARTITIONS)
            ]
            if dst is None or None in blocks:
                raise Refusal(f"a transposed block of {load.buffer} does not line up", load.buffer)
            strips.append(_Strip(dst, [each for each in blocks if each is not None]))
        self._emit_transposes(strips)

    def _turned_columns(self, dtype: DType) -> int:
        """The columns of transposed blocks that one copy takes from PSUM."""
        if not self.joins_transposes:
            return PARTITIONS
        width = max(dtype.bytes, BF16.bytes)
        return PARTITIONS * max(1, self.arch.psum_bank_bytes // (PARTITIONS * width))

    def _emit_transposes(self, strips: Sequence[_Strip]) -> None:
        """Transpose blocks, up to 128 x 128 elements each, with every bit kept.

        The PE does where it moves bits. Where it multiplies by an identity matrix, which makes a
        row of dst NaN for one infinity or NaN of data, and every small negative integer is the
        pattern of a NaN, DMA transposes what has two bytes, the Vector Engine blocks of 32 x 32 of
        what has four. Bytes go through the PE as numbers, which bfloat16 holds exactly.

        With `saturates_infinity` such a PE transposes floats, whose infinities become the greatest
        finite values before; a NaN still makes a row NaN.
        """
        dtype = strips[0].dst.dtype
        if dtype.bytes == 1:
            self._transpose_on_array(strips, self._bytes_as_numbers)
        elif self.arch.capabilities.has_bit_exact_transpose:
            self._transpose_on_array(strips, _as_float)
        elif self.saturates_infinity and dtype.is_float:
            self._transpose_on_array(strips, self._saturated)
        else:
            turn = self._transpose_by_quadrants
            if dtype.bytes == 2:
                turn = partial(self.builder.dma_transposed, queue=self.queue or "move")
            for strip in strips:
                at = 0
                for data in strip.blocks:
                    turn(_part(strip.dst, 0, strip.dst.partitions, at, data.partitions), data)
                    at += data.partitions

    def _saturated(self, data: Pattern) -> Pattern:
        """A copy of floats with the greatest finite values in place of infinities."""
        tile = self.builder.tile("finite", Memory.SBUF, data.dtype, data.partitions, data.free)
        copied, loc = whole_tile(tile), self.builder.loc
        greatest = float(float_limits(data.dtype.numpy).max)
        self.builder.emit(
            TensorScalar(
                dst=copied, data=data, operand0=-greatest, op0="maximum", operand1=greatest,
                op1="minimum", on="vector", loc=loc,
            )
        )  # fmt: skip
        return copied

    def _bytes_as_numbers(self, data: Pattern) -> Pattern:
        """A copy of bytes, taken as the numbers 0 to 255, in bfloat16."""
        wide = self.builder.tile("wide", Memory.SBUF, BF16, data.partitions, data.free)
        source = replace(data, dtype=U8)
        copied, loc = whole_tile(wide), self.builder.loc
        self.builder.emit(TensorCopy(dst=copied, src=source, on="gpsimd", loc=loc))
        return copied

    def _transpose_on_array(
        self, strips: Sequence[_Strip], prepare: Callable[[Pattern], Pattern]
    ) -> None:
        """Transpose blocks, after they are prepared, to PSUM; one copy takes strips alike."""
        loc, is_bytes = self.builder.loc, strips[0].dst.dtype.bytes == 1
        dtype = BF16 if is_bytes else _as_float(strips[0].dst).dtype
        rows = max(strip.dst.partitions for strip in strips)
        columns = sum(strip.dst.free for strip in strips)
        turned = whole_tile(self.builder.tile("turned", Memory.PSUM, dtype, rows, columns))
        at, pairs = 0, []
        for strip in strips:
            dst = replace(strip.dst, dtype=U8 if is_bytes else dtype)
            pairs.append((dst, _part(turned, 0, dst.partitions, at, dst.free)))
            for data in map(prepare, strip.blocks):
                part = _part(turned, 0, dst.partitions, at, data.partitions)
                self.builder.emit(NcTranspose(dst=part, data=data, loc=loc))
                at += data.partitions
        for pair in merge_transfers(pairs, len(pairs)):
            dst, src = fold_dims(pair)
            self.builder.emit(TensorCopy(dst=dst, src=src, on="vector", loc=loc))

    def _transpose_by_quadrants(self, dst: Pattern, data: Pattern) -> None:
        side = self.arch.quadrant_partitions
        for row in range(0, data.partitions, side):
            rows = min(side, data.partitions - row)
            for column in range(0, data.free, side):
                columns = min(side, data.free - column)
                part = _part(data, row, rows, column, columns)
                turned = _part(dst, column, columns, row, rows)
                loc = self.builder.loc
                self.builder.emit(NcTranspose(dst=turned, data=part, on="vector", loc=loc))


def _parts_of(span: AxisRange, size: int) -> Iterator[AxisRange]:
    """The ranges of at most `size` that a range is cut into."""
    for start, count in _pieces(span.extent, size):
        yield AxisRange(span.base + start, count)


def _part(pattern: Pattern, row: int, rows: int, column: int, columns: int) -> Pattern:
    """The block of a pattern [P, F], which has one free dimension, that begins at (row, column)."""
    (over, _), (step, _) = pattern.dims
    return replace(
        pattern,
        dims=((over, rows), (step, columns)),
        partition=pattern.partition + row * over,
        offset=pattern.offset + column * step,
    )


def _as_float(pattern: Pattern) -> Pattern:
    """The same bits under a float dtype, as the PE transposes floats only."""
    if pattern.dtype.is_float:
        return pattern
    return replace(pattern, dtype=F32 if pattern.dtype.bytes == 4 else BF16)


def merge_transfers(
    pairs: Sequence[tuple[Pattern, Pattern]], at_most: int = 0
) -> Iterator[tuple[Pattern, Pattern]]:
    """Transfers at equal distances, `at_most` if given, as one each with one more dimension.

    A transfer costs an issue and its latency, however short; one of more than MERGED_BYTES would
    keep waiting who needs its first bytes only.
    """
    at = 0
    while at < len(pairs):
        dst, src = pairs[at]
        most = at_most or max(1, MERGED_BYTES // (dst.elements * dst.dtype.bytes))
        count, steps = 1, _distance(pairs[at : at + 2])
        while steps and count < most and _distance(pairs[at + count - 1 : at + count + 1]) == steps:
            count += 1
        if steps and count > 1:
            dst, src = (
                replace(each, dims=(each.dims[0], (step, count), *each.dims[1:]))
                for each, step in zip((dst, src), steps, strict=True)
            )
        yield dst, src
        at += count


def _pieces(total: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, count) of every piece of at most `size`."""
    for start in range(0, total, size):
        yield start, min(size, total - start)


def _distance(pairs: Sequence[tuple[Pattern, Pattern]]) -> tuple[int, int] | None:
    """Elements from one transfer to the next, at both ends; None where they are not alike."""
    if len(pairs) < 2:
        return None
    found = []
    for one, other in zip(*pairs, strict=True):
        step = other.offset - one.offset
        if one != replace(other, offset=one.offset) or step.terms:
            return None
        found.append(step.constant)
    return found[0], found[1]


def home_pattern_at_any_row(home: Home, index: Sequence[Affine], point: Point) -> Pattern:
    """`home_pattern` for a DMA, which may start at any partition."""
    exact = home_pattern(home, index, point)
    if exact is not None:
        return exact
    along = Affine.of(home.axis) if home.axis else index[home.partition_dim]
    env = {axis: span.base for axis, span in point.env.items()}
    start = along.substitute(env) - home.low
    row = start.constant % home.block
    aligned = dict(point.env)
    aligned[point.partition] = AxisRange(point.env[point.partition].base - row, point.partitions)
    pattern = home_pattern(home, index, replace(point, env=aligned))
    if pattern is None or row + point.partitions > home.block:
        raise Refusal(f"rows of {home.tile.name} are in two blocks: {start}")
    return replace(pattern, partition=Affine((), row))
