"""Graph operations: values are JAX's, texts read back, laws refuse what is wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from glia.base.dtype import BF16, F32, PRED, S32, U32, U64, from_numpy
from glia.base.errors import InternalError, Unspecified
from glia.base.loc import Loc
from glia.base.scanner import TextError
from glia.graph import ops
from glia.graph.evaluate import evaluate, random_inputs
from glia.graph.ir import OPS, Graph, Parameter, TensorType, TupleType
from glia.graph.legal import verify
from glia.graph.ops import scalar_regions
from glia.graph.participants import evaluate_participants
from glia.graph.rank_groups import groups_of_ranks
from glia.graph.text import constant_table, describe, parse_graph, print_graph
from support.graph_cases import ADD, CALL, CASES, Case, f32, scalar


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_operation_computes_what_jax_does(case: Case):
    graph = case.graph()
    verify(graph)
    found, wanted = evaluate(graph, case.arrays), case.expected()
    assert len(found) == len(wanted)
    for value, reference in zip(found, wanted, strict=True):
        assert (value.dtype, value.shape) == (reference.dtype, reference.shape)
        if value.dtype.kind in "biu":
            np.testing.assert_array_equal(value, reference)
            continue
        wide = np.complex128 if value.dtype.kind == "c" else np.float64
        tolerance = case.tolerance
        np.testing.assert_allclose(
            value.astype(wide), reference.astype(wide), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("case", [*CASES, CALL], ids=repr)
def test_text_reads_back_to_itself(case: Case):
    graph = case.graph()
    text, table = print_graph(graph), constant_table(graph)
    again = parse_graph(text, table)
    verify(again)
    assert print_graph(again) == text
    assert list(constant_table(again)) == list(table)


def test_every_operation_has_a_case():
    seen = {node.opcode for case in [*CASES, CALL] for node in case.graph().nodes}
    assert seen == set(OPS)


def test_an_undocumented_call_is_refused():
    with pytest.raises(Unspecified, match="Nobody"):
        evaluate(CALL.graph(), CALL.arrays)


def test_rng_samples_lie_in_range_and_repeat():
    bounds = (scalar(-1), scalar(3))
    node = ops.RngUniform(*bounds, TensorType(F32, (1000,)), "uniform")
    first = node.compute(np.float32(-1), np.float32(3))
    assert first.min() >= -1
    assert first.max() < 3
    assert abs(first.mean() - 1) < 0.2
    np.testing.assert_array_equal(first, node.compute(np.float32(-1), np.float32(3)))
    normal = dataclasses.replace(node, distribution="normal").compute(np.float32(5), np.float32(2))
    assert abs(normal.mean() - 5) < 0.3


def _parameters(*shapes: tuple[int, ...]) -> tuple[Parameter, ...]:
    return tuple(Parameter(i, TensorType(F32, shape)) for i, shape in enumerate(shapes))


A, B, ROW = _parameters((4, 5), (5, 3), (5,))
CELL = Parameter(0, TensorType(F32))
LESS = ops.scalar_graph("less", (F32, F32), lambda a, b: ops.Map("less", (a, b)))
REFUSED = {
    r"\(4, 5\), \(5, 3\)": ops.Map("add", (A, B)),
    "no scalar function": ops.Map("frobnicate", (A,)),
    "takes 2 operands, not 1": ops.Map("add", (A,)),
    "needs a last dimension of 2": ops.Bitcast(A, U64),
    "needs floats": ops.ReducePrecision(ops.Convert(A, S32), 5, 2),
    "iota along 2": ops.Iota(TensorType(F32, (2, 2)), 2),
    r"cannot broadcast f32\[5\]": ops.Broadcast(ROW, (4, 6), (1,)),
    "20 elements, f32.* 21": ops.Reshape(A, (3, 7)),
    "permutation .*distinct": ops.Transpose(A, (0, 0)),
    "slice 2:9:1 of extent 5": ops.Slice(A, (0, 2), (4, 9), (1, 1)),
    "reversed dimensions": ops.Reverse(A, (2,)),
    "crops it": ops.Pad(A, CELL, (-3, 0), (-3, 0), (0, 0)),
    "padding value": ops.Pad(A, ROW, (0, 0), (0, 0), (0, 0)),
    "cannot concatenate": ops.Concatenate((A, B), 0),
    "must have one extent": ops.Dot(A, B, (), (), (0,), (0,), F32),
    "groups do not fit": ops.Convolution(A, B, (), (), (), (), (), (), 1, 1, F32),
    "initial value must be": ops.Reduce((A,), (ROW,), (0,), ADD),
    "reducing body must take": ops.Reduce((A,), (CELL,), (0,), ops.combiner("add", BF16)),
    "reduce_window's stride": ops.ReduceWindow(
        (A,), (CELL,), (1, 1), (1,), (0, 0), (0, 0), (1, 1), (1, 1), ADD
    ),
    "must be positive": ops.ReduceWindow(
        (A,), (CELL,), (1, 1), (0, 1), (0, 0), (0, 0), (1, 1), (1, 1), ADD
    ),
    "for windows": ops.SelectAndScatter(A, B, CELL, (2, 2), (1, 1), (0, 0), (0, 0), LESS, ADD),
    "indices must be integers": ops.Gather(A, ROW, (0,), (0,), (), (), (0,), 1, (1, 5)),
    "slice of 9 from extent 5": ops.Gather(
        A, ops.Convert(ROW, S32), (0,), (0,), (), (), (0,), 1, (1, 9)
    ),
    "elements of slices that have none": ops.Gather(
        A, ops.Convert(ROW, S32), (0,), (0,), (), (), (0,), 1, (0, 5)
    ),
    "do not fit index vectors": ops.Scatter(
        (A,), ops.Convert(ROW, S32), (A,), (1,), (0,), (), (), (0,), 1, False, ADD
    ),
    "start index .* not an integer": ops.DynamicSlice(A, (CELL, CELL), (1, 1)),
    "cannot write": ops.DynamicUpdateSlice(A, ROW, ()),
    "comparator must return": ops.Sort((A,), 0, True, ADD),
    "condition must return": ops.While((CELL, CELL), ADD, ADD),
    "cannot choose": ops.Conditional(CELL, (CELL,), (1,), (Graph("g", (CELL,), (CELL,)),)),
    "index .* cannot choose among 1": ops.Conditional(
        ops.Constant(np.array(True)), (CELL,), (1,), (Graph("g", (CELL,), (CELL,)),)
    ),
    "state of three_fry": ops.RngBits(ROW, TensorType(S32, (1,)), "three_fry"),
    "no distribution": ops.RngUniform(CELL, CELL, TensorType(F32), "cauchy"),
    "rfft of": ops.Fft(A, "rfft", (4,)),
    "triangular solve of": ops.TriangularSolve(A, B, True, True, False, "no"),
    "cholesky of": ops.Cholesky(A, True),
    "cannot give": ops.Collective((A,), "all-reduce", B.type, -1, (), (), (ADD,)),
    "no collective": ops.Collective((A,), "gossip", A.type, -1, (), (), ()),
    "nothing to get": ops.Get(A, 0),
}


@pytest.mark.parametrize("message", REFUSED)
def test_type_rule_names_the_numbers_that_break_it(message):
    with pytest.raises(TypeError, match=message):
        REFUSED[message].infer()


def _adding(*, parameters=(A,), results=None, **changes) -> Graph:
    results = (ops.Map("add", (A, A)),) if results is None else results
    return dataclasses.replace(Graph("planted", parameters, results), **changes)


def _stealing() -> Graph:
    """A reduction whose body reads the enclosing graph's parameter."""
    mine, other = _parameters((), ())
    body = Graph("body", (mine, other), (ops.Map("add", (mine, CELL)),))
    return _adding(parameters=(CELL,), results=(ops.Reduce((CELL,), (CELL,), (), body),))


