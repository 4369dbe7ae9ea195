"""Numbers of 64 bits from the model to the device: exact integers, floats on request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glia
from glia.base.dtype import C128, F32, F64, S32, S64, U8, U32, U64, DType
from glia.base.errors import CompileError
from glia.graph.expand.float64 import expand_float64
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import (
    Bitcast,
    Collective,
    Constant,
    Convert,
    Dot,
    Iota,
    Map,
    Reduce,
    ReducePrecision,
    Scatter,
    Sort,
    combiner,
    scalar_graph,
)
from glia.graph.participants import evaluate_participants
from glia.graph.passes.downcast_integers import downcast_integers
from glia.graph.rules.constructors import constant, splat
from glia.options import CompileOptions
from support.graph_passes_kit import assert_same, graph_of, run
from support.targets import CORES

EDGES = np.array(
    [0, 1, -1, -7, 2**31, -(2**31) - 1, 2**32 - 1, 2**53 + 1, 2**63 - 1, -(2**63)], np.int64
)

Array = np.ndarray[Any, Any]


def run_graph(graph: Graph, *arrays: Array, **options: Any) -> list[Array]:
    """The graph compiled and run."""
    return glia.load(glia.compile(graph, **options))(*arrays)


def everything(x: Node, y: Node, i: Node) -> tuple[Node, ...]:
    """A little of all that integers do."""
    dtype = x.dtype
    zero = constant(0, dtype)
    order = scalar_graph("order", [dtype] * 2, lambda a, b: Map("less", (a, b)))
    binary = ("add", "multiply", "divide", "remainder", "less", "maximum", "shift_right_logical")
    return (
        *(Map(function, (x, y)) for function in binary),
        Convert(x, F32),
        Map("add", (x, Iota(TensorType(dtype, x.shape), 0))),
        Reduce((x,), (zero,), (0,), combiner("add", dtype)),
        Sort((x,), 0, True, order),
        Scatter((x,), i, (y,), (), (0,), (), (), (0,), 1, False, combiner("add", dtype)),
        Dot(x, y, (), (), (0,), (0,), dtype),
    )


@pytest.mark.parametrize(
    ("target", "kind"),
    [*((target, np.int64) for target in CORES), ("trn1", np.uint64), ("trn2", np.uint64)],
)
def test_integers_of_64_bits_are_exact_on_every_target(target: str, kind: type) -> None:
    x, y = EDGES.view(kind), np.roll(EDGES, 3).view(kind)
    i = np.array([3, 3, 2**40, -1, 0, 9, 10, 2**32 + 3, 3, 5])[:, None]
    types = [TensorType(S64 if kind is np.int64 else U64, x.shape)] * 2
    graph = graph_of(everything, [*types, TensorType(S64, i.shape)])
    found = run_graph(graph, x, y, i, target=target)
    assert_same(found, run(graph, graph, [x, y, i]))


def sum_of(dtype: DType) -> Graph:
    """x + x."""
    return graph_of(lambda x: Map("add", (x, x)), [TensorType(dtype, (3,))])


def test_disabled_int64_takes_32_bits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    x, graph = np.array([5, 2**31, 2**40]), sum_of(S64)
    exact = glia.compile(graph)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        narrow = glia.compile(graph, native_int64="disabled")
    assert "64-bit integers are computed in 32 bits, first in parameter" in caplog.text
    assert glia.load(exact)(x)[0].tolist() == [10, 2**32, 2**41]
    assert glia.load(narrow)(x)[0].tolist() == [10, 0, 0]
    assert len(list(narrow.program.instructions())) < len(list(exact.program.instructions()))


def test_enabled_int64_is_the_default() -> None:
    (found,) = run_graph(sum_of(S64), np.array([5, 2**31, 2**40]), native_int64="enabled")
    assert found.tolist() == [10, 2**32, 2**41]


def opcodes(neff: Any) -> set[str]:
    """The names of a program's instructions."""
    return {type(instruction).__name__ for instruction in neff.program.instructions()}


def test_integer_products_are_rounded_only_on_request(caplog: pytest.LogCaptureFixture) -> None:
    kind = TensorType(S32, (16, 16))
    graph = graph_of(lambda x, y: Dot(x, y, (), (), (1,), (0,), S32), [kind, kind])
    x = np.full((16, 16), 2**12 + 1, np.int32)
    exact = glia.compile(graph)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        rounded = glia.compile(graph, implicit_integer_downcast=("dot",))
    assert "dot of s32 is computed in float32, exact up to 2^24" in caplog.text
    other = glia.compile(graph, implicit_integer_downcast=("scatter", "pow"))
    wanted = x @ x
    assert_same(glia.load(exact)(x, x), [wanted])
    assert_same(glia.load(other)(x, x), [wanted])
    (found,) = glia.load(rounded)(x, x)
    assert found.tolist() != wanted.tolist()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert "NcMatmul" in opcodes(rounded)
    assert "NcMatmul" not in opcodes(exact)


def scattered(dtype: DType) -> Graph:
    """x with updates added at indices."""
    types = [TensorType(dtype, (4,)), TensorType(S32, (3, 1)), TensorType(dtype, (3,))]
    body = combiner("add", dtype)
    return graph_of(
        lambda x, i, u: Scatter((x,), i, (u,), (), (0,), (), (), (0,), 1, False, body), types
    )


def powers() -> Graph:
    """x to the y."""
    return graph_of(lambda x, y: Map("power", (x, y)), [TensorType(S64, (2,))] * 2)


