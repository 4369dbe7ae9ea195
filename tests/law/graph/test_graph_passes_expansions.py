"""Each expansion computes what the operation does, over odd extents and dtypes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from glia.base.dtype import BF16, C64, F32, PRED, S32, U8, U32, U64, DType
from glia.base.errors import CompileError
from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate, random_inputs
from glia.graph.expand.bitcast import expand_bitcast
from glia.graph.expand.collective import expand_collective
from glia.graph.expand.complex import expand_complex
from glia.graph.expand.fft import expand_fft
from glia.graph.expand.linear_algebra import expand_linear_algebra
from glia.graph.expand.random import expand_random
from glia.graph.expand.reduce import expand_reduce
from glia.graph.expand.reduce_window import expand_reduce_window
from glia.graph.expand.scatter import expand_scatter
from glia.graph.expand.select_and_scatter import expand_select_and_scatter
from glia.graph.expand.sorting.sort import expand_sort
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Bitcast,
    Cholesky,
    Collective,
    Constant,
    Get,
    Map,
    Reduce,
    ReduceWindow,
    RngBits,
    RngUniform,
    Scatter,
    Sort,
    TriangularSolve,
    While,
)
from glia.graph.ops.scalar_regions import monoid, scalar_graph
from glia.graph.passes.canonicalize import canonicalize
from glia.graph.passes.simplify import simplify
from support.graph_passes_kit import PLAIN, assert_same, graph_of, run, run_passes

EXTENTS = (1, 3, 7, 16, 33)
REDUCTIONS = (expand_reduce, expand_reduce_window, expand_select_and_scatter)

Array = np.ndarray[Any, Any]


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Normal floats, or small integers."""
    generator = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind in "iu":
        return generator.integers(0, 9, shape).astype(dtype)
    values = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def compare_with_jax(
    function: Callable[..., Any],
    arrays: tuple[Array, ...],
    *passes: Callable[..., Graph],
    gone: tuple[str, ...] = (),
    tolerance: float = 2e-5,
) -> None:
    """The imported function, expanded and simplified, gives what JAX computes."""
    lowered = jax.jit(function, keep_unused=True).lower(*arrays)
    original = import_hlo(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    graph = run_passes(original, (canonicalize, *passes, simplify))
    assert not {node.opcode for node in graph.nodes} & set(gone)
    wanted = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*arrays))]
    assert_same(run(graph, original, arrays), wanted, tolerance)


def compare_with_evaluation(
    graph: Graph, arrays: list[Array], *passes: Callable[..., Graph], tolerance: float = 0.0
) -> Graph:
    """The expanded graph gives what the original does; the expanded graph is returned."""
    expanded = run_passes(graph, (*passes, simplify))
    assert_same(run(expanded, graph, arrays), evaluate(graph, arrays), tolerance)
    return expanded


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("extreme", [jnp.argmax, jnp.argmin])
def test_position_of_extreme(extent: int, dtype: Any, extreme: Callable[..., Any]) -> None:
    x = random(2, extent, dtype=dtype)
    x[0, extent // 2 :] = x[0, 0]
    compare_with_jax(lambda x: extreme(x, axis=1), (x,), expand_reduce)


@pytest.mark.parametrize("extent", [1, 3, 7])
def test_position_of_the_first_nan_wins(extent: int) -> None:
    x = random(2, extent + 2)
    x[0, 1:] = np.nan
    compare_with_jax(lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), (x,), expand_reduce)


def test_extreme_and_position_become_two_reductions() -> None:
    def extremes(x: Any) -> Any:
        return jnp.argmax(x, axis=1)

    x = random(2, 9)
    lowered = jax.jit(extremes).lower(x).compiler_ir("hlo")
    graph = import_hlo(lowered.as_serialized_hlo_module_proto())
    graph = run_passes(graph, (canonicalize, expand_reduce, simplify))
    reductions = [node for node in graph.nodes if isinstance(node, Reduce)]
    assert [monoid(node.body) for node in reductions] == ["maximum", "minimum"]


