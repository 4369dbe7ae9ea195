"""The range of every integer in a graph: an interval around all elements of a tensor.

Facts come from constants, iotas, comparisons, clamps, conversions of narrower types and the extents
of what is reduced; they pass through every operation, into regions and around loops. Inputs of the
graph may have any value of their dtype. The state of a loop is widened until an iteration keeps
within it, and then narrowed by what the condition says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import (
    Broadcast,
    Concatenate,
    Conditional,
    Constant,
    Convert,
    Convolution,
    Dot,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Get,
    Iota,
    Map,
    Pad,
    Places,
    Reduce,
    ReduceWindow,
    Reshape,
    Reverse,
    Scatter,
    Slice,
    Sort,
    Transpose,
    While,
    monoid,
    returned_parameter,
)
from glia.graph.rules.interval import (
    Interval,
    bits_of,
    compared_with,
    comparison,
    function_of,
    intersect,
    join,
    limits_of,
    product_of,
    sum_of,
    wrapped,
)
from glia.graph.rules.regions import tensor_types
from glia.graph.scalar import MIRRORED, OPPOSITE

Found = Interval | None
"""What is known of a tensor; None where it does not hold integers."""

Facts = Mapping[Node, tuple[Found, ...]]
"""The interval of every result of every node of one graph."""

_JOINED_ROUNDS = 3  # of a loop's state, before bounds that still grow are widened
_ROUNDS = 60
_TIGHTENING_ROUNDS = 2
_LANDMARKS = (0, 1 << 31, 1 << 32, 1 << 63, 1 << 64)  # where widening stops: the ends of dtypes
_DEEPEST_CHAIN = 3  # operations between a compared value and the branch of a select


class RangeAnalysis:
    """The intervals of graphs, remembered by graph and the intervals of its parameters."""

    def __init__(self) -> None:
        self._known: dict[tuple[Graph, tuple[Found, ...]], Facts] = {}

    def facts(self, graph: Graph, parameters: Sequence[Found] | None = None) -> Facts:
        """The interval of every node, for parameters in these intervals (by default, anywhere)."""
        if parameters is None:
            parameters = [limits_of(parameter.dtype) for parameter in graph.parameters]
        key = graph, tuple(parameters)
        if key not in self._known:
            known: dict[Node, tuple[Found, ...]] = {}
            for node in graph.nodes:
                if isinstance(node, Parameter):
                    known[node] = (parameters[node.index],)
                else:
                    known[node] = self._of_node(node, known)
            self._known[key] = known
        return self._known[key]

    def results(self, graph: Graph, parameters: Sequence[Found]) -> list[Found]:
        """The intervals of a graph's results."""
        known = self.facts(graph, parameters)
        return [known[result][0] for result in graph.results]

    def accumulated(self, body: Graph, starts: Sequence[Found], xs: Sequence[Found]) -> list[Found]:
        """What a body may accumulate from elements of `xs`, beginning with `starts`."""
        first = _join_each(starts, xs)
        return _fixed_point(first, body, lambda state: self.results(body, [*state, *state]))

    def loop_state(self, loop: While, starts: Sequence[Found]) -> list[Found]:
        """The intervals of a loop's state before every iteration and after the last."""

        def after_iteration(state: list[Found]) -> list[Found]:
            return self.results(loop.body, self.inside_loop(loop, state))

        return _fixed_point(list(starts), loop.body, after_iteration)

    def inside_loop(self, loop: While, state: Sequence[Found]) -> list[Found]:
        """The intervals of a loop's state where the condition holds."""
        known = self.facts(loop.condition, state)
        inside = list(state)
        for node, limit in constraints(loop.condition.results[0], True, known):
            if isinstance(node, Parameter):
                inside[node.index] = _intersect(inside[node.index], limit)
        return inside

    def _of_node(self, node: Node, known: Facts) -> tuple[Found, ...]:
        limits = tuple(limits_of(kind.dtype) for kind in tensor_types(node.type))
        if all(limit is None for limit in limits):
            return limits
        if type(node) in _OF_ONE_RESULT:
            return (_OF_ONE_RESULT[type(node)](node, known),)
        handler = _OF_RESULTS.get(type(node))
        return limits if handler is None else handler(self, node, known)


