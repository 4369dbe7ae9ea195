"""Kernels larger than SBUF or PSUM: the compiler spills, and says what and what it costs."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest

from glia.cli.profile_text import profile_text
from glia.machine.passes.on_chip_space import OnChipMemoryFull
from glia.nki import beta1 as nki
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from glia.nki.names.language_errors import KernelAdvice
from glia.ntff.summary import summarize_profile
from support.beta1_ways import both

SMALL = np.random.default_rng(3).random((12, 128, 512), np.float32)
LARGE = np.random.default_rng(3).random((6, 128, 12288), np.float32)


def products(order: Any) -> Any:
    """Twelve products, each in a bank of PSUM, all made before their sum is subtracted."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((12, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.ndarray((12, nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        least = nl.ndarray((nl.par_dim(128), 12), dtype=nl.float32, buffer=nl.sbuf)
        with order():
            for i in nl.affine_range(12):
                tile = nl.load(x[i])
                total[i] = nisa.nc_matmul(tile[:, :128], tile)
                least[:, i] = nisa.tensor_reduce(np.min, total[i], axis=[1])
            of_all = nisa.tensor_reduce(np.min, least, axis=[1])
            for i in nl.affine_range(12):
                nl.store(out[i], nl.subtract(total[i], of_all))
        return out

    return kernel


def updates(order: Any) -> Any:
    """Six tiles of a quarter of SBUF, loaded, changed backwards and stored."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((6, 128, 12288), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((6, nl.par_dim(128), 12288), dtype=x.dtype, buffer=nl.sbuf)
        least = nl.ndarray((nl.par_dim(128), 6), dtype=nl.float32, buffer=nl.sbuf)
        with order():
            for i in nl.affine_range(6):
                tiles[i] = nl.load(x[i])
                least[:, i] = nisa.tensor_reduce(np.min, tiles[i], axis=[1])
            of_all = nisa.tensor_reduce(np.min, least, axis=[1])
            for i in nl.affine_range(6):
                tiles[5 - i] = nl.subtract(tiles[5 - i], of_all)
            for i in nl.affine_range(6):
                nl.store(out[i], tiles[i])
        return out

    return kernel


def profile_of(kernel: Any, *arrays: np.ndarray) -> Any:
    timed = nki.benchmark(kernel)
    timed(*arrays)
    return timed.benchmark_result.profile


@pytest.mark.parametrize("order", [contextlib.nullcontext, ncc.no_reorder])
@pytest.mark.parametrize(
    ("kernel", "x", "told"),
    [
        (products, SMALL, r"PSUM is full: \d+ tiles .* spill \d+ bytes to SBUF"),
        (updates, LARGE, r"SBUF is full: \d+ tiles .* to HBM; \d+ reloads of \d+ bytes"),
    ],
)
def test_what_does_not_fit_is_spilled(kernel: Any, x: np.ndarray, told: str, order: Any) -> None:
    with pytest.warns(KernelAdvice, match=told):
        both(kernel(order), x)


def test_the_profile_says_what_was_spilled() -> None:
    with pytest.warns(KernelAdvice):
        profile = profile_of(products(contextlib.nullcontext), SMALL)
    notes = profile.to_dict()["notes"]
    assert f"note             {notes[0]}\n" in profile_text(profile)
    kinds = ["PSUM is full", "changed by the back end"]
    assert [each.partition(":")[0] for each in notes] == kinds
    assert "test_beta1_spilling.py" in notes[0]


def test_the_summary_of_the_profiler_counts_what_was_spilled() -> None:
    with pytest.warns(KernelAdvice):
        profile = profile_of(updates(contextlib.nullcontext), LARGE)
    summary = summarize_profile(profile, profile.program.inputs, profile.program.outputs)
    (note,) = (each for each in profile.notes if each.startswith("SBUF is full"))
    told = re.search(r"spill (\d+) bytes to HBM; \d+ reloads of (\d+) bytes", note)
    assert told is not None
    assert summary["spill_save_bytes"] == int(told[1]) > 0
    assert 0 < summary["spill_reload_bytes"] <= int(told[2])
    assert summary["output_queue_bytes"] == LARGE.nbytes <= summary["input_queue_bytes"]


def open_sums(parts: int) -> Any:
    """Nine sums of two products, in as many parts of columns, all open together."""
    width = 512 // parts

    @nki.jit
    def kernel(x):
        out = nl.ndarray((9, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((9, nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        rows, columns = nl.arange(128)[:, None], nl.arange(width)[None, :]
        with ncc.no_reorder():
            for k in nl.affine_range(2):
                tile = nl.load(x[k])
                for i in nl.affine_range(9):
                    for part in nl.affine_range(parts):
                        here = columns + part * width
                        total[i, rows, here] += nisa.nc_matmul(tile[:, :128], tile[rows, here])
        for i in nl.affine_range(9):
            nl.store(out[i], nl.copy(total[i]))
        return out

    return kernel


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_sums_that_are_open_together_are_cut(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have come to waits in SBUF, and is added before they are read."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    with pytest.warns(KernelAdvice, match=r"PSUM is full: .* to SBUF; \d+ reloads"):
        both(open_sums(1), SMALL)


def test_sums_in_parts_that_are_open_together_cannot_leave() -> None:
    with pytest.raises(OnChipMemoryFull) as refused:
        profile_of(open_sums(2), SMALL)
    lines = str(refused.value).splitlines()
    live = [line for line in lines if line.startswith("  live: ")]
    assert lines[0].startswith("[GLIA301] PSUM is full") and len(live) == 5
    assert all("2048 bytes, from" in line and "test_beta1_spilling" in line for line in live)
