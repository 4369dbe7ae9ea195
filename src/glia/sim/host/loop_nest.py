"""Loop nests of traced expressions: which element of which operand each scalar value comes from.

A traced array is read at an index: for every axis the loop variables, outermost first, whose
mixed-radix number is the position on it. Changes of shape regroup variables, so that every load has
a step in bytes for each variable and nothing is copied on the way. Where an axis would need a part
of a variable, the variable is split and the nest built again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glia.sim.host.scalar_code import item_bytes
from glia.sim.host.traced import (
    ArrayTerm,
    CastTerm,
    ConstantTerm,
    HeldArray,
    LoadTerm,
    NotTraceable,
    ProductTerm,
    ReduceTerm,
    ReshapeTerm,
    RowIndex,
    ScanTerm,
    Shape,
    StateTerm,
    TransposeTerm,
    UfuncTerm,
    parts_of,
)

LONG_LOOP = 1 << 14  # iterations; threads share longer ones
TILE = 8  # lanes of a square that is transposed in registers
SCAN_NANOSECONDS = 2.5  # of an element of a scan, which waits for the one before
STEP_NANOSECONDS = 0.08  # of one element loaded, stored or computed with
Index = tuple[tuple[int, ...], ...]  # for each axis its loop variables, outermost first
Scalar = tuple[Any, ...]  # of what one iteration computes; hashable, equal where it is the same


@dataclass(frozen=True)
class Destination:
    """An operand to be written: its shape and steps in bytes, as the pattern says, and dtype."""

    operand: int
    shape: Shape
    steps: Shape
    dtype: np.dtype[Any]
    rows: RowIndex | None = None


@dataclass(frozen=True)
class Slot:
    """What is read or written along the loops: an operand's dtype, and steps for each variable.

    With `rows` it begins further by a value times so many bytes; no inner variable changes either.
    """

    operand: int | HeldArray
    dtype: str
    steps: Shape
    rows: tuple[Scalar, int] | None = None


@dataclass(frozen=True)
class NestReduction:
    """A sum over the inner variables, by a ufunc's name, of a value of this dtype."""

    function: str
    dtype: str
    value: Scalar


@dataclass(frozen=True)
class NestScan:
    """A state of this dtype that runs through all inner loops: what it begins with, its update."""

    dtype: str
    initial: Scalar
    update: Scalar


@dataclass(frozen=True)
class LoopNest:
    """Loops over `outer`; in each, over `inner`, stores and reductions; then `results`.

    `slots` have a step for every variable, outer ones first. `stores` and `results` are pairs of a
    slot's number and a value, which names slots and reductions by number. In a nest that
    `transposes` some slots step by their width in the last outer loop instead of the inner one.
    """

    outer: Shape
    inner: Shape
    slots: tuple[Slot, ...]
    stores: tuple[tuple[int, Scalar], ...]
    reductions: tuple[NestReduction, ...]
    results: tuple[tuple[int, Scalar], ...]
    transposes: bool = False
    scans: tuple[NestScan, ...] = ()

    @property
    def runs_in_order(self) -> bool:
        """Whether inner loops are what they are: one result is made of all their iterations."""
        return bool(self.reductions or self.scans)


class _Split(Exception):
    """A variable has to become two; the inner one of this extent."""

    def __init__(self, variable: int, extent: int) -> None:
        self.variable, self.extent = variable, extent


def build_nest(writes: Sequence[tuple[Destination, ArrayTerm]]) -> LoopNest:
    """One nest for everything that an instruction writes; NotTraceable where there is none."""
    folds = [reduction for _, node in writes for reduction in _reductions_of(node)]
    inner = [_folded_extents(fold) for fold in folds]
    if any(extents != inner[0] for extents in inner):
        raise NotTraceable("reductions over different extents")
    scans = [scan for _, node in writes for scan in scans_of(node)]
    if scans:
        return _scanning_nest(writes, scans, folds)
    columns = [store.shape for store, node in writes if any(_reductions_of(node))]
    outer = [n for n in (columns[0] if columns else writes[0][0].shape) if n > 1]
    reduced = [n for n in inner[0] if n > 1] or [1] if inner else []
    return _built(outer, reduced, writes)


def _scanning_nest(
    writes: Sequence[tuple[Destination, ArrayTerm]],
    scans: Sequence[ScanTerm],
    folds: Sequence[ReduceTerm],
) -> LoopNest:
    """A nest whose inner loops are those of scans."""
    rows, count = scans[0].shape
    if folds or count == 1 or any(scan.shape != (rows, count) for scan in scans):
        raise NotTraceable("a scan beside reductions or other scans")
    return _built([rows] if rows > 1 else [], [count], writes)


