"""Reductions that run block by block of their axis leave what a program computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16

import glia
from glia.arch.instances import COMPILED_TARGETS
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.evaluate import memory_of, run_block
from glia.tile.ir import Program
from glia.tile.legal import verify
from glia.tile.reductions import block_reductions as pass_module
from glia.tile.reductions import division
from glia.tile.reductions.block_reductions import block_reductions
from glia.tile.text import parse_program, print_program

Array = Any
ROWS, COLUMNS = 256, 1152  # three blocks of 384 values, of two rows of tiles


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few hundred values are too long to stay on chip."""
    monkeypatch.setattr(pass_module, "ROW_SHARE", 0.0)
    monkeypatch.setattr(pass_module, "GROUP_SHARE", 0.0)
    monkeypatch.setattr(division, "BLOCK_BYTES", 384 * 4)


def logsumexp(x: Array) -> Array:
    return jax.nn.logsumexp(x, -1)


def weighted(x: Array, scale: float = 0.7) -> Array:
    """Exponentials times something, of a scaled difference."""
    wide = x.astype(jnp.float32)
    e = jnp.exp((wide - wide.max(-1, keepdims=True)) * scale + 0.25)
    return (e * jnp.sin(wide)).sum(-1) / e.sum(-1)


def cross_entropy(x: Array) -> Array:
    return -jax.nn.log_softmax(x.astype(jnp.float32), -1)[:, 7]


def layernorm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def attention(x: Array, *, keeps: Callable[..., Array] | None = None, queries: int = ROWS) -> Array:
    """Rows attend to the columns that a mask keeps; heads are two.

    Scores are of a size whose rounding, which depends on the host, stays within the tolerance.
    """
    random = np.random.default_rng(3)
    x = x / 8
    q = jnp.asarray(random.standard_normal((2, queries, 32)), jnp.float32) + x[0, 0]
    k, v = (jnp.asarray(random.standard_normal((2, x.shape[1], 32)), jnp.float32) for _ in "kv")
    scores = jnp.einsum("hqd,hkd->hqk", q, k + x[0, :, None]) / 32**0.5
    if keeps is not None:
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape[1:], d) for d in (0, 1))
        scores = jnp.where(keeps(rows, columns), scores, -jnp.inf)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)


def causal(rows: Array, columns: Array) -> Array:
    return columns <= 4 * rows + 3


def window(rows: Array, columns: Array) -> Array:
    return (columns <= 2 * rows + 300) & (columns > 2 * rows)


MASKS: dict[str, Callable[..., Array]] = {"causal": causal, "window": window}
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "logsumexp": logsumexp,
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "weighted": weighted,
    "cross entropy": cross_entropy,
    "variance": lambda x: jnp.var(x, -1),
    "variance about far means": lambda x: jnp.var(x + 300 * jnp.sign(x[:, :1]), -1),
    "layernorm": layernorm,
    "maximum and sum": lambda x: (x.max(-1), jnp.exp(x - x.max(-1, keepdims=True)).sum(-1)),
    "attention": attention,
} | {f"{name} attention": functools.partial(attention, keeps=m) for name, m in MASKS.items()}


def nests_of(function: Callable[..., Any], x: np.ndarray, stop: str = "defer_factors") -> Program:
    lowered = jax.jit(function).lower(x).compiler_ir("hlo")
    graph = read_module(lowered.as_serialized_hlo_module_proto())
    program = run_pipeline(graph, CompileOptions(target="trn2", auto_cast="none"), stop_after=stop)
    assert isinstance(program, Program)
    return program


def evaluate(program: Program, x: np.ndarray) -> list[np.ndarray]:
    memory = memory_of(program, [x])
    with np.errstate(invalid="ignore", over="ignore"):
        run_block(program.body, memory)
    return [memory[name] for name in program.outputs]


def values(columns: int, dtype: Any = np.float32, rows: int = ROWS) -> np.ndarray:
    random = np.random.default_rng(columns)
    return (random.standard_normal((rows, columns)) * 4).astype(dtype)


