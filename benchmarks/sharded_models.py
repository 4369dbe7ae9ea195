"""Programs of eight ranks in plain JAX, in bf16, for measures of exchanges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from ml_dtypes import bfloat16

RANKS, HEAD = 8, 64
MESH = AbstractMesh((RANKS,), ("r",))


@dataclass(frozen=True)
class Sharded:
    """A program: its name and size, and the strategy that is meant for it."""

    name: str
    size: str
    strategy: str
    local: Callable[..., Any]
    in_specs: tuple[Any, ...]
    out_specs: Any
    shapes: tuple[tuple[int, ...], ...]

    def lowered(self) -> Any:
        mapped = shard_map(
            self.local, mesh=MESH, in_specs=self.in_specs, out_specs=self.out_specs,
            check_vma=False,
        )  # fmt: skip
        arguments = [jax.ShapeDtypeStruct(shape, bfloat16) for shape in self.shapes]
        return jax.jit(mapped).trace(*arguments).lower(lowering_platforms=("cpu",))


def _norm(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6).astype(x.dtype)


def _attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [rows, heads, HEAD]."""
    rows = q.shape[0]
    scores = jnp.einsum("qhd,khd->hqk", q, k).astype(jnp.float32) / math.sqrt(HEAD)
    weights = jax.nn.softmax(jnp.where(jnp.tri(rows) > 0, scores, -1e30))
    return jnp.einsum("hqk,khd->qhd", weights.astype(q.dtype), v).reshape(rows, -1)


def _layer(x: Any, qkv: Any, out: Any, gate: Any, up: Any, down: Any, total: Any) -> Any:
    """A layer as Llama's, of which `total` sums up what ranks have of products."""
    heads = [each.reshape(x.shape[0], -1, HEAD) for each in jnp.split(_norm(x) @ qkv, 3, -1)]
    x = x + total(_attention(*heads) @ out)
    return x + total((jax.nn.silu(_norm(x) @ gate) * (_norm(x) @ up)) @ down)


def fully_sharded(width: int, hidden: int, rows: int, layers: int = 8) -> Sharded:
    """A step of descent, of which each rank has an eighth of every weight."""
    shapes = [(width, 3 * width), (width, width), *[(width, hidden)] * 2, (hidden, width)] * layers

    def local(x, y, *weights):  # type: ignore[no-untyped-def]
        def loss(weights):  # type: ignore[no-untyped-def]
            z = x[0]
            for layer in range(layers):
                own = weights[5 * layer : 5 * layer + 5]
                whole = [lax.all_gather(w, "r", axis=0, tiled=True) for w in own]
                z = _layer(z, *whole, lambda each: each)
            return jnp.mean((z - y[0]).astype(jnp.float32) ** 2) / RANKS

        value, slopes = jax.value_and_grad(loss)(weights)
        changed = [(w - 0.1 * g).astype(w.dtype) for w, g in zip(weights, slopes, strict=True)]
        return lax.psum(value, "r"), *changed

    specs = [P("r")] * len(shapes)
    return Sharded(
        "FSDP step", f"{layers} layers, {width}, {hidden}, {rows} rows", "fsdp", local,
        (P("r"), P("r"), *specs), (P(), *specs), ((RANKS, rows, width),) * 2 + tuple(shapes),
    )  # fmt: skip


def layers_in_a_loop(width: int, hidden: int, rows: int, layers: int = 8) -> Sharded:
    """Layers by `lax.scan`, of whose weights each rank has an eighth."""
    shapes = [(width, 3 * width), (width, width), *[(width, hidden)] * 2, (hidden, width)]

    def local(x, *weights):  # type: ignore[no-untyped-def]
        def layer(z, own):  # type: ignore[no-untyped-def]
            whole = [lax.all_gather(w, "r", axis=0, tiled=True) for w in own]
            return _layer(z, *whole, lambda each: each), None

        return lax.scan(layer, x[0], weights)[0][None]

    return Sharded(
        "layers in a loop", f"{layers} layers, {width}, {hidden}, {rows} rows", "fsdp", local,
        (P("r"), *[P(None, "r")] * len(shapes)), P("r"),
        ((RANKS, rows, width), *((layers, *shape) for shape in shapes)),
    )  # fmt: skip


def tensor_parallel(width: int, hidden: int, rows: int) -> Sharded:
    """A layer whose heads and hidden units are divided."""
    columns, depth = P(None, "r"), P("r")

    def local(x, *weights):  # type: ignore[no-untyped-def]
        return _layer(x, *weights, lambda each: lax.psum(each, "r"))

    shapes = ((rows, width), (width, 3 * width), (width, width), *[(width, hidden)] * 2,
              (hidden, width))  # fmt: skip
    return Sharded(
        "tensor parallel", f"{width}, {hidden}, {rows} rows", "llm-training", local,
        (P(), columns, depth, columns, columns, depth), P(), shapes,
    )  # fmt: skip


