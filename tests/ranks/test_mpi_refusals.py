"""What is refused of runs over MPI, without MPI; `tests/mpi` has the runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glia.cli.glia import main
from glia.compiler import compile_graph
from glia.graph.ir import Graph
from glia.neff.package import Neff
from glia.sim.notifications import Notifications
from glia.sim.ranks.errors import DifferentPrograms, OneProcessOnly, WrongProcesses
from glia.sim.ranks.mpi_ranks import run_ranks_over_mpi
from glia.sim.ranks.world import LAUNCHED, _is_alive, launched_processes, share_of

from .test_runs import OPTIONS, X, _reduce


@pytest.fixture(scope="module")
def neff() -> Neff:
    return compile_graph(Graph("summed", (X,), (_reduce(),), ("total",)), OPTIONS)


def test_a_missing_mpi_is_said_with_its_cure(
    neff: Neff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neff.save(tmp_path / "m.neff")
    monkeypatch.setenv(LAUNCHED[0], "4")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    result = CliRunner().invoke(main, ["run", str(tmp_path / "m.neff")])
    assert result.exit_code == 1
    assert "GLIA533" in result.output and "openmpi-bin" in result.output


def test_without_mpirun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert launched_processes() == 1
    monkeypatch.setenv(LAUNCHED[1], "8")
    assert launched_processes() == 8
    monkeypatch.setenv(LAUNCHED[1], "many")
    assert launched_processes() == 1


def test_ranks_are_shared_out_evenly_in_order() -> None:
    assert [list(share_of(8, 4, each)) for each in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(WrongProcesses, match="8 ranks, which 3 processes"):
        share_of(8, 3, 0)
    with pytest.raises(WrongProcesses, match="4 ranks, which 8 processes"):
        share_of(4, 8, 0)


class _Differing:
    """A world whose processes have loaded different files."""

    count, position = 2, 0

    def same_everywhere(self, what: bytes) -> bool:
        return not what


@pytest.mark.parametrize(
    ("device", "error"), [("host", DifferentPrograms), ("adversarial", OneProcessOnly)]
)
def test_what_processes_cannot_share_is_refused(
    neff: Neff, device: str, error: type[Exception]
) -> None:
    world: Any = _Differing()
    with pytest.raises(error):
        run_ranks_over_mpi(world, neff.programs, 4, [], Notifications(), device=device)


def test_a_process_that_has_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays, ended
    assert not _is_alive(process.pid)
    process.wait()
    assert not _is_alive(process.pid)
    assert _is_alive(os.getpid())
