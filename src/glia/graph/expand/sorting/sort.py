"""Sorting with any comparator by a bitonic network of elementwise compare-and-exchange steps.

The sorted dimension is padded to a power of two. Each step compares a tensor with itself at another
place, so a dimension of n elements takes about log2(n)^2 / 2 steps whatever its content. What one
key orders is exchanged by integers that order as it does; a row of positions breaks ties, which
makes the network stable and keeps the padding at the end. Floats alone become integers and return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from glia.arch import Target, get_target
from glia.base.dtype import S32
from glia.graph.ir import Graph, Node
from glia.graph.ops import Map, Sort
from glia.graph.ops.scalar_regions import identity
from glia.graph.passes.errors import DeviceMemoryFull
from glia.graph.rules.constructors import (
    apply,
    concatenate,
    constant,
    convert,
    iota,
    move_back,
    move_last,
    pad,
    reshape,
    reverse,
    select,
    slice_along,
    splat_like,
)
from glia.graph.rules.driver import apply_rules, results_as_node, rule, rules_of
from glia.graph.rules.extremes import counts_up
from glia.graph.rules.inline_regions import inline_scalar_graph
from glia.graph.rules.sort_keys import key_of_sort, reversible_key
from glia.options import CompileOptions

LAST = 2**31 - 1  # the key of what is padded
Exchange = Callable[[Sequence[Node], Sequence[Node]], tuple[list[Node], list[Node]]]


def expand_sort(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without Sort; DeviceMemoryFull where HBM cannot have what one sorts.

    Refused at once: the network of so many elements takes minutes to compile.
    """
    target = get_target(options.target)
    for node in graph.nodes:
        if isinstance(node, Sort):
            _check_memory(node, target, target.device_memory(options.logical_nc_config))
    return apply_rules(graph, RULES)


def _check_memory(op: Sort, target: Target, capacity: int) -> None:
    """DeviceMemoryFull unless HBM has what a step reads and what it writes.

    Rows that fit SBUF whole could stay in it from step to step.
    """
    row = max(x.shape[op.dimension] * x.dtype.bytes for x in op.xs)
    needed = 2 * sum(math.prod(x.shape) * x.dtype.bytes for x in op.xs)
    if row > target.arch.sbuf_bytes and needed > capacity:
        raise DeviceMemoryFull(
            total=needed, target=target.name, capacity=capacity, external=0, constants=0,
            intermediate=needed, loc=op.loc,
        )  # fmt: skip


@rule
def sort_of_one_element(op: Sort) -> Node | None:
    """sort(xs over an extent of 0 or 1) = xs"""
    return results_as_node(op.xs) if op.xs[0].shape[op.dimension] <= 1 else None


@rule
def sort_by_network(op: Sort) -> Node | None:
    """sort(xs) = a bitonic network on the last dimension, padded to a power of two"""
    extent = op.xs[0].shape[op.dimension]
    if extent <= 1:
        return None
    rows = [move_last(x, op.dimension) for x in op.xs]
    found = _sorted_rows(op, rows)
    return results_as_node(move_back(slice_along(x, -1, 0, extent), op.dimension) for x in found)


def _sorted_rows(op: Sort, rows: Sequence[Node]) -> list[Node]:
    """The rows in order, padded to a power of two, by the cheapest exchange that there is."""
    extent = rows[0].shape[-1]
    width = 1 << (extent - 1).bit_length()
    direct = _exchange_function(op)
    if direct is not None:
        fill = identity(direct, rows[0].dtype)
        return _bitonic_network([_pad_to_width(rows[0], fill, width)], _Extremes(direct))
    reversible = reversible_key(op, rows[0])
    if reversible is not None:
        key, back = reversible
        key, *others = _sorted_by_key(key, rows[1:], width)
        return [back.value(key), *others]
    shared = key_of_sort(op, rows)
    if shared is not None:
        return _sorted_by_key(shared, rows, width)[1:]
    padded = [_pad_to_width(x, 0, width) for x in rows]
    padded.append(iota(S32, padded[0].shape, -1))
    return _bitonic_network(padded, _Comparisons(op.comparator, extent, width))[: len(rows)]


def _sorted_by_key(key: Node, rows: Sequence[Node], width: int) -> list[Node]:
    """The keys, and the rows in the order of their keys and then of their positions.

    A row that counts up is itself that of positions.
    """
    key = _pad_to_width(key, LAST, width)
    if not rows:
        return _bitonic_network([key], _Extremes("minimum"))
    counting = [counts_up(x, len(x.shape) - 1) for x in rows]
    kept = [x for x, is_one in zip(rows, counting, strict=True) if not is_one]
    padded = [key, *(_pad_to_width(x, 0, width) for x in kept), iota(S32, key.shape, -1)]
    key, *others, position = _bitonic_network(padded, _KeysThenPositions())
    moved = iter(others)
    found = (
        convert(position, x.dtype) if is_one else next(moved)
        for x, is_one in zip(rows, counting, strict=True)
    )
    return [key, *found]


