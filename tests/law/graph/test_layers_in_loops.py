"""Layers whose weights a loop picks by its counter: products read them where they lie."""

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
from glia.alternatives import latency_us
from glia.frontend.registry import read_module
from glia.machine.ir import Program as MachineProgram
from glia.machine.ir import While as MachineWhile
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.ir import Nest, Program, While

TARGETS = ("trn1", "trn2", "trn3")


def _silu(x, up, down):  # type: ignore[no-untyped-def]
    return jax.nn.silu(x @ up) @ down


def _turned(x, up, down):  # type: ignore[no-untyped-def]
    return jnp.tanh(x @ down.T) @ up.T


def _normalised(x, up, down):  # type: ignore[no-untyped-def]
    scale = lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)
    return jnp.maximum((x * scale) @ up, 0) @ down


def _with_other_readers(x, up, down):  # type: ignore[no-untyped-def]
    return (x @ up) @ (down * 2) + jnp.max(up, 1)


LAYERS = (_silu, _turned, _normalised, _with_other_readers)


def in_a_loop(layer: Any, *, is_reversed: bool = False, unroll: bool = False) -> Any:
    def model(x, ups, downs):  # type: ignore[no-untyped-def]
        def step(x, weights):  # type: ignore[no-untyped-def]
            x = x + layer(x, *weights)
            return x, x[0]

        if unroll:
            for up, down in zip(ups, downs, strict=True):
                x, _ = step(x, (up, down))
            return x
        return lax.scan(step, x, (ups, downs), reverse=is_reversed)

    return model


def weights(layers: int, width: int, hidden: int, rows: int, seed: int = 0) -> list[Any]:
    draw = np.random.default_rng(seed).standard_normal
    shapes = (rows, width), (layers, width, hidden), (layers, hidden, width)
    scales = 1.0, 0.5 * width**-0.5, 0.5 * hidden**-0.5
    return [(draw(s) * scale).astype(np.float32) for s, scale in zip(shapes, scales, strict=True)]


@settings(max_examples=40, deadline=None)
@given(
    layer=st.sampled_from(LAYERS),
    layers=st.integers(2, 5),
    rows=st.sampled_from((1, 2, 7, 64, 128, 200, 257)),
    width=st.sampled_from((16, 100, 128, 256)),
    hidden=st.sampled_from((32, 96, 128, 640)),
    is_reversed=st.booleans(),
    target=st.sampled_from(TARGETS),
    optlevel=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_layers_in_a_loop_give_what_jax_gives(
    layer: Any, layers: int, rows: int, width: int, hidden: int, is_reversed: bool, target: str,
    optlevel: int, seed: int,
) -> None:  # fmt: skip
    arrays = weights(layers, width, hidden, rows, seed)
    model = in_a_loop(layer, is_reversed=is_reversed)
    lowered = jax.jit(model).lower(*arrays)
    neff = glia.compile(lowered, target=target, optlevel=optlevel, auto_cast="none")
    with jax.default_matmul_precision("highest"):
        expected = jax.tree.leaves(jax.jit(model)(*arrays))
    for ours, theirs in zip(jax.tree.leaves(glia.load(neff)(*arrays)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3 * np.abs(theirs).max())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 256])
def test_weights_are_not_copied_before_they_are_read(rows: int, target: str) -> None:
    lowered = jax.jit(in_a_loop(_silu)).lower(*weights(4, 256, 640, rows))
    options = CompileOptions(target, auto_cast="none")
    made = run_pipeline(read_module(lowered), options, stop_after="choose_blocks")
    assert isinstance(made, Program)
    (loop,) = [each for each in made.body if isinstance(each, While)]
    products = [each for each in loop.body if isinstance(each, Nest) and each.reduction]
    assert sum(any(load.dynamic for load in each.loads) for each in products) == 2
    copies = [each for each in loop.body if isinstance(each, Nest) and not each.reduction]
    assert not [each for each in copies if any(load.dynamic for load in each.loads)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 512])
def test_a_loop_over_layers_takes_what_they_take_and_30_us_each(rows: int, target: str) -> None:
    arrays = weights(6, 1024, 2048, rows)
    times = []
    for unroll in (False, True):
        lowered = jax.jit(in_a_loop(_silu, unroll=unroll)).lower(*arrays)
        neff = glia.compile(lowered, target=target, auto_cast="none")
        us = latency_us(neff.programs, target)
        assert us is not None
        times.append(us)
    looped, unrolled = times
    assert looped < unrolled + 6 * 30


def test_a_counted_loop_asks_no_memory_whether_it_goes_on() -> None:
    lowered = jax.jit(in_a_loop(_silu)).lower(*weights(4, 64, 96, 8))
    made = run_pipeline(read_module(lowered), CompileOptions(auto_cast="none"))
    assert isinstance(made, MachineProgram)
    (loop,) = [each for each in made.body if isinstance(each, MachineWhile)]
    names = [each.mnemonic() for each in loop.condition]  # type: ignore[union-attr]
    assert names == ["register_alu", "barrier"]


def test_a_loop_whose_counter_might_wrap_around_is_not_counted() -> None:
    def model(x):  # type: ignore[no-untyped-def]
        def more(state):  # type: ignore[no-untyped-def]
            return state[0] < 120

        def step(state):  # type: ignore[no-untyped-def]
            return state[0] + jnp.int8(10), state[1] + 1

        return lax.while_loop(more, step, (jnp.int8(0), x))[1]

    x = np.zeros((), np.float32)
    made = run_pipeline(read_module(jax.jit(model).lower(x)), CompileOptions(), stop_after="build")
    assert isinstance(made, Program)
    (loop,) = [each for each in made.body if isinstance(each, While)]
    assert not loop.iterations
