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
    buffers, nests = program.buffers, list(program.nests())
    used = {access.buffer for nest in nests for access in _accesses(nest)}
    joints = {name: set(range(len(b.shape) - 1)) if name in used else set()
              for name, b in buffers.items()}  # fmt: skip
    while True:
        pairs = {nest.name: _pairs(nest, buffers, joints) for nest in nests}
        wrong = [x for n in nests for x in _unclean(n, buffers, joints, pairs[n.name])]
        if not wrong:
            return joints, pairs
        for buffer, dimension in wrong:
            joints[buffer].discard(dimension)


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


def _expressions(nest: Nest, buffers: Mapping[str, Buffer], joints: Joints) -> Iterator[Affine]:
    """Every affine expression of a nest once dimensions are merged."""
    for access in _accesses(nest):
        shape = buffers[access.buffer].shape
        yield from _merged_index(access.index, shape, joints[access.buffer])
    for part in _leaves(nest):
        if isinstance(part, Load):
            yield from (guard.expression for guard in part.guards)
        elif isinstance(part, Index):
            yield part.expression


def _pairs(nest: Nest, buffers: Mapping[str, Buffer], joints: Joints) -> Pairs:
    """The axes that merge if the joints hold."""
    extents = nest.extents
    terms = [dict(e.terms) for e in set(_expressions(nest, buffers, joints)) if e.terms]
    reduced = set(nest.reduction.axes) if nest.reduction else set()
    kept_apart = _rows_from_columns(nest)
    found: Pairs = {}
    for inner in extents:
        for outer in extents:
            same_kind = (outer in reduced) == (inner in reduced)
            if outer == inner or outer in found or not same_kind:
                continue
            step = extents[inner]
            if (outer, inner) == kept_apart:
                continue
            if all(e.get(outer, 0) == step * e.get(inner, 0) for e in terms):
                found[outer] = inner
                break
    return found


def _rows_from_columns(nest: Nest) -> tuple[str, str] | None:
    """The neighbours among the target's axes that stay apart in a large nest without reduction.

    Its instructions need rows for the partitions and columns to sweep: the fewest leading axes
    that fill the partitions are rows.
    """
    order = [part.terms[0][0] for part in nest.target.index if len(part.terms) == 1]
    points = math.prod(nest.extents.values())
    if nest.reduction or len(order) < 2 or points <= FEW_POINTS:
        return None
    rows = 1
    for outer, inner in pairwise(order):
        rows *= nest.extents[outer]
        if rows >= PARTITIONS or inner == order[-1]:
            return outer, inner
    return None


def _unclean(
    nest: Nest, buffers: Mapping[str, Buffer], joints: Joints, pairs: Pairs
) -> Iterator[tuple[str, int]]:
    """The joints that an access of the nest does not allow."""
    for access in _accesses(nest):
        shape = buffers[access.buffer].shape
        moved = {offset.dimension for offset in access.dynamic}
        for d in joints[access.buffer]:
            outer, inner = access.index[d], access.index[d + 1]
            is_flat = (shape[d] == 1 and not outer.terms) or (shape[d + 1] == 1 and not inner.terms)
            merges = is_flat or _sweeps(outer, inner, shape[d + 1], nest, pairs)
            if not merges or d in moved or d + 1 in moved:
                yield access.buffer, d


def _sweeps(outer: Affine, inner: Affine, extent: int, nest: Nest, pairs: Pairs) -> bool:
    """Whether the index pair is two merging axes, the inner one over all of its dimension."""
    if len(outer.terms) != 1 or len(inner.terms) != 1:
        return False
    (a, step), (b, unit) = outer.terms[0], inner.terms[0]
    whole = inner.constant == 0 and unit == 1 and nest.extents[b] == extent
    return whole and step == 1 and pairs.get(a) == b


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
