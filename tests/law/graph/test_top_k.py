"""The first of sorted rows, found by a search, are those that a stable sort puts there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import glia
from glia.base.dtype import BF16, F16, F32, S8, S32, U16, U32, DType, from_numpy
from glia.graph.evaluate import evaluate
from glia.graph.expand.sorting import top_k
from glia.graph.expand.sorting.top_k import expand_top_k, group_length, is_faster
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Iota, Map, Sort
from glia.graph.ops.scalar_regions import scalar_graph
from glia.graph.rules.constructors import get, slice_along
from glia.options import CompileOptions
from support.targets import CORES

Array = np.ndarray[Any, Any]
DTYPES = (F32, BF16, F16, S8, S32, U16, U32)


def rows(dtype: DType, extent: int, seed: int = 0) -> Array:
    """Rows with few different bit patterns, most of them next to another one or special."""
    random = np.random.default_rng([extent, dtype.bits, seed])
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        edges = [limits.min, limits.max, 0, 1, 255, 256, 257, limits.max - 1, limits.max - 255]
        return np.array([n % (limits.max + 1) for n in edges]).astype(dtype.numpy)[
            random.integers(0, len(edges), (5, extent))
        ]
    one = np.array([0, 0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -np.nan], dtype.numpy)
    bits = one.view(f"u{dtype.bytes}")
    near = np.concatenate([bits, bits + 1, bits[1:] - 1, bits + 300])
    return near.astype(bits.dtype).view(dtype.numpy)[random.integers(0, near.size, (5, extent))]


def sliced_sort(comparison: str, dtype: DType, extent: int, count: int) -> Graph:
    """The first elements, places and another tensor's elements of sorted rows."""
    x = Parameter(0, TensorType(dtype, (5, extent)))
    other = Parameter(1, TensorType(S32, (5, extent)))
    xs = (x, Iota(TensorType(S32, (5, extent)), 1), other)
    types = [each.dtype for each in xs for _ in range(2)]

    def compare(a: Node, b: Node, *_: Node) -> Node:
        return Map(comparison, (a, b))

    sort = Sort(xs, 1, True, scalar_graph("order", types, compare))
    return Graph(
        "sort", (x, other), tuple(slice_along(get(sort, i), 1, 0, count) for i in range(3))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("comparison", ["less_total_order", "greater_total_order"])
@pytest.mark.parametrize(("extent", "count"), [(9, 1), (40, 17), (100, 3), (1000, 9), (1500, 40)])
def test_a_search_finds_what_a_stable_sort_puts_first(
    comparison: str, dtype: DType, extent: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype.is_integer:
        comparison = comparison.removesuffix("_total_order")
    monkeypatch.setattr(top_k, "is_faster", lambda *_: True)
    graph = sliced_sort(comparison, dtype, extent, count)
    expanded = expand_top_k(graph, CompileOptions())
    assert not any(isinstance(node, Sort) for node in expanded.nodes)
    inputs = [rows(dtype, extent), np.arange(5 * extent, dtype=np.int32).reshape(5, extent)]
    for found, wanted in zip(evaluate(expanded, inputs), evaluate(graph, inputs), strict=True):
        assert found.tobytes() == wanted.tobytes()


def test_rows_of_equals_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_k, "is_faster", lambda *_: True)
    graph = sliced_sort("greater_total_order", F32, 700, 30)
    expanded = expand_top_k(graph, CompileOptions())
    inputs = [np.full((5, 700), 3.25, np.float32), np.zeros((5, 700), np.int32)]
    np.testing.assert_array_equal(evaluate(expanded, inputs)[1], [range(30)] * 5)


def test_groups_are_long_where_few_are_wanted() -> None:
    assert group_length(8192, 64) in (8, 16)
    assert group_length(8192, 2) == 64
    assert group_length(64, 40) == 1


def test_what_is_short_or_wanted_whole_is_sorted() -> None:
    assert is_faster((128, 8192), 64, 2)
    assert not is_faster((128, 8192), 8000, 2)
    assert not is_faster((100000, 4), 2, 2)
    graph = sliced_sort("greater_total_order", F32, 4, 3)
    assert any(isinstance(node, Sort) for node in expand_top_k(graph, CompileOptions()).nodes)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=repr)
def test_devices_find_the_greatest(target: str, dtype: DType) -> None:
    x = rows(dtype, 300, len(target))
    x[np.isnan(x)] = np.nan  # engines make quiet ones of others
    lowered = jax.jit(lambda x: lax.top_k(x, 20)).lower(x)
    values, places = glia.load(glia.compile(lowered, target=target, verify=True))(x)
    graph = sliced_sort("greater_total_order", from_numpy(x.dtype), 300, 20)
    wanted = evaluate(graph, [x, np.zeros(x.shape, np.int32)])
    assert values.tobytes() == wanted[0].tobytes()
    np.testing.assert_array_equal(places, wanted[1])
