"""Loads, stores and rows that change places: exact on every target, and off the Vector Engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.nki import beta1 as nki
from glia.nki.beta1 import language as nl

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
ROWS, COLUMNS = 256, 64


def loads(x: Any) -> Any:
    """x transposed by loads, in bfloat16 and as it is."""
    narrow = nl.ndarray((COLUMNS, ROWS), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    same = nl.ndarray((COLUMNS, ROWS), dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(narrow, nl.load_transpose2d(x, dtype=nl.bfloat16))
    nl.store(same, nl.load_transpose2d(x))
    return narrow, same


def stores(x: Any) -> Any:
    """x[0:64, 0:256] stored as its transposition, in float16 too."""
    out = nl.ndarray((ROWS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    narrow = nl.ndarray((ROWS, COLUMNS), dtype=nl.float16, buffer=nl.shared_hbm)
    row, column = nl.arange(COLUMNS)[:, None], nl.arange(ROWS)[None, :]
    tile = nl.load(x)
    nl.store(out[column, row], tile)
    nl.store(narrow[column, row], tile)
    return out, narrow


def values(*shape: int) -> np.ndarray[Any, Any]:
    """Numbers with what a product with the identity would not keep apart."""
    found = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found[0, :4] = np.inf, -np.inf, np.nan, -0.0
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_loads_transpose_bit_by_bit(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    x = values(ROWS, COLUMNS)
    narrow, same = nki.jit(loads)(x)
    np.testing.assert_array_equal(same.view(np.int32), x.T.view(np.int32))
    wanted = x.T.astype(narrow.dtype)
    np.testing.assert_array_equal(narrow.view(np.int16), wanted.view(np.int16))


@pytest.mark.parametrize("target", TARGETS)
def test_stores_transpose_bit_by_bit(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    x = values(COLUMNS, ROWS)
    out, narrow = nki.jit(stores)(x)
    np.testing.assert_array_equal(out.view(np.int32), x.T.view(np.int32))
    np.testing.assert_array_equal(narrow.view(np.int16), x.T.astype(np.float16).view(np.int16))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel, shape", [(loads, (ROWS, COLUMNS)), (stores, (COLUMNS, ROWS))])
def test_no_element_is_a_descriptor_of_its_own(
    kernel: Any, shape: tuple[int, int], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    measured = nki.benchmark(kernel)
    measured(np.zeros(shape, np.float32))
    profile = measured.benchmark_result.profile
    arch = profile.target.arch
    by_elements = ROWS * COLUMNS * arch.dma_descriptor_ns / arch.dma_engines / 1000
    assert max(queue.busy_us for queue in profile.queues.values()) < by_elements


def test_a_column_is_stored_as_it_is() -> None:
    def kernel(x: Any) -> Any:
        out = nl.ndarray((1, 128), dtype=x.dtype, buffer=nl.shared_hbm)
        row, column = nl.arange(128)[:, None], nl.arange(1)[None, :]
        nl.store(out[column, row], nl.load(x))
        return out

    x = values(128, 4)[:, :1]
    np.testing.assert_array_equal(nki.jit(kernel)(x)[0], x[:, 0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("partition, columns", [(0, 512), (3, 512), (0, 513), (0, 1)])
def test_a_row_spreads_over_the_partitions(
    partition: int, columns: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(x: Any, rows: Any) -> Any:
        out = nl.ndarray((128, columns), dtype=x.dtype, buffer=nl.shared_hbm)
        row = nl.load(rows)[partition : partition + 1, :]
        nl.store(out, nl.subtract(nl.multiply(nl.load(x), row), row))
        return out

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    x, rows = values(128, max(columns, 4))[:, :columns], values(4, max(columns, 4))[:, :columns]
    row = rows[partition]
    found = nki.jit(kernel)(x, rows)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, x * row - row)
    measured = nki.benchmark(kernel)
    measured(x, rows)
    by_product = measured.benchmark_result.profile.flops > 0
    assert by_product == (columns == 512)
