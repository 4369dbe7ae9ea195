"""Sliding windows with any computation, dilation and padding, by shifted slices.

Windows combine one dimension after the other. Along a dimension, spans of 1, 2, 4, ... elements are
built by combining a tensor with itself shifted, so that a window of n elements takes about
2 log2(n) steps; cumulative sums and maxima are windows as long as the dimension, and scans.

Scans count in float32. Where totals of integers may be more than it counts exactly, the integers
are cut into parts of a few bits: the totals of each part are exact, and add up modulo 2^32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glia.base.dtype import F32, PRED, S32, U32
from glia.graph.ir import Graph, Node
from glia.graph.ops import ReduceWindow
from glia.graph.ops.reduce import SCAN_MONOIDS
from glia.graph.ops.scalar_regions import identity, monoid
from glia.graph.rules.constructors import (
    apply,
    bitcast,
    broadcast,
    constant,
    convert,
    monoid_region,
    move_back,
    move_last,
    pad,
    reverse,
    scan,
    select,
    slice_along,
    splat,
    splat_like,
)
from glia.graph.rules.driver import apply_rules, results_as_node, rule, rules_of
from glia.graph.rules.facts import is_uniform, magnitude_bits
from glia.graph.rules.inline_regions import inline_scalar_graph
from glia.graph.rules.ranges import range_of
from glia.options import CompileOptions

SHORTEST_SCAN = 8  # elements
LARGEST_TOTAL = 1 << magnitude_bits(F32)  # float32 holds every integer up to here
WORD = 32  # bits
MOST_PARTS = 6  # of an integer: more would take longer than additions of shifted rows

DIRECT_WINDOW = 64
"""A monoid's windows of up to this many elements stay windows: each element is read that often."""