def range_of(x: Node) -> Found:
    """The interval of one tensor by itself, whose parameters may have any value of their dtypes."""
    inner = Graph("range", (), (x,))
    parameters = [node for node in inner.nodes if isinstance(node, Parameter)]
    limits: list[Found] = [None] * (1 + max((node.index for node in parameters), default=-1))
    for node in parameters:
        limits[node.index] = limits_of(node.dtype)
    return RangeAnalysis().facts(inner, limits)[x][0]


def constraints(predicate: Node, holds: bool, known: Facts) -> list[tuple[Node, Interval]]:
    """What follows for compared nodes where a predicate holds, or where it does not."""
    if not isinstance(predicate, Map):
        return []
    if predicate.function == "not":
        return constraints(predicate.args[0], not holds, known)
    if predicate.function == ("and" if holds else "or"):
        return [each for arg in predicate.args for each in constraints(arg, holds, known)]
    function = comparison(predicate.function)
    if function is None:
        return []
    function = function if holds else OPPOSITE[function]
    a, b = predicate.args
    found = []
    for name, node, other in ((function, a, b), (MIRRORED[function], b, a)):
        (bound,) = known[other]
        limit = compared_with(name, bound) if bound is not None else None
        if limit is not None:
            found.append((node, limit))
    return found


def _intersect(a: Found, b: Interval) -> Found:
    """The common values; `a` where there is none, which is then never computed."""
    return (intersect(a, b) or a) if a is not None else None


def _join(*intervals: Found) -> Found:
    present = [each for each in intervals if each is not None]
    return join(*present) if len(present) == len(intervals) else None


def _join_each(a: Sequence[Found], b: Sequence[Found]) -> list[Found]:
    return [_join(x, y) for x, y in zip(a, b, strict=True)]


def _fixed_point(
    start: list[Found], body: Graph, step: Callable[[list[Found]], list[Found]]
) -> list[Found]:
    """A small state that holds `start` and that `step`, of results of `body`, stays within."""
    limits = [limits_of(result.dtype) for result in body.results]
    state = start
    for number in range(_ROUNDS):
        following = _join_each(state, step(state))
        if following == state:
            break
        if number >= _JOINED_ROUNDS:
            following = [_widen(*each) for each in zip(state, following, limits, strict=True)]
        state = following
    else:
        return limits
    for _ in range(_TIGHTENING_ROUNDS):
        smaller = _join_each(start, step(state))
        if _join_each(state, smaller) == state:
            state = smaller
    return state


def _widen(before: Found, after: Found, limits: Found) -> Found:
    """`after`, with bounds that grew moved on to the next landmark within the limits."""
    if before is None or after is None or limits is None:
        return None
    low = _below(after.low) if after.low < before.low else after.low
    high = _above(after.high) if after.high > before.high else after.high
    return Interval(max(low, limits.low), min(high, limits.high))


def _above(value: int) -> int:
    return next(mark - 1 for mark in _LANDMARKS if value < mark)


def _below(value: int) -> int:
    return next(-mark for mark in _LANDMARKS if -mark <= value)


# --- one handler for each operation ---------------------------------------------------------------


def _constant(node: Constant, known: Facts) -> Found:
    value = np.asarray(node.value)
    if not value.size:
        return limits_of(node.dtype)
    if node.dtype.is_integer and node.dtype.bits < 8:
        value = value.astype(np.int8)
    return Interval(int(value.min()), int(value.max()))


def _iota(node: Iota, known: Facts) -> Found:
    return wrapped(Interval(0, max(0, node.shape[node.dimension] - 1)), node.dtype)