def ring_attention(heads: int, rows: int) -> Sharded:
    """Attention of a sequence in eight pieces; keys and values go around a ring."""
    pairs = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]

    def local(q, k, v):  # type: ignore[no-untyped-def]
        def step(_, state):  # type: ignore[no-untyped-def]
            k, v, best, total, mixed = state
            nearer = [lax.ppermute(each, "r", pairs) for each in (k, v)]
            scores = jnp.einsum("qhd,khd->hqk", q, k).astype(jnp.float32) / math.sqrt(HEAD)
            greatest = jnp.maximum(best, scores.max(-1, keepdims=True))
            weights, before = jnp.exp(scores - greatest), jnp.exp(best - greatest)
            here = jnp.einsum("hqk,khd->hqd", weights.astype(q.dtype), v).astype(jnp.float32)
            total = total * before + weights.sum(-1, keepdims=True)
            return *nearer, greatest, total, mixed * before + here

        column = jnp.zeros((heads, q.shape[0], 1), jnp.float32)
        start = (k, v, column - 1e30, column, jnp.zeros((heads, q.shape[0], HEAD), jnp.float32))
        state = lax.fori_loop(0, RANKS, step, start)
        return (state[4] / state[3]).astype(q.dtype)

    return Sharded(
        "ring attention", f"{heads} heads, {rows} rows", "llm-training", local, (P("r"),) * 3,
        P(None, "r"), ((rows, heads, HEAD),) * 3,
    )  # fmt: skip


def expert_parallel(width: int, hidden: int, tokens: int) -> Sharded:
    """A mixture of eight experts, one a rank: tokens go to their expert and come back."""
    own = tokens // RANKS

    def local(x, gates, up, down):  # type: ignore[no-untyped-def]
        choice = jnp.argmax(x @ gates, 1)
        slots = jax.nn.one_hot(choice, RANKS, dtype=x.dtype).T[:, :, None] * x[None]
        sent = lax.all_to_all(slots, "r", 0, 0, tiled=True)
        made = jax.nn.relu(sent @ up[0]) @ down[0]
        back = lax.all_to_all(made, "r", 0, 0, tiled=True)
        return back[choice, jnp.arange(own)]

    return Sharded(
        "expert parallel", f"{width}, {hidden}, {tokens} tokens", "llm-training", local,
        (P("r"), P(), P("r"), P("r")), P("r"),
        ((tokens, width), (width, RANKS), (RANKS, width, hidden), (RANKS, hidden, width)),
    )  # fmt: skip


def pieces_of_sums(width: int, hidden: int, rows: int) -> Sharded:
    """A layer of which each rank keeps rows: it gathers all, and takes its own of the sums."""
    columns, depth = P(None, "r"), P("r")
    own = rows // RANKS

    def local(x, up, down):  # type: ignore[no-untyped-def]
        every = lax.all_gather(x, "r", axis=0, tiled=True)
        total = lax.psum(jax.nn.silu(_norm(every) @ up) @ down, "r")
        return x + lax.dynamic_slice_in_dim(total, lax.axis_index("r") * own, own)

    return Sharded(
        "pieces of sums", f"{width}, {hidden}, {rows} rows", "llm-training", local,
        (P("r"), columns, depth), P("r"), ((rows, width), (width, hidden), (hidden, width)),
    )  # fmt: skip


def accumulated(width: int, rows: int, batches: int = 4) -> Sharded:
    """Slopes of a layer, summed over ranks for each of several batches, and added up."""

    def local(x, w):  # type: ignore[no-untyped-def]
        def step(batch, total):  # type: ignore[no-untyped-def]
            own = lax.dynamic_index_in_dim(x[0], batch, keepdims=False)
            slope = jax.grad(lambda w: jnp.mean(jnp.tanh(own @ w).astype(jnp.float32)))(w)
            return total + lax.psum(slope.astype(jnp.float32), "r") / RANKS

        return lax.fori_loop(0, batches, step, jnp.zeros(w.shape, jnp.float32))

    return Sharded(
        "slopes of batches", f"{batches} times {rows} rows, {width}", "llm-training", local,
        (P("r"), P()), P(), ((RANKS, batches, rows, width), (width, width)),
    )  # fmt: skip


def gathered_in_a_loop(width: int, rows: int, batches: int = 4) -> Sharded:
    """Batches that all go through one layer, whose weights are gathered for each."""

    def local(x, w):  # type: ignore[no-untyped-def]
        def step(_, state):  # type: ignore[no-untyped-def]
            return jnp.tanh(state @ lax.all_gather(w, "r", axis=0, tiled=True))

        return lax.fori_loop(0, batches, step, x[0])

    return Sharded(
        "weights in a loop", f"{batches} times {rows} rows, {width}", "llm-training", local,
        (P("r"), P("r")), P("r"), ((RANKS, rows, width), (width, width)),
    )  # fmt: skip


def moved_programs() -> Iterator[Sharded]:
    """Programs that exchange more, or more often, than they must."""
    for width, hidden, rows in ((1024, 2816, 256), (2048, 5632, 512)):
        yield pieces_of_sums(width, hidden, rows)
    for width, rows in ((512, 128), (1024, 256)):
        yield accumulated(width, rows)
        yield gathered_in_a_loop(width, rows)


def programs() -> Iterator[Sharded]:
    """Each kind of program at three sizes."""
    for width, hidden, rows in ((256, 704, 128), (512, 1408, 128), (1024, 2816, 256)):
        yield fully_sharded(width, hidden, rows)
        yield layers_in_a_loop(width, hidden, rows)
    for width, hidden, rows in ((1024, 2816, 256), (2048, 5632, 512), (4096, 14336, 1024)):
        yield tensor_parallel(width, hidden, rows)
    for heads, rows in ((4, 1024), (8, 2048), (8, 4096)):
        yield ring_attention(heads, rows)
    for width, hidden, tokens in ((512, 1024, 512), (1024, 2048, 1024), (1024, 4096, 2048)):
        yield expert_parallel(width, hidden, tokens)
