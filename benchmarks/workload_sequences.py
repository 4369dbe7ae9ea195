"""Recurrences, and what selects by value, among the workloads."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import kernel_table
from jax import lax
from workload import BOTH, Array, Kernel, Workload, shaped


def mamba(delta: Array, u: Array, a: Array, b: Array, c: Array, *, scan: Any) -> Array:
    """The selective scan of [batch, channels, time]; b and c are [batch, states, time]."""
    kept = jnp.exp(delta[:, :, None] * a[None, :, :, None])
    added = (delta * u)[:, :, None] * b[:, None]
    return (scan(kept, added) * c[:, None]).sum(2)


def recurrence_by_scan(kept: Array, added: Array) -> Array:
    """h[t] = kept[t] * h[t - 1] + added[t] along the last axis, step by step."""

    def advance(state: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        state = now[0] * state + now[1]
        return state, state

    first = jnp.moveaxis(kept, -1, 0), jnp.moveaxis(added, -1, 0)
    _, states = lax.scan(advance, jnp.zeros_like(first[0][0]), first)
    return jnp.moveaxis(states, 0, -1)


def recurrence_by_association(kept: Array, added: Array) -> Array:
    """The same in logarithmically many steps."""

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combine, (kept, added), axis=-1)[1]


def recurrences() -> Iterator[Workload]:
    time, channels, states = 512, 256, 16
    shapes = (1, channels, time), (1, channels, time), (channels, states), (1, states, time)
    shapes = (*shapes, shapes[-1])
    arguments = tuple(shaped(*shape, dtype=jnp.float32) for shape in shapes)
    examples = tuple(kernel_table.zeros(*shape, dtype=jnp.float32) for shape in shapes)
    cycles = {"vector": 2 * states * 2 * time}  # of the scan alone
    for title, scan in (
        ("lax.scan", recurrence_by_scan),
        ("associative_scan", recurrence_by_association),
    ):
        function = functools.partial(mamba, scan=scan)
        kernel = Kernel(kernel_table.mamba, examples)
        yield Workload(
            f"mamba by {title} fp32", function, arguments, 0.75, kernel, is_against_kernel=True,
            targets=BOTH, cycles=cycles,
        )  # fmt: skip


def experts(x: Array, router: Array, gate: Array, up: Array, down: Array) -> Array:
    """Each token through the two experts its router prefers, each expert with a fixed capacity."""
    tokens, count = x.shape[0], router.shape[1]
    capacity = 2 * tokens // count
    scores, chosen = lax.top_k((x @ router).astype(jnp.float32), 2)
    shares, chosen = jax.nn.softmax(scores).reshape(-1), chosen.reshape(-1)
    is_sent = jax.nn.one_hot(chosen, count, dtype=jnp.int32)
    place = ((jnp.cumsum(is_sent, 0) - 1) * is_sent).sum(-1)
    slot = jnp.where(place < capacity, chosen * capacity + place, count * capacity)
    sent = jnp.zeros((count * capacity, x.shape[1]), x.dtype)
    sent = sent.at[slot].set(jnp.repeat(x, 2, 0), mode="drop").reshape(count, capacity, -1)
    hidden = jax.nn.silu(jnp.einsum("ecw,ewh->ech", sent, gate))
    hidden = hidden * jnp.einsum("ecw,ewh->ech", sent, up)
    results = jnp.einsum("ech,ehw->ecw", hidden, down).reshape(count * capacity, -1)
    taken = results.at[slot].get(mode="fill", fill_value=0) * shares[:, None].astype(x.dtype)
    return taken.reshape(tokens, 2, -1).sum(1)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """The loss of each position."""
    wide = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(wide, targets[:, None], 1)[:, 0]
    return jax.nn.logsumexp(wide, -1) - chosen


def selections() -> Iterator[Workload]:
    case = next(kernel_table._experts())
    count, size, tokens = 8, 1024, 2048
    weights = shaped(count, size, size)
    arguments = shaped(tokens, size), shaped(size, count), weights, weights, weights
    kernel = Kernel(case.kernel, case.arguments, case.constants)
    yield Workload("MoE top-2 of 8", experts, arguments, 0.75, kernel, is_against_kernel=True)
    logits, targets = shaped(512, 32768), shaped(512, dtype=jnp.int32)
    examples = kernel_table.zeros(512, 32768), kernel_table.zeros(512, dtype=jnp.int32)
    kernel = Kernel(kernel_table.cross_entropy_forward, examples)
    yield Workload(
        "cross-entropy 512x32k", cross_entropy, (logits, targets), 0.75, kernel,
        is_against_kernel=True,
    )  # fmt: skip
    x = shaped(128, 8192, dtype=jnp.float32)
    kernel = Kernel(kernel_table.top_k, (kernel_table.zeros(*x.shape, dtype=x.dtype),), {"k": 64})
    yield Workload(
        "top-64 of 128x8192 fp32", lambda x: lax.top_k(x, 64), (x,), 0.75, kernel,
        is_against_kernel=True,
    )  # fmt: skip
    x = shaped(2048, 8192, dtype=jnp.float32)
    kernel = Kernel(kernel_table.cumsum, (kernel_table.zeros(*x.shape, dtype=x.dtype),))
    yield Workload(
        "cumsum 2048x8192 fp32", lambda x: jnp.cumsum(x, -1), (x,), 0.75, kernel,
        is_against_kernel=True, targets=BOTH,
    )  # fmt: skip
