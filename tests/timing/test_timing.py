"""The timing model on small machine programs written by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glia.arch import Arch, get_target
from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.isa.instructions.collectives import AllReduce
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.dma_transpose import DmaTranspose
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.sync import Barrier, RegisterLoad, RegisterMove
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import TensorCopy
from glia.isa.operand import Pattern, Tile
from glia.machine.ir import Branch, Loop, Program, While
from glia.timing import core
from glia.timing.errors import TimingTooLarge
from glia.timing.plan import make_plan
from glia.timing.simulate import Event, Timing, TimingDeadlock, simulate_timing
from glia.timing.steady_state import RunTooLong
from support.examples import with_examples
from support.timing_programs import (
    copy,
    part,
    pipelined_matmul,
    program,
    rows,
    signals,
    tile,
    waits,
    whole,
)

TRN2 = get_target("trn2").arch
TRN1 = get_target("trn1").arch
A, B, C = (tile(name, "SBUF", 128, 512) for name in "abc")
P = tile("product", "PSUM", 128, 512, F32)


def timed(*body, arch=TRN2, **options) -> Timing:
    return simulate_timing(program(*body), arch, **options)


def events(timing: Timing, track: str) -> list[Event]:
    return [e for e in timing.events if e.track == track]


def test_an_empty_program_takes_the_preamble_and_the_postamble():
    assert timed().latency_ns == TRN2.preamble_ns + TRN2.postamble_ns


def test_an_engine_runs_its_instructions_one_after_another():
    first, second = events(timed(copy(A, B), copy(C, B)), "vector")
    assert first.end_ns == second.start_ns


def test_a_result_of_the_same_engine_is_awaited_to_its_last_stage():
    independent = events(timed(copy(A, B), copy(C, B)), "vector")[1]
    dependent = events(timed(copy(A, B), copy(C, A)), "vector")[1]
    gap = TRN2.issue_gap_cycles["vector"]
    latency = TRN2.cycles_to_ns("vector", TRN2.latency_cycles["vector"] - gap)
    assert dependent.start_ns - independent.start_ns == pytest.approx(latency, abs=0.01)


def test_disjoint_parts_of_one_tile_do_not_wait_for_each_other():
    left, right = part(A, 0, 256), part(A, 256, 256)
    fill = TensorCopy(dst=left, src=part(B, 0, 256))
    apart = events(timed(fill, TensorCopy(dst=part(C, 0, 256), src=right)), "vector")[1]
    meeting = events(timed(fill, TensorCopy(dst=part(C, 0, 256), src=left)), "vector")[1]
    assert apart.start_ns < meeting.start_ns


def test_engines_without_semaphores_overlap():
    timing = timed(copy(A, B), copy(C, B, on="scalar"))
    vector, scalar = events(timing, "vector")[0], events(timing, "scalar")[0]
    assert scalar.start_ns < vector.end_ns


def test_a_wait_starts_after_the_signal():
    timing = timed(
        copy(A, B, signals=signals(ready=1)),
        Activation(dst=whole(C), data=whole(A), function="exp", waits=waits(ready=1)),
    )
    vector, scalar = events(timing, "vector")[0], events(timing, "scalar")[0]
    least = TRN2.semaphore_wake_ns + TRN2.activation_table_load_ns
    assert scalar.start_ns >= vector.end_ns + least
    assert [(s.engine, s.semaphore) for s in timing.stalls] == [("scalar", "ready")]


def test_a_wait_for_nothing_is_satisfied_at_once():
    assert timed(copy(A, B, waits=waits(never=0))).latency_ns == timed(copy(A, B)).latency_ns


def test_32_kib_on_one_dma_engine_take_the_documented_time():
    four = tile("four", "SBUF", 4, 4096)
    source = tile("source", "HBM", 1, 4 * 4096)
    load = DmaCopy(dst=whole(four), src=rows(source, 0, 4, 4096), queue="q")
    event = events(timed(load), "dma q")[0]
    published = 1416  # NKI DMA overview, A[4, 4096] bfloat16 on Trn2
    assert event.end_ns - event.start_ns == pytest.approx(published, rel=0.03)


def test_sixteen_dma_engines_share_a_transfer_over_128_partitions():
    columns = 4096
    wide, narrow = tile("wide", "SBUF", 128, columns), tile("narrow", "SBUF", 8, columns)
    source = tile("source", "HBM", 1, 128 * columns)

    def duration(target, count):
        load = DmaCopy(dst=whole(target), src=rows(source, 0, count, columns), queue="q")
        event = events(timed(load), "dma q")[0]
        return event.end_ns - event.start_ns

    skew = 15 * TRN2.dma_ring_skew_ns
    assert duration(wide, 128) - skew == pytest.approx(duration(narrow, 8), rel=0.01)
    rate = wide.bytes / (duration(wide, 128) - skew)
    assert 0.9 * 16 * TRN2.dma_bytes_per_ns < rate <= 16 * TRN2.dma_bytes_per_ns


def test_transfers_on_the_same_dma_engines_share_their_bandwidth():
    source = tile("source", "HBM", 1, 128 * 512)
    load = DmaCopy(dst=whole(A), src=rows(source, 0, 128, 512), queue="one")
    other = replace(load, dst=whole(B), queue="two", on="gpsimd")
    alone, both = timed(load), timed(load, other)
    served = sum(alone.queue_busy_ns.values()) - 15 * TRN2.dma_ring_skew_ns
    assert both.latency_ns - alone.latency_ns == pytest.approx(served, rel=0.2)


def test_a_queue_is_busy_while_one_or_several_of_its_transfers_move():
    source = tile("source", "HBM", 1, 128 * 512)
    load = DmaCopy(dst=whole(A), src=rows(source, 0, 128, 512), queue="q", signals=signals(done=1))
    other = replace(load, dst=whole(B), signals=())
    behind, apart = timed(load, other), timed(load, replace(other, waits=waits(done=1)))
    first, second = events(behind, "dma q")
    assert second.start_ns < first.end_ns
    assert behind.queue_busy_ns["q"] == pytest.approx(second.end_ns - first.start_ns)
    assert apart.queue_busy_ns["q"] == pytest.approx(2 * timed(load).queue_busy_ns["q"])


def test_a_short_transfer_takes_turns_with_a_long_one_of_another_queue():
    far = tile("far", "HBM", 1, 128 * 65536)
    wide = tile("wide", "SBUF", 128, 65536)
    long = DmaCopy(dst=whole(wide), src=rows(far, 0, 128, 65536), queue="long", on="gpsimd")
    short = DmaCopy(dst=whole(A), src=rows(far, 0, 128, 512), queue="short")
    alone = events(timed(short), "dma short")[0]
    beside = events(timed(long, short), "dma short")[0]
    after = events(timed(long, replace(short, queue="long", on="gpsimd")), "dma long")[1]
    skew = 15 * TRN2.dma_ring_skew_ns
    served = alone.end_ns - alone.start_ns - skew
    assert beside.end_ns - beside.start_ns - skew == pytest.approx(2 * served, rel=0.01)
    assert after.start_ns > 10 * beside.end_ns - 9 * alone.end_ns


def test_queues_in_turns_move_no_more_than_one():
    far = tile("far", "HBM", 1, 128 * 512)
    load = DmaCopy(dst=whole(A), src=rows(far, 0, 128, 512), queue="one")
    other = replace(load, dst=whole(B), queue="two", on="gpsimd")
    both = Loop("i", 200, (load, other))
    one = Loop("i", 400, (load,))
    assert timed(both).latency_ns == pytest.approx(timed(one).latency_ns, rel=0.01)


def test_an_earlier_ready_transfer_is_not_held_up_by_one_that_stands_before_it():
    source = tile("source", "HBM", 1, 128 * 512)
    late = DmaCopy(dst=rows(source, 0, 128, 512), src=whole(A), queue="out", waits=waits(done=1))
    slow = [copy(A, B) for _ in range(20)] + [copy(A, B, signals=signals(done=1))]
    early = DmaCopy(dst=whole(C), src=rows(source, 0, 128, 512), queue="in", on="gpsimd")
    timing = timed(*slow, late, early)
    assert events(timing, "dma in")[0].end_ns < events(timing, "dma out")[0].start_ns


def small_loads(on: str, mode: str = "unknown", start: Affine | int = 0, arch=TRN2) -> float:
    """Nanoseconds between the first bytes of two loads of one DMA descriptor each."""
    source, narrow = tile("source", "HBM", 1, 1024), part(tile("n", "SBUF", 1, 16), 0, 16)
    load = DmaCopy(dst=narrow, src=rows(source, start, 1, 16), queue="q", on=on, dge_mode=mode)
    first, second = events(timed(load, load, arch=arch), "dma q")
    return second.start_ns - first.start_ns


def test_a_pattern_with_a_register_pays_for_descriptors_at_run_time():
    assert small_loads("sync") == pytest.approx(TRN2.dma_issue_ns, rel=0.02)
    made = small_loads("sync", start=Affine.of("$r"))
    assert made == pytest.approx(TRN2.dma_hardware_issue_ns, abs=1)


def test_descriptors_come_from_where_a_transfer_says():
    assert small_loads("sync", "hwdge") == TRN2.dma_hardware_issue_ns
    assert small_loads("gpsimd", "swdge") == TRN2.dma_software_issue_ns
    assert small_loads("gpsimd", "swdge", arch=TRN1) == TRN1.dma_software_issue_ns
    assert small_loads("sync", "none") == small_loads("sync")


def reduced(ranks: int, elements: int, arch: Arch = TRN2) -> float:
    """Nanoseconds of an all-reduce by so many ranks."""
    inside, shared = tile("inside", "HBM", 1, elements), tile("shared", "HBM", 1, elements)
    groups = (tuple(range(ranks)),)
    together = AllReduce(
        srcs=(whole_hbm(inside),), dsts=(whole_hbm(shared),), op="add", groups=groups, queue="q"
    )
    return timed(together, arch=arch).latency_ns


@pytest.mark.parametrize(
    "arch, elements, ranks, hops",
    [
        (TRN2, 64, 2, 2),  # a mesh: all others at once, to combine and to gather
        (TRN2, 64, 16, 4),  # between chips and within each, twice
        (TRN2, 1 << 20, 64, 8),  # halving and doubling of 8 chips, and within each, twice
        (TRN2, 1 << 25, 16, 16),  # KangaRing: 2 * 15 / 2, rounded up
        (TRN1, 64, 4, 4),
        (TRN1, 1 << 25, 4, 6),  # a ring, twice
    ],
)
def test_hops_of_a_collective_follow_its_size(arch: Arch, elements: int, ranks: int, hops: int):
    slower = arch.with_values({"collective_hop_ns": 2 * arch.collective_hop_ns})
    longer = reduced(ranks, elements, slower) - reduced(ranks, elements, arch)
    assert longer == pytest.approx(hops * arch.collective_hop_ns, abs=2)


def whole_hbm(t: Tile) -> Pattern:
    return Pattern(t, t.dtype, ((1, t.elements),))


def test_transposing_transfers_take_longer():
    source, target = tile("source", "HBM", 1, 512 * 128), tile("t", "SBUF", 128, 512)

    def duration(kind) -> float:
        event = events(timed(kind), "dma q")[0]
        return event.end_ns - event.start_ns

    turned = DmaTranspose(dst=whole(target), src=rows(source, 0, 512, 128), queue="q")
    assert duration(turned) > duration(DmaCopy(dst=whole(target), src=whole(source), queue="q"))


def test_hardware_makes_descriptors_while_its_engine_computes():
    source, narrow = tile("source", "HBM", 1, 1024), part(tile("n", "SBUF", 1, 16), 0, 16)
    load = DmaCopy(dst=narrow, src=rows(source, 0, 1, 16), queue="q", on="scalar", dge_mode="hwdge")
    started = events(timed(load, copy(C, B, on="scalar")), "scalar")[0].start_ns
    assert started - timed().begin_ns < TRN2.dma_hardware_issue_ns


def test_bytes_are_counted_by_direction():
    timing = simulate_timing(pipelined_matmul(3), TRN2)
    assert timing.hbm_read_bytes == 3 * 128 * 512 * 2 + 128 * 128 * 2
    assert timing.hbm_written_bytes == 3 * 128 * 512 * 2
    assert timing.matmul_flops == 3 * 2 * 128 * 128 * 512


def matmuls(count: int, *, same: bool, columns: int = 512) -> list[NcMatmul]:
    weights, moving = tile("w", "SBUF", 128, 128 * count), tile("m", "SBUF", 128, columns)
    product = tile("p", "PSUM", 128, columns, F32)
    return [
        NcMatmul(
            dst=whole(product),
            stationary=part(weights, 0 if same else 128 * index, 128),
            moving=whole(moving),
        )
        for index in range(count)
    ]


def test_the_array_runs_at_half_rate_until_it_is_warm():
    timing = timed(*matmuls(40, same=True))
    durations = [round(e.end_ns - e.start_ns, 1) for e in events(timing, "tensor")]
    assert durations[0] == pytest.approx(2 * durations[-1], rel=0.001)
    slow = [d for d in durations if d > durations[-1]]
    assert sum(slow) == pytest.approx(TRN2.tensor_ramp_ns, rel=0.2)


def test_an_idle_array_cools_down():
    wait = [copy(A, B) for _ in range(80)] + [copy(A, B, signals=signals(done=1))]
    last = replace(matmuls(1, same=True)[0], waits=waits(done=1))
    ran = events(timed(*matmuls(40, same=True), *wait, last), "tensor")
    assert ran[-1].end_ns - ran[-1].start_ns > ran[-2].end_ns - ran[-2].start_ns


def test_generation_2_has_no_warm_up():
    assert timed(*matmuls(4, same=True), arch=TRN1).throttled_ns == 0


def test_weights_load_behind_a_long_product_but_not_behind_a_short_one():
    long_same, long_other = (timed(*matmuls(9, same=s), arch=TRN1) for s in (True, False))
    assert long_same.latency_ns == long_other.latency_ns
    narrow = {"columns": 64}
    short = [timed(*matmuls(9, same=s, **narrow), arch=TRN1).latency_ns for s in (True, False)]
    assert short[0] <= short[1]


def test_weights_written_again_are_loaded_again():
    first, second = matmuls(2, same=True)
    second = replace(second, waits=waits(filled=1))
    weights = first.stationary.tile

    def latency(target) -> float:
        fill = replace(copy(A, B), dst=part(target, 0, 128), src=part(B, 0, 128))
        slowly = [copy(B, C) for _ in range(9)]
        filled = replace(fill, signals=signals(filled=1))
        return timed(first, *slowly, filled, second).latency_ns

    load = TRN2.cycles_to_ns("tensor", TRN2.load_stationary_cycles)
    assert latency(weights) - latency(A) == pytest.approx(load, abs=0.01)


def test_activation_tables_load_when_the_set_changes():
    def act(function: str) -> Activation:
        return Activation(dst=whole(C), data=whole(B), function=function)

    assert timed(act("exp"), act("exp")).table_loads == 1
    assert timed(act("exp"), act("gelu"), act("exp")).table_loads == 3


def test_vector_and_gpsimd_share_a_port_on_generation_2_only():
    both = copy(A, B), copy(C, B, on="gpsimd")
    for arch, overlap in ((TRN1, False), (TRN2, True)):
        timing = timed(*both, arch=arch)
        vector, gpsimd = events(timing, "vector")[0], events(timing, "gpsimd")[0]
        assert (gpsimd.start_ns < vector.end_ns) == overlap


def test_vector_and_scalar_share_psum_on_generation_2_and_one_bank_later():
    near, far = tile("near", "PSUM", 128, 256, F32), tile("far", "PSUM", 128, 256, F32)
    both = (
        TensorCopy(dst=part(A, 0, 256), src=whole(near)),
        TensorCopy(dst=part(C, 0, 256), src=whole(far), on="scalar"),
    )

    def overlap(arch, address: int) -> bool:
        placed = replace(program(*both), addresses={"near": 0, "far": address})
        timing = simulate_timing(placed, arch)
        vector, scalar = events(timing, "vector")[0], events(timing, "scalar")[0]
        return scalar.start_ns < vector.end_ns and scalar.end_ns - vector.end_ns < 200

    bank = TRN2.psum_bank_bytes
    assert overlap(TRN2, bank)
    assert not overlap(TRN2, bank // 2)
    assert not overlap(TRN1, bank)


def test_wide_strides_halve_the_rate_on_generation_2_only():
    def duration(step: int, arch) -> float:
        spread = tile("spread", "SBUF", 128, 512 * step, F32)
        src = Pattern(spread, F32, ((1, 128), (step, 512)))
        wide = TensorCopy(dst=whole(tile("d", "SBUF", 128, 512, F32)), src=src, on="scalar")
        event = events(timed(wide, arch=arch), "scalar")[0]
        return event.end_ns - event.start_ns

    assert duration(4, TRN1) == pytest.approx(2 * duration(3, TRN1), rel=0.01)
    assert duration(4, TRN2) == duration(3, TRN2)


def test_counts_start_again_at_a_barrier():
    first = copy(A, B, signals=signals(done=1))
    second = copy(A, B, on="gpsimd", signals=signals(done=1))
    reader = Activation(dst=whole(C), data=whole(B), function="copy", waits=waits(done=1))
    timing = timed(first, Barrier(), second, reader)
    assert [stall.engine for stall in timing.stalls] == ["scalar"]
    with pytest.raises(TimingDeadlock):
        timed(first, Barrier(), reader)


def test_a_loop_with_a_barrier_counts_again_in_every_iteration():
    body = (
        copy(A, B, signals=signals(done=1)),
        Activation(dst=whole(C), data=whole(B), function="copy", waits=waits(done=1)),
        Barrier(),
    )
    timing = timed(Loop("i", 5, body))
    assert timing.instructions["scalar"] == 5
    assert not timing.skips


def test_a_barrier_waits_for_every_engine():
    timing = timed(copy(A, B), Barrier(), Activation(dst=whole(C), data=whole(B), function="copy"))
    assert events(timing, "scalar")[0].start_ns > events(timing, "vector")[0].end_ns


def test_a_deadlock_says_who_waits_for_what():
    with pytest.raises(TimingDeadlock) as caught:
        timed(copy(A, B, waits=waits(ready=2)), copy(B, C, signals=signals(ready=1)))
    text = str(caught.value)
    assert "vector waits for semaphore ready to reach 2" in text
    assert "stops at 0" in text
    assert "tensor_copy" in text


def test_a_run_time_loop_takes_the_trips_of_the_execution():
    flag = tile("flag", "HBM", 1, 1, F32)
    load = RegisterLoad(src=Pattern(flag, F32, ((1, 1), (1, 1))), register="more")
    loop = While((load,), "more", (copy(A, B),))
    assert timed(loop, trips={0: [5]}).instructions["vector"] == 5
    assumed = timed(loop)
    assert assumed.instructions["vector"] == 1
    assert any("run-time control flow 0" in line for line in assumed.not_modelled)


def run_time_loop(iterations: int, *body) -> While:
    flag = tile("flag", "HBM", 1, 1, F32)
    load = RegisterLoad(src=Pattern(flag, F32, ((1, 1), (1, 1))), register="more")
    return While((load,), "more", body, iterations)


@pytest.mark.parametrize("iterations", [1, 7, 300])
def test_a_run_time_loop_of_which_the_iterations_are_known_is_timed_with_all(iterations):
    known = timed(run_time_loop(iterations, copy(A, B)))
    assert known.instructions["vector"] == iterations
    assert not any("run-time control flow" in line for line in known.not_modelled)
    given = timed(run_time_loop(0, copy(A, B)), trips={0: [iterations]})
    assert known.latency_ns == given.latency_ns
    executed = timed(run_time_loop(iterations, copy(A, B)), trips={0: [2]})
    assert executed.instructions["vector"] == 2


def test_known_iterations_count_inside_of_other_loops():
    inner = run_time_loop(3, copy(A, B))
    assert timed(run_time_loop(4, inner)).instructions["vector"] == 12
    assert timed(Loop("i", 5, (inner,))).instructions["vector"] == 15


def test_iterations_that_would_take_too_long_to_time_are_said_to_be_assumed():
    nested = run_time_loop(10**5, run_time_loop(10**5, copy(A, B)))
    timing = timed(nested)
    assert timing.instructions["vector"] == 10**5
    assert any("run-time control flow 1:" in line for line in timing.not_modelled)


def test_a_branch_takes_the_arm_of_the_execution():
    arms = ((), (copy(A, B),), (copy(A, B), copy(A, B)))
    counts = [timed(Branch("r", arms), trips={0: [n]}).instructions["vector"] for n in range(4)]
    assert counts == [0, 1, 2, 2]


def results(timing: Timing) -> dict[str, object]:
    """Everything but what only a picture shows."""
    left_out = {"executions", "skips"}
    return {f.name: getattr(timing, f.name) for f in fields(timing) if f.name not in left_out}


def assert_skipping_changes_nothing(tested: Program, arch=TRN2, *, expect: bool = True) -> None:
    skipped, run = (simulate_timing(tested, arch, skip=skip) for skip in (True, False))
    assert results(skipped) == results(run)
    assert bool(skipped.skips) == expect


@pytest.mark.parametrize("buffers", [1, 2, 3, 5])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_skipping_iterations_of_a_pipeline_changes_nothing(buffers, target):
    assert_skipping_changes_nothing(pipelined_matmul(120, buffers), get_target(target).arch)


def test_skipping_nested_loops_changes_nothing():
    inner = Loop(
        "j",
        20,
        (
            copy(
                A,
                B,
                waits=waits(taken=Affine.of("i") * 20 + Affine.of("j") - 3),
                signals=signals(made=1),
            ),
            Activation(
                dst=whole(C),
                data=whole(A),
                function="exp",
                waits=waits(made=Affine.of("i") * 20 + Affine.of("j") + 1),
                signals=signals(taken=1),
            ),
        ),
    )
    source = tile("source", "HBM", 1, 128 * 512)
    store = DmaCopy(
        dst=rows(source, 0, 128, 512),
        src=whole(C),
        queue="out",
        waits=waits(taken=Affine.of("i") * 20 + 20),
        signals=signals(stored=16),
    )
    assert_skipping_changes_nothing(program(Loop("i", 50, (inner, store))))


def test_a_wait_on_the_whole_loop_after_it_sees_skipped_counts():
    loop = Loop("i", 60, (copy(A, B, signals=signals(made=1)),))
    for needed in (1, 30, 59, 60):
        after = Activation(dst=whole(C), data=whole(B), function="exp", waits=waits(made=needed))
        assert_skipping_changes_nothing(program(loop, after))


def test_iterations_before_a_ring_is_full_are_not_taken_for_steady():
    """The first 40 loads run ahead; only then does each wait for a buffer to be free."""
    assert_skipping_changes_nothing(pipelined_matmul(200, 40))


def test_engines_at_different_rates_are_skipped_once_the_fast_one_is_done():
    fast = copy(A, B)
    slow = Activation(dst=whole(C), data=whole(B), function="copy")
    tested = program(Loop("i", 100, (fast, slow, slow)))
    assert_skipping_changes_nothing(tested)
    (skip,) = simulate_timing(tested, TRN2).skips
    assert 0 < skip.iterations < 80


def test_weights_that_meet_only_in_some_iterations_are_not_taken_for_the_same():
    """Held weights w[j] and w[i] are the same, and need no load, only where i = j."""
    weights, moving = tile("w", "SBUF", 128, 256), tile("m", "SBUF", 128, 16)
    product = tile("p", "PSUM", 128, 16, F32)
    pair = tuple(
        NcMatmul(dst=whole(product), stationary=part(weights, index, 128), moving=whole(moving))
        for index in (Affine.of("j"), Affine.of("i"))
    )
    nested = program(Loop("i", 90, (Loop("j", 30, pair),)))
    assert_skipping_changes_nothing(nested, expect=False)


STAGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["vector", "scalar", "gpsimd", "load", "store", "make", "multiply", "exp", "log"]
        ),
        st.integers(1, 4),  # buffers
        st.sampled_from([16, 64, 512]),  # columns
    ),
    min_size=2,
    max_size=5,
)


def pipeline(stages, trips: int, inner: int, target: str) -> Program:
    """A chain of stages, each waiting for the one before and for a free buffer after it."""
    turn = Affine.of("i") * inner + Affine.of("j")
    source = tile("source", "HBM", 1, 128 * 512)
    body = []
    for number, (engine, buffers, columns) in enumerate(stages):
        here, before = part(A, 0, columns), part(B, 0, columns)
        keywords = {
            "waits": waits(
                **({f"s{number - 1}": turn + 1} if number else {}),
                **({f"s{number + 1}": turn - buffers + 1} if number + 1 < len(stages) else {}),
            ),
            "signals": signals(**{f"s{number}": 1}),
        }
        memory = rows(source, 0, 128, columns)
        if engine == "load":
            body.append(DmaCopy(dst=here, src=memory, queue="in", **keywords))
        elif engine == "store":
            body.append(DmaCopy(dst=memory, src=here, queue="out", on="gpsimd", **keywords))
        elif engine == "make":
            mode = "hwdge" if target == "trn2" else "unknown"
            where = {"queue": "made", "on": "scalar", "dge_mode": mode}
            body.append(DmaCopy(dst=here, src=memory, **where, **keywords))
        elif engine == "multiply":
            weights, bank = part(B, Affine.of("j") * number, 16), part(P, 0, columns)
            body.append(NcMatmul(dst=bank, stationary=weights, moving=here, **keywords))
        elif engine in ("exp", "log"):
            bank = part(P, 0, columns)
            body.append(Activation(dst=here, data=bank, function=engine, **keywords))
        else:
            body.append(TensorCopy(dst=here, src=before, on=engine, **keywords))
    return program(Loop("i", trips, (Loop("j", inner, tuple(body)),)))


@given(STAGES, st.integers(1, 30), st.integers(1, 30), st.sampled_from(["trn1", "trn2"]))
@with_examples(60)
def test_skipping_iterations_of_any_pipeline_changes_nothing(stages, trips, inner, target):
    tested, arch = pipeline(stages, trips, inner, target), get_target(target).arch
    skipped, run = (simulate_timing(tested, arch, skip=skip) for skip in (True, False))
    assert results(skipped) == results(run)


@given(STAGES, st.integers(1, 9), st.integers(1, 9), st.sampled_from(["trn1", "trn2"]))
@with_examples(30)
def test_the_rules_give_the_same_in_python_and_compiled(stages, trips, inner, target):
    tested, arch = pipeline(stages, trips, inner, target), get_target(target).arch
    compiled, python = (simulate_timing(tested, arch, is_native=n) for n in (True, False))
    assert results(compiled) == results(python)
    assert compiled.events == python.events


@given(STAGES, st.integers(1, 6), st.integers(1, 6), st.sampled_from(["trn1", "trn2"]))
@with_examples(30)
def test_a_loop_takes_as_long_as_its_iterations_written_out(stages, trips, inner, target):
    tested, arch = pipeline(stages, trips, inner, target), get_target(target).arch
    unrolled = replace(tested, body=written_out(tested.body, {}))
    first, second = (simulate_timing(p, arch).latency_ns for p in (tested, unrolled))
    assert first == second


def written_out(body, values: dict[str, int]):
    """The instructions of every iteration, one after the other."""
    statements = []
    for statement in body:
        if isinstance(statement, Loop):
            for index in range(statement.trips):
                statements += written_out(statement.body, {**values, statement.variable: index})
            continue
        found = {n: at(v, values) for n, v in vars(statement).items() if isinstance(v, Pattern)}
        counts = tuple(replace(w, value=w.value.substitute(values)) for w in statement.waits)
        statements.append(replace(statement, **found, waits=counts))
    return tuple(statements)


def at(pattern: Pattern, values: dict[str, int]) -> Pattern:
    return replace(pattern, offset=pattern.offset.substitute(values))


def test_a_long_loop_is_skipped_without_a_trace_too():
    trips = 10**9
    timing = simulate_timing(pipelined_matmul(trips), TRN2, trace=False)
    assert timing.instructions["tensor"] == trips
    assert timing.skips[0].iterations > 0.99 * trips
    thousands = [simulate_timing(pipelined_matmul(n * 1000), TRN2).latency_ns for n in (1, 2, 3)]
    a_thousand = thousands[2] - thousands[1]
    assert thousands[1] - thousands[0] == pytest.approx(a_thousand)
    assert timing.latency_ns == pytest.approx(thousands[0] + (trips / 1000 - 1) * a_thousand)


def test_a_run_of_weeks_is_refused():
    with pytest.raises(RunTooLong, match="GLIA402"):
        timed(Loop("i", 10**15, (copy(A, B),)))


def test_a_loop_around_a_branch_that_takes_hours_is_refused():
    with pytest.raises(TimingTooLarge, match="branches are decided"):
        timed(RegisterMove(register="r", value=0), Loop("i", 10**12, (Branch("r", ((), ())),)))


def test_an_instruction_of_many_seconds_is_refused():
    again = Pattern(A, A.dtype, ((1, 128), (0, 1 << 36), (1, 512)))
    with pytest.raises(TimingTooLarge, match="one tensor_copy takes"):
        timed(TensorCopy(dst=again, src=again))


def test_times_of_long_instructions_fit_into_64_bits():
    again = Pattern(A, A.dtype, ((1, 128), (0, 1 << 22), (1, 512)))
    with pytest.raises(TimingTooLarge, match="lasts for weeks"):
        timed(Loop("i", 10**9, (TensorCopy(dst=again, src=again),)), skip=False)


def test_a_run_that_does_not_repeat_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(core, "MOST_STEPS", 1000)
    monkeypatch.setattr(core, "PIECE_STEPS", 100)
    with pytest.raises(TimingTooLarge, match="instructions run that do not repeat"):
        simulate_timing(pipelined_matmul(3000), TRN2, skip=False)
    assert simulate_timing(pipelined_matmul(3000), TRN2).instructions["tensor"] == 3000


def test_a_semaphore_far_ahead_of_its_waits_is_refused(monkeypatch):
    monkeypatch.setattr(core, "MOST_MOMENTS", 1)
    with pytest.raises(TimingTooLarge, match="ahead of its waits"):
        source = whole(tile("x", "HBM", 1, 128 * 512))
        load = DmaCopy(dst=whole(A), src=source, queue="in", signals=signals(loaded=1))
        timed(Loop("i", 3000, (load,)), skip=False)


def test_a_program_is_planned_once_for_each_architecture():
    tested = pipelined_matmul(3)
    assert make_plan(tested, TRN2) is make_plan(tested, TRN2)
    assert make_plan(tested, TRN2) is not make_plan(tested, replace(TRN2, semaphore_wake_ns=0.0))
    assert make_plan(tested, TRN2) is not make_plan(replace(tested), TRN2)
    first, again = (results(simulate_timing(tested, TRN2)) for _ in range(2))
    assert first == again


def test_rings_of_counts_grow_as_far_as_loads_run_ahead():
    timing = simulate_timing(pipelined_matmul(3000, 1000), TRN2)
    assert results(timing) == results(
        simulate_timing(pipelined_matmul(3000, 1000), TRN2, skip=False)
    )


def test_the_trace_is_bounded_and_says_what_it_leaves_out():
    timing = simulate_timing(pipelined_matmul(50), TRN2, skip=False, max_events=10)
    assert len(timing.events) == 10
    assert timing.events_left_out == 1 + 50 * 5 - 10
    assert simulate_timing(pipelined_matmul(5), TRN2, trace=False).events == ()
