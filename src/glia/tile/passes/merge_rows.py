"""Rows in several axes become one axis of more rows.

A softmax over [8, 4, 4096] has 8 or 4 values for the 128 partitions, and a DMA engine serves a few
partitions only. The rows of a product over [8, 197, 768] are two tiles for each of 8, the second
half empty, in a loop of two iterations in another one. Where all nests that access a buffer sweep
two neighbouring dimensions of it by two axes of their own, the two dimensions become one, and so do
the axes: [32, 4096], [1576, 768]. A product that has one of the axes in both of its operands, as a
batch, keeps its axes and reads rows from 197 * b on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from glia.base.affine import Affine
from glia.options import CompileOptions
from glia.tile.contraction import PARTITIONS, axes_of, contraction_operands
from glia.tile.ir import (
    Expr,
    Index,
    Load,
    Nest,
    Program,
    Store,
    control_buffers,
    ordered_axes,
)
from glia.tile.nest_rewriting import are_as_one, map_leaves, map_nests, merge_axes

T = TypeVar("T")
Pair = tuple[str, str]  # an axis, and the one inside of it
KEPT: Pair = ("", "")  # of a nest whose axes stay


@dataclass
class _Merge:
    """By buffer, the first of two dimensions to merge; by nest, the two axes."""

    dims: dict[str, int] = field(default_factory=dict)
    axes: dict[str, Pair] = field(default_factory=dict)


def merge_rows(program: Program, options: CompileOptions) -> Program:
    """Merge dimensions of buffers, and axes, of products and where rows are few otherwise."""
    facts = _NestFacts()
    searches: dict[bool, _Search] = {}
    for name in [nest.name for nest in program.nests() if _pairs(nest)]:
        nest = next(each for each in program.nests() if each.name == name)
        for pair in _pairs(nest):
            is_product = contraction_operands(nest) is not None
            if is_product not in searches:
                searches[is_product] = _Search(program, facts, temporaries_only=not is_product)
            merge = searches[is_product].merge(nest, pair)
            if merge is not None:
                program = _apply(program, merge)
                searches = {}
                break
    return program


def _pairs(nest: Nest) -> list[Pair]:
    """Neighbouring axes that leave partitions idle and are worth being one.

    Of a product these are rows that one of its operands has; of a map what it writes as one, as the
    rows and columns of an image's patches.
    """
    rows = [axis.name for axis in nest.parallel_axes if axis.extent > 1]
    pairs = list(itertools.pairwise(rows))
    if contraction_operands(nest) is not None:
        return [pair for pair in pairs if _is_large(nest) and _are_rows(nest, pair)]
    if nest.reduction is not None:
        return pairs if _has_few_rows(nest) else []
    extents = nest.extents
    return [
        (outer, inner)
        for outer, inner in pairs
        if max(extents[outer], extents[inner]) < PARTITIONS
        and any(
            part.coefficient(inner) and are_as_one(part, (outer, inner), extents)
            for part in nest.target.index
        )
    ]


def _are_rows(nest: Nest, axes: Iterable[str]) -> bool:
    """Whether one operand of a product alone has all of these axes, and none as a window's."""
    operands = contraction_operands(nest)
    assert operands is not None and nest.reduction is not None
    left, right = map(axes_of, operands)
    own, swept = {*axes}, {*nest.reduction.axes}
    parts = (part for load in operands for part in load.index if own & {*part.variables})
    is_windowed = any(swept & {*part.variables} for part in parts)
    return not is_windowed and (own <= left - right or own <= right - left)


def _is_large(nest: Nest) -> bool:
    """Whether a product fills the array in all directions, so that its blocks of rows count."""
    operands = contraction_operands(nest)
    assert operands is not None
    left, right = map(axes_of, operands)
    sides = left - right, right - left, left & right & {axis.name for axis in nest.reduced_axes}
    return all(math.prod(nest.extents[a] for a in side) >= PARTITIONS for side in sides)


