"""Merge axes, and the buffer dimensions they run over, that no access tells apart.

An elementwise nest over [4, 128, 768] whose every access is `[i0, i1, i2]` becomes one over
[512, 768]: fewer and longer axes tile better. Dimensions d and d + 1 of a buffer merge when every
access to them is `[..., a, b, ...]` for two axes that merge in that nest; axes a and b merge
when every expression of the nest is linear in `a * extent(b) + b`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from glia.base.affine import Affine
from glia.base.options import CompileOptions
from glia.tile.build_nest import linearise
from glia.tile.ir import (
    Apply,
    Axis,
    Buffer,
    Expr,
    Index,
    Load,
    Nest,
    Program,
    Reduction,
    Store,
)
from glia.tile.rewrite import map_leaves, map_nests, substitute_axes

Joints = dict[str, set[int]]  # buffer -> dimensions d that merge with d + 1
PARTITIONS = 128
FEW_POINTS = 1 << 14  # a nest of this size may become one axis
SHORT_ROWS = 32  # inner extents below this fill the partitions badly on their own
FEW_COLUMNS = 32

Pairs = dict[str, str]  # outer axis -> the inner axis it merges with


def collapse_axes(program: Program, options: CompileOptions | None = None) -> Program:
    """The program with as few axes and dimensions as its accesses allow.

    Inputs and outputs keep their declared shape in `Buffer.declared`. Programs that have schedules
    or layouts are not changed, for those name axes and dimensions. No option changes the result.
    """
    if program.schedules or program.layouts:
        return program
    joints, pairs = _greatest_merge(program)
    merged = map_nests(program, lambda nest: _merged_dimensions(nest, program.buffers, joints))
    merged = map_nests(merged, lambda nest: _merged_axes(nest, pairs[nest.name]))
    buffers = {name: _merged_buffer(b, joints[name]) for name, b in program.buffers.items()}
    constants = {
        name: np.asarray(value).reshape(buffers[name].shape)
        for name, value in program.constants.items()
    }
    return replace(merged, buffers=buffers, constants=constants)


def _greatest_merge(program: Program) -> tuple[Joints, dict[str, Pairs]]:
    """Start from every joint and drop those that some access does not allow, until none is."""
    buffers = program.buffers
    nests = [_Facts(nest, buffers) for nest in program.nests()]
    readers: dict[str, set[int]] = {}
    for number, facts in enumerate(nests):
        for access in facts.accesses:
            readers.setdefault(access.buffer, set()).add(number)
    joints = {name: set(range(len(buffer.shape) - 1)) if name in readers else set()
              for name, buffer in buffers.items()}  # fmt: skip
    pairs: dict[str, Pairs] = {}
    waiting = set(range(len(nests)))
    while waiting:
        while waiting:
            facts = nests[waiting.pop()]
            pairs[facts.nest.name] = facts.pairs(joints)
            for buffer, dimension in facts.unclean(joints, pairs[facts.nest.name]):
                joints[buffer].discard(dimension)
                waiting |= readers[buffer]
        swept = {joint for facts in nests for joint in facts.swept(joints, pairs)}
        for buffer, dimensions in joints.items():
            idle = {d for d in dimensions if (buffer, d) not in swept}
            dimensions -= idle
            waiting |= readers[buffer] if idle else set()
    return joints, pairs


def _merged_buffer(buffer: Buffer, joints: set[int]) -> Buffer:
    shape = tuple(_products(buffer.shape, joints))
    if shape == buffer.shape:
        return buffer
    return replace(buffer, shape=shape, declared=buffer.outer_shape)


def _groups(rank: int, joints: set[int]) -> list[list[int]]:
    """The runs of dimensions that become one."""
    groups: list[list[int]] = []
    for dimension in range(rank):
        if dimension and dimension - 1 in joints:
            groups[-1].append(dimension)
        else:
            groups.append([dimension])
    return groups


def _products(shape: Sequence[int], joints: set[int]) -> list[int]:
    return [int(np.prod([shape[d] for d in g])) for g in _groups(len(shape), joints)]


def _merged_index(index: Sequence[Affine], shape: Sequence[int], joints: set[int]) -> list[Affine]:
    return [
        linearise([index[d] for d in group], [shape[d] for d in group])
        for group in _groups(len(shape), joints)
    ]


def _accesses(nest: Nest) -> Iterator[Load | Store]:
    """Every access of a nest, those that give run-time offsets included."""
    yield nest.target
    for offset in nest.target.dynamic:
        yield offset.load
    for part in _leaves(nest):
        if isinstance(part, Load):
            yield part
            yield from (offset.load for offset in part.dynamic)


def _leaves(nest: Nest) -> Iterator[Expr]:
    """Every expression of a nest that is no application, each object once."""
    stack: list[Expr] = [nest.body, *([nest.finish] if nest.finish else [])]
    seen: set[int] = set()
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Apply):
            stack.extend(part.args)
        else:
            yield part


def _rows_from_columns(nest: Nest) -> tuple[str, str] | None:
    """The neighbours among the target's axes that stay apart in a large nest without reduction.

    Its instructions need rows for the partitions and columns to sweep: the last axis, or where
    it is short, all after the fewest leading axes that fill the partitions.
    """
    order = [part.terms[0][0] for part in nest.target.index if len(part.terms) == 1]
    points = math.prod(nest.extents.values())
    if nest.reduction or len(order) < 2 or points <= FEW_POINTS:
        return None
    rows = 1
    if nest.extents[order[-1]] >= FEW_COLUMNS:
        return order[-2], order[-1]
    for outer, inner in pairwise(order):
        rows *= nest.extents[outer]
        if rows >= PARTITIONS or inner == order[-1]:
            return outer, inner
    return None


class _Facts:
    """What decides about merging in one nest."""

    def __init__(self, nest: Nest, buffers: Mapping[str, Buffer]) -> None:
        self.nest = nest
        self.accesses = list(dict.fromkeys(_accesses(nest)))
        self.shapes = {access.buffer: buffers[access.buffer].shape for access in self.accesses}
        self.fixed: list[Affine] = []
        for part in _leaves(nest):
            if isinstance(part, Load):
                self.fixed += [guard.expression for guard in part.guards]
            elif isinstance(part, Index):
                self.fixed.append(part.expression)
        self.kept_apart = _rows_from_columns(nest)

    def pairs(self, joints: Joints) -> Pairs:
        """The axes that merge if the joints hold."""
        expressions = set(self.fixed)
        for access in self.accesses:
            shape = self.shapes[access.buffer]
            expressions.update(_merged_index(access.index, shape, joints[access.buffer]))
        terms = [dict(expression.terms) for expression in expressions if expression.terms]
        extents, found = self.nest.extents, dict[str, str]()
        reduced = set(self.nest.reduction.axes) if self.nest.reduction else set()
        for inner, step in extents.items():
            for outer in extents:
                same_kind = (outer in reduced) == (inner in reduced)
                if outer == inner or outer in found or not same_kind:
                    continue
                is_linear = all(e.get(outer, 0) == step * e.get(inner, 0) for e in terms)
                if is_linear and (outer, inner) != self.kept_apart:
                    found[outer] = inner
                    break
        return found

    def unclean(self, joints: Joints, pairs: Pairs) -> Iterator[tuple[str, int]]:
        """The joints that an access of the nest does not allow."""
        for access in self.accesses:
            moved = {offset.dimension for offset in access.dynamic}
            for d in sorted(joints[access.buffer]):
                merges = self._sweeps(access, d, pairs) or self._stays_affine(access, d)
                if not merges or d in moved or d + 1 in moved:
                    yield access.buffer, d

    def swept(self, joints: Joints, pairs: Mapping[str, Pairs]) -> Iterator[tuple[str, int]]:
        """The joints that make an index of the nest simpler."""
        for access in self.accesses:
            for d in joints[access.buffer]:
                if self._sweeps(access, d, pairs[self.nest.name]):
                    yield access.buffer, d

    def _sweeps(self, access: Load | Store, d: int, pairs: Pairs) -> bool:
        """Whether dimensions d and d + 1 are indexed by two axes that merge, or one is trivial."""
        shape, extents = self.shapes[access.buffer], self.nest.extents
        outer, inner = access.index[d], access.index[d + 1]
        if (shape[d] == 1 and not outer.terms) or (shape[d + 1] == 1 and not inner.terms):
            return True
        if len(outer.terms) != 1 or len(inner.terms) != 1:
            return False
        (a, step), (b, unit) = outer.terms[0], inner.terms[0]
        whole = inner.constant == 0 and unit == 1 and extents[b] == shape[d + 1]
        return whole and step == 1 and pairs.get(a) == b

    def _stays_affine(self, access: Load | Store, d: int) -> bool:
        """Whether the joint may hold also where the two axes stay apart.

        The index `extent * outer + inner` is affine in any case. It is kept from indices that
        leave the buffer, from the last dimension, whose elements are neighbours, and from rows
        long enough to fill the partitions: such a buffer could not stay on chip.
        """
        shape = self.shapes[access.buffer]
        for position in (d, d + 1):
            low, high = access.index[position].bounds(self.nest.extents)
            if low < 0 or high >= shape[position]:
                return False
        return d + 2 < len(shape) and shape[d + 1] < SHORT_ROWS


def _merged_dimensions(nest: Nest, buffers: Mapping[str, Buffer], joints: Joints) -> Nest:
    def index_of(access: Load | Store) -> tuple[Affine, ...]:
        shape = buffers[access.buffer].shape
        return tuple(_merged_index(access.index, shape, joints[access.buffer]))

    def change(part: Expr) -> Expr:
        if not isinstance(part, Load):
            return part
        return replace(part, index=index_of(part), dynamic=offsets(part))

    def offsets(access: Load | Store) -> tuple:
        groups = _groups(len(buffers[access.buffer].shape), joints[access.buffer])
        place = {d: position for position, group in enumerate(groups) for d in group}
        return tuple(
            replace(offset, dimension=place[offset.dimension], load=change(offset.load))
            for offset in access.dynamic
        )

    target = replace(nest.target, index=index_of(nest.target), dynamic=offsets(nest.target))
    finish = nest.finish and map_leaves(nest.finish, change)
    return replace(nest, body=map_leaves(nest.body, change), finish=finish, target=target)


def _merged_axes(nest: Nest, pairs: Pairs) -> Nest:
    """Replace each chain of merging axes by one; the outermost gives the name and the place."""
    if not pairs:
        return nest
    extents = nest.extents
    values: dict[str, Affine | int] = {}
    axes = []
    inners = set(pairs.values())
    for axis in nest.axes:
        if axis.name in inners:
            continue
        extent, name = axis.extent, axis.name
        chain = [name]
        while name in pairs:
            name = pairs[name]
            chain.append(name)
            extent *= extents[name]
        values |= dict.fromkeys(chain[:-1], Affine())
        values[chain[-1]] = Affine.of(axis.name)
        axes.append(Axis(axis.name, extent))
    changed = substitute_axes(nest, values, {})
    reduction = nest.reduction
    if reduction:
        left = tuple(name for name in reduction.axes if name not in inners)
        reduction = Reduction(left, reduction.function, reduction.dtype)
    return replace(changed, axes=tuple(axes), reduction=reduction)
