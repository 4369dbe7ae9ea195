"""Several cores run concurrently, meet and share HBM; faults between them are told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import glia
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.neff.package import Neff
from glia.runtime.errors import ProgramFault
from glia.sim.order.concurrent import Deadlock, Race, run_cores, streams_of
from glia.sim.policy import ExecutionFault, Policy, UninitializedRead

STRICT = Policy(check_initialized=True)
SEEDS = range(50)
X = np.arange(64, dtype=np.float32).reshape(32, 2)
Pair = tuple[Program, Program]


def handed_over(
    *, barriers: tuple[int, int] = (1, 1), is_late: bool = False, is_early: bool = False
) -> Pair:
    """Core 0 writes a tensor in HBM that core 1 reads after they met."""
    programs = []
    for rank in (0, 1):
        b = ProgramBuilder(f"core{rank}")
        shared = b.hbm((32, 2), name="shared", at=4096)
        t = b.sbuf((32, 2), name="t")

        def meet(b: ProgramBuilder = b, shared: object = shared, rank: int = rank) -> None:
            for _ in range(barriers[rank]):
                b.core_barrier(shared)

        if rank == 0:
            x = b.input("x", (32, 2), at=0)
            b.dma_copy(t, x)
            if is_late:
                meet()
            b.dma_copy(shared, t)
            if not is_late:
                meet()
        else:
            y = b.output("y", (32, 2), at=8192)
            if not is_early:
                meet()
            b.dma_copy(t, shared)
            if is_early:
                meet()
            b.tensor_scalar(t, t, 2.0, "multiply")
            b.dma_copy(y, t)
        programs.append(b.finish())
    return programs[0], programs[1]


def exchanged(
    *, pipes: tuple[int, int] = (0, 0), uses: str = "waits", orders: tuple[int, int] = (0, 0)
) -> Pair:
    """Both cores send a tile to each other and add what they received to their own."""
    programs = []
    for rank in (0, 1):
        b = ProgramBuilder(f"core{rank}")
        x, y = b.input("x", (32, 2), at=256 * rank), b.output("y", (32, 2), at=4096 + 256 * rank)
        own, other = b.sbuf((32, 2), name="own"), b.sbuf((32, 2), name="other")
        b.dma_copy(own, x, signals="loaded")
        if orders[rank] and uses == "waits":
            b.memset(other, 0.0, on="gpsimd", waits="swapped")
        b.sendrecv(other, own, 1 - rank, 1 - rank, pipes[rank], on="gpsimd", queue="swap",
                   waits="loaded", signals="swapped")  # fmt: skip
        waits = {"swapped": 1} if uses == "waits" else {"loaded": 1}
        b.tensor_tensor(own, own, other, "add", waits=waits, signals="added")
        b.dma_copy(y, own, waits="added")
        programs.append(b.finish())
    return programs[0], programs[1]


def results(programs: Pair, inputs: list[dict[str, np.ndarray]], seed: int) -> list[np.ndarray]:
    found = run_cores(programs, inputs, seed=seed, policy=STRICT)
    return [each["y"] for each in found if "y" in each]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_right_gives_one_result_in_every_order(seed: int) -> None:
    np.testing.assert_array_equal(results(handed_over(), [{"x": X}, {}], seed)[0], 2 * X)
    for y in results(exchanged(), [{"x": X}, {"x": 10 * X}], seed):
        np.testing.assert_array_equal(y, 11 * X)


def test_streams_are_those_of_every_core() -> None:
    one, two = handed_over()
    assert streams_of(one, two) == (*streams_of(one), *streams_of(two))


def alike(second: float) -> Pair:
    """Both cores fill a tensor in HBM, read it and fill it once more, without meeting."""
    programs = []
    for rank in (0, 1):
        b = ProgramBuilder(f"core{rank}")
        shared, y = b.hbm((32, 2), name="shared", at=4096), b.output("y", (32, 2), at=8192 << rank)
        t, read = b.sbuf((32, 2), name="t"), b.sbuf((32, 2), name="read")
        b.memset(t, 3.0, on="vector", signals="filled")
        b.dma_copy(shared, t, queue="store", waits="filled", signals="stored")
        b.dma_copy(read, shared, queue="load", waits="stored", signals="loaded")
        b.memset(t, second, on="vector", waits="stored", signals="filled")
        waits = {"filled": 2, "loaded": 1}
        b.dma_copy(shared, t, queue="store", waits=waits, signals="stored")
        b.dma_copy(y, read, queue="load", waits="loaded")
        programs.append(b.finish())
    return programs[0], programs[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_core_may_rewrite_what_the_other_has_read(seed: int) -> None:
    for y in results(alike(3.0), [{}, {}], seed):
        np.testing.assert_array_equal(y, np.full((32, 2), 3.0, np.float32))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_core_may_not_change_what_the_other_has_read(seed: int) -> None:
    expected = r"core [01], .* it: (.|\n)*core [01], .* it: (.|\n)*put a core_barrier between them"
    with pytest.raises(Race, match=expected):
        run_cores(alike(4.0), [{}, {}], seed=seed, policy=STRICT)


HANDED: list[dict[str, np.ndarray]] = [{"x": X}, {}]
SWAPPED: list[dict[str, np.ndarray]] = [{"x": X}, {"x": X}]
FAULTS: dict[str, tuple[Callable[[], Pair], list[dict[str, np.ndarray]], type, str]] = {
    "nobody meets": (
        lambda: handed_over(barriers=(0, 0)), HANDED, Race, "put a core_barrier between them"),
    "the writer meets before it writes": (
        lambda: handed_over(is_late=True), HANDED, Race, "HBM bytes 4096..4351"),
    "the reader reads before it meets": (
        lambda: handed_over(is_early=True), HANDED, Race, "HBM bytes 4096..4351"),
    "the reader does not come": (
        lambda: handed_over(barriers=(1, 0)), HANDED, Race, "put a core_barrier"),
    "the writer comes once too often": (
        lambda: handed_over(barriers=(2, 1)), HANDED, Deadlock,
        "core 0: gpsimd waits for core 1 to arrive at core_barrier"),
    "the pipes differ": (
        lambda: exchanged(pipes=(0, 1)), SWAPPED, Deadlock,
        "core 0: queue.swap waits for core 1 to arrive at sendrecv"),
    "what is received is used at once": (
        lambda: exchanged(uses="early"), SWAPPED, Race, "let tensor_tensor wait for swapped"),
    "a core waits for the exchange before it takes part": (
        lambda: exchanged(orders=(0, 1)), SWAPPED, Deadlock,
        "gpsimd waits for swapped to reach 1, which is at 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_between_cores_is_caught(name: str) -> None:
    plant, inputs, kind, says = FAULTS[name]
    for seed in range(8):
        with pytest.raises((ExecutionFault), match=rf"(?s){says}") as caught:
            run_cores(plant(), inputs, seed=seed, policy=STRICT)
        assert isinstance(caught.value, kind)


def test_shared_memory_that_nobody_wrote_is_told() -> None:
    _, reader = handed_over()
    b = ProgramBuilder("idle")
    b.core_barrier(b.hbm((32, 2), name="shared", at=4096))
    with pytest.raises(UninitializedRead, match=r"never written: HBM bytes 4096..4351"):
        run_cores([b.finish(), reader], [{}, {}], policy=STRICT)


def test_sending_what_nobody_wrote_is_told() -> None:
    programs = []
    for rank in (0, 1):
        b = ProgramBuilder(f"core{rank}")
        own, other = b.sbuf((32, 2), name="own"), b.sbuf((32, 2), name="other")
        b.sendrecv(other, own, 1 - rank, 1 - rank, 0, on="gpsimd", queue="swap")
        programs.append(b.finish())
    with pytest.raises(UninitializedRead, match=r"64 elements of src were never written: SBUF"):
        run_cores(programs, [{}, {}], policy=STRICT)


def test_what_both_do_at_a_meeting_is_over_for_both() -> None:
    """After a barrier on shared data either core may write it, once both have read it before."""
    programs = []
    for rank in (0, 1):
        b = ProgramBuilder(f"core{rank}")
        shared = b.hbm((2, 32), name="shared", at=4096)
        t = b.sbuf((1, 32), name="t")
        b.memset(t, float(rank))
        b.core_barrier(shared)
        b.dma_copy(shared[rank : rank + 1], t)
        b.core_barrier(shared)
        b.dma_copy(b.output("y", (1, 32), at=8192 + 256 * rank), shared[1 - rank])
        programs.append(b.finish())
    for seed in range(20):
        found = run_cores(programs, [{}, {}], seed=seed, policy=STRICT)
        assert [each["y"][0, 0] for each in found] == [1, 0]


def ring_sum(ranks: int, waits: bool = True) -> list[Program]:
    """Every rank's x summed over all, by an all_reduce in HBM; each rank has HBM of its own."""
    programs = []
    for rank in range(ranks):
        b = ProgramBuilder(f"rank{rank}")
        x, y = b.input("x", (32, 2), at=0), b.output("y", (32, 2), at=4096)
        copy, total = b.hbm((32, 2), name="copy", at=8192), b.hbm((32, 2), name="total", at=12288)
        b.dma_copy(copy, x, signals="copied")
        b.all_reduce(srcs=(copy,), dsts=(total,), op="add", groups=(tuple(range(ranks)),),
                     on="gpsimd", queue="ring", waits="copied" if waits else (),
                     signals="summed")  # fmt: skip
        b.dma_copy(y, total, waits="summed")
        programs.append(b.finish())
    return programs


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_meet_in_a_collective(ranks: int) -> None:
    inputs = [{"x": (rank + 1) * X} for rank in range(ranks)]
    for seed in range(10):
        found = run_cores(ring_sum(ranks), inputs, lnc=1, seed=seed, policy=STRICT)
        for each in found:
            np.testing.assert_array_equal(each["y"], sum(range(1, ranks + 1)) * X)


