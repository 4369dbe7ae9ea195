"""Scheduling of nests: the partition axis, tile extents and loop order of each."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from glia.arch import Arch
from glia.arch.instances import get_target
from glia.base.affine import ZERO, Affine
from glia.isa.rules import FREE_DIMS
from glia.options import CompileOptions
from glia.tile.blocking.few_rows import wide_tiles
from glia.tile.column_operands import column_axes
from glia.tile.contraction import (
    PARTITIONS,
    TRANSPOSABLE_BYTES,
    axes_of,
    can_transpose,
    column_tiles,
    columns_and_factors,
    contraction_operands,
    row_dim,
)
from glia.tile.ir import (
    Apply,
    Buffer,
    Expr,
    Literal,
    Load,
    Nest,
    Program,
    Schedule,
    ordered_axes,
)
from glia.tile.live_values import live_bytes
from glia.tile.model_families import FAMILIES, ModelFamily
from glia.tile.row_search import row_axes, search_tiles

LARGEST_SHARE = 0.3  # of SBUF, for one resident buffer
LEAST_TURNED = 16  # columns of what a transfer transposes
TURNING_SHARE = 0.5  # of a transfer's rate, while it transposes
TURNING_NS = 2000.0  # that a transposing transfer takes longer, beside its bytes
SHORT_RUN_BYTES = 64  # of DMA, which then takes as long for each run as for one element
WORKING_BYTES = 64 * 1024  # of SBUF per partition, for the temporaries of one nest
FINISHING_ENGINES = 2  # the Vector and the Scalar Engine, which read PSUM
TILES_TO_OVERLAP = 4  # enough for engines and DMA to work on different tiles


@dataclass(frozen=True)
class BufferAccess:
    """One read or write of a buffer by a nest."""

    buffer: str
    index: tuple[Affine, ...]
    may_turn: bool = False  # whether DMA can transpose it

    def is_turned(self, partition: str, extents: Mapping[str, int]) -> bool:
        """Whether it comes transposed: what lies side by side in HBM is on the partitions."""
        is_last = row_dim(self.index, partition) == len(self.index) - 1
        return self.may_turn and is_last and extents[partition] >= LEAST_TURNED


class NestScheduler:
    """Chooses schedules in program order.

    `rows` is, for each temporary, the dimension on the partitions should it be resident in SBUF.
    """

    def __init__(self, program: Program, arch: Arch, family: ModelFamily) -> None:
        self.arch = arch
        self.family = family
        self.buffers = program.buffers
        self.rows: dict[str, int] = {}
        self.readers: dict[str, list[Nest]] = {}
        self._in_rows: dict[tuple[str, str], Schedule | None] = {}  # by nest and axis
        for nest in program.nests():
            for load in nest.distinct_loads:
                self.readers.setdefault(load.buffer, []).append(nest)

    def schedule(self, nest: Nest) -> Schedule:
        """The schedule of one nest; earlier nests must have been scheduled."""
        operands = contraction_operands(nest)
        found = self._contraction(nest, operands) if operands else None
        found = found or self._vector(nest)
        self._record_rows(nest, found)
        return found

    def _record_rows(self, nest: Nest, schedule: Schedule) -> None:
        self._in_rows.clear()
        if self.buffers[nest.target.buffer].role == "temporary":
            self.rows[nest.target.buffer] = row_dim(nest.target.index, schedule.partition)

    # --- elementwise and reductions ---------------------------------------------------------------

    def _vector(self, nest: Nest) -> Schedule:
        candidates = partition_candidates(nest)
        partition = min(candidates, key=lambda axis: self._vector_cost(nest, axis))
        return vector_schedule(nest, partition, self.family)

    def _vector_cost(self, nest: Nest, partition: str) -> float:
        """Estimated time in units of one element per partition."""
        extents = nest.extents
        total = math.prod(extents.values())
        lanes = min(extents.get(partition, 1), PARTITIONS)
        cost = total / lanes * (1 + _operations(nest.body))
        tiles, _ = _vector_tiles(nest, partition, _indirect_axes(nest), self.family)
        for access in _accesses(nest):
            cost += self._access_cost(nest, access, partition, tiles)
        return cost + self._reader_costs(nest.target.buffer, nest.target.index, partition)

    def _access_cost(
        self, nest: Nest, access: BufferAccess, partition: str, spans: Mapping[str, int]
    ) -> float:
        """Vector cycles of a read or write: none in place, else those of its DMA, run by run.

        `spans` is the number of values of each axis that one transfer sweeps.
        """
        buffer = self.buffers[access.buffer]
        known = self.rows.get(access.buffer)
        if known is not None and known >= 0 and known == row_dim(access.index, partition):
            return 0.0
        used = {v for e in access.index for v in e.variables}
        touched = math.prod(nest.extents[a] for a in used if a in nest.extents)
        total = touched * buffer.dtype.bytes
        ns = self._transfer_ns(total, self._run_bytes(access, partition, buffer, spans))
        if partition and access.is_turned(partition, nest.extents):
            columns = min(PARTITIONS, nest.extents[partition])
            turned = self._transfer_ns(total, columns * buffer.dtype.bytes) / TURNING_SHARE
            ns = min(ns, turned + TURNING_NS)
        return ns * self.arch.clocks_ghz["vector"]

    def _transfer_ns(self, total: int, run: int) -> float:
        """Nanoseconds for so many bytes in runs of this length, by all DMA engines together."""
        ns_per_run = run / self.arch.dma_bytes_per_ns + self.arch.dma_descriptor_ns
        return total / run / self.arch.dma_engines * ns_per_run

    @staticmethod
    def _run_bytes(
        access: BufferAccess, partition: str, buffer: Buffer, spans: Mapping[str, int]
    ) -> int:
        """Length in bytes of the contiguous runs in HBM along the free axes."""
        run, stride = 1, 1
        for position, extent in zip(reversed(access.index), reversed(buffer.shape), strict=True):
            step = abs(position.coefficient(partition)) if partition else 0
            inner = [(v, c) for v, c in position.terms if v in spans and v != partition]
            swept = 1 + sum(abs(c) * (spans[v] - 1) for v, c in inner)
            run = max(run, stride * min(swept, step or swept))
            if step or swept < extent:
                break
            stride *= extent
        return run * buffer.dtype.bytes

    def _reader_costs(self, target: str, index: tuple[Affine, ...], partition: str) -> float:
        """The cost to all readers of the target of this choice of rows."""
        rows = row_dim(index, partition)
        return sum(
            self._reader_cost(reader, load, rows)
            for reader in self.readers.get(target, ())
            for load in reader.distinct_loads
            if load.buffer == target
        )

    def _is_resident(self, target: str, rows: int) -> bool:
        """Whether a buffer with these rows fits SBUF and all its readers can read it there."""
        buffer = self.buffers[target]
        readers = self.readers.get(target, ())
        if buffer.role != "temporary" or rows < 0 or not readers:
            return False
        blocks = -(-buffer.shape[rows] // PARTITIONS)
        bytes_per_partition = buffer.bytes // buffer.shape[rows] * blocks
        if bytes_per_partition > self.arch.sbuf_usable_bytes_per_partition * LARGEST_SHARE:
            return False
        return all(
            _can_read_resident(reader, load, rows)
            for reader in readers
            for load in reader.distinct_loads
            if load.buffer == target
        )

    def _reader_cost(self, reader: Nest, load: Load, rows: int) -> float:
        """The cost to a reader of moving a buffer with these rows into its own layout.

        What is read at run-time offsets is in HBM, in its own order, whatever writes it.
        """
        if load.dynamic:
            return 0.0
        transpose_cost = self.buffers[load.buffer].elements / PARTITIONS * 2
        if rows < 0:
            return 2 * transpose_cost
        operands = contraction_operands(reader)
        swept = reader.reduction.axes if reader.reduction else ()
        if operands is not None and load in operands:
            if any(row_dim(load.index, axis) == rows for axis in swept):
                return 0.0
            is_transposable = any(can_transpose(load, axis, rows) for axis in swept)
            return transpose_cost if is_transposable else 4 * transpose_cost
        return transpose_cost if set(load.index[rows].variables) & set(swept) else 0.0

    # --- contractions ---------------------------------------------------------------------------

    def contraction_in_rows(self, nest: Nest, rows: str) -> Schedule | None:
        """The schedule of a nest on the PE with this axis on the partitions of the result."""
        key = nest.name, rows
        if key not in self._in_rows:
            operands = contraction_operands(nest)
            found = self._contraction(nest, operands, (rows,)) if operands else None
            self._in_rows[key] = found
        return self._in_rows[key]

    def _contraction(
        self, nest: Nest, operands: tuple[Load, Load], allowed: Sequence[str] = ()
    ) -> Schedule | None:
        left, right = (axes_of(load) for load in operands)
        ways = ways_on_rows(nest, operands)
        if allowed:
            ways = [(contract, packed) for contract, packed in ways if not packed]
        if not ways:
            return None
        parallel = [a.name for a in nest.parallel_axes]
        choices = []
        for side, stationary_axes, other in (("left", left, right), ("right", right, left)):
            rows = [
                a
                for a in parallel
                if a in stationary_axes and a not in other and nest.extents[a] > 1
            ]
            columns = [a for a in parallel if a in other and a not in stationary_axes]
            found = [a for a in rows if a in allowed] if allowed else rows or [""]
            choices += [
                self._pe_choice(nest, operands, side, axis, columns, contract, packed)
                for axis in found
                for contract, packed in ways
            ]
        if not choices:
            return None
        (cost, _), chosen = min(choices, key=lambda choice: choice[0])
        return None if self._is_faster_as_sums(nest, operands, cost) else chosen

    def _is_faster_as_sums(self, nest: Nest, operands: tuple[Load, Load], cost: float) -> bool:
        """Whether products of one row or one column take the PE longer than the Vector Engine."""
        left, right = (axes_of(load) for load in operands)
        columns = [math.prod(nest.extents[a] for a in one) for one in (left - right, right - left)]
        if min(columns) > 1:
            return False
        return min(self._vector_cost(nest, axis) for axis in partition_candidates(nest)) < cost

    def _pe_choice(
        self,
        nest: Nest,
        operands: tuple[Load, Load],
        side: str,
        rows: str,
        columns: Sequence[str],
        contract: str,
        packed: Mapping[str, int],
    ) -> tuple[tuple[float, float], Schedule]:
        """(cost, schedule) of one mapping of a contraction to the PE."""
        extents = nest.extents
        tiles = {axis.name: 1 for axis in nest.axes} | dict(packed)
        tiles[contract] = min(PARTITIONS, extents[contract])
        if rows:
            tiles[rows] = min(PARTITIONS, extents[rows])
        capacity, dims = self.arch.moving_columns, 0
        for axis in _innermost_first(columns, nest.target.index):
            if dims == FREE_DIMS - 1 and extents[axis] > 1:
                break
            tiles[axis] = -(-extents[axis] // -(-extents[axis] // max(1, capacity)))
            capacity //= tiles[axis]
            dims += extents[axis] > 1
        width = math.prod(tiles[a] for a in columns)
        count = math.prod(-(-extents[a] // tiles[a]) for a in extents)
        stationary = operands[0] if side == "left" else operands[1]
        moving = operands[1] if side == "left" else operands[0]
        if not packed:
            tiles = wide_tiles(nest, tiles, rows, contract, (stationary, moving), self.arch)
        order = self._pe_order(nest, tiles, rows, columns, stationary, moving)
        arch = self.arch
        # the next weights are loaded behind a multiplication, however few columns that has
        columns_at_least = max(width, arch.min_issue_cycles["tensor"], arch.load_stationary_cycles)
        passes = arch.tensor_passes.get(moving.dtype.name, 1.0)
        busy_ns = arch.cycles_to_ns("tensor", count * columns_at_least * passes)
        busy = busy_ns * arch.clocks_ghz["vector"]
        moves = sum(
            self._packing_cost(nest, load, contract, packed)
            if packed
            else self._operand_cost(nest, load, contract, tiles)
            for load in (stationary, moving)
        )
        if not self._is_resident(nest.target.buffer, row_dim(nest.target.index, rows)):
            result = BufferAccess(nest.target.buffer, nest.target.index)
            moves += self._access_cost(nest, result, rows, tiles)
        moves += sum(
            self._access_cost(nest, BufferAccess(load.buffer, load.index), rows, tiles)
            for load in nest.distinct_loads
            if load not in operands
        )
        later = self._reader_costs(nest.target.buffer, nest.target.index, rows)
        lanes = min(PARTITIONS, extents.get(rows, 1))
        results = math.prod(axis.extent for axis in nest.parallel_axes)
        # what computes converts as well
        operations = _operations(nest.finish, free=("convert",))
        finish = results / lanes * operations / FINISHING_ENGINES
        # products run while operands come, and are finished while others run; what they take
        # together decides where the longest is equal
        cost = max(busy, moves, finish) + later, busy + moves + finish
        blocks = self._blocks(nest, moving, contract, tiles, order)
        return cost, Schedule("tensor", rows, tiles, order, contract, side, tuple(packed), blocks)

    def _operand_cost(
        self, nest: Nest, load: Load, contract: str, tiles: Mapping[str, int]
    ) -> float:
        """Vector cycles to bring an operand in with `contract` on the partitions.

        That is what the DMA takes, or transposition on the PE where the runs would be too short.
        """
        access, buffer = BufferAccess(load.buffer, load.index), self.buffers[load.buffer]
        moved = self._access_cost(nest, access, contract, tiles)
        turned = buffer.elements / PARTITIONS
        if load.buffer not in self.rows and _has_batch_inside(nest, load):
            # before it is transposed it comes from HBM, one element of each product at a time
            others = [a for a in axes_of(load) if a != contract and nest.extents[a] > 1]
            runs = [self._run_bytes(access, axis, buffer, tiles) for axis in others]
            come = self._transfer_ns(buffer.bytes, max(runs, default=buffer.dtype.bytes))
            turned = max(turned, come * self.arch.clocks_ghz["vector"])
        return min(moved, turned)

    def _blocks(
        self,
        nest: Nest,
        moving: Load,
        contract: str,
        tiles: Mapping[str, int],
        order: Sequence[str],
    ) -> dict[str, int]:
        """Blocks of an axis for windows of which tiles share elements, if all are too large.

        The first axis is taken along which the moving operand has so many.
        """
        swept = set(nest.reduction.axes) if nest.reduction else set()
        for position, axis in enumerate(order):
            expression = next((e for e in moving.index if e.coefficient(axis)), ZERO)
            if tiles[axis] == nest.extents[axis] or not swept & set(expression.variables):
                continue
            spans = nest.extents | {a: tiles[a] for a in (*order[:position], contract)}
            spans |= {a: 1 for a in swept if tiles[a] > 1}
            rows = {n: self._swept_bytes(moving, contract, {**spans, axis: n}) for n in (1, 2)}
            each = max(1, rows[2] - rows[1])
            fitting = (self.family.hoist_bytes - rows[1]) // each + 1
            if fitting >= nest.extents[axis] or fitting < 2 * tiles[axis]:
                return {}
            count = -(-nest.extents[axis] // (fitting // tiles[axis] * tiles[axis]))
            return {axis: -(-nest.extents[axis] // (count * tiles[axis])) * tiles[axis]}
        return {}

    def _swept_bytes(self, load: Load, contract: str, spans: Mapping[str, int]) -> int:
        """Bytes per partition of what a load sweeps, the contracted axis over the partitions."""
        elements = 1
        for expression in load.index:
            reach = sum(abs(c) * (spans[v] - 1) for v, c in expression.terms if v != contract)
            elements *= reach + 1
        return elements * load.dtype.bytes

    def _packing_cost(
        self, nest: Nest, load: Load, contract: str, packed: Mapping[str, int]
    ) -> float:
        """Vector cycles to bring an operand in once for each value of the packed axes.

        A DMA engine serves neighbouring partitions, so that time goes by the bytes of one.
        """
        buffer, arch = self.buffers[load.buffer], self.arch
        copies, rows = math.prod(packed.values()), nest.extents[contract]
        if buffer.role == "constant":
            run = elements = buffer.elements / min(PARTITIONS, copies * rows)
        elif self.rows.get(load.buffer, -1) == row_dim(load.index, contract) >= 0:
            return buffer.elements / (rows if _is_alone(load, contract) else 1) * copies
        else:
            run, elements = self._packed_run(nest, load, contract, {contract: rows, **packed})
        run_bytes = run * buffer.dtype.bytes
        ns_per_run = run_bytes / arch.dma_bytes_per_ns + arch.dma_descriptor_ns
        together = PARTITIONS // arch.dma_engines
        moved_ns = elements / run * together * ns_per_run
        boxes = elements * buffer.dtype.bytes / self.family.hoist_bytes
        issued_ns = max(1.0, boxes) * copies * arch.dma_issue_ns
        return (moved_ns + issued_ns) * arch.clocks_ghz["vector"]

    def _packed_run(
        self, nest: Nest, load: Load, contract: str, on_rows: Mapping[str, int]
    ) -> tuple[float, float]:
        """(neighbours in HBM, elements) of an operand that each partition has, with these rows."""
        buffer, run = self.buffers[load.buffer], 1
        elements = buffer.elements / math.prod(
            extent for axis, extent in on_rows.items() if _is_alone(load, axis)
        )
        dims = zip(reversed(load.index), reversed(buffer.shape), strict=True)
        for position, (expression, extent) in enumerate(each for each in dims if each[1] > 1):
            swept = [a for a in expression.variables if on_rows.get(a, 1) < nest.extents[a]]
            step = abs(expression.coefficient(swept[0])) if len(swept) == 1 else 1
            if run > 1:
                elements /= step
            is_swept = not on_rows.keys() >= set(expression.variables)
            if not position and is_swept and contract not in expression.variables:
                run = extent
        return run, elements

    def _pe_order(
        self,
        nest: Nest,
        tiles: Mapping[str, int],
        rows: str,
        columns: Sequence[str],
        stationary: Load,
        moving: Load,
    ) -> tuple[str, ...]:
        """Loop order: batch, then the larger operand outermost so that it is read once, then k."""
        parallel = [a.name for a in nest.parallel_axes]
        stationary_axes = [a for a in parallel if a in axes_of(stationary) and a not in columns]
        batch = [a for a in stationary_axes if a in axes_of(moving)]
        stationary_axes = [a for a in stationary_axes if a not in batch]
        rest = [
            a for a in parallel if a not in stationary_axes and a not in batch and a not in columns
        ]
        is_heavy = self.buffers[stationary.buffer].bytes > self.buffers[moving.buffer].bytes
        sides = [*stationary_axes, *columns] if is_heavy else [*columns, *stationary_axes]
        swept = [a.name for a in nest.reduced_axes]
        return (*batch, *rest, *sides, *swept)


def _has_batch_inside(nest: Nest, load: Load) -> bool:
    """Whether neighbours of an operand belong to different products."""
    operands, parallel = contraction_operands(nest) or (), {a.name for a in nest.parallel_axes}
    shared = frozenset.intersection(frozenset(parallel), *map(axes_of, operands))
    innermost = next((e for e in reversed(load.index) if _extent_of(e, nest) > 1), ZERO)
    return bool(shared & set(innermost.variables))


def _extent_of(expression: Affine, nest: Nest) -> int:
    return math.prod(nest.extents[axis] for axis in expression.variables)


def ways_on_rows(nest: Nest, operands: tuple[Load, Load]) -> list[tuple[str, dict[str, int]]]:
    """(contracted axis, packed axes) of the ways to lay reduced axes on the PE's rows."""
    shared = axes_of(operands[0]) & axes_of(operands[1])
    swept = [
        a.name
        for a in nest.reduced_axes
        if a.extent > 1 and all(_is_contractible(load, a.name, shared) for load in operands)
    ]
    if not swept:
        return []
    longest = max(swept, key=lambda a: nest.extents[a])
    ways = [(longest, packed) for packed in packings(nest, longest)]
    for axis in nest.reduced_axes:
        if axis.name not in swept and all(_is_window(load, axis.name) for load in operands):
            found = packings(nest, axis.name)
            ways += [(axis.name, p) for p in found if p.get(longest) == nest.extents[longest]]
    return ways


