"""Equations keep the value of every function of two, whichever operand is which constant."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glia.base.dtype import (
    BF16,
    C64,
    F16,
    F32,
    PRED,
    S8,
    S32,
    S64,
    U8,
    U32,
    DType,
    float_limits,
    integer_limits,
)
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Map
from glia.graph.passes.canonicalize import canonicalize
from glia.graph.passes.simplify import simplify
from glia.graph.rules.constructors import splat
from glia.graph.scalar import FUNCTIONS
from glia.options import CompileOptions

DTYPES = (PRED, U8, S8, S32, U32, S64, F16, BF16, F32, C64)
OPTIONS = CompileOptions(auto_cast="none")


def values_of(dtype: DType) -> list[complex]:
    """Numbers that equations treat specially, and others."""
    if dtype is PRED:
        return [False, True]
    if dtype.is_integer:
        bounds = integer_limits(dtype.numpy)
        found = [0, 1, 2, 5, 8, bounds.min, bounds.max, bounds.max // 2]
        return [*found, -1, -2, -7] if bounds.min else found
    largest = 3e38 if dtype is C64 else float(float_limits(dtype.numpy).max)
    found = [0.0, -0.0, 1, -1, 2, 0.5, -2.5, 3, largest, np.inf, -np.inf, np.nan]
    return [*found, 1j, -1j, 2 - 1j] if dtype is C64 else [*found]


def functions_of(dtype: DType, arity: int) -> list[str]:
    return [
        name
        for name, each in FUNCTIONS.items()
        if each.arity == arity and dtype.kind in each.kinds and each.result != "complex"
    ]


def pairs(x: Node, constants: list[Node]) -> list[Node]:
    """Every function of two, of x and a constant, of a constant and x, and of x twice."""
    operands = [*((x, c) for c in constants), *((c, x) for c in constants), (x, x)]
    return [Map(f, args) for f, args in product(functions_of(x.dtype, 2), operands)]


def nested(x: Node, constants: list[Node]) -> list[Node]:
    """Functions of one and of two, of those of `pairs`."""
    kept = [node for node in pairs(x, constants) if node.dtype is x.dtype]
    inner = [node for node in kept if x.dtype.is_integer or _decides_zeros(node)]
    of_one = [Map(f, (each,)) for f in functions_of(x.dtype, 1) for each in inner]
    of_two = [Map(f, (each, c)) for f in functions_of(x.dtype, 2) for each in inner
              for c in constants]  # fmt: skip
    return [*of_one, *of_two]


def _decides_zeros(node: Node) -> bool:
    """Whether the sign of a zero is defined: not the sign of the extreme of two zeros."""
    chosen = isinstance(node, Map) and node.function in ("maximum", "minimum")
    return not chosen and all(map(_decides_zeros, node.operands))


def check(x: Parameter, results: list[Node], values: np.ndarray) -> None:
    graph = Graph("constants", (x,), tuple(results))
    changed = simplify(canonicalize(graph, OPTIONS), OPTIONS)
    found, wanted = evaluate(changed, [values]), evaluate(graph, [values])
    for node, a, b in zip(results, found, wanted, strict=True):
        assert isinstance(node, Map)
        if node.dtype.is_float:
            a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_array_equal(a, b, err_msg=f"{node.function} of {node.args}")
        if node.dtype.is_float and _decides_zeros(node):
            signs = [np.signbit(np.where(np.isnan(each), 0, each)) for each in (a, b)]
            np.testing.assert_array_equal(*signs, err_msg=f"{node.function} of {node.args}")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_functions_of_a_constant_keep_their_values(dtype: DType) -> None:
    values = np.array(values_of(dtype)).astype(dtype.numpy)
    x = Parameter(0, TensorType(dtype, values.shape), "x")
    check(x, pairs(x, [splat(each, dtype, x.shape) for each in values]), values)


@pytest.mark.parametrize("dtype", [PRED, U8, F32], ids=lambda dtype: dtype.name)
def test_functions_of_functions_of_constants_keep_their_values(dtype: DType) -> None:
    values = np.array(values_of(dtype)).astype(dtype.numpy)
    x = Parameter(0, TensorType(dtype, values.shape), "x")
    check(x, nested(x, [splat(each, dtype, x.shape) for each in values[:3]]), values)
