"""Ranks in processes that mpirun starts, on one host and on two: results, losses, refusals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import glia
from glia.compiler import compile_graph
from glia.graph.ir import Graph
from glia.runtime.model import load
from ranks.jax_programs import PROGRAMS
from ranks.test_jax_programs import halved as halved
from ranks.test_runs import OPTIONS, X, _branch, _reduce

COMMAND = Path(__file__).parents[2] / "commands" / "glia"
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")
SECONDS = 120
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and ip"
)


def _start(*words: object, launch: tuple[str, ...] = MPIRUN) -> subprocess.Popen[str]:
    path = os.pathsep.join(place for place in sys.path if place)
    return subprocess.Popen(
        [*launch, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def _run(processes: int, *words: object) -> tuple[int, str, str]:
    process = _start("-n", processes, sys.executable, COMMAND, "run", *words)
    out, errors = process.communicate(timeout=SECONDS)
    return process.returncode, out, errors


@pytest.fixture(scope="module")
def neff(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sum over four ranks."""
    path = tmp_path_factory.mktemp("mpi") / "summed.neff"
    compile_graph(Graph("summed", (X,), (_reduce(),), ("total",)), OPTIONS).save(path)
    return path


@pytest.fixture(scope="module")
def inputs(neff: Path) -> list[str]:
    words = []
    for rank in range(4):
        path = neff.parent / f"x{rank}.npy"
        np.save(path, np.full((4, 6), 10**rank, np.float32))
        words += ["--input", f"x@{rank}={path}"]
    return words


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("device", ["host", "reference"])
def test_processes_share_the_ranks(
    neff: Path, inputs: list[str], processes: int, device: str
) -> None:
    saved = neff.parent / "out.npz"
    status, out, errors = _run(processes, neff, "--device", device, "--save", saved, *inputs)
    assert status == 0, errors
    assert out.count("total@") == 4  # the first process prints, and no other
    found = np.load(saved)
    assert sorted(found) == [f"total@{rank}" for rank in range(4)]
    assert all(np.all(found[name] == 1111) for name in found)


@pytest.mark.usefixtures("halved")
def test_ranks_of_two_cores_are_shared_too(tmp_path: Path) -> None:
    program, saved = PROGRAMS[0](), tmp_path / "out.npz"
    neff = glia.compile(program.lowered(), target="trn2")
    assert len(neff.programs) == 2
    neff.save(tmp_path / "model.neff")
    words: list[object] = []
    for rank, arrays in enumerate(program.inputs_of_ranks()):
        for binding, array in zip(neff.inputs, arrays, strict=True):
            np.save(tmp_path / f"{binding.name}-{rank}.npy", array)
            words += ["--input", f"{binding.name}@{rank}={tmp_path}/{binding.name}-{rank}.npy"]
    status, _, errors = _run(2, tmp_path / "model.neff", "--save", saved, *words)
    assert status == 0, errors
    found = np.load(saved)
    for rank, results in enumerate(program.expected()):
        for binding, expected in zip(neff.outputs, results, strict=True):
            np.testing.assert_allclose(found[f"{binding.name}@{rank}"], expected, 2e-4, 2e-5)


def test_random_inputs_do_not_depend_on_where_ranks_run(neff: Path) -> None:
    for processes in (1, 2):
        status, _, errors = _run(processes, neff, "--save", neff.parent / f"{processes}.npz")
        assert status == 0, errors
    one, two = (np.load(neff.parent / f"{processes}.npz") for processes in (1, 2))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_processes_that_do_not_divide_the_ranks_are_refused(neff: Path) -> None:
    status, _, errors = _run(3, neff)
    assert status != 0
    assert "GLIA534" in errors


def test_another_program_in_one_process_is_refused(neff: Path) -> None:
    other = neff.parent / "other.neff"
    compile_graph(Graph("other", (X,), (_reduce(groups=((0, 1), (2, 3))),)), OPTIONS).save(other)
    one = ["-n", 1, sys.executable, COMMAND, "run"]
    process = _start(*one, neff, ":", *one, other)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert "GLIA535" in errors