EVEN = ("variance", "variance about far means", "layernorm")  # blocks have the same extent


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("columns", (COLUMNS, 1153, 1000))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_compute_what_whole_rows_do(name: str, columns: int) -> None:
    x = values(columns)
    program = nests_of(FUNCTIONS[name], x)
    divided = block_reductions(program, CompileOptions(target="trn2"))
    verify(divided)
    assert (divided == program) == (name in EVEN and columns != COLUMNS)
    text = print_program(divided)
    assert print_program(parse_program(text)) == text
    for found, wanted in zip(evaluate(divided, x), evaluate(program, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def with_infinities() -> np.ndarray:
    """Rows of which one block, or all, is infinite; others are far away, or no numbers."""
    x = values(COLUMNS)
    x[0] = -np.inf
    x[1, :384] = -np.inf
    x[2, 384:] = -np.inf
    x[3, 5] = np.inf
    x[4, 700] = np.nan
    x[5, :384], x[5, 384:] = -3e38, 3e38
    x[6, 1:] = -np.inf
    x[7, :] = np.inf
    x[8] -= 5000
    x[8, :384] = -np.inf
    return x


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("name", ("logsumexp", "softmax", "maximum and sum", *EVEN))
def test_blocks_of_infinities_are_like_whole_rows(name: str) -> None:
    x = with_infinities()
    program = nests_of(FUNCTIONS[name], x)
    divided = block_reductions(program, CompileOptions(target="trn2"))
    for found, wanted in zip(evaluate(divided, x), evaluate(program, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("factor", (1.0, 0.0, 1e-9, -1.0))
def test_what_a_mask_hides_counts_where_a_factor_says_so(factor: float) -> None:
    """Exponentials of what is hidden are 0 for factors that are known to be positive alone."""
    random = np.random.default_rng(0)
    k = random.standard_normal((COLUMNS, 16)).astype(np.float32)

    def function(q: Array, t: Array) -> Array:
        scores = q @ k.T
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, d) for d in (0, 1))
        scores = jnp.where(columns <= 4 * rows, scores, -1e9)
        return jnp.exp((scores - scores.max(-1, keepdims=True)) * t).sum(-1)

    q = random.standard_normal((ROWS, 16)).astype(np.float32)
    neff = glia.compile(jax.jit(function).lower(q, factor), target="trn2", auto_cast="none")
    assert any(".blocks" in nest["name"] for nest in neff.report["nests"])
    found = glia.load(neff)(q, np.float32(factor))[0]
    np.testing.assert_allclose(found, function(q, np.float32(factor)), rtol=2e-5)


@pytest.mark.usefixtures("short_rows")
def test_two_exponentials_in_one_sum_are_computed_whole() -> None:
    def function(x: Array) -> tuple[Array, Array]:
        p = jax.lax.optimization_barrier(jnp.exp(x - x.max(-1, keepdims=True)))
        return p @ jnp.ones((COLUMNS, 16)), (p * jnp.exp(0.5 * (x - x.max(-1, keepdims=True)))).sum(
            -1
        )

    x = values(COLUMNS)
    neff = glia.compile(jax.jit(function).lower(x), target="trn2", auto_cast="none", verify=True)
    for found, wanted in zip(glia.load(neff)(x), function(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5)


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("name", MASKS)
def test_what_a_mask_hides_is_in_no_block(name: str) -> None:
    program = nests_of(FUNCTIONS[f"{name} attention"], values(COLUMNS))
    divided = block_reductions(program, CompileOptions(target="trn2"))
    scores = [nest for nest in divided.nests() if nest.name.startswith("dot.0.blocks")]
    computed = sum(np.prod([axis.extent for axis in nest.parallel_axes]) for nest in scores)
    assert computed <= 0.9 * 2 * ROWS * COLUMNS
    assert any("is not computed" in note for note in divided.notes)


def entropy(x: Array) -> Array:
    """Depends on the maximum beside the exponential."""
    shifted = x - x.max(-1, keepdims=True)
    return (jnp.exp(shifted) * shifted).sum(-1)


def of_others(x: Array) -> Array:
    """The exponential is not of what the maximum is of."""
    return jnp.exp(jnp.sin(x) - x.max(-1, keepdims=True)).sum(-1)


def squared(x: Array) -> Array:
    """Not linear in the exponential."""
    return jnp.tanh(jnp.exp(x - x.max(-1, keepdims=True))).sum(-1)


def of_other_rows(x: Array) -> Array:
    return jnp.exp(x - x.max(-1)[::-1][:, None]).sum(-1)


def weighted_squares(x: Array) -> Array:
    return (jnp.square(x - x.mean(-1, keepdims=True)) * jnp.cos(x)).sum(-1)


def about_a_sum_of_others(x: Array) -> Array:
    return jnp.square(x - jnp.sin(x).mean(-1, keepdims=True)).sum(-1)


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize(
    "function",
    (entropy, of_others, squared, of_other_rows, weighted_squares, about_a_sum_of_others),
)
def test_what_algebra_does_not_repair_stays_whole(function: Callable[..., Any]) -> None:
    program = nests_of(function, values(COLUMNS))
    assert block_reductions(program, CompileOptions(target="trn2")) == program


def test_short_rows_stay_whole() -> None:
    program = nests_of(logsumexp, values(4096, rows=128))
    assert block_reductions(program, CompileOptions(target="trn2")) == program


@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("level", (1, 2, 3))
@pytest.mark.usefixtures("short_rows")
def test_blocks_run_on_every_target(target: str, level: int) -> None:
    for name in (
        "softmax",
        "variance",
        "layernorm",
        "attention",
        "causal attention",
        "window attention",
    ):
        x = values(COLUMNS if name in EVEN else 1100)
        lowered = jax.jit(FUNCTIONS[name]).lower(x)
        neff = glia.compile(lowered, target=target, optlevel=level, verify=True, no_cache=True)
        (found,) = glia.load(neff)(x)
        wanted = jax.jit(FUNCTIONS[name])(x)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=5e-5)


@pytest.mark.usefixtures("short_rows")
@pytest.mark.parametrize("target", COMPILED_TARGETS)
@pytest.mark.parametrize("name", ("logsumexp", "softmax"))
def test_blocks_of_infinities_run_on_every_target(name: str, target: str) -> None:
    x = with_infinities()
    lowered = jax.jit(FUNCTIONS[name]).lower(x)
    found = glia.load(glia.compile(lowered, target=target, no_cache=True))(x)
    (wanted,) = evaluate(nests_of(FUNCTIONS[name], x), x)
    np.testing.assert_allclose(found[0], wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("target", ("trn1", "trn2"))
def test_long_rows_are_read_once_for_a_maximum_and_a_sum(target: str) -> None:
    x = jax.ShapeDtypeStruct((128, 65536), bfloat16)
    lowered = jax.jit(lambda x: jax.nn.logsumexp(x.astype(jnp.float32), -1)).lower(x)
    profile = glia.load(glia.compile(lowered, target=target, no_cache=True)).profile()
    assert profile.hbm_bytes < 1.05 * 128 * 65536 * 2