@pytest.mark.parametrize("extent", EXTENTS)
def test_reduction_with_any_computation(extent: int) -> None:
    body = scalar_graph(
        "affine",
        [F32, S32, F32, S32],
        lambda a, i, b, j: (
            Map("select", (Map("less", (i, j)), Map("multiply", (a, b)), Map("add", (a, b)))),
            Map("maximum", (i, j)),
        ),
    )
    zero, one = Constant(np.zeros((), np.int32)), Constant(np.ones((), np.float32))
    graph = graph_of(
        lambda x, i: Reduce((x, i), (one, zero), (0, 2), body),
        (TensorType(F32, (extent, 2, 3)), TensorType(S32, (extent, 2, 3))),
    )
    compare_with_evaluation(graph, random_inputs(graph), expand_reduce, tolerance=1e-5)


def test_independent_reductions_separate() -> None:
    both = scalar_graph(
        "both", [F32, S32] * 2, lambda a, i, b, j: (Map("add", (a, b)), Map("maximum", (i, j)))
    )
    starts = (Constant(np.zeros((), np.float32)), Constant(np.full((), -9, np.int32)))
    graph = graph_of(
        lambda x, i: Reduce((x, i), starts, (1,), both),
        (TensorType(F32, (3, 5)), TensorType(S32, (3, 5))),
    )
    expanded = compare_with_evaluation(graph, random_inputs(graph), expand_reduce, tolerance=1e-6)
    kinds = {monoid(node.body) for node in expanded.nodes if isinstance(node, Reduce)}
    assert kinds == {"add", "maximum"}


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("cumulative", [lax.cumsum, lax.cummax, lax.cumprod, lax.cumlogsumexp])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_cumulative_operations(extent: int, cumulative: Any, is_reversed: bool) -> None:
    x = random(2, extent)
    compare_with_jax(lambda x: cumulative(x, 1, reverse=is_reversed), (x,), *REDUCTIONS)


def _window(x: Node, body: Graph, start: float, *sizes: tuple[int, int]) -> ReduceWindow:
    return ReduceWindow((x,), (Constant(np.array(start, np.float32)),), *sizes, body)


@pytest.mark.parametrize("function", ["add", "maximum", "magnitudes"])
@pytest.mark.parametrize(
    "sizes",
    [
        ((3, 2), (2, 1), (1, 0), (1, 1), (1, 1), (1, 1)),
        ((4, 3), (1, 1), (3, 2), (0, 0), (1, 1), (1, 1)),
        ((2, 3), (3, 2), (0, 2), (1, 0), (2, 1), (1, 2)),
        ((9, 9), (1, 2), (8, 4), (0, 4), (1, 1), (1, 1)),
        ((20, 1), (1, 1), (0, 0), (0, 0), (1, 1), (1, 1)),
    ],
)
def test_windows(function: str, sizes: Any) -> None:
    bodies = {"magnitudes": lambda a, b: Map("add", (Map("abs", (a,)), Map("abs", (b,))))}
    compute = bodies.get(function, lambda a, b: Map(function, (a, b)))
    body = scalar_graph(function, [F32, F32], compute)
    graph = graph_of(lambda x: _window(x, body, 0.5, *sizes), (TensorType(F32, (9, 7)),))
    compare_with_evaluation(graph, random_inputs(graph), expand_reduce_window, tolerance=1e-5)


@pytest.mark.parametrize("extent", [4, 7, 16])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_gradient_of_max_pooling(extent: int, padding: str, stride: int) -> None:
    def pooled(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2), (1, stride, stride), padding)

    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: (pooled(x) ** 2).sum())(x)

    x = np.round(random(2, extent, extent) * 2)
    passes = (*REDUCTIONS, expand_scatter)
    compare_with_jax(gradient, (x,), *passes, gone=("select_and_scatter",))


@pytest.mark.parametrize("extent", [0, *EXTENTS])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, ml_dtypes.bfloat16])
def test_sorting(extent: int, dtype: Any) -> None:
    x = random(extent, 2, dtype=dtype)
    if extent > 2 and x.dtype.kind != "i" and x.dtype != np.uint8:
        x[:3, 0] = [np.nan, -0.0, 0.0]
    compare_with_jax(
        lambda x: (jnp.sort(x, 0), jnp.argsort(x, 0), -jnp.sort(-x, 1)),
        (x,),
        expand_sort,
        gone=("sort",),
    )


