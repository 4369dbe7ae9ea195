"""Reductions of 64-bit integers, word by word, with what engines do to one tensor.

A sum is three sums of 32-bit words: of the lower and the upper halves of the low words, which do
not overflow, and of the high words. An extreme is that of the high words, then that of the low
words beside it.
"""

from __future__ import annotations

import dataclasses
import math

from glia.base.dtype import S32, U32, DType, Kind
from glia.graph.expand.word_pairs import Wide, add_wide, less_wide, select_wide
from glia.graph.ir import Node
from glia.graph.ops import Reduce, ReduceWindow, monoid
from glia.graph.ops.scalar_regions import identity
from glia.graph.rules.constructors import (
    apply,
    bitcast,
    broadcast,
    broadcast_missing,
    constant,
    monoid_region,
    reduce,
    select,
    splat_like,
)

_HALF_BITS = 16
_MOST_TERMS = 1 << _HALF_BITS  # so many halves, and a carry, add up to 32 bits


def reduce_wide(node: Reduce | ReduceWindow, x: Wide, start: Wide) -> Wide | None:
    """The reduction of one tensor given as words; None where it has to be one of pairs."""
    kind = monoid(node.body)
    if kind == "add" and _terms(node) <= _MOST_TERMS:
        return _sum(node, x, start)
    if kind in ("maximum", "minimum") and isinstance(node, Reduce):
        signed = node.xs[0].dtype.kind is Kind.SIGNED
        return _extreme(node, kind, x, start, signed=signed)
    return None


def _terms(node: Reduce | ReduceWindow) -> int:
    if isinstance(node, ReduceWindow):
        return math.prod(node.window)
    return math.prod(node.xs[0].shape[d] for d in node.dimensions)


def _sum(node: Reduce | ReduceWindow, x: Wide, start: Wide) -> Wide:
    mask, half = splat_like((1 << _HALF_BITS) - 1, x.low), splat_like(_HALF_BITS, x.low)
    zero, body = constant(0, U32), monoid_region("add", U32)

    def total(part: Node) -> Node:
        return dataclasses.replace(node, xs=(part,), inits=(zero,), body=body)

    lower = total(apply("and", x.low, mask))
    upper = total(apply("shift_right_logical", x.low, half))
    high = total(x.high)
    steps = splat_like(_HALF_BITS, lower)
    upper = apply("add", upper, apply("shift_right_logical", lower, steps))
    low = apply("or", apply("shift_left", upper, steps),
                apply("and", lower, splat_like((1 << _HALF_BITS) - 1, lower)))  # fmt: skip
    found = Wide(low, apply("add", high, apply("shift_right_logical", upper, steps)))
    return add_wide(found, _spread(start, found))


def _extreme(node: Reduce, kind: str, x: Wide, start: Wide, *, signed: bool) -> Wide:
    dtype = S32 if signed else U32
    best = _reduced(node, kind, bitcast(x.high, dtype), dtype)
    beside = broadcast_missing(best, x.low.shape, node.dimensions)
    here = apply("equal", bitcast(x.high, dtype), beside)
    none = identity(kind, U32)
    low = _reduced(node, kind, select(here, x.low, splat_like(none, x.low)), U32)
    found = Wide(low, bitcast(best, U32))
    other = _spread(start, found)
    first, second = (other, found) if kind == "maximum" else (found, other)
    return select_wide(less_wide(first, second, signed=signed), found, other)


def _reduced(node: Reduce, kind: str, x: Node, dtype: DType) -> Node:
    return reduce(kind, x, identity(kind, dtype), node.dimensions)


def _spread(start: Wide, like: Wide) -> Wide:
    return Wide(*(broadcast(word, like.low.shape) for word in start))
