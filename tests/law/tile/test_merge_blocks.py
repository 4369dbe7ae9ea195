"""Axes of blocks and those inside of them become one where runs are long; values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import glia
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import evaluate
from glia.tile.ir import Program
from glia.tile.legal import verify
from support.targets import CORES


def _group_norm(x: Any, gain: Any, groups: int) -> Any:
    parts = x.reshape(x.shape[0], groups, -1)
    centred = parts - parts.mean(-1, keepdims=True)
    scale = lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (centred * scale).reshape(x.shape) * gain[:, None, None]


def _of_images(x: Any, gain: Any) -> Any:
    return jax.nn.silu(_group_norm(x, gain, 16))


def _many_members(x: Any, gain: Any) -> Any:
    """Groups of 96 channels, whose sums are read for copies instead of made again."""
    both = jnp.concatenate([x, jnp.sin(x)], 1)
    return _group_norm(both, jnp.concatenate([gain, gain]), 2)


def _after_a_convolution(x: Any, gain: Any) -> Any:
    w = jnp.cos(jnp.arange(96.0 * 96)).reshape(96, 96, 1, 1) / 96
    y = lax.conv_general_dilated(x, w, (1, 1), "VALID") + x
    return _group_norm(y, gain, 8) + y


def _maxima(x: Any, gain: Any) -> Any:
    """The elements of each group relative to its greatest one."""
    parts = x.reshape(x.shape[0], 12, 8, -1)
    return (parts - parts.max((2, 3), keepdims=True)).reshape(x.shape) + gain[:, None, None]


def _sums_by_channel(x: Any, gain: Any) -> Any:
    """Nothing is summed over the members of a group but its mean."""
    parts = x.reshape(x.shape[0], 12, 8, *x.shape[2:])
    far = parts - parts.mean((2, 3, 4), keepdims=True)
    return (far * far).sum((3, 4)).reshape(x.shape[:2]) + gain


def _scaled_heads(x: Any, gain: Any) -> Any:
    """Heads in groups, each group with what a sum over something else gives."""
    scale = jnp.exp(gain.reshape(24, 4).sum(-1))
    return (x.reshape(x.shape[0], 24, 4, -1) * scale[:, None, None]).reshape(x.shape)


def _channels_last(x: Any, gain: Any) -> Any:
    y = jnp.exp(x.reshape(x.shape[0], -1, 96)[:, ::2]).reshape(x.shape[0], -1, 12, 8)
    return y - y.mean((1, 3), keepdims=True)


def _numbered(x: Any, gain: Any) -> Any:
    """A mask that tells members of a group apart."""
    parts = x.reshape(x.shape[0], 12, 8, -1)
    parts = jnp.where(jnp.arange(8)[:, None] < 5, parts, 0)
    return (parts - parts.sum((2, 3), keepdims=True)).reshape(x.shape)


# By name: a function, and whether it has axes to merge
PROGRAMS: dict[str, tuple[Callable[..., Any], bool]] = {
    "a group norm of images": (_of_images, True),
    "groups of many": (_many_members, True),
    "after a convolution": (_after_a_convolution, True),
    "relative to maxima": (_maxima, True),
    "heads of groups": (_scaled_heads, True),
    "sums by channel": (_sums_by_channel, True),
    "channels innermost": (_channels_last, False),
    "members told apart": (_numbered, False),
}


def _arguments(batch: int = 2) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    x = generator.standard_normal((batch, 96, 9, 15)) + 1
    return [x.astype(np.float32), generator.standard_normal(96).astype(np.float32)]


def _nests(name: str, arguments: list[np.ndarray], until: str) -> Program:
    lowered = jax.jit(PROGRAMS[name][0], keep_unused=True).lower(*arguments)
    options = CompileOptions(auto_cast="none")
    found: Program = run_pipeline(read_module(lowered), options, stop_after=until)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("batch", [1, 2])
def test_axes_are_merged_where_long_runs_are_read_by_blocks(name: str, batch: int) -> None:
    arguments = _arguments(batch)
    nests = _nests(name, arguments, "merge_blocks")
    verify(nests)
    before = _nests(name, arguments, "merge_rows")
    assert (nests.body != before.body) == PROGRAMS[name][1]
    (found,) = evaluate(nests, arguments)
    wanted = PROGRAMS[name][0](*arguments)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


def test_copies_are_made_where_their_original_is_and_read_instead() -> None:
    """What is copied for each element and read no more is not made."""
    before = _nests("a group norm of images", _arguments(), "merge_rows")
    after = _nests("a group norm of images", _arguments(), "merge_blocks")
    gone = before.buffers.keys() - after.buffers.keys()
    assert {f"{name}.each" for name in gone} <= after.buffers.keys()
    assert len(gone) == 2
    assert not any(name in gone for nest in after.nests() for name in map(_buffer, nest.accesses))


def _buffer(access: Any) -> str:
    return str(access.buffer)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_merged_blocks_keep_every_value(name: str, target: str) -> None:
    arguments = _arguments()
    lowered = jax.jit(PROGRAMS[name][0], keep_unused=True).lower(*arguments)
    neff = glia.compile(lowered, target=target, verify=True, auto_cast="none")
    (found,) = glia.load(neff)(*arguments)
    np.testing.assert_allclose(found, PROGRAMS[name][0](*arguments), rtol=1e-3, atol=1e-4)


def test_an_infinity_stays_within_its_group() -> None:
    x, gain = _arguments()
    x[0, 10, 3, 3] = np.inf
    neff = glia.compile(jax.jit(_of_images).lower(x, gain), auto_cast="none")
    (found,) = glia.load(neff)(x, gain)
    wanted = _of_images(x, gain)
    assert np.isnan(wanted[0, 6:12]).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
