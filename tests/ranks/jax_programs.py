"""Programs of eight devices in plain JAX, each with the same function on one device.

Meshes are abstract: nothing here needs more than one device of JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RankedProgram:
    """`local` runs on each device of a mesh, `whole` on one device with whole arrays."""

    mesh: AbstractMesh
    local: Callable[..., Any]
    whole: Callable[..., Any]
    in_specs: tuple[Any, ...]
    out_specs: Any
    inputs: tuple[Array, ...]

    def lowered(self) -> Any:
        mapped = shard_map(
            self.local, mesh=self.mesh, in_specs=self.in_specs, out_specs=self.out_specs,
            check_vma=False,
        )  # fmt: skip
        return jax.jit(mapped).trace(*self.inputs).lower(lowering_platforms=("cpu",))

    def inputs_of_ranks(self) -> list[list[Array]]:
        ranks = math.prod(self.mesh.axis_sizes)
        return [
            [piece(array, spec, self.mesh, rank)
             for array, spec in zip(self.inputs, self.in_specs, strict=True)]
            for rank in range(ranks)
        ]  # fmt: skip

    def expected(self) -> list[list[Array]]:
        """The pieces of the results of one device that each rank must have."""
        results = self.whole(*self.inputs)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(results)]
        specs = jax.tree.leaves(self.out_specs, is_leaf=lambda spec: isinstance(spec, P))
        specs = specs * len(leaves) if len(specs) == 1 else specs
        ranks = math.prod(self.mesh.axis_sizes)
        return [
            [piece(array, spec, self.mesh, rank)
             for array, spec in zip(leaves, specs, strict=True)]
            for rank in range(ranks)
        ]  # fmt: skip


def piece(array: Array, spec: Any, mesh: AbstractMesh, rank: int) -> Array:
    """What a rank has of an array that a spec divides."""
    places = dict(zip(mesh.axis_names, np.unravel_index(rank, mesh.axis_sizes), strict=True))
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    index: list[slice] = []
    for extent, names in zip(array.shape, (*spec, *[None] * array.ndim), strict=False):
        names = () if names is None else (names,) if isinstance(names, str) else names
        count, place = 1, 0
        for name in names:
            count, place = count * sizes[name], place * sizes[name] + int(places[name])
        step = extent // count
        index.append(slice(place * step, (place + 1) * step))
    return np.ascontiguousarray(array[tuple(index)])


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    values = np.random.default_rng(seed + sum(shape)).standard_normal(shape) * scale
    return values.astype(np.float32)


def tensor_parallel() -> RankedProgram:
    """A block of attention and a perceptron, heads and hidden units divided among 8."""
    width, heads, rows = 32, 8, 12
    head = width // heads

    def block(x, wq, wk, wv, wo, up, down, total):
        q, k, v = (jnp.einsum("sd,dhe->hse", x, w) for w in (wq, wk, wv))
        weights = jax.nn.softmax(jnp.einsum("hse,hte->hst", q, k) / math.sqrt(head))
        mixed = jnp.einsum("hst,hte->she", weights, v)
        x = x + total(jnp.einsum("she,hed->sd", mixed, wo))
        return x + total(jax.nn.gelu(x @ up) @ down)

    shapes = [(width, heads, head)] * 3 + [(heads, head, width), (width, 64), (64, width)]
    weights = [random(*shape, seed=n, scale=0.3) for n, shape in enumerate(shapes)]
    specs = (P(), *[P(None, "t")] * 3, P("t"), P(None, "t"), P("t"))
    return RankedProgram(
        AbstractMesh((8,), ("t",)),
        lambda *args: block(*args, lambda y: lax.psum(y, "t")),
        lambda *args: block(*args, lambda y: y),
        specs,
        P(),
        (random(rows, width, seed=9), *weights),
    )


def fully_sharded() -> RankedProgram:
    """A step of descent, of which each rank has a piece of every weight and of the batch."""
    shapes = [(16, 32), (32, 32), (32, 8)]
    weights = tuple(random(*shape, seed=n, scale=0.3) for n, shape in enumerate(shapes))
    x, y = random(24, 16, seed=7), random(24, 8, seed=8)

    def loss(weights, x, y):
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return jnp.mean((x @ weights[-1] - y) ** 2)

    def local(x, y, *weights):
        def gathered_loss(weights):
            whole = [lax.all_gather(w, "f", axis=0, tiled=True) for w in weights]
            return loss(whole, x, y) / 8

        value, slopes = jax.value_and_grad(gathered_loss)(weights)
        return lax.psum(value, "f"), *[w - 0.1 * g for w, g in zip(weights, slopes, strict=True)]

    def whole(x, y, *weights):
        value, slopes = jax.value_and_grad(loss)(weights, x, y)
        return value, *[w - 0.1 * g for w, g in zip(weights, slopes, strict=True)]

    return RankedProgram(
        AbstractMesh((8,), ("f",)), local, whole, (P("f"), P("f"), *[P("f")] * 3),
        (P(), *[P("f")] * 3), (x, y, *weights),
    )  # fmt: skip


def ring_attention() -> RankedProgram:
    """Causal attention of a sequence in eight pieces; keys and values go around a ring."""
    rows, width, ranks = 64, 16, 8
    piece_rows = rows // ranks

    def local(q, k, v):
        me = lax.axis_index("s")

        def step(number, state):
            k, v, best, total, mixed = state
            scores = q @ k.T / math.sqrt(width)
            source = (me - number) % ranks
            rows_at = me * piece_rows + jnp.arange(piece_rows)[:, None]
            columns = source * piece_rows + jnp.arange(piece_rows)[None]
            scores = jnp.where(rows_at >= columns, scores, -1e30)
            greatest = jnp.maximum(best, scores.max(1, keepdims=True))
            weights = jnp.exp(scores - greatest)
            before = jnp.exp(best - greatest)
            total = total * before + weights.sum(1, keepdims=True)
            mixed = mixed * before + weights @ v
            pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
            return (*(lax.ppermute(each, "s", pairs) for each in (k, v)), greatest, total, mixed)

        column = jnp.zeros((piece_rows, 1), jnp.float32)
        state = (k, v, column - 1e30, column, jnp.zeros_like(q))
        state = lax.fori_loop(0, ranks, step, state)
        return state[4] / state[3]

    def whole(q, k, v):
        scores = jnp.where(jnp.tri(rows) > 0, q @ k.T / math.sqrt(width), -1e30)
        return jax.nn.softmax(scores) @ v

    spec = P("s")
    return RankedProgram(
        AbstractMesh((8,), ("s",)), local, whole, (spec,) * 3, spec,
        tuple(random(rows, width, seed=n) for n in range(3)),
    )  # fmt: skip


def expert_parallel() -> RankedProgram:
    """A mixture of eight experts, one a rank: tokens go to their expert and come back."""
    tokens, width, hidden, ranks = 64, 8, 16, 8
    own = tokens // ranks

    def local(x, gates, up, down):
        choice = jnp.argmax(x @ gates, 1)
        weight = jax.nn.softmax(x @ gates)[jnp.arange(own), choice]
        slots = jax.nn.one_hot(choice, ranks).T[:, :, None] * x[None]
        sent = lax.all_to_all(slots, "e", 0, 0, tiled=True)
        made = jax.nn.relu(sent @ up[0]) @ down[0]
        back = lax.all_to_all(made, "e", 0, 0, tiled=True)
        return back[choice, jnp.arange(own)] * weight[:, None]

    def whole(x, gates, up, down):
        choice = jnp.argmax(x @ gates, 1)
        weight = jax.nn.softmax(x @ gates)[jnp.arange(tokens), choice]
        made = jnp.einsum("th,thd->td", jax.nn.relu(jnp.einsum("td,tdh->th", x, up[choice])),
                          down[choice])  # fmt: skip
        return made * weight[:, None]

    return RankedProgram(
        AbstractMesh((8,), ("e",)), local, whole, (P("e"), P(), P("e"), P("e")), P("e"),
        (random(tokens, width, seed=1), random(width, ranks, seed=2),
         random(ranks, width, hidden, seed=3), random(ranks, hidden, width, seed=4)),
    )  # fmt: skip


def tensor_and_data_parallel() -> RankedProgram:
    """A step of descent on a mesh of two by four: rows of the batch, columns of the weights."""
    x, y = random(8, 16, seed=1), random(8, 4, seed=2)
    first, second = random(16, 32, seed=3, scale=0.3), random(32, 4, seed=4, scale=0.3)

    def local(x, y, first, second):
        def loss(weights):
            guess = lax.psum(jax.nn.relu(x @ weights[0]) @ weights[1], "t")
            return jnp.sum((guess - y) ** 2) / 8

        value, slopes = jax.value_and_grad(loss)((first, second))
        # the sum in `loss` has each of the four ranks count the whole of the error
        slopes = [lax.psum(slope, "d") / 4 for slope in slopes]
        return lax.psum(value, "d"), first - 0.1 * slopes[0], second - 0.1 * slopes[1]

    def whole(x, y, first, second):
        def loss(weights):
            return jnp.sum((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2) / 8

        value, slopes = jax.value_and_grad(loss)((first, second))
        return value, first - 0.1 * slopes[0], second - 0.1 * slopes[1]

    columns, rows = P(None, "t"), P("t")
    return RankedProgram(
        AbstractMesh((2, 4), ("d", "t")), local, whole, (P("d"), P("d"), columns, rows),
        (P(), columns, rows), (x, y, first, second),
    )  # fmt: skip


PROGRAMS: Sequence[Callable[[], RankedProgram]] = (
    tensor_parallel, fully_sharded, ring_attention, expert_parallel, tensor_and_data_parallel,
)  # fmt: skip
