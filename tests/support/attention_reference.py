"""Attention in NumPy, for the kernels that are held to it."""

from __future__ import annotations

import numpy as np


def scores(q: np.ndarray, k: np.ndarray, causal: bool, window: int) -> np.ndarray:
    """[B, H, S, T] of q [B, H, D, S] and k [B, G, D, T], minus infinity where a mask hides."""
    shared = q.shape[1] // k.shape[1]
    products = np.einsum("bhds,bhdt->bhst", wide(q), np.repeat(wide(k), shared, 1))
    row, key = np.indices(products.shape[2:])
    hidden = (causal & (key > row)) | ((window > 0) & (key <= row - window))
    return np.where(hidden, -np.inf, products * q.shape[2] ** -0.5)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """The results [B, H, S, D] for v [B, G, T, D], and the logarithms of the sums."""
    raised = scores(q, k, causal, window)
    most = raised.max(-1, keepdims=True)
    powers = np.exp(raised - most)
    total = powers.sum(-1, keepdims=True)
    values = np.repeat(wide(v), q.shape[1] // k.shape[1], 1)
    return powers / total @ values, (most + np.log(total))[..., 0]


def wide(x: np.ndarray) -> np.ndarray:
    """The same in float64."""
    return x.astype(np.float64)