def test_ranks_of_several_processes_that_do_not_meet_are_named(tmp_path: Path) -> None:
    compile_graph(_branch("collective-permute"), OPTIONS).save(tmp_path / "branch.neff")
    words = []
    for rank in range(2):
        np.save(tmp_path / f"{rank}.npy", np.array(rank == 0))
        words += ["--input", f"p@{rank}={tmp_path}/{rank}.npy"]
    status, _, errors = _run(2, tmp_path / "branch.neff", *words)
    assert status != 0
    assert "GLIA526" in errors and "rank 0 waits in all_reduce" in errors
    assert errors.count("GLIA526]") == 1


_LOSING = """
import os, signal, sys, time
from glia.cli.glia import main
from glia.sim.ranks.one_rank import OneRank
run = OneRank.run
def run_or_end(self, *given):
    if self._rank == int(sys.argv[1]):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return run(self, *given)
OneRank.run = run_or_end
main(["run", sys.argv[2]])
"""


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_ends_all_and_is_named(neff: Path, rank: int) -> None:
    process = _start("-n", 4, sys.executable, "-c", _LOSING, rank, neff)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert f"[GLIA531] rank {rank} of 4 was lost" in errors
    assert errors.count("GLIA531]") == 1


_AGENT = """#!/bin/sh
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Path]:
    """Two network namespaces, each a host with a name and an address; the agent that enters one."""
    names, agent = [f"glia{os.getpid()}{each}" for each in "ab"], tmp_path / "agent"
    agent.write_text(_AGENT)
    agent.chmod(0o755)
    steps = [f"ip netns add {name}" for name in names]
    steps.append(f"ip link add va netns {names[0]} type veth peer name vb netns {names[1]}")
    for number, (name, link) in enumerate(zip(names, ("va", "vb"), strict=True), 1):
        enter = f"ip -n {name}"
        steps.append(f"{enter} addr add 10.77.0.{number}/24 dev {link}")
        steps += [f"{enter} link set {each} up" for each in (link, "lo")]
        places = Path("/etc/netns") / name
        places.mkdir(parents=True)
        hosts = "".join(f"10.77.0.{n} {each}\n" for n, each in enumerate(names, 1))
        (places / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    try:
        for step in steps:
            subprocess.run(step.split(), check=True)
        yield agent
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def _on_two_hosts(agent: Path) -> tuple[str, ...]:
    names = [f"glia{os.getpid()}{each}" for each in "ab"]
    return (
        "ip", "netns", "exec", names[0], "unshare", "--uts", "sh", "-c",
        f'hostname {names[0]}; exec "$@"', "sh", *MPIRUN,
        "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "10.77.0.0/24",
        "--mca", "btl_tcp_if_include", "10.77.0.0/24", "-x", "PYTHONPATH",
        "--host", ",".join(f"{name}:2" for name in names), "--map-by", "node",
    )  # fmt: skip


@ROOT_ONLY
def test_two_hosts_share_the_ranks(neff: Path, inputs: list[str], two_hosts: Path) -> None:
    saved = neff.parent / "hosts.npz"
    words = ["-n", 4, sys.executable, COMMAND, "run", neff, "--save", saved, *inputs]
    process = _start(*words, launch=_on_two_hosts(two_hosts))
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert all(np.all(np.load(saved)[f"total@{rank}"] == 1111) for rank in range(4))


_PLACES = """
from glia.sim.ranks.world import World
world = World()
if not world.position:
    print(*world.hosts)
world.carry_until(lambda: True)
"""


@ROOT_ONLY
def test_ranks_of_a_host_are_neighbours(two_hosts: Path) -> None:
    words = ["-n", 4, sys.executable, "-c", _PLACES]
    process = _start(*words, launch=_on_two_hosts(two_hosts))
    out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    hosts = out.split()
    assert len(set(hosts)) == 2 and hosts[0] == hosts[1] and hosts[2] == hosts[3]


@ROOT_ONLY
def test_a_rank_killed_on_another_host_is_named(neff: Path, two_hosts: Path) -> None:
    words = ["-n", 4, sys.executable, "-c", _LOSING, 3, neff]
    process = _start(*words, launch=_on_two_hosts(two_hosts))
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert "[GLIA531] rank 3 of 4 was lost" in errors


def test_a_model_loaded_without_mpirun_knows_nothing_of_it(neff: Path) -> None:
    rows = [[np.ones((4, 6), np.float32)] for _ in range(4)]
    assert all(np.all(found == 4) for (found,) in load(neff).run_ranks(rows))
