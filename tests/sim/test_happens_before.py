"""Races are seen whatever order a run takes, with what is missing; endless loops are ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import glia
from glia.isa.operand import Memory, Tile
from glia.machine import ProgramBuilder
from glia.machine.ir import Program
from glia.runtime.errors import ProgramFault
from glia.sim.order.concurrent import Deadlock, Race, run_concurrently, streams_of
from glia.sim.policy import Policy, UninitializedRead
from glia.sim.run import run
from glia.sim.watchdog import EndlessLoop
from sim.test_concurrent import independent_issuers, without_one_wait
from support.timing_programs import pipelined_matmul

SEEDS = range(12)


def race_of(program: Program, seed: int = 0) -> Race | None:
    """The race that a single run sees."""
    inputs = {b.name: np.ones(b.shape, b.dtype.numpy) for b in program.inputs}
    try:
        run_concurrently(program, inputs, seed=seed)
    except Race as race:
        return race
    return None


@pytest.mark.parametrize("seed", SEEDS)
def test_one_run_in_any_order_finds_every_missing_wait(seed: int) -> None:
    synchronised = independent_issuers(pipelined_matmul(4, buffers=1, columns=16))
    assert race_of(synchronised, seed) is None
    for missing, broken in without_one_wait(synchronised):
        assert race_of(broken, seed) is not None, missing


def loading(waited: int, signalled: bool = True) -> Program:
    """Two loads into halves of a tile, and a copy of the second half that waits for `waited`."""
    b = ProgramBuilder("loading")
    x = b.input("x", (128, 8))
    tile, other = b.sbuf((128, 8), name="tile", at=256), b.sbuf((128, 4), name="other", at=0)
    signals = "loaded" if signalled else ()
    b.dma_copy(tile[:, :4], x[:, :4], signals="loaded")
    b.dma_copy(tile[:, 4:], x[:, 4:], signals=signals)
    waits = {"loaded": waited} if waited else {}
    b.tensor_copy(other, tile[:, 4:], waits=waits)
    return b.finish()


def test_a_race_says_what_where_and_which_wait_is_missing() -> None:
    race = race_of(loading(1))
    assert race is not None
    assert race.first.instr.mnemonic() == "dma_copy" and race.first.number == 2
    assert race.second.instr.mnemonic() == "tensor_copy"
    assert isinstance(race.place.shared, Tile) and race.place.shared.memory is Memory.SBUF
    assert race.place.bytes == (272, 287) and race.place.partitions == (0, 127)
    text = str(race)
    assert "SBUF bytes 272..287 of partitions 0..127" in text
    assert "sync (queue load) writes it: dma_copy(" in text
    assert "vector reads it: tensor_copy(" in text
    assert text.count("test_happens_before.py:") >= 2
    assert "let tensor_copy wait for loaded to reach 2, not 1" in text
    assert race_of(loading(2)) is None


@pytest.mark.parametrize(
    ("program", "fix"),
    [
        (loading(0), "let tensor_copy wait for loaded to reach 2, its count after dma_copy"),
        (loading(1, signalled=False), "let dma_copy signal a semaphore on completion"),
    ],
)
def test_the_fix_fits_what_is_there(program: Program, fix: str) -> None:
    race = race_of(program)
    assert race is not None and fix in race.fix


def test_a_count_that_two_streams_share_says_only_what_it_must() -> None:
    """Either transfer may have brought the count, or both: only a count of all of them is sure."""

    def shared(waited: int) -> Program:
        b = ProgramBuilder("shared")
        x, tile = b.input("x", (128, 8)), b.sbuf((128, 8), name="tile")
        other = b.sbuf((128, 4), name="other")
        b.dma_copy(tile[:, :4], x[:, :4], queue="one", on="sync", signals="loaded")
        b.dma_copy(tile[:, 4:], x[:, 4:], queue="two", on="scalar", signals="loaded")
        b.tensor_copy(other, tile[:, :4], waits={"loaded": waited})
        return b.finish()

    seeds = range(len(streams_of(shared(1))))
    found = [race for seed in seeds if (race := race_of(shared(1), seed)) is not None]
    assert found and "is ambiguous" in found[0].fix
    assert all(race_of(shared(2), seed) is None for seed in seeds)


def test_semaphores_that_turn_program_order_around_are_a_race() -> None:
    b = ProgramBuilder("turned")
    tile, other = b.sbuf((128, 4), name="tile"), b.sbuf((128, 4), name="other")
    b.memset(other, 0.0, on="gpsimd")
    b.memset(tile, 1.0, on="gpsimd", waits="copied")
    b.tensor_copy(other, tile, on="vector", signals="copied")
    program = b.finish()
    race = race_of(program)
    assert race is not None
    assert race.first.number < race.second.number


def test_a_deadlock_names_the_ring_and_who_could_signal() -> None:
    b = ProgramBuilder("ring")
    one, two = b.sbuf((128, 4), name="one"), b.sbuf((128, 4), name="two")
    b.memset(one, 1.0, on="vector", waits={"pong": 2}, signals="ping")
    b.memset(two, 1.0, on="gpsimd", waits={"ping": 1}, signals="pong")
    with pytest.raises(Deadlock) as caught:
        run_concurrently(b.finish(), {})
    text = str(caught.value)
    assert "vector waits for pong to reach 2, which is at 0, before memset(" in text
    assert "it is signalled by memset on gpsimd, which is blocked before memset" in text
    assert "cycle: gpsimd waits for vector waits for gpsimd" in text


def test_a_semaphore_nobody_signals_is_told() -> None:
    b = ProgramBuilder("nobody")
    b.memset(b.sbuf((128, 4)), 1.0, waits="never")
    with pytest.raises(Deadlock, match="nothing signals it"):
        run_concurrently(b.finish(), {})


def endless() -> Program:
    b = ProgramBuilder("endless")
    go = b.register("go")
    b.register_move(go, 1)
    with b.while_loop() as loop:
        b.register_alu(go, "maximum", go, 1)
        loop.test(go)
        b.memset(b.sbuf((1, 1)), 0.0)
    return b.finish()


Run = Callable[[Program, dict[str, np.ndarray], Policy], object]


@pytest.mark.parametrize(
    "execute",
    [
        lambda p, inputs, policy: run(p, inputs, policy=policy),
        lambda p, inputs, policy: run_concurrently(p, inputs, policy=policy),
    ],
    ids=["in program order", "concurrently"],
)
def test_an_endless_loop_is_ended(execute: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        EndlessLoop, match=r"GLIA508.*NRT_TIMEOUT.*exceeded 20 iterations"
    ) as caught:
        execute(endless(), {}, Policy(most_iterations=20))
    assert caught.value.loc.file == __file__
    assert "NEURON_SIM_MOST_ITERATIONS" in str(caught.value)
    monkeypatch.setenv("NEURON_SIM_MOST_ITERATIONS", "7")
    assert Policy().most_iterations == 7


def test_the_clocks_do_not_depend_on_the_width_of_elements() -> None:
    b = ProgramBuilder("narrow")
    tile = b.sbuf((4, 7), "u8", "tile")
    b.memset(tile[:, :3], 1, on="gpsimd")
    b.memset(tile[:, 3:], 2, on="vector")
    b.memset(tile[:, 2:4], 3, on="vector", waits="never.needed", signals="done")
    program = b.finish()
    *_, last = program.instructions()
    free = replace(last, waits=())
    race = race_of(replace(program, body=(*program.body[:-1], free)))
    assert race is not None and race.place.bytes == (2, 2)


def rows_apart(first: list[int], second: list[int]) -> tuple[Program, dict[str, np.ndarray]]:
    """Two engines scatter into one table without waiting for each other, and one row is read."""
    b = ProgramBuilder("rows_apart")
    one, two = b.input("one", (4, 1), "s32"), b.input("two", (4, 1), "s32")
    table, y = b.hbm((16, 8), name="table"), b.output("y", (4, 8))
    rows, got = b.sbuf((4, 8), name="rows"), b.sbuf((4, 8), name="got")
    indices = [b.sbuf((4, 1), "s32", name) for name in ("first", "second")]
    b.memset(rows, 1.0, signals="set")
    for index, given, engine in zip(indices, (one, two), ("gpsimd", "scalar"), strict=True):
        b.dma_copy(index, given, signals="loaded")
        waits = {"set": 1, "loaded": 1 + indices.index(index)}
        b.dma_scatter(table, rows, index, on=engine, queue=engine, waits=waits, signals=engine)
    b.dma_gather(got, table, indices[0], on="gpsimd", queue="gpsimd", waits={"gpsimd": 1},
                 signals="gathered")  # fmt: skip
    b.dma_copy(y, got, waits="gathered")
    arrays = {"one": first, "two": second}
    return b.finish(), {name: np.int32(each).reshape(4, 1) for name, each in arrays.items()}


STRICT = Policy(check_initialized=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_named_by_index_are_touched_and_no_others(seed: int) -> None:
    program, inputs = rows_apart([0, 2, 4, 6], [1, 3, 5, 7])
    found = run_concurrently(program, inputs, seed=seed, policy=STRICT)
    assert (found["y"] == 1).all()
    program, inputs = rows_apart([0, 2, 4, 6], [1, 3, 4, 7])
    with pytest.raises(Race, match=r"(?s)HBM bytes \d+..\d+ \(tile table\).*dma_scatter") as caught:
        run_concurrently(program, inputs, seed=seed, policy=STRICT)
    assert isinstance(caught.value.place.shared, Tile)
    first, last = caught.value.place.bytes
    address = program.addresses["table"]
    assert (first - address, last - address) == (4 * 32, 5 * 32 - 1)


def test_a_row_that_was_not_scattered_is_not_there() -> None:
    b = ProgramBuilder("unscattered")
    index, y = b.input("index", (4, 1), "s32"), b.output("y", (16, 8))
    table, rows, where = b.hbm((16, 8)), b.sbuf((4, 8)), b.sbuf((4, 1), "s32")
    b.memset(rows, 1.0)
    b.dma_copy(where, index)
    b.dma_scatter(table, rows, where)
    b.dma_copy(y, table)
    with pytest.raises(UninitializedRead, match="96 elements of src were never written"):
        run(b.finish(), {"index": np.int32([[0], [3], [5], [15]])}, policy=STRICT)


@pytest.mark.parametrize("seed", ["", "3", "4"])
def test_a_model_on_the_adversarial_device_is_held_to_it(
    seed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_SIM_SEED", seed)
    model = glia.load(loading(1), device="adversarial")
    with pytest.raises(ProgramFault, match=r"(?s)GLIA507.*race: .*fix: let tensor_copy wait for"):
        model(np.ones((128, 8), np.float32))
    assert glia.load(loading(2), device="adversarial")(np.ones((128, 8), np.float32)) == []
