"""The order of instructions: kernels of Beta 1 leave it to the compiler."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glia.isa.instructions.dma import DmaCopy
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.ir import Program
from glia.machine.passes.schedule import schedule_keeping_engines
from glia.nki import beta1 as nki
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.sim.run import run

X = np.random.default_rng(3).random((512, 256), np.float32)


def squares(order: Any) -> Any:
    """Rows of 128, loaded, computed on and stored one after the other."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        with order():
            for i in nl.affine_range(4):
                row = nl.load(x[128 * i : 128 * (i + 1)])
                half = nl.exp(row)
                nl.store(out[128 * i : 128 * (i + 1)], nl.multiply(half, half))
        return out

    return kernel


def loads(kernel: Any) -> list[int]:
    """Where the loads stand in the program."""
    timed = nki.benchmark(kernel)
    timed(X)
    program = timed.benchmark_result.profile.program
    names = {binding.tile.name for binding in program.inputs}
    return [
        place
        for place, instr in enumerate(program.instructions())
        if any(p.tile.name in names for p in instr.read_patterns())
    ]


def test_independent_loads_move_forward_unless_that_is_forbidden() -> None:
    free, strict = loads(squares(contextlib.nullcontext)), loads(squares(ncc.no_reorder))
    assert len(free) == len(strict) == 4
    assert free[-1] < strict[-1]


@pytest.mark.parametrize("order", [contextlib.nullcontext, ncc.no_reorder])
def test_the_order_changes_no_result(order: Any) -> None:
    kernel = squares(order)
    simulated = nki.simulate_kernel(kernel, X)
    np.testing.assert_array_equal(nki.baremetal(kernel)(X), simulated)
    np.testing.assert_allclose(simulated, np.exp(X) ** 2, rtol=1e-5)


def sharing_addresses(apart: bool) -> Program:
    """Two chains through a tile each; the tiles lie at one address, or apart."""
    b = ProgramBuilder("shared", target="trn2")
    x, y = b.input("x", (2, 128, 64)), b.output("y", (2, 128, 64))
    for chain in range(2):
        tile = b.sbuf((128, 64), name=f"t{chain}")
        b.dma_copy(tile, x[chain])
        for _ in range(6):
            b.tensor_scalar(tile, tile, 2.0, "multiply")
        b.dma_copy(y[chain], tile)
    program = b.finish(synchronise=False)
    addresses = program.addresses | {"t0": 0, "t1": 512 if apart else 0}
    return replace(program, addresses=addresses)


@pytest.mark.parametrize("apart", [False, True])
def test_tiles_at_one_address_keep_the_order_of_their_accesses(apart: bool) -> None:
    program = sharing_addresses(apart)
    ordered = schedule_keeping_engines(program)
    position = {id(instr): n for n, instr in enumerate(ordered.instructions())}
    chains = [
        [position[id(i)] for i in program.instructions() if _touches(i, f"t{chain}")]
        for chain in range(2)
    ]
    assert (max(chains[0]) < min(chains[1])) is not apart
    x = {"x": np.random.default_rng(1).random((2, 128, 64), np.float32)}
    np.testing.assert_array_equal(run(ordered, x)["y"], 64 * x["x"])


def _touches(instr: Any, name: str) -> bool:
    return any(pattern.tile.name == name for _, _, pattern in instr.operands())


def test_engines_stay_as_they_are() -> None:
    program = sharing_addresses(True)
    before = sorted((i.mnemonic(), i.runs_on) for i in program.instructions())
    assert before == sorted((i.mnemonic(), i.runs_on) for i in
                            schedule_keeping_engines(program).instructions())  # fmt: skip


def test_a_better_order_takes_less_time() -> None:
    timed = [nki.benchmark(squares(order)) for order in (contextlib.nullcontext, ncc.no_reorder)]
    for each in timed:
        each(X)
    free, strict = (each.benchmark_result.profile for each in timed)
    assert free.latency_us < strict.latency_us


def copies(**named: Any) -> Any:
    """Copies of one row, more of them than one engine has time for."""

    @nki.jit(platform_target="trn1")
    def kernel(x):
        out = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        row = nl.load(x[0:128])
        copied = nl.ndarray((16, nl.par_dim(128), x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.affine_range(16):
            copied[i] = nisa.tensor_copy(row, **named)
        nl.store(out, copied[15])
        return out

    return kernel


def engines(kernel: Any) -> set[str]:
    """The compute engines of the program."""
    timed = nki.benchmark(kernel)
    timed(X)
    instructions = timed.benchmark_result.profile.program.instructions()
    return {i.runs_on for i in instructions if not isinstance(i, DmaCopy)}


def test_copies_go_to_the_engine_that_is_free_unless_one_is_named() -> None:
    assert engines(copies()) == {"vector", "scalar"}
    assert engines(copies(engine=nisa.vector_engine)) == {"vector"}


def test_a_named_engine_stays_whatever_the_process_has_compiled_before() -> None:
    for _ in range(2):  # the second time every call is known
        assert engines(copies(engine=nisa.vector_engine)) == {"vector"}
        assert engines(copies()) == {"vector", "scalar"}


def test_direct_allocation_keeps_the_engines() -> None:
    @nki.jit(platform_target="trn1")
    def kernel(x):
        out = nl.ndarray((4, 128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
        row = nl.ndarray((128, 256), dtype=x.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0))
        row[...] = nl.load(x[0:128])
        copied = nl.ndarray(
            (4, nl.par_dim(128), 256), dtype=x.dtype,
            buffer=ncc.sbuf.mod_alloc(base_addr=1024, num_free_tiles=(4,)),
        )  # fmt: skip
        for i in nl.affine_range(4):
            copied[i] = nisa.tensor_copy(row)
            nl.store(out[i, 0:128], copied[i])
        return out

    assert engines(kernel) == {"vector"}


def test_turns_that_share_a_tile_overlap() -> None:
    """A tile made before a loop is one storage; its iterations need not wait."""

    def kernel(x, apart):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((4, nl.par_dim(128), 256), dtype=x.dtype, buffer=nl.sbuf)
        for i in nl.sequential_range(4):
            tiles[i * apart] = nl.load(x[128 * i : 128 * (i + 1)])
            nl.store(out[128 * i : 128 * (i + 1)], nl.exp(tiles[i * apart]))
        return out

    def latency_us(apart: int) -> float:
        timed = nki.benchmark(kernel)
        timed(X, apart)
        return timed.benchmark_result.profile.latency_us

    np.testing.assert_allclose(nki.baremetal(kernel)(X, 0), np.exp(X), rtol=1e-5)
    assert latency_us(0) == pytest.approx(latency_us(1), rel=0.02)
