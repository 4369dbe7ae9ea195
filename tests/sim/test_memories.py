"""Memories by address: what does not fit is refused, and HBM costs only what is touched."""

from __future__ import annotations

import resource
from dataclasses import replace

import numpy as np
import pytest

from glia.arch import get_target
from glia.base.dtype import F32
from glia.base.errors import InternalError
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine import ProgramBuilder, ds
from glia.machine.builder.errors import BrokenProgram
from glia.machine.ir import Program
from glia.machine.legal import verify
from glia.sim.memory import DeviceMemory, Memories
from glia.sim.order.concurrent import run_concurrently
from glia.sim.policy import AccessOutOfBounds, Policy
from glia.sim.run import Executor, run
from glia.sim.sparse_buffer import CHUNK_BYTES, Backing, dense_zeros, zeros

GIB = 1 << 30
STRICT = Policy(check_initialized=True)


def at_the_end() -> Program:
    """Doubles a tensor that is the last thing in 96 GiB, by way of scratch that fills the rest."""
    b = ProgramBuilder("at_the_end", target="trn2")
    x = b.input("x", (32, 8), at=96 * GIB - 1024)
    y = b.output("y", (32, 8), at=0)
    scratch = b.hbm((90 * GIB // 32,), "f32", "scratch", at=GIB)
    t = b.sbuf((32, 8), name="t")
    b.dma_copy(t, x)
    b.tensor_scalar(t, t, 2.0, "multiply")
    far = scratch[ds(20 * GIB // 32, 256)].reshape(32, 8)
    b.dma_copy(far, t)
    b.dma_copy(y, far)
    return b.finish()


X = np.arange(256, dtype=np.float32).reshape(32, 8)


def test_the_end_of_hbm_costs_what_is_touched() -> None:
    program = at_the_end()
    executor = Executor(program, policy=STRICT)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    executor.set_input(program.inputs[0], X)
    executor.execute()
    y = program.outputs[0]
    np.testing.assert_array_equal(executor.memories.read(y.tile, y.dtype, y.shape), 2 * X)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert executor.memories.hbm.touched_bytes <= 4 * CHUNK_BYTES
    assert grown * 1024 < GIB // 4


def test_the_race_detector_costs_what_is_touched_too() -> None:
    found = run_concurrently(at_the_end(), {"x": X}, policy=STRICT)
    np.testing.assert_array_equal(found["y"], 2 * X)


def test_a_column_of_a_huge_tensor_touches_a_piece_of_each_row() -> None:
    b = ProgramBuilder("column")
    wide, y = b.hbm((64, GIB // 16), "u8", "wide", at=0), b.output("y", (64, 1), "u8", at=8 * GIB)
    b.dma_copy(y, wide[:, 5:6])
    program = b.finish()
    executor = Executor(program)
    executor.execute()
    out = program.outputs[0]
    values = executor.memories.read(out.tile, out.dtype, out.shape)
    assert (values == 0xFF).all()  # nobody wrote it: poison
    assert executor.memories.hbm.touched_bytes <= 66 * CHUNK_BYTES


def test_fresh_memory_is_poison_wherever_it_is_touched() -> None:
    backing = Backing(1 << 22, 0xFF)
    assert backing.touched_bytes == 0
    backing.touch(3 * CHUNK_BYTES - 4, (2,), (4,), 4)
    assert backing.touched_bytes == 2 * CHUNK_BYTES
    assert (backing.bytes[2 * CHUNK_BYTES : 4 * CHUNK_BYTES] == 0xFF).all()
    backing.overwrite(0, np.zeros(8, np.uint8))
    backing.touch(0, (8,), (1,), 1)
    assert (backing.bytes[:8] == 0).all() and backing.bytes[8] == 0xFF
    assert (Backing(100, 0x7F).bytes == 0x7F).all()
    assert (Backing(1 << 22, None).bytes[::4096] == 0).all()


def test_memory_that_cannot_be_had_is_said_so() -> None:
    with pytest.raises(MemoryError, match="bytes"):
        zeros(1 << 62)


def test_tensors_that_share_bytes_are_one_memory() -> None:
    b = ProgramBuilder("shared")
    x, y = b.input("x", (64,), "f32", at=0), b.output("y", (16,), "u8", at=4096)
    part = b.hbm((16,), "u8", "part", at=16)
    b.dma_copy(y, part)
    program = b.finish()
    data = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(run(program, {"x": data})["y"], data[4:8].view(np.uint8))
    memory = DeviceMemory([program])
    assert memory.region(16).backing is memory.region(0).backing
    assert not memory.is_exclusive(0) and memory.is_exclusive(4096)
    assert x.name == "x"


def one_tile(memory: str, elements: int, address: int) -> Program:
    b = ProgramBuilder("one_tile")
    make = {"SBUF": b.sbuf, "PSUM": b.psum}[memory]
    b.memset(make((128, elements), name="t", at=address), 0.0)
    return b.finish(is_checked=False)


@pytest.mark.parametrize(
    ("memory", "elements", "address", "limit"),
    [
        ("SBUF", 8, 229376 - 28, 229376),
        ("SBUF", 57345, 0, 229376),
        ("PSUM", 512, 15 * 1024, 16384),
    ],
)
def test_a_tile_ends_within_its_memory(
    memory: str, elements: int, address: int, limit: int
) -> None:
    program = one_tile(memory, elements, address)
    with pytest.raises(InternalError, match=f"of {limit} in {memory}"):
        verify(program)
    with pytest.raises(InternalError, match=rf"of {limit} in 128 partitions of {memory}"):
        run(program, {})


def test_a_tensor_ends_within_hbm() -> None:
    b = ProgramBuilder("beyond")
    b.input("x", (512,), at=96 * GIB - 1024)
    with pytest.raises(BrokenProgram, match=rf"ends at byte {96 * GIB + 1024} of {96 * GIB}"):
        b.finish()


def test_tensors_that_live_throughout_do_not_overlap() -> None:
    b = ProgramBuilder("overlap")
    b.input("x", (512,), at=0)
    b.output("y", (512,), at=2044)
    with pytest.raises(BrokenProgram, match="x and y overlap in HBM at byte 2044"):
        b.finish()


def test_a_product_stays_in_a_bank() -> None:
    b = ProgramBuilder("banks")
    left, right = b.sbuf((128, 128), "bf16"), b.sbuf((128, 512), "bf16")
    b.nc_matmul(b.psum((128, 512), name="total", at=1024), left, right)
    with pytest.raises(BrokenProgram, match="more than one bank of 2048"):
        b.finish()


def test_a_product_that_a_loop_moves_stays_in_a_bank_too() -> None:
    b = ProgramBuilder("moving")
    left, right = b.sbuf((32, 32)), b.sbuf((32, 64))
    total = b.psum((32, 1024), name="total", at=0)
    b.memset(left, 1.0)
    b.memset(right, 1.0)
    with b.loop(3) as i:
        b.nc_matmul(total[:, ds(240 * i, 64)], left, right)
    with pytest.raises(AccessOutOfBounds, match=r"bytes 1920..2175 of PSUM lie in more than one"):
        run(b.finish(), {})


def test_views_name_the_bytes_that_addresses_say() -> None:
    t = Tile("t", Memory.SBUF, F32, 4, 8)
    program = Program("p", "trn2", {"t": t}, (), (), {}, (), {"t": 64})
    memories = Memories(get_target("trn2").arch, program, Policy(poison=None))
    region = memories.region(t)
    view = memories.view(Pattern(t, F32, ((1, 4), (1, 8))), {})
    view[1, 2] = 1.0
    place = region.start + region.pitch + 8
    assert region.start == 64 and region.buffer[place : place + 4].view(np.float32) == 1.0
    other = replace(program, addresses={})
    assert Memories(get_target("trn2").arch, other).region(t).start == 0


def test_what_leaves_its_tile_is_told_by_address() -> None:
    b = ProgramBuilder("leaving")
    which, x = b.input("which", (1,), "s32"), b.input("x", (4, 32, 8), at=65536)
    cell, t, row = b.sbuf((1, 1), "s32"), b.sbuf((32, 8)), b.register("row")
    b.dma_copy(cell, which)
    b.register_load(cell, row)
    b.dma_copy(t, x[row])
    inputs = {"which": np.int32([5]), "x": np.zeros((4, 32, 8), np.float32)}
    with pytest.raises(AccessOutOfBounds, match=r"bytes 70656..71679 of HBM.*has 65536..69631"):
        run(b.finish(), inputs)


def test_a_negative_address_is_refused() -> None:
    b = ProgramBuilder("negative")
    b.memset(b.sbuf((32, 8), name="t", at=-32), 0.0)
    with pytest.raises(BrokenProgram, match="tile t ends at byte 0 of"):
        b.finish()


@pytest.mark.parametrize("count", [1, (1 << 21) - 1, 1 << 21, (5 << 20) + 3])
def test_memory_in_huge_pages_is_of_zeros_and_of_its_own(count: int) -> None:
    one, other = dense_zeros(count), dense_zeros(count)
    assert one.shape == (count,)
    assert not one.any()
    one[:] = 7
    assert not other.any()
