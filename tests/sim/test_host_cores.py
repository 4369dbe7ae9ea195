"""Several cores run as machine code: each in its own thread, meeting where instructions do."""

from __future__ import annotations

import pytest

import glia
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.neff.package import Neff
from glia.sim.host import host_program
from glia.sim.host.host_program import HostCores, run_on_host
from glia.sim.host.rewriting import direct_writes, forwarding
from glia.sim.order.concurrent import Deadlock, run_cores
from sim.test_cores import X, alike, handed_over

Pair = tuple[Program, Program]


def test_what_one_core_writes_the_other_reads_after_they_met() -> None:
    cores = HostCores(handed_over())
    for factor in (1, 3):
        assert cores.run({"x": factor * X})["y"].tolist() == (2 * factor * X).tolist()
    assert {core.table.native.get("dma_copy", 0) for core in cores.cores} != {0}


def swapped(*, is_read_late: bool) -> Pair:
    """Each core stores to HBM, reads the other's, and stores once more after they met again.

    What is read is used only after the other core has written again, if it is late.
    """
    programs = []
    for rank in (0, 1):
        b = ProgramBuilder(f"core{rank}")
        x, y = (
            b.input(f"x{rank}", (32, 2), at=256 * rank),
            b.output(f"y{rank}", (32, 2), at=8192 + 256 * rank),
        )
        places = [b.hbm((32, 2), name=f"shared{n}", at=4096 + 256 * n) for n in (0, 1)]
        other = b.hbm((32, 2), name="other", at=12288)
        own, read, total = (b.sbuf((32, 2), name=name) for name in ("own", "read", "total"))
        b.dma_copy(own, x)
        b.dma_copy(places[rank], own)
        b.core_barrier(places[0])
        b.dma_copy(read, places[1 - rank])
        if not is_read_late:
            b.tensor_tensor(total, own, read, "add")
        b.core_barrier(other)
        b.memset(own, 9.0)
        b.dma_copy(places[rank], own)
        b.core_barrier(other)
        if is_read_late:
            b.dma_copy(own, x)
            b.tensor_tensor(total, own, read, "add")
        b.dma_copy(y, total)
        programs.append(b.finish())
    return programs[0], programs[1]


@pytest.mark.parametrize("is_read_late", [False, True])
def test_a_copy_is_not_read_at_its_source_after_cores_met(
    is_read_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, inputs = swapped(is_read_late=is_read_late), {"x0": X, "x1": 10 * X}
    found = run_on_host(programs, inputs)
    assert {name: each.tolist() for name, each in found.items()} == {
        "y0": (11 * X).tolist(), "y1": (11 * X).tolist(),
    }  # fmt: skip
    monkeypatch.setattr(forwarding, "meets_cores", lambda _: False)
    planted = HostCores(programs).run(inputs)
    assert (planted["y0"].tolist() == (11 * X).tolist()) == (not is_read_late)


def stored_after_meeting() -> Pair:
    """Core 1 reads a tensor before they meet that core 0 computes before and stores after."""
    programs = []
    for rank in (0, 1):
        b = ProgramBuilder(f"core{rank}")
        shared = b.hbm((32, 2), name="shared", at=4096)
        if rank == 0:
            x = b.input("x", (32, 2), at=0)
            t, doubled = b.sbuf((32, 2), name="t"), b.sbuf((32, 2), name="doubled")
            b.dma_copy(t, x)
            b.dma_copy(shared, t)
            b.core_barrier(shared)
            b.tensor_scalar(doubled, t, 2.0, "multiply")
            for _ in range(2):
                b.core_barrier(b.hbm((32, 2), name="other", at=12288))
            b.dma_copy(shared, doubled)
        else:
            y, read = b.output("y", (32, 2), at=8192), b.sbuf((32, 2), name="read")
            b.core_barrier(shared)
            b.core_barrier(b.hbm((32, 2), name="other", at=12288))
            b.dma_copy(read, shared)
            b.tensor_scalar(read, read, 1.0, "add")
            b.core_barrier(b.hbm((32, 2), name="other", at=12288))
            b.dma_copy(y, read)
        programs.append(b.finish())
    return programs[0], programs[1]


def test_a_result_is_not_stored_before_cores_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = stored_after_meeting()
    assert HostCores(programs).run({"x": X})["y"].tolist() == (X + 1).tolist()
    assert not any("there" in why for core in HostCores(programs).cores for _, why in core.left_out)
    monkeypatch.setattr(direct_writes, "meets_cores", lambda _: False)
    assert HostCores(programs).run({"x": X})["y"].tolist() == (2 * X + 1).tolist()


def test_cores_that_do_not_meet_are_told_as_by_the_reference() -> None:
    with pytest.raises(Deadlock):
        run_on_host(handed_over(barriers=(2, 1)), {"x": X})


def test_of_outputs_of_one_name_the_first_cores_is_given() -> None:
    programs = alike(3.0)
    wanted = run_cores(programs, [{}, {}])
    for _ in range(20):
        assert run_on_host(programs, {})["y"].tobytes() == wanted[0]["y"].tobytes()


@pytest.mark.parametrize("are_joined", [True, False])
def test_the_report_counts_all_cores(*, are_joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not are_joined:
        monkeypatch.setattr(host_program, "joined_program", lambda _: None)
    report = glia.load(Neff(handed_over())).host_report
    counts = [report.native, report.in_python, report.left_out]
    assert sum(sum(each.values()) for each in counts) >= 4
    assert any(name == "core_barrier" for name, _ in report.in_python) is not are_joined
