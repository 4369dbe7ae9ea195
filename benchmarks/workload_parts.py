"""Single operations and few of them, alone and together, among the workloads."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import kernel_table
from jax import lax
from ml_dtypes import bfloat16
from workload import BOTH, Arguments, Array, Kernel, Workload, shaped

DTYPES = {"bf16": bfloat16, "fp32": jnp.float32}
ROWS = 4096  # and columns of what works on rows

EPSILON = 1e-5  # of layer norms


def products() -> Iterator[Workload]:
    goals = {
        (1024, 1024, 1024): 0.70, (2048, 2048, 2048): 0.88,
        (4096, 8192, 8192): 0.93, (4096, 5120, 12288): 0.93,
    }  # fmt: skip
    for name, dtype in DTYPES.items():
        for (m, k, n), goal in goals.items():
            arguments = shaped(m, k, dtype=dtype), shaped(k, n, dtype=dtype)
            squared = kernel_table.zeros(2048, 2048, dtype=dtype)
            kernel = Kernel(kernel_table.matmul_fully_blocked, (squared, squared))
            yield Workload(
                f"matmul {m}x{k}x{n} {name}", jnp.matmul, arguments,
                0.9 if name == "fp32" else goal, kernel if m == 2048 else None,
                targets=BOTH if name == "fp32" else ("trn2",),
            )  # fmt: skip
        batched = shaped(16, 1024, 1024, dtype=dtype)
        yield Workload(
            f"matmul 16 x 1024x1024x1024 {name}", jnp.matmul, (batched, batched),
            0.9 if name == "fp32" else 0.88, targets=BOTH if name == "fp32" else ("trn2",),
        )  # fmt: skip


def rms_norm(x: Array, gain: Array) -> Array:
    """RMSnorm over the last axis, in float32 inside."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype) * gain


