"""Loops on the device, registers, and transfers whose rows only the running program knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glia import nki
from glia.machine.ir import Loop, While
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.errors import IndexNotInTable
from glia.nki.run.trace import trace
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored


def count(*values: int) -> np.ndarray:
    return np.array([values], np.int32)


def loaded(cell: NkiTensor) -> Any:
    """A register with the value of a tensor of one element in HBM."""
    register = nisa.register_alloc()
    nisa.register_load(register, nl.load(cell))
    return register


def copied_rows(x: NkiTensor, start: Any, stop: Any, step: int) -> NkiTensor:
    out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.dynamic_range(start, stop, step):
        tile = nl.ndarray((2, x.shape[1]), x.dtype)
        nisa.dma_copy(tile, x[nl.ds(i, 2)])
        nisa.dma_copy(out[nl.ds(i, 2)], tile)
    return out


def test_a_loop_of_known_bounds_stays_one_loop() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        return copied_rows(x, 2, 14, 4)

    x = normal(16, 8)
    expected = np.zeros_like(x)
    for i in range(2, 14, 4):
        expected[i : i + 2] = x[i : i + 2]
    np.testing.assert_array_equal(both(kernel, x), expected)
    loops = [s for s in trace(kernel, x).body if isinstance(s, Loop)]
    assert [loop.trips for loop in loops] == [3]


@pytest.mark.parametrize("last", [0, 3, 9])
def test_bounds_may_be_registers(last: int) -> None:
    def kernel(x: NkiTensor, n: NkiTensor) -> NkiTensor:
        return copied_rows(x, nisa.register_alloc(1), loaded(n), 3)

    x = normal(16, 8)
    expected = np.zeros_like(x)
    for i in range(1, last, 3):
        expected[i : i + 2] = x[i : i + 2]
    np.testing.assert_array_equal(both(kernel, x, count(last)), expected)
    assert any(isinstance(s, While) for s in trace(kernel, x, count(last)).body)


def test_a_body_is_called_for_every_index() -> None:
    def kernel(x: NkiTensor, n: NkiTensor) -> NkiTensor:
        total = nl.zeros((8, 8), nl.float32)

        def body(i: Any) -> None:
            row = nl.ndarray((8, 8), nl.float32)
            nisa.dma_copy(row, x.select(0, i))
            nisa.tensor_tensor(total, total, row, nl.add)

        nl.fori_loop(0, loaded(n), body)
        return stored(total)

    x = normal(5, 8, 8)
    np.testing.assert_allclose(both(kernel, x, count(4)), x[:4].sum(axis=0), rtol=1e-6, atol=1e-6)


def counted_down(n: NkiTensor, loop: Callable[[Any, Callable[[], None]], None]) -> NkiTensor:
    """n added n times, with a loop that runs while a counter in SBUF is not 0."""
    value, left = nl.load(n), nl.load(n)
    total, one = nl.zeros((1, 1), nl.int32), nl.ones((1, 1), nl.int32)
    register = nisa.register_alloc()
    nisa.register_load(register, left)

    def body() -> None:
        nisa.tensor_tensor(total, total, value, nl.add)
        nisa.tensor_tensor(left, left, one, nl.subtract)
        nisa.register_load(register, left)

    loop(register, body)
    return stored(total)


def _with_while(register: Any, body: Callable[[], None]) -> None:
    while register:
        body()


def _with_while_loop(register: Any, body: Callable[[], None]) -> None:
    def step(_: Any) -> Any:
        body()
        return register

    nl.while_loop(register, step)


@pytest.mark.parametrize("loop", [_with_while, _with_while_loop])
@pytest.mark.parametrize("times", [0, 5])
def test_while_runs_until_its_register_is_zero(loop: Any, times: int) -> None:
    result = both(lambda n: counted_down(n, loop), count(times))
    assert result[0, 0] == times * times


def test_registers_are_moved_and_stored() -> None:
    def kernel(n: NkiTensor) -> NkiTensor:
        first, second = loaded(n), nisa.register_alloc(7)
        nisa.register_move(second, first)
        nisa.register_move(first, 3)
        cells = nl.ndarray((1, 2), nl.int32)
        nisa.register_store(cells[:, 0:1], first)
        nisa.register_store(cells[:, 1:2], second)
        return stored(cells)

    np.testing.assert_array_equal(both(kernel, count(41)), [[3, 41]])


def test_products_add_up_over_iterations_and_start_over_where_they_were_read() -> None:
    def kernel(x: NkiTensor, n: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
        tile = nl.load(x)
        across = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
        last = nl.ndarray((8, 8), nl.float32)

        def body(i: Any) -> None:
            inside = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(across, tile, tile)
            nisa.nc_matmul(inside, tile, tile)
            nisa.nc_matmul(inside, tile, tile)
            nisa.tensor_copy(last, inside)

        nl.fori_loop(0, loaded(n), body)
        return stored(across), stored(last)

    x = normal(8, 8)
    across, last = both(kernel, x, count(3))
    np.testing.assert_allclose(across, 3 * x.T @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last, 2 * x.T @ x, rtol=1e-5, atol=1e-5)


def test_a_sum_goes_on_in_the_elements_that_have_one() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        tile, total = nl.load(x), nl.ndarray((16, 32), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(total[:, :8], tile[:, :16], tile[:, :8])
        nisa.nc_matmul(total, tile[:, :16], tile)
        return stored(total)

    x = normal(16, 32)
    product = x[:, :16].T @ x
    product[:, :8] *= 2
    np.testing.assert_allclose(both(kernel, x), product, rtol=1e-5, atol=1e-5)


def test_a_row_chosen_by_an_element_is_read_when_it_is_used() -> None:
    def kernel(x: NkiTensor, n: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
        index = nl.load(n)
        row = x.select(0, index)
        first, second = nl.ndarray((4, 6), nl.float32), nl.ndarray((4, 6), nl.float32)
        nisa.dma_copy(first, row)
        nisa.memset(index, 0)
        nisa.dma_copy(second, row)
        on_chip = nl.load(x.permute((1, 0, 2)))
        nisa.tensor_tensor(second, second, on_chip.select(1, index), nl.add)
        return stored(first), stored(second)

    x = normal(5, 4, 6)
    first, second = both(kernel, x, count(3))
    np.testing.assert_array_equal(first, x[3])
    np.testing.assert_array_equal(second, 2 * x[0])


def test_an_access_pattern_moves_by_steps_of_its_tensor() -> None:
    def kernel(x: NkiTensor, n: NkiTensor) -> NkiTensor:
        part = nl.ndarray((4, 3), nl.float32)
        rows = x.ap([[6, 4], [1, 3]], scalar_offset=nl.load(n), indirect_dim=0)
        nisa.dma_copy(part, rows)
        return stored(part)

    x = normal(20, 6)
    np.testing.assert_array_equal(both(kernel, x, count(7)), x[7:11, :3])


def test_rows_are_gathered_scattered_and_added_by_index() -> None:
    def kernel(x: NkiTensor, rows: NkiTensor) -> tuple[NkiTensor, ...]:
        index = nl.load(rows)
        tile, again = nl.ndarray((4, 6), nl.float32), nl.ndarray((4, 3), nl.float32)
        nisa.dma_copy(tile, x.vector_select(0, index))
        nisa.dma_copy(again, x.ap([[6, 4], [1, 3]], offset=2, vector_offset=index))
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out.vector_select(0, index), tile)
        target = out.vector_select(0, index)
        nisa.dma_compute(target, [target, tile], nl.add)
        nisa.dma_compute(tile, [tile, x.vector_select(0, index)], nl.add)
        return stored(tile), stored(again), out

    x, rows = normal(9, 6), np.array([[5], [0], [8], [2]], np.uint32)
    tile, again, out = both(kernel, x, rows)
    places = rows[:, 0].astype(int)
    np.testing.assert_array_equal(tile, 2 * x[places])
    np.testing.assert_array_equal(again, x[places][:, 2:5])
    expected = np.zeros_like(x)
    expected[places] = 2 * x[places]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("invalid", [9, 2**32 - 1])
def test_rows_without_a_place_are_skipped_or_refused(invalid: int) -> None:
    def kernel(x: NkiTensor, rows: NkiTensor, oob_mode: Any) -> NkiTensor:
        tile = nl.full((4, 6), -1.0, nl.float32)
        nisa.dma_copy(tile, x.vector_select(0, nl.load(rows)), oob_mode=oob_mode)
        return stored(tile)

    x, rows = normal(9, 6), np.array([[5], [invalid], [8], [2]], np.uint32)
    result = both(kernel, x, rows, oob_mode=nisa.oob_mode.skip)
    expected = np.where([[1], [0], [1], [1]], x[[5, 0, 8, 2]], np.float32(-1))
    np.testing.assert_array_equal(result, expected)
    with pytest.raises(IndexNotInTable):
        nki.simulate(kernel)(x, rows, oob_mode=nisa.oob_mode.error)


@pytest.mark.parametrize("row", [-1, 2, 9])
def test_one_row_without_a_place_is_skipped_or_refused(row: int) -> None:
    def kernel(x: NkiTensor, n: NkiTensor, oob_mode: Any) -> NkiTensor:
        tile = nl.full((4, 6), -1.0, nl.float32)
        nisa.dma_copy(tile, x.select(0, nl.load(n)), oob_mode=oob_mode)
        return stored(tile)

    x = normal(9, 4, 6)
    result = both(kernel, x, count(row), oob_mode=nisa.oob_mode.skip)
    np.testing.assert_array_equal(result, x[row] if row == 2 else np.full((4, 6), -1, np.float32))
    if row != 2:
        with pytest.raises(IndexNotInTable):
            nki.simulate(kernel)(x, count(row), oob_mode=nisa.oob_mode.error)


def test_transfers_transpose_and_add() -> None:
    def kernel(x: NkiTensor, y: NkiTensor) -> tuple[NkiTensor, ...]:
        flat, deep = nl.ndarray((16, 8), nl.float32), nl.ndarray((6, 4, 8), nl.float32)
        nisa.dma_transpose(flat, x)
        nisa.dma_transpose(deep, y)
        total = nl.ndarray((8, 16), nl.float32)
        nisa.dma_compute(total, [x, x, x], nl.add, scales=[1.0, 1.0, 1.0])
        return stored(flat), stored(deep), stored(total)

    x, y = normal(8, 16), normal(8, 4, 6)
    flat, deep, total = both(kernel, x, y)
    np.testing.assert_array_equal(flat, x.T)
    np.testing.assert_array_equal(deep, y.transpose(2, 1, 0))
    np.testing.assert_allclose(total, 3 * x, rtol=1e-6)


def test_columns_are_chosen_by_an_index_on_chip() -> None:
    def kernel(x: NkiTensor, places: NkiTensor) -> NkiTensor:
        tile, index = nl.load(x), nl.load(places)
        chosen = nl.ndarray((32, 20), nl.float32)
        nisa.tensor_copy(chosen, tile.indirect(index, num_elem=20))
        return stored(chosen)

    x = normal(32, 50)
    places = np.random.default_rng(0).integers(0, 50, (32, 2)).astype(np.uint16)
    expected = np.concatenate(
        [
            x[group : group + 16, places[group : group + 16].reshape(-1, order="F")[:20]]
            for group in (0, 16)
        ]
    )
    np.testing.assert_array_equal(both(kernel, x, places), expected)


def _sums_of_rows(x: NkiTensor, y: NkiTensor, outer: Any, inner: Any) -> NkiTensor:
    """out[i] = sum over k of x[i, k].T @ y[k], both loops on the device."""
    out = nl.ndarray((3, 8, 16), nl.float32, buffer=nl.shared_hbm)

    def row(i: Any) -> None:
        total = nl.ndarray((8, 16), nl.float32, buffer=nl.psum)
        parts = nl.ndarray((8, 16), nl.float32, buffer=nl.psum)

        def add(k: Any) -> None:
            left, right = nl.ndarray((4, 8), nl.float32), nl.ndarray((4, 16), nl.float32)
            nisa.dma_copy(left, x.select(0, i)[nl.ds(k, 1)].reshape((4, 8)))
            nisa.dma_copy(right, y[nl.ds(k, 1)].reshape((4, 16)))
            nisa.nc_matmul(total, left, right)
            for half in range(2):
                columns = slice(8 * half, 8 * half + 8)
                nisa.nc_matmul(parts[:, columns], left, right[:, columns])

        inner(2, add)
        both_halves = nl.copy(parts)
        nisa.tensor_tensor(both_halves, both_halves, total, nl.add)
        nisa.dma_copy(out.select(0, i), both_halves)

    outer(3, row)
    return out


def _fixed(count: int, body: Any) -> None:
    nl.fori_loop(0, count, body)


def _counted(count: int, body: Any) -> None:
    nl.fori_loop(0, nisa.register_alloc(count), body)


@pytest.mark.parametrize("outer", [_fixed, _counted])
@pytest.mark.parametrize("inner", [_fixed, _counted])
def test_a_sum_over_a_loop_starts_over_in_every_iteration_of_the_outer_loop(
    outer: Any, inner: Any
) -> None:
    def kernel(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        return _sums_of_rows(x, y, outer, inner)

    x, y = normal(3, 2, 4, 8), normal(2, 4, 16, seed=1)
    expected = 2 * np.einsum("ikpm,kpn->imn", x, y)
    np.testing.assert_allclose(both(kernel, x, y), expected, rtol=1e-4, atol=1e-5)


def test_a_product_at_a_place_of_the_loops_own_overwrites_a_new_tile() -> None:
    def kernel(x: NkiTensor, y: NkiTensor) -> NkiTensor:
        left, right = nl.load(x), nl.load(y)
        out = nl.ndarray((3, 8, 16), nl.float32, buffer=nl.shared_hbm)
        for i in nl.dynamic_range(3):
            total = nl.zeros((8, 16), nl.float32, buffer=nl.psum)
            for _ in range(2):
                nisa.nc_matmul(total[:, nl.ds(i, 4)], left, right)
            held = nl.copy(total)
            nisa.dma_copy(out.select(0, i), held)
        return out

    x, y = normal(4, 8), normal(4, 4, seed=1)
    result = both(kernel, x, y)
    for i in range(3):
        expected = np.zeros((8, 16), np.float32)
        expected[:, i : i + 4] = 2 * (x.T @ y)
        np.testing.assert_allclose(result[i], expected, rtol=1e-4, atol=1e-5)


def test_products_at_an_index_add_to_products_at_that_index() -> None:
    def kernel(x: NkiTensor, y: NkiTensor, places: NkiTensor) -> NkiTensor:
        left, right, index = nl.load(x), nl.load(y), nl.load(places)
        totals = nl.zeros((8, 3, 4), nl.float32, buffer=nl.psum)
        for turn in range(4):
            nisa.nc_matmul(totals.select(1, index[:, turn : turn + 1]), left, right)
        return stored(totals)

    x, y = normal(4, 8), normal(4, 4, seed=1)
    result = both(kernel, x, y, count(2, 0, 2, 2))
    times = np.array([1, 0, 3], np.float32)
    expected = (x.T @ y)[:, None] * times[:, None]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
