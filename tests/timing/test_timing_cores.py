"""Several cores in time: they wait for each other where they meet, and nowhere else."""

from __future__ import annotations

import json

import pytest

from glia.arch import get_target
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.ir import Program
from glia.profile.report import profile_programs
from glia.timing.core import TimingDeadlock
from glia.timing.cores import UnmatchedRendezvous, simulate_cores
from glia.timing.simulate import UNTIMED_RENDEZVOUS, Timing, simulate_timing

ARCH = get_target("trn2").arch
SHAPE = (128, 512)


def written(work: int, meetings: int = 1, *, trips: int = 1) -> Program:
    """`work` operations before each of some barriers, in a loop."""
    b = ProgramBuilder("core", target="trn2")
    y = b.output("y", SHAPE)
    tile = b.sbuf(SHAPE)
    b.memset(tile, 1.0)
    with b.loop(trips, "i"):
        for _ in range(meetings):
            for _ in range(work):
                b.tensor_scalar(tile, tile, 2.0, "multiply")
            b.dma_copy(y, tile)
            b.core_barrier(y)
    return b.finish()


def exchanging(work: int, rank: int) -> Program:
    b = ProgramBuilder("core", target="trn2")
    y = b.output(f"y{rank}", (128, 64))
    own, other = b.sbuf((128, 64)), b.sbuf((128, 64))
    b.memset(own, 1.0)
    for _ in range(work):
        b.tensor_scalar(own, own, 2.0, "multiply")
    b.sendrecv(other, own, send_to_rank=1 - rank, recv_from_rank=1 - rank, pipe_id=0)
    b.dma_copy(y, other)
    return b.finish()


def reducing(work: int) -> Program:
    """A sum over the ranks of a world of two."""
    b = ProgramBuilder("rank", target="trn1")
    y, part = b.output("y", SHAPE), b.hbm(SHAPE)
    tile = b.sbuf(SHAPE)
    b.memset(tile, 1.0)
    for _ in range(work):
        b.tensor_scalar(tile, tile, 2.0, "multiply")
    b.dma_copy(part, tile)
    b.all_reduce(srcs=(part,), dsts=(y,), op="add", groups=((0, 1),))
    return b.finish()


def meetings(timing: Timing) -> list[tuple[float, float]]:
    return [
        (event.start_ns, event.end_ns)
        for event in timing.events
        if event.instr.arrives == "participants"
    ]


def test_the_faster_core_waits_for_the_slower_one_at_a_barrier() -> None:
    fast, slow = simulate_cores([written(1), written(30)], ARCH)
    assert meetings(fast) == meetings(slow)
    assert [(wait.engine, wait.core) for wait in fast.core_waits] == [("gpsimd", 1)]
    assert not slow.core_waits
    alone = simulate_timing(written(1), ARCH)
    assert fast.core_waits[0].ns == pytest.approx(
        meetings(slow)[0][0] - meetings(alone)[0][0], abs=0.01
    )


def test_the_slower_core_takes_as_long_as_alone() -> None:
    _, slow = simulate_cores([written(1), written(30)], ARCH)
    assert slow.end_ns == simulate_timing(written(30), ARCH).end_ns
    assert slow.busy_ns == simulate_timing(written(30), ARCH).busy_ns


def test_cores_meet_in_every_iteration_of_a_loop() -> None:
    first, second = simulate_cores([written(1, 2, trips=9), written(4, 2, trips=9)], ARCH)
    assert len(meetings(first)) == len(meetings(second)) == 18
    assert meetings(first) == meetings(second)


def test_loops_between_meetings_are_skipped_with_the_same_result() -> None:
    def looping(trips: int) -> Program:
        b = ProgramBuilder("core", target="trn2")
        y, tile = b.output("y", SHAPE), b.sbuf(SHAPE)
        b.memset(tile, 1.0)
        for part in range(2):
            with b.loop(trips, f"i{part}"):
                b.dma_copy(tile, y)
                b.tensor_scalar(tile, tile, 2.0, "multiply")
                b.dma_copy(y, tile)
            b.core_barrier(y)
        return b.finish()

    programs = [looping(300), looping(2000)]
    skipped = simulate_cores(programs, ARCH)
    whole = simulate_cores(programs, ARCH, skip=False)
    assert all(timing.skips for timing in skipped)
    assert [t.latency_ns for t in skipped] == [t.latency_ns for t in whole]
    assert [t.core_waits for t in skipped] == [t.core_waits for t in whole]
    assert [t.busy_ns for t in skipped] == [t.busy_ns for t in whole]