DOWNCASTS: dict[str, tuple[Callable[[], Graph], list[Array], str]] = {
    "scatter": (
        lambda: scattered(U32),
        [np.array([2**24, 1, 2, 3], np.uint32), np.array([[0], [0], [2]], np.int32),
         np.ones(3, np.uint32)],
        "scatter of u32",
    ),
    "pow": (powers, [np.array([3, 2]), np.array([4, 40])], "pow of s64 is computed in 32 bits"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOWNCASTS)
def test_integers_are_downcast_by_name(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, arrays, said = DOWNCASTS[name]
    graph = make()
    wanted = run(graph, graph, arrays)
    assert_same(run_graph(graph, *arrays), wanted)
    for asked in ((name,), ("all",)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            (found,) = run_graph(graph, *arrays, implicit_integer_downcast=asked)
        assert said in caplog.text
        assert found.tolist() != wanted[0].tolist()


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter"])
def test_reductions_among_cores_are_downcast_by_name(kind: str) -> None:
    given = TensorType(S32, (2,))
    gives = given if kind == "all-reduce" else TensorType(S32, (1,))
    along = -1 if kind == "all-reduce" else 0
    body = (combiner("add", S32),)
    graph = graph_of(lambda x: Collective((x,), kind, gives, along, ((0, 1),), (), body), [given])
    name = kind.replace("-", "_")
    options = CompileOptions(implicit_integer_downcast=(name,))
    arrays = [[np.array([2**24, 1], np.int32)], [np.array([1, 2], np.int32)]]
    exact = evaluate_participants(graph, arrays)
    rounded = evaluate_participants(downcast_integers(graph, options), arrays)
    assert exact[0][0][0] == 2**24 + 1
    assert rounded[0][0][0] == 2**24
    assert downcast_integers(graph, CompileOptions()) is graph


AS_F32 = CompileOptions(auto_cast="none", f64="as-f32")


def float64_edges() -> Array:
    """Floats at every border of float32, and random bits."""
    tiny = 2.0**-149
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 3.4028235e38,
             3.4028235677973366e38, 1e39, -1e39, tiny, tiny / 2, tiny / 2 * (1 + 2.0**-40),
             1.5 * tiny, 2.5 * tiny, 2.0**-126 - tiny / 2, 5e-324, 1e-310, -1e-42]  # fmt: skip
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**64, 200, dtype=np.uint64).view(np.float64)
    near = np.ldexp(generator.standard_normal(300), generator.integers(-155, 130, 300))
    return np.concatenate([edges, bits, near])


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_f64_is_rounded_on_the_device_as_numpy_rounds(target: str) -> None:
    x = float64_edges()
    graph = graph_of(lambda x: (Convert(x, F32), x), [TensorType(F64, x.shape)])
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float32)
    rounded, whole = run_graph(graph, x, target=target, f64="as-f32")
    assert_same([rounded, whole], [wanted, wanted.astype(np.float64)])


def test_f64_computes_in_float32(caplog: pytest.LogCaptureFixture) -> None:
    x = np.random.default_rng(1).standard_normal((4, 6))
    third = Constant(np.full((4, 6), 1 / 3))
    graph = graph_of(
        lambda x: Map("multiply", (Map("sin", (x,)), third)), [TensorType(F64, (4, 6))]
    )
    with caplog.at_level(logging.WARNING):
        (found,) = run_graph(graph, x, f64="as-f32")
    assert "64-bit floats are computed in float32, first in parameter" in caplog.text
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.sin(x) / 3, rtol=1e-6)
    assert np.array_equal(found, found.astype(np.float32))


def test_complex128_computes_in_complex64() -> None:
    generator = np.random.default_rng(2)
    x = generator.standard_normal(5) + 1j * generator.standard_normal(5)
    kind = TensorType(C128, (5,))
    (found,) = run_graph(graph_of(lambda x: Map("multiply", (x, x)), [kind]), x, f64="as-f32")
    assert found.dtype == np.complex128
    np.testing.assert_allclose(found, x * x, rtol=1e-6)


@pytest.mark.parametrize("part", [U64, U32, U8])
def test_the_bits_of_f64_are_those_of_the_rounded_value(part: DType) -> None:
    x = np.array([1.0, -2.5, 0.1, 1e300, 0.0, np.inf])
    graph = graph_of(lambda x: Bitcast(Bitcast(x, part), F64), [TensorType(F64, x.shape)])
    lowered = expand_float64(graph, AS_F32)
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float32).astype(np.float64)
    assert_same(run(lowered, graph, [x]), [wanted])
    bits = graph_of(lambda x: Bitcast(x, part), [TensorType(F64, x.shape)])
    assert_same(run(expand_float64(bits, AS_F32), bits, [wanted]), run(bits, bits, [wanted]))


def test_precision_beyond_float32_is_what_float32_has() -> None:
    x = np.array([1 + 2.0**-23, 1e30, -3.25])
    graph = graph_of(lambda x: ReducePrecision(x, 11, 40), [TensorType(F64, x.shape)])
    assert_same(
        run(expand_float64(graph, AS_F32), graph, [x]), [x.astype(np.float32).astype(np.float64)]
    )


@pytest.mark.parametrize("dtype", [F64, C128])
def test_wide_floats_are_refused_with_the_cure(dtype: DType) -> None:
    graph = graph_of(lambda x: Map("negate", (x,)), [TensorType(dtype, (3,))])
    with pytest.raises(CompileError, match=r"NCC_ESPP004[\s\S]*parameter x0[\s\S]*--f64 as-f32"):
        glia.compile(graph)


def test_a_wide_number_that_is_converted_at_once_is_no_f64() -> None:
    half = Convert(splat(0.5, F64, (3,)), F32)
    graph = graph_of(lambda x: Map("multiply", (x, half)), [TensorType(F32, (3,))])
    (found,) = run_graph(graph, np.array([1, 2, 4], np.float32))
    assert found.tolist() == [0.5, 1.0, 2.0]
