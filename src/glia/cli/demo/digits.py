"""A small convolutional network for 8 x 8 handwritten digits, and its training, in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

Array = Any
Parameters = dict[str, Array]

PIXELS = 8
CLASSES = 10
CHANNELS = (16, 32)
HELD_OUT = 360  # a fifth of the 1,797 images
EVALUATED = 120  # images in a batch of the forward pass
TRAINED = 64  # images in a batch of the training step
EPOCHS = 30
RATE, DECAY_MEAN, DECAY_SQUARE, EPSILON = 2e-3, 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Digits:
    """Images f32[n, 1, 8, 8] in 0 .. 1 and labels i32[n]; a fifth is held out for the test."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


@dataclass(frozen=True)
class TrainingState:
    """State of training: parameters, Adam's two moments, number of steps (f32)."""

    parameters: Parameters
    means: Parameters
    squares: Parameters
    steps: Array


jax.tree_util.register_dataclass(TrainingState)


def load(seed: int = 0) -> Digits:
    """The 1,797 images that scikit-learn ships, shuffled by `seed` and split."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32).reshape(-1, 1, PIXELS, PIXELS)
    labels = labels[order].astype(np.int32)
    return Digits(images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT])


def initial_state(seed: int = 0) -> TrainingState:
    """Parameters drawn as He et al. propose, moments of zero, no steps taken."""
    generator = np.random.default_rng(seed)
    inner, outer = CHANNELS
    pooled = outer * (PIXELS // 2) ** 2
    shapes = {"conv1": (inner, 1, 3, 3), "conv2": (outer, inner, 3, 3), "dense": (pooled, CLASSES)}
    parameters: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        outputs = shape[0] if len(shape) == 4 else shape[1]
        fan_in = int(np.prod(shape)) // outputs
        values = generator.standard_normal(shape, np.float32)
        parameters[name] = values * np.float32((2 / fan_in) ** 0.5)
        parameters[f"{name}_bias"] = np.zeros(outputs, np.float32)
    zeros = {name: np.zeros_like(value) for name, value in parameters.items()}
    return TrainingState(parameters, zeros, dict(zeros), np.float32(0))


def scores(parameters: Parameters, images: Array) -> Array:
    """The network: images f32[n, 1, 8, 8] to one score for each class, f32[n, 10]."""
    x = jax.nn.relu(_convolve(images, parameters["conv1"], parameters["conv1_bias"]))
    x = jax.nn.relu(_convolve(x, parameters["conv2"], parameters["conv2_bias"]))
    window = (1, 1, 2, 2)
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    return x.reshape(x.shape[0], -1) @ parameters["dense"] + parameters["dense_bias"]


def _convolve(images: Array, kernel: Array, bias: Array) -> Array:
    return jax.lax.conv(images, kernel, (1, 1), "SAME") + bias[:, None, None]


def loss(parameters: Parameters, images: Array, labels: Array) -> Array:
    """Mean cross entropy of a batch, f32[]."""
    logarithms = jax.nn.log_softmax(scores(parameters, images))
    chosen = jax.nn.one_hot(labels, CLASSES, dtype=jnp.float32)
    return -(chosen * logarithms).sum() / labels.shape[0]


def train_step(state: TrainingState, images: Array, labels: Array) -> tuple[TrainingState, Array]:
    """One step of Adam; the new state and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(state.parameters, images, labels)
    steps = state.steps + 1

    def average(decay: float, old: Parameters, new: Parameters) -> Parameters:
        averaged: Parameters = jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, old, new)
        return averaged

    means = average(DECAY_MEAN, state.means, gradients)
    squares = average(DECAY_SQUARE, state.squares, jax.tree.map(jnp.square, gradients))
    mean_bias, square_bias = 1 - DECAY_MEAN**steps, 1 - DECAY_SQUARE**steps

    def move(parameter: Array, mean: Array, square: Array) -> Array:
        return parameter - RATE * (mean / mean_bias) / (jnp.sqrt(square / square_bias) + EPSILON)

    parameters = jax.tree.map(move, state.parameters, means, squares)
    return TrainingState(parameters, means, squares, steps), value


def batches(digits: Digits, epochs: int = EPOCHS, seed: int = 1) -> Iterator[tuple[Array, Array]]:
    """Batches of the training images, reshuffled every epoch; an incomplete batch is dropped."""
    generator = np.random.default_rng(seed)
    count = len(digits.train_labels)
    for _ in range(epochs):
        order = generator.permutation(count)
        for start in range(0, count - TRAINED + 1, TRAINED):
            chosen = order[start : start + TRAINED]
            yield digits.train_images[chosen], digits.train_labels[chosen]


def training_steps(digits: Digits) -> int:
    """The number of steps of `train`."""
    return EPOCHS * (len(digits.train_labels) // TRAINED)


def train(digits: Digits, done: Callable[[int], None]) -> Parameters:
    """Train on the host for `EPOCHS`; calls `done` with the number of steps after each."""
    step = jax.jit(train_step)
    state = initial_state()
    for number, (images, labels) in enumerate(batches(digits), start=1):
        state, _ = step(state, images, labels)
        done(number)
    return {name: np.asarray(value) for name, value in state.parameters.items()}


def forward_hlo(parameters: Parameters) -> bytes:
    """The forward pass of one batch as a serialized HloModuleProto; weights are constants."""
    images = np.zeros((EVALUATED, 1, PIXELS, PIXELS), np.float32)

    def digits(images: Array) -> Array:
        return scores(parameters, images)

    return hlo(digits, images)


def train_step_hlo() -> bytes:
    """The training step as a serialized HloModuleProto; state in, state and loss out."""
    images = np.zeros((TRAINED, 1, PIXELS, PIXELS), np.float32)
    return hlo(train_step, initial_state(), images, np.zeros(TRAINED, np.int32))


def hlo(function: Callable[..., Any], *arguments: Any) -> bytes:
    """A function for these arguments as a serialized HloModuleProto."""
    computation = jax.jit(function).lower(*arguments).compiler_ir("hlo")
    assert computation is not None
    serialized: bytes = computation.as_serialized_hlo_module_proto()
    return serialized