def _exchange_function(op: Sort) -> str | None:
    """The function, minimum or maximum, that orders two integers; None for other comparators."""
    result = op.comparator.results[0]
    if len(op.xs) != 1 or not op.xs[0].dtype.is_integer or not isinstance(result, Map):
        return None
    order = {"less": "minimum", "less_equal": "minimum"}
    order |= {"greater": "maximum", "greater_equal": "maximum"}
    plain = tuple(result.args) == tuple(op.comparator.parameters)
    return order.get(result.function) if plain else None


def _pad_to_width(x: Node, fill: object, width: int) -> Node:
    missing = width - x.shape[-1]
    edges = [0] * (len(x.shape) - 1)
    return pad(x, constant(fill, x.dtype), [0] * len(x.shape), [*edges, missing])


class _Extremes:
    """The exchange of rows that are ordered by a minimum or a maximum."""

    def __init__(self, first: str) -> None:
        self._functions = (first, "maximum" if first == "minimum" else "minimum")

    def __call__(self, a: Sequence[Node], b: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """The rows of a and b with the first of each pair in a."""
        first, second = (apply(function, a[0], b[0]) for function in self._functions)
        return [first], [second]


class _KeysThenPositions:
    """The exchange of rows by the first of them, where it is equal by the last."""

    def __call__(self, a: Sequence[Node], b: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """The rows of a and b with the first of each pair in a."""
        later = apply("greater", a[-1], b[-1])
        tied = apply("and", apply("equal", a[0], b[0]), later)
        wrong = apply("or", apply("greater", a[0], b[0]), tied)
        return _exchanged(wrong, a, b)  # keys too, so that no step of theirs waits for the others


class _Comparisons:
    """The exchange of rows by any comparator, where it holds for neither by position, the last."""

    def __init__(self, comparator: Graph, extent: int, width: int) -> None:
        self._comparator = comparator
        self._padded = extent if extent < width else 0

    def __call__(self, a: Sequence[Node], b: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """The rows of a and b with the first of each pair in a."""
        return _exchanged(self._out_of_order(a, b), a, b)

    def _out_of_order(self, a: Sequence[Node], b: Sequence[Node]) -> Node:
        ahead, behind = self._compare(b[:-1], a[:-1]), self._compare(a[:-1], b[:-1])
        later = apply("greater", a[-1], b[-1])
        wrong = apply("or", ahead, apply("and", later, apply("not", behind)))
        if not self._padded:
            return wrong
        end = splat_like(self._padded, a[-1])
        real = apply("and", apply("less", a[-1], end), apply("less", b[-1], end))
        return select(real, wrong, later)

    def _compare(self, a: Sequence[Node], b: Sequence[Node]) -> Node:
        pairs = [row for both in zip(a, b, strict=True) for row in both]
        (result,) = inline_scalar_graph(self._comparator, pairs)
        return result


def _exchanged(wrong: Node, a: Sequence[Node], b: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The rows of a and b, exchanged where they are wrong."""
    firsts = [select(wrong, y, x) for x, y in zip(a, b, strict=True)]
    seconds = [select(wrong, x, y) for x, y in zip(a, b, strict=True)]
    return firsts, seconds


def _bitonic_network(rows: list[Node], exchange: Exchange) -> list[Node]:
    """Merge sorted runs of 1, 2, 4, ... elements; every comparison is ascending."""
    width = rows[0].shape[-1]
    run = 1
    while run < width:
        rows = _exchange_pairs(rows, run, exchange, mirrored=True)
        distance = run // 2
        while distance:
            rows = _exchange_pairs(rows, distance, exchange, mirrored=False)
            distance //= 2
        run *= 2
    return rows


def _exchange_pairs(
    rows: list[Node], distance: int, exchange: Exchange, *, mirrored: bool
) -> list[Node]:
    """Order pairs `distance` apart, or with the second half of each block mirrored."""
    shape = rows[0].shape
    blocks = (*shape[:-1], shape[-1] // (2 * distance), 2 * distance)
    wide = [reshape(row, blocks) for row in rows]
    a = [slice_along(row, -1, 0, distance) for row in wide]
    b = [slice_along(row, -1, distance, 2 * distance) for row in wide]
    mirrored_dimension = [len(blocks) - 1] if mirrored and distance > 1 else []
    firsts, seconds = exchange(a, [reverse(row, mirrored_dimension) for row in b])
    joined = [
        concatenate([first, reverse(second, mirrored_dimension)], -1)
        for first, second in zip(firsts, seconds, strict=True)
    ]
    return [reshape(row, shape) for row in joined]


RULES = rules_of(globals())