def _has_few_rows(nest: Nest) -> bool:
    """Whether a reduction without the PE leaves partitions idle that its other axes could fill."""
    extents = [axis.extent for axis in nest.parallel_axes if axis.extent > 1]
    is_reduction = nest.reduction is not None and contraction_operands(nest) is None
    return is_reduction and len(extents) > 1 and max(extents) < PARTITIONS


class _NestFacts:
    """What is asked of nests again and again, of each once until it is another one.

    Merging dimensions of a buffer changes every nest that accesses it.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Nest, dict[Hashable, Any]]] = {}

    def once(self, nest: Nest, question: Hashable, answer: Callable[[], T]) -> T:
        """The answer to a question about a nest, computed the first time."""
        known, found = self._known.get(nest.name, (None, {}))
        if known is not nest:
            found = {}
            self._known[nest.name] = nest, found
        if question not in found:
            found[question] = answer()
        kept: T = found[question]
        return kept

    def joins_indices(self, nest: Nest, pair: Pair) -> bool:
        """Whether a nest computes with two of its parallel axes only as if they were one."""
        return self.once(nest, ("joins", pair), lambda: self._joins_indices(nest, pair))

    @staticmethod
    def _joins_indices(nest: Nest, pair: Pair) -> bool:
        swept = nest.reduction.axes if nest.reduction else ()
        values = [*_indices(nest.body), *_indices(nest.finish)]
        is_parallel = not {*pair} & {*swept, *ordered_axes(nest)}
        return is_parallel and all(are_as_one(each, pair, nest.extents) for each in values)


class _Search:
    """The search for all that has to be merged together with one pair of axes."""

    def __init__(self, program: Program, facts: _NestFacts, *, temporaries_only: bool) -> None:
        self.facts = facts
        self.temporaries_only = temporaries_only
        self.buffers = program.buffers
        self.users: dict[str, list[Nest]] = {}
        fixed = control_buffers(program.body, with_exchanges=False)  # those move flat memory
        for nest in program.nests():
            fixed |= {o.load.buffer for each in nest.accesses for o in each.dynamic}
            for name in {access.buffer for access in nest.accesses}:
                self.users.setdefault(name, []).append(nest)
        fixed |= {name for pair in program.aliases for name in pair}
        temporaries = {n for n, each in program.buffers.items() if each.role == "temporary"}
        self.mergeable = (temporaries if temporaries_only else program.buffers.keys()) - fixed

    def merge(self, nest: Nest, pair: Pair) -> _Merge | None:
        """What merges with these axes of a nest; None where some nest cannot follow."""
        found = _Merge()
        waiting = [(nest, pair)]
        while waiting:
            nest, pair = waiting.pop()
            if found.axes.setdefault(nest.name, pair) != pair or not self.facts.joins_indices(
                nest, pair
            ):
                return None
            for buffer, first in self._first_dims(nest, pair):
                if first < 0 or found.dims.get(buffer, first) != first:
                    return None
                if buffer in found.dims:
                    continue
                found.dims[buffer] = first
                for user in self.users[buffer]:
                    follows = self._follows(user, buffer, first)
                    if follows is None:
                        return None
                    if follows != KEPT and found.axes.get(user.name) != follows:
                        waiting.append((user, follows))
        return found

    def _first_dims(self, nest: Nest, pair: Pair) -> list[tuple[str, int]]:
        """The accesses that two axes sweep apart: the buffer, and `_first_dim`."""
        question = ("sweeps", self.temporaries_only, pair)
        apart = (each for each in nest.accesses if not self._is_joined(nest, each, pair))
        return self.facts.once(
            nest, question, lambda: [(a.buffer, self._first_dim(nest, a, pair)) for a in apart]
        )

    @staticmethod
    def _is_joined(nest: Nest, access: Load | Store, pair: Pair) -> bool:
        """Whether an access depends on two axes only as if they were one."""
        return all(are_as_one(part, pair, nest.extents) for part in access.index)

    def _first_dim(self, nest: Nest, access: Load | Store, pair: Pair) -> int:
        """The first of two dimensions of a buffer that two axes sweep whole; -1 if others."""
        outer, inner = pair
        first = next(d for d, e in enumerate(access.index) if {*pair} & {*e.variables})
        shape = self.buffers[access.buffer].shape[first : first + 2]
        is_whole = shape == (nest.extents[outer], nest.extents[inner])
        is_plain = access.index[first : first + 2] == (Affine.of(outer), Affine.of(inner))
        others = (*access.index[:first], *access.index[first + 2 :])
        is_alone = not any({*pair} & {*each.variables} for each in others)
        is_own = access.buffer in self.mergeable
        return first if is_whole and is_plain and is_alone and is_own else -1

    def _follows(self, nest: Nest, buffer: str, first: int) -> Pair | None:
        question = ("follows", self.temporaries_only, buffer, first)
        return self.facts.once(nest, question, lambda: self._pair_of(nest, buffer, first))

    def _pair_of(self, nest: Nest, buffer: str, first: int) -> Pair | None:
        """The axes with which a nest sweeps two dimensions of a buffer; None if it cannot follow.

        KEPT where it keeps its axes: those of a batch, what it sums over or reads a part of, and
        where a product or a map accesses something else along one of them only. Long rows that are
        reduced by blocks stay in blocks.
        """
        found: set[tuple[str, ...]] = set()
        for access in nest.accesses:
            if access.buffer != buffer:
                continue
            if access.dynamic or (isinstance(access, Load) and access.guards):
                return None
            found.add(tuple(n for e in access.index[first : first + 2] for n in e.variables))
        names = found.pop() if len(found) == 1 else ()
        swept = nest.reduction.axes if nest.reduction else ()
        is_product = contraction_operands(nest) is not None
        is_innermost = first + 2 == len(self.buffers[buffer].shape)
        if is_innermost and not is_product and len({*names} & {*swept}) == 1:
            return None
        if len(names) != 2 or {*names} & {*swept}:
            return KEPT
        pair = names[0], names[1]
        if is_product and not _are_rows(nest, pair):
            return KEPT
        may_keep = is_product or nest.reduction is None
        is_kept = may_keep and self.facts.joins_indices(nest, pair)
        return KEPT if is_kept and not self._joins_accesses(nest, pair) else pair

    def _joins_accesses(self, nest: Nest, pair: Pair) -> bool:
        """Whether all that a nest accesses is swept by two axes as one, or can be."""
        return all(
            self._is_joined(nest, each, pair) or self._first_dim(nest, each, pair) >= 0
            for each in nest.accesses
        )


def _indices(expression: Expr | None) -> list[Affine]:
    """The affine expressions that are values in an expression."""
    found: list[Affine] = []

    def enter(leaf: Expr) -> Expr:
        if isinstance(leaf, Index):
            found.append(leaf.expression)
        return leaf

    if expression is not None:
        map_leaves(expression, enter)
    return found


def _apply(program: Program, merge: _Merge) -> Program:
    """The program with the dimensions and axes merged."""
    shapes = {name: program.buffers[name].shape for name in merge.dims}

    def joined(access: Load | Store) -> tuple[Affine, ...]:
        first = merge.dims.get(access.buffer, -1)
        if first < 0:
            return access.index
        outer, inner = access.index[first : first + 2]
        whole = outer * shapes[access.buffer][first + 1] + inner
        return (*access.index[:first], whole, *access.index[first + 2 :])

    def leaf(each: Expr) -> Expr:
        return replace(each, index=joined(each)) if isinstance(each, Load) else each

    def change(nest: Nest) -> Nest:
        is_changed = any(access.buffer in merge.dims for access in nest.accesses)
        if not is_changed and nest.name not in merge.axes:
            return nest
        nest = replace(
            nest,
            body=map_leaves(nest.body, leaf),
            finish=nest.finish and map_leaves(nest.finish, leaf),
            target=replace(nest.target, index=joined(nest.target)),
        )
        return merge_axes(nest, merge.axes[nest.name]) if nest.name in merge.axes else nest

    buffers = dict(program.buffers)
    for name, first in merge.dims.items():
        shape = shapes[name]
        rows = math.prod(shape[first : first + 2])
        merged = (*shape[:first], rows, *shape[first + 2 :])
        buffers[name] = replace(buffers[name], shape=merged)
    return replace(map_nests(program, change), buffers=buffers)
