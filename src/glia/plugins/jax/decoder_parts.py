"""Parts of decoders in plain JAX, as one rank of a tensor-parallel model has them; shapes only.

Exchanges with other ranks are not in them: they stand between parts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from glia.frontend.errors import FrameworkMissing
from glia.plan.parts import ModelPart


def lowered_part(part: ModelPart) -> Any:
    """The part's program as jax lowers it. Raises FrameworkMissing without jax."""
    try:
        jax = importlib.import_module("jax")
    except ImportError as problem:
        raise FrameworkMissing(what="a decoder", package="jax", extra="jax") from problem
    function, arguments = _BUILDERS[part.kind](jax, part)
    lowered = jax.jit(function).trace(*arguments)
    return lowered.lower(lowering_platforms=("cpu",))


def _norm(jax: Any, x: Any, weight: Any) -> Any:
    wide = x.astype("float32")
    mean = jax.numpy.mean(wide * wide, -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-5)).astype(x.dtype) * weight


def _rotated(jax: Any, x: Any, cosine: Any, sine: Any) -> Any:
    """Rotary positions of heads [T, N, D]."""
    low, high = jax.numpy.split(x, 2, -1)
    return jax.numpy.concatenate([low * cosine - high * sine, high * cosine + low * sine], -1)


def _layer(jax: Any, part: ModelPart) -> tuple[Callable[..., Any], list[Any]]:
    tokens, head, width = part.tokens, part.head, part.width
    rotated = (part.heads + part.groups) * head
    columns = rotated + part.groups * head

    def network(y: Any, gate: Any, up: Any, down: Any) -> Any:
        return (jax.nn.silu(y @ gate) * (y @ up)) @ down

    def layer(x: Any, attended: Any, cosine: Any, sine: Any, *weights: Any) -> Any:
        first, to_heads, from_heads, second, *rest = weights
        found = _norm(jax, x, first) @ to_heads
        heads = found[:, :rotated].reshape(tokens, -1, head)
        turned = _rotated(jax, heads, cosine, sine).reshape(tokens, -1)
        x = x + attended @ from_heads
        y = _norm(jax, x, second)
        if not part.experts:
            return turned, found[:, rotated:], x + network(y, *rest)
        choose, given, *rest = rest
        choice = jax.nn.softmax((y @ choose).astype("float32"))
        return turned, found[:, rotated:], x, choice, jax.vmap(network)(given, *rest)

    def shape(*sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, "bfloat16")

    turns = shape(tokens, 1, head // 2)
    arguments = [shape(tokens, width), shape(tokens, part.heads * head), turns, turns]
    arguments += [shape(width), shape(width, columns), shape(part.heads * head, width)]
    arguments.append(shape(width))
    matrices = [(width, part.inner), (width, part.inner), (part.inner, width)]
    if not part.experts:
        return layer, arguments + [shape(*each) for each in matrices]
    each_takes = max(1, tokens * part.chosen // part.experts)
    arguments.append(shape(width, part.experts))
    arguments.append(shape(part.experts, each_takes, width))
    return layer, arguments + [shape(part.experts, *each) for each in matrices]


def _layer_gradient(jax: Any, part: ModelPart) -> tuple[Callable[..., Any], list[Any]]:
    layer, arguments = _layer(jax, part)
    results = jax.eval_shape(layer, *arguments)

    def gradient(given: Any, slopes: Any) -> Any:
        return jax.vjp(layer, *given)[1](slopes)

    return gradient, [tuple(arguments), results]


def _head(jax: Any, part: ModelPart) -> tuple[Callable[..., Any], list[Any]]:
    def head(x: Any, norm: Any, words: Any) -> Any:
        return _norm(jax, x, norm) @ words

    kind, width = jax.ShapeDtypeStruct, part.width
    shapes = [(part.tokens, width), (width,), (width, part.inner)]
    return head, [kind(shape, "bfloat16") for shape in shapes]


def _head_gradient(jax: Any, part: ModelPart) -> tuple[Callable[..., Any], list[Any]]:
    head, arguments = _head(jax, part)

    def loss(x: Any, norm: Any, words: Any, wanted: Any) -> Any:
        scores = head(x, norm, words).astype("float32")
        columns = jax.lax.broadcasted_iota("int32", scores.shape, 1)
        right = jax.numpy.where(columns == wanted[:, None], scores, 0.0).sum(-1)
        return (jax.nn.logsumexp(scores, axis=-1) - right).mean()

    wanted = jax.ShapeDtypeStruct((part.tokens,), "int32")
    return jax.value_and_grad(loss, (0, 1, 2)), [*arguments, wanted]


def _cache_attention(jax: Any, part: ModelPart) -> tuple[Callable[..., Any], list[Any]]:
    rows, shared = part.groups, part.heads // part.groups

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jax.numpy.einsum("ngd,ntd->ngt", q, k).astype("float32") * part.head**-0.5
        return jax.numpy.einsum("ngt,ntd->ngd", jax.nn.softmax(scores).astype(v.dtype), v)

    kept = jax.ShapeDtypeStruct((rows, part.keys, part.head), "bfloat16")
    return attention, [jax.ShapeDtypeStruct((rows, shared, part.head), "bfloat16"), kept, kept]


def _optimizer(jax: Any, part: ModelPart) -> tuple[Callable[..., Any], list[Any]]:
    def update(weight: Any, first: Any, second: Any, gradient: Any) -> Any:
        slope = gradient.astype("float32")
        first = 0.9 * first + 0.1 * slope
        second = 0.95 * second + 0.05 * slope * slope
        moved = first / (jax.numpy.sqrt(second) + 1e-8) + 0.1 * weight
        weight = weight - 3e-4 * moved
        return weight, first, second, weight.astype("bfloat16")

    states = [jax.ShapeDtypeStruct((part.tokens, part.width), "float32")] * 3
    return update, [*states, jax.ShapeDtypeStruct((part.tokens, part.width), "bfloat16")]


_BUILDERS = {
    "layer": _layer,
    "layer gradient": _layer_gradient,
    "head": _head,
    "head gradient": _head_gradient,
    "cache attention": _cache_attention,
    "optimizer": _optimizer,
}
