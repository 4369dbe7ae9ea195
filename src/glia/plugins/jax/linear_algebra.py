"""QR on the platform `neuron`: Householder reflections in operations that every device has.

JAX lowers it to calls of a library elsewhere, or to calls that XLA's own compilers expand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.lax import linalg
from jax.interpreters import mlir


def reflections(a: Any) -> tuple[Any, Any]:
    """Householder's triangularisation of matrices, packed as LAPACK's geqrf packs it.

    Column j of a result holds R down to its diagonal, and below it the vector of reflection j,
    whose first element is 1 and not stored; the second result has the factors of the reflections.
    """
    rows = jnp.arange(a.shape[-2])
    columns = jnp.arange(a.shape[-1])
    count = min(a.shape[-2:])

    def reflect(j: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        a, factors = state
        column = a[:, j]
        below = jnp.where(rows > j, column, 0)
        tail = jnp.sum(below * below)
        head = column[j]
        norm = jnp.sqrt(head * head + tail)
        is_done = tail == 0
        diagonal = jnp.where(is_done, head, jnp.where(head > 0, -norm, norm))
        factor = jnp.where(is_done, 0, (diagonal - head) / jnp.where(is_done, 1, diagonal))
        vector = below / jnp.where(is_done, 1, head - diagonal) + (rows == j).astype(a.dtype)
        reflected = a - factor * jnp.outer(vector, vector @ a)
        packed = jnp.where(rows > j, vector, jnp.where(rows == j, diagonal, column))
        a = jnp.where(columns > j, reflected, a)
        a = jnp.where(columns == j, packed[:, None], a)
        return a, jnp.where(jnp.arange(count) == j, factor, factors)

    packed, factors = jax.lax.fori_loop(0, count, reflect, (a, jnp.zeros(count, a.dtype)))
    return packed, factors


def product_of_reflections(a: Any, factors: Any) -> Any:
    """The orthogonal matrix of packed reflections, as many columns as `a` has."""
    rows = jnp.arange(a.shape[-2])
    count = factors.shape[-1]

    def apply(step: Any, product: Any) -> Any:
        j = count - 1 - step
        vector = jnp.where(rows > j, a[:, j], 0) + (rows == j).astype(a.dtype)
        return product - factors[j] * jnp.outer(vector, vector @ product)

    return jax.lax.fori_loop(0, count, apply, jnp.eye(a.shape[-2], a.shape[-1], dtype=a.dtype))


def _over_batches(function: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
    for _ in range(dimensions):
        function = jax.vmap(function)
    return function


def _lower_reflections(a: Any) -> tuple[Any, Any]:
    packed, factors = _over_batches(reflections, a.ndim - 2)(a)
    return packed, factors


def _lower_product(a: Any, factors: Any) -> Any:
    return _over_batches(product_of_reflections, a.ndim - 2)(a, factors)


def _for_real(function: Callable[..., Any], primitive: Any, *, multiple: bool) -> Any:
    """A lowering for real numbers; complex ones keep the rule of all platforms."""
    lower = mlir.lower_fun(function, multiple_results=multiple)

    def rule(ctx: Any, *operands: Any) -> Any:
        if jnp.issubdtype(ctx.avals_in[0].dtype, jnp.complexfloating):
            return mlir._lowerings[primitive].rule(ctx, *operands)
        return lower(ctx, *operands)

    return rule


def register_lowerings(platform: str) -> None:
    """Have JAX lower QR to these functions on a platform."""
    for primitive, function, multiple in (
        (linalg.geqrf_p, _lower_reflections, True),
        (linalg.householder_product_p, _lower_product, False),
    ):
        rule = _for_real(function, primitive, multiple=multiple)
        mlir.register_lowering(primitive, rule, platform=platform)