@pytest.mark.parametrize("extent", [2, 5, 16])
@pytest.mark.parametrize("function", ["less", "greater", "greater_equal"])
def test_sorting_integers_by_plain_order(extent: int, function: str) -> None:
    order = scalar_graph(function, [S32, S32], lambda a, b: Map(function, (a, b)))
    graph = graph_of(lambda x: Sort((x,), 1, False, order), (TensorType(S32, (3, extent)),))
    compare_with_evaluation(graph, random_inputs(graph), expand_sort)


@pytest.mark.parametrize("k", [1, 4])
def test_top_k(k: int) -> None:
    compare_with_jax(lambda x: lax.top_k(x, k), (random(3, 11),), expand_sort, gone=("sort",))


@pytest.mark.parametrize("extent", [1, 2, *EXTENTS, 257, 300])
def test_fourier_transforms(extent: int) -> None:
    def transforms(x: Any, y: Any) -> Any:
        half = jnp.fft.rfft(y)
        return jnp.fft.fft(x), jnp.fft.ifft(x), half, jnp.fft.irfft(half, extent)

    arrays = (random(2, extent, dtype=np.complex64), random(2, extent))
    passes = (expand_fft, expand_complex)
    compare_with_jax(transforms, arrays, *passes, gone=("fft",), tolerance=2e-4)


def test_fourier_transforms_of_several_dimensions() -> None:
    def transforms(x: Any, y: Any) -> Any:
        return jnp.fft.fft2(x), jnp.fft.irfftn(jnp.fft.rfftn(y)), jnp.fft.ifftn(x)

    arrays = (random(3, 4, 6, dtype=np.complex64), random(3, 5, 6))
    compare_with_jax(transforms, arrays, expand_fft, expand_complex, tolerance=1e-4)


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("dtype", [F32, C64, BF16])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", ["no", "transpose", "adjoint"])
def test_triangular_solve(
    extent: int, dtype: DType, left: bool, lower: bool, transpose: str
) -> None:
    a = random(2, extent, extent, dtype=dtype.numpy) * np.array(0.3).astype(dtype.numpy)
    a = (a + 3 * np.eye(extent)).astype(dtype.numpy)
    b = random(*((2, extent, 3) if left else (2, 3, extent)), dtype=dtype.numpy)
    types = (TensorType(dtype, a.shape), TensorType(dtype, b.shape))
    graph = graph_of(lambda a, b: TriangularSolve(a, b, left, lower, extent == 7, transpose), types)
    compare_with_evaluation(
        graph,
        [a, b],
        expand_linear_algebra,
        expand_complex,
        tolerance=6e-2 if dtype is BF16 else 1e-4,
    )


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("dtype", [F32, C64])
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(extent: int, dtype: DType, lower: bool) -> None:
    root = random(2, extent, extent, dtype=dtype.numpy)
    x = root @ np.conj(np.swapaxes(root, 1, 2)) + extent * np.eye(extent)
    x = x.astype(dtype.numpy)
    graph = graph_of(lambda x: Cholesky(x, lower), (TensorType(dtype, x.shape),))
    compare_with_evaluation(graph, [x], expand_linear_algebra, expand_complex, tolerance=1e-4)


@pytest.mark.parametrize("algorithm", ["philox", "three_fry", "default"])
@pytest.mark.parametrize("dtype", [U8, S32, U32, U64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 6), (3, 5), (0, 3)])
def test_random_bits(algorithm: str, dtype: DType, shape: tuple[int, ...]) -> None:
    words = [2**63 + 12345, 2**64 - 3] + ([2**64 - 1] if algorithm != "three_fry" else [])
    state = np.array(words, np.uint64)

    def bits(state: Node) -> tuple[Node, ...]:
        both = RngBits(state, TensorType(dtype, shape), algorithm)
        return Get(both, 0), Get(both, 1)

    graph = graph_of(bits, (TensorType(U64, state.shape),))
    expanded = compare_with_evaluation(graph, [state], expand_random)
    assert not any(isinstance(node, RngBits) for node in expanded.nodes)


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_samples_follow_their_distribution(distribution: str) -> None:
    a, b = Constant(np.array(-1, np.float32)), Constant(np.array(3, np.float32))
    kind = TensorType(F32, (4000,))
    graph = graph_of(
        lambda: (RngUniform(a, b, kind, distribution), RngUniform(a, b, kind, distribution)), ()
    )
    first, second = evaluate(run_passes(graph, (expand_random, simplify)), [])
    assert not np.array_equal(first, second)
    mean, deviation = (1, 4 / 12**0.5) if distribution == "uniform" else (-1, 3)
    assert abs(first.mean() - mean) < 0.15
    assert abs(first.std() - deviation) < 0.15
    if distribution == "uniform":
        assert first.min() >= -1
        assert first.max() < 3


