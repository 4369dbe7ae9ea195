"""Which nests graphs become, and that odd graphs keep their meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.base.dtype import BF16, F32, F64, PRED, S32, DType
from glia.base.errors import CompileError
from glia.base.loc import Loc
from glia.graph import ops
from glia.graph.evaluate import evaluate as evaluate_graph
from glia.graph.evaluate import random_inputs
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.tile.build.lower import build
from glia.tile.evaluate import evaluate
from glia.tile.ir import Accumulator, Apply, Load, Program
from glia.tile.legal import verify
from support.examples import with_examples

Array = np.ndarray[Any, Any]


def inputs_of(*types: tuple[tuple[int, ...], DType]) -> tuple[Parameter, ...]:
    """Parameters x0, x1, ... of these shapes and dtypes."""
    return tuple(
        Parameter(i, TensorType(dtype, shape), f"x{i}") for i, (shape, dtype) in enumerate(types)
    )


def floats(*shapes: tuple[int, ...]) -> tuple[Parameter, ...]:
    """f32 parameters of these shapes."""
    return inputs_of(*((shape, F32) for shape in shapes))


def constant(value: Any, dtype: DType = F32) -> Node:
    """A constant tensor."""
    return ops.Constant(np.asarray(value).astype(dtype.numpy))


def add(a: Node, b: Node) -> Node:
    """a + b"""
    return ops.Map("add", (a, b))


def total(x: Node, *dimensions: int) -> Node:
    """The sum over dimensions."""
    return ops.Reduce((x,), (constant(0.0),), dimensions, ops.combiner("add", F32))


def matmul(a: Node, b: Node) -> Node:
    """a @ b"""
    return ops.Dot(a, b, (), (), (1,), (0,), F32)


def nests_of(parameters: tuple[Parameter, ...], *results: Node, **more: Any) -> Program:
    """The graph's nests, after checking that they are legal and compute what the graph does."""
    graph = Graph("g", parameters, results, **more)
    program = build(graph)
    arrays = [np.asarray(array) for array in random_inputs(graph)]
    wanted = evaluate_graph(graph, arrays)
    verify(program)
    for found, value in zip(evaluate(program, arrays), wanted, strict=True):
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        np.testing.assert_allclose(found.astype(np.float64), value.astype(np.float64), 1e-5, 1e-5)
    return program


def names(program: Program) -> list[str]:
    """The nests' names in order."""
    return [nest.name for nest in program.nests()]


def test_bias_activation_and_residual_become_the_epilogue_of_a_dot() -> None:
    x, w, bias, rest = floats((6, 5), (5, 7), (7,), (6, 7))
    biased = add(matmul(x, w), ops.Broadcast(bias, (6, 7), (1,)))
    program = nests_of((x, w, bias, rest), add(ops.Map("tanh", (biased,)), rest))
    assert names(program) == ["dot.0"]
    (nest,) = program.nests()
    assert [axis.name for axis in nest.axes] == ["m", "n", "k"]
    assert isinstance(nest.finish, Apply) and nest.finish.function == "add"


def test_value_used_twice_in_one_epilogue_is_reduced_once() -> None:
    x, w = floats((6, 5), (5, 7))
    product = matmul(x, w)
    program = nests_of((x, w), ops.Map("multiply", (product, ops.Map("logistic", (product,)))))
    assert names(program) == ["dot.0"]


def test_result_of_a_narrow_dot_is_summed_in_f32_and_converted_once() -> None:
    x, w = inputs_of(((6, 5), BF16), ((5, 7), BF16))
    (nest,) = nests_of((x, w), ops.Dot(x, w, (), (), (1,), (0,), BF16)).nests()
    assert nest.reduction is not None and nest.reduction.dtype is F32
    assert nest.finish == Apply("convert", (Accumulator(F32),), BF16)


def test_elementwise_operand_becomes_the_prologue_of_a_reduction() -> None:
    (x,) = floats((6, 5))
    program = nests_of((x,), total(ops.Map("exp", (x,)), 1))
    assert names(program) == ["reduce.0"]


def test_softmax_takes_four_nests_after_its_dot() -> None:
    x, w = floats((6, 5), (5, 7))
    logits = matmul(x, w)
    start = constant(-np.inf)
    highest = ops.Reduce((logits,), (start,), (1,), ops.combiner("maximum", F32))
    shifted = ops.Map("subtract", (logits, ops.Broadcast(highest, (6, 7), (0,))))
    grown = ops.Map("exp", (shifted,))
    sums = ops.Broadcast(total(grown, 1), (6, 7), (0,))
    program = nests_of((x, w), ops.Map("divide", (grown, sums)))
    assert names(program) == ["dot.0", "reduce.0", "exp.0", "reduce.1", "divide.0"]