def _built(
    outer: list[int], reduced: list[int], writes: Sequence[tuple[Destination, ArrayTerm]]
) -> LoopNest:
    for _ in range(64):
        try:
            return _Builder(outer, reduced).build(writes)
        except _Split as split:
            extents, at = outer, split.variable
            if at >= len(outer):
                extents, at = reduced, at - len(outer)
            extents[at : at + 1] = [extents[at] // split.extent, split.extent]
    raise NotTraceable("shapes that do not divide each other")


def _reductions_of(node: ArrayTerm) -> list[ReduceTerm]:
    match node:
        case ReduceTerm(argument=argument):
            if _reductions_of(argument):
                raise NotTraceable("a reduction of reductions")
            return [node]
        case UfuncTerm(arguments=arguments):
            return [each for argument in arguments for each in _reductions_of(argument)]
        case (
            CastTerm(argument=argument)
            | ReshapeTerm(argument=argument)
            | TransposeTerm(argument=argument)
        ):
            return _reductions_of(argument)
        case ProductTerm():
            raise NotTraceable("a matrix product inside an expression")
    return []


def scans_of(node: ArrayTerm) -> list[ScanTerm]:
    """The scans in an expression."""
    if isinstance(node, ScanTerm):
        if scans_of(node.update):
            raise NotTraceable("a scan of scans")
        return [node]
    return [each for part in parts_of(node) for each in scans_of(part)]


def _folded_extents(fold: ReduceTerm) -> tuple[int, ...]:
    return tuple(fold.argument.shape[axis] for axis in fold.axes)


class _Builder:
    def __init__(self, outer: Sequence[int], inner: Sequence[int]) -> None:
        self.outer, self.inner = tuple(outer), tuple(inner)
        self.extents = (*self.outer, *self.inner)
        self.slots: dict[Slot, int] = {}
        self.reductions: dict[NestReduction, int] = {}
        self.scans: dict[NestScan, int] = {}
        self._states: dict[int, int] = {}  # by id() of a state: the number of its scan
        self._values: dict[tuple[int, Index], Scalar] = {}

    def build(self, writes: Sequence[tuple[Destination, ArrayTerm]]) -> LoopNest:
        stores: list[tuple[int, Scalar]] = []
        results: list[tuple[int, Scalar]] = []
        outer = tuple(range(len(self.outer)))
        every = tuple(range(len(self.extents)))
        for store, node in writes:
            is_result = bool(self.inner) and math.prod(store.shape) == math.prod(self.outer)
            index = self._grouped(outer if is_result else every, store.shape)
            variables = outer if is_result else every
            is_uniform = math.prod(node.shape) == 1
            at = ((),) * len(node.shape) if is_uniform else self._grouped(variables, node.shape)
            value = self._at(node, at)
            slot = self._slot(store, index)
            (results if is_result else stores).append((slot, value))
        found = tuple(self.reductions)
        return LoopNest(
            self.outer, self.inner, tuple(self.slots), tuple(stores), found, tuple(results),
            scans=tuple(self.scans),
        )  # fmt: skip

    def _grouped(self, variables: Sequence[int], shape: Shape) -> Index:
        """Variables, outermost first, as an index of an array with as many elements."""
        left = [v for v in variables if self.extents[v] != 1]
        index = []
        for extent in reversed(shape):
            group: list[int] = []
            while extent > 1:
                if not left:
                    raise NotTraceable("a result with more elements than what is written")
                have = self.extents[left[-1]]
                if extent % have:
                    if have % extent:
                        common = math.gcd(have, extent)
                        if common == 1:
                            raise NotTraceable("shapes that do not divide each other")
                        raise _Split(left[-1], common)
                    raise _Split(left[-1], extent)
                group.insert(0, left.pop())
                extent //= have
            index.append(tuple(group))
        if left:
            raise NotTraceable("a result with fewer elements than what is written")
        return tuple(reversed(index))

    def _at(self, node: ArrayTerm, index: Index) -> Scalar:
        key = (id(node), index)
        if key not in self._values:
            self._values[key] = self._value(node, index)
        return self._values[key]

    def _value(self, node: ArrayTerm, index: Index) -> Scalar:
        match node:
            case LoadTerm():
                return "load", self._slot(node, index)
            case ConstantTerm(value=value):
                return "constant", node.dtype.name, np.asarray(value, node.dtype).tobytes()
            case UfuncTerm(function=function, arguments=arguments):
                values = tuple(self._at(each, self._broadcast(each, index)) for each in arguments)
                return "apply", function, node.dtype.name, *values
            case CastTerm(argument=argument):
                return "cast", argument.dtype.name, node.dtype.name, self._at(argument, index)
            case ReshapeTerm(argument=argument):
                flat = [variable for group in index for variable in group]
                return self._at(argument, self._grouped(flat, argument.shape))
            case TransposeTerm(argument=argument, axes=axes):
                turned = dict(zip(axes, index, strict=True))
                return self._at(argument, tuple(turned[i] for i in range(len(axes))))
            case ReduceTerm():
                return "reduced", self._reduction(node, index)
            case StateTerm():
                return "state", self._states[id(node)]
            case ScanTerm():
                return "scan", self._scan(node, index)
        raise NotTraceable(type(node).__name__)

    def _broadcast(self, argument: ArrayTerm, index: Index) -> Index:
        """The index of an argument with fewer axes, or with extents of 1."""
        own = index[len(index) - len(argument.shape) :]
        return tuple(() if n == 1 else g for g, n in zip(own, argument.shape, strict=True))

    def _reduction(self, node: ReduceTerm, index: Index) -> int:
        inner = tuple(range(len(self.outer), len(self.extents)))
        if any(variable in inner for group in index for variable in group):
            raise NotTraceable("a reduction that is needed for every element")
        folded = iter(self._grouped(inner, _folded_extents(node)))
        kept = iter(index)
        axes = range(len(node.argument.shape))
        full = tuple(next(folded) if axis in node.axes else next(kept) for axis in axes)
        value = self._at(node.argument, full)
        reduction = NestReduction(node.function, node.dtype.name, value)
        return self.reductions.setdefault(reduction, len(self.reductions))

    def _scan(self, node: ScanTerm, index: Index) -> int:
        rows, columns = index
        inner = tuple(v for v in range(len(self.outer), len(self.extents)) if self.extents[v] > 1)
        if columns != inner:
            raise NotTraceable("a scan whose elements are not in order")
        number = self._states.setdefault(id(node.state), len(self.scans))
        first = rows if math.prod(node.initial.shape) > 1 else ()
        update = self._at(node.update, index)
        scan = NestScan(node.dtype.name, self._at(node.initial, (first, ())), update)
        return self.scans.setdefault(scan, number)

    def _slot(self, place: LoadTerm | Destination, index: Index) -> int:
        each = [0] * len(self.extents)
        for group, step in zip(index, place.steps, strict=True):
            for variable in reversed(group):
                each[variable] = step
                step *= self.extents[variable]
        rows = None
        if place.rows is not None:
            rows = self._at(place.rows.index, (index[0],)), place.rows.step
        slot = Slot(place.operand, place.dtype.name, tuple(each), rows)
        return self.slots.setdefault(slot, len(self.slots))


def simplified(nest: LoopNest, *, keeps_first: bool = False) -> LoopNest:
    """The nest without variables of one iteration, neighbours that step evenly made one.

    Without reductions the last loop is the inner one. With `keeps_first` the first outer loop stays
    what it is, and no loop is ordered to transpose; so it is where that loop chooses rows.
    """
    has_inner = nest.runs_in_order
    if any(slot.rows for slot in nest.slots):
        keeps_first = True
    split = len(nest.outer) if has_inner else len(nest.outer) + len(nest.inner)
    extents = (*nest.outer, *nest.inner)
    columns = [
        (extent, tuple(slot.steps[v] for slot in nest.slots)) for v, extent in enumerate(extents)
    ]
    first = columns[: int(keeps_first)]
    outer, inner = _merged(columns[len(first) : split]), _merged(columns[split:])
    transposes = False
    if not has_inner:
        if not keeps_first:
            outer, transposes = _ordered_to_transpose(nest, outer)
        outer, inner = outer[:-1], outer[-1:]
    outer = [*first, *outer]
    if not inner:
        inner = [(1, (0,) * len(nest.slots))]
    if not outer and not has_inner:
        outer, inner = _divided(inner[0])
    variables = [*outer, *inner]
    slots = tuple(
        replace(slot, steps=tuple(steps[number] for _, steps in variables))
        for number, slot in enumerate(nest.slots)
    )
    found = LoopNest(
        tuple(e for e, _ in outer), tuple(e for e, _ in inner), slots, nest.stores,
        nest.reductions, nest.results, transposes, nest.scans,
    )  # fmt: skip
    _require_outer_rows(found)
    return found


def _require_outer_rows(nest: LoopNest) -> None:
    """NotTraceable where an inner loop chooses rows."""
    for slot in nest.slots:
        for number in loaded_slots(slot.rows[0]) if slot.rows else ():
            if any(nest.slots[number].steps[len(nest.outer) :]):
                raise NotTraceable("rows that are chosen for every element")


def _ordered_to_transpose(
    nest: LoopNest, loops: list[tuple[int, Shape]]
) -> tuple[list[tuple[int, Shape]], bool]:
    """The loops with those last in which stores, and loads across them, step by their width.

    The other loops keep their order; all do, and the second result is False, where nothing is
    turned. A part of a call is whole tiles, so that a nest of two loops gets a third.
    """
    stored = {number for number, _ in nest.stores}
    inner = _near(nest, loops, stored)
    if inner is None:
        return loops, False
    _, steps = loops[inner]
    widths = [item_bytes(slot.dtype) for slot in nest.slots]
    turned = {n for n, step in enumerate(steps) if step not in (0, widths[n])}
    across = _near(nest, loops, turned) if turned else None
    if across is None or loops[across][0] < TILE or loops[inner][0] < TILE:
        return loops, False
    first = [loop for number, loop in enumerate(loops) if number not in (inner, across)]
    extent, steps = loops[across]
    if not first and extent % TILE == 0 and extent > TILE:
        first = [(extent // TILE, tuple(step * TILE for step in steps))]
        extent = TILE
    return [*first, (extent, steps), loops[inner]], True


def _near(nest: LoopNest, loops: list[tuple[int, Shape]], slots: set[int]) -> int | None:
    """The loop in which all of these slots step by their width."""
    widths = {number: item_bytes(nest.slots[number].dtype) for number in slots}
    for number, (_, steps) in enumerate(loops):
        if all(steps[slot] == width for slot, width in widths.items()):
            return number
    return None


def _divided(column: tuple[int, Shape]) -> tuple[list[tuple[int, Shape]], list[tuple[int, Shape]]]:
    """A long loop as two, so that threads can share it; any other as it is."""
    extent, steps = column
    for inner in range(LONG_LOOP // 4, LONG_LOOP // 8, -1) if extent >= LONG_LOOP else ():
        if extent % inner == 0:
            return [(extent // inner, tuple(s * inner for s in steps))], [(inner, steps)]
    return [], [column]


def is_parallel(nest: LoopNest) -> bool:
    """Whether no two iterations of the first outer loop write to one place."""
    if not nest.outer or any(nest.slots[n].rows for n, _ in (*nest.stores, *nest.results)):
        return False
    loops = list(
        zip((*nest.outer, *nest.inner), range(len(nest.outer) + len(nest.inner)), strict=True)
    )
    for number, _ in (*nest.stores, *nest.results):
        slot = nest.slots[number]
        span = sum(abs(slot.steps[v]) * (extent - 1) for extent, v in loops[1:])
        if abs(slot.steps[0]) < span + np.dtype(slot.dtype).itemsize:
            return False
    return True


def nest_nanoseconds(nest: LoopNest) -> float:
    """About how long a nest takes in one thread: by its loads, stores and functions."""
    work = len(nest.slots)

    def count(value: Scalar) -> None:
        nonlocal work
        work += value[0] == "apply"

    for _, value in nest.stores:
        walk_scalar(value, count)
    for reduction in nest.reductions:
        walk_scalar(reduction.value, count)
    of_each = STEP_NANOSECONDS * work + SCAN_NANOSECONDS * len(nest.scans)
    return of_each * math.prod((*nest.outer, *nest.inner))


def _merged(columns: Sequence[tuple[int, Shape]]) -> list[tuple[int, Shape]]:
    joined: list[tuple[int, Shape]] = []
    for extent, steps in columns:
        if extent == 1:
            continue
        if joined and joined[-1][1] == tuple(step * extent for step in steps):
            joined[-1] = joined[-1][0] * extent, steps
        else:
            joined.append((extent, steps))
    return joined


def walk_scalar(value: Scalar, visit: Callable[[Scalar], None]) -> None:
    """Call `visit` for every value inside one, arguments first."""
    for part in value:
        if isinstance(part, tuple):
            walk_scalar(part, visit)
    visit(value)


def loaded_slots(value: Scalar) -> set[int]:
    """The numbers of the slots that a value loads."""
    if value[0] == "load":
        return {value[1]}
    return set().union(*(loaded_slots(part) for part in value if isinstance(part, tuple)), set())