def packings(nest: Nest, contract: str) -> list[dict[str, int]]:
    """The ways to lay reduced axes beside `contract` on the partitions: axis to extent of its tile.

    Any of them are there whole, and one, the first, in part. None is among the ways.
    """
    extents = nest.extents
    others = [a.name for a in nest.reduced_axes if a.name != contract and a.extent > 1]
    room = PARTITIONS // extents[contract]
    found: list[dict[str, int]] = []
    for count in range(len(others) + 1):
        for whole in combinations(others, count):
            left = room // math.prod(extents[a] for a in whole)
            if not left:
                continue
            found.append({a: extents[a] for a in whole})
            for axis in others:
                tile = -(-extents[axis] // -(-extents[axis] // left))
                if axis not in whole and 1 < tile < extents[axis]:
                    found.append({axis: tile, **{a: extents[a] for a in whole}})
    return found or [{}]


def partition_candidates(nest: Nest) -> list[str]:
    """The axes that a vector schedule may have on the partitions, in order; "" where none may."""
    candidates = [axis.name for axis in row_axes(nest) if axis.extent > 1] or [""]
    varying = _indirect_axes(nest)
    return [a for a in candidates if a in varying] or [""] if varying else candidates


def vector_schedule(
    nest: Nest, partition: str, family: ModelFamily = FAMILIES["generic"]
) -> Schedule:
    """The schedule without the PE that has this axis on the partitions."""
    varying = _indirect_axes(nest)
    tiles, order = _vector_tiles(nest, partition, varying, family)
    tiles = tiles_of_one_kind(nest, partition) or tiles
    if nest.target.combine not in ("", "add") or _adds_integers(nest):
        tiles |= dict.fromkeys(varying, 1)
    return Schedule("vector", partition, tiles, order)


def tiles_of_one_kind(nest: Nest, partition: str) -> dict[str, int] | None:
    """The tiles of a nest that is computed in a way of its own; None for others."""
    summed = columns_and_factors(nest, partition)
    if summed is not None:
        return dict(column_tiles(nest, partition, *summed))
    return search_tiles(nest, partition)


def _adds_integers(nest: Nest) -> bool:
    """Whether it is an integer scatter-add: DMA adds in float32, so GpSimd adds row by row."""
    return bool(nest.target.combine) and not nest.dtype.is_float


def schedule_nests(program: Program, options: CompileOptions) -> Program:
    """Give every nest a schedule."""
    scheduler = NestScheduler(
        program, get_target(options.target).arch, FAMILIES[options.model_type]
    )
    schedules = {nest.name: scheduler.schedule(nest) for nest in program.nests()}
    return replace(program, schedules=schedules)


def _can_read_resident(reader: Nest, load: Load, rows: int) -> bool:
    """Whether a nest can read a resident buffer with these rows, in place or transposed."""
    if load.dynamic:
        return False
    swept = reader.reduction.axes if reader.reduction else ()
    operands = contraction_operands(reader)
    if operands is not None and load in operands:
        return any(row_dim(load.index, a) == rows or can_transpose(load, a, rows) for a in swept)
    along = load.index[rows]
    is_plain = len(along.terms) == 1 and along.terms[0][1] == 1 and not along.constant
    return is_plain and not set(along.variables) & set(swept)


def _accesses(nest: Nest) -> Iterator[BufferAccess]:
    for load in nest.distinct_loads:
        is_plain = not load.guards and not load.dynamic
        may_turn = is_plain and load.dtype.bytes in TRANSPOSABLE_BYTES and bool(load.index)
        yield BufferAccess(load.buffer, load.index, may_turn)
    yield BufferAccess(nest.target.buffer, nest.target.index)


def _is_contractible(load: Load, axis: str, shared: frozenset[str]) -> bool:
    """Whether an operand can have this axis on the PE's rows.

    The axis has step 1 in one dimension, shared at most with axes that both operands loop over.
    """
    named = [e for e in load.index if e.coefficient(axis)]
    return (
        len(named) == 1
        and named[0].coefficient(axis) == 1
        and set(named[0].variables) - {axis} <= shared
    )


def _is_alone(load: Load, axis: str) -> bool:
    """Whether an axis is the only index of a dimension."""
    return any(e.variables == (axis,) for e in load.index)


def _is_window(load: Load, axis: str) -> bool:
    """Whether an operand has this axis with step 1 in one dimension, beside others or alone."""
    named = [e for e in load.index if e.coefficient(axis)]
    return len(named) == 1 and named[0].coefficient(axis) == 1


def _indirect_axes(nest: Nest) -> set[str]:
    """The axes along which the nest's indirect offsets vary."""
    offsets = [o for load in nest.distinct_loads for o in load.dynamic] + list(nest.target.dynamic)
    return {v for o in offsets for e in o.load.index for v in e.variables}


def _vector_tiles(
    nest: Nest, partition: str, varying: set[str], family: ModelFamily
) -> tuple[dict[str, int], tuple[str, ...]]:
    """(tile extents within the working set, innermost axes first; loop order)."""
    extents = nest.extents
    values = (
        2
        + len(nest.distinct_loads)
        + max(_sethi_ullman_number(nest.body), _sethi_ullman_number(nest.finish))
    )
    capacity = max(128, WORKING_BYTES // (4 * values))
    capacity = min(
        capacity, max(family.smallest_tile, _swept_elements(nest, partition) // TILES_TO_OVERLAP)
    )
    tiles = {axis.name: 1 for axis in nest.axes}
    if partition:
        tiles[partition] = min(PARTITIONS, extents[partition])
    swept = [a.name for a in nest.reduced_axes]
    parallel = [a.name for a in nest.parallel_axes if a.name != partition]
    carried = ordered_axes(nest)
    along = [a for a in parallel if a in carried]
    parallel = [a for a in parallel if a not in carried]
    short, columns = _short_runs(nest), column_axes(nest, partition)
    inner = [*reversed(swept), *along, *_innermost_first(parallel, nest.target.index)]
    inner.sort(key=lambda axis: axis not in short)
    dims = 0
    for axis in inner:
        if extents[axis] == 1 or axis in varying or axis in columns:
            continue
        if dims == FREE_DIMS or capacity == 1:
            break
        tiles[axis] = max(1, min(extents[axis], capacity))
        capacity = max(1, capacity // tiles[axis])
        dims += 1
    first = [partition] if partition else []
    return tiles, (*first, *parallel, *swept, *along)


def _short_runs(nest: Nest) -> set[str]:
    """Axes that alone run over a short innermost dimension of what is read: whole or slow."""
    last = [(load.index[-1], load.dtype.bytes) for load in nest.distinct_loads if load.index]
    return {
        axis.name
        for axis in nest.axes
        for expression, width in last
        if expression == Affine.of(axis.name) and axis.extent * width < SHORT_RUN_BYTES
    }


def _swept_elements(nest: Nest, partition: str) -> int:
    """Elements per partition that one block of rows sweeps."""
    return math.prod(axis.extent for axis in nest.axes if axis.name != partition)


def _innermost_first(axes: Sequence[str], index: tuple[Affine, ...]) -> list[str]:
    """Axes sorted by their stride in the target, least first."""
    position = {v: d for d, e in enumerate(index) for v in e.variables}
    weight = {
        v: (position.get(v, -1), -abs(index[position[v]].coefficient(v)) if v in position else 0)
        for v in axes
    }
    return sorted(axes, key=lambda v: weight[v], reverse=True)


def _operations(expression: Expr | None, free: Collection[str] = ()) -> int:
    """The function applications in an expression but for free ones, shared ones counted once."""
    found: dict[int, Apply] = {}
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Apply) and id(part) not in found:
            found[id(part)] = part
            waiting += part.args
    return sum(part.function not in free for part in found.values())


def _sethi_ullman_number(expression: Expr | None) -> int:
    """The number of tiles live at once while an expression is computed (Sethi-Ullman number)."""
    known: dict[int, int] = {}

    def visit(part: Expr | None) -> int:
        if not isinstance(part, Apply):
            return 0 if part is None or isinstance(part, Literal) else 1
        if id(part) not in known:
            needs = sorted((visit(argument) for argument in part.args), reverse=True)
            known[id(part)] = 1 + max(need + live for live, need in enumerate(needs))
        return known[id(part)]

    return visit(expression)


def temporary_bytes(nest: Nest, rows: str) -> int:
    """Bytes for each swept element of tiles that are live at once, beside buffers; an estimate."""
    body, finish = live_bytes(nest.body, rows), live_bytes(nest.finish, rows)
    return max(body, finish, _dtype_bytes(nest.body) if nest.reduction else 0)


def _dtype_bytes(expression: Expr) -> int:
    """Bytes of what a reduction reads: nothing beside the buffer that it loads."""
    return 0 if isinstance(expression, Load) else expression.dtype.bytes
