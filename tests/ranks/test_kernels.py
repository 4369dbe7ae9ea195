"""Kernels with collectives run on as many ranks as those name."""

from __future__ import annotations

import numpy as np
import pytest

import glia
from glia.neff.package import Neff
from glia.nki import collectives as groups
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.collectives import ReplicaGroup
from glia.nki.run.trace import trace
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


@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_with_collectives_runs_on_the_ranks_that_it_names(device: str) -> None:
    program = trace(summed_in_pairs, np.zeros((4, 8), np.float32), target="trn2")
    model = glia.load(Neff.from_bytes(Neff((program,)).to_bytes()), device=device)
    assert model.ranks == 4
    rows = [[np.full((4, 8), rank, np.float32)] for rank in range(4)]
    found = [int(outputs[0][0, 0]) for outputs in model.run_ranks(rows)]
    assert found == [1, 1, 5, 5]
    with pytest.raises(WrongRanks, match="run_ranks"):
        model(*rows[0])
