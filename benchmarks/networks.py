"""A BERT-base encoder and ResNet-50 in plain JAX, as models to measure.

Weights are random but scaled as trained ones are, so that values neither vanish nor explode.
Each function returns (forward function of one input, example input); weights are constants of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
Forward = Callable[[Array], Array]

RESNET_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def _weights(generator: np.random.Generator, *shape: int) -> np.ndarray:
    fan_in = int(np.prod(shape[:-1])) or 1
    return generator.standard_normal(shape, np.float32) * np.float32(fan_in**-0.5)


def _norm(x: Array, gain: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-12) * gain + bias


def bert(
    layers: int = 12, width: int = 768, heads: int = 12, tokens: int = 128, batch: int = 1,
    dtype: Any = np.float32,
) -> tuple[Forward, np.ndarray]:  # fmt: skip
    """A BERT-base encoder on embedded tokens, x [batch, tokens, width]."""
    stack = [_cast(each, dtype) for each in bert_stack(layers, width)]

    def forward(x: Array) -> Array:
        return encode(x, stack, heads)

    generator = np.random.default_rng(2)
    return forward, generator.standard_normal((batch, tokens, width), np.float32).astype(dtype)


def encode(x: Array, stack: list[dict[str, np.ndarray]], heads: int = 12) -> Array:
    """The encoder of these weights."""
    for weights in stack:
        x = _bert_layer(x, weights, heads)
    return x


def bert_stack(layers: int, width: int) -> list[dict[str, np.ndarray]]:
    """The weights of each layer."""
    generator = np.random.default_rng(0)
    return [_bert_weights(generator, width) for _ in range(layers)]


def _cast(weights: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda each: np.asarray(each).astype(dtype), weights)


def _bert_weights(generator: np.random.Generator, width: int) -> dict[str, np.ndarray]:
    shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    weights = {name: _weights(generator, *shape) for name, shape in shapes.items()}
    biases = {f"{n}_bias": _weights(generator, 1, s[1])[0] * 0.1 for n, s in shapes.items()}
    ones = np.ones(width, np.float32)
    norms = {"gain1": ones, "gain2": ones, "shift1": ones * 0.1, "shift2": ones * 0.1}
    return weights | biases | norms


def _bert_layer(x: Array, w: dict[str, np.ndarray], heads: int) -> Array:
    batch, tokens, width = x.shape

    def project(name: str) -> Array:
        y = x @ w[name] + w[f"{name}_bias"]
        return y.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)

    q, k, v = project("q"), project("k"), project("v")
    scores = q @ k.transpose(0, 1, 3, 2) / (width // heads) ** 0.5
    mixed = jax.nn.softmax(scores, axis=-1) @ v
    mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    x = _norm(x + mixed @ w["o"] + w["o_bias"], w["gain1"], w["shift1"])
    hidden = jax.nn.gelu(x @ w["up"] + w["up_bias"], approximate=False)
    return _norm(x + hidden @ w["down"] + w["down_bias"], w["gain2"], w["shift2"])


def resnet50(
    classes: int = 1000, pixels: int = 224, batch: int = 1, dtype: Any = np.float32
) -> tuple[Forward, np.ndarray]:
    """ResNet-50 in inference form (batch norm folded to scale and shift), x [batch, 3, h, w]."""
    weights = resnet_weights(classes)
    strides = [block.pop("stride") for block in weights["blocks"]]
    weights = _cast(weights, dtype)

    def forward(x: Array) -> Array:
        x = jax.nn.relu(_conv_norm(x, weights["stem"], 2))
        x = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2),
            ((0, 0), (0, 0), (1, 1), (1, 1)),
        )  # fmt: skip
        for stride, block in zip(strides, weights["blocks"], strict=True):
            x = _bottleneck(x, block, stride)
        return x.mean((2, 3)) @ weights["classes"]

    generator = np.random.default_rng(3)
    return forward, generator.standard_normal((batch, 3, pixels, pixels), np.float32).astype(dtype)


def resnet_weights(classes: int = 1000) -> dict[str, Any]:
    """Kernels with scale and shift of each convolution, strides, and the last product."""
    generator = np.random.default_rng(1)

    def conv(inputs: int, outputs: int, window: int, gain: float = 1.0) -> dict[str, Any]:
        kernel = generator.standard_normal((outputs, inputs, window, window), np.float32)
        kernel *= np.float32(gain * (2.0 / (inputs * window * window)) ** 0.5)
        scale = generator.uniform(0.8, 1.2, (1, outputs, 1, 1)).astype(np.float32)
        shift = generator.standard_normal((1, outputs, 1, 1), np.float32) * np.float32(0.1)
        return {"kernel": kernel, "scale": scale, "shift": shift}

    blocks, inputs = [], 64
    for width, count, stride in RESNET_STAGES:
        for index in range(count):
            block = {
                "stride": stride if index == 0 else 1,
                "reduce": conv(inputs, width, 1),
                "middle": conv(width, width, 3),
                "expand": conv(width, 4 * width, 1, 0.5),
            }
            if index == 0:
                block["skip"] = conv(inputs, 4 * width, 1, 0.5)
            blocks.append(block)
            inputs = 4 * width
    return {"stem": conv(3, 64, 7), "blocks": blocks, "classes": _weights(generator, 2048, classes)}


def _conv_norm(x: Array, w: dict[str, Any], stride: int) -> Array:
    window = w["kernel"].shape[-1]
    edge = window // 2
    y = jax.lax.conv_general_dilated(x, w["kernel"], (stride, stride), ((edge, edge), (edge, edge)))
    return y * w["scale"] + w["shift"]


def _bottleneck(x: Array, block: dict[str, Any], stride: int) -> Array:
    y = jax.nn.relu(_conv_norm(x, block["reduce"], 1))
    y = jax.nn.relu(_conv_norm(y, block["middle"], stride))
    y = _conv_norm(y, block["expand"], 1)
    skip = _conv_norm(x, block["skip"], stride) if "skip" in block else x
    return jax.nn.relu(y + skip)


def hlo_bytes(forward: Forward, *arguments: np.ndarray) -> bytes:
    """A jitted function as a serialized HloModuleProto."""
    lowered = jax.jit(forward).lower(*arguments)
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
