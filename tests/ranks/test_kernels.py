"""Kernels with collectives run on as many ranks as those name."""

from __future__ import annotations

import contextlib
from unittest import mock

import numpy as np
import pytest

import glia
from glia.neff.package import Neff
from glia.nki import collectives as groups
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.collectives import ReplicaGroup
from glia.nki.names.targets import platform_target
from glia.nki.run.launch import bind
from glia.nki.run.trace import trace, trace_launch
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.runtime.errors import WrongRanks
from glia.runtime.model import DEVICES


def summed_in_pairs(x: NkiTensor) -> NkiTensor:
    """The sum over two ranks, by way of HBM of the kernel's own."""
    given = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(given, x)
    groups.all_reduce([given], [total], ReplicaGroup([[0, 1], [2, 3]]), nl.add)
    nisa.dma_copy(out, total)
    return out


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_with_collectives_runs_on_the_ranks_that_it_names(
    device: str, target: str
) -> None:
    program = trace(summed_in_pairs, np.zeros((4, 8), np.float32), target=target)
    model = glia.load(Neff.from_bytes(Neff((program,)).to_bytes()), device=device)
    assert model.ranks == 4
    rows = [[np.full((4, 8), rank, np.float32)] for rank in range(4)]
    found = [int(outputs[0][0, 0]) for outputs in model.run_ranks(rows)]
    assert found == [1, 1, 5, 5]
    with pytest.raises(WrongRanks, match="run_ranks"):
        model(*rows[0])


def summed_by_two_cores(x: NkiTensor) -> NkiTensor:
    """The sum over three ranks; each core of a rank has half of the rows and adds the other's."""
    core, half = nl.program_id(0), x.shape[0] // 2
    given, total, both, out = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(4))
    own, others = nl.ds(core * half, half), nl.ds((1 - core) * half, half)
    nisa.dma_copy(given[own, :], x[own, :])
    groups.all_reduce([given[own, :]], [total[own, :]], ReplicaGroup([[0, 1, 2]]), nl.add)
    nisa.dma_copy(both[own, :], total[own, :])
    nisa.core_barrier(both, (0, 1))
    tile, other = (nl.ndarray((half, x.shape[1]), x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(tile, both[own, :])
    nisa.dma_copy(other, both[others, :])
    nisa.tensor_tensor(tile, tile, other, nl.add)
    nisa.dma_copy(out[own, :], tile)
    return out


@pytest.mark.parametrize("target", ["trn2", "trn3"])  # those with two cores in a logical one
@pytest.mark.parametrize("device", DEVICES)
def test_ranks_of_two_cores_meet_in_both_ways(device: str, target: str) -> None:
    x = np.zeros((8, 16), np.float32)
    launch = bind(summed_by_two_cores, (x,), {})
    neff = Neff(trace_launch(launch, platform_target(target), 2).programs)
    model = glia.load(Neff.from_bytes(neff.to_bytes()), device=device)
    assert (model.ranks, len(model.neff.programs)) == (3, 2)
    not_used = mock.patch("glia.sim.host.host_program.run_ranks", side_effect=AssertionError)
    with not_used if device == "host" else contextlib.nullcontext():
        for seed in range(2):
            draw = np.random.default_rng(seed).standard_normal
            rows = [[draw(x.shape, np.float32)] for _ in range(3)]
            total = sum(given for (given,) in rows)
            expected = total + np.roll(total, 4, axis=0)
            for (found,) in model.run_ranks(rows):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
