"""Reductions with any computation, of any number of tensors, by reductions with one monoid.

A maximum or minimum with its position becomes two monoid reductions; anything else becomes a tree
of elementwise steps that halves the reduced dimension and keeps the order of elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glia.graph.ir import Graph, Node
from glia.graph.ops import Reduce
from glia.graph.ops.scalar_regions import identity, monoid
from glia.graph.rules.constructors import (
    apply,
    broadcast,
    broadcast_missing,
    concatenate,
    reduce,
    reshape,
    select,
    slice_along,
    splat_like,
    transpose,
)
from glia.graph.rules.driver import apply_rules, results_as_node, rule, rules_of
from glia.graph.rules.extremes import counts_up, extreme_with_position
from glia.graph.rules.facts import is_uniform
from glia.graph.rules.inline_regions import inline_scalar_graph, split_independent_body
from glia.options import CompileOptions


def expand_reduce(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with every Reduce over one tensor, by a monoid, from the monoid's identity."""
    return apply_rules(graph, RULES)


@rule
def init_after_reduction(op: Reduce) -> Node | None:
    """reduce(x, init) = body(init, reduce(x, identity)) for a monoid"""
    kind = monoid(op.body)
    if kind is None:
        return None
    neutral = identity(kind, op.xs[0].dtype)
    if is_uniform(op.inits[0], neutral):
        return None
    total = reduce(kind, op.xs[0], neutral, op.dimensions)
    return apply(kind, broadcast(op.inits[0], total.shape), total)


@rule
def split_independent_reductions(op: Reduce) -> Node | None:
    """reduce(xs) = one reduction each when no accumulator looks at another tensor"""
    bodies = split_independent_body(op.body)
    if bodies is None:
        return None
    return results_as_node(
        Reduce((x,), (init,), op.dimensions, body)
        for x, init, body in zip(op.xs, op.inits, bodies, strict=True)
    )


@rule
def extreme_and_position(op: Reduce) -> Node | None:
    """reduce((x, i), greater with first position) = max(x), min(i where x is the maximum)"""
    kind = extreme_with_position(op.body)
    if kind is None or len(op.dimensions) != 1 or not counts_up(op.xs[1], op.dimensions[0]):
        return None
    x, position = op.xs
    best = reduce(kind, x, identity(kind, x.dtype), op.dimensions)
    wide = broadcast_missing(best, x.shape, op.dimensions)
    hit = apply("equal", x, wide)
    if x.dtype.is_float:
        hit = apply("or", hit, apply("not_equal", x, x))
    last = identity("minimum", position.dtype)
    candidates = select(hit, position, splat_like(last, position))
    first = reduce("minimum", candidates, last, op.dimensions)
    if _has_neutral_inits(op, kind):
        return results_as_node((best, first))
    starts = [broadcast(init, best.shape) for init in op.inits]
    return results_as_node(inline_scalar_graph(op.body, (*starts, best, first)))


def _has_neutral_inits(op: Reduce, kind: str) -> bool:
    """Whether the initial values compare below, or equal, the first element at position 0."""
    neutral = is_uniform(op.inits[0], identity(kind, op.xs[0].dtype))
    return neutral and is_uniform(op.inits[1], 0) and op.xs[0].shape[op.dimensions[0]] > 0


@rule
def reduction_tree(op: Reduce) -> Node | None:
    """reduce(xs, body) = body of pairs, of pairs of pairs, ... and of the initial values"""
    if monoid(op.body) is not None:
        return None
    rank = len(op.xs[0].shape)
    kept = [d for d in range(rank) if d not in op.dimensions]
    shape = tuple(op.xs[0].shape[d] for d in kept)
    count = math.prod(op.xs[0].shape[d] for d in op.dimensions)
    rows = [reshape(transpose(x, (*kept, *op.dimensions)), (*shape, count)) for x in op.xs]
    starts = [broadcast(init, shape) for init in op.inits]
    if not count:
        return results_as_node(starts)
    totals = [reshape(x, shape) for x in fold_last(op.body, rows)]
    return results_as_node(inline_scalar_graph(op.body, (*starts, *totals)))


def fold_last(body: Graph, rows: Sequence[Node]) -> list[Node]:
    """Combine the elements of the last dimension in order; its extent becomes 1."""
    rows = list(rows)
    while (extent := rows[0].shape[-1]) > 1:
        even = extent - extent % 2
        left = [slice_along(x, -1, 0, even, 2) for x in rows]
        right = [slice_along(x, -1, 1, even, 2) for x in rows]
        pairs = list(inline_scalar_graph(body, (*left, *right)))
        if extent % 2:
            odd = [slice_along(x, -1, even, extent) for x in rows]
            pairs = [concatenate(both, -1) for both in zip(pairs, odd, strict=True)]
        rows = pairs
    return rows


RULES = rules_of(globals())
