"""Masks with alternatives, in every function that takes a mask, simulated and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.nki import beta1 as nki
from glia.nki.beta1 import errors
from glia.nki.beta1 import isa as nisa
from glia.nki.beta1 import language as nl
from support.beta1_ways import both

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = np.mgrid[0:8, 0:12]


def values(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def halves(*shape: int) -> Array:
    """Multiples of a half, which bfloat16 has exactly."""
    return np.random.default_rng(4).integers(-20, 20, shape).astype(np.float32) / 2


MASKS = {
    "|": lambda p, f: (p < 2) | (f > 7),
    "~": lambda p, f: ~((p < 5) & (f >= 3)),
    "!=": lambda p, f: f != 4,
    "| of triangles": lambda p, f: (f < p) | (f > p + 6),
    "& of |": lambda p, f: ((p < 3) | (p > 5)) & ((f < 2) | (f > 9)),
    "none": lambda p, f: (p < 0) | (f > 12),
    "all": lambda p, f: (p < 4) | (p >= 4),
}


@pytest.mark.parametrize("name", MASKS)
def test_loads_computations_and_stores_keep_what_a_mask_leaves_out(name: str) -> None:
    mask = MASKS[name]

    def kernel(x, y):
        out = nl.ndarray((3, 8, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0:12]
        whole, chosen = nl.load(x), mask(i_p, i_f)
        for i in range(3):
            nl.store(out[i], nl.load(y))
        loaded, computed = (nl.load(y) for _ in range(2))
        loaded[i_p, i_f] = nl.load(x[i_p, i_f], mask=chosen)
        computed[i_p, i_f] = nl.multiply(whole, 2.0, mask=chosen)
        nl.store(out[0], loaded)
        nl.store(out[1], computed)
        nl.store(out[2, i_p, i_f], whole[i_p, i_f], mask=chosen)
        return out

    x, y = values(8, 12), values(8, 12) + 9
    held = mask(ROWS, COLUMNS)
    expected = np.stack([np.where(held, each, y) for each in (x, 2 * x, x)])
    np.testing.assert_array_equal(both(kernel, x, y), expected)


def test_a_store_of_three_dimensions_keeps_what_a_sloping_mask_leaves_out() -> None:
    def kernel(x, y):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(y))
        i_p = nl.arange(4)[:, None, None]
        i_y, i_x = nl.arange(5)[None, :, None], nl.arange(6)[None, None, :]
        nl.store(out[i_p, i_y, i_x], nl.load(x), mask=(i_x <= i_y + i_p))
        return out

    x, y = values(4, 5, 6), values(4, 5, 6) + 9
    p, row, column = np.mgrid[0:4, 0:5, 0:6]
    expected = np.where(column <= row + p, x, y)
    np.testing.assert_array_equal(both(kernel, x, y), expected)


def test_reductions_count_what_a_mask_leaves() -> None:
    def kernel(x):
        out = nl.ndarray((8, 2), dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0:12]
        result = nl.ndarray((8, 2), dtype=x.dtype)
        chosen = (i_f < 2) | (i_f > i_p + 4)
        result[:, 0:1] = nl.max(nl.load(x), axis=1, mask=chosen)
        result[:, 1:2] = nl.sum(nl.load(x), axis=1, mask=chosen)
        nl.store(out, result)
        return out

    x = values(8, 12)
    held = (COLUMNS < 2) | (COLUMNS > ROWS + 4)
    expected = np.stack(
        [np.where(held, x, -np.inf).max(axis=1), np.where(held, x, 0).sum(axis=1)], axis=1
    )
    np.testing.assert_allclose(both(kernel, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "mean", "var"])
def test_rows_that_a_reduction_leaves_out_stay(name: str) -> None:
    def kernel(x, y):
        out = nl.ndarray((8, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0:12]
        result, data = nl.load(y), nl.load(x)
        chosen = (i_p < 5) & (i_f < 7)
        result[:, 2:3] = getattr(nl, name)(data[i_p, i_f], axis=1, mask=chosen)
        nl.store(out, result)
        return out

    x, y = values(8, 12), values(8, 12) + 9
    expected = y.copy()
    expected[:5, 2] = getattr(np, name)(x[:5, :7], axis=1)
    np.testing.assert_allclose(both(kernel, x, y), expected, rtol=1e-5, atol=1e-6)


def test_columns_that_a_product_leaves_out_stay() -> None:
    def kernel(x, y):
        out = nl.ndarray((12, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        result, data = nl.load(y), nl.load(x)
        i_p, i_f = nl.mgrid[0:8, 0:12]
        chosen = (i_p < 5) & (i_f < 7)
        result[...] = nisa.nc_matmul(data, data[i_p, i_f], mask=chosen)
        nl.store(out, result)
        return out

    x, y = halves(8, 12), halves(12, 12)
    expected = y.copy()
    expected[:, :7] = x[:5].T @ x[:5, :7]
    np.testing.assert_array_equal(both(kernel, x, y), expected)


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_selection_may_take_all_or_nothing(is_chosen: bool) -> None:
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        _, i_f = nl.mgrid[0:8, 0:12]
        pred = (i_f < 3) | (i_f >= 3) if is_chosen else (i_f < 3) & (i_f > 8)
        nl.store(out, nisa.affine_select(pred, on_true_tile=nl.load(x), on_false_value=-1.0))
        return out

    x = values(8, 12)
    np.testing.assert_array_equal(both(kernel, x), x if is_chosen else np.full_like(x, -1))


def test_a_selection_takes_either_of_two_comparisons() -> None:
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0:12]
        tile = nl.load(x)
        tile[i_p, i_f] = nisa.affine_select(
            pred=(i_f < i_p) | (i_f == 10), on_true_tile=tile, on_false_value=-1.0
        )
        nl.store(out, tile)
        return out

    x = values(8, 12)
    expected = np.where((COLUMNS < ROWS) | (COLUMNS == 10), x, np.float32(-1))
    np.testing.assert_array_equal(both(kernel, x), expected)


BOXES = {
    "nl.softmax": lambda t, m: nl.softmax(t, axis=1, mask=m),
    "nl.mean": lambda t, m: nl.mean(t, axis=1, mask=m),
    "nl.matmul": lambda t, m: nl.matmul(t, t, transpose_x=True, mask=m),
    "nc_transpose": lambda t, m: nisa.nc_transpose(t, mask=m),
    "matmul": lambda t, m: nl.matmul(t[m], t, transpose_x=True),
}


@pytest.mark.parametrize("name", BOXES)
def test_what_computes_on_a_box_says_so(name: str) -> None:
    def kernel(x):
        i_p, i_f = nl.mgrid[0:8, 0:8]
        BOXES[name](nl.load(x), i_f <= i_p)

    with pytest.raises(errors.UnsupportedMask, match=f"{name}.* that is not a box"):
        nki.simulate_kernel(nki.jit(kernel), values(8, 8))


@pytest.mark.parametrize("name", MASKS)
def test_a_tile_of_another_dtype_keeps_what_a_mask_leaves_out(name: str) -> None:
    """The value is made first, in its own dtype, and copied where the mask holds."""
    mask = MASKS[name]

    def kernel(x, y):
        out = nl.ndarray((3, 8, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0:12]
        whole, chosen = nl.load(x), mask(i_p, i_f)
        loaded, computed, selected = (nl.load(y) for _ in range(3))
        loaded[i_p, i_f] = nl.load(x[i_p, i_f], mask=chosen, dtype=nl.bfloat16)
        computed[:, :] = nl.copy(whole, mask=chosen, dtype=nl.bfloat16)
        selected[0:8, 0:12] = nisa.affine_select(
            pred=i_f >= i_p, on_true_tile=whole, on_false_value=-4.0, mask=chosen,
            dtype=nl.bfloat16,
        )  # fmt: skip
        for number, tile in enumerate((loaded, computed, selected)):
            nl.store(out[number], tile)
        return out

    x, y = halves(8, 12), values(8, 12) + 9
    below = np.where(COLUMNS >= ROWS, x, -4)
    expected = np.stack([np.where(mask(ROWS, COLUMNS), each, y) for each in (x, x, below)])
    np.testing.assert_array_equal(both(kernel, x, y), expected)


def test_columns_and_transposes_of_another_dtype_keep_what_a_mask_leaves_out() -> None:
    def kernel(x, y):
        out = nl.ndarray((2, 8, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.mgrid[0:8, 0:12]
        turned, reduced = nl.load(y), nl.load(y)
        rows, columns = nl.mgrid[0:12, 0:8]
        turned[...] = nl.load_transpose2d(x, mask=(columns < rows), dtype=nl.bfloat16)
        taken = nl.load(y)
        reduced[:, 3:4] = nisa.tensor_reduce(
            np.max, taken[i_p, i_f], axis=(1,), mask=(i_p < 5) & (i_f < 7), dtype=nl.bfloat16
        )
        nl.store(out[0], turned)
        nl.store(out[1], reduced)
        return out

    x, y = halves(12, 8), halves(8, 12) + 8
    first, second = np.where(ROWS < COLUMNS, x.T, y), y.copy()
    second[:5, 3] = y[:5, :7].max(1)
    np.testing.assert_array_equal(both(kernel, x, y), np.stack([first, second]))


def test_a_copy_that_would_lose_what_was_skipped_is_refused() -> None:
    def kernel(x, index):
        out = nl.ndarray((8, 12), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.zeros((8, 12), dtype=nl.float32, buffer=nl.sbuf)
        rows = nl.load(index)
        i_f = nl.arange(12)[None, :]
        tile[...] = nl.load(x[rows, i_f], dtype=nl.bfloat16, mode=nisa.oob_mode.skip)
        nl.store(out, tile)
        return out

    with pytest.raises(errors.PartialAssignment, match=r"bfloat16\[8, 12\] to float32\[8, 12\]"):
        both(kernel, values(20, 12), np.arange(8, dtype=np.int32)[:, None])
