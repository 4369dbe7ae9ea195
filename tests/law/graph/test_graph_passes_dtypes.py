"""Precision and integer-width policies keep types outside and values inside."""

from __future__ import annotations

import logging
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from glia.base.dtype import (
    BF16,
    F8E4M3,
    F8E4M3FN,
    F8E4M3FNUZ,
    F16,
    F32,
    F64,
    PRED,
    S2,
    S4,
    S8,
    S32,
    S64,
    U2,
    U4,
    U8,
    U16,
    U32,
    U64,
    DType,
    from_numpy,
)
from glia.base.errors import CompileError
from glia.graph.evaluate import evaluate, random_inputs
from glia.graph.expand.bitcast import expand_bitcast
from glia.graph.expand.int64 import expand_int64
from glia.graph.expand.nibbles import widen_nibbles
from glia.graph.expand.reduce import expand_reduce
from glia.graph.expand.reduce_window import expand_reduce_window
from glia.graph.expand.sorting.sort import expand_sort
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import (
    Bitcast,
    Broadcast,
    Collective,
    Constant,
    Convert,
    Convolution,
    Dot,
    Gather,
    Iota,
    Map,
    Reduce,
    ReducePrecision,
    ReduceWindow,
    Sort,
)
from glia.graph.ops.scalar_regions import combiner, identity, scalar_graph
from glia.graph.passes.cast_dtypes import cast_dtypes
from glia.graph.passes.check_dtypes import check_dtypes
from glia.graph.passes.narrow_integers import narrow_integers
from glia.graph.passes.simplify import simplify
from glia.graph.rules.constructors import counted_loop
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions
from support.graph_passes_kit import NARROW, PLAIN, Array, assert_same, graph_of, run, run_passes

MATRICES = (TensorType(F32, (5, 7)), TensorType(F32, (7, 3)))


def product(x: Node, y: Node) -> Node:
    """exp of a contraction."""
    return Map("exp", (Dot(x, y, (), (), (1,), (0,), F32),))


def dtypes_of(graph: Graph) -> set[DType]:
    """Every dtype in a graph and its regions."""
    return {kind.dtype for node in all_nodes(graph) for kind in tensor_types(node.type)}


def cast(graph: Graph, **options: object) -> Graph:
    """The graph under the precision policy of these options."""
    return run_passes(graph, (cast_dtypes,), CompileOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "target", "narrow"),
    [
        ("bf16", "trn1", BF16),
        ("fp16", "trn2", F16),
        ("fp8_e4m3", "trn2", F8E4M3),
        ("fp8_e4m3", "trn3", F8E4M3FN),
    ],
)
def test_matmult_casts_operands_only(kind: str, target: str, narrow: DType) -> None:
    graph = graph_of(product, MATRICES)
    lowered = cast(graph, auto_cast="matmult", auto_cast_type=kind, target=target)
    (dot,) = (node for node in lowered.nodes if isinstance(node, Dot))
    assert (dot.a.dtype, dot.b.dtype, dot.result_dtype) == (narrow, narrow, F32)
    assert lowered.results[0].dtype is F32
    assert isinstance(lowered.results[0], Map)
    inputs = random_inputs(graph)
    tolerance = 0.5 if narrow.bits == 8 else 0.1
    assert_same(evaluate(lowered, inputs), evaluate(graph, inputs), tolerance)


@pytest.mark.parametrize("extent", ["matmult", "all"])
def test_tf32_rounds_the_operands_of_contractions(extent: str) -> None:
    lowered = cast(graph_of(product, MATRICES), auto_cast=extent, auto_cast_type="tf32")
    (dot,) = (node for node in lowered.nodes if isinstance(node, Dot))
    for operand in dot.operands:
        assert isinstance(operand, ReducePrecision)
        assert (operand.exponent_bits, operand.mantissa_bits) == (8, 10)
    assert dtypes_of(lowered) == {F32}


