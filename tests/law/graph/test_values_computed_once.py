"""Values that several nests read are computed by one of them."""

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
from glia.tile.contraction import contraction_operands
from glia.tile.evaluate import evaluate
from support.targets import CORES

ROWS, WIDTH, HIDDEN = 96, 48, 80


def _gradient(x: Any, up: Any, down: Any, g: Any) -> Any:
    """A product whose value two others need, each after functions of its own."""
    _, back = jax.vjp(lambda x, up, down: jax.nn.gelu(x @ up) @ down, x, up, down)
    return back(g)


def _two_uses(x: Any, up: Any, down: Any, g: Any) -> Any:
    hidden = x @ up
    return jnp.tanh(hidden) @ down, jnp.exp(-jnp.abs(hidden)) @ down


def _one_use(x: Any, up: Any, down: Any, g: Any) -> Any:
    return jnp.tanh(x @ up) @ down


CASES: dict[str, tuple[Callable[..., Any], int]] = {  # by name: a function, and its products
    "a gradient": (_gradient, 5),
    "two uses": (_two_uses, 3),
    "one use": (_one_use, 2),
}


def _arguments() -> list[np.ndarray]:
    generator = np.random.default_rng(11)
    shapes = (ROWS, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH), (ROWS, WIDTH)
    return [generator.standard_normal(shape).astype(np.float32) / 4 for shape in shapes]


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_computed_once(name: str) -> None:
    function, products = CASES[name]
    lowered = jax.jit(function, keep_unused=True).lower(*_arguments())
    program = run_pipeline(
        read_module(lowered), CompileOptions(auto_cast="none"), stop_after="build"
    )
    assert sum(contraction_operands(each) is not None for each in program.nests()) == products
    wanted = jax.tree.leaves(function(*_arguments()))
    for found, expected in zip(evaluate(program, _arguments()), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", CORES)
@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_once_is_right_on_every_target(name: str, target: str) -> None:
    function, _ = CASES[name]
    lowered = jax.jit(function, keep_unused=True).lower(*_arguments())
    neff = glia.compile(lowered, target=target, auto_cast="none", verify=True)
    found = glia.load(neff, device="reference")(*_arguments())
    wanted = jax.tree.leaves(function(*_arguments()))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)
