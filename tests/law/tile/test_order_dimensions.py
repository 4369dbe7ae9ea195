"""Dimensions of what goes through HBM are in the order in which transfers are fastest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import glia
from glia.isa.instructions.dma import DmaCopy
from glia.tile.ir import Program
from glia.tile.passes import choose_layouts, order_dimensions
from support.targets import CORES


def heads(x: Any, w: Any) -> Any:
    """Scores of attention: both operands of a product are results with heads as a dimension."""
    q, k = (jnp.einsum("bsd,hde->bhse", x, each) for each in (w, w + 1))
    return jnp.einsum("bhse,bhte->bhst", q, k)


def transposed(x: Any, w: Any) -> Any:
    """What is read in another order than it is written, by several nests."""
    y = jnp.tanh(jnp.einsum("bsd,hde->bshe", x, w)).transpose(2, 0, 3, 1)
    return y / y.max(2, keepdims=True), y.sum(3)


def windows(x: Any, w: Any) -> Any:
    """A convolution between other work."""
    layout = ("NWC", "OIW", "NWC")
    y = lax.conv_general_dilated(
        jnp.tanh(x), w.transpose(2, 1, 0), (1,), "SAME", dimension_numbers=layout
    )
    return y - y.mean(-1, keepdims=True)


def looped(x: Any, w: Any) -> Any:
    """A loop whose states are buffers."""
    return lax.fori_loop(0, 2, lambda _, y: jnp.einsum("bsd,de->bse", y, w[0, :, :1]) + y, x)


def updated(x: Any, w: Any) -> Any:
    """An update at a run-time position."""
    y = jnp.einsum("bsd,hde->bshe", x, w)
    start = jnp.int32(jnp.abs(x[0, 0, 0]))
    return lax.dynamic_update_slice_in_dim(y, y[:, :1] * 2, start, 1)


def looked_up(x: Any, w: Any) -> Any:
    """Rows and columns that computed indices name, from a table and back into one."""
    rows, columns = ((jnp.abs(each[0]) * 9).astype(jnp.int32).T % 20 for each in (x, w))
    y = jnp.tanh(x)[1][rows[:7, :4], columns[:7, :4]]
    return y, jnp.zeros((20, 20)).at[columns[:4, :7].T, rows[:7, :4]].add(y)


FUNCTIONS = (heads, transposed, windows, looped, updated, looked_up)


def compiled(function: Any, arguments: Any, target: str) -> tuple[glia.Neff, Program, Program]:
    """The function for these arguments, and its tile program before and after."""
    seen: dict[str, Program] = {}

    def note(snapshot: Any) -> None:
        seen[snapshot.name] = snapshot.ir

    lowered = jax.jit(function).lower(*arguments)
    neff = glia.compile(lowered, target=target, auto_cast="none", verify=True, observer=note)
    return neff, seen["choose_layouts"], seen["order_dimensions"]


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_order_changes_no_value(
    function: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_dimensions, "LEAST_GAIN", 0)
    monkeypatch.setattr(choose_layouts, "LARGEST_SHARE", 0)
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 21, 40), np.float32)
    w = random.standard_normal((3, 40, 24), np.float32) / 6
    neff, before, after = compiled(function, (x, w), target)
    assert after.buffers != before.buffers or function is looped
    wanted = jax.tree.leaves(function(x, w))
    for result, expected in zip(glia.load(neff)(x, w), wanted, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", CORES)
def test_what_has_its_rows_innermost_is_turned_once(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that both nests have on the partitions are written and read in runs."""
    monkeypatch.setattr(choose_layouts, "LARGEST_SHARE", 0)
    x = jax.ShapeDtypeStruct((4, 197, 256), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((4, 256, 64), jnp.bfloat16)
    neff, _, _ = compiled(heads, (x, w), target)
    ends = ("input", "output")
    moved = [
        i for i in neff.programs[0].instructions()
        if i.mnemonic() == "dma_copy"
        and not any(i.src.tile.name.startswith(e) or i.dst.tile.name.startswith(e) for e in ends)
    ]  # fmt: skip
    assert moved
    assert min(min(i.src.contiguous_bytes, i.dst.contiguous_bytes) for i in moved) >= 64


@pytest.mark.parametrize("target", CORES)
def test_images_whose_channels_lie_on_rows_beside_a_window_are_not_moved_by_elements(
    target: str,
) -> None:
    images, filters = np.zeros((1, 96, 96, 32), np.float32), np.zeros((3, 3, 32, 32), np.float32)

    def convolved(x: Any, w: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

    neff, _, _ = compiled(convolved, (images, filters), target)
    transfers = [each for each in neff.program.instructions() if isinstance(each, DmaCopy)]
    assert transfers
    for each in transfers:
        assert each.moved_bytes() >= 32 * each.descriptors(), each
