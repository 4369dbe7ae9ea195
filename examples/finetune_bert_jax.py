"""Fine-tune a small BERT in JAX on the platform `neuron`, and serve it from a saved NEFF.

    JAX_PLATFORMS=neuron python examples/finetune_bert_jax.py [--steps 30] [--output bert.neff]

Twenty lines of text say what is liked and what is not. Needs JAX alone. One jitted function is a
step of training: loss, gradients and AdamW's updates.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from liked_lines import LENGTH, UNSEEN, data, encoded

import glia
from glia.plugins.jax import on_device

WIDTH, HEADS, INNER = 32, 4, 64
RATE, DECAY, MEMORIES = 5e-3, 0.01, (0.9, 0.999)

Weights = dict[str, Any]


def initial_weights(words: int, key: jax.Array) -> Weights:
    """Weights of a BERT of one layer with a classifier of two classes."""
    shapes = {
        "words": (words, WIDTH), "places": (LENGTH, WIDTH), "query": (WIDTH, WIDTH),
        "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "attended": (WIDTH, WIDTH),
        "widen": (WIDTH, INNER), "narrow": (INNER, WIDTH), "pool": (WIDTH, WIDTH),
        "classify": (WIDTH, 2),
    }  # fmt: skip
    keys = jax.random.split(key, len(shapes))
    drawn = {n: 0.1 * jax.random.normal(k, shapes[n]) for n, k in zip(shapes, keys, strict=True)}
    norms = {
        n: jnp.stack([jnp.ones(WIDTH), jnp.zeros(WIDTH)]) for n in ("first", "second", "third")
    }
    biases = {f"{n}_bias": jnp.zeros(shapes[n][1]) for n in list(shapes)[2:]}
    return {**drawn, **norms, **biases}


def dense(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """x times a matrix, and its bias."""
    return x @ weights[name] + weights[f"{name}_bias"]


def normalized(x: jax.Array, scale_and_shift: jax.Array) -> jax.Array:
    """Layer normalization of x's last axis."""
    centered = x - x.mean(-1, keepdims=True)
    scale, shift = scale_and_shift
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-12) * scale + shift


def attention(weights: Weights, x: jax.Array, is_word: jax.Array) -> jax.Array:
    """What each word takes from the others, by several heads."""
    query, key, value = (
        dense(weights, name, x).reshape(*x.shape[:2], HEADS, WIDTH // HEADS)
        for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(WIDTH / HEADS)
    shares = jax.nn.softmax(jnp.where(is_word[:, None, None], scores, -1e9))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value)
    return dense(weights, "attended", mixed.reshape(x.shape))


def scores(weights: Weights, ids: jax.Array) -> jax.Array:
    """From the numbers of words to the scores of the two classes."""
    x = normalized(weights["words"][ids] + weights["places"], weights["first"])
    x = normalized(x + attention(weights, x, ids != 0), weights["second"])
    inner = jax.nn.gelu(dense(weights, "widen", x), approximate=False)
    x = normalized(x + dense(weights, "narrow", inner), weights["third"])
    return dense(weights, "classify", jnp.tanh(dense(weights, "pool", x[:, 0])))


def loss(weights: Weights, ids: jax.Array, classes: jax.Array) -> jax.Array:
    """The mean cross entropy."""
    return -jnp.take_along_axis(
        jax.nn.log_softmax(scores(weights, ids)), classes[:, None], 1
    ).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(
    weights: Weights, means: tuple[Weights, Weights], count: jax.Array, *batch: jax.Array
) -> tuple[Weights, tuple[Weights, Weights], jax.Array]:
    """One step of AdamW: weights, the means of gradients and of their squares, and the loss."""
    value, slopes = jax.value_and_grad(loss)(weights, *batch)
    powers = (slopes, jax.tree.map(jnp.square, slopes))
    means = tuple(
        jax.tree.map(lambda m, new, keep=keep: keep * m + (1 - keep) * new, mean, power)
        for keep, mean, power in zip(MEMORIES, means, powers, strict=True)
    )
    first, second = (1 - keep**count for keep in MEMORIES)

    def updated(weight: jax.Array, mean: jax.Array, square: jax.Array) -> jax.Array:
        change = mean / first / (jnp.sqrt(square / second) + 1e-8)
        return weight - RATE * (change + DECAY * weight)

    return jax.tree.map(updated, weights, *means), means, value


def main() -> None:
    """Train, compile, save, load and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("bert.neff"))
    chosen = parser.parse_args()
    lines, marks, numbers = data()
    ids, classes = np.array(lines, np.int32), np.array(marks, np.int32)
    weights = initial_weights(len(numbers) + 2, jax.random.key(0))
    means = tuple(jax.tree.map(jnp.zeros_like, weights) for _ in MEMORIES)
    losses = []
    for count in range(1, chosen.steps + 1):
        weights, means, value = step(weights, means, np.float32(count), ids, classes)
        losses.append(float(value))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {chosen.steps} steps on {value.device}")

    on_device(partial(scores, weights)).neff(ids).save(chosen.output)  # with the weights inside
    served = glia.load(chosen.output)
    right = int((served(ids)[0].argmax(1) == classes).sum())
    print(f"{right} of {len(ids)} lines are classified as they are marked")
    unseen = np.array([encoded(text, numbers) for text in UNSEEN] * (len(ids) // 2), np.int32)
    for text, (dislike, like) in zip(UNSEEN, served(unseen)[0], strict=False):
        print(f"{1 / (1 + np.exp(dislike - like)):.0%} liked: {text}")


if __name__ == "__main__":
    main()
