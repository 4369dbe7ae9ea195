"""Compute 64-bit integers in 32 bits where their range is known to fit.

Each 64-bit value that fits becomes the extension of a 32-bit one, so that types and values stay
what they were; extensions and truncations that meet cancel. What an operation needs for that:

* Sums, products, bitwise functions, selections and movement give the low word of the result from
  the low words of the operands: the result must fit.
* Comparisons, quotients, right shifts and other functions: operands and result must fit.
* Accumulators, loop state, sorted tensors and branch results: every value that they ever have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import S32, S64, U32, U64, DType
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType
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
    results_of,
    with_factors,
)
from glia.graph.rules.constructors import apply, convert, monoid_region, splat, splat_like
from glia.graph.rules.facts import holds_exactly
from glia.graph.rules.interval import BOOLEAN, Interval, comparison, limits_of
from glia.graph.rules.ranges import Facts, Found, RangeAnalysis
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions

_NARROW = {S64: S32, U64: U32}
_OF_LOW_WORDS = frozenset({"add", "subtract", "multiply", "square", "negate", "not", "and", "or",
                           "xor", "select", "copy"})  # fmt: skip
_OF_VALUES = frozenset({"divide", "remainder", "maximum", "minimum", "clamp", "abs", "sign",
                        "shift_right_arithmetic", "shift_left"})  # fmt: skip
_OF_NONNEGATIVE_VALUES = frozenset({"shift_right_logical", "popcount", "count_leading_zeros"})
_MODULAR = frozenset({"add", "multiply", "and", "or", "xor"})


def narrow_by_range(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with 64-bit integers computed in 32 bits where their range fits; values stay.

    Does nothing under `--native-int64 disabled`, which narrows all of them.
    """
    if options.native_int64 == "disabled" or not any(map(_is_wide, all_nodes(graph))):
        return graph
    analysis = RangeAnalysis()
    walk = _Narrowing(analysis, analysis.facts(graph))
    image: dict[Node, list[Node]] = {parameter: [parameter] for parameter in graph.parameters}
    return dataclasses.replace(graph, results=tuple(walk.results(graph, image)))


def _is_wide(node: Node) -> bool:
    return any(kind.dtype in _NARROW for kind in tensor_types(node.type))


def low_word(x: Node) -> Node:
    """A 64-bit integer modulo 2^32, as the narrow dtype of the same sign."""
    to = _NARROW[x.dtype]
    if isinstance(x, Convert) and (x.x.dtype is to or holds_exactly(to, x.x.dtype)):
        return convert(x.x, to)
    if isinstance(x, Constant):
        value = np.array(np.asarray(x.value).astype(to.numpy), order="C")
        value.flags.writeable = False
        return Constant(value, loc=x.loc)
    return Convert(x, to)


def _fits(found: Found, dtype: DType) -> bool:
    """Whether a 64-bit integer in an interval has a 32-bit dtype."""
    limits = limits_of(_NARROW[dtype]) if dtype in _NARROW else None
    return found is not None and limits is not None and limits.contains(found)


