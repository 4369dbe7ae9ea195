"""Engines and queues run concurrently: waits keep program order, and a missing one is found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from glia.base.affine import Affine
from glia.base.dtype import F32, S32
from glia.frontend.hlo import import_hlo
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.sync import Barrier, RegisterLoad
from glia.isa.instructions.vector import Memset, TensorScalar
from glia.isa.kit import Instr
from glia.isa.operand import Wait
from glia.machine.ir import Loop, Program, Statement
from glia.machine.passes.double_buffer import double_buffer
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.place import place
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.sim.order.concurrent import Deadlock, run_concurrently, streams_of
from glia.sim.order.race import Race
from glia.sim.policy import MalformedProgram
from glia.sim.run import run
from support.corpus import PROGRAMS, hlo_bytes
from support.machine_programs import doubling, matmul
from support.timing_programs import (
    copy,
    pipelined_matmul,
    program,
    rows,
    signals,
    tile,
    waits,
    whole,
)

SAMPLE = (
    "transpose", "gather_fill", "scatter_add", "dynamic_update_slice", "matmul", "batched",
    "max_pool", "conv_nchw", "while_loop", "scan", "cond", "nested_loops", "mlp", "embedding",
)  # fmt: skip


def inputs_of(of: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {b.name: rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in of.inputs}


def edit(body: tuple[Statement, ...], old: Instr, new: Instr) -> tuple[Statement, ...]:
    """The block with one instruction replaced."""
    return tuple(
        replace(s, body=edit(s.body, old, new)) if isinstance(s, Loop) else new if s is old else s
        for s in body
    )


def independent_issuers(of: Program) -> Program:
    """The pipelined product with an engine and a queue of its own for each kind of transfer."""
    first, *_, store = of.instructions()
    body = edit(of.body, first, replace(first, queue="first", on="vector"))
    return replace(of, body=edit(body, store, replace(store, on="gpsimd")))


def without_one_wait(of: Program) -> Iterator[tuple[str, Program]]:
    """Every program that lacks a single wait of this one, with what is missing."""
    for instr in of.instructions():
        for wait in instr.waits:
            kept = tuple(w for w in instr.waits if w is not wait)
            body = edit(of.body, instr, replace(instr, waits=kept))
            queue = f"({instr.queue})" if instr.queue else ""
            missing = f"{instr.mnemonic()}{queue}: {wait.semaphore} >= {wait.value}"
            yield missing, replace(of, body=body)


def races(of: Program) -> bool:
    """Whether keeping back one stream after the other shows a race."""
    for seed in range(len(streams_of(of))):
        try:
            run_concurrently(of, {}, seed=seed)
        except Race:
            return True
    return False


@pytest.mark.parametrize("seed", range(20))
def test_a_tiled_matmul_gives_what_program_order_gives(seed: int) -> None:
    compiled = insert_semaphores(place(double_buffer(matmul(128, 256, 1024), CompileOptions())))
    inputs = inputs_of(compiled)
    found = run_concurrently(compiled, inputs, seed=seed)
    np.testing.assert_array_equal(found["y"], run(compiled, inputs)["y"])


@pytest.mark.parametrize("name", SAMPLE)
def test_compiled_programs_are_free_of_races(name: str) -> None:
    source = next(p for p in PROGRAMS if p.name == name)
    compiled = run_pipeline(import_hlo(hlo_bytes(source)), CompileOptions(auto_cast="none"))
    inputs = {b.name: a for b, a in zip(compiled.inputs, source.arguments, strict=True)}
    expected = run(compiled, inputs)
    for seed in range(len(streams_of(compiled))):
        found = run_concurrently(compiled, inputs, seed=seed)
        for output, value in expected.items():
            np.testing.assert_array_equal(found[output], value)


def test_run_time_loops_and_branches_are_taken_by_all_engines_together() -> None:
    compiled = insert_semaphores(place(doubling()))
    inputs = {"x": np.float32([3]).reshape(compiled.inputs[0].shape)}
    expected = run(compiled, inputs)
    for seed in range(2 * len(streams_of(compiled))):
        assert run_concurrently(compiled, inputs, seed=seed) == expected


def test_every_missing_wait_is_found_where_each_is_needed() -> None:
    synchronised = independent_issuers(pipelined_matmul(4, buffers=1, columns=16))
    assert not races(synchronised)
    cases = dict(without_one_wait(synchronised))
    assert len(cases) == 9
    assert [missing for missing, broken in cases.items() if not races(broken)] == []


def test_a_wait_for_one_count_too_few_is_a_race() -> None:
    assert races(independent_issuers(pipelined_matmul(4, buffers=2, columns=16)))


def test_inserted_waits_suffice_and_only_implied_ones_can_go() -> None:
    synchronised = insert_semaphores(
        place(independent_issuers(pipelined_matmul(4, columns=16)), rotation=0)
    )
    assert not races(synchronised)
    spare = [missing for missing, broken in without_one_wait(synchronised) if not races(broken)]
    assert spare == [
        # the multiplication it waits for has waited for the transfer before
        "dma_copy(in): queue.in >= i",
        # y lies where the weights were; what is stored there has been computed with them
        "dma_copy(out): queue.first >= 1",
    ]


def test_a_race_names_both_instructions_and_the_tile() -> None:
    a, b = tile("a", "SBUF", 128, 4), tile("b", "SBUF", 128, 4)
    racy = program(Memset(dst=whole(a), value=1.0, on="gpsimd"), copy(b, a))
    with pytest.raises(Race, match=r"(?s)\(tile a\).*memset.*tensor_copy"):
        run_concurrently(racy, {}, seed=0)


def test_a_transfer_is_not_done_when_its_issuer_goes_on() -> None:
    x, a = tile("x", "HBM", 1, 128 * 4), tile("a", "SBUF", 128, 4)
    load = DmaCopy(dst=whole(a), src=whole(x), queue="in", on="vector")
    use = TensorScalar(dst=whole(a), data=whole(a), operand0=2.0, op0="multiply")
    assert races(program(load, use))
    load = replace(load, signals=signals(loaded=1))
    assert not races(program(load, replace(use, waits=waits(loaded=1))))


def test_transfers_on_one_queue_may_overlap() -> None:
    x, a = tile("x", "HBM", 1, 128 * 4), tile("a", "SBUF", 128, 4)
    y = tile("y", "HBM", 1, 128 * 4)
    first = DmaCopy(dst=whole(a), src=whole(x), queue="q", signals=signals(loaded=1))
    second = DmaCopy(dst=whole(y), src=whole(a), queue="q")
    assert races(program(first, second))
    assert not races(program(first, replace(second, waits=waits(loaded=1))))


def test_bytes_decide_not_tiles() -> None:
    x, a = tile("x", "HBM", 1, 128 * 8), tile("a", "SBUF", 128, 8)
    left = replace(whole(a), dims=((1, 128), (2, 4)))
    right = replace(left, offset=Affine.of(1))
    load = DmaCopy(dst=left, src=rows(x, 0, 128, 4), queue="in")
    fill = Memset(dst=right, value=0.0)
    assert not races(program(load, fill))
    assert races(program(load, replace(fill, dst=left)))


def test_tiles_at_one_address_race() -> None:
    a, b = tile("a", "SBUF", 128, 4, F32), tile("b", "SBUF", 128, 4, F32)
    both = program(Memset(dst=whole(a), value=1.0), Memset(dst=whole(b), value=2.0, on="gpsimd"))
    assert not races(both)
    assert races(replace(both, addresses={"a": 64, "b": 72}))


def test_a_barrier_orders_everything_and_starts_the_counts_again() -> None:
    a, b = tile("a", "SBUF", 128, 4), tile("b", "SBUF", 128, 4)
    fill = Memset(dst=whole(a), value=1.0, on="gpsimd", signals=signals(filled=1))
    assert not races(program(fill, Barrier(), copy(b, a)))
    late = copy(b, a, waits=waits(filled=1))
    assert not races(program(fill, Barrier(), fill, late))
    with pytest.raises(Deadlock, match="vector waits for filled to reach 2, which is at 1"):
        run_concurrently(program(fill, Barrier(), fill, replace(late, waits=waits(filled=2))), {})


def test_a_barrier_waits_for_transfers_under_way() -> None:
    x, a = tile("x", "HBM", 1, 128 * 4), tile("a", "SBUF", 128, 4)
    load = DmaCopy(dst=whole(a), src=whole(x), queue="in")
    use = TensorScalar(dst=whole(a), data=whole(a), operand0=2.0, op0="multiply")
    assert not races(program(load, Barrier(), use))


def test_engines_that_wait_for_each_other_are_a_deadlock() -> None:
    a, b = tile("a", "SBUF", 128, 4), tile("b", "SBUF", 128, 4)
    one = Memset(dst=whole(a), value=1.0, waits=waits(pong=1), signals=signals(ping=1))
    two = Memset(dst=whole(b), value=1.0, on="gpsimd", waits=waits(ping=1), signals=signals(pong=1))
    with pytest.raises(Deadlock) as caught:
        run_concurrently(program(one, two), {})
    assert "vector waits for pong to reach 1, which is at 0" in str(caught.value)
    assert "gpsimd waits for ping to reach 1, which is at 0" in str(caught.value)


def test_an_engine_that_never_reaches_the_barrier_is_a_deadlock() -> None:
    a = tile("a", "SBUF", 128, 4)
    stuck = Memset(dst=whole(a), value=1.0, waits=(Wait("never", Affine.of(1)),))
    with pytest.raises(Deadlock, match="sync is at a barrier"):
        run_concurrently(program(stuck, Barrier()), {})


def test_a_register_is_its_engines_own_until_engines_meet() -> None:
    flag, a = tile("flag", "SBUF", 1, 1, S32), tile("a", "SBUF", 128, 4)
    y = tile("y", "HBM", 1, 128 * 8)
    fill = Memset(dst=whole(flag), value=3, on="sync"), Memset(dst=whole(a), value=0.0, on="sync")
    load = RegisterLoad(src=whole(flag), register="r", signals=signals(known=1))
    store = DmaCopy(dst=rows(y, Affine.of("$r"), 128, 4), src=whole(a), queue="out")
    assert not races(program(*fill, load, store))
    elsewhere = replace(store, on="gpsimd", waits=waits(known=1))
    assert races(program(*fill, load, elsewhere))
    assert not races(program(*fill, load, Barrier(), replace(elsewhere, waits=())))


def test_a_queue_has_one_issuer() -> None:
    x, a = tile("x", "HBM", 1, 128 * 4), tile("a", "SBUF", 128, 4)
    load = DmaCopy(dst=whole(a), src=whole(x), queue="in")
    with pytest.raises(MalformedProgram, match="queue in is issued by sync and scalar"):
        run_concurrently(program(load, replace(load, on="scalar")), {})


def test_control_flow_without_a_meeting_is_refused() -> None:
    with pytest.raises(MalformedProgram, match="no barrier precedes"):
        run_concurrently(doubling(), {"x": np.float32([3]).reshape(doubling().inputs[0].shape)})
