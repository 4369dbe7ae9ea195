"""Dimensions of temporaries, and the axes over them, become one where rows are few; values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.compiler import run_pipeline
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.tile.contraction import contraction_operands
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
    scores = scores + jnp.arange(3)[:, None, None] * 7.0
    return jnp.exp(scores - scores.max(-1, keepdims=True)).sum(-1)


# By name: a function, and how many rows its reductions have
PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "queries of a group": (_grouped_queries, 15),
    "read with its axes exchanged": (_turned, 3),
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
    nests = run_pipeline(read_module(lowered), options, stop_after="merge_few_rows")
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
    nests = run_pipeline(read_module(lowered), options, stop_after="merge_few_rows")
    maps = [nest for nest in nests.nests() if nest.reduction is None]
    assert maps and all(36 in nest.extents.values() for nest in maps)
    neff = glia.compile(lowered, target=target, verify=True, auto_cast="none", no_cache=True)
    (found,) = glia.load(neff)(x, w)
    np.testing.assert_allclose(found, _patches(x, w), rtol=1e-4, atol=1e-4)
