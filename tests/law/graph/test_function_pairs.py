"""Functions of functions of integers keep their values when they are simplified, in every dtype."""

from __future__ import annotations

import numpy as np
import pytest

from glia.base.dtype import PRED, S8, S16, S32, U8, U16, U32, DType
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Constant, Map
from glia.graph.passes.simplify import simplify
from glia.options import CompileOptions

DTYPES = (S8, U8, S16, U16, S32, U32)
UNARY = ("not", "sign", "popcount", "count_leading_zeros", "square", "negate", "abs")
BINARY = (
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor",
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "shift_left",
    "shift_right_logical", "shift_right_arithmetic",
)  # fmt: skip


def _forms(x: Node, y: Node) -> list[Node]:
    """Every function of every function of two tensors, and of one tensor in both places."""
    inner = [Map(f, (x,)) for f in UNARY]
    inner += [Map(f, pair) for f in BINARY for pair in ((x, y), (x, x), (x, _like(1, y)))]
    found: list[Node] = []
    for each in inner:
        if each.dtype is PRED:
            found += [Map("not", (each,)), Map("select", (each, x, y))]
            continue
        found += [Map(f, (each,)) for f in UNARY]
        found += [Map(f, args) for f in BINARY for args in ((each, x), (y, each))]
    return found


def _like(value: int, x: Node) -> Node:
    return Constant(np.full(x.shape, value, x.dtype.numpy))


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
@pytest.mark.parametrize("part", range(4))
def test_pairs_of_functions_keep_their_values(dtype: DType, part: int) -> None:
    limits = np.iinfo(dtype.numpy)
    edges = [0, 1, 2, 5, 7, limits.max, limits.max - 1, limits.min, limits.min + 1, 25, 31]
    first = np.array(edges, dtype.numpy)
    kind = TensorType(dtype, first.shape)
    x, y = Parameter(0, kind), Parameter(1, kind)
    results = tuple(_forms(x, y)[part::4])
    graph = Graph("pairs", (x, y), results)
    simplified = simplify(graph, CompileOptions())
    assert simplified.results != results
    for shift in range(3):
        arrays = [first, np.roll(first, 1 + 4 * shift)]
        wanted, found = evaluate(graph, arrays), evaluate(simplified, arrays)
        for before, a, b in zip(results, found, wanted, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(before))
