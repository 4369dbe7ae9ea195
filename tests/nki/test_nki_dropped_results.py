"""An engine that writes a whole row to one place leaves there what it wrote last."""

from __future__ import annotations

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl


def _squares(x):
    rows, columns = x.shape
    data = nl.load(x)
    place, total, zero = (nl.ndarray((rows, 1), nl.float32, buffer=nl.sbuf) for _ in range(3))
    nisa.memset(zero, 0)
    nisa.activation_reduce(
        dst=place.ap(pattern=[[1, rows], [0, columns]]),
        op=nl.square,
        data=data,
        reduce_op=nl.add,
        reduce_res=total,
        bias=zero,
    )
    out = nl.ndarray((rows, 2), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[:, 0:1], src=total)
    nisa.dma_copy(dst=out[:, 1:2], src=place)
    return out


@pytest.mark.parametrize("run", [nki.simulate, nki.jit])
def test_a_row_of_results_may_go_to_one_place(run) -> None:
    x = np.random.default_rng(5).random((128, 64), dtype=np.float32)
    expected = np.stack([(x * x).sum(axis=1), x[:, -1] ** 2], axis=1)
    np.testing.assert_allclose(run(_squares)(x), expected, rtol=1e-6)


@pytest.mark.parametrize("run", [nki.simulate, nki.jit])
def test_a_transfer_takes_its_place_from_any_partition(run) -> None:
    def kernel(table, places):
        held = nl.load(places)
        found = nl.ndarray((3, 1), nl.float32, buffer=nl.sbuf)
        for row in range(3):
            index = held.ap(pattern=[[1, 1], [1, 1]], offset=row)
            source = table.ap(
                pattern=[[1, 1], [1, 1]], offset=0, scalar_offset=index, indirect_dim=1
            )
            nisa.dma_copy(dst=found[row : row + 1, :], src=source)
        out = nl.ndarray((3, 1), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=found)
        return out

    table = np.arange(16, dtype=np.float32).reshape(1, 16)
    places = np.array([[5], [0], [11]], np.int32)
    np.testing.assert_array_equal(run(kernel)(table, places), table.T[places[:, 0]])
