"""Contractions of any two dtypes are those that the graph's meaning says, on every target."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from glia.base.dtype import (
    BF16,
    F8E4M3FN,
    F8E5M2,
    F16,
    F32,
    PRED,
    S8,
    S16,
    S32,
    U8,
    U16,
    U32,
    DType,
)
from glia.compiler import compile_graph
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Convolution, Dot
from glia.options import CompileOptions
from glia.runtime.model import load
from support.targets import CORES

INTEGERS = (PRED, S8, U8, S16, U16, S32, U32)
FLOATS = (F32, BF16, F16, F8E5M2, F8E4M3FN)
SMALL = 4  # sums of products of such numbers are exact in every float


def operand(dtype: DType, shape: tuple[int, ...], extremes: bool) -> np.ndarray:
    generator = np.random.default_rng([dtype.bits, *shape])
    if dtype is PRED:
        return generator.random(shape) < 0.5
    lowest = 0 if dtype.name.startswith("u") else -SMALL
    values = generator.integers(lowest, SMALL + 1, shape).astype(dtype.numpy)
    if extremes and dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        values.flat[:3] = limits.min, limits.max, limits.max - 1
    return values


def check(pairs: list[tuple[DType, DType, DType]], target: str, extremes: bool) -> None:
    """One program with a product of every pair gives what its graph gives."""
    parameters: list[Parameter] = []
    arrays: list[np.ndarray] = []

    def parameter(dtype: DType, shape: tuple[int, ...]) -> Parameter:
        arrays.append(operand(dtype, shape, extremes))
        number = len(parameters)
        parameters.append(Parameter(number, TensorType(dtype, shape), f"input{number}"))
        return parameters[-1]

    results: list[Node] = [
        Dot(parameter(a, (4, 5)), parameter(b, (5, 6)), (), (), (1,), (0,), result)
        for a, b, result in pairs
    ]
    graph = Graph("products", tuple(parameters), tuple(results))
    model = load(compile_graph(graph, CompileOptions(target=target, auto_cast="none")))
    names = (binding.name for binding in model.inputs)
    found = model.run(dict(zip(names, arrays, strict=True))).values()
    wanted = evaluate(graph, arrays)
    wrong = [
        pair
        for pair, result, expected in zip(pairs, found, wanted, strict=True)
        if result.dtype != expected.dtype or not np.array_equal(result, expected)
    ]
    assert wrong == []


@pytest.mark.parametrize("target", CORES)
def test_integers_of_any_widths(target: str) -> None:
    pairs = list(itertools.combinations_with_replacement(INTEGERS, 2))
    results = itertools.cycle((S32, U32, S8, U16))
    check([(a, b, next(results)) for a, b in pairs], target, extremes=True)


@pytest.mark.parametrize("target", CORES)
def test_floats_with_any_other_dtype(target: str) -> None:
    pairs = [(a, b) for a in FLOATS for b in (*FLOATS, PRED, S8, S16, U32)]
    results = itertools.cycle((F32, BF16))
    check([(a, b, next(results)) for a, b in pairs], target, extremes=False)


@pytest.mark.parametrize("pair", [(S8, U8), (U32, U32), (BF16, S8), (PRED, S32)], ids=str)
def test_convolutions_of_two_dtypes(pair: tuple[DType, DType]) -> None:
    arrays = [operand(pair[0], (1, 2, 8), True), operand(pair[1], (3, 2, 3), False)]
    x, kernel = (Parameter(i, TensorType(d, a.shape), f"input{i}")
                 for i, (d, a) in enumerate(zip(pair, arrays, strict=True)))  # fmt: skip
    result = F32 if BF16 in pair else pair[1]
    window = (1,), (1,), (1,), (1,), (1,), (False,), 1, 1
    graph = Graph("convolution", (x, kernel), (Convolution(x, kernel, *window, result),))
    model = load(compile_graph(graph, CompileOptions(target="trn2", auto_cast="none")))
    names = (binding.name for binding in model.inputs)
    (found,) = model.run(dict(zip(names, arrays, strict=True))).values()
    np.testing.assert_array_equal(found, evaluate(graph, arrays)[0])
