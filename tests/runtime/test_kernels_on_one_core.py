"""Kernels for two cores in models, which one core runs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from glia import nki
from glia.frontend.errors import BadCustomCall
from glia.machine import ProgramBuilder, ds
from glia.machine.ir import Loop, Program, walk
from glia.machine.merge_cores import merge_cores
from glia.machine.text import parse_program, print_program
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.collectives import ReplicaGroup, all_reduce
from glia.nki.language import NkiTensor
from glia.plugins.jax import on_device
from glia.sim.run import run

HALF = 4


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def own_half(x: NkiTensor) -> NkiTensor:
    rank = nl.program_id(0)
    return nl.load(x[rank * HALF : (rank + 1) * HALF])


def result(x: NkiTensor) -> NkiTensor:
    return nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)


@nki.jit
def halves(x: NkiTensor, factor: float) -> NkiTensor:
    """x * factor, half of its rows on each core."""
    out, rank = result(x), nl.program_id(0)
    nl.store(out[rank * HALF : (rank + 1) * HALF], nl.multiply(own_half(x), factor))
    return out


@nki.jit
def turns(x: NkiTensor) -> NkiTensor:
    """Each core doubles its half and then adds to it what the other core made of its own."""
    shared, out, rank = result(x), result(x), nl.program_id(0)
    rows = slice(rank * HALF, (rank + 1) * HALF)
    doubled = nl.multiply(own_half(x), 2.0)
    nl.store(shared[rows], doubled)
    nisa.core_barrier(shared, (0, 1))
    nisa.core_barrier(doubled, (0, 1))
    other = nl.load(shared[(1 - rank) * HALF : (2 - rank) * HALF])
    nl.store(out[rows], nl.add(doubled, other))
    return out


@nki.jit
def swapped(x: NkiTensor, in_place: bool) -> NkiTensor:
    """The halves of x in the other order, plus what is sent in place or not."""
    out, rank = result(x), nl.program_id(0)
    held = own_half(x)
    received = held if in_place else nl.ndarray(held.shape, held.dtype, buffer=nl.sbuf)
    nisa.sendrecv(src=held, dst=received, send_to_rank=1 - rank, recv_from_rank=1 - rank, pipe_id=0)
    nl.store(out[rank * HALF : (rank + 1) * HALF], received)
    return out


@nki.jit
def relayed(x: NkiTensor, steps: int) -> NkiTensor:
    """In a loop on the device each core doubles what the other has sent it."""
    out, rank = result(x), nl.program_id(0)
    held = own_half(x)
    received = nl.ndarray(held.shape, held.dtype, buffer=nl.sbuf)

    def step(_: Any) -> None:
        nisa.sendrecv(
            src=held, dst=received, send_to_rank=1 - rank, recv_from_rank=1 - rank, pipe_id=0
        )
        nisa.tensor_scalar(held, received, nl.multiply, 2.0)

    nl.fori_loop(0, steps, step)
    nl.store(out[rank * HALF : (rank + 1) * HALF], held)
    return out


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "cores that do not meet": (halves, {"factor": 3.0}),
    "a barrier": (turns, {}),
    "an exchange": (swapped, {"in_place": False}),
    "an exchange in place": (swapped, {"in_place": True}),
    "exchanges in a loop": (relayed, {"steps": 3}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_for_two_cores_gives_in_a_model_what_two_cores_give(name: str) -> None:
    kernel, constants = CASES[name]
    x = array(2 * HALF, 6)
    expected = nki.simulate(kernel[2])(x * 0.5, **constants) + 1
    for way in (on_device, jax.jit):
        found = way(lambda x: kernel[2](x * 0.5, **constants) + 1)(x)
        np.testing.assert_array_equal(np.asarray(found), expected)


def test_it_is_called_twice_and_beside_the_kernel_for_one_core() -> None:
    @nki.jit
    def counted(x: NkiTensor) -> NkiTensor:
        out = result(x)
        if nl.program_id(0) == 0:
            nl.store(out, nl.multiply(nl.load(x), float(nl.num_programs(0))))
        return out

    x = array(4, 4)
    found = on_device(lambda x: counted[2](counted[2](x)) + counted[1](x))(x)
    np.testing.assert_array_equal(np.asarray(found), 4 * x + x)


def test_an_argument_that_only_the_second_core_writes_is_written() -> None:
    @nki.jit
    def shared_out(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        out, rank = result(x), nl.program_id(0)
        nl.store(y if rank else out, nl.multiply(nl.load(x), rank + 2.0))
        return out

    for way in (nki.simulate(shared_out[2]), shared_out[2]):
        x, y = array(4, 6), np.zeros((4, 6), np.float32)
        np.testing.assert_array_equal(way(x, y), 2 * x)
        np.testing.assert_array_equal(y, 3 * x)
    found = on_device(lambda x, y: shared_out[2](x, y) + y)(x, y)
    np.testing.assert_array_equal(np.asarray(found), 2 * x + 3 * x)


@nki.jit
def late(x: NkiTensor) -> NkiTensor:
    out = result(x)
    if nl.program_id(0) == 0:
        nisa.core_barrier(out, (0, 1))
    nl.store(out, nl.load(x))
    return out


@nki.jit
def crossed(x: NkiTensor) -> NkiTensor:
    out, rank = result(x), nl.program_id(0)
    held = own_half(x)
    nisa.sendrecv(held, held, send_to_rank=1 - rank, recv_from_rank=1 - rank, pipe_id=rank)
    nl.store(out[:HALF], held)
    return out


@nki.jit
def kept(x: NkiTensor) -> NkiTensor:
    out = result(x)
    held = own_half(x)
    nisa.sendrecv(held, held, send_to_rank=0, recv_from_rank=1, pipe_id=0)
    nl.store(out[:HALF], held)
    return out


@nki.jit
def reduced(x: NkiTensor) -> NkiTensor:
    out = result(x)
    all_reduce(srcs=[x], dsts=[out], replica_group=ReplicaGroup([[0]]), op=nl.add)
    return out


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (late, "one core reaches a synchronisation point that another does not reach"),
        (crossed, "do not synchronise at places known"),
        (kept, "core 1 receives what is not sent to it"),
        (reduced, "with other logical cores"),
    ],
)
def test_cores_that_do_not_meet_as_one_core_could_are_refused(kernel: Any, text: str) -> None:
    with pytest.raises(BadCustomCall, match=text):
        on_device(lambda x: kernel[2](x))(array(2 * HALF, 6))


def programs(trips: tuple[int, int]) -> list[Program]:
    """Two cores with a barrier in a loop of so many trips each."""
    made = []
    for rank in (0, 1):
        b = ProgramBuilder("counts")
        shared = b.hbm((4, 2), name="shared", at=4096)
        own = b.sbuf((4, 2), name="own")
        with b.loop(trips[rank]) as _:
            b.memset(own, 1.0)
            b.core_barrier(shared)
        b.dma_copy(shared, own)
        made.append(b.finish())
    return made


def test_loops_in_which_cores_meet_become_one_loop() -> None:
    merged = merge_cores(programs((3, 3)))
    loops = [each for each in merged.body if isinstance(each, Loop)]
    assert [loop.trips for loop in loops] == [3]
    assert [type(i).__name__ for i in walk(loops[0].body)] == ["Memset", "Memset"]
    assert sorted(merged.tiles) == ["own", "own.core1", "shared"]
    with pytest.raises(ValueError, match="known before they run"):
        merge_cores(programs((3, 4)))


def test_cores_take_the_same_inputs() -> None:
    made = []
    for at in (0, 512):
        b = ProgramBuilder("doubles")
        x, y = b.input("x", (4, 2), at=at), b.output("y", (4, 2), at=4096)
        own = b.sbuf((4, 2), name="own")
        b.dma_copy(own, x)
        b.dma_copy(y, own)
        made.append(b.finish())
    assert len(merge_cores([made[0], made[0]]).inputs) == 1
    with pytest.raises(ValueError, match="different inputs x"):
        merge_cores(made)


def test_each_core_keeps_its_registers() -> None:
    made = []
    for rank in range(2):
        b = ProgramBuilder("chosen")
        x, y = b.input("x", (4, 2), at=0), b.output(f"y{rank}", (1, 2), at=4096 + 512 * rank)
        row = b.register("row")
        b.register_move(row, rank + 1, on="sync")
        with b.loop(1) as i:
            b.dma_copy(y, x[ds(row + i, 1)])
        made.append(b.finish())
    x, merged = array(4, 2), merge_cores(made)
    assert parse_program(print_program(merged)) == merged
    found = run(merged, {"x": x})
    np.testing.assert_array_equal(np.concatenate([found["y0"], found["y1"]]), x[1:3])
