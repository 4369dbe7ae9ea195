"""Small floats: every target computes with every format, whether its engines have it or not."""

from __future__ import annotations

import numpy as np
import pytest

from glia.base.dtype import (
    BF16,
    DTYPES,
    F4E2M1FN,
    F8E3M4,
    F8E4M3,
    F8E4M3B11FNUZ,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0FNU,
    F16,
    F32,
    U8,
    U32,
    DType,
)
from glia.compiler import compile_graph
from glia.graph.evaluate import evaluate
from glia.graph.expand.small_floats import expand_small_floats
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Bitcast,
    Constant,
    Convert,
    Convolution,
    Dot,
    Iota,
    Map,
    Reduce,
    ReducePrecision,
)
from glia.graph.ops.scalar_regions import combiner
from glia.graph.rules.constructors import constant
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.runtime.model import load
from support.targets import CORES

FORMATS = (
    F8E4M3FN, F8E4M3FNUZ, F8E4M3B11FNUZ, F8E5M2FNUZ, F8E8M0FNU, F4E2M1FN, F8E4M3, F8E5M2, F8E3M4,
)  # fmt: skip


def every_value(dtype: DType) -> np.ndarray:
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


def near_every_value(dtype: DType) -> np.ndarray:
    """float32 numbers at, between and beside the values of a format, and far from all of them."""
    values = every_value(dtype).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    up, down = (np.nextafter(middles, np.float32(to)) for to in (np.inf, -np.inf))
    extremes = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38], np.float32)
    return np.concatenate([values.astype(np.float32), middles, up, down, extremes])


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same bits, NaNs of any bits being one."""
    word = np.dtype(f"u{a.dtype.itemsize}")
    nans = [array.astype(np.float32) for array in (a, b)]
    both_nan = (nans[0] != nans[0]) & (nans[1] != nans[1])
    return bool(np.all((a.view(word) == b.view(word)) | both_nan))


def program(dtype: DType) -> tuple[Graph, list[np.ndarray]]:
    """A graph of conversions, arithmetic, a sum, a contraction and bit patterns of a format."""
    generator = np.random.default_rng(0)
    values = every_value(dtype)
    wide = near_every_value(dtype)
    pair = [values[generator.integers(0, len(values), 64)] for _ in range(2)]
    small = values[len(values) // 4 : len(values) // 2]
    matrices = [small[generator.integers(0, len(small), shape)] for shape in ((5, 12), (12, 4))]
    arrays = [values, wide, *pair, *matrices]
    parameters = tuple(
        Parameter(i, TensorType(F32 if a is wide else dtype, a.shape), f"input{i}")
        for i, a in enumerate(arrays)
    )
    x, y, a, b, left, right = parameters
    start = constant(1, dtype)
    results: tuple[Node, ...] = (
        x,
        Convert(x, F32),
        Convert(y, dtype),
        Map("add", (a, b)),
        Map("multiply", (a, b)),
        Map("maximum", (a, b)),
        Map("less", (a, b)),
        Dot(left, right, (), (), (1,), (0,), F32),
        Reduce((left,), (start,), (1,), combiner("add", dtype)),
    )
    if dtype.bits == 8:
        results += (Bitcast(x, U8), Bitcast(Bitcast(x, U8), dtype))
    return Graph("small_floats", parameters, results), arrays


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("dtype", (*FORMATS, F16, BF16, F32), ids=str)
def test_every_value_becomes_every_integer(dtype: DType, target: str) -> None:
    if dtype in FORMATS:
        values = every_value(dtype)
    else:
        with np.errstate(over="ignore"):
            values = near_every_value(F8E5M2).astype(dtype.numpy)
    x = Parameter(0, TensorType(dtype, values.shape), "x")
    integers = [each for each in DTYPES.values() if each.is_integer]
    graph = Graph("integers", (x,), tuple(Convert(x, each) for each in integers))
    neff = compile_graph(graph, CompileOptions(target=target, auto_cast="none"))
    with np.errstate(all="ignore"):
        wanted = evaluate(graph, [values])
    for each, found, right in zip(integers, load(neff)(values), wanted, strict=True):
        np.testing.assert_array_equal(
            found.astype(np.int64), np.asarray(right).astype(np.int64), f"{dtype} to {each}"
        )


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_every_target_computes_with_every_format(dtype: DType, target: str) -> None:
    graph, arrays = program(dtype)
    with np.errstate(all="ignore"):
        wanted = evaluate(graph, arrays)
        neff = compile_graph(graph, CompileOptions(target=target, auto_cast="none"))
        model = load(neff, device="reference")  # sums in its order, bit by bit
        names = (binding.name for binding in model.inputs)
        results = model.run(dict(zip(names, arrays, strict=True))).values()
    wrong = [
        index
        for index, (result, expected) in enumerate(zip(results, wanted, strict=True))
        if result.dtype != expected.dtype or not same_bits(result, expected)
    ]
    assert wrong == []


@pytest.mark.parametrize("target", CORES)
def test_what_engines_lack_is_gone_after_the_pass(target: str) -> None:
    has_fn = target == "trn3"
    for dtype in FORMATS:
        graph, _ = program(dtype)
        expanded = expand_small_floats(graph, CompileOptions(target=target))
        kinds = {kind.dtype for node in all_nodes(expanded) for kind in tensor_types(node.type)}
        is_native = dtype in (F8E4M3, F8E5M2, F8E3M4) or (has_fn and dtype is F8E4M3FN)
        assert (dtype in kinds) is is_native


@pytest.mark.parametrize("dtype", [F8E4M3FN, F8E5M2FNUZ, F8E8M0FNU, F4E2M1FN], ids=str)
def test_other_operations_round_to_the_format(dtype: DType) -> None:
    """Those of a program that no framework gives small floats alone."""
    values = every_value(dtype)
    x = Parameter(0, TensorType(dtype, (len(values),)), "input0")
    image = Parameter(1, TensorType(dtype, (1, 1, 8)), "input1")
    kernel = Constant(np.ones((1, 1, 3), dtype.numpy))
    window = (1,), (0,), (0,), (1,), (1,), (False,), 1, 1
    results = (
        Iota(TensorType(dtype, (40,)), 0),
        ReducePrecision(x, 3, 1) if dtype is not F8E8M0FNU else x,
        Map("exp", (x,)),
        Map("negate", (x,)),
        Convolution(image, kernel, *window, dtype),
    )
    graph = Graph("others", (x, image), results)
    arrays = [values, values[:8].reshape(1, 1, 8)]
    options = CompileOptions(target="trn1", auto_cast="none")
    with np.errstate(all="ignore"):
        found = evaluate(
            run_pipeline(graph, options, stop_after="simplify_live"),
            [array.view(np.uint8) for array in arrays],
        )
        wanted = evaluate(graph, arrays)
    for result, expected in zip(found, wanted, strict=True):
        assert same_bits(result.view(expected.dtype), expected)


def test_words_of_four_small_floats_are_their_bytes() -> None:
    values = every_value(F8E4M3FN)[:120].reshape(30, 4)
    x = Parameter(0, TensorType(F8E4M3FN, values.shape), "input0")
    graph = Graph("words", (x,), (Bitcast(x, U32), Bitcast(Bitcast(x, U32), F8E4M3FN)))
    model = load(compile_graph(graph, CompileOptions(target="trn2", auto_cast="none")))
    words, back = model.run({"input0": values}).values()
    assert np.array_equal(words, values.view(np.uint32).reshape(30))
    assert same_bits(back, values)