def test_integer_and_truth_samples_stay_in_range() -> None:
    low, high = Constant(np.array(-5, np.int32)), Constant(np.array(3, np.int32))
    false, true = Constant(np.array(False)), Constant(np.array(True))
    graph = graph_of(
        lambda: (
            RngUniform(low, high, TensorType(S32, (500,)), "uniform"),
            RngUniform(false, true, TensorType(PRED, (500,)), "uniform"),
        ),
        (),
    )
    numbers, truths = evaluate(run_passes(graph, (expand_random, simplify)), [])
    assert set(numbers) == set(range(-5, 3))
    assert set(truths) == {True, False}


def _scatter(body: Graph, count: int, unique: bool) -> Callable[..., Node]:
    def build(x: Node, y: Node, u: Node, v: Node, indices: Node) -> Node:
        return Scatter(
            (x, y)[:count], indices, (u, v)[:count], (1,), (0,), (), (), (0, 1), 1, unique, body
        )

    return build


HALVE = scalar_graph(
    "halve",
    [F32, F32],
    lambda a, b: Map("add", (Map("multiply", (a, Constant(np.array(0.5, np.float32)))), b)),
)
SEPARATE = scalar_graph(
    "separate", [F32, S32] * 2, lambda a, i, b, j: (Map("add", (a, b)), Map("maximum", (i, j)))
)
COUPLED = scalar_graph(
    "coupled",
    [F32, S32] * 2,
    lambda a, i, b, j: (Map("select", (Map("less", (i, j)), a, b)), Map("maximum", (i, j))),
)


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize(("body", "count"), [(HALVE, 1), (SEPARATE, 2), (COUPLED, 2)])
def test_scatters(unique: bool, body: Graph, count: int) -> None:
    repeated = [[0, 1], [3, 1], [0, 1], [4, 9], [0, 1]]
    indices = [[0, 1], [3, -1], [2, 2], [4, 1], [0, 5]] if unique else repeated
    arrays = [
        random(6, 7),
        random(6, 7, dtype=np.int32),
        random(5, 2),
        random(5, 2, dtype=np.int32),
        np.array(indices, np.int32),
    ]
    types = [
        TensorType(F32, (6, 7)),
        TensorType(S32, (6, 7)),
        TensorType(F32, (5, 2)),
        TensorType(S32, (5, 2)),
        TensorType(S32, (5, 2)),
    ]
    graph = graph_of(_scatter(body, count, unique), types)
    expanded = compare_with_evaluation(graph, arrays, expand_scatter, tolerance=1e-6)
    has_loop = any(isinstance(node, While) for node in expanded.nodes)
    assert has_loop == (body is not SEPARATE and not unique)


def test_scatter_with_batch_dimensions() -> None:
    arrays = [random(3, 6), random(3, 4), np.random.default_rng(1).integers(-1, 8, (3, 4, 1))]
    arrays[2] = arrays[2].astype(np.int32)
    types = [TensorType(F32, (3, 6)), TensorType(F32, (3, 4)), TensorType(S32, (3, 4, 1))]
    graph = graph_of(
        lambda x, u, i: Scatter((x,), i, (u,), (), (1,), (0,), (0,), (1,), 2, False, HALVE), types
    )
    compare_with_evaluation(graph, arrays, expand_scatter, tolerance=1e-6)


