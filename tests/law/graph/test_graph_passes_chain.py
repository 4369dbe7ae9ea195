"""All graph passes in a row: programs keep their values and end in the tile level's operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glia.base.dtype import F32, PRED, S32
from glia.frontend.hlo import import_hlo
from glia.graph.evaluate import evaluate, random_inputs
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Collective,
    Constant,
    Convert,
    Dot,
    Get,
    Iota,
    Map,
    Reduce,
    RngUniform,
    Scatter,
    Sort,
    Transpose,
    While,
)
from glia.graph.ops.scalar_regions import combiner, monoid, returned_parameter, scalar_graph
from glia.graph.passes.canonicalize import canonicalize
from glia.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from glia.graph.passes.eliminate_dead_code import eliminate_dead_code
from glia.graph.passes.propagate_constants import FREE_BYTES, propagate_constants
from glia.graph.passes.simplify import simplify
from glia.graph.passes.swap_contraction_operands import swap_contraction_operands
from glia.graph.rules.regions import all_nodes
from glia.options import CompileOptions
from glia.pipeline import PIPELINE, resolve
from support.corpus import PROGRAMS, Program, expected, hlo_bytes
from support.graph_cases import CASES, Case
from support.graph_passes_kit import NARROW, PLAIN, assert_same, graph_of, run, run_passes

ORDER = (
    "number_ranks", "check_dtypes", "canonicalize", "simplify", "propagate_constants",
    "cast_dtypes", "expand_collective", "expand_random", "expand_fft", "expand_linear_algebra",
    "expand_complex", "expand_select_and_scatter", "narrow_by_range", "expand_int64",
    "narrow_integers", "expand_reduce_window",
    "expand_scatter", "expand_top_k", "expand_sort", "expand_reduce", "expand_bitcast",
    "widen_nibbles",
    "simplify", "propagate_constants", "eliminate_common_subexpressions",
    "swap_contraction_operands", "eliminate_dead_code", "simplify",
)  # fmt: skip

REMAINING = frozenset({
    "parameter", "constant", "map", "convert", "bitcast", "reduce_precision", "iota", "broadcast",
    "reshape", "transpose", "slice", "reverse", "pad", "concatenate", "dot", "convolution",
    "reduce", "reduce_window", "scan", "places", "gather", "scatter", "dynamic_slice",
    "dynamic_update_slice", "while", "conditional", "get",
})  # fmt: skip


def passes() -> list[Callable[[Graph, CompileOptions], Graph]]:
    """The passes of ORDER."""
    functions = {each.function.partition(":")[2]: each.function for each in PIPELINE}
    return [resolve(functions[name]) for name in ORDER]


def assert_lowered(graph: Graph) -> None:
    """Only operations that the tile level takes, in the forms it takes."""
    for node in all_nodes(graph):
        if isinstance(node, Collective):
            pairs = (*node.replica_groups, *node.pairs)
            assert any(participant for group in pairs for participant in group)
            continue
        assert node.opcode in REMAINING
        if isinstance(node, Reduce):
            assert monoid(node.body)
        if isinstance(node, Scatter):
            assert len(node.xs) == 1
            assert monoid(node.body) or returned_parameter(node.body) == 1
        for kind in (node.type,) if isinstance(node.type, TensorType) else ():
            assert not kind.dtype.is_complex
            assert kind.dtype.bits <= 32


@pytest.mark.parametrize("options", [PLAIN, NARROW], ids=["exact", "narrow"])
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_every_operation_is_lowered(case: Case, options: CompileOptions) -> None:
    graph = case.graph()
    lowered = run_passes(graph, passes(), options)
    assert_lowered(lowered)
    arrays = [np.asarray(array) for array in case.arrays]
    assert_same(run(lowered, graph, arrays), evaluate(graph, arrays), 1e-4)


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_every_program_is_lowered(program: Program) -> None:
    graph = import_hlo(hlo_bytes(program))
    lowered = graph
    for each in passes():
        lowered = each(lowered, PLAIN)
    assert_lowered(lowered)
    found = run(lowered, graph, program.arguments)
    for a, b in zip(found, expected(program), strict=True):
        tolerance = program.slack * (5e-2 if b.dtype.itemsize == 2 else 1e-4)
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance)


def opcodes(graph: Graph) -> list[str]:
    """The operations of a graph in order, parameters left out."""
    return [node.opcode for node in graph.nodes if not isinstance(node, Parameter)]


def t(*shape: int) -> TensorType:
    """A float32 tensor."""
    return TensorType(F32, shape)


WEIGHTS = Constant(np.arange(300 * 200, dtype=np.float32).reshape(300, 200))


def test_the_layout_of_weights_is_folded_whatever_their_size() -> None:
    assert WEIGHTS.type.bytes > FREE_BYTES
    graph = graph_of(lambda: Transpose(WEIGHTS, (1, 0)), ())
    (folded,) = propagate_constants(graph, PLAIN).results
    assert isinstance(folded, Constant)
    np.testing.assert_array_equal(folded.value, WEIGHTS.value.T)


def test_constants_that_would_grow_are_not_folded() -> None:
    column = Constant(np.arange(300, dtype=np.float32).reshape(300, 1))
    graph = graph_of(lambda: Dot(column, column, (), (), (1,), (1,), F32), ())
    assert opcodes(propagate_constants(graph, PLAIN)) == ["constant", "dot"]


def test_generated_values_are_folded_only_into_small_results() -> None:
    def mask(extent: int) -> Graph:
        kind = TensorType(S32, (extent, extent))
        return graph_of(lambda: Map("less", (Iota(kind, 0), Iota(kind, 1))), ())

    assert opcodes(propagate_constants(mask(8), PLAIN)) == ["constant"]
    assert opcodes(propagate_constants(mask(600), PLAIN)) == ["iota", "iota", "map"]


def test_samples_are_not_folded_and_not_merged() -> None:
    low, high = Constant(np.array(0, np.float32)), Constant(np.array(1, np.float32))
    graph = graph_of(lambda: tuple(RngUniform(low, high, t(3), "uniform") for _ in range(2)), ())
    after = run_passes(graph, (propagate_constants, eliminate_common_subexpressions))
    assert opcodes(after).count("rng") == 2


def test_loops_on_constants_are_not_run_by_the_compiler() -> None:
    more = scalar_graph("more", [F32], lambda x: Map("less_equal", (x, x)))
    body = scalar_graph("body", [F32], lambda x: Map("tanh", (x,)))
    graph = graph_of(lambda: While((Constant(np.array(1, np.float32)),), more, body), ())
    assert "while" in opcodes(propagate_constants(graph, PLAIN))


def test_equal_nodes_merge_and_different_ones_stay() -> None:
    def build(x: Node, y: Node) -> tuple[Node, ...]:
        one = [Constant(np.array([1, 2], np.float32)) for _ in range(2)]
        equal = [Map("add", (Map("exp", (x,)), constant)) for constant in one]
        other = Map("add", (Map("exp", (y,)), one[0]))
        again = Convert(Map("exp", (x,)), S32), Convert(Map("exp", (x,)), PRED)
        return (*equal, other, *again)

    graph = graph_of(build, (t(2), t(2)))
    merged = run_passes(graph, (eliminate_common_subexpressions,))
    assert merged.results[0] is merged.results[1]
    assert opcodes(merged).count("constant") == 1
    assert opcodes(merged).count("map") == 4
    assert opcodes(merged).count("convert") == 2
    inputs = [np.ones(2, np.float32), np.zeros(2, np.float32)]
    assert_same(evaluate(merged, inputs), evaluate(graph, inputs))


def test_equal_regions_merge_by_structure() -> None:
    def total(x: Node, kind: str) -> Node:
        return Reduce((x,), (Constant(np.array(0, np.float32)),), (0,), combiner(kind, F32))

    graph = graph_of(lambda x: (total(x, "add"), total(x, "add"), total(x, "maximum")), (t(5),))
    merged = run_passes(graph, (eliminate_common_subexpressions,))
    assert merged.results[0] is merged.results[1]
    assert opcodes(merged).count("reduce") == 2


def test_unused_loop_state_disappears() -> None:
    kinds = (TensorType(S32), t(2), t(2), t(2))
    more = Parameter(0, kinds[0], "i")
    others = tuple(Parameter(i, kind, f"s{i}") for i, kind in enumerate(kinds) if i)
    three = Constant(np.array(3, np.int32))
    condition = Graph("more", (more, *others), (Map("less", (more, three)),))
    one = Constant(np.array(1, np.int32))
    steps = (
        Map("add", (more, one)),
        Map("add", (others[0], others[1])),
        others[1],
        Map("exp", (others[2],)),
    )
    body = Graph("body", (more, *others), steps)

    def build(x: Node, y: Node, z: Node) -> Node:
        return Get(While((Constant(np.array(0, np.int32)), x, y, z), condition, body), 1)

    graph = graph_of(lambda x, y, z: (build(x, y, z),), (t(2), t(2), t(2)))
    smaller = run_passes(graph, (eliminate_dead_code,))
    (loop,) = (node for node in smaller.nodes if isinstance(node, While))
    assert len(loop.state) == 3
    inputs = [np.full(2, value, np.float32) for value in (1, 2, 3)]
    assert_same(evaluate(smaller, inputs), evaluate(graph, inputs))


def test_unread_sorted_tensors_disappear() -> None:
    order = scalar_graph("order", [F32] * 6, lambda a, b, *_: Map("less", (a, b)))
    graph = graph_of(lambda x, y, z: (Get(Sort((x, y, z), 0, True, order), 1),), (t(5), t(5), t(5)))
    smaller = run_passes(graph, (eliminate_dead_code,))
    (sort,) = (node for node in smaller.nodes if isinstance(node, Sort))
    assert len(sort.xs) == 2
    inputs = [np.random.default_rng(i).standard_normal(5).astype(np.float32) for i in range(3)]
    assert_same(evaluate(smaller, inputs), evaluate(graph, inputs))


def test_a_contraction_read_transposed_is_computed_transposed() -> None:
    def build(x: Node, y: Node) -> tuple[Node, ...]:
        return (Transpose(Dot(x, y, (0,), (1,), (2,), (2,), F32), (0, 2, 1)),)

    graph = graph_of(build, (t(2, 3, 4), t(5, 2, 4)))
    turned = run_passes(graph, (swap_contraction_operands,))
    assert opcodes(turned) == ["dot"]
    inputs = random_inputs(graph)
    assert_same(evaluate(turned, inputs), evaluate(graph, inputs), 1e-6)


def test_a_contraction_with_two_readers_is_computed_once() -> None:
    def build(x: Node, y: Node) -> tuple[Node, ...]:
        product = Dot(x, y, (), (), (1,), (0,), F32)
        return Transpose(product, (1, 0)), product

    graph = graph_of(build, (t(3, 4), t(4, 5)))
    assert swap_contraction_operands(graph, PLAIN) is graph


@pytest.mark.parametrize(
    "each", [canonicalize, simplify, eliminate_dead_code], ids=lambda each: each.__name__
)
def test_passes_are_idempotent(each: Callable[[Graph, CompileOptions], Graph]) -> None:
    for program in PROGRAMS[::7]:
        once = each(import_hlo(hlo_bytes(program)), PLAIN)
        assert each(once, PLAIN) is once