def test_values_beyond_fp8_saturate() -> None:
    graph = graph_of(product, (TensorType(F32, (1, 1)), TensorType(F32, (1, 1))))
    lowered = cast(graph, auto_cast="matmult", auto_cast_type="fp8_e4m3")
    inputs = [np.full((1, 1), 1e9, np.float32), np.full((1, 1), 1e-2, np.float32)]
    (value,) = evaluate(lowered, inputs)
    assert np.isfinite(value).all()


def test_none_leaves_the_graph_alone() -> None:
    graph = graph_of(product, MATRICES)
    assert cast(graph, auto_cast="none") is graph


def _loop(x: Node, y: Node) -> Node:
    def body(i: Node, x: Node) -> tuple[Node, ...]:
        return (Map("tanh", (x,)),)

    (looped,) = counted_loop("loop", 3, (Map("exp", (x,)),), body)
    return Map("add", (looped, Broadcast(Constant(np.array(2, np.float32)), x.shape, ())))


@pytest.mark.parametrize(("kind", "narrow"), [("bf16", BF16), ("fp16", F16)])
def test_all_casts_everything_inside(kind: str, narrow: DType) -> None:
    graph = graph_of(_loop, (TensorType(F32, (4,)), TensorType(F32, ())))
    lowered = cast(graph, auto_cast="all", auto_cast_type=kind)
    maps = [node for node in all_nodes(lowered) if isinstance(node, Map) and node.dtype.is_float]
    assert maps
    assert {node.dtype for node in maps} == {narrow}
    assert [p.dtype for p in lowered.parameters] == [F32, F32]
    inputs = random_inputs(graph)
    assert_same(evaluate(lowered, inputs), evaluate(graph, inputs), 0.05)


def test_all_keeps_bits_and_spectra_in_float32() -> None:
    graph = graph_of(
        lambda x: (Bitcast(x, U32), Map("abs", (Map("complex", (x, x)),))), (TensorType(F32, (3,)),)
    )
    lowered = cast(graph, auto_cast="all", auto_cast_type="bf16")
    inputs = [np.array([1.5, -2, 0.25], np.float32)]
    assert_same(evaluate(lowered, inputs), evaluate(graph, inputs), 1e-2)


@pytest.mark.parametrize("is_wide", [True, False])
def test_low_precision_sums_accumulate_in_float32_when_asked(is_wide: bool) -> None:
    zero = Constant(np.zeros((), ml_dtypes.bfloat16))
    graph = graph_of(
        lambda x: Reduce((x,), (zero,), (0,), combiner("add", BF16)), (TensorType(BF16, (9, 2)),)
    )
    lowered = cast(graph, auto_cast="none", mixed_precision_accumulation=is_wide)
    (total,) = (node for node in lowered.nodes if isinstance(node, Reduce))
    assert total.dtype is (F32 if is_wide else BF16)
    assert lowered.results[0].dtype is BF16


@pytest.mark.parametrize(("dtype", "code"), [(F64, "NCC_ESPP004"), (F8E4M3FNUZ, "NCC_ESPP047")])
def test_dtypes_without_hardware_are_refused(dtype: DType, code: str) -> None:
    graph = graph_of(lambda x: Map("exp", (x,)), (TensorType(dtype, (3,)),))
    with pytest.raises(CompileError, match=code):
        check_dtypes(graph, CompileOptions(product_limits=True))


def test_only_the_product_refuses_small_floats() -> None:
    graph = graph_of(lambda x: Map("exp", (x,)), (TensorType(F8E4M3FNUZ, (3,)),))
    assert check_dtypes(graph, PLAIN) is graph


EDGES = np.array(
    [0, 1, -1, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**33 + 5, -7, 10, 3], np.int64
)
_WIDE = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 12)
FIRST = np.concatenate([EDGES, _WIDE])
SECOND = np.concatenate([np.roll(EDGES, 3), _WIDE >> 23])

BINARY = (
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor",
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal",
)  # fmt: skip
SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")
UNARY = ("not", "sign", "popcount", "count_leading_zeros", "square", "negate", "abs")


