"""Every collective among any groups gives compiled what the ranks of the graph's evaluator get."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from glia.base.dtype import F32, S32, DType
from glia.compiler import compile_graph
from glia.graph import ops
from glia.graph.evaluate import random_inputs
from glia.graph.exchanges.number_ranks import number_ranks
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType
from glia.graph.participants import evaluate_participants, run_participants
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.runtime.model import load
from glia.tile.evaluate import evaluate
from glia.tile.ir import Program
from ranks.collective_graphs import draw

COMPILED = tuple(sorted({"trn1", "trn1n", "inf2", "trn2", "trn3"}))


def _assert_close(found, expected, what: object) -> None:
    for rank, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            if one.dtype.kind in "biu" or "int" in one.dtype.name:
                np.testing.assert_array_equal(one, other, err_msg=f"rank {rank} of {what}")
            else:
                is_narrow = one.dtype.itemsize <= 2
                kind = np.complex64 if one.dtype.kind == "c" else np.float32
                np.testing.assert_allclose(
                    one.astype(kind), other.astype(kind), rtol=0.02 if is_narrow else 1e-5,
                    atol=0.02 if is_narrow else 1e-5, err_msg=f"rank {rank} of {what}",
                )  # fmt: skip


def _options(target: str) -> CompileOptions:
    return CompileOptions(target=target, auto_cast="none", verify=True)


@pytest.mark.parametrize("seed", range(60))
def test_a_compiled_collective_gives_what_its_graph_gives(seed: int) -> None:
    case = draw(seed)
    target = COMPILED[seed % len(COMPILED)]
    expected = evaluate_participants(case.graph, case.inputs)
    model = load(compile_graph(case.graph, _options(target)), device="reference")
    assert model.ranks == len(case.inputs)
    _assert_close(model.run_ranks(case.inputs), expected, case)


def _graph(kind: str, body: Graph, dtype: DType, extent: int, ranks: int) -> Graph:
    result = extent // ranks if kind == "reduce-scatter" else extent
    x = Parameter(0, TensorType(dtype, (extent,)), "x")
    groups = (tuple(reversed(range(ranks))),)
    along = 0 if kind == "reduce-scatter" else -1
    made = TensorType(dtype, (result,))
    node = ops.Collective((x,), kind, made, along, groups, (), (body,))
    return Graph(kind, (x,), (node,), (), (), 1, ranks)


# (a, b) -> a b + a + b, which is associative and no operation of its own
JOINED = {
    dtype: ops.scalar_graph("joined", (dtype, dtype), lambda a, b: ops.Map(
        "add", (ops.Map("multiply", (a, b)), ops.Map("add", (a, b)))))
    for dtype in (F32, S32)
}  # fmt: skip


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter"])
@pytest.mark.parametrize("dtype", JOINED)
def test_any_function_combines(kind: str, dtype: DType) -> None:
    graph = _graph(kind, JOINED[dtype], dtype, 30, 5)
    inputs = [random_inputs(graph, rank) for rank in range(5)]
    model = load(compile_graph(graph, _options("trn2")), device="reference")
    _assert_close(model.run_ranks(inputs), evaluate_participants(graph, inputs), graph)


@pytest.mark.parametrize("extent", [70_000, 65_536 * 3])
def test_much_data_is_combined_piece_by_piece(extent: int) -> None:
    graph = _graph("all-reduce", ops.combiner("add", S32), S32, extent, 4)
    neff = compile_graph(graph, _options("trn1"))
    kinds = [i.mnemonic() for i in neff.program.instructions() if i.queue == "exchange"]
    assert kinds == ["all_to_all", "all_gather"]
    generator = np.random.default_rng(0)
    inputs = [[generator.integers(-(2**30), 2**30, extent).astype(np.int32)] for _ in range(4)]
    for (found,) in load(neff).run_ranks(inputs):
        np.testing.assert_array_equal(found, sum(each[0] for each in inputs))


def test_a_tensor_for_each_rank_is_exchanged() -> None:
    xs = tuple(Parameter(i, TensorType(F32, (3, 2)), f"x{i}") for i in range(4))
    kinds = TupleType((TensorType(F32, (3, 2)),) * 4)
    node = ops.Collective(xs, "all-to-all", kinds, -1, ((2, 0, 1, 3),), (), ())
    graph = Graph("tuples", xs, ops.results_of(node), (), (), 4, 1)
    inputs = [random_inputs(graph, rank) for rank in range(4)]
    model = load(compile_graph(graph, _options("trn3")))
    _assert_close(model.run_ranks(inputs), evaluate_participants(graph, inputs), graph)


@pytest.mark.parametrize("device", ["reference", "host"])
def test_exchanges_run_in_loops_and_branches(device: str) -> None:
    kind = TensorType(F32, (4,))

    def summed(x: Node) -> Node:
        body = (ops.combiner("add", F32),)
        return ops.Collective((x,), "all-reduce", kind, -1, ((0, 1), (2, 3)), (), body)

    count, state = Parameter(0, TensorType(S32)), Parameter(1, kind)
    three = ops.Constant(np.array(3, np.int32))
    condition = Graph("more", (count, state), (ops.Map("less", (count, three)),))
    one = ops.Constant(np.array(1, np.int32))
    body = Graph("body", (count, state), (ops.Map("add", (count, one)), summed(state)))
    x = Parameter(0, kind, "x")
    start = ops.Constant(np.array(0, np.int32))
    looped = ops.Get(ops.While((start, x), condition, body), 1)
    graph = Graph("loop", (x,), (looped,), (), (), 4, 1)
    inputs = [random_inputs(graph, rank) for rank in range(4)]
    model = load(compile_graph(graph, _options("trn2")), device=device)
    _assert_close(model.run_ranks(inputs), evaluate_participants(graph, inputs), graph)


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_every_level_of_a_collective_agrees(seed: int) -> None:
    case = draw(seed)
    numbered = number_ranks(case.graph, CompileOptions())
    partitions = numbered.partitions
    options = _options("trn2")
    program = run_pipeline(case.graph, options, stop_after="build")
    calls = [partial(evaluate, program, _words(program, given)) for given in case.inputs]
    found = run_participants(calls, partitions)
    expected = evaluate_participants(case.graph, case.inputs)
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            same_bytes = np.ascontiguousarray(one).reshape(-1).view(np.uint8)
            if other.dtype.kind in "biu":
                wanted = np.ascontiguousarray(other).reshape(-1).view(np.uint8)
                np.testing.assert_array_equal(same_bytes, wanted, err_msg=repr(case))


def _words(program: Program, given: list[np.ndarray]) -> list[np.ndarray]:
    """The inputs as the arrays that the program's buffers hold: with the same bytes."""
    return [
        np.ascontiguousarray(array).reshape(-1).view(program.buffers[name].dtype.numpy)
        for name, array in zip(program.inputs, given, strict=True)
    ]
