"""Smooth steps of bfloat16 see what is inside them before it is rounded; all other steps do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import glia
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.instructions.vector import TensorCopy
from glia.machine.ir import walk
from support.targets import CORES

Array = jax.Array
RNG = np.random.default_rng(11)
X, W, SCALE, SHIFT = (
    RNG.standard_normal(shape, np.float32).astype(jnp.bfloat16)
    for shape in ((64, 128), (128, 96), (64, 1), (64, 1))
)


def normed(x: Array, w: Array, scale: Array, shift: Array) -> Array:
    return jax.nn.relu((x @ w) * scale + shift)


def compiled(function: object, *arrays: np.ndarray, target: str = "trn2") -> glia.Neff:
    lowered = jax.jit(function).lower(*arrays)
    return glia.compile(lowered, target=target, auto_cast="none", no_cache=True)


def run(function: object, *arrays: np.ndarray, target: str = "trn2") -> np.ndarray:
    return glia.load(compiled(function, *arrays, target=target))(*arrays)[0]


@pytest.mark.parametrize("target", CORES)
def test_what_finishes_a_product_is_rounded_once(target: str) -> None:
    found = run(normed, X, W, SCALE, SHIFT, target=target).astype(np.float64)
    exact = np.maximum(X.astype(np.float64) @ W * SCALE.astype(np.float64) + SHIFT, 0)
    assert np.all(np.abs(found - exact) <= 2**-8 * exact + 1e-3)
    rounded = np.asarray(jax.jit(normed)(X, W, SCALE, SHIFT)).astype(np.float64)
    assert np.abs(found - exact).max() < np.abs(rounded - exact).max()


def test_a_sum_is_read_where_it_is() -> None:
    neff = compiled(normed, X, W, SCALE, SHIFT)
    found = [i for program in neff.programs for i in walk(program.body)]
    sums = {i.dst.tile.name for i in found if isinstance(i, NcMatmul)}
    assert sums
    assert not [i for i in found if isinstance(i, TensorCopy) and i.src.tile.name in sums]


def test_comparisons_see_what_is_rounded() -> None:
    x = np.full((128, 64), 1 + 2**-7, jnp.bfloat16)  # its square is above what it is rounded to
    square = (x * x).astype(jnp.bfloat16)
    found = run(lambda a, b: (a * a > b).astype(jnp.float32), x, square)
    np.testing.assert_array_equal(found, np.zeros((128, 64), np.float32))


def test_what_is_widened_is_rounded_before() -> None:
    """The parts of a split number: the rounded number, and what rounding left."""
    x = RNG.standard_normal((128, 64), np.float32)

    def parts(x: Array) -> Array:
        return x - x.astype(jnp.bfloat16).astype(jnp.float32)

    np.testing.assert_array_equal(run(parts, x), x - x.astype(jnp.bfloat16).astype(np.float32))


def test_products_that_are_widened_are_rounded_before() -> None:
    a, b = (RNG.standard_normal((128, 64), np.float32).astype(jnp.bfloat16) for _ in range(2))
    found = run(lambda a, b: (a * b).astype(jnp.float32) + 1, a, b)
    np.testing.assert_array_equal(found, (a * b).astype(np.float32) + 1)


def test_differences_see_what_is_rounded() -> None:
    """A compensated sum: what its first step rounds is what the others subtract."""
    a, b = (RNG.standard_normal((128, 64), np.float32).astype(jnp.bfloat16) for _ in range(2))
    found = run(lambda a, b: b - ((a + b) - a), a, b)
    np.testing.assert_array_equal(found, b - ((a + b) - a))
    assert np.any(found)


@pytest.mark.parametrize("target", CORES)
def test_a_function_of_a_difference_is_rounded_once(target: str) -> None:
    a, b = (RNG.standard_normal((128, 64), np.float32).astype(jnp.bfloat16) for _ in range(2))
    found = run(lambda a, b: jnp.exp(a - b[:, :1]), a, b, target=target).astype(np.float64)
    exact = np.exp(a.astype(np.float64) - b[:, :1].astype(np.float64))
    assert np.all(np.abs(found - exact) <= (2**-8 + 1e-5) * exact)
    rounded = np.exp((a - b[:, :1]).astype(np.float64))
    assert np.any(np.abs(rounded - exact) > 2**-8 * exact)


def exponentials(x: Array) -> tuple[Array, Array]:
    each = jnp.exp(x)
    return each, each.astype(jnp.float32).sum(-1)


def test_what_an_activation_computes_is_added_up_before_it_is_rounded() -> None:
    x = RNG.standard_normal((4096, 512), np.float32).astype(jnp.bfloat16)
    each, total = glia.load(compiled(exponentials, x))(x)
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(total, exact.sum(-1), rtol=1e-5)
    assert (
        np.abs(each.astype(np.float64).sum(-1) - exact.sum(-1)).max() > 1e-5 * exact.sum(-1).max()
    )


def test_what_is_rounded_on_purpose_is_added_up_as_it_is() -> None:
    x = RNG.standard_normal((4096, 512), np.float32)

    def narrowed(x: Array) -> tuple[Array, Array]:
        each = x.astype(jnp.bfloat16)
        return each, each.astype(jnp.float32).sum(-1)

    each, total = glia.load(compiled(narrowed, x))(x)
    np.testing.assert_allclose(total, each.astype(np.float64).sum(-1), atol=1e-3)


def test_sums_that_are_only_widened_and_scaled_are_not_rounded() -> None:
    exact = X.astype(np.float64) @ W.astype(np.float64) * 0.3
    found = run(lambda x, w: (x @ w).astype(jnp.float32) * 0.3, X, W)
    assert np.abs(found - exact).max() < 1e-4 < np.abs(exact).max() * 2**-9


def test_sums_that_are_widened_and_subtracted_are_rounded_before() -> None:
    one = np.float32(1)
    found = run(lambda x, w: (x @ w).astype(jnp.float32) - one, X, W)
    rounded = np.asarray(X.astype(np.float32) @ W.astype(np.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(found, rounded.astype(np.float32) - one)