def compare(
    build: Callable[..., Node | tuple[Node, ...]],
    arrays: list[Array],
    *passes: Callable[..., Graph],
    options: CompileOptions = PLAIN,
    gone: tuple[DType, ...] = (S64, U64),
) -> None:
    """The passes remove the dtypes `gone` and keep every value."""
    graph = graph_of(build, [TensorType(from_numpy(a.dtype), a.shape) for a in arrays])
    lowered = run_passes(graph, (*passes, simplify), options)
    assert not dtypes_of(lowered) & set(gone)
    assert_same(run(lowered, graph, arrays), evaluate(graph, arrays))


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize("function", BINARY)
def test_native_integers_of_64_bits(kind: type, function: str) -> None:
    arrays = [FIRST.view(kind), SECOND.view(kind)]
    compare(lambda x, y: Map(function, (x, y)), arrays, expand_int64)


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize("function", SHIFTS)
def test_native_shifts(kind: type, function: str) -> None:
    amounts = (np.arange(FIRST.size) * 3 - 3).astype(kind)
    arrays = [FIRST.view(kind), amounts]
    compare(lambda x, y: Map(function, (x, y)), arrays, expand_int64)


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize("function", UNARY)
def test_native_functions_of_one(kind: type, function: str) -> None:
    arrays = [FIRST.view(kind)]
    compare(lambda x: Map(function, (x,)), arrays, expand_int64)


@pytest.mark.parametrize("wide", [S64, U64])
@pytest.mark.parametrize("other", [F32, BF16, S32, S8, U8, U32, PRED])
def test_native_conversions(wide: DType, other: DType) -> None:
    outside = FIRST.view(wide.numpy)
    compare(lambda x: Convert(x, other), [outside], expand_int64)
    values = np.array([0, 1.5, -2.7, 100, -100, 3e9, 1e15, 2.0**63, -(2.0**63), 1e19, -1e19,
                       np.nan, np.inf, -np.inf], np.float32)  # fmt: skip
    narrow = evaluate(
        graph_of(lambda x: Convert(x, other), (TensorType(F32, values.shape),)), [values]
    )
    compare(lambda x: Convert(x, wide), narrow, expand_int64)


@pytest.mark.parametrize("wide", [S64, U64])
def test_native_programs(wide: DType) -> None:
    x = FIRST.view(wide.numpy)
    zero = Constant(np.zeros((), wide.numpy))
    order = scalar_graph("order", [wide, wide], lambda a, b: Map("less", (a, b)))
    indices = np.array([[3], [2**40], [-1]], np.int64)
    compare(
        lambda x, i: (
            Reduce((x,), (zero,), (0,), combiner("add", wide)),
            Sort((x,), 0, True, order),
            Gather(x, i, (), (0,), (), (), (0,), 1, (1,)),
            Bitcast(x, U32),
            Bitcast(x, U8),
            Iota(TensorType(wide, (2, 3)), 1),
        ),
        [x, indices],
        expand_int64,
        expand_reduce,
        expand_sort,
        expand_bitcast,
    )


@pytest.mark.parametrize("wide", [S64, U64])
@pytest.mark.parametrize("depth", [1, 7, 300])
def test_contractions_of_64_bits_are_exact(wide: DType, depth: int) -> None:
    generator = np.random.default_rng(depth)
    low, high = (0, 2**64) if wide is U64 else (-(2**63), 2**63)
    x = generator.integers(low, high, (3, depth), wide.numpy)
    y = generator.integers(low, high, (depth, 2), wide.numpy)
    x[0], y[:, 0] = np.iinfo(x.dtype).max, np.iinfo(x.dtype).min
    compare(lambda x, y: Dot(x, y, (), (), (1,), (0,), wide), [x, y], expand_int64)


@pytest.mark.parametrize("narrow", [S32, U32, S8, U8, PRED])
def test_contractions_of_narrow_integers_into_64_bits_are_exact(narrow: DType) -> None:
    generator = np.random.default_rng(narrow.bits)
    x, y = (generator.integers(0, 2**narrow.bits, shape, np.uint64).astype(narrow.numpy)
            for shape in ((3, 40), (40, 2)))  # fmt: skip
    compare(lambda x, y: Dot(Convert(x, S64), y, (), (), (1,), (0,), S64), [x, y], expand_int64)
    compare(lambda x, y: Dot(x, y, (), (), (1,), (0,), S64), [x, y], expand_int64)


