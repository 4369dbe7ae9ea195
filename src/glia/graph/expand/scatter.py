"""Scatters of several tensors or with any computation, as scatters that overwrite or add up."""

from __future__ import annotations

import dataclasses
import math

from glia.base.dtype import S32
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import Gather, Scatter
from glia.graph.ops.scalar_regions import combiner, monoid, returned_parameter
from glia.graph.rules.constructors import (
    all_true,
    apply,
    broadcast,
    concatenate,
    constant,
    convert,
    counted_loop,
    dynamic_slice,
    dynamic_update_slice,
    iota,
    region,
    reshape,
    select,
    splat,
    take,
    transpose,
)
from glia.graph.rules.driver import apply_rules, results_as_node, rule, rules_of
from glia.graph.rules.inline_regions import inline_scalar_graph, split_independent_body
from glia.options import CompileOptions


def expand_scatter(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with every Scatter of one tensor, with a body that overwrites or is a monoid."""
    return apply_rules(graph, RULES)


@rule
def split_independent_scatters(op: Scatter) -> Node | None:
    """scatter(xs, updates) = one scatter each when no tensor's update looks at another"""
    bodies = split_independent_body(op.body)
    if bodies is None:
        return None
    return results_as_node(
        dataclasses.replace(op, xs=(x,), updates=(update,), body=body)
        for x, update, body in zip(op.xs, op.updates, bodies, strict=True)
    )


@rule
def combine_then_overwrite(op: Scatter) -> Node | None:
    """scatter(x, unique indices, body) = overwrite x by body(gather(x), updates)"""
    if _is_primitive(op) or not op.unique_indices:
        return None
    old = [_gather_windows(op, x) for x in op.xs]
    new = inline_scalar_graph(op.body, (*old, *op.updates))
    return results_as_node(
        dataclasses.replace(op, xs=(x,), updates=(value,), body=_overwrite_region(x))
        for x, value in zip(op.xs, new, strict=True)
    )


def _is_primitive(op: Scatter) -> bool:
    one = len(op.xs) == 1
    return one and (monoid(op.body) is not None or returned_parameter(op.body) == 1)


def _gather_windows(op: Scatter, x: Node) -> Node:
    return Gather(x, op.indices, op.update_window_dims, op.inserted_window_dims, op.x_batch_dims,
                  op.indices_batch_dims, op.scatter_dims, op.index_vector_dim,
                  _window_extents(op))  # fmt: skip


def _overwrite_region(x: Node) -> Graph:
    scalar = TensorType(x.dtype)
    return region("overwrite", (scalar, scalar), lambda old, new: new)


@rule
def widen_narrow_arithmetic(op: Scatter) -> Node | None:
    """scatter(x, updates) of integers narrower than 32 bits with arithmetic that wraps =
    convert(scatter(convert(x), convert(updates))), since engines saturate to the narrow type"""
    dtype = op.xs[0].dtype
    if not _is_primitive(op) or not dtype.is_integer or dtype.bits >= S32.bits:
        return None
    function = monoid(op.body)
    if function not in ("add", "multiply"):
        return None
    wide = dataclasses.replace(
        op,
        xs=(convert(op.xs[0], S32),),
        updates=(convert(op.updates[0], S32),),
        body=combiner(function, S32),
    )
    return convert(wide, dtype)


@rule
def scatter_one_by_one(op: Scatter) -> Node | None:
    """scatter(xs, body) = for each index vector in order: combine the window it names"""
    if _is_primitive(op) or op.unique_indices:
        return None
    window = _window_extents(op)
    starts = _window_starts(op)
    count, rank = starts.shape
    if not count or 0 in window:
        return results_as_node(op.xs)
    rows = [_updates_by_vector(op, update, count) for update in op.updates]
    zero = constant(0, S32)
    limits = [n - taken for n, taken in zip(op.xs[0].shape, window, strict=True)]

    def step(i: Node, *state: Node) -> tuple[Node, ...]:
        xs, starts, rows = state[: len(op.xs)], state[len(op.xs)], state[len(op.xs) + 1 :]
        vector = reshape(dynamic_slice(starts, (i, zero), (1, rank)), (rank,))
        at = [take(vector, 0, d) for d in range(rank)]
        old = [dynamic_slice(x, at, window) for x in xs]
        here = [_update_at(row, i, window) for row in rows]
        new = inline_scalar_graph(op.body, (*old, *here))
        inside = broadcast(_is_in_bounds(at, limits), window)
        kept = [select(inside, a, b) for a, b in zip(new, old, strict=True)]
        done = [dynamic_update_slice(x, value, at) for x, value in zip(xs, kept, strict=True)]
        return (*done, starts, *rows)

    state = (*op.xs, starts, *rows)
    return results_as_node(counted_loop("scatter", count, state, step)[: len(op.xs)])


def _update_at(rows: Node, i: Node, window: tuple[int, ...]) -> Node:
    zero = constant(0, S32)
    return reshape(dynamic_slice(rows, (i, *[zero] * len(window)), (1, *window)), window)


def _is_in_bounds(starts: list[Node], limits: list[int]) -> Node:
    checks = []
    for start, limit in zip(starts, limits, strict=True):
        checks.append(apply("greater_equal", start, constant(0, S32)))
        checks.append(apply("less_equal", start, constant(limit, S32)))
    return all_true(checks, ())


def _window_extents(op: Scatter) -> tuple[int, ...]:
    """The extent of one update in every dimension of x."""
    dropped = (*op.inserted_window_dims, *op.x_batch_dims)
    inner = iter(op.updates[0].shape[d] for d in sorted(op.update_window_dims))
    return tuple(1 if d in dropped else next(inner) for d in range(len(op.xs[0].shape)))


def _updates_by_vector(op: Scatter, update: Node, count: int) -> Node:
    """The update as [index vector, *window]."""
    rest = [d for d in range(len(update.shape)) if d not in op.update_window_dims]
    return reshape(transpose(update, (*rest, *sorted(op.update_window_dims))),
                   (count, *_window_extents(op)))  # fmt: skip


def _window_starts(op: Scatter) -> Node:
    """Where each update window starts: s32[index vectors, dimensions of x]."""
    vector, indices = op.index_vector_dim, op.indices
    order = [d for d in range(len(indices.shape)) if d != vector]
    batch = tuple(indices.shape[d] for d in order)
    count = math.prod(batch)
    indices = transpose(indices, [*order, vector] if vector < len(indices.shape) else order)
    vectors = convert(reshape(indices, (count, len(op.scatter_dims))), S32)
    columns = []
    for d in range(len(op.xs[0].shape)):
        if d in op.scatter_dims:
            column = take(vectors, 1, op.scatter_dims.index(d))
        elif d in op.x_batch_dims:
            axis = order.index(op.indices_batch_dims[op.x_batch_dims.index(d)])
            column = reshape(iota(S32, batch, axis), (count,))
        else:
            column = splat(0, S32, (count,))
        columns.append(reshape(column, (count, 1)))
    return concatenate(columns, 1) if columns else splat(0, S32, (count, 0))


RULES = rules_of(globals())
