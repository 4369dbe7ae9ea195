"""What kernels of earlier releases of the current generation write still runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import BrokenRule
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored


def test_a_transfer_adds_to_its_destination() -> None:
    def kernel(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        total = nl.load(x)
        nisa.dma_copy(total, y, dst_rmw_op=nl.add)
        nisa.dma_copy(dst=total, src=y, dst_rmw_op=None, unique_indices=True)
        nisa.dma_copy(total, x, dst_rmw_op=np.add)
        return stored(total)

    x, y = normal(8, 16), normal(8, 16, seed=1)
    np.testing.assert_array_equal(both(kernel, x, y), y + x)


@pytest.mark.parametrize("is_unique", [False, True])
def test_a_transfer_adds_rows_that_indices_name(is_unique: bool) -> None:
    def kernel(x: NkiTensor, rows: NkiTensor, table: NkiTensor) -> tuple[NkiTensor, ...]:
        data, index = nl.load(x), nl.load(rows)
        sums = nl.ndarray(table.shape, nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(sums, table)
        place = sums.vector_select(0, index)
        nisa.dma_copy(place, data, dst_rmw_op=nl.add, unique_indices=is_unique)
        nisa.dma_copy(data, table.vector_select(0, index), dst_rmw_op=nl.add)
        return sums, stored(data)

    x, table = normal(4, 6), normal(9, 6, seed=1)
    rows = np.array([7, 0, 7, 3] if not is_unique else [7, 0, 5, 3], np.int32)
    expected = table.copy()
    np.add.at(expected, rows, x)
    sums, data = both(kernel, x, rows[:, None], table)
    np.testing.assert_allclose(sums, expected, rtol=1e-6)
    np.testing.assert_array_equal(data, x + table[rows])


def test_a_transfer_combines_by_addition_alone() -> None:
    def kernel(x: NkiTensor) -> None:
        nisa.dma_copy(nl.load(x), x, dst_rmw_op=nl.multiply)

    with pytest.raises(BrokenRule, match=r"dst_rmw_op must be nl\.add"):
        nki.simulate(kernel)(normal(4, 4))


def test_copies_at_run_time_places_have_their_earlier_names() -> None:
    def kernel(x: NkiTensor, at: NkiTensor) -> NkiTensor:
        tile, index = nl.load(x), nl.load(at)
        moved = nl.zeros(x.shape, nl.float32)
        nisa.tensor_copy_dynamic_src(dst=moved[:, 0:1], src=tile.select(1, index))
        nisa.tensor_copy_dynamic_dst(dst=moved.select(1, index), src=tile[:, 1:2])
        return stored(moved)

    x = normal(8, 5)
    expected = np.zeros_like(x)
    expected[:, 0], expected[:, 3] = x[:, 3], x[:, 1]
    np.testing.assert_array_equal(both(kernel, x, np.array([[3]], np.int32)), expected)


def test_parameters_have_their_earlier_names() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        register = nisa.register_alloc()
        nisa.register_move(register, imm=2)
        return stored(nl.load(x.reshape(new_shape=(4, 6)))[:, nl.ds(register, 3)])

    x: Any = normal(8, 3)
    np.testing.assert_array_equal(both(kernel, x), x.reshape(4, 6)[:, 2:5])
