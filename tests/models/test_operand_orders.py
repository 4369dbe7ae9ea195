"""Products whose operands and results have unusual orders of axes are not moved one by one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.arch import get_target

# (einsum, extents by axis, dtype): each took 30 to 550 times its bound once
PRODUCTS: dict[str, tuple[dict[str, int], Any]] = {
    "eth,ehw,te->tw": ({"e": 4, "t": 128, "h": 1536, "w": 768}, np.float32),
    "eth,ehw,te->wt": ({"e": 8, "t": 256, "h": 1024, "w": 512}, jnp.bfloat16),
    "bca,ae->eac": ({"a": 384, "b": 32, "c": 12, "e": 1024}, np.float32),
    "d,cba->bad": ({"a": 128, "b": 200, "c": 8, "d": 96}, jnp.bfloat16),
    "ead,c,b->edcb": ({"a": 32, "b": 1024, "c": 4, "d": 16, "e": 96}, jnp.bfloat16),
    "bce,cda->adcb": ({"a": 768, "b": 4, "c": 2, "d": 768, "e": 16}, jnp.bfloat16),
    "cda,cbd,cda->bd": ({"a": 3, "b": 1024, "c": 12, "d": 384}, jnp.bfloat16),
    "cba,ca->ab": ({"a": 128, "b": 384, "c": 16}, jnp.bfloat16),
    "ba,adb->db": ({"a": 200, "b": 64, "c": 1, "d": 512}, jnp.bfloat16),
    "ac,cba->ab": ({"a": 96, "b": 512, "c": 128}, jnp.bfloat16),
}
LAUNCH_US = 5.0
MOST = 10.0  # times the bound: operands once through all DMA engines, products at the PE's peak


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("text", PRODUCTS)
def test_a_product_is_within_reach_of_its_bound(text: str, target: str) -> None:
    extents, dtype = PRODUCTS[text]
    operands = text.partition("->")[0].split(",")
    random = np.random.default_rng(0)
    arrays = [
        random.standard_normal([extents[axis] for axis in axes]).astype(np.dtype(dtype))
        for axes in operands
    ]
    lowered = jax.jit(lambda *given: jnp.einsum(text, *given)).lower(*arrays)
    neff = glia.compile(lowered, target=target)
    model, arch = glia.load(neff), get_target(target).arch
    moved = sum(a.nbytes for a in arrays) + sum(
        int(np.prod(b.shape)) * b.dtype.bytes for b in model.outputs
    )
    moved_us = moved / (arch.dma_bytes_per_ns * arch.dma_engines) / 1000
    passes = arch.tensor_passes.get(np.dtype(dtype).name.replace("bfloat16", "bf16"), 4.0)
    rate = 2 * 128 * 128 * arch.clocks_ghz["tensor"] * 1000 / max(1.0, passes)
    bound = max(moved_us, neff.statistics["flops"] / rate) + LAUNCH_US
    assert model.profile(*arrays).latency_us <= MOST * bound
    found = model(*arrays)[0].astype(np.float64)
    wanted = np.einsum(text, *(each.astype(np.float64) for each in arrays))
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert error < (1e-2 if dtype is jnp.bfloat16 else 1e-5)