def test_movement_vanishes_into_its_readers() -> None:
    (x,) = floats((4, 6))
    turned = ops.Transpose(ops.Reverse(x, (0,)), (1, 0))
    sliced = ops.Slice(turned, (1, 0), (6, 4), (2, 1))
    program = nests_of((x,), ops.Map("exp", (ops.Reshape(sliced, (3, 2, 2)),)))
    assert names(program) == ["exp.0"]


def test_heads_are_split_where_they_are_read_and_merged_where_they_are_written() -> None:
    q, k, w = floats((8, 6), (8, 6), (6, 6))
    heads = [ops.Transpose(ops.Reshape(matmul(x, w), (2, 4, 3, 2)), (0, 2, 1, 3)) for x in (q, k)]
    scores = ops.Dot(heads[0], heads[1], (0, 1), (0, 1), (3,), (3,), F32)
    mixed = ops.Dot(scores, heads[1], (0, 1), (0, 1), (3,), (2,), F32)
    merged = ops.Reshape(ops.Transpose(mixed, (0, 2, 1, 3)), (8, 6))
    program = nests_of((q, k, w), matmul(merged, w))
    assert names(program) == [f"dot.{i}" for i in range(5)]


def test_reshape_that_is_not_affine_goes_through_a_flat_buffer() -> None:
    (x,) = floats((6, 4))
    turned = ops.Transpose(ops.Reshape(ops.Map("exp", (x,)), (8, 3)), (1, 0))
    program = nests_of((x,), ops.Map("negate", (turned,)))
    assert names(program) == ["exp.0", "negate.0"]
    assert program.buffers["t.0"].shape == (24,)


def test_padding_of_a_view_is_a_guarded_load() -> None:
    (x,) = floats((3, 4))
    padded = ops.Pad(x, constant(7.0), (1, 0), (0, 2), (0, 0))
    program = nests_of((x,), ops.Map("exp", (padded,)))
    (nest,) = program.nests()
    load = nest.body.args[0] if isinstance(nest.body, Apply) else None
    assert isinstance(load, Load) and len(load.guards) == 2 and load.fill == 7.0


@pytest.mark.parametrize("low, high, interior", [(0, 0, 2), (-1, 3, 1), (2, -2, 0), (-3, -3, 4)])
def test_interior_and_negative_padding_fill_then_store(low: int, high: int, interior: int) -> None:
    (x,) = floats((5,))
    nests_of((x,), ops.Pad(x, constant(7.0), (low,), (high,), (interior,)))


def test_concatenation_stores_each_part_where_it_belongs() -> None:
    x, y, w = floats((3, 4), (2, 4), (4, 4))
    joined = ops.Concatenate((matmul(x, w), ops.Map("exp", (y,))), 0)
    program = nests_of((x, y, w), joined)
    assert names(program) == ["dot.0", "exp.0"]


def test_shared_costly_value_is_stored_once() -> None:
    x, w = floats((6, 6), (6, 6))
    grown = ops.Map("exp", (x,))
    program = nests_of((x, w), matmul(grown, w), total(grown, 0))
    assert names(program).count("exp.0") == 1 and len(names(program)) == 3


def test_shared_cheap_value_is_computed_by_each_reader() -> None:
    x, m = floats((60, 50), (60,))
    centred = ops.Map("subtract", (x, ops.Broadcast(m, (60, 50), (0,))))
    program = nests_of((x, m), total(ops.Map("square", (centred,)), 1), ops.Map("exp", (centred,)))
    assert len(names(program)) == 2


def test_large_expression_is_cut_without_growing_exponentially() -> None:
    (x,) = floats((4, 4))
    value: Node = x
    for _ in range(200):
        value = ops.Map("multiply", (ops.Map("sin", (value,)), value))
    assert 1 < len(names(nests_of((x,), value))) < 12


def test_reductions_of_nothing_give_their_start() -> None:
    (x,) = floats((3, 0))
    nests_of((x,), total(x, 1), ops.Pad(x, constant(2.0), (0, 1), (0, 1), (0, 0)))


def test_results_that_are_inputs_constants_or_repeated_get_buffers_of_their_own() -> None:
    (x,) = floats((3,))
    y = ops.Map("exp", (x,))
    program = nests_of((x,), x, y, y, constant([1.0, 2.0, 3.0]), ops.Reshape(x, (1, 3)))
    assert len(set(program.outputs)) == 5


def test_aliased_results_may_swap_their_inputs() -> None:
    x, y = floats((3,), (3,))
    nests_of((x, y), add(y, y), x, aliases=((0, 0), (1, 1)))
    nests_of((x, y), y, x, aliases=((0, 0), (1, 1)))


def loop(state: tuple[Node, ...], limit: int, step: Callable[..., tuple[Node, ...]]) -> Node:
    """while state[0] < limit: state = step(*state)"""
    kinds = [TensorType(node.dtype, node.shape) for node in state]
    inside = tuple(Parameter(i, kind) for i, kind in enumerate(kinds))
    test = ops.Map("less", (inside[0], constant(limit, S32)))
    body = Graph("body", inside, step(*inside))
    return ops.While(state, Graph("condition", inside, (test,)), body)


