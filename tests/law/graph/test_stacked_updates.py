"""Caches of layers that a loop takes from a stack, changes, and stacks again: changed in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import glia
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.ir import Nest, Program, While

TARGETS = ("trn1", "trn2", "trn3")
HEADS, WIDTH = 2, 16


def decoder(*, reads_before: bool = False, is_reversed: bool = False) -> Any:
    """Layers of attention to a cache, one position of which is new."""

    def model(x, weights, keys, position):  # type: ignore[no-untyped-def]
        def layer(x, own):  # type: ignore[no-untyped-def]
            w, cache = own
            new = jnp.tanh(x @ w).reshape(HEADS, 1, WIDTH)
            changed = lax.dynamic_update_slice(cache, new, (0, position, 0))
            scores = jnp.einsum("hd,hsd->hs", x.reshape(HEADS, WIDTH), changed)
            mixed = jnp.einsum("hs,hsd->hd", jax.nn.softmax(scores), changed)
            x = x + mixed.reshape(1, HEADS * WIDTH)
            if reads_before:
                x = x + jnp.mean(cache, 1).reshape(1, HEADS * WIDTH)
            return x, changed

        return lax.scan(layer, x, (weights, keys), reverse=is_reversed)

    return model


def arrays_of(layers: int, positions: int, position: int, seed: int = 0) -> list[Any]:
    draw = np.random.default_rng(seed).standard_normal
    width = HEADS * WIDTH
    shapes = (1, width), (layers, width, width), (layers, HEADS, positions, WIDTH)
    return [(0.3 * draw(s)).astype(np.float32) for s in shapes] + [np.int32(position)]


@settings(max_examples=30, deadline=None)
@given(
    layers=st.integers(2, 5),
    positions=st.sampled_from((1, 8, 33, 130)),
    position=st.integers(-3, 140),
    reads_before=st.booleans(),
    is_reversed=st.booleans(),
    is_donated=st.booleans(),
    target=st.sampled_from(TARGETS),
    seed=st.integers(0, 99),
)
def test_caches_of_layers_in_a_loop_are_what_jax_gives(
    layers: int, positions: int, position: int, reads_before: bool, is_reversed: bool,
    is_donated: bool, target: str, seed: int,
) -> None:  # fmt: skip
    arrays = arrays_of(layers, positions, position, seed)
    model = decoder(reads_before=reads_before, is_reversed=is_reversed)
    with jax.default_matmul_precision("highest"):
        expected = jax.tree.leaves(jax.jit(model)(*arrays))
    donated = (2,) if is_donated else ()
    lowered = jax.jit(model, donate_argnums=donated).lower(*arrays)
    found = glia.load(glia.compile(lowered, target=target, auto_cast="none"))(*arrays)
    for ours, theirs in zip(jax.tree.leaves(found), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_a_donated_stack_is_changed_where_it_lies(target: str) -> None:
    arrays = arrays_of(4, 256, 7)
    lowered = jax.jit(decoder(), donate_argnums=(2,)).lower(*arrays)
    options = CompileOptions(target, auto_cast="none")
    made = run_pipeline(read_module(lowered), options, stop_after="update_in_place")
    assert isinstance(made, Program)
    (loop,) = [each for each in made.body if isinstance(each, While)]
    whole = made.buffers[made.outputs[1]].elements
    rows = {n for n, each in made.buffers.items() if each.elements in (whole, whole // 4)}
    nests = [each for each in (*made.body, *loop.body) if isinstance(each, Nest)]
    written = [each for each in nests if each.target.buffer in rows]
    assert [bool(each.target.dynamic) for each in written] == [True]  # the new position alone
    assert sum(axis.extent for axis in written[0].axes) < 256


def test_a_stack_of_which_the_loop_leaves_rows_as_they_are_is_not_changed_in_place() -> None:
    def model(x, keys):  # type: ignore[no-untyped-def]
        def step(i, state):  # type: ignore[no-untyped-def]
            row = lax.dynamic_index_in_dim(keys, i, keepdims=False)
            row = lax.dynamic_update_slice(row, x, (2,))
            return lax.dynamic_update_index_in_dim(state, row, i, 0)

        return lax.fori_loop(0, 3, step, jnp.zeros_like(keys))  # of five rows

    x, keys = np.ones(1, np.float32), np.full((5, 8), 2, np.float32)
    (found,) = jax.tree.leaves(glia.load(glia.compile(jax.jit(model).lower(x, keys)))(x, keys))
    np.testing.assert_array_equal(found, np.asarray(jax.jit(model)(x, keys)))
    assert not found[3:].any()