PAIR = ops.Sort((A, A), 0, True, ops.scalar_graph(
    "less", (F32,) * 4, lambda a, b, *_: ops.Map("less", (a, b))))  # fmt: skip
FAULTS = {
    r"\(4, 5\), \(5, 3\)": _adding(results=(ops.Map("add", (A, B)),), parameters=(A, B)),
    "graph 'planted': a parameter of another": _adding(parameters=()),
    "has the index 1": _adding(parameters=(B, A)),
    "result is not a tensor": _adding(results=(PAIR,)),
    "graph 'body': a parameter of another": _stealing(),
    "2 names for 1 results": _adding(result_names=("a", "b")),
    "does not exist": _adding(aliases=((0, 3),)),
    "joins": _adding(aliases=((0, 0),), results=(ops.Convert(A, BF16),)),
    "one buffer twice": _adding(results=(A, A), aliases=((0, 0), (1, 0))),
    "result_shape is": _adding(results=(ops.Reshape(A, [20]),)),
    "dimension is": _adding(results=(ops.Iota(TensorType(F32, (3,)), np.int64(0)),)),
    "not a natural number": _adding(results=(ops.Iota(TensorType(F32, (-3,)), 0),)),
}  # fmt: skip


@pytest.mark.parametrize("message", FAULTS)
def test_verify_catches_planted_fault(message):
    with pytest.raises(InternalError, match=message):
        verify(FAULTS[message])


