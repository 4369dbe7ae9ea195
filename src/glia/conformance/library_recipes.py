"""Inputs and expected results for kernels of the public NKI Library."""

from __future__ import annotations

import numpy as np

from glia.conformance.tutorial_recipes import (
    BFLOAT16,
    RECIPES,
    Array,
    Trial,
    floats,
    recipe,
    rotary_embedding,
    softmax,
)

__all__ = ["RECIPES"]  # those of the tutorials with those of the library


def _narrow(*arrays: Array) -> tuple[Array, ...]:
    return tuple(each.astype(BFLOAT16) for each in arrays)


@recipe("cumsum")
def _cumsum(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 200, 3000)
    return Trial((x,), (np.cumsum(x, axis=-1),))


@recipe("RoPE")
def _turned_halves(rng: np.random.Generator, file: str) -> tuple[Trial, ...]:
    x, cos, sin = floats(rng, 128, 2, 4, 64), floats(rng, 64, 2, 64), floats(rng, 64, 2, 64)
    low, high, c, s = x[:64], x[64:], cos[:, :, None], sin[:, :, None]
    expected = np.concatenate([low * c - high * s, high * c + low * s])
    both = Trial((x, cos, sin), (expected,), (2,), {"lnc_shard": True})
    return Trial((x, cos, sin), (expected,)), both


@recipe("rope_hf")
def _turned_queries_and_keys(rng: np.random.Generator, file: str) -> Trial:
    q, k = floats(rng, 1, 4, 256, 64), floats(rng, 1, 2, 256, 64)
    cos, sin = floats(rng, 1, 256, 64), floats(rng, 1, 256, 64)
    expected = rotary_embedding(q, cos, sin), rotary_embedding(k, cos, sin)
    return Trial((q, k, q * 0, k * 0, cos, sin), expected)


@recipe("cascaded_max")
def _maximum(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 8, 20_000)
    return Trial((x,), (x.max(axis=-1, keepdims=True), x.argmax(axis=-1, keepdims=True)))


@recipe("find_nonzero_indices")
def _nonzero(rng: np.random.Generator, file: str) -> Trial:
    x = (rng.random((512, 16)) > 0.7).astype(np.float32)
    found = np.full((16, 512), -1.0)
    for column in range(16):
        places = np.flatnonzero(x[:, column])
        found[column, : len(places)] = places
    return Trial((x,), (found, x.sum(axis=0)), (2,))


@recipe("attention_cte")
def _library_attention(rng: np.random.Generator, file: str) -> tuple[Trial, ...]:
    q, k, v = (floats(rng, 2, *shape) for shape in ((512, 64), (64, 512), (512, 64)))
    scores = q @ k
    seen = np.where(np.tril(np.ones((512, 512), bool)), scores, -1e9)
    given = (*_narrow(q, k, v), 1.0)
    return (
        Trial((*given, True), (softmax(seen) @ v,), tolerance=1e-2),
        Trial((*given, True), (softmax(seen) @ v,), (2,), tolerance=1e-2),
        Trial((*given, False), (softmax(scores) @ v,), tolerance=1e-2),
    )


@recipe("output_projection_cte")
def _projected_heads(rng: np.random.Generator, file: str) -> Trial:
    heads, weight, bias = floats(rng, 1, 4, 64, 512), floats(rng, 256, 512), floats(rng, 1, 512)
    expected = np.einsum("bnds,ndh->bsh", heads, weight.reshape(4, 64, 512)) + bias
    return Trial(_narrow(heads, weight, bias), (expected,), tolerance=4e-2)


@recipe("output_projection_tkg")
def _projected_tokens(rng: np.random.Generator, file: str) -> Trial:
    heads, weight, bias = floats(rng, 64, 2, 4, 4), floats(rng, 256, 512), floats(rng, 1, 512)
    expected = np.einsum("dbns,ndh->bsh", heads, weight.reshape(4, 64, 512)) + bias
    return Trial(_narrow(heads, weight, bias), (expected.reshape(8, 512),), tolerance=4e-2)


@recipe("qkv")
def _queries_keys_values(rng: np.random.Generator, file: str) -> tuple[Trial, ...]:
    weight = floats(rng, 512, 384)
    trials = []
    for shape in ((1, 512, 512), (2, 1, 512)):  # a prompt, and tokens one by one
        x = floats(rng, *shape)
        trials.append(Trial(_narrow(x, weight), (x @ weight,), tolerance=6e-2))
    return tuple(trials)


@recipe("depthwise_conv1d_implicit_gemm")
def _depthwise(rng: np.random.Generator, file: str) -> Trial:
    x, weight = floats(rng, 2, 128, 1, 64), floats(rng, 128, 1, 1, 4)
    windows = np.lib.stride_tricks.sliding_window_view(x[:, :, 0], 4, axis=-1)
    expected = np.einsum("ncqs,cs->ncq", windows, weight[:, 0, 0])[:, :, None]
    return Trial((x, weight), (expected,), named={"feature_group_count": 128})


@recipe("conv1d")
def _convolution(rng: np.random.Generator, file: str) -> Trial:
    x, weight = floats(rng, 1, 64, 128), floats(rng, 3, 64, 96)
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=-1)
    return Trial((x, weight), (np.einsum("nclk,kco->nol", windows, weight),))


@recipe("cross_entropy_forward")
def _cross_entropy(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 128, 4096)
    targets = rng.integers(0, 4096, 128).astype(np.int32)
    lse = np.log(np.exp(x).sum(axis=-1))
    loss = lse - x[np.arange(128), targets]
    named = {"chunk_size": 2048, "dtype": "float32"}
    return Trial((x, targets), (loss, lse), (2,), named)