def _places(node: Places, known: Facts) -> Found:
    return Interval(0, node.x.shape[-1] - 1)


def _map(node: Map, known: Facts) -> Found:
    if node.function == "select":
        return _select(node, known)
    args = [known[arg][0] for arg in node.args]
    present = [arg for arg in args if arg is not None]
    if len(present) < len(args):
        return limits_of(node.dtype)
    return function_of(node.function, present, node.dtype)


def _select(node: Map, known: Facts) -> Found:
    predicate, a, b = node.args
    (chance,) = known[predicate]
    if chance == Interval(1, 1):
        return known[a][0]
    if chance == Interval(0, 0):
        return known[b][0]
    return _join(
        _interval_where(a, dict(constraints(predicate, True, known)), known, _DEEPEST_CHAIN),
        _interval_where(b, dict(constraints(predicate, False, known)), known, _DEEPEST_CHAIN),
    )


def _interval_where(node: Node, limits: Mapping[Node, Interval], known: Facts, depth: int) -> Found:
    """The interval of a node where some nodes are known to keep within limits."""
    (found,) = known[node]
    if node in limits:
        return _intersect(found, limits[node])
    if not limits or not depth or not isinstance(node, Map) or node.function == "select":
        return found
    args = [_interval_where(arg, limits, known, depth - 1) for arg in node.args]
    present = [arg for arg in args if arg is not None]
    return function_of(node.function, present, node.dtype) if len(present) == len(args) else found


def _convert(node: Convert, known: Facts) -> Found:
    (source,) = known[node.x]
    limits = limits_of(node.to)
    if source is None or limits is None:
        return limits
    if limits == Interval(0, 1):
        return function_of("not_equal", (source, Interval(0, 0)), node.to)
    return wrapped(source, node.to)


def _first_operand(node: Node, known: Facts) -> Found:
    return known[node.operands[0]][0]


def _all_operands(node: Node, known: Facts) -> Found:
    return _join(*(known[operand][0] for operand in node.operands))


def _updated(node: DynamicUpdateSlice, known: Facts) -> Found:
    return _join(known[node.x][0], known[node.update][0])


def _get(node: Get, known: Facts) -> Found:
    return known[node.x][node.index]


def _contraction(node: Dot | Convolution, known: Facts) -> Found:
    a, b = (known[operand][0] for operand in node.operands)
    if a is None or b is None:
        return limits_of(node.dtype)
    if isinstance(node, Dot):
        count = math.prod(node.a.shape[d] for d in node.a_contract)
    else:
        count = math.prod(node.kernel.shape[1:])
    return wrapped(sum_of(product_of(a, b), 0, count), node.dtype)


def _reduce(analysis: RangeAnalysis, node: Reduce, known: Facts) -> tuple[Found, ...]:
    count = math.prod(node.xs[0].shape[d] for d in node.dimensions)
    return _combined(analysis, node, known, count, count)


def _reduce_window(analysis: RangeAnalysis, node: ReduceWindow, known: Facts) -> tuple[Found, ...]:
    least = 1 if has_full_windows(node) else 0
    return _combined(analysis, node, known, least, math.prod(node.window))


def has_full_windows(node: ReduceWindow) -> bool:
    """Whether every window is known to hold an element, and not only padding."""
    ones = (1,) * len(node.window)
    return (node.x_dilation, node.window_dilation) == (ones, ones) and all(
        low < window and (count - 1) * stride - low < extent
        for low, window, count, stride, extent in zip(
            node.low, node.window, _window_counts(node), node.stride, node.xs[0].shape, strict=True
        )
    )


def _window_counts(node: ReduceWindow) -> tuple[int, ...]:
    return tensor_types(node.type)[0].shape


