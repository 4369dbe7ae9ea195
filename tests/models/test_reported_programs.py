"""Programs that users have met, each of them wrong, refused or too large once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import glia
from support.targets import CORES

GENERATOR = np.random.default_rng(0)


def serialized(function: Callable[..., Any], *arrays: Any) -> bytes:
    lowered = jax.jit(function).lower(*arrays)
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return data


def result(function: Callable[..., Any], target: str, *arrays: Any) -> np.ndarray:
    neff = glia.compile(serialized(function, *arrays), target=target, verify=True)
    (found,) = glia.load(neff)(*arrays)
    return np.asarray(found)


@pytest.mark.parametrize("target", CORES)
def test_running_sums_of_bfloat16_round_no_more_than_once_a_term(target: str) -> None:
    x = GENERATOR.standard_normal((70, 90), np.float32).astype(ml_dtypes.bfloat16)
    for axis in (0, 1):
        found = result(lambda x, axis=axis: jnp.cumsum(x, axis), target, x)
        exact = np.cumsum(x.astype(np.float64), axis)
        largest = np.abs(exact).max()
        assert np.abs(found.astype(np.float64) - exact).max() <= x.shape[axis] * 2.0**-9 * largest
        assert np.linalg.norm(found.astype(np.float64) - exact) <= 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("axis", [0, 1])
def test_booleans_are_sorted(axis: int, target: str) -> None:
    x = GENERATOR.random((37, 64)) < 0.4
    found = result(lambda x: jnp.sort(x, axis), target, x)
    np.testing.assert_array_equal(found, np.sort(x, axis))


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_indices_of_64_bits_that_are_clipped_cost_little_more_than_those_of_32(target: str) -> None:
    table = GENERATOR.standard_normal((100, 32), np.float32)

    def lookup(table: Any, at: Any) -> Any:
        return table[jnp.clip(at, 0, 99)]

    counts, values = [], []
    for dtype in (np.int32, np.int64):
        at = np.array([3, -5, 99, 1000, 42], dtype)
        with jax.enable_x64(True):
            neff = glia.compile(serialized(lookup, table, at), target=target)
        counts.append(sum(1 for _ in neff.program.instructions()))
        values.append(glia.load(neff)(table, at)[0])
    np.testing.assert_array_equal(values[0], table[[3, 0, 99, 99, 42]])
    np.testing.assert_array_equal(*values)
    assert counts[1] <= 2 * counts[0]


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_a_strided_1x1_convolution_from_1024_to_2048_channels_fits(target: str) -> None:
    x = GENERATOR.standard_normal((8, 14, 14, 1024), np.float32).astype(ml_dtypes.bfloat16)
    w = GENERATOR.standard_normal((1, 1, 1024, 2048), np.float32).astype(ml_dtypes.bfloat16)

    def convolve(x: Any, w: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=layout)

    found = result(convolve, target, x, w)
    wanted = x[:, ::2, ::2].astype(np.float32) @ w[0, 0].astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), wanted, 0.02, 0.5)


def _attention_layer(x: Any, w: dict[str, Any]) -> Any:
    """A layer of an encoder, x [batch, tokens, width]."""
    heads = lambda y: y.reshape(*x.shape[:2], 12, -1).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = (heads(x @ w[name]) for name in "qkv")
    shares = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.float32(8), -1)
    x = x + (shares @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ w["o"]
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(x @ w["up"], approximate=False) @ w["down"]


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_float32_attention_over_8x384_tokens_fits_at_the_highest_level(target: str) -> None:
    shapes = dict.fromkeys("qkvo", (768, 768)) | {"up": (768, 3072), "down": (3072, 768)}
    w = {
        name: GENERATOR.standard_normal(shape, np.float32) / np.float32(shape[0] ** 0.5)
        for name, shape in shapes.items()
    }
    x = GENERATOR.standard_normal((8, 384, 768), np.float32)
    neff = glia.compile(serialized(_attention_layer, x, w), target=target, optlevel=3)
    (found,) = glia.load(neff)(*jax.tree.leaves((x, w)))
    with jax.default_matmul_precision("highest"):
        wanted = np.asarray(jax.jit(_attention_layer)(x, w))
    assert np.linalg.norm(found - wanted) <= 1e-5 * np.linalg.norm(wanted)
