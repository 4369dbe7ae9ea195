"""Ranks in processes of their own: as in threads, and nothing is left of what ends them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glia.base.dtype import F32, S32
from glia.base.errors import CompileError, InternalError
from glia.base.loc import Loc
from glia.cli.glia import main
from glia.compiler import compile_graph
from glia.graph import ops
from glia.graph.ir import Graph, Parameter, TensorType
from glia.neff.package import Neff
from glia.options import CompileOptions
from glia.runtime.errors import ProgramFault
from glia.runtime.model import Model, OutOfBoundAccess, load
from glia.sim.policy import ExecutionFault
from glia.sim.ranks.channel import ChannelClosed, array_in
from glia.sim.ranks.errors import OneProcessOnly, RankLost, RankMissing, RanksDisagree
from glia.sim.ranks.failures import described_failure, failure_of
from glia.sim.ranks.rank_processes import StartedProcesses
from ranks.test_runs import OPTIONS, ROW, X, _branch, _reduce, _rows


@pytest.fixture(scope="module")
def summed() -> Neff:
    """A sum over two ranks of a product with weights that both share."""
    weights = ops.Constant(np.random.default_rng(5).standard_normal((6, 6), np.float32))
    product = ops.Dot(X, weights, (), (), (1,), (0,), F32)
    return compile_graph(Graph("summed", (X,), (_reduce(product, ((0, 1),)),), ("total",)), OPTIONS)


def _processes(model: Model) -> list[int]:
    kept = model.neff.program.cache.get(StartedProcesses)
    assert kept is not None and kept.ranks is not None
    return kept.ranks.process_ids


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("device", ["host", "reference"])
def test_processes_give_what_threads_give_again_and_again(summed: Neff, device: str) -> None:
    apart = load(summed, device=device, rank_processes=True)
    together = load(summed, device=device, rank_processes=False)
    for _ in range(2):
        inputs = _rows(2)
        for ours, theirs in zip(apart.run_ranks(inputs), together.run_ranks(inputs), strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
    assert len(set(_processes(apart))) == 2


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (None, RankMissing, "rank 0 waits in all_reduce .*rank 1, which never arrives"),
        ("collective-permute", RanksDisagree, "all_reduce.*rank 1 in collective_permute"),
    ],
)
def test_ranks_in_processes_that_do_not_meet_are_named(
    kind: str | None, error: type[CompileError], text: str
) -> None:
    model = load(compile_graph(_branch(kind), OPTIONS), rank_processes=True)
    with pytest.raises(error, match=text):
        model.run_ranks([[np.array(n == 0), *row] for n, row in enumerate(_rows(2))])
    found = model.run_ranks([[np.array(True), *row] for row in _rows(2)])
    np.testing.assert_allclose(found[1][0], _rows(2)[0][0] + _rows(2)[1][0], rtol=1e-6)


def test_notifications_of_processes_are_told_with_their_rank() -> None:
    table, index = Parameter(0, ROW, "table"), Parameter(1, TensorType(S32, (3, 1)), "index")
    rows = ops.Gather(table, index, (1,), (0,), (), (), (0,), 1, (1, 6))
    total = ops.Collective((rows,), "all-reduce", rows.type, -1, ((0, 1),), (),
                           (ops.combiner("add", F32),))  # fmt: skip
    neff = compile_graph(Graph("rows", (table, index), (total,)), OPTIONS)
    given = [[np.ones((4, 6), np.float32), np.array([[0], [n * 9], [1]], np.int32)]
             for n in range(2)]  # fmt: skip
    told = []
    for is_apart in (True, False):
        model = load(neff, rank_processes=is_apart)
        with pytest.warns(OutOfBoundAccess):
            model.run_ranks(given)
        told.append([each.to_dict() for each in model.notifications])
    assert told[0] == told[1] and told[0]


def test_a_killed_rank_is_named_and_nothing_is_left(summed: Neff) -> None:
    gc.collect()
    before = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    model = load(Neff.from_bytes(summed.to_bytes()), rank_processes=True)
    model.run_ranks(_rows(2))
    processes = _processes(model)
    os.kill(processes[1], signal.SIGSTOP)  # so that the other waits for it
    killer = threading.Timer(0.2, os.kill, (processes[1], signal.SIGKILL))
    killer.start()
    with pytest.raises(RankLost, match=r"rank 1 of 2 was lost: .*signal 9"):
        model.run_ranks(_rows(2))
    assert not any(map(_is_running, processes))
    assert set(os.listdir("/dev/shm")) <= before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]
    assert len(model.run_ranks(_rows(2))) == 2  # new processes


_JOB = """
import sys, threading, os, signal, numpy as np, glia
from glia.sim.ranks.rank_processes import StartedProcesses
model = glia.load(sys.argv[1], rank_processes=True)
model.run_ranks([[np.ones((4, 6), np.float32)]] * 2)
print(*model.neff.program.cache.get(StartedProcesses).ranks.process_ids, flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


def _job(path: Path, what: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", _JOB, str(path), what], env=environment,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip


def _are_gone(processes: list[int]) -> bool:
    for _ in range(100):
        if not any(map(_is_running, processes)):
            return True
        time.sleep(0.1)
    return False


def test_two_jobs_at_once_end_with_those_that_started_them(summed: Neff, tmp_path: Path) -> None:
    summed.save(tmp_path / "m.neff")
    jobs = [_job(tmp_path / "m.neff", what) for what in ("wait", "end")]
    started = [list(map(int, job.stdout.readline().split())) for job in jobs if job.stdout]
    assert len({*started[0], *started[1]}) == 4
    assert jobs[1].wait(60) == 0 and _are_gone(started[1])
    assert all(map(_is_running, started[0]))
    jobs[0].kill()  # it has no way to tidy up
    jobs[0].communicate()
    assert _are_gone(started[0])


def test_two_threads_may_run_one_model(summed: Neff) -> None:
    model = load(summed, rank_processes=True)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: model.run_ranks(_rows(2))[1][0], range(4)))
    assert all(np.array_equal(each, found[0]) for each in found)