def test_convolutions_of_64_bits_are_exact() -> None:
    x = np.resize(FIRST, (1, 3, 20))
    kernel = np.resize(SECOND, (4, 3, 5))
    attributes = ((1,), (2,), (1,), (1,), (1,), (False,), 1, 1)
    compare(lambda x, k: Convolution(x, k, *attributes, S64), [x, kernel], expand_int64)


REDUCED = {
    "random": np.resize(FIRST, (5, 24)),
    "the most terms of a sum of halves": np.full((1, 65536), -1),
    "more terms": np.resize(SECOND, (1, 65537)),
    "equal high words": np.resize([2**40 + 5, 2**40 + 2**31, 2**40, -(2**40) - 1], (3, 8)),
    "one element": FIRST[:4, None],
}


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize("function", ["add", "minimum", "maximum"])
def test_reductions_of_64_bits(name: str, kind: type, function: str) -> None:
    x = REDUCED[name].view(kind)
    dtype = from_numpy(x.dtype)
    for start in (identity(function, dtype), np.array(7, kind)):
        init = Constant(start)
        body = combiner(function, dtype)
        compare(lambda x: Reduce((x,), (init,), (1,), body), [x], expand_int64, expand_reduce)  # noqa: B023


@pytest.mark.parametrize("function", ["add", "maximum"])
def test_windows_of_64_bits(function: str) -> None:
    x, init = np.resize(FIRST, (3, 20)), Constant(identity(function, S64))
    body = combiner(function, S64)
    window = ((1, 5), (1, 2), (0, 4), (0, 1), (1, 1), (1, 1))
    passes = (expand_int64, expand_reduce_window)
    compare(lambda x: ReduceWindow((x,), (init,), *window, body), [x], *passes)


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_powers_of_64_bits_wrap(kind: type) -> None:
    base = np.array([0, 1, -1, 2, -2, 3, 2**31, 2**32 + 1, -7, 10, 0, 5, -1, 1, 2, 0], np.int64)
    exponent = np.array([0, 9, 9, 62, 63, 40, 2, 3, 21, 19, -1, -2, -3, -4, -5, 3], np.int64)
    arrays = [base.view(kind), exponent.view(kind)]
    compare(lambda x, y: Map("power", (x, y)), arrays, expand_int64)


def test_collectives_of_64_bits_have_no_datapath() -> None:
    kind, groups = TensorType(S64, (2,)), ((0, 1),)
    body = (combiner("add", S64),)
    graph = graph_of(lambda x: Collective((x,), "all-reduce", kind, -1, groups, (), body), (kind,))
    with pytest.raises(CompileError, match="NCC_EVRF035"):
        expand_int64(graph, PLAIN)


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize("function", ["add", "multiply", "divide", "maximum", "less", "subtract"])
def test_narrow_integers_keep_small_values(kind: type, function: str) -> None:
    x = np.arange(1000, 1020).astype(kind)
    y = np.arange(1, 21).astype(kind)
    compare(lambda x, y: Map(function, (x, y)), [x, y], narrow_integers, options=NARROW)


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_narrow_integers_count_their_missing_zeros(kind: type) -> None:
    x = np.array([0, 1, 77, 2**30]).astype(kind)
    compare(lambda x: Map("count_leading_zeros", (x,)), [x], narrow_integers, options=NARROW)


def test_narrow_integers_keep_negative_values_outside() -> None:
    x = np.array([-1, -(2**31), 2**31 - 1, 5])
    compare(lambda x: Map("subtract", (x, x)), [x], narrow_integers, options=NARROW)
    compare(lambda x: Map("maximum", (x, x)), [x], narrow_integers, options=NARROW)