class _Narrowing:
    """The walk over one graph, whose intervals are known; regions are walked with their own."""

    def __init__(self, analysis: RangeAnalysis, known: Facts) -> None:
        self.analysis = analysis
        self.known = known
        self._image: dict[Node, list[Node]] = {}

    def results(self, graph: Graph, image: dict[Node, list[Node]]) -> list[Node]:
        """The results of the graph, its nodes replaced by nodes of equal value and type."""
        self._image = image
        for node in graph.nodes:
            if node not in image:
                image[node] = self._narrow_node(node)
        return [image[result][0] for result in graph.results]

    def of(self, node: Node) -> Node:
        """The image of an operand."""
        return self._image[node][0]

    def fits(self, node: Node, index: int = 0) -> bool:
        """Whether a result of a node is a 64-bit integer that fits 32 bits."""
        kind = tensor_types(node.type)[index]
        return _fits(self.known[node][index], kind.dtype)

    def narrow(self, node: Node) -> Node:
        """The low word of a 64-bit operand; other operands as they are."""
        image = self.of(node)
        return low_word(image) if image.dtype in _NARROW else image

    def narrow_index(self, node: Node) -> Node:
        """An index as s32, if it is a 64-bit integer that fits."""
        (found,), limits = self.known[node], limits_of(S32)
        fits = found is not None and limits is not None and limits.contains(found)
        return convert(self.narrow(node), S32) if fits and _is_wide(node) else self.of(node)

    def region(
        self, graph: Graph, ranges: Sequence[Found], narrow: Sequence[bool], gives: Sequence[bool]
    ) -> Graph:
        """A region for parameters in these ranges; those marked become narrow."""
        if not any((*narrow, *gives)) and not any(map(_is_wide, all_nodes(graph))):
            return graph
        inner = _Narrowing(self.analysis, self.analysis.facts(graph, ranges))
        parameters: list[Parameter] = []
        image: dict[Node, list[Node]] = {}
        for old, is_narrow in zip(graph.parameters, narrow, strict=True):
            new = old
            if is_narrow:
                kind = TensorType(_NARROW[old.dtype], old.shape)
                new = Parameter(old.index, kind, old.name, loc=old.loc)
            parameters.append(new)
            image[old] = [Convert(new, old.dtype) if is_narrow else new]
        results = inner.results(graph, image)
        pairs = zip(results, gives, strict=True)
        final = tuple(low_word(result) if is_narrow else result for result, is_narrow in pairs)
        return Graph(graph.name, tuple(parameters), final, graph.result_names)

    def _narrow_node(self, node: Node) -> list[Node]:
        if isinstance(node, Get):
            return [self._image[node.x][node.index]]
        handler = _HANDLERS.get(type(node))
        concerned = any(map(_is_wide, (node, *node.operands))) or node.region_fields
        found = handler(self, node) if handler is not None and concerned else None
        if found is None:
            found = self._rebuild(node)
        return list(found) if isinstance(found, tuple) else [found]

    def _rebuild(self, node: Node) -> Node | tuple[Node, ...]:
        """The same operation; a result that fits is marked as the extension of its low word."""
        operands = [self.of(operand) for operand in node.operands]
        same = all(new is old for new, old in zip(operands, node.operands, strict=True))
        rebuilt = node if same else node.with_operands(operands)
        if isinstance(node.type, TupleType):
            return results_of(rebuilt)
        return Convert(low_word(rebuilt), node.dtype) if self.fits(node) else rebuilt


# --- one handler for each operation; None keeps the operation -------------------------------------


def _widened(node: Node, narrow: Node) -> Node:
    return Convert(narrow, node.dtype, loc=node.loc)


def _movement(walk: _Narrowing, node: Node) -> Node | None:
    if not walk.fits(node):
        return None
    return _widened(node, node.with_operands(walk.narrow(operand) for operand in node.operands))


def _indexed(walk: _Narrowing, node: Gather | DynamicSlice | DynamicUpdateSlice) -> Node:
    """Indices and data, each by itself: an index that fits is narrow whatever it points into."""
    data = 2 if isinstance(node, DynamicUpdateSlice) else 1
    fits = walk.fits(node)
    operands = [walk.narrow(x) if fits else walk.of(x) for x in node.operands[:data]]
    operands += [walk.narrow_index(x) for x in node.operands[data:]]
    found = node.with_operands(operands)
    return _widened(node, found) if fits else found


def _constant(walk: _Narrowing, node: Constant) -> Node | None:
    return _widened(node, low_word(node)) if walk.fits(node) else None


def _iota(walk: _Narrowing, node: Iota) -> Node | None:
    if not walk.fits(node):
        return None
    kind = TensorType(_NARROW[node.dtype], node.shape)
    return _widened(node, dataclasses.replace(node, result=kind))


def _convert(walk: _Narrowing, node: Convert) -> Node | None:
    if node.x.dtype in _NARROW:
        if not walk.fits(node.x):
            return None
        x = walk.narrow(node.x)
        if walk.fits(node):
            return _widened(node, convert(x, _NARROW[node.to]))
        return None if node.to in _NARROW else Convert(x, node.to, loc=node.loc)
    if not walk.fits(node):
        return None
    x = walk.of(node.x)
    extends = holds_exactly(_NARROW[node.to], x.dtype)
    return _widened(node, x if extends else convert(x, _NARROW[node.to]))


