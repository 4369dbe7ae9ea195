"""Models of libraries over JAX, trained for some steps; each is run on `neuron` and on the CPU."""

from __future__ import annotations

import json
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 6


def linen_convolutions() -> list[float]:
    """A convolutional classifier with batch norm and dropout, by Adam with clipped gradients."""

    class Classifier(linen.Module):
        @linen.compact
        def __call__(self, x: Any, *, train: bool) -> Any:
            for features in (8, 16):
                x = linen.Conv(features, (3, 3))(x)
                x = linen.BatchNorm(use_running_average=not train)(x)
                x = linen.avg_pool(linen.relu(x), (2, 2), (2, 2))
            x = linen.GroupNorm(4)(x)
            x = linen.Dropout(0.1, deterministic=not train)(x.reshape(x.shape[0], -1))
            return linen.Dense(10)(x)

    model, images, labels = Classifier(), _normal(16, 8, 8, 1), jnp.arange(16) % 10
    variables = model.init(jax.random.key(0), images, train=False)
    weights, statistics = variables["params"], variables["batch_stats"]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, statistics: Any, state: Any, key: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits, changed = model.apply(
                {"params": weights, "batch_stats": statistics}, images, train=True,
                mutable=["batch_stats"], rngs={"dropout": key},
            )  # fmt: skip
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean(), changed["batch_stats"]

        (value, changed), slopes = jax.value_and_grad(loss, has_aux=True)(weights)
        updates, after = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), changed, after, value

    values = []
    for number in range(STEPS):
        key = jax.random.fold_in(jax.random.key(1), number)
        weights, statistics, state, value = step(weights, statistics, state, key)
        values.append(float(value))
    return values


def nnx_attention() -> list[float]:
    """A block of attention and a recurrent layer, by AdamW with a schedule."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(32, 16, rngs=rngs)
            self.attend = nnx.MultiHeadAttention(2, 16, rngs=rngs, decode=False)
            self.norm = nnx.LayerNorm(16, rngs=rngs)
            self.recurrent = nnx.RNN(nnx.GRUCell(16, 16, rngs=rngs))
            self.head = nnx.Linear(16, 32, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            mask = nnx.make_causal_mask(tokens)
            return self.head(self.recurrent(self.norm(x + self.attend(x, mask=mask))))

    model = Model(nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, STEPS)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 32, (4, 12)))

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        def loss(model: Any) -> Any:
            logits = model(tokens[:, :-1])
            each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return each.mean()

        value, slopes = nnx.value_and_grad(loss)(model)
        optimizer.update(model, slopes)
        return value

    return [float(step(model, optimizer)) for _ in range(STEPS)]


def equinox_mlp() -> list[float]:
    """A perceptron over a batch by vmap, by Lion with a moving average of its weights."""
    model = eqx.nn.MLP(6, 1, 24, 2, activation=jax.nn.gelu, key=jax.random.key(2))
    x = _normal(32, 6)
    y = jnp.sin(x.sum(1))
    optimizer = optax.lion(3e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        def loss(model: Any) -> Any:
            return ((jax.vmap(model)(x)[:, 0] - y) ** 2).mean()

        value, slopes = eqx.filter_value_and_grad(loss)(model)
        updates, after = optimizer.update(slopes, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), after, value

    values = []
    for _ in range(STEPS):
        model, state, value = step(model, state)
        values.append(float(value))
    return values


def divided_linen() -> list[float]:
    """A perceptron whose batch and hidden features are divided over a mesh of devices."""

    class Perceptron(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(4)(linen.gelu(linen.Dense(32)(x)))

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))

    def divided(value: Any, *names: str | None) -> Any:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*names)))

    model = Perceptron()
    x, labels = _normal(16, 8), jnp.arange(16) % 4
    weights = model.init(jax.random.key(3), x)
    x, labels = divided(x, "data"), divided(labels, "data")
    inner, outer = weights["params"]["Dense_0"], weights["params"]["Dense_1"]
    inner["kernel"], inner["bias"] = (
        divided(inner["kernel"], None, "model"),
        divided(inner["bias"], "model"),
    )
    outer["kernel"], outer["bias"] = divided(outer["kernel"], "model"), divided(outer["bias"])
    optimizer = optax.sgd(0.5, momentum=0.9)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, state: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits = model.apply(weights, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, slopes = jax.value_and_grad(loss)(weights)
        updates, after = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), after, value

    values = []
    for _ in range(STEPS):
        weights, state, value = step(weights, state)
        values.append(float(value))
    return values


def _normal(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(5).standard_normal(shape), jnp.float32)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