def layer_norm(x: Array, gain: Array, shift: Array) -> Array:
    """Layer norm over the last axis, in float32 inside."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scale = lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
    return (centred * scale).astype(x.dtype) * gain + shift


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of x [positions, heads, features] by cos, sin [positions, features / 2]."""
    left, right = jnp.split(x, 2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def adamw(w: Array, m: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
    """A step of AdamW with fixed rates; the state has the type of the weights."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * (g * g)
    return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * w), m, v


def rows() -> Iterator[Workload]:
    for name, dtype in DTYPES.items():
        x, row = (shaped(*s, dtype=dtype) for s in ((ROWS, ROWS), (ROWS,)))
        example, line = (kernel_table.zeros(*s.shape, dtype=dtype) for s in (x, row))
        heads, angles = (shaped(*s, dtype=dtype) for s in ((ROWS, 32, 128), (ROWS, 64)))
        turned, table = (kernel_table.zeros(*s.shape, dtype=dtype) for s in (heads, angles))
        rope = Kernel(kernel_table.rope, (turned, table, table))
        functions: tuple[tuple[str, Any, Arguments, Kernel | None], ...] = (
            ("softmax", jax.nn.softmax, (x,), Kernel(kernel_table.softmax, (example,))),
            ("layernorm", layer_norm, (x, row, row),
             Kernel(kernel_table.layernorm, (example, line, line))),
            ("RMSnorm", rms_norm, (x, row), Kernel(kernel_table.rmsnorm, (example, line))),
            ("GELU(tanh) + bias", lambda x, b: jax.nn.gelu(x + b), (x, row), None),
            ("GELU(erf) + bias", lambda x, b: jax.nn.gelu(x + b, approximate=False), (x, row),
             None),
            ("residual + norm", lambda x, r, g, b: layer_norm(x + r, g, b), (x, x, row, row),
             None),
            ("rotary", rotate, (heads, angles, angles), rope),
        )  # fmt: skip
        for title, function, arguments, kernel in functions:
            yield Workload(f"{title} {name}", function, arguments, 0.85, kernel, targets=BOTH)
        state = (x, x, x, x)
        donated = (0, 1, 2)
        yield Workload(f"AdamW donated {name}", adamw, state, 0.85, targets=BOTH, donated=donated)


def long_rows() -> Iterator[Workload]:
    """Rows that SBUF does not hold: their reductions read them once, what they normalise twice."""
    for name, dtype in DTYPES.items():
        x = shaped(512, 131_072, dtype=dtype)
        functions: tuple[tuple[str, Any, int], ...] = (
            ("logsumexp", lambda x: jax.nn.logsumexp(x.astype(jnp.float32), -1), 1),
            ("variance", lambda x: jnp.var(x.astype(jnp.float32), -1), 1),
            ("softmax", lambda x: jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype), 3),
        )
        for title, function, times in functions:
            moved = times * x.size * x.dtype.itemsize
            name_of = f"{title} of 131,072 columns {name}"
            yield Workload(name_of, function, (x,), 0.85, targets=BOTH, moved=moved)


def attention(q: Array, k: Array, v: Array, *, is_causal: bool = True) -> Array:
    """Attention of q [heads, queries, width] to k and v [groups, keys, width]."""
    heads, queries, width = q.shape
    groups, keys = k.shape[:2]
    q = q.reshape(groups, heads // groups, queries, width)
    scores = jnp.einsum("ghqd,gkd->ghqk", q, k).astype(jnp.float32) * width**-0.5
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones((queries, keys), bool)), scores, -1e30)
    mixed = jnp.einsum("ghqk,gkd->ghqd", jax.nn.softmax(scores).astype(q.dtype), v)
    return mixed.reshape(heads, queries, width)


def attentions() -> Iterator[Workload]:
    shapes = ((16, 16, 2048, True), (1, 1, 8192, True), (1, 1, 16384, True), (32, 8, 2048, True),
              (16, 16, 2048, False), (1, 1, 16384, False))  # fmt: skip
    for heads, groups, size, is_causal in shapes:
        q, k = shaped(heads, size, 128), shaped(groups, size, 128)
        turned = (kernel_table.zeros(1, n, 128, size) for n in (heads, groups))
        arguments = (*turned, kernel_table.zeros(1, groups, size, 128))
        needed = 4.0 * heads * size * size * 128 / (2 if is_causal else 1)
        is_roof = is_causal and size == 16384
        title = f"{'causal' if is_causal else 'full'} attention {heads}/{groups} x {size} x 128"
        yield Workload(
            title, functools.partial(attention, is_causal=is_causal), (q, k, k),
            0.55 if is_roof else 1.0,
            Kernel(kernel_table.flash_attention, arguments, {"causal": is_causal}),
            is_against_kernel=not is_roof, flops=needed,
        )  # fmt: skip


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    """(silu(x gate) * (x up)) down."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def products_with_neighbours() -> Iterator[Workload]:
    width, inner = 2048, 8192
    wide, narrow = kernel_table.zeros(width, inner), kernel_table.zeros(inner, width)
    for rows in (512, 2048):
        arguments = shaped(rows, width), shaped(width, inner), shaped(width, inner)
        kernel = Kernel(kernel_table.swiglu, (kernel_table.zeros(rows, width), wide, wide, narrow))
        yield Workload(f"SwiGLU {rows}", swiglu, (*arguments, shaped(inner, width)), 0.85, kernel)
    x, w, row = shaped(2048, 4096), shaped(4096, 4096), shaped(4096)
    low, high = shaped(4096, 16), shaped(16, 4096)
    functions: tuple[tuple[str, Any, Arguments], ...] = (
        ("RMSnorm + matmul", lambda x, g, w: rms_norm(x, g) @ w, (x, row, w)),
        ("matmul + add + RMSnorm", lambda x, w, r, g: rms_norm(x @ w + r, g), (x, w, x, row)),
        ("LoRA", lambda x, w, a, b: x @ w + (x @ a) @ b, (x, w, low, high)),
        ("matmul + softmax", lambda x, w: jax.nn.softmax(x @ w), (x, w)),
    )
    for title, function, arguments in functions:
        yield Workload(title, function, arguments, 0.85)
