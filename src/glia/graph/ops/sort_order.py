"""Stable sorting of rows by a scalar comparator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.graph import scalar
from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops.pointwise import Constant, Map
from glia.graph.ops.scalar_regions import apply

Array = np.ndarray[Any, Any]

_STRICT = {
    "less": (False, False),
    "greater": (True, False),
    "less_total_order": (False, True),
    "greater_total_order": (True, True),
}  # comparison -> (descending, in total order)


def sorted_order(comparator: Graph, rows: Sequence[Array]) -> Array:
    """The stable permutation along the last axis that sorts equally shaped arrays."""
    if not rows[0].size:
        return np.zeros(rows[0].shape, np.int64)
    key = _key_of_rows(comparator, rows)
    if key is not None:
        return np.argsort(key, axis=-1, kind="stable")
    flat = [row.reshape(-1, row.shape[-1]) for row in rows]
    return _merge_sort(comparator, flat).reshape(rows[0].shape)


@dataclass(frozen=True)
class SortKey:
    """What a comparator compares: the same function of one side and of the other.

    `function` has the comparator's parameters, and depends on those of the first side alone.
    """

    function: Graph
    descending: bool
    in_total_order: bool


def sort_key(comparator: Graph) -> SortKey | None:
    """The key that a comparator orders by; None unless it compares one key of each side."""
    result = comparator.results[0]
    if not isinstance(result, Map) or result.function not in _STRICT:
        return None
    left, right = result.args
    if not _is_mirrored(left, right):
        return None
    return SortKey(Graph("key", comparator.parameters, (left,)), *_STRICT[result.function])


def _key_of_rows(comparator: Graph, rows: Sequence[Array]) -> Array | None:
    """A key whose ascending order is the comparator's; None unless it compares such keys."""
    found = sort_key(comparator)
    if found is None:
        return None
    key = apply(found.function, [row for row in rows for _ in range(2)])[0]
    if found.in_total_order or key.dtype.kind not in "fV":
        key = scalar.total_order_key(key)
    else:
        key = key.astype(scalar.working_dtype(key.dtype))
    if not found.descending:
        return key
    return -key if key.dtype.kind == "f" else ~key


def _is_mirrored(left: Node, right: Node) -> bool:
    """Whether `right` is `left` with each parameter of a replaced by the corresponding one of b."""
    pending, seen = [(left, right)], set()
    while pending:
        a, b = pair = pending.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if type(a) is not type(b) or len(a.operands) != len(b.operands):
            return False
        if isinstance(a, Parameter) and isinstance(b, Parameter):
            if a.index % 2 or b.index != a.index + 1:
                return False
        elif isinstance(a, Constant):
            if a.type != b.type or a.compute().tobytes() != b.compute().tobytes():
                return False
        elif a.region_fields or _attributes(a) != _attributes(b):
            return False
        pending.extend(zip(a.operands, b.operands, strict=True))
    return True


def _attributes(node: Node) -> list[object]:
    return [getattr(node, name) for name in node.attribute_fields]


def _merge_sort(comparator: Graph, rows: list[Array]) -> Array:
    """Stable bottom-up merge sort of every row at once; ranks come from binary searches."""
    count, extent = rows[0].shape
    order = np.tile(np.arange(extent), (count, 1))
    position = np.arange(extent)
    width = 1
    while width < extent:
        begin = position // (2 * width) * (2 * width)
        middle = np.minimum(begin + width, extent)
        is_left = position < middle
        low = np.where(is_left, middle, begin)
        high = np.where(is_left, np.minimum(middle + width, extent), middle)
        ranks = _ranks(comparator, rows, order, is_left, low, high)
        own = np.where(is_left, position - begin, position - middle)
        target = begin + own + (ranks - low)
        merged = np.empty_like(order)
        np.put_along_axis(merged, target, order, axis=-1)
        order, width = merged, 2 * width
    return order


def _ranks(
    comparator: Graph, rows: list[Array], order: Array, is_left: Array, low: Array, high: Array
) -> Array:
    """Where each element goes among its sibling run [low, high): left elements before equals."""
    mine = [np.take_along_axis(row, order, -1) for row in rows]
    low = np.broadcast_to(low, order.shape).copy()
    high = np.broadcast_to(high, order.shape).copy()
    while np.any(low < high):
        probe = (low + high) // 2
        safe = np.minimum(probe, order.shape[-1] - 1)
        other = [np.take_along_axis(row, safe, -1) for row in mine]
        first = [np.where(is_left, o, m) for o, m in zip(other, mine, strict=True)]
        second = [np.where(is_left, m, o) for o, m in zip(other, mine, strict=True)]
        sides = [side for pair in zip(first, second, strict=True) for side in pair]
        holds = apply(comparator, sides)[0]
        advance = (low < high) & (holds == is_left)
        high = np.where((low < high) & ~advance, probe, high)
        low = np.where(advance, probe + 1, low)
    return low