def _combined(
    analysis: RangeAnalysis, node: Reduce | ReduceWindow, known: Facts, least: int, most: int
) -> tuple[Found, ...]:
    """What the body makes of an initial value and of `least` to `most` elements."""
    xs = [known[x][0] for x in node.xs]
    starts = [known[init][0] for init in node.inits]
    kind = monoid(node.body)
    if kind is None:
        return tuple(analysis.accumulated(node.body, starts, xs))
    (x,), (start,) = xs, starts
    if x is None or start is None:
        return (limits_of(node.xs[0].dtype),)
    return (_combined_by_monoid(kind, start, x, least, most, node.xs[0]),)


def _combined_by_monoid(
    kind: str, start: Interval, x: Interval, least: int, most: int, like: Node
) -> Found:
    if kind == "add":
        total = sum_of(x, least, most)
        found = Interval(start.low + total.low, start.high + total.high)
    elif kind == "multiply":
        found = product_of(start, _power(x, most))
    elif kind in ("maximum", "minimum"):
        best = function_of(kind, (start, x), like.dtype) or start
        found = best if least else join(best, start)
    else:
        found = bits_of(start, x)
    return wrapped(found, like.dtype)


def _power(x: Interval, most: int) -> Interval:
    """The products of up to `most` values; anything of 64 bits and more is as good as unbounded."""
    size = max(abs(x.low), abs(x.high), 1)
    size = size ** min(most, 64) if size > 1 else 1
    return Interval(min(0, x.low) and -size, size)


def _scatter(analysis: RangeAnalysis, node: Scatter, known: Facts) -> tuple[Found, ...]:
    xs = [known[x][0] for x in node.xs]
    updates = [known[update][0] for update in node.updates]
    if len(xs) == 1 and returned_parameter(node.body) == 1:
        return (_join(xs[0], updates[0]),)
    if monoid(node.body) == "add" and xs[0] is not None and updates[0] is not None:
        total = sum_of(updates[0], 0, _most_updates(node))
        found = Interval(xs[0].low + total.low, xs[0].high + total.high)
        return (wrapped(found, node.xs[0].dtype),)
    return tuple(analysis.accumulated(node.body, xs, updates))


def _most_updates(node: Scatter) -> int:
    """How many updates one element may get: one from each index vector."""
    vectors = [e for d, e in enumerate(node.indices.shape) if d != node.index_vector_dim]
    return 1 if node.unique_indices else math.prod(vectors)


def _sort(_: RangeAnalysis, node: Sort, known: Facts) -> tuple[Found, ...]:
    return tuple(known[x][0] for x in node.xs)


def _while(analysis: RangeAnalysis, node: While, known: Facts) -> tuple[Found, ...]:
    return tuple(analysis.loop_state(node, [known[x][0] for x in node.state]))


def _conditional(analysis: RangeAnalysis, node: Conditional, known: Facts) -> tuple[Found, ...]:
    outcomes = [
        analysis.results(branch, [known[x][0] for x in node.operands_of(number)])
        for number, branch in enumerate(node.branches)
    ]
    return tuple(_join(*each) for each in zip(*outcomes, strict=True))


_OF_ONE_RESULT: dict[type[Node], Callable[[Any, Facts], Found]] = {
    Constant: _constant,
    Iota: _iota,
    Map: _map,
    Convert: _convert,
    **dict.fromkeys(
        (Broadcast, Reshape, Transpose, Slice, Reverse, Gather, DynamicSlice), _first_operand
    ),
    **dict.fromkeys((Concatenate, Pad), _all_operands),
    DynamicUpdateSlice: _updated,
    Get: _get,
    Places: _places,
    **dict.fromkeys((Dot, Convolution), _contraction),
}

_OF_RESULTS: dict[type[Node], Callable[[RangeAnalysis, Any, Facts], tuple[Found, ...]]] = {
    Reduce: _reduce,
    ReduceWindow: _reduce_window,
    Scatter: _scatter,
    Sort: _sort,
    While: _while,
    Conditional: _conditional,
}
