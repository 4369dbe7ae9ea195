"""The models among the workloads, in bfloat16: transformers, convolutional networks, training."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import networks
from jax import lax
from ml_dtypes import bfloat16
from workload import Array, Workload, shaped
from workload_parts import adamw, attention, layer_norm, rms_norm, rotate, swiglu

Weights = dict[str, Any]

LLAMA = {"width": 4096, "heads": 32, "groups": 8, "inner": 14336}
VOCABULARY = 128256
LAYERS = 32


def workloads() -> Iterator[Workload]:
    """Every model."""
    yield from _llama()
    yield from _images()
    yield from _encoders()
    yield from _training()


def llama_weights(width: int, heads: int, groups: int, inner: int) -> Weights:
    """Shapes of the weights of a block, heads of `width / heads` features."""
    kept = width * groups // heads
    return {
        "q": shaped(width, width), "k": shaped(width, kept), "v": shaped(width, kept),
        "o": shaped(width, width), "gate": shaped(width, inner), "up": shaped(width, inner),
        "down": shaped(inner, width), "norm1": shaped(width), "norm2": shaped(width),
    }  # fmt: skip


def _heads(x: Array, w: Array, count: int) -> Array:
    return (x @ w).reshape(x.shape[0], count, -1)


def llama_block(x: Array, w: Weights, cos: Array, sin: Array) -> Array:
    """A block over all positions of a prompt, x [positions, width]."""
    y = rms_norm(x, w["norm1"])
    q = rotate(_heads(y, w["q"], LLAMA["heads"]), cos, sin)
    k = rotate(_heads(y, w["k"], LLAMA["groups"]), cos, sin)
    v = _heads(y, w["v"], LLAMA["groups"])
    mixed = attention(*(jnp.swapaxes(each, 0, 1) for each in (q, k, v)))
    x = x + jnp.swapaxes(mixed, 0, 1).reshape(x.shape) @ w["o"]
    y = rms_norm(x, w["norm2"])
    return x + swiglu(y, w["gate"], w["up"], w["down"])


def llama_step(
    x: Array, w: Weights, cos: Array, sin: Array, keys: Array, values: Array, position: Array
) -> tuple[Array, Array, Array]:
    """A block at one position; keys and values [groups, positions, features] hold those before."""
    y = rms_norm(x, w["norm1"])
    q = rotate(_heads(y, w["q"], LLAMA["heads"]), cos, sin)
    k = rotate(_heads(y, w["k"], LLAMA["groups"]), cos, sin)
    v = _heads(y, w["v"], LLAMA["groups"])
    start = (0, position, 0)
    keys = lax.dynamic_update_slice(keys, jnp.swapaxes(k, 0, 1), start)
    values = lax.dynamic_update_slice(values, jnp.swapaxes(v, 0, 1), start)
    groups, positions, features = keys.shape
    q = q.reshape(groups, -1, features)
    scores = jnp.einsum("ghd,gkd->ghk", q, keys).astype(jnp.float32) * features**-0.5
    scores = jnp.where(jnp.arange(positions) <= position, scores, -1e30)
    mixed = jnp.einsum("ghk,gkd->ghd", jax.nn.softmax(scores).astype(x.dtype), values)
    x = x + mixed.reshape(x.shape) @ w["o"]
    y = rms_norm(x, w["norm2"])
    return x + swiglu(y, w["gate"], w["up"], w["down"]), keys, values


def llama_model(
    token: Array, table: Array, layers: list[Weights], last: Array, cos: Array, sin: Array,
    caches: list[tuple[Array, Array]], position: Array,
) -> tuple[Array, list[tuple[Array, Array]]]:  # fmt: skip
    """The logits after one more token, and the keys and values of all layers."""
    x, kept = table[token], []
    for w, (keys, values) in zip(layers, caches, strict=True):
        x, keys, values = llama_step(x, w, cos, sin, keys, values, position)
        kept.append((keys, values))
    return rms_norm(x, last) @ table.T, kept


def llama_scan(
    x: Array, layers: Weights, cos: Array, sin: Array, caches: tuple[Array, Array], position: Array
) -> tuple[Array, tuple[Array, Array]]:
    """All blocks at one position, by `lax.scan` over weights and caches in stacks of layers."""

    def block(x: Array, own: tuple[Weights, tuple[Array, Array]]) -> tuple[Array, Any]:
        x, *kept = llama_step(x, own[0], cos, sin, *own[1], position)
        return x, (*kept,)

    return lax.scan(block, x, (layers, caches))  # type: ignore[no-any-return]


def llama_prefill_scan(x: Array, layers: Weights, cos: Array, sin: Array) -> Array:
    """All blocks over a prompt, by `lax.scan` over weights in stacks of layers."""
    return lax.scan(lambda x, w: (llama_block(x, w, cos, sin), None), x, layers)[0]


def llama_prefill(x: Array, layers: list[Weights], cos: Array, sin: Array) -> Array:
    """All blocks over a prompt."""
    for w in layers:
        x = llama_block(x, w, cos, sin)
    return x


def _llama() -> Iterator[Workload]:
    weights = llama_weights(**LLAMA)
    prompt, kept = 2048, 4096
    angles = shaped(prompt, 64)
    x = shaped(prompt, LLAMA["width"])
    # The half of the scores that the mask hides needs no work
    saved = 2 * LLAMA["heads"] * prompt * prompt * 128
    yield Workload(
        "Llama block, prefill 2048", llama_block, (x, weights, angles, angles), 0.75,
        flops=2.0 * prompt * _elements(weights) + saved,
    )  # fmt: skip
    x, angles = shaped(1, LLAMA["width"]), shaped(1, 64)
    cache, position = shaped(LLAMA["groups"], kept, 128), shaped(dtype=jnp.int32)
    step = (x, weights, angles, angles, cache, cache, position)
    read = 2 * (_elements(weights) + 2 * _elements(cache))
    yield Workload("Llama block, decode at 4096", llama_step, step, 0.85, donated=(4, 5),
                   moved=read)  # fmt: skip
    layers, caches = [weights] * LAYERS, [(cache, cache)] * LAYERS
    table, last = shaped(VOCABULARY, LLAMA["width"]), shaped(LLAMA["width"])
    step = (shaped(1, dtype=jnp.int32), table, layers, last, angles, angles, caches, position)
    yield Workload(
        "Llama, 32 layers, decode at 4096", llama_model, step, 0.85, donated=(6,),
        moved=LAYERS * read + 2 * _elements(table), heavy=True,
    )  # fmt: skip
    stacks = jax.tree.map(lambda each: shaped(LAYERS, *each.shape), (weights, (cache, cache)))
    yield Workload(
        "Llama, 32 layers by lax.scan, decode at 4096", llama_scan,
        (x, stacks[0], angles, angles, stacks[1], position), 0.85, donated=(4,),
        moved=LAYERS * read,
    )  # fmt: skip
    angles, x = shaped(prompt, 64), shaped(prompt, LLAMA["width"])
    yield Workload(
        "Llama, 32 layers by lax.scan, prefill 2048", llama_prefill_scan,
        (x, stacks[0], angles, angles), 0.75,
        flops=LAYERS * (2.0 * prompt * _elements(weights) + saved),
    )  # fmt: skip
    yield Workload(
        "Llama, 32 layers, prefill 2048", llama_prefill, (x, layers, angles, angles), 0.75,
        flops=LAYERS * (2.0 * prompt * _elements(weights) + saved), heavy=True,
    )  # fmt: skip


def _elements(tree: Any) -> int:
    return sum(each.size for each in jax.tree.leaves(tree))


def convolve(x: Array, w: Array, stride: int = 1, groups: int = 1) -> Array:
    """A convolution of channels-first images that keeps their extents but for the stride."""
    edge = w.shape[-1] // 2
    pads = ((edge, edge), (edge, edge))
    return lax.conv_general_dilated(x, w, (stride, stride), pads, feature_group_count=groups)


def unet_block(x: Array, time: Array, w: Weights) -> Array:
    """A residual block with group norms and a shift by the time embedding."""

    def norm(x: Array) -> Array:
        groups = x.reshape(x.shape[0], 32, -1).astype(jnp.float32)
        centred = groups - groups.mean(-1, keepdims=True)
        scale = lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return jax.nn.silu((centred * scale).reshape(x.shape).astype(x.dtype))

    y = convolve(norm(x), w["first"]) + (time @ w["time"])[:, :, None, None]
    return x + convolve(norm(y), w["second"])


def _images() -> Iterator[Workload]:
    for batch, goal in ((1, 0.35), (8, 0.60)):
        forward, x = networks.resnet50(batch=batch, dtype=bfloat16)
        yield Workload(f"ResNet-50 batch {batch}", forward, (shaped(*x.shape),), goal)
    window = shaped(320, 320, 3, 3)
    weights = {"first": window, "second": window, "time": shaped(1280, 320)}
    yield Workload(
        "UNet block 64x64x320", unet_block, (shaped(1, 320, 64, 64), shaped(1, 1280), weights),
        0.55,
    )  # fmt: skip
    channels = 512
    x, w = shaped(8, channels, 56, 56), shaped(channels, 1, 3, 3)
    # On the Tensor Engine alone: a column for each tap, position and 128 channels
    cycles = {"tensor": 9 * x.size / 128}
    yield Workload(
        "depthwise conv 3x3, 8x512x56x56", functools.partial(convolve, groups=channels), (x, w),
        0.6, cycles=cycles,
    )  # fmt: skip


def vit_weights(width: int = 768, patch: int = 16, patches: int = 196, layers: int = 12) -> Weights:
    """Shapes of the weights of ViT-base."""
    square, row = shaped(width, width), shaped(width)
    block = {"q": square, "k": square, "v": square, "o": square, "up": shaped(width, 4 * width)}
    block |= {"down": shaped(4 * width, width), "gain1": row, "shift1": row, "gain2": row}
    block |= {"shift2": row}
    return {
        "embed": shaped(width, 3, patch, patch), "token": shaped(1, 1, width),
        "places": shaped(patches + 1, width), "last": shaped(width, 1000), "gain": row,
        "shift": row, "layers": [block] * layers,
    }  # fmt: skip


def _self_attention(x: Array, w: Weights, heads: int, *, is_causal: bool) -> Array:
    batch, tokens, width = x.shape

    def split(name: str) -> Array:
        y = (x @ w[name]).reshape(batch, tokens, heads, width // heads)
        return y.transpose(0, 2, 1, 3).reshape(batch * heads, tokens, width // heads)

    mixed = attention(split("q"), split("k"), split("v"), is_causal=is_causal)
    mixed = mixed.reshape(batch, heads, tokens, width // heads).transpose(0, 2, 1, 3)
    return mixed.reshape(batch, tokens, width) @ w["o"]


def _block(x: Array, w: Weights, heads: int = 12, *, is_causal: bool = False) -> Array:
    x = x + _self_attention(layer_norm(x, w["gain1"], w["shift1"]), w, heads, is_causal=is_causal)
    return x + jax.nn.gelu(layer_norm(x, w["gain2"], w["shift2"]) @ w["up"]) @ w["down"]


def vit(x: Array, w: Weights) -> Array:
    """ViT-base: logits of images [batch, 3, 224, 224]."""
    batch, width = x.shape[0], w["embed"].shape[0]
    patch = w["embed"].shape[-1]
    y = lax.conv_general_dilated(x, w["embed"], (patch, patch), "VALID")
    y = y.reshape(batch, width, -1).transpose(0, 2, 1)
    token = jnp.broadcast_to(w["token"], (batch, 1, width))
    y = jnp.concatenate([token, y], 1) + w["places"]
    for block in w["layers"]:
        y = _block(y, block)
    return layer_norm(y[:, 0], w["gain"], w["shift"]) @ w["last"]


def _encoders() -> Iterator[Workload]:
    for batch, tokens, goal in ((1, 128, 0.60), (8, 384, 0.70)):
        forward, x = networks.bert(tokens=tokens, batch=batch, dtype=bfloat16)
        yield Workload(f"BERT-base {batch}x{tokens}", forward, (shaped(*x.shape),), goal)
    for batch, goal in ((1, 0.55), (8, 0.65)):
        yield Workload(f"ViT-base {batch}", vit, (shaped(batch, 3, 224, 224), vit_weights()), goal)


def gpt2_weights(width: int = 768, tokens: int = 512, layers: int = 12) -> Weights:
    """Shapes of the weights of GPT-2 small."""
    block = vit_weights(width)["layers"][0]
    row = shaped(width)
    table = shaped(50257, width)
    return {"table": table, "places": shaped(tokens, width), "gain": row, "shift": row,
            "layers": [block] * layers}  # fmt: skip


def gpt2_loss(weights: Weights, tokens: Array) -> Array:
    """The mean loss of the next token."""
    x = weights["table"][tokens] + weights["places"]
    for w in weights["layers"]:
        x = _block(x, w, is_causal=True)
    logits = layer_norm(x, weights["gain"], weights["shift"]) @ weights["table"].T
    chosen = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    return -jnp.take_along_axis(chosen, tokens[:, 1:, None], -1).mean()


def gpt2_decode(weights: Weights, keys: Array, values: Array, token: Array, at: Array) -> Any:
    """Logits of the token after one at a place, and caches [layers, heads, tokens, width]."""
    heads, tokens, depth = keys.shape[1:]
    x = weights["table"][token] + weights["places"][at]
    mask = jnp.arange(tokens) <= at[0]
    for number, w in enumerate(weights["layers"]):
        y = layer_norm(x, w["gain1"], w["shift1"])
        q, k, v = ((y @ w[name]).reshape(heads, 1, depth) for name in "qkv")
        keys = lax.dynamic_update_slice(keys, k[None], (number, 0, at[0], 0))
        values = lax.dynamic_update_slice(values, v[None], (number, 0, at[0], 0))
        scores = (q * keys[number]).sum(-1) * depth**-0.5
        share = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = (share[..., None] * values[number]).sum(1)
        x = x + mixed.reshape(1, -1) @ w["o"]
        x = x + jax.nn.gelu(layer_norm(x, w["gain2"], w["shift2"]) @ w["up"]) @ w["down"]
    return layer_norm(x, weights["gain"], weights["shift"]) @ weights["table"].T, keys, values


def gpt2_step(weights: Weights, first: Weights, second: Weights, tokens: Array) -> Any:
    """A step of AdamW."""
    loss, gradient = jax.value_and_grad(gpt2_loss)(weights, tokens)
    leaves, shape = jax.tree.flatten(weights)
    steps = [
        adamw(*each)
        for each in zip(leaves, *(jax.tree.leaves(t) for t in (first, second, gradient)),
                        strict=True)
    ]  # fmt: skip
    return loss, *(jax.tree.unflatten(shape, each) for each in zip(*steps, strict=True))


def digits_step(weights: list[Array], first: Any, second: Any, x: Array, labels: Array) -> Any:
    """A step of Adam on the classifier of 8 x 8 digits."""

    def loss(weights: list[Array]) -> Array:
        hidden, shift, last, last_shift = weights
        logits = jax.nn.relu(x @ hidden + shift) @ last + last_shift
        return -(jax.nn.one_hot(labels, 10) * jax.nn.log_softmax(logits)).sum(-1).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
    change = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-3), first, second)
    return value, jax.tree.map(lambda w, d: w - 0.01 * d, weights, change), first, second


def _training() -> Iterator[Workload]:
    weights = gpt2_weights()
    step = (weights, weights, weights, shaped(4, 512, dtype=jnp.int32))
    yield Workload(
        "GPT-2 small training step 4x512", gpt2_step, step, 0.55, donated=(0, 1, 2), heavy=True
    )
    shapes = ((64, 48), (48,), (48, 10), (10,))
    state = [shaped(*shape, dtype=jnp.float32) for shape in shapes]
    images, labels = shaped(60, 64, dtype=jnp.float32), shaped(60, dtype=jnp.int32)
    yield Workload(
        "digits training step fp32", digits_step, (state, state, state, images, labels), 23.2,
        donated=(0, 1, 2),
    )  # fmt: skip
