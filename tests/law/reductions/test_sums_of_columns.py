"""Sums of columns, each times one value in every partition, on all engines that can add."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from ml_dtypes import bfloat16

import glia
from support.targets import CORES


def filtered(x: Any, w: Any, stride: int = 1, dilation: int = 1) -> Any:
    """A filter [C * m, 1, a, b] for each channel of images [N, C, H, W], m results a channel."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", rhs_dilation=(dilation, dilation),
        feature_group_count=x.shape[1],
    )  # fmt: skip


def computed_filters(x: Any, w: Any) -> Any:
    """The filters are what the program itself has computed."""
    return filtered(x, jnp.tanh(w))


def with_epilogue(x: Any, w: Any) -> Any:
    """The sums are read by more work."""
    return jnp.maximum(filtered(x, w) + x, 0)


def strided(x: Any, w: Any) -> Any:
    """Windows that step by two."""
    return filtered(x, w, 2)


def dilated(x: Any, w: Any) -> Any:
    """Windows with gaps."""
    return filtered(x, w, 1, 2)


def wide(x: Any, w: Any) -> Any:
    """Windows of 49 elements."""
    return filtered(x, jnp.tile(w, (1, 1, 3, 3))[:, :, :7, :7] / 4)


def weighted(x: Any, w: Any) -> Any:
    """A sum over an axis that is no window."""
    return jnp.einsum("nchw,ch->cnw", x, w[:, 0, 0, :1] * jnp.arange(x.shape[2]))


FUNCTIONS = (filtered, computed_filters, with_epilogue, strided, dilated, wide, weighted)


def compiled(function: Any, x: Any, w: Any, target: str) -> glia.Neff:
    """The function for these arguments."""
    lowered = jax.jit(function).lower(x, w)
    return glia.compile(lowered, target=target, auto_cast="none", verify=True)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sums_are_right(function: Any, target: str, dtype: Any) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 24, 15, 13), np.float32).astype(dtype)
    w = random.standard_normal((24, 1, 3, 3), np.float32).astype(dtype)
    neff = compiled(function, x, w, target)
    assert not [note for note in neff.notes if "slower way" in note]
    (found,) = glia.load(neff)(x, w)
    wanted = np.asarray(function(x.astype(np.float32), w.astype(np.float32)))
    scale = np.abs(wanted).max()
    error = 1e-5 if dtype is np.float32 else 2e-2
    np.testing.assert_allclose(found.astype(np.float32) / scale, wanted / scale, atol=error)


@pytest.mark.parametrize("target", CORES)
def test_an_infinity_stays_in_its_channel(target: str) -> None:
    x, w = np.ones((1, 24, 15, 13), np.float32), np.ones((24, 1, 3, 3), np.float32)
    x[0, 3, 7, 7] = np.inf
    (found,) = glia.load(compiled(filtered, x, w, target))(x, w)
    assert np.isinf(found).sum() == 9
    assert np.isinf(found[0, 3]).sum() == 9
    assert not np.isnan(found).any()


@pytest.mark.parametrize("target", CORES)
def test_filters_take_every_engine_that_adds(target: str) -> None:
    x = jax.ShapeDtypeStruct((4, 128, 32, 32), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((128, 1, 3, 3), jnp.bfloat16)
    neff = compiled(filtered, x, w, target)
    timing = glia.load(neff).profile().timing
    assert "tensor_reduce" not in {row.opcode for row in timing.opcodes}
    assert timing.busy_ns["vector"] > 0.5 * (timing.end_ns - timing.begin_ns)
