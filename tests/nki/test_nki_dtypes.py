"""Functions of nl on every dtype they take and on every generation, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glia import nki
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.names.targets import VARIABLE
from glia.nki.tensors.nki_tensor import NkiTensor
from support.nki_ways import both, normal, stored

Array = np.ndarray[Any, Any]
GENERATIONS = ("trn1", "trn2", "trn3")
FRACTIONS = np.array([[0, -0.5, 0.5, 1.5, -1.5, 2.5, -3.75, 96.5, np.inf, -np.inf]])
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


@pytest.fixture(params=GENERATIONS, autouse=True)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


def _full_range(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    random = np.random.default_rng(0)
    return random.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def _rounded(x: NkiTensor) -> tuple[NkiTensor, ...]:
    tile = nl.load(x)
    return stored(nl.floor(tile)), stored(nl.ceil(tile)), stored(nl.trunc(tile))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_fractions_of_every_float_are_taken_off(dtype: Any) -> None:
    x = FRACTIONS.astype(dtype)
    expected = [f(x.astype(np.float64)) for f in (np.floor, np.ceil, np.trunc)]
    for found, wanted in zip(both(_rounded, x), expected, strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype(np.float64), wanted)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_have_no_fraction(dtype: str) -> None:
    x = _full_range(dtype, 4, 40)
    for found in both(_rounded, x):
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_transposed_bit_by_bit(dtype: str) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        return stored(nl.transpose(nl.load(x)))

    x = _full_range(dtype, 30, 50)
    np.testing.assert_array_equal(both(kernel, x), x.T)


def _chosen(c: NkiTensor, x: NkiTensor, y: NkiTensor) -> tuple[NkiTensor, ...]:
    condition, left, right = nl.load(c), nl.load(x), nl.load(y)
    return (
        stored(nl.where(condition, left, right)),
        stored(nl.where(condition, left, 0.5)),
        stored(nl.where(condition, left, right, dtype=nl.float32)),
    )


@pytest.mark.parametrize("condition", ["uint8", "uint32", "int32", "int8", "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "uint8"])
def test_elements_of_every_dtype_are_chosen(condition: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    c = random.integers(0, 2, (8, 12)).astype(np.dtype(condition))
    x, y = (random.integers(0, 99, (8, 12)).astype(np.dtype(dtype)) for _ in range(2))
    same, half, wide = both(_chosen, c, x, y)
    np.testing.assert_array_equal(same, np.where(c != 0, x, y))
    np.testing.assert_array_equal(half.astype(np.float32), np.where(c != 0, x, 0.5))
    np.testing.assert_array_equal(wide, np.where(c != 0, x, y).astype(np.float32))


def test_a_column_of_conditions_chooses_rows() -> None:
    def kernel(c: NkiTensor, x: NkiTensor, y: NkiTensor) -> NkiTensor:
        return stored(nl.where(nl.load(c), nl.load(x), nl.load(y)))

    c, x, y = (normal(8, 1) > 0).astype(np.float32), normal(8, 12), normal(8, 12, seed=1)
    np.testing.assert_array_equal(both(kernel, c, x, y), np.where(c != 0, x, y))


def test_booleans_come_back_as_booleans() -> None:
    def kernel(x: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
        made = nl.ndarray((4, 6), nl.bool_)
        nisa.memset(made, 1)
        return stored(made), stored(nl.load(x))

    x = normal(4, 6) > 0
    for way in (nki.simulate(kernel), nki.jit(kernel)):
        made, copied = way(x)
        assert made.dtype == copied.dtype == np.bool_
        assert made.all()
        np.testing.assert_array_equal(copied, x)
