"""Dimensions of buffers, and the axes over them, become one; values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.tile.contraction import axes_of, contraction_operands
from glia.tile.evaluate import evaluate
from glia.tile.legal import verify
from support.targets import CORES


def _grouped_queries(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("grd,kgd->grk", q, k)
    weights = jax.nn.softmax(jnp.where(jnp.arange(scores.shape[2]) < 50, scores, -1e9), -1)
    return jnp.einsum("grk,kgd->grd", weights, v)


def _turned(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("grd,kgd->grk", q, k)
    return (scores - scores.max(-1, keepdims=True)).transpose(1, 0, 2) * 2


def _counted(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("grd,kgd->grk", q, k)
    scores = jnp.exp(scores - scores.max(-1, keepdims=True))
    return (scores * (jnp.arange(3)[:, None, None] + scores.sum(-1, keepdims=True))).sum(-1)


# By name: a function, and how many rows its reductions have
PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "queries of a group": (_grouped_queries, 15),
    "read with its axes exchanged": (_turned, 15),
    "numbered along one axis": (_counted, 3),
}


def _arguments() -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    shapes = (3, 5, 16), (64, 3, 16), (64, 3, 16)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_merged_where_every_access_allows_it(name: str) -> None:
    function, rows = PROGRAMS[name]
    lowered = jax.jit(function, keep_unused=True).lower(*_arguments())
    options = CompileOptions(auto_cast="none")
    nests = run_pipeline(read_module(lowered), options, stop_after="merge_rows")
    verify(nests)
    reductions = [n for n in nests.nests() if n.reduction and not contraction_operands(n)]
    assert {max(a.extent for a in nest.parallel_axes) for nest in reductions} == {max(rows, 5)}
    (found,) = evaluate(nests, _arguments())
    np.testing.assert_allclose(found, function(*_arguments()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_merged_rows_keep_every_value(name: str, target: str) -> None:
    lowered = jax.jit(PROGRAMS[name][0], keep_unused=True).lower(*_arguments())
    neff = glia.compile(lowered, target=target, verify=True, auto_cast="none")
    (found,) = glia.load(neff)(*_arguments())
    wanted = PROGRAMS[name][0](*_arguments())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def _encoder(x: Any, q: Any, k: Any, v: Any, up: Any, down: Any) -> Any:
    """A layer of a transformer over [sequences, tokens, features], two heads."""
    heads = [(x @ w).reshape(*x.shape[:2], 2, -1) for w in (q, k, v)]
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads[0], heads[1]) * 0.2
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), heads[2])
    x = x + mixed.reshape(x.shape)
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x + jnp.maximum(x @ up, 0) @ down


def _layer_arguments(sequences: int, tokens: int) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    shapes = [(sequences, tokens, 128), *[(128, 128)] * 3, (128, 160), (160, 128)]
    return [generator.standard_normal(shape).astype(np.float32) * 0.2 for shape in shapes]


@pytest.mark.parametrize("tokens", [128, 197])
def test_rows_of_products_are_one_axis_and_batches_stay(tokens: int) -> None:
    arguments = _layer_arguments(3, tokens)
    lowered = jax.jit(_encoder).lower(*arguments)
    options = CompileOptions(auto_cast="none")
    nests = run_pipeline(read_module(lowered), options, stop_after="merge_rows")
    verify(nests)
    products = [n for n in nests.nests() if contraction_operands(n)]
    rows = sorted(max(a.extent for a in n.parallel_axes) for n in products)
    assert rows == [tokens, tokens, *[3 * tokens] * 5]
    (found,) = evaluate(nests, arguments)
    wanted = _encoder(*arguments)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [128, 197])
@pytest.mark.parametrize("target", CORES)
def test_a_layer_over_merged_rows_keeps_every_value(tokens: int, target: str) -> None:
    """Attention reads and writes what has its rows merged, and is one group all the same."""
    arguments = _layer_arguments(2, tokens)
    lowered = jax.jit(_encoder).lower(*arguments)
    neff = glia.compile(lowered, target=target, verify=True, auto_cast="none", no_cache=True)
    assert not any("slower way" in note for note in neff.notes), neff.notes
    (found,) = glia.load(neff)(*arguments)
    np.testing.assert_allclose(found, _encoder(*arguments), rtol=1e-3, atol=1e-3)


def test_long_rows_that_are_reduced_by_blocks_stay_in_blocks() -> None:
    """The blocks of the keys are an axis of the scores, and of the reductions over them."""
    shape = jax.ShapeDtypeStruct((1, 16384, 128), jnp.bfloat16)

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1).astype(v.dtype), v)

    module = read_module(jax.jit(attention).lower(shape, shape, shape))
    options = CompileOptions(auto_cast="none")
    before, after = (
        run_pipeline(module, options, stop_after=each) for each in ("split_batches", "merge_rows")
    )
    assert any(nest.name.endswith(".blocks") for nest in before.nests())
    assert [n.extents for n in before.nests()] == [n.extents for n in after.nests()]


def test_attention_between_merged_rows_is_one_group() -> None:
    arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _layer_arguments(2, 384)]
    lowered = jax.jit(_encoder).lower(*arguments)
    options = CompileOptions(auto_cast="none")
    program = run_pipeline(read_module(lowered), options, stop_after="group_nests")
    batches = {
        n.name for n in program.nests()
        if (operands := contraction_operands(n)) and axes_of(operands[0]) & axes_of(operands[1])
        - {program.schedules[n.name].contract}
    }  # fmt: skip
    together = [{m.nest for _, m in group.members()} for group in program.groups]
    assert len(batches) == 2 and any(batches <= members for members in together)


def _patches(x: Any, w: Any) -> Any:
    """Patches of images as rows of features, as vision transformers begin."""
    found = jax.lax.conv_general_dilated(x, w, (4, 4), "VALID")
    return found.reshape(*found.shape[:2], -1).transpose(0, 2, 1) + 1


@pytest.mark.parametrize("target", CORES)
def test_rows_and_columns_of_patches_are_one_axis(target: str) -> None:
    generator = np.random.default_rng(6)
    x, w = (
        generator.standard_normal(n).astype(np.float32) for n in ((2, 3, 24, 24), (20, 3, 4, 4))
    )
    lowered = jax.jit(_patches).lower(x, w)
    options = CompileOptions(target=target, auto_cast="none")
    nests = run_pipeline(read_module(lowered), options, stop_after="merge_rows")
    maps = [nest for nest in nests.nests() if nest.reduction is None]
    assert maps and all(36 in nest.extents.values() for nest in maps)
    neff = glia.compile(lowered, target=target, verify=True, auto_cast="none", no_cache=True)
    (found,) = glia.load(neff)(x, w)
    np.testing.assert_allclose(found, _patches(x, w), rtol=1e-4, atol=1e-4)
