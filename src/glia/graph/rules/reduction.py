"""Equations on reductions with a monoid."""

from __future__ import annotations

from glia.graph.ir import Node
from glia.graph.ops import Broadcast, Reduce, ReduceWindow, Reshape, Transpose
from glia.graph.ops.scalar_regions import identity, monoid
from glia.graph.rules.constructors import apply, reshape, splat_like, transpose
from glia.graph.rules.driver import results_as_node, rule, rules_of
from glia.graph.rules.facts import is_uniform, squeezed
from glia.graph.rules.inline_regions import inline_scalar_graph


@rule
def reduce_of_reduce(op: Reduce) -> Node | None:
    """reduce(reduce(x, d), e) = reduce(x, d and e) with one monoid and a neutral inner init"""
    if len(op.xs) != 1 or not isinstance(op.xs[0], Reduce) or len(op.xs[0].xs) != 1:
        return None
    inner = op.xs[0]
    kind = monoid(op.body)
    if kind is None or kind != monoid(inner.body):
        return None
    if not is_uniform(inner.inits[0], identity(kind, op.dtype)) or op.dtype.bits < 32:
        return None
    kept = [d for d in range(len(inner.xs[0].shape)) if d not in inner.dimensions]
    dimensions = sorted((*inner.dimensions, *(kept[d] for d in op.dimensions)))
    return Reduce(inner.xs, op.inits, tuple(dimensions), op.body)


@rule
def reduce_of_extent_one(op: Reduce) -> Node | None:
    """reduce(x over extents of 1) = body(init, x)"""
    if any(op.xs[0].shape[d] != 1 for d in op.dimensions):
        return None
    shape = tuple(n for d, n in enumerate(op.xs[0].shape) if d not in op.dimensions)
    xs = [reshape(x, shape) for x in op.xs]
    inits = [Broadcast(init, shape, ()) if shape else init for init in op.inits]
    return results_as_node(inline_scalar_graph(op.body, (*inits, *xs)))


@rule
def reduce_of_transpose(op: Reduce) -> Node | None:
    """reduce(transpose(x, p), d) = transpose(reduce(x, p[d])) with a monoid"""
    if len(op.xs) != 1 or not isinstance(op.xs[0], Transpose) or monoid(op.body) is None:
        return None
    x, p = op.xs[0].x, op.xs[0].permutation
    dimensions = tuple(sorted(p[d] for d in op.dimensions))
    kept = [p[d] for d in range(len(p)) if d not in op.dimensions]
    order = [sorted(kept).index(d) for d in kept]
    return transpose(Reduce((x,), op.inits, dimensions, op.body), order)


@rule
def reduce_of_broadcast(op: Reduce) -> Node | None:
    """reduce(broadcast(x)) = reduce(x) where max, min, and, or go over replicated elements"""
    if len(op.xs) != 1 or not isinstance(op.xs[0], Broadcast):
        return None
    x, dimensions = op.xs[0].x, op.xs[0].dimensions
    kind = monoid(op.body)
    replicated = {d for d in op.dimensions if d not in dimensions}
    if kind not in ("maximum", "minimum", "and", "or") or not replicated or 0 in op.xs[0].shape:
        return None
    kept = [d for d in range(len(op.xs[0].shape)) if d not in replicated]
    shape = tuple(op.xs[0].shape[d] for d in kept)
    narrow = Broadcast(x, shape, tuple(kept.index(d) for d in dimensions))
    rest = tuple(kept.index(d) for d in op.dimensions if d not in replicated)
    return Reduce((narrow,), op.inits, rest, op.body)


@rule
def sum_of_broadcast(op: Reduce) -> Node | None:
    """sum(broadcast(x)) over n replicated elements = n * sum(x), for integers"""
    if len(op.xs) != 1 or not isinstance(op.xs[0], Broadcast) or not op.dtype.is_integer:
        return None
    wide = op.xs[0]
    replicated = {d for d in op.dimensions if d not in wide.dimensions}
    if monoid(op.body) != "add" or not replicated or not is_uniform(op.inits[0], 0):
        return None
    count = 1
    for d in replicated:
        count *= wide.shape[d]
    kept = [d for d in range(len(wide.shape)) if d not in replicated]
    shape = tuple(wide.shape[d] for d in kept)
    narrow = Broadcast(wide.x, shape, tuple(kept.index(d) for d in wide.dimensions))
    rest = tuple(kept.index(d) for d in op.dimensions if d not in replicated)
    total = Reduce((narrow,), op.inits, rest, op.body)
    return apply("multiply", total, splat_like(count % 2**op.dtype.bits, total))


@rule
def reduce_of_unit_reshape(op: Reduce) -> Node | None:
    """reduce(reshape(x), d) = reshape(reduce(x, d')) when the reshape only adds extents of 1"""
    if len(op.xs) != 1 or not isinstance(op.xs[0], Reshape) or monoid(op.body) is None:
        return None
    wide, x = op.xs[0], op.xs[0].x
    if squeezed(wide.shape) != x.shape:
        return None
    places = [d for d, extent in enumerate(wide.shape) if extent != 1]
    dimensions = tuple(places.index(d) for d in op.dimensions if d in places)
    return reshape(Reduce((x,), op.inits, dimensions, op.body), op.shape)


@rule
def whole_window(op: ReduceWindow) -> Node | None:
    """reduce_window(x) = reduce(x) when windows are the whole extent or one element"""
    x = op.xs[0]
    if len(op.xs) != 1 or any((*op.low, *op.high)):
        return None
    if any(n != 1 for n in (*op.x_dilation, *op.window_dilation)):
        return None
    sized = list(zip(x.shape, op.window, op.stride, strict=True))
    if not all(w == n or (w == 1 and s == 1) for n, w, s in sized):
        return None
    dimensions = tuple(d for d, (n, w, _) in enumerate(sized) if w == n)
    reduced = Reduce(op.xs, op.inits, dimensions, op.body)
    shape = tuple(1 if d in dimensions else n for d, n in enumerate(x.shape))
    return reshape(reduced, shape)


RULES = rules_of(globals())
