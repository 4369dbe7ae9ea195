"""Empty slices and shards: an instruction that would write no element does nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glia.nki import beta1
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import isa as old_isa
from glia.nki.beta1 import language as old
from glia.nki.names.errors import ImpossibleTensor, IndexOutsideTensor
from glia.nki.tensors.nki_tensor import NkiTensor
from support import beta1_ways
from support.nki_ways import both, normal

X = normal(128, 64)


def shards_of(first: int) -> Any:
    """Two shards of the columns are doubled, of which either may be empty."""

    def kernel(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for start, count in ((0, first), (first, x.shape[1] - first)):
            tile = nl.ndarray((x.shape[0], count), x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(tile, x[:, nl.ds(start, count)])
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
            nisa.tensor_tensor(tile[:, 0:count], tile, tile, nl.add)
            nisa.dma_copy(out[:, start : start + count], tile)
        return out

    return kernel


@pytest.mark.parametrize("first", [0, 24, 64])
def test_a_shard_may_be_empty(first: int) -> None:
    np.testing.assert_array_equal(both(shards_of(first), X), 4 * X)


def test_rows_may_be_none() -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nisa.memset(tile[0:0], 0.0)
        nisa.memset(tile[128:128, 3:4], 0.0)
        nisa.dma_copy(out, tile)
        return out

    np.testing.assert_array_equal(both(kernel, X), X)


@pytest.mark.parametrize(
    ("use", "error", "told"),
    [
        (lambda tile, x: nisa.tensor_copy(tile[:, 0:1], x[:, 0:0]), ImpossibleTensor,
         "it names no element"),
        (lambda tile, x: x[:, 65:65], IndexOutsideTensor, "65:65"),
        (lambda tile, x: x[:, 9:8], IndexOutsideTensor, "9:8"),
        (lambda tile, x: nl.ndarray((4, 0), nl.float32, buffer=nl.shared_hbm), ImpossibleTensor,
         "at least 1"),
        (lambda tile, x: nl.ndarray((4, -1), nl.float32, buffer=nl.sbuf), ImpossibleTensor,
         "at least 0"),
    ],
)  # fmt: skip
def test_what_reads_no_element_to_write_some_is_refused(use: Any, error: Any, told: str) -> None:
    def kernel(x: NkiTensor) -> NkiTensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        use(tile, tile)
        nisa.dma_copy(out, tile)
        return out

    with pytest.raises(error, match=told):
        both(kernel, X)


def chunks_of(columns: int) -> Any:
    """Whole chunks of the columns, then a tail, which is empty where the chunks divide them."""

    def kernel(x):
        out = old.ndarray(x.shape, dtype=x.dtype, buffer=old.shared_hbm)
        last = old.zeros((old.par_dim(128), 1), dtype=old.float32)
        whole = x.shape[1] // columns * columns
        for start in (*range(0, whole, columns), whole):
            end = min(start + columns, x.shape[1])
            total = old.zeros((old.par_dim(128), end - start), dtype=old.float32, buffer=old.psum)
            tile = old.load(x[:, start:end])
            double = old_isa.tensor_tensor(tile, tile, op=np.add)
            row = old.load(x[0:1, start:end])
            total += old.multiply(double, row)
            last[:, 0:1] = double[:, end - start - 1 : end - start]
            old.store(out[:, start:end], old.copy(old.add(total, last)))
        return out

    return kernel


@pytest.mark.parametrize("columns", [16, 24])
def test_the_tail_of_a_beta_1_kernel_may_be_empty(columns: int) -> None:
    actual = beta1_ways.both(beta1.jit(chunks_of(columns)), X)
    expected = np.empty_like(X)
    for start in range(0, 64, columns):
        part = X[:, start : start + columns]
        expected[:, start : start + columns] = 2 * part * part[:1] + 2 * part[:, -1:]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
