"""Random softmaxes, losses, norms and attentions compute the same in blocks, on every target."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.arch.instances import COMPILED_TARGETS
from glia.frontend.registry import read_module
from glia.graph.evaluate import evaluate
from glia.tile.reductions import block_reductions, division

Array = Any
SEEDS = 40
NIGHTLY_SEEDS = 1000
COLUMNS = (384, 500, 512, 640, 1000, 1153)
MASKS: tuple[Callable[[Array, Array], Array], ...] = (
    lambda i, j: j <= i,
    lambda i, j: j <= 2 * i + 7,
    lambda i, j: (j <= i + 300) & (j > i - 200),
    lambda i, j: j >= i - 5,
    lambda i, j: (i + j) % 3 > 0,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A function with its arguments, and how it is compiled."""

    function: Callable[..., tuple[Array, ...]]
    arguments: tuple[np.ndarray, ...]
    options: dict[str, Any]


def draw(seed: int) -> Case:
    """A case in which something is summed about the maximum, or the mean, of a row."""
    random = np.random.default_rng(seed)
    make = (rows, attentions)[int(random.integers(3) == 0)]
    function, arguments = make(random)
    target = str(random.choice(COMPILED_TARGETS))
    level = int(random.integers(1, 4))
    return Case(function, arguments, {"target": target, "optlevel": level})


def rows(random: np.random.Generator) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    """Some of what is made of rows: they lie along any axis, and what is returned is drawn."""
    shape = [int(n) for n in random.choice((1, 3, 17, 128, 130), random.integers(1, 3))]
    axis = int(random.integers(len(shape) + 1))
    shape.insert(axis, int(random.choice(COLUMNS)))
    scale = float(random.choice((1.0, 0.3, -0.5)))
    wanted = random.permutation(11)[: random.integers(1, 5)]
    is_stored = bool(random.integers(2))
    dtype = (np.float32, np.float32, jnp.bfloat16)[random.integers(3)]

    def function(x: Array, w: Array) -> tuple[Array, ...]:
        wide = x.astype(jnp.float32)
        top = wide.max(axis, keepdims=True)
        e = jnp.exp((wide - top) * scale)
        e = jax.lax.optimization_barrier(e) if is_stored else e
        weighted = jax.lax.optimization_barrier(e * w)
        total = e.sum(axis, keepdims=True)
        mean = wide.mean(axis, keepdims=True)
        parts = (
            lambda: top,
            lambda: total,
            lambda: e / total,
            lambda: (e * w).sum(axis) / total.squeeze(axis),
            lambda: jax.nn.logsumexp(wide, axis),
            lambda: jnp.square(wide - mean).sum(axis),
            lambda: (wide - mean) / jnp.sqrt(jnp.var(wide, axis, keepdims=True) + 1e-3),
            lambda: weighted,
            lambda: weighted.sum(axis),
            lambda: (weighted * top).sum(axis),
            lambda: e.sum(),
        )
        return tuple(parts[n]() for n in wanted)

    x = (random.standard_normal(shape) * 3).astype(dtype)
    return function, (x, random.standard_normal(shape).astype(np.float32))


def attentions(random: np.random.Generator) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    """Attention of some heads to the keys that a mask keeps, if there is one."""
    groups, shared = int(random.integers(1, 3)), int(random.integers(1, 3))
    queries, keys = int(random.choice((1, 60, 128, 200))), int(random.choice(COLUMNS))
    mask = MASKS[int(random.integers(len(MASKS)))] if random.integers(2) else None
    hidden = float(random.choice((-np.inf, -1e30)))
    is_bias = bool(random.integers(2))

    def function(q: Array, k: Array, v: Array, bias: Array) -> tuple[Array, ...]:
        scores = jnp.einsum("gsqd,gkd->gsqk", q, k) * 0.2
        scores = scores + bias if is_bias else scores
        if mask is not None:
            i, j = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (2, 3))
            scores = jnp.where(mask(i + max(0, keys - queries), j), scores, hidden)
        return (jnp.einsum("gsqk,gkd->gsqd", jax.nn.softmax(scores, -1), v),)

    shapes = (groups, shared, queries, 32), (groups, keys, 32), (groups, keys, 32), (keys,)
    return function, tuple(random.standard_normal(s).astype(np.float32) for s in shapes)


def failures(seeds: range, divided: Counter[bool]) -> list[str]:
    found = []
    for seed in seeds:
        case = draw(seed)
        lowered = jax.jit(case.function, keep_unused=True).lower(*case.arguments)
        options = {"auto_cast": "none", "verify": True, "no_cache": True, **case.options}
        neff = glia.compile(lowered, **options)
        divided[any(".blocks" in nest["name"] for nest in neff.report["nests"])] += 1
        module: Any = lowered.compiler_ir("hlo")
        wanted = evaluate(
            read_module(module.as_serialized_hlo_module_proto()), list(case.arguments)
        )
        for value, goal in zip(glia.load(neff)(*case.arguments), wanted, strict=True):
            wide = np.asarray(goal, np.float64)
            scale = np.max(np.abs(wide[np.isfinite(wide)]), initial=1.0)
            if not np.allclose(value, wide, 1e-4, 2e-5 * scale, equal_nan=True):
                off = np.nanmax(np.abs(np.asarray(value, np.float64) - wide))
                found.append(f"seed {seed} {case.options}: off by {off}")
    return found


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few hundred values are too long to stay on chip."""
    monkeypatch.setattr(block_reductions, "ROW_SHARE", 0.0)
    monkeypatch.setattr(block_reductions, "GROUP_SHARE", 0.0)
    monkeypatch.setattr(division, "BLOCK_BYTES", 256 * 4)


@pytest.mark.usefixtures("short_rows")
def test_random_reductions_compute_the_same_in_blocks() -> None:
    divided = Counter[bool]()
    assert failures(range(SEEDS), divided) == []
    assert divided[True] > SEEDS / 2


@pytest.mark.nightly
@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("first", range(SEEDS, NIGHTLY_SEEDS, 60))
def test_many_random_reductions_compute_the_same_in_blocks(first: int) -> None:
    assert failures(range(first, first + 60), Counter()) == []
