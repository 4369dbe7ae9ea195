"""Runs of several ranks: results on every device, names, wrong numbers, ranks that do not meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glia.base.dtype import F32, PRED, U32
from glia.base.errors import CompileError
from glia.cli.glia import main
from glia.compiler import compile_graph
from glia.graph import ops
from glia.graph.ir import Graph, Parameter, TensorType
from glia.graph.passes.errors import BadReplicaGroups, TooManyRanks
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.runtime.errors import WrongInputs, WrongRanks
from glia.runtime.model import DEVICES, RANK_DEVICES, load
from glia.sim.ranks.errors import RankMissing, RanksDisagree

ROW = TensorType(F32, (4, 6))
X = Parameter(0, ROW, "x")
ADD = ops.combiner("add", F32)
OPTIONS = CompileOptions(target="trn2", auto_cast="none")


def _reduce(x=X, groups=((0, 1, 2, 3),), kind="all-reduce") -> ops.Collective:
    return ops.Collective((x,), kind, x.type, -1, groups, (), (ADD,))


def _rows(count: int) -> list[list[np.ndarray]]:
    return [[np.random.default_rng(n).standard_normal((4, 6), np.float32)] for n in range(count)]


@pytest.fixture(scope="module")
def summed() -> Neff:
    return compile_graph(Graph("summed", (X,), (_reduce(),), ("total",)), OPTIONS)


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_runs_all_ranks_again_and_again(summed: Neff, device: str) -> None:
    model = load(summed, ranks=4, device=device)
    for _ in range(3):
        inputs = _rows(4)
        for (found,) in model.run_ranks(inputs):
            np.testing.assert_allclose(found, sum(given[0] for given in inputs), rtol=1e-6)


def test_every_device_has_a_way_to_run_ranks() -> None:
    assert set(DEVICES) == set(RANK_DEVICES)


def test_a_file_says_how_many_ranks_it_is_for(summed: Neff) -> None:
    assert Neff.from_bytes(summed.to_bytes()).ranks == 4


def test_another_number_of_ranks_is_refused(summed: Neff) -> None:
    with pytest.raises(WrongRanks, match="for 4 ranks, not 8"):
        load(summed, ranks=8)
    with pytest.raises(WrongRanks, match="for 4 ranks, not 2"):
        load(summed).run_ranks(_rows(2))
    with pytest.raises(WrongRanks, match="run_ranks"):
        load(summed)(*_rows(1)[0])


def test_replicas_come_before_partitions() -> None:
    ids = [ops.Collective((), f"{kind}-id", TensorType(U32), -1, (), (), ())
           for kind in ("replica", "partition")]  # fmt: skip
    neff = compile_graph(Graph("ids", (), tuple(ids), (), (), 2, 3), OPTIONS)
    assert (neff.replicas, neff.partitions) == (2, 3)
    found = [[int(each) for each in outputs] for outputs in load(neff).run_ranks([[]] * 6)]
    assert found == [[replica, partition] for replica in range(2) for partition in range(3)]


def test_options_say_how_many_devices_there_are() -> None:
    graph = Graph("summed", (X,), (_reduce(groups=()),))
    assert compile_graph(graph, OPTIONS).ranks == 1
    neff = compile_graph(graph, CompileOptions(replicas=2, partitions=3, auto_cast="none"))
    assert neff.ranks == 6


def test_sixty_four_ranks_of_one_program_sum_up() -> None:
    groups = (tuple(range(64)),)
    neff = compile_graph(Graph("many", (X,), (_reduce(groups=groups),)), OPTIONS)
    inputs = _rows(64)
    found = load(neff).run_ranks(inputs)
    total = np.sum([given[0] for given in inputs], axis=0)
    for (each,) in found:
        np.testing.assert_allclose(each, total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (Graph("g", (X,), (_reduce(groups=((0, 2),)),)), "rank 1 is in none"),
        (Graph("g", (X,), (_reduce(groups=((0, 1), (1, 2))),)), "rank 1 is in two"),
        (Graph("g", (X,), (_reduce(groups=((0, 9),)),), (), (), 2, 1), "rank 9 does not exist"),
        (
            Graph("g", (X,), (ops.Collective((X,), "all-gather", TensorType(F32, (8, 6)), 0,
                                             ((0, 1), (2,)), (), ()),)),
            "have 1 and 2 members",
        ),
        (
            Graph("g", (X,), (ops.Collective((X,), "reduce-scatter", TensorType(F32, (1, 6)), 0,
                                             ((0, 1, 2),), (), (ADD,)),)),
            "in groups of 3",
        ),
        (
            Graph("g", (X,), (ops.Collective((X,), "collective-permute", ROW, -1, (),
                                             ((0, 1), (2, 1)), ()),)),
            "the target of two pairs",
        ),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit_are_refused(graph: Graph, problem: str) -> None:
    with pytest.raises(BadReplicaGroups, match=problem):
        compile_graph(graph, OPTIONS)


def test_more_ranks_than_there_are_machines_are_refused() -> None:
    graph = Graph("g", (X,), (_reduce(groups=()),))
    with pytest.raises(TooManyRanks):
        compile_graph(graph, CompileOptions(replicas=1000, partitions=1000))


def _branch(kind: str | None) -> Graph:
    """An all-reduce where the predicate holds; else another collective, or none."""
    predicate, inner, other = (
        Parameter(0, TensorType(PRED), "p"),
        Parameter(0, ROW),
        Parameter(0, ROW),
    )
    x = Parameter(1, ROW, "x")
    pairs = ((0, 1), (1, 0))
    given = other if kind is None else ops.Collective((other,), kind, ROW, -1, (), pairs, ())
    arms = (Graph("sum", (inner,), (_reduce(inner, ((0, 1),)),)), Graph("else", (other,), (given,)))
    node = ops.Conditional(predicate, (x, x), (1, 1), arms)
    return Graph("branch", (predicate, x), (node,), (), (), 1, 2)


@pytest.mark.parametrize("device", ["reference", "host"])
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (None, RankMissing, "rank 0 waits in all_reduce .*rank 1, which never arrives"),
        ("collective-permute", RanksDisagree, "all_reduce.*rank 1 in collective_permute"),
    ],
)
def test_ranks_that_do_not_meet_are_named(
    device: str, kind: str | None, error: type[CompileError], text: str
) -> None:
    neff = compile_graph(_branch(kind), OPTIONS)
    rows = [[np.array(n == 0), *row] for n, row in enumerate(_rows(2))]
    with pytest.raises(error, match=text):
        load(neff, device=device).run_ranks(rows)
    together = [[np.array(True), *row] for row in _rows(2)]
    found = load(neff, device=device).run_ranks(together)
    np.testing.assert_allclose(found[1][0], _rows(2)[0][0] + _rows(2)[1][0], rtol=1e-6)


def test_the_command_runs_ranks_with_inputs_of_all_or_of_one(summed: Neff, tmp_path: Path) -> None:
    summed.save(tmp_path / "m.neff")
    np.save(tmp_path / "one.npy", np.ones((4, 6), np.float32))
    np.save(tmp_path / "five.npy", np.full((4, 6), 5, np.float32))
    given = ["--input", f"x={tmp_path}/one.npy", "--input", f"x@2={tmp_path}/five.npy"]
    call = ["run", str(tmp_path / "m.neff"), "--ranks", "4", *given]
    result = CliRunner().invoke(main, [*call, "--save", str(tmp_path / "out.npz")])
    assert result.exit_code == 0, result.output
    saved = np.load(tmp_path / "out.npz")
    assert sorted(saved) == [f"total@{rank}" for rank in range(4)]
    assert all(np.all(saved[name] == 8) for name in saved)
    checked = CliRunner().invoke(main, [*call, "--check", str(tmp_path / "out.npz")])
    assert checked.exit_code == 0, checked.output
    wrong = CliRunner().invoke(main, [*call, "--input", f"x@4={tmp_path}/one.npy"])
    assert isinstance(wrong.exception, WrongInputs) or "x@4" in wrong.output