def test_verify_shows_the_node_and_its_source():
    wrong = ops.Map("add", (A, B), loc=Loc("model.py", 12, "layer"))
    with pytest.raises(InternalError) as caught:
        verify(_adding(parameters=(A, B), results=(wrong,)))
    assert 'map function="add" args=[f32[4,5], f32[5,3]]' in str(caught.value)
    assert "model.py:12 (layer)" in str(caught.value)


def test_locations_and_names_survive_text():
    node = ops.Map("exp", (A,), loc=Loc('a "b".py', 3, "x/y"))
    graph = _adding(results=(node,), result_names=("out put",), aliases=((0, 0),))
    again = parse_graph(print_graph(graph, with_locations=True))
    assert again.results[0].loc == node.loc
    assert (again.result_names, again.aliases) == (graph.result_names, graph.aliases)
    assert "loc(" not in print_graph(graph)


GOOD = 'graph "g" (%0 : f32[2] "x") {\n  %1 = map function="exp" args=[%0] : f32[2]\n  return %1\n}'
BROKEN: dict[str, str] = {
    "no value is named": GOOD.replace("args=[%0]", "args=[%7]"),
    "no operation is named": GOOD.replace("map", "mop"),
    "has the fields": GOOD.replace("args=[%0]", ""),
    "args of map cannot be": GOOD.replace("args=[%0]", "args=[3]"),
    "gives f32": GOOD.replace(": f32[2]\n  return", ": f32[3]\n  return"),
    "no scalar function": GOOD.replace("exp", "expo"),
    "cannot name a new value": GOOD.replace("%1 =", "%0 ="),
    "no dtype is named": GOOD.replace("f32[2] ", "f33[2] "),
    "not negative": GOOD.replace("f32[2] ", "f32[-2] "),
    "expected the end": GOOD + "}",
    "no constant is named": GOOD.replace('map function="exp" args=[%0]', "constant value=@c"),
    "nested more than": GOOD.replace("args=[%0]", "args=" + "[" * 400 + "]" * 400),
    "cannot hold": GOOD.replace('map function="exp" args=[%0] : f32', "constant value=512 : s8"),
    "2 numbers for one": GOOD.replace('map function="exp" args=[%0]', "constant value=[1, 2]"),
    "cannot name": GOOD[:-9],
    "expected '\\('": GOOD.replace("(", "[", 1),
    "args of map": GOOD.replace("[%0]", "[1.5]"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_text_is_refused(message):
    assert print_graph(parse_graph(GOOD)) == GOOD + "\n"
    with pytest.raises(TextError, match=message):
        parse_graph(BROKEN[message])


def test_a_huge_constant_in_text_costs_no_memory():
    constant = "constant value=0.5 : f32[1099511627776]"
    text = GOOD.replace('map function="exp" args=[%0] : f32[2]', constant)
    node = parse_graph(text).results[0]
    assert node.type.bytes == 4 * 2**40
    assert node.compute()[2**39] == 0.5


def test_evaluation_and_types_of_a_long_chain_need_no_stack():
    node = A
    for _ in range(20_000):
        node = ops.Map("negate", (node,))
    graph = _adding(results=(node,))
    verify(graph)
    (value,) = random_inputs(graph)
    np.testing.assert_array_equal(evaluate(graph, [value])[0], value)


def test_evaluation_checks_its_inputs():
    with pytest.raises(TypeError, match="input 0 of planted"):
        evaluate(_adding(), [f32(5, 4)])
    with pytest.raises(TypeError, match="takes 1 inputs, not 2"):
        evaluate(_adding(), [f32(4, 5), f32(4, 5)])


def test_monoids_are_recognised_through_empty_conversions_only():
    def through(dtype):
        return ops.scalar_graph("b", (F32, F32), lambda a, b: ops.Convert(ops.Map("add", (
            ops.Convert(b, dtype), ops.Convert(a, dtype))), F32))  # fmt: skip

    assert ops.monoid(through(F32)) == "add"
    assert ops.monoid(through(BF16)) is None
    assert ops.monoid(ops.combiner("add", PRED)) == "or"
    assert ops.monoid(ops.combiner("minimum", S32)) == "minimum"
    assert ops.monoid(ops.combiner("subtract", F32)) is None
    assert ops.monoid(LESS) is None
    doubling = ops.scalar_graph("b", (F32, F32), lambda a, b: ops.Map("add", (a, a)))
    assert ops.monoid(doubling) is None


@pytest.mark.parametrize("name", ops.MONOIDS)
def test_identity_of_a_monoid_changes_nothing(name):
    numbers = np.array([-3, 0, 7])
    for dtype in (F32, BF16, S32, PRED, from_numpy(np.uint8)):
        if dtype.kind not in scalar_regions.scalar.FUNCTIONS[name].kinds:
            continue
        x = numbers.astype(dtype.numpy) if dtype is not PRED else numbers > 0
        kind = ops.monoid(ops.combiner(name, dtype))
        neutral = np.broadcast_to(ops.identity(kind, dtype), x.shape)
        np.testing.assert_array_equal(scalar_regions.scalar.FUNCTIONS[name].compute(x, neutral), x)


def test_bodies_of_any_operation_apply_element_by_element():
    inner = ops.scalar_graph("inner", (F32, F32), lambda a, b: ops.Reduce((a,), (b,), (), ADD))
    x, y = f32(3, 2), f32(3, 2)
    np.testing.assert_array_equal(scalar_regions.apply(inner, [x, y])[0], x + y)


def test_description_of_a_node_is_one_line():
    unknown = ops.Map("exp", (Parameter(0, TensorType(F32)),))
    assert describe(unknown) == 'map function="exp" args=[?]'
    node = ops.Reduce((A,), (CELL,), (0,), ADD)
    assert node.type == TensorType(F32, (5,))
    assert describe(node) == 'reduce xs=[f32[4,5]] inits=[f32[]] dimensions=[0] body=graph "add"'


def _exchange(kind: str, x: Parameter, result: TensorType, dimension: int = -1, **extra) -> Graph:
    body = (ADD,) if kind in ("all-reduce", "reduce-scatter") else ()
    groups, pairs = extra.get("groups", ()), extra.get("pairs", ())
    node = ops.Collective((x,), kind, result, dimension, groups, pairs, body)
    return Graph(kind, (x,), (node,))


def test_collectives_exchange_between_participants():
    x = Parameter(0, TensorType(F32, (4, 2)))
    inputs = [[f32(4, 2)] for _ in range(4)]
    values = [arrays[0] for arrays in inputs]

    def run(kind: str, shape: tuple[int, ...], dimension: int = -1, **extra) -> list[np.ndarray]:
        graph = _exchange(kind, x, TensorType(F32, shape), dimension, **extra)
        verify(graph)
        return [results[0] for results in evaluate_participants(graph, inputs)]

    pairs_of_two = ((0, 2), (3, 1))
    gathered = run("all-gather", (8, 2), 0, groups=pairs_of_two)
    np.testing.assert_array_equal(gathered[2], np.concatenate([values[0], values[2]]))
    np.testing.assert_array_equal(gathered[1], np.concatenate([values[3], values[1]]))
    total = np.sum(values, axis=0)
    np.testing.assert_allclose(run("all-reduce", (4, 2))[3], total, rtol=1e-5)
    np.testing.assert_allclose(run("reduce-scatter", (1, 2), 0)[2], total[2:3], rtol=1e-5)
    swapped = run("all-to-all", (4, 2), 0)
    np.testing.assert_array_equal(swapped[1], np.stack([value[1] for value in values]))
    moved = run("collective-permute", (4, 2), pairs=((0, 1), (2, 0)))
    np.testing.assert_array_equal(moved[1], values[0])
    np.testing.assert_array_equal(moved[2], np.zeros((4, 2)))
    shared = run("collective-broadcast", (4, 2), groups=((2, 0, 1, 3),))
    np.testing.assert_array_equal(shared[0], values[2])


def test_tuples_exchange_member_by_member():
    xs = tuple(Parameter(i, TensorType(S32)) for i in range(2))
    kinds = TupleType((TensorType(S32),) * 2)
    node = ops.Collective(xs, "all-to-all", kinds, -1, (), (), ())
    inputs = [[np.array(10 * number + i, np.int32) for i in range(2)] for number in range(2)]
    found = evaluate_participants(Graph("g", xs, ops.results_of(node)), inputs)
    assert [[int(value) for value in values] for values in found] == [[0, 10], [1, 11]]


def test_participants_know_their_numbers():
    kinds = ("replica-id", "partition-id", "rank-id")
    ids = [ops.Collective((), kind, TensorType(U32), -1, (), (), ()) for kind in kinds]
    graph = Graph("ids", (), tuple(ids))
    found = evaluate_participants(graph, [[]] * 6, partitions=3)
    numbers = [[int(value) for value in results] for results in found]
    assert numbers == [[rank // 3, rank % 3, rank] for rank in range(6)]


# What the examples of StableHLO's specification give for two replicas of two partitions
NUMBERED = {
    "ranks": [[0, 1, 2, 3]],
    "replicas": [[0, 2], [1, 3]],
    "partitions": [[0, 1], [2, 3]],
    "replicas with partitions": [[0, 2, 1, 3]],
}


@pytest.mark.parametrize("numbers", NUMBERED)
def test_groups_count_what_they_say(numbers):
    members = 4 if numbers == "ranks" else 2
    groups = groups_of_ranks((tuple(range(members)),), numbers, 2, 2)
    assert [list(group) for group in groups] == NUMBERED[numbers]
    assert groups_of_ranks((), numbers, 2, 2) == groups


def test_participants_that_part_ways_are_an_error():
    p, x = Parameter(0, TensorType(PRED)), Parameter(1, TensorType(F32))
    inner = Parameter(0, TensorType(F32))
    meets = _exchange("all-reduce", inner, TensorType(F32))
    node = ops.Conditional(p, (x, x), (1, 1), (meets, Graph("alone", (inner,), (inner,))))
    inputs = [[np.array(True), f32()], [np.array(False), f32()]]
    with pytest.raises(TypeError, match="another is elsewhere"):
        evaluate_participants(Graph("g", (p, x), (node,)), inputs)


def test_a_group_that_does_not_fit_the_result_is_refused():
    x = Parameter(0, TensorType(F32, (4, 2)))
    graph = _exchange("all-gather", x, TensorType(F32, (8, 2)), 0)
    with pytest.raises(TypeError, match="a group of 1 does not fit"):
        evaluate(graph, [f32(4, 2)])
