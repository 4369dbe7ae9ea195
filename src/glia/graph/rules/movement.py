"""Rules for what moves elements: compositions become one operation, identities disappear."""

from __future__ import annotations

import math

import numpy as np

from glia.graph.ir import Node
from glia.graph.ops import (
    Broadcast,
    Concatenate,
    Constant,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from glia.graph.rules.constructors import (
    broadcast,
    constant,
    reshape,
    reverse,
    slice_along,
    transpose,
)
from glia.graph.rules.driver import rule, rules_of
from glia.graph.rules.facts import (
    invert,
    is_empty,
    is_increasing,
    same_bits,
    squeezed,
    uniform,
    values_at,
)


@rule
def drop_identity_transpose(op: Transpose) -> Node | None:
    """transpose(x, 0 1 2 ...) = x"""
    return op.x if is_increasing(op.permutation) else None


@rule
def merge_transposes(op: Transpose) -> Node | None:
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""
    match op:
        case Transpose(Transpose(x, p), q):
            return transpose(x, values_at(p, q))
    return None


@rule
def transpose_of_broadcast(op: Transpose) -> Node | None:
    """transpose(broadcast(x, d), p) = broadcast(x, where p puts d)"""
    match op:
        case Transpose(Broadcast(x, shape, dimensions), p):
            return broadcast(x, values_at(shape, p), values_at(invert(p), dimensions))
    return None


@rule
def transpose_that_keeps_order(op: Transpose) -> Node | None:
    """transpose(x, p) = reshape(x) when p only moves dimensions of extent 1"""
    moved = [d for d in op.permutation if op.x.shape[d] != 1]
    return reshape(op.x, op.shape) if is_increasing(moved) else None


@rule
def drop_identity_reshape(op: Reshape) -> Node | None:
    """reshape(x, shape of x) = x"""
    return op.x if op.x.shape == op.result_shape else None


@rule
def merge_reshapes(op: Reshape) -> Node | None:
    """reshape(reshape(x, s), t) = reshape(x, t)"""
    match op:
        case Reshape(Reshape(x, _), shape):
            return reshape(x, shape)
    return None


@rule
def reshape_of_splat(op: Reshape) -> Node | None:
    """reshape(broadcast(scalar), s) = broadcast(scalar, s)"""
    match op:
        case Reshape(Broadcast(x, _, ()), shape):
            return broadcast(x, shape)
    return None


@rule
def reshape_of_broadcast(op: Reshape) -> Node | None:
    """reshape(broadcast(x, d), s) = broadcast(x, d') when s differs in extents of 1 only"""
    if not isinstance(op.x, Broadcast) or squeezed(op.shape) != squeezed(op.x.shape):
        return None
    x, old, dimensions = op.x.x, op.x.shape, op.x.dimensions
    places = [d for d, extent in enumerate(op.shape) if extent != 1]
    place = dict(zip((d for d, extent in enumerate(old) if extent != 1), places, strict=True))
    kept = [(extent, place[d]) for extent, d in zip(x.shape, dimensions, strict=True) if d in place]
    return broadcast(reshape(x, [e for e, _ in kept]), op.shape, [d for _, d in kept])


@rule
def drop_identity_broadcast(op: Broadcast) -> Node | None:
    """broadcast(x, shape of x, 0 1 2 ...) = x"""
    same = op.x.shape == op.result_shape and is_increasing(op.dimensions)
    return op.x if same else None


@rule
def merge_broadcasts(op: Broadcast) -> Node | None:
    """broadcast(broadcast(x, d), e) = broadcast(x, e[d])"""
    match op:
        case Broadcast(Broadcast(x, _, inner), shape, outer):
            return broadcast(x, shape, values_at(outer, inner))
    return None


@rule
def broadcast_that_adds_ones(op: Broadcast) -> Node | None:
    """broadcast(x, d) = reshape(transpose(x)) when nothing is replicated"""
    if squeezed(op.x.shape) and len(op.x.shape) and math.prod(op.x.shape) == math.prod(op.shape):
        order = sorted(range(len(op.dimensions)), key=lambda i: op.dimensions[i])
        return reshape(transpose(op.x, order), op.shape)
    return None


@rule
def sort_broadcast_dimensions(op: Broadcast) -> Node | None:
    """broadcast(x, d) = broadcast(transpose(x), sorted d)"""
    if is_increasing(op.dimensions):
        return None
    order = sorted(range(len(op.dimensions)), key=lambda i: op.dimensions[i])
    return broadcast(transpose(op.x, order), op.shape, sorted(op.dimensions))


@rule
def squeeze_broadcast_operand(op: Broadcast) -> Node | None:
    """broadcast(x, d) = broadcast(reshape(x), d') without the dimensions of extent 1"""
    if 1 not in op.x.shape:
        return None
    pairs = zip(op.x.shape, op.dimensions, strict=True)
    kept = [d for extent, d in pairs if extent != 1]
    return broadcast(reshape(op.x, squeezed(op.x.shape)), op.shape, kept)


@rule
def drop_identity_slice(op: Slice) -> Node | None:
    """slice(x, everything) = x"""
    return op.x if op.x.shape == op.shape and _starts_at_zero(op) else None


def _starts_at_zero(op: Slice) -> bool:
    steps = zip(op.stride, op.shape, strict=True)
    return not any(op.start) and all(step == 1 or n == 1 for step, n in steps)


@rule
def merge_slices(op: Slice) -> Node | None:
    """slice(slice(x, a, s), b, t) = slice(x, a + s b, s t)"""
    if not isinstance(op.x, Slice) or is_empty(op):
        return None
    inner = op.x
    start = tuple(a + s * b for a, s, b in zip(inner.start, inner.stride, op.start, strict=True))
    stride = tuple(s * t for s, t in zip(inner.stride, op.stride, strict=True))
    limit = tuple(a + (n - 1) * s + 1 for a, n, s in zip(start, op.shape, stride, strict=True))
    return Slice(inner.x, start, limit, stride)


@rule
def slice_of_broadcast(op: Slice) -> Node | None:
    """slice(broadcast(x, d)) = broadcast(slice(x), d)"""
    if not isinstance(op.x, Broadcast):
        return None
    x, dimensions = op.x.x, op.x.dimensions
    for i, d in enumerate(dimensions):
        if x.shape[i] != 1:
            x = slice_along(x, i, op.start[d], op.limit[d], op.stride[d])
    return broadcast(x, op.shape, dimensions)


@rule
def slice_of_concatenation(op: Slice) -> Node | None:
    """slice(concatenate(a, b, ...)) = concatenate of the slices of the parts it touches"""
    if not isinstance(op.x, Concatenate) or is_empty(op):
        return None
    axis = op.x.dimension
    first, stride = op.start[axis], op.stride[axis]
    last = first + (op.shape[axis] - 1) * stride
    pieces, offset = [], 0
    for part in op.x.parts:
        extent = part.shape[axis]
        skipped = max(0, -((first - offset) // stride))
        begin = first + skipped * stride - offset
        end = min(extent, last + 1 - offset)
        if begin < end:
            pieces.append(_slice_at(part, op, axis, begin, end))
        offset += extent
    return pieces[0] if len(pieces) == 1 else Concatenate(tuple(pieces), axis)


def _slice_at(x: Node, op: Slice, axis: int, begin: int, end: int) -> Node:
    start = tuple(begin if d == axis else s for d, s in enumerate(op.start))
    limit = tuple(end if d == axis else s for d, s in enumerate(op.limit))
    return Slice(x, start, limit, op.stride)


@rule
def slice_of_padding(op: Slice) -> Node | None:
    """slice(pad(x)) = slice(x) inside x, or the padding value outside it"""
    if not isinstance(op.x, Pad) or any(op.x.interior) or is_empty(op):
        return None
    padded = op.x
    firsts = [s - low for s, low in zip(op.start, padded.low, strict=True)]
    extents = zip(firsts, op.shape, op.stride, strict=True)
    lasts = [first + (n - 1) * stride for first, n, stride in extents]
    bounds = list(zip(firsts, lasts, padded.x.shape, strict=True))
    if any(last < 0 or first >= extent for first, last, extent in bounds):
        return broadcast(padded.value, op.shape)
    if all(first >= 0 and last < extent for first, last, extent in bounds):
        limit = tuple(last + 1 for last in lasts)
        return Slice(padded.x, tuple(firsts), limit, op.stride)
    return None


@rule
def slice_of_reshape(op: Slice) -> Node | None:
    """slice(reshape(x)) = reshape(slice(x)) when the reshape only adds extents of 1"""
    if not isinstance(op.x, Reshape) or squeezed(op.x.shape) != op.x.x.shape or is_empty(op):
        return None
    kept = [d for d, extent in enumerate(op.x.shape) if extent != 1]
    inner = Slice(
        op.x.x, values_at(op.start, kept), values_at(op.limit, kept), values_at(op.stride, kept)
    )
    return reshape(inner, op.shape)


@rule
def reverse_without_effect(op: Reverse) -> Node | None:
    """reverse(x, d) = reverse(x, d') without the dimensions of extent 1"""
    kept = [d for d in op.dimensions if op.shape[d] > 1]
    return reverse(op.x, kept) if len(kept) < len(op.dimensions) or not kept else None


@rule
def merge_reverses(op: Reverse) -> Node | None:
    """reverse(reverse(x, d), e) = reverse(x, d xor e)"""
    match op:
        case Reverse(Reverse(x, inner), outer):
            return reverse(x, sorted(set(inner) ^ set(outer)))
    return None


@rule
def reverse_of_broadcast(op: Reverse) -> Node | None:
    """reverse(broadcast(x, d), e) = broadcast(reverse(x), d)"""
    if not isinstance(op.x, Broadcast):
        return None
    inner = [i for i, d in enumerate(op.x.dimensions) if d in op.dimensions]
    return broadcast(reverse(op.x.x, inner), op.shape, op.x.dimensions)


@rule
def drop_identity_padding(op: Pad) -> Node | None:
    """pad(x, nothing) = x"""
    between = (n for n, extent in zip(op.interior, op.x.shape, strict=True) if extent > 1)
    return op.x if not any((*op.low, *op.high, *between)) else None


@rule
def padding_of_nothing(op: Pad) -> Node | None:
    """pad(empty, v) = broadcast(v)"""
    return broadcast(op.value, op.shape) if is_empty(op.x) else None


@rule
def padding_that_crops(op: Pad) -> Node | None:
    """pad(x, negative edges) = slice of pad(x, edges without the negative ones)"""
    if min((*op.low, *op.high), default=0) >= 0 or is_empty(op):
        return None
    low, high = (tuple(max(0, n) for n in edge) for edge in (op.low, op.high))
    grown = Pad(op.x, op.value, low, high, op.interior)
    start = tuple(max(0, -n) for n in op.low)
    limit = tuple(n + min(0, edge) for n, edge in zip(grown.shape, op.high, strict=True))
    return Slice(grown, start, limit, (1,) * len(start))


@rule
def merge_paddings(op: Pad) -> Node | None:
    """pad(pad(x, v, a), v, b) = pad(x, v, a + b)"""
    if not isinstance(op.x, Pad) or any((*op.interior, *op.x.interior)):
        return None
    inner, values = op.x, (uniform(op.value), uniform(op.x.value))
    if values[0] is None or values[1] is None or not same_bits(values[0], values[1]):
        return None
    if min((*inner.low, *inner.high, *op.low, *op.high)) < 0:
        return None
    low = tuple(a + b for a, b in zip(inner.low, op.low, strict=True))
    high = tuple(a + b for a, b in zip(inner.high, op.high, strict=True))
    return Pad(inner.x, op.value, low, high, op.interior)


@rule
def concatenation_of_one(op: Concatenate) -> Node | None:
    """concatenate(x) = x, and parts without elements disappear"""
    kept = tuple(part for part in op.parts if part.shape[op.dimension])
    if len(kept) == 1:
        return kept[0]
    return Concatenate(kept, op.dimension) if 1 < len(kept) < len(op.parts) else None


@rule
def merge_concatenations(op: Concatenate) -> Node | None:
    """concatenate(concatenate(a, b), c) = concatenate(a, b, c)"""
    parts: list[Node] = []
    for part in op.parts:
        if isinstance(part, Concatenate) and part.dimension == op.dimension:
            parts.extend(part.parts)
        else:
            parts.append(part)
    return Concatenate(tuple(parts), op.dimension) if len(parts) > len(op.parts) else None


@rule
def rejoin_slices(op: Concatenate) -> Node | None:
    """concatenate(x[a:b], x[b:c]) = x[a:c]"""
    axis = op.dimension
    merged: list[Node] = [op.parts[0]]
    for part in op.parts[1:]:
        joined = _adjacent(merged[-1], part, axis)
        merged[-1:] = [joined] if joined is not None else [merged[-1], part]
    if len(merged) == len(op.parts):
        return None
    return merged[0] if len(merged) == 1 else Concatenate(tuple(merged), axis)


def _adjacent(a: Node, b: Node, axis: int) -> Node | None:
    """The slice that two slices of one tensor make together, when they touch along `axis`."""
    if not (isinstance(a, Slice) and isinstance(b, Slice) and a.x is b.x):
        return None
    if a.stride != b.stride or a.stride[axis] != 1 or a.limit[axis] != b.start[axis]:
        return None
    for d in range(len(a.start)):
        if d != axis and (a.start[d], a.limit[d]) != (b.start[d], b.limit[d]):
            return None
    return Slice(a.x, a.start, b.limit, a.stride)


@rule
def concatenation_of_splats(op: Concatenate) -> Node | None:
    """concatenate(broadcast(v), broadcast(v)) = broadcast(v)"""
    values = [uniform(part) for part in op.parts]
    first = values[0]
    if first is None or any(v is None or not same_bits(v, first) for v in values):
        return None
    return broadcast(constant(first, op.dtype), op.shape)


@rule
def constant_of_one_value(op: Constant) -> Node | None:
    """constant(v, v, v, ...) = broadcast(constant(v))"""
    array = np.asarray(op.value)
    if array.ndim == 0 or not array.size:
        return None
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    if not np.array_equal(flat[0], flat[-1]) or not (flat == flat[0]).all():
        return None
    return broadcast(constant(array.reshape(-1)[0], op.dtype), array.shape)


@rule
def tensor_without_elements(op: Node) -> Node | None:
    """Anything without elements = broadcast(0)"""
    if not is_empty(op) or isinstance(op, Broadcast) or not op.operands:
        return None
    return broadcast(constant(0, op.dtype), op.shape)


RULES = rules_of(globals())
