"""Batches that a product sees as rows of two axes have two axes in all nests; values stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.legal import verify
from support.targets import CORES

Arrays = tuple[np.ndarray, ...]
RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 20, 24), np.float32)
W = RNG.standard_normal((24, 24), np.float32) / 5


def attention(x: Any, w: Any) -> Any:
    """Attention with one batch of images and heads, as frameworks write it."""
    heads = (x @ w).reshape(2, 20, 3, 8).transpose(0, 2, 1, 3).reshape(6, 20, 8)
    shares = jax.nn.softmax(heads @ heads.transpose(0, 2, 1), axis=-1)
    mixed = (shares @ heads).reshape(2, 3, 20, 8).transpose(0, 2, 1, 3)
    return mixed.reshape(2, 20, 24)


def numbered(x: Any, w: Any) -> Any:
    """A nest sweeps the batch by an axis that is shifted, which cannot be in rows."""
    heads = (x @ w).reshape(2, 20, 3, 8).transpose(0, 2, 1, 3).reshape(6, 20, 8)
    scores = heads @ heads.transpose(0, 2, 1)
    scores = scores + jnp.roll(scores, 1, axis=0)
    mixed = (scores @ heads).reshape(2, 3, 20, 8).transpose(0, 2, 1, 3)
    return mixed.reshape(2, 20, 24)


def tile_program(function: Any, stop_after: str) -> Any:
    lowered = jax.jit(function, keep_unused=True).lower(X, W)
    options = CompileOptions(auto_cast="none")
    return run_pipeline(read_module(lowered), options, stop_after=stop_after)


def test_every_nest_has_an_axis_of_images_and_one_of_heads() -> None:
    before = tile_program(attention, "expand_scalars")
    assert any(6 in buffer.shape for buffer in before.buffers.values())
    after = tile_program(attention, "split_batches")
    assert not any(6 in buffer.shape for buffer in after.buffers.values())
    assert not any(6 in nest.extents.values() for nest in after.nests())


@pytest.mark.parametrize("function", [attention, numbered])
def test_values_stay(function: Any) -> None:
    program = tile_program(function, "split_batches")
    verify(program)
    (found,) = evaluate(program, (X, W))
    np.testing.assert_allclose(found, function(X, W), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("function", [attention, numbered])
def test_batches_are_computed_on_every_target(function: Any, target: str) -> None:
    lowered = jax.jit(function).lower(X, W)
    neff = glia.compile(lowered, target=target, auto_cast="none", verify=True, no_cache=True)
    (found,) = glia.load(neff)(X, W)
    np.testing.assert_allclose(found, function(X, W), rtol=2e-4, atol=2e-4)
