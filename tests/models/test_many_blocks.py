"""Programs of many blocks, of even and odd numbers of them, compute what JAX does.

Random programs are small: their loops have few trips. Here every extent is some blocks of 128 or
next to it, so that loops are tiled, unrolled by factors that do not divide, and overlapped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import glia
from glia.arch.instances import COMPILED_TARGETS

Array = Any
BLOCK = 128
EACH_TIME, EACH_NIGHT = range(8), range(8, 152)


@dataclass(frozen=True)
class Case:
    """A function, its arguments in float32, and how it is compiled."""

    name: str
    function: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    is_narrow: bool  # bfloat16
    target: str
    level: int


def _norm(x: Array) -> Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def _attend(q: Array, k: Array, v: Array, *, is_causal: bool) -> Array:
    """Attention of [heads, tokens, depth]."""
    scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32) / np.float32(q.shape[-1] ** 0.5)
    if is_causal:
        visible = jnp.tril(jnp.ones(scores.shape[1:], bool))
        scores = jnp.where(visible, scores, -1e30)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1).astype(v.dtype), v)


def _heads(x: Array, depth: int) -> Array:
    batch, tokens, _ = x.shape
    return x.reshape(batch, tokens, -1, depth).transpose(0, 2, 1, 3).reshape(-1, tokens, depth)


def _joined(heads: Array, x: Array) -> Array:
    """What `_heads` has split, in the shape of x."""
    parts = heads.reshape(x.shape[0], -1, *heads.shape[1:])
    return parts.transpose(0, 2, 1, 3).reshape(x.shape)


def encoder(x: Array, q: Array, k: Array, v: Array, o: Array, up: Array, down: Array) -> Array:
    """A layer of an encoder with norms behind, x [batch, tokens, width]."""
    mixed = _attend(*(_heads(x @ w, 64) for w in (q, k, v)), is_causal=False)
    x = _norm(x + _joined(mixed, x) @ o)
    return _norm(x + jax.nn.gelu(x @ up, approximate=False) @ down)


def decoder(x: Array, qkv: Array, o: Array) -> Array:
    """Causal attention with a norm ahead, x [batch, tokens, width]."""
    q, k, v = (_heads(part, 64) for part in jnp.split(_norm(x) @ qkv, 3, -1))
    return x + _joined(_attend(q, k, v, is_causal=True), x) @ o


def gated(x: Array, gate: Array, up: Array, down: Array) -> Array:
    """A gated feed-forward part with a residual, x [tokens, width]."""
    y = _norm(x)
    return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down


def shares(x: Array, w: Array) -> Array:
    """Softmax of products, x [rows, width]."""
    return jax.nn.softmax((x @ w).astype(jnp.float32), -1)


def step(x: Array, first: Array, second: Array) -> tuple[Array, ...]:
    """The gradient of two layers in both weights, x [rows, width]."""

    def loss(first: Array, second: Array) -> Array:
        return jnp.square(jnp.tanh(x @ first) @ second).astype(jnp.float32).mean()

    return jax.grad(loss, (0, 1))(first, second)


def turned(x: Array, y: Array) -> Array:
    """Products of transposed batches, sums over rows, x and y [batch, rows, columns]."""
    product = jnp.einsum("bij,bik->bjk", x, y)
    return jnp.transpose(product, (2, 0, 1)) + x.sum(1).astype(x.dtype)[None]


def convolved(x: Array, w: Array) -> Array:
    """A 3x3 convolution of channels-last images and a mean."""
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y) - y.mean((1, 2), keepdims=True).astype(y.dtype)


def draw(seed: int) -> Case:
    """The case of a seed."""
    random = Random(seed)
    generator = np.random.default_rng(seed)

    def extent(most: int = 9) -> int:
        blocks = random.choice([n for n in (1, 2, 3, 3, 5, 6, 7, 9) if n <= most])
        return max(1, BLOCK * blocks + random.choice((0, 0, 0, 0, 1, -1, 64)))

    def dense(*shape: int) -> np.ndarray:
        drawn = generator.standard_normal(shape, np.float32)
        return drawn / np.float32(shape[-2] ** 0.5) if len(shape) == 2 else drawn

    name = random.choice(("encoder", "decoder", "gated", "shares", "step", "turned", "convolved"))
    batch, width = random.choice((1, 2, 3, 5, 8)), 64 * random.choice((2, 3, 5, 6, 10, 12))
    rows, wide = extent(), extent()
    shapes: list[tuple[int, ...]]
    if name == "encoder":
        tokens = extent(3)
        shapes = [(batch, tokens, width), *[(width, width)] * 4, (width, wide), (wide, width)]
    elif name == "decoder":
        shapes = [(min(batch, 3), extent(5), width), (width, 3 * width), (width, width)]
    elif name == "gated":
        shapes = [(rows, width), (width, wide), (width, wide), (wide, width)]
    elif name in ("shares", "step"):
        shapes = [(rows, width), (width, wide), (wide, extent(3))]
        shapes = shapes[: 3 if name == "step" else 2]
    elif name == "turned":
        shapes = [(batch, extent(5), extent(3)), (batch, 0, extent(3))]
        shapes[1] = (batch, shapes[0][1], shapes[1][2])
    else:
        channels = random.choice((3, 64, 128, 192))
        shapes = [(batch, random.choice((7, 14, 24)), 14, channels), (3, 3, channels, extent(3))]
    arrays = tuple(dense(*shape) for shape in shapes)
    is_narrow = random.random() < 0.5
    level = random.choice((1, 2, 2, 2, 3))
    target = random.choice(COMPILED_TARGETS)
    return Case(name, globals()[name], arrays, is_narrow, target, level)


def wrong_results(case: Case) -> list[str]:
    """What is further from JAX's results than the dtype explains."""
    given = case.arrays
    if case.is_narrow:
        given = tuple(each.astype(ml_dtypes.bfloat16) for each in given)
    jitted = jax.jit(case.function)
    neff = glia.compile(jitted.lower(*given), target=case.target, optlevel=case.level)
    found = glia.load(neff)(*given)
    exact = tuple(each.astype(np.float32) for each in given)
    with jax.default_matmul_precision("highest"):
        wanted = jax.tree.leaves(jitted(*exact))
    tolerance = 3e-2 if case.is_narrow else 2e-5
    broken = []
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
        error = float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))
        if not error <= tolerance:
            broken.append(f"result {number} is off by {error:.3g}")
    return broken


def _failures(seeds: range) -> list[str]:
    failures = []
    for seed in seeds:
        case = draw(seed)
        shapes = " ".join(str(list(each.shape)) for each in case.arrays)
        what = f"seed {seed}: {case.name} {shapes} {case.target} -O{case.level}"
        failures += [f"{what}: {problem}" for problem in wrong_results(case)]
    return failures


@pytest.mark.parametrize("seed", EACH_TIME)
def test_a_program_of_many_blocks_is_right(seed: int) -> None:
    assert _failures(range(seed, seed + 1)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("first", EACH_NIGHT[::6])
def test_many_programs_of_many_blocks_are_right(first: int) -> None:
    assert _failures(range(first, first + 6)) == []
