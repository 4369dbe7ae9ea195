"""Convolutions of images with innermost channels: the same values, and no transfers of elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import glia
from glia.tile.ir import Load, Program
from glia.tile.passes import put_channels_first
from support.targets import CORES

LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolve(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    """A convolution of channels-last images."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=LAYOUT, feature_group_count=groups
    )


def chain(x: Any, w: Any) -> Any:
    """Two convolutions, and what lies between them."""
    return convolve(jnp.maximum(convolve(x, w), 0) + x, w)


def normalised(x: Any, w: Any) -> Any:
    """A convolution of what is normalised over its channels, and the other way round."""
    y = convolve(x, w)
    y = y - y.mean(-1, keepdims=True)
    return convolve(y, w)


def depthwise(x: Any, w: Any) -> Any:
    """A filter for each channel."""
    return convolve(x, w[:, :, :1, :], groups=x.shape[-1])


def repeated(x: Any, w: Any) -> Any:
    """Convolutions in a loop."""
    return lax.fori_loop(0, 2, lambda _, y: jnp.tanh(convolve(y, w)), x)


def shifted(x: Any, w: Any) -> Any:
    """An image that a run-time offset is taken of as well."""
    y = convolve(x, w)
    start = jnp.int32(jnp.abs(x[0, 0, 0, 0]))
    return convolve(y, w, 2)[:, :2] + lax.dynamic_slice_in_dim(y, start, 2, 1)[:, :, ::2]


def beside(x: Any, w: Any) -> Any:
    """Convolutions that write columns of one result, beside what another nest writes of it."""
    return jnp.concatenate([convolve(x, w), jnp.tanh(x[:, :, 1:4]), convolve(x + 1, w)], 2)


FUNCTIONS = (convolve, chain, normalised, depthwise, repeated, shifted, beside)


def compiled(function: Any, shapes: Any, target: str) -> tuple[glia.Neff, Program]:
    """The function for arguments of these shapes, and its tile program before schedules."""
    seen: list[Program] = []

    def note(snapshot: Any) -> None:
        if snapshot.name == "put_channels_first":
            seen.append(snapshot.ir)

    lowered = jax.jit(function).lower(*shapes)
    neff = glia.compile(lowered, target=target, auto_cast="none", verify=True, observer=note)
    return neff, seen[-1]


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_order_of_dimensions_changes_no_value(
    function: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_channels_first, "_least_elements", lambda _: 1)
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 8, 6, 10), np.float32)
    w = random.standard_normal((3, 3, 10, 10), np.float32) / 10
    neff, program = compiled(function, (x, w), target)
    assert any(each.shape[:2] == (2, 10) for each in program.buffers.values())
    (found,) = glia.load(neff)(x, w)
    np.testing.assert_allclose(found, function(x, w), rtol=1e-4, atol=1e-5)


def test_what_is_between_convolutions_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_channels_first, "_least_elements", lambda _: 1)
    shapes = np.zeros((2, 8, 6, 10), np.float32), np.zeros((3, 3, 10, 10), np.float32)
    _, program = compiled(chain, shapes, "trn2")
    copies = [nest for nest in program.nests() if isinstance(nest.body, Load)]
    ends = {*program.inputs, *program.outputs}
    assert len(copies) == 2
    assert all({each.target.buffer, each.body.buffer} & ends for each in copies)


def test_channels_first_stays_as_it_is() -> None:
    def plain(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME")

    x, w = np.zeros((1, 64, 32, 32), np.float32), np.zeros((64, 64, 3, 3), np.float32)
    _, program = compiled(plain, (x, w), "trn2")
    assert len(list(program.nests())) == 1


@pytest.mark.parametrize("target", CORES)
def test_large_images_move_in_runs(target: str) -> None:
    shape = jax.ShapeDtypeStruct((1, 32, 32, 64), jnp.bfloat16)
    window = jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.bfloat16)
    neff, _ = compiled(convolve, (shape, window), target)
    moved = [i for i in neff.programs[0].instructions() if i.mnemonic() == "dma_copy"]
    assert moved
    assert min(min(i.src.contiguous_bytes, i.dst.contiguous_bytes) for i in moved) >= 32


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("extents", [(32, 32), (24, 40), (40, 24)])
def test_what_is_transposed_on_its_way_lands_in_runs(extents: tuple[int, int], target: str) -> None:
    shape = jax.ShapeDtypeStruct((2, *extents, 256), jnp.bfloat16)
    window = jax.ShapeDtypeStruct((1, 1, 256, 128), jnp.bfloat16)
    neff, _ = compiled(convolve, (shape, window), target)
    turned = [i for i in neff.programs[0].instructions() if i.mnemonic() == "dma_transpose"]
    assert turned
    assert {each.dst.dims[-1][0] for each in turned} == {1}
