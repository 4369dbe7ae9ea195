"""Arrays of all ranks as one: divided for a run, and put together after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glia.base.dtype import F32
from glia.cli.glia import main
from glia.compiler import compile_graph
from glia.graph import ops
from glia.graph.ir import Graph, Parameter, TensorType
from glia.neff.package import Neff
from glia.runtime.errors import BadSharding
from glia.runtime.shardings import Sharding, mesh_of, sharding_of

from .test_runs import ADD, OPTIONS

MESH = {"data": 2, "model": 2}
ARRAY = np.arange(48, dtype=np.float32).reshape(4, 12)


@pytest.mark.parametrize("text", ["data,model", "model,data", "data+model", "-,model", "-", "data"])
def test_what_is_divided_is_put_together_again(text: str) -> None:
    sharding = sharding_of(text, MESH)
    pieces = sharding.pieces(ARRAY)
    assert str(sharding) == text and len(pieces) == 4
    np.testing.assert_array_equal(sharding.joined_array(pieces), ARRAY)


def test_the_last_axis_of_a_mesh_is_the_fastest() -> None:
    first = [int(piece[0, 0]) for piece in sharding_of("data,model", MESH).pieces(ARRAY)]
    assert first == [0, 6, 24, 30]


@pytest.mark.parametrize(
    ("mesh", "text", "problem"),
    [
        ("data=3", "-", "not of 4 ranks"),
        ("data", "-", "not a mesh"),
        ("data=2,data=2", "-", "not a mesh"),
        ("data=0", "-", "not a mesh"),
        ("data=4", "model", "no axis 'model'"),
        ("data=4", "data,data", "twice"),
        ("data=4", "-,-,data", "more dimensions"),
        ("a=2,b=2", "-,a+b,-", "more dimensions"),
    ],
)
def test_a_sharding_that_does_not_fit_is_refused(mesh: str, text: str, problem: str) -> None:
    with pytest.raises(BadSharding, match=problem):
        sharding_of(text, mesh_of(mesh, 4)).pieces(ARRAY)


def test_a_dimension_that_does_not_divide_is_refused() -> None:
    with pytest.raises(BadSharding, match="5 does not divide by 2"):
        Sharding(MESH, (("data",),)).pieces(np.zeros((5, 2)))
    with pytest.raises(BadSharding, match="more dimensions"):
        Sharding(MESH, (("data",),)).joined_array([np.zeros(())] * 4)


@pytest.fixture(scope="module")
def neff() -> Neff:
    """Each model rank has half of the columns; the sum over them is on all."""
    x = Parameter(0, TensorType(F32, (2, 6)), "x")
    groups = ((0, 1), (2, 3))
    total = ops.Collective((x,), "all-reduce", x.type, -1, groups, (), (ADD,))
    return compile_graph(Graph("halves", (x,), (total,), ("total",)), OPTIONS)


def test_the_command_takes_and_gives_whole_arrays(neff: Neff, tmp_path: Path) -> None:
    neff.save(tmp_path / "m.neff")
    np.save(tmp_path / "x.npy", ARRAY)
    call = ["run", str(tmp_path / "m.neff"), "--input", f"x={tmp_path}/x.npy"]
    call += ["--mesh", "data=2,model=2", "--shard", "x=data,model", "--save", f"{tmp_path}/o.npz"]
    result = CliRunner().invoke(main, [*call, "--shard", "total=data"])
    assert result.exit_code == 0, result.output
    saved = np.load(tmp_path / "o.npz")
    assert list(saved) == ["total"]
    np.testing.assert_array_equal(saved["total"], ARRAY[:, :6] + ARRAY[:, 6:])
    apart = CliRunner().invoke(main, call)
    assert apart.exit_code == 0, apart.output
    assert sorted(np.load(tmp_path / "o.npz")) == [f"total@{rank}" for rank in range(4)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--shard", "x=data"], "--shard needs --mesh"),
        (["--mesh", "data=4", "--shard", "y=data"], "no input or output 'y'"),
        (["--mesh", "data=4", "--shard", "x"], "not of the form"),
        (["--mesh", "data=8"], "GLIA536"),
    ],
)
def test_a_command_with_other_shardings_is_refused(
    neff: Neff, tmp_path: Path, words: list[str], problem: str
) -> None:
    neff.save(tmp_path / "m.neff")
    result = CliRunner().invoke(main, ["run", str(tmp_path / "m.neff"), *words])
    assert result.exit_code == 1
    assert problem in result.output
