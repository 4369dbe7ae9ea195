"""Whole models in plain JAX, one a family, narrow for every run of the tests and at real size.

`FAMILIES[name](size)` gives a function and its arguments; weights are random and scaled as trained
ones are, equal for equal sizes. What is trained takes its weights as arguments; elsewhere they are
constants of the model. `drawn_as` makes a model of the same numbers in another dtype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Weights = dict[str, Any]
Model = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Size:
    """The extents that a family takes what it has use for from."""

    batch: int
    tokens: int
    width: int
    heads: int
    layers: int
    pixels: int
    classes: int

    @property
    def head(self) -> int:
        return self.width // self.heads


NARROW = Size(batch=2, tokens=12, width=32, heads=4, layers=1, pixels=16, classes=10)
UNEVEN = Size(batch=3, tokens=37, width=136, heads=4, layers=2, pixels=24, classes=37)
REAL = Size(batch=1, tokens=128, width=768, heads=12, layers=12, pixels=224, classes=1000)


_DTYPE: ContextVar[type] = ContextVar("dtype", default=np.float32)


@contextlib.contextmanager
def drawn_as(dtype: type) -> Iterator[None]:
    """A context in which drawn floats, which are those of float32, have another dtype."""
    token = _DTYPE.set(dtype)
    try:
        yield
    finally:
        _DTYPE.reset(token)


class Drawer:
    """Draws weights and inputs, in an order that the model fixes."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def dense(self, *shape: int) -> np.ndarray:
        """A matrix that keeps the scale of what it is applied to."""
        fan_in = int(np.prod(shape[:-1])) or 1
        return self.normal(*shape, scale=fan_in**-0.5)

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Normally distributed numbers of this standard deviation."""
        drawn = self._generator.standard_normal(shape, np.float32) * np.float32(scale)
        return drawn.astype(_DTYPE.get())

    def below(self, limit: int, *shape: int) -> np.ndarray:
        return self._generator.integers(0, limit, shape).astype(np.int32)


def layer_norm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def attention(x: Array, w: Weights, heads: int, *, is_causal: bool = False) -> Array:
    """Self-attention with the matrices q, k, v and o."""
    batch, tokens, width = x.shape

    def split(name: str) -> Array:
        return (x @ w[name]).reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)

    scores = split("q") @ split("k").transpose(0, 1, 3, 2) / np.float32((width // heads) ** 0.5)
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -1e30)
    mixed = jax.nn.softmax(scores) @ split("v")
    return mixed.transpose(0, 2, 1, 3).reshape(batch, tokens, width) @ w["o"]


def block_weights(draw: Drawer, width: int) -> Weights:
    square = {name: draw.dense(width, width) for name in ("q", "k", "v", "o")}
    return square | {"up": draw.dense(width, 4 * width), "down": draw.dense(4 * width, width)}


def block(x: Array, w: Weights, heads: int, *, is_causal: bool = False) -> Array:
    """A transformer block, its norms before what they feed."""
    x = x + attention(layer_norm(x), w, heads, is_causal=is_causal)
    return x + jax.nn.gelu(layer_norm(x) @ w["up"]) @ w["down"]


def bert(size: Size) -> Model:
    """An encoder of embedded tokens with norms behind, exact gelu, and a pooled class.

    There are many classes: the error of two logits is what their own rounding happens to be.
    """
    draw = Drawer(0)
    table, places = draw.normal(100, size.width), draw.normal(size.tokens, size.width)
    layers = [block_weights(draw, size.width) for _ in range(size.layers)]
    last = draw.dense(size.width, 96)

    def forward(tokens: Array) -> Array:
        x = layer_norm(jnp.asarray(table)[tokens] + places)
        for w in layers:
            x = layer_norm(x + attention(x, w, size.heads))
            x = layer_norm(x + jax.nn.gelu(x @ w["up"], approximate=False) @ w["down"])
        return jnp.tanh(x[:, 0]) @ last

    return forward, (draw.below(100, size.batch, size.tokens),)


def gpt_loss(weights: Weights, tokens: Array, heads: int) -> Array:
    logits = gpt_logits(weights, tokens[:, :-1], heads)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
    return -chosen.mean()


def gpt_logits(weights: Weights, tokens: Array, heads: int) -> Array:
    x = jnp.asarray(weights["table"])[tokens] + weights["places"][: tokens.shape[1]]
    for w in weights["layers"]:
        x = block(x, w, heads, is_causal=True)
    return layer_norm(x) @ weights["table"].T


def gpt_weights(draw: Drawer, size: Size) -> Weights:
    return {
        "table": draw.dense(96, size.width),
        "places": draw.dense(size.tokens, size.width),
        "layers": [block_weights(draw, size.width) for _ in range(size.layers)],
    }


def gpt_decoder(size: Size) -> Model:
    """A causal decoder with tied embeddings: the logits of every place."""
    draw = Drawer(1)
    weights = gpt_weights(draw, size)
    return (
        lambda tokens: gpt_logits(weights, tokens, size.heads),
        (draw.below(96, size.batch, size.tokens),),
    )


def gpt_training(size: Size) -> Model:
    """A step of gradient descent with momentum on a causal decoder."""
    draw = Drawer(2)
    weights = gpt_weights(draw, size)

    def step(weights: Weights, momentum: Weights, tokens: Array) -> tuple[Array, Weights, Weights]:
        loss, gradient = jax.value_and_grad(gpt_loss)(weights, tokens, size.heads)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return loss, jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum

    momentum = jax.tree.map(np.zeros_like, weights)
    return step, (weights, momentum, draw.below(96, size.batch, size.tokens))


def convolve(x: Array, kernel: Array, stride: int = 1) -> Array:
    """A convolution of channels-first images that keeps their extents but for the stride."""
    edge = kernel.shape[-1] // 2
    return lax.conv_general_dilated(x, kernel, (stride, stride), ((edge, edge), (edge, edge)))


def kernel(draw: Drawer, inputs: int, outputs: int, window: int) -> np.ndarray:
    scale = (2.0 / (inputs * window**2)) ** 0.5
    return draw.normal(outputs, inputs, window, window, scale=scale)


def resnet(size: Size) -> Model:
    """Bottleneck blocks of four stages behind a strided stem and a max pool."""
    draw = Drawer(3)
    stages = ((3, 64), (4, 128), (6, 256), (3, 512)) if size is REAL else ((1, 8), (1, 16))
    stem, blocks, inputs = kernel(draw, 3, stages[0][1], 7), [], stages[0][1]
    for number, (count, width) in enumerate(stages):
        for index in range(count):
            stride = 2 if number and not index else 1
            w = {"reduce": kernel(draw, inputs, width, 1), "middle": kernel(draw, width, width, 3)}
            w["expand"] = kernel(draw, width, 4 * width, 1) * np.float32(0.5)
            w |= {} if index else {"skip": kernel(draw, inputs, 4 * width, 1) * np.float32(0.5)}
            blocks.append((stride, w))
            inputs = 4 * width
    last = draw.dense(inputs, size.classes)

    def bottleneck(x: Array, stride: int, w: Weights) -> Array:
        y = jax.nn.relu(convolve(x, w["reduce"]))
        y = convolve(jax.nn.relu(convolve(y, w["middle"], stride)), w["expand"])
        return jax.nn.relu(y + (convolve(x, w["skip"], stride) if "skip" in w else x))

    def forward(x: Array) -> Array:
        x = jax.nn.relu(convolve(x, stem, 2))
        pads = ((0, 0), (0, 0), (1, 1), (1, 1))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)
        for stride, w in blocks:
            x = bottleneck(x, stride, w)
        return x.mean((2, 3)) @ last

    return forward, (draw.normal(size.batch, 3, size.pixels, size.pixels),)


def digits_weights(draw: Drawer) -> list[np.ndarray]:
    return [
        draw.dense(64, 48),
        draw.normal(48, scale=0.1),
        draw.dense(48, 10),
        draw.normal(10, scale=0.1),
    ]


def digits_logits(weights: list[Array], x: Array) -> Array:
    hidden, shift, last, last_shift = weights
    return jax.nn.relu(x @ hidden + shift) @ last + last_shift


def digits(size: Size) -> Model:
    """A classifier of 8 x 8 digits: probabilities and the most likely class."""
    draw = Drawer(4)
    weights = digits_weights(draw)

    def forward(x: Array) -> tuple[Array, Array]:
        logits = digits_logits(weights, x)
        return jax.nn.softmax(logits), jnp.argmax(logits, -1).astype(jnp.int32)

    return forward, (draw.normal(40 * size.batch, 64),)


def digits_training(size: Size) -> Model:
    """A step of Adam on the classifier of digits."""
    draw = Drawer(5)
    weights = digits_weights(draw)
    zeros = [np.zeros_like(w) for w in weights]

    def loss(weights: list[Array], x: Array, labels: Array) -> Array:
        chosen = jax.nn.one_hot(labels, 10) * jax.nn.log_softmax(digits_logits(weights, x))
        return -chosen.sum(-1).mean()

    def step(weights: Any, first: Any, second: Any, x: Array, labels: Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, x, labels)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
        change = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-3), first, second)
        return value, jax.tree.map(lambda w, d: w - 0.01 * d, weights, change), first, second

    inputs = draw.normal(20 * size.batch, 64), draw.below(10, 20 * size.batch)
    return step, (weights, zeros, zeros, *inputs)


def vit(size: Size) -> Model:
    """A vision transformer: patches by a strided convolution, a class token, encoder blocks."""
    draw = Drawer(6)
    patch = 16 if size is REAL else 4
    patches = (size.pixels // patch) ** 2
    embed = kernel(draw, 3, size.width, patch)
    token, places = draw.normal(1, 1, size.width), draw.normal(patches + 1, size.width)
    layers = [block_weights(draw, size.width) for _ in range(size.layers)]
    last = draw.dense(size.width, size.classes)

    def forward(x: Array) -> Array:
        x = lax.conv_general_dilated(x, embed, (patch, patch), "VALID")
        x = x.reshape(size.batch, size.width, patches).transpose(0, 2, 1)
        tokens = jnp.broadcast_to(token, (size.batch, 1, size.width))
        x = jnp.concatenate([tokens, x], 1) + places
        for w in layers:
            x = block(x, w, size.heads)
        return layer_norm(x)[:, 0] @ last

    return forward, (draw.normal(size.batch, 3, size.pixels, size.pixels),)


def mamba(size: Size) -> Model:
    """A selective state space over time: a causal depthwise convolution, a scan, a gate."""
    draw = Drawer(7)
    width, states = size.width, 8
    w = {name: draw.dense(width, width) for name in ("in", "gate", "step", "out")}
    w |= {"b": draw.dense(width, states), "c": draw.dense(width, states)}
    w |= {"window": draw.normal(4, 1, width, scale=0.5)}
    decay = -np.exp(draw.normal(width, states, scale=0.3))

    def forward(x: Array) -> Array:
        u = lax.conv_general_dilated(
            x @ w["in"], w["window"], (1,), ((3, 0),), feature_group_count=width,
            dimension_numbers=("NWC", "WIO", "NWC"),
        )  # fmt: skip
        u = jax.nn.silu(u)
        step = jax.nn.softplus(u @ w["step"])
        kept = jnp.exp(step[..., None] * decay)
        added = (step * u)[..., None] * (u @ w["b"])[:, :, None, :]

        def advance(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            state = now[0] * state + now[1]
            return state, state

        moved = (kept.transpose(1, 0, 2, 3), added.transpose(1, 0, 2, 3))
        _, states_of = lax.scan(advance, jnp.zeros_like(moved[1][0]), moved)
        y = jnp.einsum("tbwn,btn->btw", states_of, u @ w["c"])
        return (y * jax.nn.silu(x @ w["gate"])) @ w["out"]

    return forward, (draw.normal(size.batch, size.tokens, width),)


def mixture(size: Size) -> Model:
    """A mixture of experts: each token is sent to the two of four that its router prefers."""
    draw = Drawer(8)
    experts = 4
    router = draw.dense(size.width, experts)
    up = np.stack([draw.dense(size.width, 2 * size.width) for _ in range(experts)])
    down = np.stack([draw.dense(2 * size.width, size.width) for _ in range(experts)])

    def forward(x: Array) -> Array:
        values, chosen = lax.top_k(x @ router, 2)
        shares = jax.nn.softmax(values)
        gates = (jax.nn.one_hot(chosen, experts) * shares[..., None]).sum(1)
        hidden = jax.nn.silu(jnp.einsum("tw,ewh->eth", x, up))
        return jnp.einsum("eth,ehw,te->tw", hidden, down, gates)

    return forward, (draw.normal(size.batch * size.tokens, size.width),)


def graph_attention(size: Size) -> Model:
    """Two layers over the edges of a graph: a softmax over those that end at the same node."""
    draw = Drawer(9)
    nodes, edges = 5 * size.tokens, 20 * size.tokens
    layers = [(draw.dense(size.width, size.width), draw.dense(2 * size.width)) for _ in range(2)]

    def layer(x: Array, w: Array, a: Array, sources: Array, targets: Array) -> Array:
        x = x @ w
        ends = jnp.concatenate([x[sources], x[targets]], -1)
        scores = jax.nn.leaky_relu(ends @ a)
        shifted = jnp.exp(scores - jax.ops.segment_max(scores, targets, nodes)[targets])
        shares = shifted / jax.ops.segment_sum(shifted, targets, nodes)[targets]
        return jax.ops.segment_sum(shares[:, None] * x[sources], targets, nodes)

    def forward(x: Array, sources: Array, targets: Array) -> Array:
        for w, a in layers:
            x = jax.nn.elu(layer(x, w, a, sources, targets))
        return x

    ends = draw.below(nodes, edges), draw.below(nodes, edges)
    return forward, (draw.normal(nodes, size.width), *ends)


def unet(size: Size) -> Model:
    """One level of a U-Net: group norms, time embedding, attention, down, up, and a skip."""
    draw = Drawer(10)
    width = size.width
    w = {n: kernel(draw, width, width, 3) for n in ("first", "second", "down", "up")}
    w |= {"in": kernel(draw, 4, width, 3), "join": kernel(draw, 2 * width, width, 1)}
    w |= {"out": kernel(draw, width, 4, 3), "time": draw.dense(32, width)}
    mixer = block_weights(draw, width)

    def norm(x: Array) -> Array:
        groups = x.reshape(size.batch, 8, -1)
        return jax.nn.silu(layer_norm(groups).reshape(x.shape))

    def residual(x: Array, time: Array) -> Array:
        y = convolve(norm(x), w["first"]) + (time @ w["time"])[:, :, None, None]
        return x + convolve(norm(y), w["second"])

    def forward(x: Array, moment: Array) -> Array:
        angles = moment[:, None] * jnp.exp(-jnp.arange(16) / 4.0)
        time = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        skip = residual(convolve(x, w["in"]), time)
        y = convolve(skip, w["down"], 2)
        batch, _, high, wide = y.shape
        flat = y.reshape(batch, width, high * wide).transpose(0, 2, 1)
        flat = flat + attention(layer_norm(flat), mixer, size.heads)
        y = flat.transpose(0, 2, 1).reshape(y.shape)
        y = jax.image.resize(y, (batch, width, 2 * high, 2 * wide), "nearest")
        y = convolve(jnp.concatenate([convolve(y, w["up"]), skip], 1), w["join"])
        return convolve(norm(residual(y, time)), w["out"])

    image = draw.normal(size.batch, 4, size.pixels // 2, size.pixels // 2)
    return forward, (image, np.arange(1, size.batch + 1, dtype=np.float32) * 17)


def lstm(size: Size) -> Model:
    """A recurrent layer over time, and a classifier of its last state."""
    draw = Drawer(11)
    w, u = draw.dense(size.width, 4 * size.width), draw.dense(size.width, 4 * size.width)
    last = draw.dense(size.width, size.classes)

    def forward(x: Array) -> tuple[Array, Array]:
        def advance(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
            short, long = state
            let_in, forget, let_out, new = jnp.split(now @ w + short @ u, 4, -1)
            long = jax.nn.sigmoid(forget + 1) * long + jax.nn.sigmoid(let_in) * jnp.tanh(new)
            short = jax.nn.sigmoid(let_out) * jnp.tanh(long)
            return (short, long), short

        start = jnp.zeros((size.batch, size.width))
        (short, _), outputs = lax.scan(advance, (start, start), x.transpose(1, 0, 2))
        return jax.nn.log_softmax(short @ last), outputs

    return forward, (draw.normal(size.batch, size.tokens, size.width),)


FAMILIES: dict[str, Callable[[Size], Model]] = {
    "bert": bert,
    "digits": digits,
    "digits_training": digits_training,
    "gpt_decoder": gpt_decoder,
    "gpt_training": gpt_training,
    "graph_attention": graph_attention,
    "lstm": lstm,
    "mamba": mamba,
    "mixture": mixture,
    "resnet": resnet,
    "unet": unet,
    "vit": vit,
}
