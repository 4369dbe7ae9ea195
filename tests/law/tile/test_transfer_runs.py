"""Stores go to HBM in runs as long as a row allows, without a copy that makes them no longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.vector import TensorCopy
from glia.isa.operand import Memory
from glia.machine.emit.layout import fold_dims
from support.targets import CORES

LONG_RUN = 512  # bytes, from which a transfer is at full rate

RANDOM = np.random.default_rng(0)
COLUMN = RANDOM.standard_normal(300, np.float32)
CHOSEN = RANDOM.integers(0, 24, 300).astype(np.int32)

REPEATING: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "constant": (lambda: jnp.full((300, 200), 1.5, jnp.bfloat16), ()),
    "number": (lambda x: jnp.broadcast_to(x[0] * 2, (300, 70)), (COLUMN,)),
    "columns": (lambda x: jnp.broadcast_to(x[:, None] * 2, (300, 40)), (COLUMN,)),
    "rows": (lambda x: jnp.broadcast_to(x[None] * 2, (200, 300)), (COLUMN,)),
    "middle": (lambda x: jnp.broadcast_to(x.reshape(3, 1, 100) + 1, (3, 50, 100)), (COLUMN,)),
    "blocks": (lambda x: jnp.repeat(x.reshape(100, 3) + 1, 16, 1), (COLUMN,)),
    "one-hot": (lambda i: jax.nn.one_hot(i, 24, dtype=jnp.int32), (CHOSEN,)),
}


def compiled(function: Callable[..., Any], arrays: tuple[np.ndarray, ...], target: str) -> Any:
    lowered = jax.jit(function).lower(*arrays)
    return glia.compile(lowered, target=target, auto_cast="none", verify=True)


def stores(neff: Any) -> list[DmaCopy]:
    found = [each for each in neff.program.instructions() if isinstance(each, DmaCopy)]
    return [each for each in found if each.dst.memory is Memory.HBM]


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", REPEATING)
def test_elements_that_repeat_are_stored_in_long_runs(name: str, target: str) -> None:
    function, arrays = REPEATING[name]
    neff = compiled(function, arrays, target)
    assert stores(neff)
    for store in stores(neff):
        dst, src = fold_dims((store.dst, store.src))
        row = replace(dst, dims=dst.dims[1:]).contiguous_bytes
        assert src.contiguous_bytes >= min(LONG_RUN, row)
    (found,) = glia.load(neff)(*arrays)
    np.testing.assert_allclose(found, np.asarray(jax.jit(function)(*arrays)), rtol=1e-6)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("columns", [1, 8, 60])
def test_short_rows_are_stored_from_where_they_were_computed(columns: int, target: str) -> None:
    x = RANDOM.standard_normal((300, columns), np.float32)
    neff = compiled(lambda x: jnp.exp(x), (x,), target)
    assert not any(isinstance(each, TensorCopy) for each in neff.program.instructions())
    np.testing.assert_allclose(glia.load(neff)(x)[0], np.exp(x), rtol=1e-5)


def gathered_product(h: Any, w: Any, rows: Any) -> Any:
    """Rows of a batch of products that indices choose, as tokens fetch what experts computed."""
    product = jnp.einsum("ech,ehw->ecw", h, w)
    return product.reshape(-1, product.shape[-1])[rows] * 2


@pytest.mark.parametrize("target", CORES)
def test_a_product_whose_rows_are_gathered_is_stored_row_by_row(target: str) -> None:
    h = RANDOM.standard_normal((2, 128, 256), np.float32)
    w = RANDOM.standard_normal((2, 256, 256), np.float32)
    rows = RANDOM.integers(0, 256, 64).astype(np.int32)
    neff = compiled(gathered_product, (h, w, rows), target)
    products = [store for store in stores(neff) if store.dst.dtype.is_float]
    assert products
    assert all(store.dst.contiguous_bytes >= LONG_RUN for store in products)
    (found,) = glia.load(neff)(h, w, rows)
    expected = np.einsum("ech,ehw->ecw", h, w).reshape(-1, 256)[rows] * 2
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