def test_loop_swaps_its_state() -> None:
    x, y = floats((3,), (3,))

    def step(i: Node, a: Node, b: Node) -> tuple[Node, ...]:
        return add(i, constant(1, S32)), b, add(a, b)

    done = loop((constant(0, S32), x, y), 5, step)
    nests_of((x, y), *(ops.Get(done, i) for i in range(3)))


def test_loop_leaves_alone_what_it_does_not_change() -> None:
    x, w = floats((3, 3), (3, 3))

    def step(i: Node, a: Node, b: Node) -> tuple[Node, ...]:
        return add(i, constant(1, S32)), matmul(a, b), b

    done = loop((constant(0, S32), x, w), 3, step)
    program = nests_of((x, w), ops.Get(done, 1), ops.Get(done, 2))
    written = {nest.target.buffer for nest in program.nests()}
    assert not written & set(program.inputs)


def test_loop_updates_a_cache_in_place() -> None:
    (x,) = floats((7,))

    def step(i: Node, cache: Node) -> tuple[Node, ...]:
        row = ops.Reshape(ops.Convert(i, F32), (1,))
        return add(i, constant(1, S32)), ops.DynamicUpdateSlice(cache, row, (i,))

    program = nests_of((x,), ops.Get(loop((constant(0, S32), x), 4, step), 1))
    copies = [name for name in names(program) if name.startswith("copy")]
    assert len(copies) <= 4  # the cache into the loop and out of it, the counter inside


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 9])
def test_conditional_runs_the_named_arm(index: int) -> None:
    (x,) = floats((3,))

    def arm(function: str) -> Graph:
        (p,) = floats((3,))
        return Graph(function, (p,), (ops.Map(function, (p,)),))

    arms = (arm("exp"), arm("negate"), arm("square"))
    node = ops.Conditional(constant(index, S32), (x, x, x), (1, 1, 1), arms)
    nests_of((x,), node)


def test_conditional_on_pred_runs_the_first_arm_when_true() -> None:
    chosen, x = inputs_of(((), PRED), ((3,), F32))
    (p,) = floats((3,))
    arms = (Graph("t", (p,), (ops.Map("exp", (p,)),)), Graph("f", (p,), (p,)))
    nests_of((chosen, x), ops.Conditional(chosen, (x, x), (1, 1), arms))


def test_operation_without_nests_is_refused_with_its_source_line() -> None:
    (x,) = floats((3,))
    sort = ops.Sort((x,), 0, True, _less(), loc=Loc("model.py", 7, "sorting"))
    with pytest.raises(CompileError, match=r"(?s)NCC_EVRF001.*sort.*model\.py:7"):
        build(Graph("g", (x,), (sort,)))


def _less() -> Graph:
    a, b = floats((), ())
    return Graph("less", (a, b), (ops.Map("less", (a, b)),))


def test_dtype_no_engine_has_is_refused() -> None:
    (x,) = inputs_of(((3,), F64))
    with pytest.raises(CompileError, match="NCC_ESPP004"):
        build(Graph("g", (x,), (ops.Map("exp", (x,)),)))


SHAPES = [(24,), (2, 12), (4, 6), (2, 3, 4), (3, 8), (6, 1, 4), (2, 2, 6), (8, 3)]


@st.composite
def movements(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """A chain of reshapes, transposes, reversals and elementwise steps on 24 elements."""
    steps: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["reshape", "transpose", "reverse", "exp"]))
        choice = draw(st.integers(0, 10**6)) if kind != "reshape" else None
        steps.append((kind, draw(st.sampled_from(SHAPES)) if kind == "reshape" else choice))
    return steps


@with_examples(60)
@given(
    steps=movements(), start=st.sampled_from(SHAPES), reads=st.sampled_from(["dot", "sum", "out"])
)
def test_any_chain_of_movement_keeps_its_meaning(
    steps: list[tuple[str, Any]], start: tuple[int, ...], reads: str
) -> None:
    (x,) = floats(start)
    value: Node = x
    for kind, choice in steps:
        rank = len(value.shape)
        if kind == "reshape":
            value = ops.Reshape(value, choice)
        elif kind == "transpose":
            order = np.random.default_rng(choice).permutation(rank)
            value = ops.Transpose(value, tuple(int(d) for d in order))
        elif kind == "reverse":
            value = ops.Reverse(value, (choice % rank,))
        else:
            value = ops.Map("tanh", (value,))
    if reads == "dot":
        square = ops.Reshape(value, (4, 6))
        value = matmul(square, ops.Transpose(square, (1, 0)))
    elif reads == "sum":
        value = total(value, 0)
    nests_of((x,), value)