def test_each_core_may_be_late_once() -> None:
    def uneven(before: int, after: int) -> Program:
        b = ProgramBuilder("core", target="trn2")
        y, tile = b.output("y", SHAPE), b.sbuf(SHAPE)
        b.memset(tile, 1.0)
        for work in (before, after):
            for _ in range(work):
                b.tensor_scalar(tile, tile, 2.0, "multiply")
            b.dma_copy(y, tile)
            b.core_barrier(y)
            b.dma_copy(tile, y)
        return b.finish()

    programs = [uneven(20, 1), uneven(1, 20)]
    first, second = simulate_cores(programs, ARCH)
    assert [wait.core for wait in first.core_waits] == [1]
    assert [wait.core for wait in second.core_waits] == [0]
    both = max(simulate_timing(program, ARCH).latency_ns for program in programs)
    assert first.latency_ns > both + 7_000


def test_an_exchange_begins_when_both_have_come() -> None:
    fast, slow = simulate_cores([exchanging(1, 0), exchanging(30, 1)], ARCH)
    assert fast.core_waits[0].opcode == "sendrecv"
    assert meetings(fast) == meetings(slow)


def test_ranks_meet_in_a_collective() -> None:
    arch = get_target("trn1").arch
    fast, slow = simulate_cores([reducing(1), reducing(30)], arch, lnc=1)
    assert meetings(fast) == meetings(slow)
    assert fast.core_waits[0].core == 1


def test_a_collective_with_a_rank_that_is_not_timed_goes_on() -> None:
    arch = get_target("trn1").arch
    (alone,) = simulate_cores([reducing(3)], arch)
    assert alone == simulate_timing(reducing(3), arch)
    assert UNTIMED_RENDEZVOUS in alone.not_modelled
    assert UNTIMED_RENDEZVOUS not in simulate_timing(written(1, 0), ARCH).not_modelled


def test_cores_that_never_meet_are_timed_alone() -> None:
    programs = [written(1, 0), written(5, 0)]
    alone = tuple(simulate_timing(p, ARCH) for p in programs)
    assert simulate_cores(programs, ARCH, lnc=1) == alone


@pytest.mark.parametrize(("target", "is_longer"), [("trn1", False), ("trn2", True), ("trn3", True)])
def test_a_run_on_all_cores_of_a_logical_core_takes_longer(target: str, is_longer: bool) -> None:
    arch = get_target(target).arch
    programs = [reducing(1), reducing(1)]
    together = simulate_cores(programs, arch, lnc=2)
    apart = simulate_cores(programs, arch, lnc=1)
    for pair, one in zip(together, apart, strict=True):
        assert pair.latency_ns == one.latency_ns + arch.logical_core_ns
    assert (arch.logical_core_ns > 0) == is_longer
    assert [pair.end_ns for pair in together] == [one.end_ns for one in apart]


def test_the_rules_give_the_same_in_python() -> None:
    programs = [written(2, 2, trips=3), written(7, 2, trips=3)]
    assert simulate_cores(programs, ARCH) == simulate_cores(programs, ARCH, is_native=False)


def test_the_order_of_cores_does_not_matter() -> None:
    one, other = written(2, 3), written(7, 3)
    assert simulate_cores([one, other], ARCH)[0].latency_ns == (
        simulate_cores([other, one], ARCH)[1].latency_ns
    )


def test_waiting_for_a_core_that_does_not_come_is_an_error() -> None:
    with pytest.raises(
        UnmatchedRendezvous, match=r"\[GLIA403\] .*core 0 waits at core_barrier for core 1"
    ):
        simulate_cores([written(1, 2), written(1, 1)], ARCH)


def test_a_core_that_waits_for_itself_is_a_deadlock() -> None:
    b = ProgramBuilder("core", target="trn2")
    y, tile = b.output("y", SHAPE), b.sbuf(SHAPE)
    b.memset(tile, 1.0, waits={"ready": 1})
    b.core_barrier(y)
    stuck = b.finish(is_checked=False)
    with pytest.raises((TimingDeadlock, UnmatchedRendezvous)):
        simulate_cores([stuck, written(1, 1)], ARCH)


def test_a_profile_of_cores_says_who_was_late(tmp_path) -> None:
    profile = profile_programs([written(1), written(30)], "trn2")
    assert profile.late_core == 1
    assert profile.latency_us == max(core.latency_us for core in profile.cores)
    assert profile.cores[0].waiting_us[1] > 5
    found = profile.to_dict()
    waits = [core["waiting_us"] for core in found["cores"]]
    assert waits == [{"1": profile.cores[0].waiting_us[1]}, {}]
    profile.save_perfetto(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    named = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"]
             if event["name"] == "process_name"}  # fmt: skip
    assert named[1] == "core: core 0: engines" and named[4] == "core: core 1: engines"
    profile.save_html(tmp_path / "page.html")
    assert "core 1 vector" in (tmp_path / "page.html").read_text()


def test_a_profile_of_one_core_names_none() -> None:
    profile = profile_programs([written(1, 0)], "trn2")
    assert profile.cores == () and profile.late_core is None
    assert "cores" not in profile.to_dict()
