"""Sorts by keys put every bit pattern where a stable sort by the comparator puts it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import glia
from glia.base.dtype import BF16, F16, F32, S8, S32, U16, U32, DType
from glia.graph.evaluate import evaluate
from glia.graph.expand.sorting.sort import expand_sort
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Constant, Iota, Map, Sort
from glia.graph.ops.scalar_regions import scalar_graph
from glia.graph.rules.constructors import get
from glia.options import CompileOptions
from support.targets import CORES

Array = np.ndarray[Any, Any]
COMPARISONS = ("less", "greater", "less_total_order", "greater_total_order")
DTYPES = (F32, BF16, F16, S8, S32, U16, U32)
EXTENTS = (2, 3, 7, 64, 100)


def _array(dtype: DType, extent: int, with_nan: bool) -> Array:
    """Rows with ties, zeros of both signs, infinities and the extremes."""
    random = np.random.default_rng([extent, dtype.bits])
    values = random.integers(-3, 4, (5, extent)).astype(np.float64)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        array = np.abs(values).astype(dtype.numpy)
        array[random.random(array.shape) < 0.2] = limits.max
        array[random.random(array.shape) < 0.2] = limits.min
        return array
    array = values.astype(dtype.numpy)
    array[(values == 0) & (random.random(array.shape) < 0.5)] = -0.0
    for special in (np.inf, -np.inf, 1e-3, *([np.nan] if with_nan else [])):
        array[random.random(array.shape) < 0.1] = special
    return array


def _sort(dtype: DType, comparison: str, extent: int, more: str, canonical: bool) -> Graph:
    """A sort of one tensor, or of it with positions, or with another tensor too."""
    x = Parameter(0, TensorType(dtype, (5, extent)))
    payload = Parameter(1, TensorType(F32, (5, extent)))
    xs: tuple[Node, ...] = (x,)
    xs += (Iota(TensorType(S32, (5, extent)), 1),) if "positions" in more else ()
    xs += (payload,) if "payload" in more else ()
    types = [each.dtype for each in xs for _ in range(2)]

    def compare(a: Node, b: Node, *_: Node) -> Node:
        return Map(comparison, (_canonical(a), _canonical(b)) if canonical else (a, b))

    sort = Sort(xs, 1, True, scalar_graph("order", types, compare))
    results = tuple(get(sort, i) for i in range(len(xs))) if len(xs) > 1 else (sort,)
    return Graph("sort", (x, payload), results)


def _canonical(x: Node) -> Node:
    zero, nan = (Constant(np.array(value, x.dtype.numpy)) for value in (0.0, np.nan))
    x = Map("select", (Map("equal", (x, zero)), zero, x))
    (parameter,) = {x.args[2]}
    return Map("select", (Map("not_equal", (parameter, parameter)), nan, x))


@pytest.mark.parametrize("more", ["", "positions", "payload", "positions and payload"])
@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_expanded_sorts_are_stable_sorts(comparison: str, dtype: DType, more: str) -> None:
    for extent in EXTENTS:
        for canonical in (False, True) if dtype.is_float and "total" in comparison else (False,):
            graph = _sort(dtype, comparison, extent, more, canonical)
            expanded = expand_sort(graph, CompileOptions())
            assert not any(isinstance(node, Sort) for node in expanded.nodes)
            x = _array(dtype, extent, with_nan="total" in comparison)
            payload = np.arange(5 * extent, dtype=np.float32).reshape(5, extent)
            for found, wanted in zip(
                evaluate(expanded, [x, payload]), evaluate(graph, [x, payload]), strict=True
            ):
                assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("target", CORES)
def test_devices_sort_floats_with_their_signs(target: str) -> None:
    x = _array(F32, 100, with_nan=True)
    functions = (jnp.sort, jnp.argsort, lambda x: lax.top_k(x, 9), lambda x: -jnp.sort(-x))
    for function in functions:
        neff = glia.compile(jax.jit(function).lower(x), target=target)
        wanted = jax.tree.leaves(function(x))
        for found, goal in zip(glia.load(neff)(x), wanted, strict=True):
            np.testing.assert_array_equal(found, goal)
            np.testing.assert_array_equal(np.signbit(found)[~np.isnan(found)],
                                          np.signbit(goal)[~np.isnan(goal)])  # fmt: skip