def test_what_needs_one_process_refuses_several(summed: Neff) -> None:
    with pytest.raises(OneProcessOnly, match="adversarial"):
        load(summed, device="adversarial", rank_processes=True)


def test_the_command_runs_ranks_in_processes(summed: Neff, tmp_path: Path) -> None:
    summed.save(tmp_path / "m.neff")
    saved = []
    for way in ("--processes", "--threads"):
        call = ["run", str(tmp_path / "m.neff"), way, "--save", str(tmp_path / f"{way}.npz")]
        result = CliRunner().invoke(main, call)
        assert result.exit_code == 0, result.output
        saved.append(np.load(tmp_path / f"{way}.npz"))
    assert all(np.array_equal(saved[0][name], saved[1][name]) for name in saved[1])


@pytest.mark.parametrize(
    "failure",
    [
        ProgramFault(reason="it is wrong", loc=Loc("a.py", 3), instruction="copy"),
        ExecutionFault("it is wrong", loc=Loc("a.py", 3, "add"), instruction="copy"),
        MemoryError("64 bytes"),
    ],
)
def test_a_failure_reads_the_same_in_another_process(failure: Exception) -> None:
    assert str(failure_of(described_failure(failure))) == str(failure)


def test_a_failure_of_unknown_kind_is_internal() -> None:
    with pytest.raises(InternalError, match="KeyError: 'x'"):
        raise failure_of(described_failure(KeyError("x")))


@pytest.mark.parametrize(
    "described",
    [["float32", [4], 64], ["float32", [-1], 0], ["O", [1], 0], ["no such", [1], 0], [1], None],
)
def test_an_array_that_does_not_fit_is_refused(described: object) -> None:
    with pytest.raises(ChannelClosed):
        array_in(memoryview(bytes(64)), described)


def test_a_choice_by_memory_is_for_devices_with_processes(summed: Neff) -> None:
    assert load(summed)._rank_executor().__name__ == "run_ranks_on_host"
    large = TensorType(F32, (1 << 20, 512))
    graph = Graph("large", (Parameter(0, large, "x"),), (_reduce(Parameter(0, large, "x")),))
    neff = compile_graph(graph, CompileOptions(target="trn2", auto_cast="none"))
    assert "processes" in repr(load(neff)._rank_executor())
    assert "processes" not in repr(load(neff, device="adversarial")._rank_executor())
