"""Window rows as channels: the same convolution, done where it pays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glia.arch import get_target
from glia.base.dtype import F32
from glia.graph.evaluate import evaluate
from glia.graph.ir import Graph, Parameter, TensorType
from glia.graph.ops import Convolution
from glia.graph.passes.fold_windows import (
    copying_ns,
    fold_windows,
    foldable_dimensions,
    saved_ns,
    with_rows_as_channels,
)
from glia.options import CompileOptions

Numbers = tuple[int, ...]


def convolution(x: Numbers, kernel: Numbers, **changes: object) -> Graph:
    """A convolution of two parameters, plain but for `changes`."""
    rank = len(x) - 2
    first = Parameter(0, TensorType(F32, x), "x")
    second = Parameter(1, TensorType(F32, kernel), "kernel")
    ones, zeros = (1,) * rank, (0,) * rank
    plain = {
        "stride": ones, "low": zeros, "high": zeros, "x_dilation": ones, "kernel_dilation": ones,
        "kernel_reversal": (False,) * rank, "groups": 1, "batch_groups": 1, "result_dtype": F32,
    }  # fmt: skip
    op = Convolution(first, second, **(plain | changes))
    return Graph("convolution", (first, second), (op,), ("y",))


def the_convolution(graph: Graph) -> Convolution:
    (found,) = [node for node in graph.nodes if isinstance(node, Convolution)]
    return found


def check(graph: Graph, folded: Numbers) -> None:
    """Folding these dimensions keeps the value."""
    op = the_convolution(graph)
    after = Graph(graph.name, graph.parameters, (with_rows_as_channels(op, folded),), ("y",))
    random = np.random.default_rng(0)
    inputs = [random.normal(size=p.shape).astype(np.float32) for p in graph.parameters]
    expected, found = (evaluate(g, inputs)[0] for g in (graph, after))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    channels = op.x.shape[1] * int(np.prod([op.kernel.shape[2 + d] for d in folded]))
    assert the_convolution(after).x.shape[1] == channels


@given(
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    low=st.tuples(st.integers(-2, 3), st.integers(0, 2)),
    high=st.tuples(st.integers(-1, 3), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    reversal=st.tuples(st.booleans(), st.booleans()),
    window=st.tuples(st.integers(2, 3), st.integers(1, 3)),
)
@settings(max_examples=60, deadline=None)
def test_folding_keeps_the_value(stride, low, high, dilation, reversal, window) -> None:
    graph = convolution(
        (2, 3, 11, 9), (4, 3, *window), stride=stride, low=low, high=high,
        kernel_dilation=dilation, kernel_reversal=reversal,
    )  # fmt: skip
    check(graph, (0,))


@pytest.mark.parametrize("folded", [(0,), (1,), (0, 1)])
def test_any_of_three_dimensions_folds(folded: Numbers) -> None:
    graph = convolution((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), stride=(1, 2, 1), low=(1, 0, 1))
    check(graph, folded)


STEM = convolution((1, 3, 224, 224), (64, 3, 7, 7), stride=(2, 2), low=(3, 3), high=(3, 3))


def test_the_stem_of_an_image_model_is_folded() -> None:
    op = the_convolution(fold_windows(STEM, CompileOptions(target="trn2")))
    assert op.x.shape == (1, 21, 112, 224)
    assert op.kernel.shape == (64, 21, 1, 7)


@pytest.mark.parametrize(
    "graph",
    [
        convolution((1, 64, 56, 56), (64, 64, 3, 3)),  # channels enough
        convolution((8, 4, 32, 32), (4, 1, 3, 3), groups=4),
        convolution((1, 3, 400), (8, 3, 7)),  # one dimension: copies would not be contiguous
        convolution((1, 3, 12, 12), (8, 3, 3, 3)),  # too small to pay
        convolution((1, 3, 64, 64), (64, 3, 7, 7), x_dilation=(2, 2)),
    ],
)
def test_others_stay_as_they_are(graph: Graph) -> None:
    assert fold_windows(graph, CompileOptions(target="trn2")) is graph


def test_what_is_saved_and_what_copies_cost_decide() -> None:
    arch = get_target("trn2").arch
    op = the_convolution(STEM)
    assert foldable_dimensions(op, arch.partitions) == (0,)
    assert saved_ns(op, (0,), arch) > 5 * copying_ns(op, (0,), arch)
    # 49 products of 98 blocks of positions by 64 features, of which 6 in 7 go, 4 passes each
    assert saved_ns(op, (0,), arch) == pytest.approx(42 * 98 * 64 * 4 / 2.4, rel=0.01)
