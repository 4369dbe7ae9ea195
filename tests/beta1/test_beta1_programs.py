"""Programs of a grid that combine their tiles."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from glia.nki import beta1 as nki
from glia.nki.beta1 import errors
from glia.nki.beta1 import language as nl
from support.beta1_ways import both, on_device

Array = np.ndarray[Any, Any]
SHAPE = (8, 16)


def tiles(*grid: int, dtype: type = np.float32) -> Array:
    """A tile for each program of a grid."""
    values = np.random.default_rng(5).integers(-50, 50, (*grid, *SHAPE))
    return values.astype(dtype)


def _reduced(op: Any, axes: Any, **options: Any) -> Any:
    """A kernel on a grid of two dimensions, every program of which stores what it gets."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=options.get("dtype", x.dtype), buffer=nl.shared_hbm)
        i, j = nl.program_id(0), nl.program_id(1)
        own = nl.load(x[i, j])
        total = nl.all_reduce(own, op=op, program_axes=axes, **options)
        nl.store(out[i, j], total)
        return out

    return kernel


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("axes", [0, 1, -1, (0, 1), [0]], ids=str)
@pytest.mark.parametrize("op,numpy", [(np.add, np.sum), (nl.maximum, np.max), (np.minimum, np.min)])
def test_programs_along_axes_get_the_same_total(op: Any, numpy: Any, axes: Any, dtype: Any) -> None:
    x = tiles(2, 3, dtype=dtype)
    given = tuple(each % 2 for each in (axes if isinstance(axes, tuple | list) else (axes,)))
    expected = np.broadcast_to(numpy(x, axis=given, keepdims=True), x.shape)
    np.testing.assert_array_equal(both(_reduced(op, axes)[2, 3], x), expected)


def test_the_total_is_converted_and_options_change_nothing() -> None:
    x = tiles(2, 2) / 7
    total = x.sum(axis=(0, 1), keepdims=True).astype(np.float16)
    result = both(
        _reduced(np.add, (0, 1), dtype=np.float16, parallel_reduce=False, asynchronous=True)[2, 2],
        x.astype(np.float32),
    )
    np.testing.assert_allclose(result, np.broadcast_to(total, x.shape), rtol=1e-3)


@nki.jit
def _normalised(x):
    """Each program divides by the sum of all, then subtracts the greatest of all."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i = nl.program_id(0)
    tile = nl.load(x[i])
    for _ in nl.sequential_range(2):
        greatest = nl.ndarray(SHAPE, dtype=x.dtype)
        greatest[...] = nl.all_reduce(tile, op=np.maximum, program_axes=0)
        tile[...] = nl.subtract(tile, nl.multiply(greatest, 0.5))
    nl.store(out[i], tile)
    return out


def test_programs_meet_as_often_as_they_call() -> None:
    x = tiles(3)
    expected = x
    for _ in range(2):
        expected = expected - expected.max(axis=0) * np.float32(0.5)
    np.testing.assert_array_equal(both(_normalised[3], x), expected)


def test_programs_that_meet_in_pairs_wait_only_for_each_other() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.program_id(0), nl.program_id(1)
        tile = nl.load(x[i, j])
        if i == 1:
            tile = nl.all_reduce(tile, op=np.add, program_axes=1)
        nl.store(out[i, j], tile)
        return out

    x = tiles(3, 2)
    expected = x.copy()
    expected[1] = x[1].sum(axis=0)
    np.testing.assert_array_equal(both(kernel[3, 2], x), expected)


def test_a_masked_total_keeps_the_rest_of_a_slot() -> None:
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        i = nl.program_id(0)
        i_p, i_f = nl.mgrid[0:8, 0:16]
        slot = nl.zeros(SHAPE, dtype=x.dtype)
        slot[i_p, i_f] = nl.all_reduce(nl.load(x[i]), np.add, 0, mask=(i_f < 5))
        nl.store(out[i], slot)
        return out

    x = tiles(2)
    expected = np.zeros_like(x)
    expected[:, :, :5] = x.sum(axis=0)[:, :5]
    np.testing.assert_array_equal(both(kernel[2], x), expected)


# --- what is refused -----------------------------------------------------------------------------


def _some_only(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x[nl.program_id(0)])
    if nl.program_id(0) < 2:
        tile = nl.all_reduce(tile, op=np.add, program_axes=0)
    nl.store(out[nl.program_id(0)], tile)
    return out


def _other_operators(x):
    op = np.add if nl.program_id(0) else np.maximum
    nl.all_reduce(nl.load(x[nl.program_id(0)]), op=op, program_axes=0)


def _failing(x):
    total = nl.all_reduce(nl.load(x[nl.program_id(0)]), op=np.add, program_axes=0)
    if nl.program_id(0) == 2:
        raise ZeroDivisionError("in program 2")
    return total


@pytest.mark.parametrize("kernel", [_some_only, _other_operators])
def test_programs_that_never_come_are_named(kernel: Any) -> None:
    before = threading.active_count()
    for run in (nki.simulate_kernel, on_device):
        with pytest.raises(errors.ProgramsDisagree, match=r"program \(0,\) waits in nl.all_reduce"):
            run(nki.jit(kernel)[3], tiles(3))
    assert threading.active_count() == before


def test_a_failure_of_one_program_ends_all() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="in program 2"):
        nki.simulate_kernel(nki.jit(_failing)[4], tiles(4))
    assert threading.active_count() == before


@pytest.mark.parametrize("axes,op", [(1, np.add), ((), np.add), (0, np.exp), ("x", np.add)])
def test_axes_and_operators_must_be_of_the_grid_and_reduce(axes: Any, op: Any) -> None:
    def kernel(x):
        nl.all_reduce(nl.load(x[0]), op=op, program_axes=axes)

    with pytest.raises(errors.UnsupportedHere, match=r"nl\.all_reduce"):
        nki.simulate_kernel(nki.jit(kernel)[2], tiles(2))
