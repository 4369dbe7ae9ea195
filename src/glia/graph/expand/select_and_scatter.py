"""Select-and-scatter (the gradient of max-pooling) by one masked step per element of the window."""

from __future__ import annotations

import itertools

import numpy as np

from glia.base.dtype import PRED, S32
from glia.graph.ir import Graph, Node
from glia.graph.ops import SelectAndScatter, Slice
from glia.graph.ops.scalar_regions import identity, monoid
from glia.graph.rules.constructors import apply, broadcast, constant, pad, select, splat, splat_like
from glia.graph.rules.driver import apply_rules, rule, rules_of
from glia.graph.rules.inline_regions import inline_scalar_graph
from glia.options import CompileOptions


def expand_select_and_scatter(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without SelectAndScatter."""
    return apply_rules(graph, RULES)


@rule
def pick_then_place(op: SelectAndScatter) -> Node | None:
    """select_and_scatter = find which element each window picks, then combine element by element"""
    if 0 in op.source.shape:
        return broadcast(op.init, op.x.shape)
    offsets = list(itertools.product(*(range(extent) for extent in op.window)))
    picked = _pick_offsets(op, offsets)
    total = broadcast(op.init, op.x.shape)
    kind = monoid(op.scatter)
    for number, offset in enumerate(offsets):
        here = apply("equal", picked, splat_like(number, picked))
        if kind is not None:
            neutral = constant(identity(kind, op.source.dtype), op.source.dtype)
            chosen = select(here, op.source, broadcast(neutral, op.source.shape))
            total = apply(kind, total, _place_values(op, chosen, neutral, offset))
        else:
            source = _place_values(op, op.source, op.init, offset)
            arrives = _place_values(op, here, constant(False, PRED), offset)
            (combined,) = inline_scalar_graph(op.scatter, (total, source))
            total = select(arrives, combined, total)
    return total


def _pick_offsets(op: SelectAndScatter, offsets: list[tuple[int, ...]]) -> Node:
    """For each window, the number of the offset it picks; -1 for a window of padding only."""
    padded = pad(op.x, op.init, op.low, op.high)
    shape = op.source.shape
    picked = splat(-1, S32, shape)
    best: Node | None = None
    for number, offset in enumerate(offsets):
        value = _elements_at(padded, op, offset)
        inside = _is_unpadded(op, offset)
        if best is None:
            takes: Node = inside
            best = value
        else:
            (keeps,) = inline_scalar_graph(op.select, (best, value))
            nothing = apply("less", picked, splat_like(0, picked))
            takes = apply("and", inside, apply("or", nothing, apply("not", keeps)))
            best = select(takes, value, best)
        picked = select(takes, splat_like(number, picked), picked)
    return picked


def _elements_at(padded: Node, op: SelectAndScatter, offset: tuple[int, ...]) -> Node:
    """The element at one offset of every window."""
    counts = zip(offset, op.source.shape, op.stride, strict=True)
    limit = tuple(first + (count - 1) * stride + 1 for first, count, stride in counts)
    return Slice(padded, offset, limit, op.stride)


def _is_unpadded(op: SelectAndScatter, offset: tuple[int, ...]) -> Node:
    """Where the element at one offset of a window is not padding."""
    inside = np.ones((), np.bool_)
    sizes = zip(offset, op.source.shape, op.stride, op.low, op.x.shape, strict=True)
    for first, count, stride, low, extent in sizes:
        position = np.arange(count) * stride + first - low
        inside = np.logical_and(inside[..., None], (position >= 0) & (position < extent))
    return splat(True, PRED, inside.shape) if inside.all() else constant(inside, PRED)


def _place_values(op: SelectAndScatter, values: Node, empty: Node, offset: tuple[int, ...]) -> Node:
    """One value per window, placed in x at the element at `offset`; `empty` elsewhere."""
    low = tuple(first - edge for first, edge in zip(offset, op.low, strict=True))
    sizes = zip(low, op.x.shape, values.shape, op.stride, strict=True)
    high = tuple(n - (first + (count - 1) * step + 1) for first, n, count, step in sizes)
    return pad(values, empty, low, high, [step - 1 for step in op.stride])


RULES = rules_of(globals())
