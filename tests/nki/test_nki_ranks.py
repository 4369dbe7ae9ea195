"""Kernels of several ranks, each a logical core, compiled and run together."""

from __future__ import annotations

import numpy as np
import pytest

from glia.conformance.nki_library.ranks import run_ranks
from glia.nki import collectives
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.tensors.nki_tensor import NkiTensor


def _own_rows(rows: NkiTensor) -> NkiTensor:
    """The rows that the rank selects by its number, in a register that the transfer reads."""
    _, height, width = rows.shape
    out = nl.ndarray((height, width), rows.dtype, buffer=nl.shared_hbm)
    rank = collectives.rank_id()
    own = rows.ap(pattern=[[width, height], [1, width]], scalar_offset=rank, indirect_dim=0)
    nisa.dma_copy(dst=out, src=own)
    return out


def _sum(x: NkiTensor, group: collectives.ReplicaGroup) -> NkiTensor:
    source = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(source, x)
    collectives.all_reduce([source], [total], group, nl.add)
    nisa.dma_copy(out, total)
    return out


def _gathered_halves(x: NkiTensor, group: collectives.ReplicaGroup) -> NkiTensor:
    """Each core gathers half of the rows in its own SBUF."""
    half, width = x.shape[0] // 2, x.shape[1]
    out = nl.ndarray((x.shape[0], 2 * width), x.dtype, buffer=nl.shared_hbm)
    own, all_ranks = (nl.ndarray((half, n * width), x.dtype, buffer=nl.sbuf) for n in (1, 2))
    rows = nl.ds(nl.program_id(0) * half, half)
    nisa.dma_copy(own, x[rows, :])
    collectives.all_gather([own], [all_ranks], group, 1)
    nisa.dma_copy(out[rows, :], all_ranks)
    return out


def test_ranks_meet_core_by_core() -> None:
    x = np.arange(2 * 8 * 4, dtype=np.float32).reshape(2, 8, 4)
    group = collectives.ReplicaGroup([[0, 1]])
    expected = np.concatenate(list(x), axis=1)
    for seed in range(6):
        for (result,) in run_ranks(
            _gathered_halves, [{"x": each, "group": group} for each in x], "trn2", 2, seed=seed
        ):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_rank_selects_by_its_number(cores: int) -> None:
    rows = np.arange(2 * 4 * 8, dtype=np.float32).reshape(2, 4, 8)
    found = run_ranks(_own_rows, [{"rows": rows}] * 2, "trn2", cores)
    for rank, (result,) in enumerate(found):
        np.testing.assert_array_equal(result, rows[rank])


@pytest.mark.parametrize("cores", [1, 2])
def test_ranks_compute_a_sum_together(cores: int) -> None:
    x = np.arange(4 * 8, dtype=np.float32).reshape(4, 8)
    group = collectives.ReplicaGroup([[0, 1]])
    inputs = [{"x": (rank + 1) * x, "group": group} for rank in range(2)]
    for (result,) in run_ranks(_sum, inputs, "trn2", cores):
        np.testing.assert_array_equal(result, 3 * x)