def test_a_rank_that_brings_what_is_not_ready_is_a_race() -> None:
    with pytest.raises(Race, match="let all_reduce wait for copied to reach 1"):
        run_cores(ring_sum(2, waits=False), [{"x": X}, {"x": X}], lnc=1)


def test_a_rank_that_never_comes_is_a_deadlock() -> None:
    idle = ProgramBuilder("idle")
    idle.memset(idle.sbuf((32, 2)), 0.0)
    with pytest.raises(
        Deadlock, match=r"core 0: queue.ring waits for rank 1 to arrive at all_reduce"
    ):
        run_cores([ring_sum(2)[0], idle.finish()], [{"x": X}, {}], lnc=1)


def test_two_cores_of_two_ranks() -> None:
    """Cores meet within their logical core only, and each logical core has HBM of its own."""
    programs = [*handed_over(), *handed_over()]
    inputs = [{"x": X}, {}, {"x": 5 * X}, {}]
    for seed in range(20):
        found = run_cores(programs, inputs, lnc=2, seed=seed, policy=STRICT)
        np.testing.assert_array_equal(found[1]["y"], 2 * X)
        np.testing.assert_array_equal(found[3]["y"], 10 * X)


@pytest.mark.parametrize("device", ["reference", "adversarial"])
def test_a_model_of_two_cores_runs_on_every_device(device: str) -> None:
    model = glia.load(Neff(handed_over()), device=device)
    assert [b.name for b in model.inputs] == ["x"]
    np.testing.assert_array_equal(model(X)[0], 2 * X)
    with pytest.raises(ProgramFault, match="put a core_barrier between them"):
        glia.load(Neff(handed_over(barriers=(0, 0))), device=device)(X)
