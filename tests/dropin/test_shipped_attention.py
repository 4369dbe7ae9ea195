"""Attention under the names of Beta 1, as public callers launch it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia.nki.beta1 as nki
import glia.nki.beta1.language as nl
from glia.nki.beta1.errors import UnsupportedHere
from glia_dropin.kernels.attention import (
    FlashConfig,
    allocated_fused_self_attn_for_SD_small_head_size,
    attention_isa_kernel,
    flash_attn_bwd,
    flash_fwd,
    fused_self_attn_for_SD_small_head_size,
)
from support.kernel_checks import assert_close, normal


def _attention(q, k, v, scale: float, causal: bool):
    """Of q [B, H, D, S], k [B, G, D, T] and v [B, G, D, T], as [B, H, D, S], and lse."""
    shared = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(each, shared, axis=1) for each in (k, v))
    scores = scale * jnp.einsum("bhds,bhdt->bhst", q, k, precision="highest")
    if causal:
        seen = np.tril(np.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, -1e9)
    lse = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - lse[..., None])
    return jnp.einsum("bhst,bhdt->bhds", weights, v, precision="highest"), lse


@pytest.mark.parametrize("grid", [(2, 2), (2, nl.nc(2) * 1), ()])
def test_forward_and_backward_on_a_grid_of_heads(grid: tuple[int, ...]) -> None:
    q, k, v, gradient = (normal(2, heads, 32, 256) for heads in (4, 2, 2, 4))
    launched = flash_fwd[grid] if grid else flash_fwd
    out, lse = launched(q, k, v.swapaxes(2, 3).copy(), None)
    (expected, sums), back = jax.vjp(lambda *given: _attention(*given, 32**-0.5, True), q, k, v)
    assert_close(out.swapaxes(2, 3), np.asarray(expected), 1e-5)
    assert_close(lse, np.asarray(sums).reshape(2, 4, 2, 128).swapaxes(2, 3), 1e-5)
    launched = flash_attn_bwd[grid] if grid else flash_attn_bwd
    result = np.ascontiguousarray(out.swapaxes(2, 3))
    found = launched(q, k, v, result, gradient, lse, None, use_causal_mask=True)
    for each, other in zip(found, back((gradient, np.zeros_like(sums))), strict=True):
        assert_close(each, np.asarray(other), 1e-4)


def test_values_may_come_transposed_and_without_sums() -> None:
    q, k, v = (normal(1, 2, 64, 128) for _ in range(3))
    config = FlashConfig(should_transpose_v=True, training=False)
    found = flash_fwd[1, 2](q, k, v, None, use_causal_mask=False, softmax_scale=1.0, config=config)
    expected = np.asarray(_attention(q, k, v, 1.0, False)[0])
    assert_close(found.swapaxes(2, 3), expected, 1e-5)


def test_small_heads_of_stable_diffusion() -> None:
    q, k, v = (normal(2, *shape) for shape in ((64, 256), (256, 64), (256, 64)))
    found = fused_self_attn_for_SD_small_head_size[2](q, k, v)
    heads = (each[:, None] for each in (q, k.swapaxes(1, 2), v.swapaxes(1, 2)))
    expected = np.asarray(_attention(*heads, 0.125, False)[0])[:, 0]
    assert_close(found.swapaxes(1, 2), expected, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_small_heads_of_stable_diffusion_with_keys_and_results_turned(causal: bool) -> None:
    q, k, v = (normal(2, 64, 256) for _ in range(3))
    given = v.swapaxes(1, 2).copy()
    launched = allocated_fused_self_attn_for_SD_small_head_size[2]
    found = launched(q, k, given, use_causal_mask=causal)
    expected = _attention(*(each[:, None] for each in (q, k, v)), 0.125, causal)[0]
    assert_close(found, np.asarray(expected)[:, 0], 1e-5)


@pytest.mark.parametrize("name", ["", "Causal"])
@pytest.mark.parametrize("heads", [1, 3])
def test_the_kernel_of_inference_writes_its_parameter(name: str, heads: int) -> None:
    q, k, v = (normal(heads, 32, 256) for _ in range(3))
    out = np.zeros((heads, 32, 256), np.float32)
    call = nki.trace(attention_isa_kernel)[(nl.nc(2),)]
    given = v.swapaxes(1, 2).copy()
    kernel_name = f"{name}AttentionMMSoftmaxMMWithoutSwap"
    call(q=q, k=k, v=given, scale=1.0, out=out, kernel_name=kernel_name)
    expected = _attention(*(each[None] for each in (q, k, v)), 1.0, bool(name))[0]
    assert_close(out, np.asarray(expected)[0], 1e-5)


def test_what_the_kernels_do_not_compute_is_refused() -> None:
    q = normal(1, 1, 32, 128)
    with pytest.raises(UnsupportedHere, match="dropout in flash_fwd"):
        flash_fwd[1, 1](q, q, q.swapaxes(2, 3).copy(), None, dropout_p=0.5)
    with pytest.raises(UnsupportedHere, match="a sink in flash_attn_bwd"):
        flash_attn_bwd[1, 1](q, q, q, q, q, normal(1, 1, 128, 1), None, sinks=normal(1, 1))
    with pytest.raises(UnsupportedHere, match="sliding_window in attention_isa_kernel"):
        nki.trace(attention_isa_kernel)(q[0], q[0], q[0], 1.0, q[0], sliding_window=8)