def expand_reduce_window(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with every ReduceWindow over one tensor, by a monoid, with small windows."""
    return apply_rules(graph, RULES)


@rule
def init_after_windows(op: ReduceWindow) -> Node | None:
    """reduce_window(x, init) = body(init, reduce_window(x, identity)) for a monoid"""
    kind = monoid(op.body)
    if kind is None:
        return None
    x = op.xs[0]
    neutral = constant(identity(kind, x.dtype), x.dtype)
    if is_uniform(op.inits[0], identity(kind, x.dtype)):
        return None
    total = ReduceWindow((x,), (neutral,), op.window, op.stride, op.low, op.high, op.x_dilation,
                         op.window_dilation, monoid_region(kind, x.dtype))  # fmt: skip
    return apply(kind, broadcast(op.inits[0], total.shape), total)


@rule
def cumulative_window(op: ReduceWindow) -> Node | None:
    """reduce_window(x) over all elements up to each = scan(x), for a monoid of scans"""
    kind, x = monoid(op.body), op.xs[0]
    long = [d for d, window in enumerate(op.window) if window > 1]
    is_plain = all(step == 1 for steps in (op.stride, op.x_dilation) for step in steps)
    if kind not in SCAN_MONOIDS or len(long) != 1 or not is_plain:
        return None
    (d,) = long
    window, others = op.window[d], [n for n in range(len(op.low)) if n != d]
    ends = op.low[d], op.high[d]
    is_cumulative = ends in ((window - 1, 0), (0, window - 1)) and window == x.shape[d]
    if any(op.low[n] or op.high[n] for n in others) or op.window_dilation[d] != 1:
        return None
    if not is_cumulative or window < SHORTEST_SCAN:
        return None
    is_backwards = not op.low[d]
    operand = move_last(reverse(x, (d,)) if is_backwards else x, d)
    found = scan(kind, operand) if x.dtype.is_float else _integer_totals(kind, operand)
    if found is None:
        return None
    found = move_back(found, d)
    return reverse(found, (d,)) if is_backwards else found


def _integer_totals(kind: str, x: Node) -> Node | None:
    """Totals by a monoid along the last dimension of integers; None where no scan gives them."""
    found = range_of(x)
    if kind == "multiply" or found is None or x.dtype.bits > WORD:
        return None
    terms = x.shape[-1] if kind == "add" else 1
    if max(abs(found.low), abs(found.high)) * terms <= LARGEST_TOTAL:
        return convert(_exact_totals(kind, x), x.dtype)
    bits = found.high.bit_length() if found.low >= 0 else WORD
    width = (LARGEST_TOTAL // terms).bit_length() - 1
    if kind != "add" or width < 1 or -(-bits // width) > MOST_PARTS:
        return None
    return _totals_of_parts(x, width, bits)


def _exact_totals(kind: str, x: Node) -> Node:
    """The totals of integers whose every total is a float32, as s32."""
    return convert(scan(kind, convert(x, F32)), S32)


def _totals_of_parts(x: Node, width: int, bits: int) -> Node:
    """The sums of integers modulo their dtype, from those of parts of `width` of their bits."""
    words = x if x.dtype is U32 else bitcast(convert(x, S32), U32)
    mask = splat_like((1 << width) - 1, words)
    total: Node | None = None
    for first in range(0, bits, width):
        place = splat_like(first, words)
        part = words if first == 0 else apply("shift_right_logical", words, place)
        found = bitcast(_exact_totals("add", apply("and", part, mask)), U32)
        found = found if first == 0 else apply("shift_left", found, place)
        total = found if total is None else apply("add", total, found)
    assert total is not None
    return total if x.dtype is U32 else convert(bitcast(total, S32), x.dtype)


@rule
def large_window_of_monoid(op: ReduceWindow) -> Node | None:
    """reduce_window(x) = spans of the padded x, for a monoid and large windows"""
    if monoid(op.body) is None or math.prod(op.window) <= DIRECT_WINDOW:
        return None
    x = _pad_operand(op, op.xs[0], op.inits[0])
    for d in range(len(x.shape)):
        (x,) = _combine_dimension(op.body, [x], d, op)
    return x


@rule
def general_window(op: ReduceWindow) -> Node | None:
    """reduce_window(xs, body) = spans of the padded xs, where padding takes no part"""
    if monoid(op.body) is not None:
        return None
    inside = pad_like(op, splat(True, PRED, op.xs[0].shape))
    rows = [inside, *(_pad_operand(op, x, init) for x, init in zip(op.xs, op.inits, strict=True))]
    for d in range(len(rows[0].shape)):
        rows = _combine_dimension(op.body, rows, d, op)
    present, *totals = rows
    starts = [broadcast(init, present.shape) for init in op.inits]
    found = inline_scalar_graph(op.body, (*starts, *totals))
    return results_as_node(select(present, a, b) for a, b in zip(found, starts, strict=True))


def pad_like(op: ReduceWindow, inside: Node) -> Node:
    """The padded `inside`, false where there is padding."""
    return _pad_operand(op, inside, constant(False, PRED))


def _pad_operand(op: ReduceWindow, x: Node, value: Node) -> Node:
    return pad(x, value, op.low, op.high, [step - 1 for step in op.x_dilation])


def _combine_dimension(body: Graph, rows: Sequence[Node], d: int, op: ReduceWindow) -> list[Node]:
    """The windows of one dimension, each combined; a leading pred row masks absent elements."""
    window, stride, step = op.window[d], op.stride[d], op.window_dilation[d]
    reach = (window - 1) * step + 1
    count = max(0, (rows[0].shape[d] - reach) // stride + 1)
    if not count:
        return [slice_along(row, d, 0, 0) for row in rows]
    if window <= 2 * stride or window <= 2:
        return _combine_by_element(body, rows, d, (window, stride, step, count))
    spans = _combine_by_doubling(body, rows, d, window, step)
    return [slice_along(row, d, 0, (count - 1) * stride + 1, stride) for row in spans]


def _combine_by_element(
    body: Graph, rows: Sequence[Node], d: int, sizes: tuple[int, int, int, int]
) -> list[Node]:
    """The windows combined position by position, which is cheapest where they overlap little."""
    window, stride, step, count = sizes
    parts = [
        [slice_along(x, d, k * step, k * step + (count - 1) * stride + 1, stride) for x in rows]
        for k in range(window)
    ]
    while len(parts) > 1:
        pairs = zip(parts[0:-1:2], parts[1::2], strict=True)
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [_combine(body, a, b) for a, b in pairs] + odd
    return parts[0]


def _combine_by_doubling(
    body: Graph, rows: Sequence[Node], d: int, window: int, step: int
) -> list[Node]:
    """For each start, `window` elements `step` apart combined, by doubling spans."""
    power, length, covered = list(rows), 1, 0
    total: list[Node] | None = None
    rest = window
    while rest:
        if rest % 2:
            part = [slice_along(x, d, covered * step, x.shape[d]) for x in power]
            total = (
                part if total is None else _combine(body, *_trim_to_common_extent(total, part, d))
            )
            covered += length
        rest //= 2
        if rest:
            ahead = [slice_along(x, d, length * step, x.shape[d]) for x in power]
            power = _combine(body, *_trim_to_common_extent(power, ahead, d))
            length *= 2
    assert total is not None
    return total


def _trim_to_common_extent(
    a: Sequence[Node], b: Sequence[Node], d: int
) -> tuple[list[Node], list[Node]]:
    """Both operands sliced to the smaller extent of a dimension."""
    extent = min(a[0].shape[d], b[0].shape[d])
    return [slice_along(x, d, 0, extent) for x in a], [slice_along(x, d, 0, extent) for x in b]


def _combine(body: Graph, a: Sequence[Node], b: Sequence[Node]) -> list[Node]:
    """body(a, b), or the present one where a leading pred row marks the other as absent."""
    if len(a) == len(body.results):
        return list(inline_scalar_graph(body, (*a, *b)))
    has_a, has_b = a[0], b[0]
    both = inline_scalar_graph(body, (*a[1:], *b[1:]))
    values = [
        select(has_b, select(has_a, joint, second), first)
        for joint, first, second in zip(both, a[1:], b[1:], strict=True)
    ]
    return [apply("or", has_a, has_b), *values]


RULES = rules_of(globals())