@pytest.mark.parametrize(("narrow", "wide"), [(U8, U32), (BF16, S32), (U8, BF16)])
def test_bitcasts_between_widths(narrow: DType, wide: DType) -> None:
    ratio = wide.bits // narrow.bits

    def both(x: Node, y: Node) -> tuple[Node, ...]:
        return Bitcast(x, wide), Bitcast(y, narrow)

    graph = graph_of(both, (TensorType(narrow, (3, ratio)), TensorType(wide, (3, 2))))
    compare_with_evaluation(graph, random_inputs(graph), expand_bitcast)


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_collectives_of_one_participant_disappear(kind: str) -> None:
    add = scalar_graph("add", [F32, F32], lambda a, b: Map("add", (a, b)))
    bodies = (add,) if "reduce" in kind else ()
    declared = TensorType(F32, (4,))
    graph = graph_of(
        lambda x: Collective((x,), kind, declared, 0, ((0,),), (), bodies), (declared,)
    )
    expanded = compare_with_evaluation(graph, random_inputs(graph), expand_collective)
    assert [type(node) for node in expanded.nodes] == [Parameter]


def test_collectives_of_several_participants_stay() -> None:
    add = scalar_graph("add", [F32, F32], lambda a, b: Map("add", (a, b)))
    declared = TensorType(F32, (4,))
    graph = graph_of(
        lambda x: Collective((x,), "all-reduce", declared, -1, ((0, 1),), (), (add,)), (declared,)
    )
    assert expand_collective(graph, PLAIN) is graph


COMPLEX_FUNCTIONS = (
    "abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "real", "imag", "conj", "sign", "square", "reciprocal",
)  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX_FUNCTIONS)
def test_complex_functions(name: str) -> None:
    x = random(3, 5, dtype=np.complex64)
    compare_with_jax(getattr(jnp, name), (x,), expand_complex, tolerance=5e-5)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "power", "equal"])
def test_complex_functions_of_two(name: str) -> None:
    x, y = (random(3, 5, dtype=np.complex64, seed=seed) for seed in (1, 2))
    y[0] = x[0]
    compare_with_jax(getattr(jnp, name), (x, y), expand_complex, tolerance=5e-5)


COMPLEX_PROGRAMS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y: (x.sum(1), x.prod(0)),
    "cumulative": lambda x, y: jnp.cumsum(x, 1),
    "sort": lambda x, y: jnp.sort(x, 1),
    "matmul": lambda x, y: x @ y.T,
    "loop": lambda x, y: lax.fori_loop(0, 4, lambda i, c: c * y + x, x),
    "branch": lambda x, y: lax.cond(x.real[0, 0] > 0, lambda a, b: a + b, lambda a, b: a * b, x, y),
    "scatter": lambda x, y: x.at[jnp.array([0, 2])].add(y[:2]),
    "gather": lambda x, y: x[jnp.array([2, 1])],
    "select": lambda x, y: jnp.where(x.real > 0, x, y * 2j),
    "pad": lambda x, y: jnp.pad(x, ((1, 2), (0, 1)), constant_values=1j),
    "convert": lambda x, y: (x.real.astype(jnp.complex64) * y, x * (1 + 2j)),
}


@pytest.mark.parametrize("name", COMPLEX_PROGRAMS)
def test_complex_programs(name: str) -> None:
    arrays = (random(3, 5, dtype=np.complex64, seed=1), random(3, 5, dtype=np.complex64, seed=2))
    passes = (expand_complex, *REDUCTIONS, expand_sort, expand_scatter)
    compare_with_jax(COMPLEX_PROGRAMS[name], arrays, *passes, tolerance=5e-5)


def test_a_computation_that_is_not_elementwise_is_refused() -> None:
    def loop(a: Node, b: Node) -> Node:
        more = scalar_graph("more", [F32], lambda x: Map("less", (x, x)))
        halve = scalar_graph("halve", [F32], lambda x: Map("tanh", (x,)))
        return While((Map("add", (a, b)),), more, halve)

    body = scalar_graph("body", [F32, F32], loop)
    start = Constant(np.zeros((), np.float32))
    graph = graph_of(lambda x: Reduce((x,), (start,), (0,), body), (TensorType(F32, (4,)),))
    with pytest.raises(CompileError, match="NCC_EUOC002"):
        expand_reduce(graph, PLAIN)


def test_complex_numbers_without_parts_are_refused() -> None:
    graph = graph_of(lambda x: Bitcast(x, U64), (TensorType(C64, (3,)),))
    with pytest.raises(CompileError, match="NCC_EVRF004"):
        expand_complex(graph, PLAIN)