def _map(walk: _Narrowing, node: Map) -> Node | None:
    function = node.function
    if comparison(function) is not None:
        return _comparison(walk, node)
    if not walk.fits(node):
        return None
    if function in _OF_LOW_WORDS:
        return _apply_narrow(walk, node, function)
    if function in ("maximum", "minimum") and (decided := _decided_extreme(walk, node)):
        return decided
    if function == "shift_right_arithmetic" and node.dtype is U64:
        function = "shift_right_logical"  # the top bit of 64 is zero, which that of 32 may not be
    if not all(map(walk.fits, node.args)):
        return None
    if function in _OF_VALUES:
        return _apply_narrow(walk, node, function)
    if function in _OF_NONNEGATIVE_VALUES and _is_nonnegative(walk.known[node.args[0]][0]):
        return _apply_narrow(walk, node, function)
    return None


def _apply_narrow(walk: _Narrowing, node: Map, function: str) -> Node:
    found: Node = Map(function, tuple(map(walk.narrow, node.args)), loc=node.loc)
    if function == "count_leading_zeros":
        found = apply("add", found, splat_like(32, found))
    return _widened(node, found)


def _comparison(walk: _Narrowing, node: Map) -> Node | None:
    (found,) = walk.known[node]
    if found not in (None, BOOLEAN):
        return splat(found == Interval(1, 1), node.dtype, node.shape)
    if not all(map(walk.fits, node.args)):
        return None
    return Map(node.function, tuple(map(walk.narrow, node.args)), loc=node.loc)


def _decided_extreme(walk: _Narrowing, node: Map) -> Node | None:
    """The operand that is never less, or never more, than the other."""
    a, b = node.args
    (x,), (y,) = walk.known[a], walk.known[b]
    if x is None or y is None:
        return None
    first, second = (x, y) if node.function == "maximum" else (y, x)
    if first.low >= second.high:
        return walk.of(a)
    return walk.of(b) if second.low >= first.high else None


def _is_nonnegative(found: Found) -> bool:
    return found is not None and found.low >= 0


def _contraction(walk: _Narrowing, node: Dot | Convolution) -> Node | None:
    if not walk.fits(node):
        return None
    a, b = map(walk.narrow, node.operands)
    return _widened(node, with_factors(node, a, b, _NARROW[node.dtype]))


def _reduction(walk: _Narrowing, node: Reduce | ReduceWindow) -> tuple[Node, ...] | None:
    kind = monoid(node.body)
    if kind is not None:
        return _monoid_reduction(walk, node, kind)
    flags = [walk.fits(node, k) for k in range(len(node.xs))]
    acc = walk.known[node]
    body = walk.region(node.body, (*acc, *acc), (*flags, *flags), flags)
    xs = _narrow_where(walk, node.xs, flags)
    inits = _narrow_where(walk, node.inits, flags)
    return _extend(node, dataclasses.replace(node, xs=xs, inits=inits, body=body), flags)


def _monoid_reduction(
    walk: _Narrowing, node: Reduce | ReduceWindow, kind: str
) -> tuple[Node, ...] | None:
    (x,), (init,) = node.xs, node.inits
    if not walk.fits(node):
        return None
    to = _NARROW[x.dtype]
    start = walk.narrow(init) if kind in _MODULAR or walk.fits(init) else _saturated(init)
    if start is None or not (kind in _MODULAR or walk.fits(x)):
        return None
    body = monoid_region(kind, to)
    xs = (walk.narrow(x),)
    return _extend(node, dataclasses.replace(node, xs=xs, inits=(start,), body=body), [True])


def _saturated(init: Node) -> Node | None:
    """A known initial value of a maximum or minimum, beyond 32 bits: the extreme of 32 bits."""
    if not isinstance(init, Constant):
        return None
    limits = limits_of(_NARROW[init.dtype])
    assert limits is not None
    value = np.clip(np.asarray(init.value), limits.low, limits.high)
    array = np.array(value, dtype=_NARROW[init.dtype].numpy)
    array.flags.writeable = False
    return Constant(array, loc=init.loc)