@pytest.mark.parametrize("part", [U32, U16])
def test_bits_pass_through_narrow_integers(part: DType) -> None:
    x = np.array([7, 2**31 + 5], np.uint64)
    compare(lambda x: Bitcast(x, part), [x], narrow_integers, expand_bitcast, options=NARROW)
    words = np.zeros((2, 64 // part.bits), part.numpy)
    words[:, 0] = [3, 9]
    compare(lambda x: Bitcast(x, U64), [words], narrow_integers, expand_bitcast, options=NARROW)


def test_all_bits_of_random_states_survive_narrowing() -> None:
    state = np.array([2**63 + 1, 2**64 - 1], np.uint64)
    compare(lambda x: Bitcast(Bitcast(x, U32), U64), [state], narrow_integers, options=NARROW)


def test_extreme_constants_narrow_to_extremes() -> None:
    limits = np.array([-(2**63), 2**63 - 1, 7])
    graph = graph_of(lambda x: Map("minimum", (x, Constant(limits))), (TensorType(S64, (3,)),))
    lowered = run_passes(graph, (narrow_integers,), NARROW)
    x = np.array([1, 2, 3])
    assert_same(run(lowered, graph, [x]), [np.array([-(2**31), 2, 3])])


@pytest.mark.parametrize(("dtype", "value"), [(U64, 2**32), (S64, -(2**31) - 1)])
def test_constants_beyond_32_bits_are_refused(dtype: DType, value: int) -> None:
    wide = Constant(np.array([value], dtype.numpy))
    graph = graph_of(lambda x: Map("add", (x, wide)), (TensorType(dtype, (1,)),))
    with pytest.raises(CompileError, match=f"NCC_ESFH002.*{value}"):
        narrow_integers(graph, NARROW)


def test_narrowing_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(lambda x: Map("add", (x, x)), (TensorType(S64, (3,)),))
    with caplog.at_level(logging.WARNING):
        narrow_integers(graph, NARROW)
    assert len(caplog.records) == 1
    assert "--native-int64" in caplog.text


NIBBLES = {
    S2: np.resize(np.arange(-2, 2), 16).astype(np.int8).astype(ml_dtypes.int2),
    U2: np.resize(np.arange(4), 16).astype(np.uint8).astype(ml_dtypes.uint2),
    S4: np.arange(-8, 8).astype(np.int8).astype(ml_dtypes.int4),
    U4: np.arange(16).astype(np.uint8).astype(ml_dtypes.uint4),
}


@pytest.mark.parametrize("dtype", NIBBLES, ids=str)
@pytest.mark.parametrize("function", (*BINARY, *SHIFTS))
def test_nibbles_compute_in_bytes(dtype: DType, function: str) -> None:
    x = NIBBLES[dtype]
    compare(
        lambda x, y: Map(function, (x, y)), [x, np.roll(x, 5)], widen_nibbles, gone=tuple(NIBBLES)
    )


@pytest.mark.parametrize("dtype", NIBBLES, ids=str)
def test_nibbles_convert_and_bitcast(dtype: DType) -> None:
    x, gone = NIBBLES[dtype], tuple(NIBBLES)
    compare(lambda x: (Convert(x, F32), Convert(x, S32)), [x], widen_nibbles, gone=gone)
    floats = np.array([-20, -3.7, 0, 3.5, 9.9, 20, np.nan], np.float32)
    compare(lambda x: Convert(x, dtype), [floats], widen_nibbles, gone=gone)
    compare(lambda x: Convert(x, dtype), [np.arange(-40, 40, dtype=np.int32)], widen_nibbles,
            gone=gone)  # fmt: skip
    both = (expand_bitcast, widen_nibbles)
    compare(lambda x: Bitcast(x, dtype), [np.arange(0, 256, 7, dtype=np.uint8)], *both, gone=gone)
    compare(lambda x: Bitcast(x, U8), [x.reshape(-1, 8 // dtype.bits)], *both, gone=gone)
    compare(lambda: Iota(TensorType(dtype, (20,)), 0), [], widen_nibbles, gone=gone)