def _narrow_where(
    walk: _Narrowing, nodes: Sequence[Node], flags: Sequence[bool]
) -> tuple[Node, ...]:
    pairs = zip(nodes, flags, strict=True)
    return tuple(walk.narrow(node) if flag else walk.of(node) for node, flag in pairs)


def _extend(node: Node, narrowed: Node, flags: Sequence[bool]) -> tuple[Node, ...]:
    """The results of an operation, some of them narrowed, with the types they had."""
    results = zip(results_of(narrowed), tensor_types(node.type), flags, strict=True)
    return tuple(Convert(value, kind.dtype) if flag else value for value, kind, flag in results)


def _scatter(walk: _Narrowing, node: Scatter) -> tuple[Node, ...]:
    flags = [walk.fits(node, k) for k in range(len(node.xs))]
    kind = monoid(node.body)
    if kind in _MODULAR and flags[0]:
        body = monoid_region(kind, _NARROW[node.xs[0].dtype])
    else:
        flags = [flag and walk.fits(x) and walk.fits(u)
                 for flag, x, u in zip(flags, node.xs, node.updates, strict=True)]  # fmt: skip
        body = _scatter_region(walk, node, flags)
    indices = walk.narrow_index(node.indices)
    xs, updates = (_narrow_where(walk, each, flags) for each in (node.xs, node.updates))
    new = dataclasses.replace(node, xs=xs, indices=indices, updates=updates, body=body)
    return _extend(node, new, flags)


def _scatter_region(walk: _Narrowing, node: Scatter, flags: Sequence[bool]) -> Graph:
    acc = walk.known[node]
    return walk.region(node.body, (*acc, *acc), (*flags, *flags), flags)


def _sort(walk: _Narrowing, node: Sort) -> tuple[Node, ...]:
    flags = [walk.fits(x) for x in node.xs]
    ranges = [found for found in walk.known[node] for _ in range(2)]
    both = [flag for flag in flags for _ in range(2)]
    comparator = walk.region(node.comparator, ranges, both, [False])
    xs = _narrow_where(walk, node.xs, flags)
    return _extend(node, dataclasses.replace(node, xs=xs, comparator=comparator), flags)


def _while(walk: _Narrowing, node: While) -> tuple[Node, ...]:
    flags = [walk.fits(node, k) for k in range(len(node.state))]
    state = walk.known[node]
    condition = walk.region(node.condition, state, flags, [False])
    inside = walk.analysis.inside_loop(node, state)
    body = walk.region(node.body, inside, flags, flags)
    initial = _narrow_where(walk, node.state, flags)
    return _extend(node, While(initial, condition, body, loc=node.loc), flags)


def _conditional(walk: _Narrowing, node: Conditional) -> tuple[Node, ...]:
    gives = [walk.fits(node, k) for k in range(len(tensor_types(node.type)))]
    operands: list[Node] = []
    branches = []
    for number, branch in enumerate(node.branches):
        given = node.operands_of(number)
        flags = [walk.fits(x) for x in given]
        ranges = [walk.known[x][0] for x in given]
        branches.append(walk.region(branch, ranges, flags, gives))
        operands += _narrow_where(walk, given, flags)
    new = dataclasses.replace(
        node, index=walk.of(node.index), branch_operands=tuple(operands), branches=tuple(branches)
    )
    return _extend(node, new, gives)


_HANDLERS: dict[type[Node], Callable[[_Narrowing, Any], Node | tuple[Node, ...] | None]] = {
    Constant: _constant,
    Iota: _iota,
    Convert: _convert,
    Map: _map,
    **dict.fromkeys((Broadcast, Reshape, Transpose, Slice, Reverse, Concatenate, Pad), _movement),
    **dict.fromkeys((Gather, DynamicSlice, DynamicUpdateSlice), _indexed),
    **dict.fromkeys((Dot, Convolution), _contraction),
    **dict.fromkeys((Reduce, ReduceWindow), _reduction),
    Scatter: _scatter,
    Sort: _sort,
    While: _while,
    Conditional: _conditional,
}
