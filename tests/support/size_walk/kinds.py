"""Small programs of every kind of nest, at any extent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

Array = np.ndarray[Any, Any]
Model = tuple[Callable[..., Any], tuple[Array, ...]]
Kind = Callable[[int], Model]

KINDS: dict[str, Kind] = {}
SHORT = 5  # the extent of dimensions that do not vary
BESIDE = 130  # the extent of rows or columns beside the varying ones: more than one block


def kind(make: Kind) -> Kind:
    """Enter a kind under its function's name."""
    KINDS[make.__name__] = make
    return make


def hlo_bytes(model: Model) -> bytes:
    """A model as a serialized HloModuleProto."""
    function, arguments = model
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    """Normal values, the same for the same shape."""
    generator = np.random.default_rng(list(shape))
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def integers(high: int, *shape: int) -> Array:
    """Integers below `high`, the same for the same shape."""
    return np.random.default_rng(list(shape)).integers(0, high, shape).astype(np.int32)


# --- elementwise, broadcasts, reductions ----------------------------------------------------------


@kind
def elementwise_vector(n: int) -> Model:
    return lambda x, y: jnp.exp(x) * y, (floats(n), floats(n))


@kind
def elementwise_rows(n: int) -> Model:
    return lambda x: jnp.tanh(x) + 1, (floats(n, BESIDE),)


@kind
def elementwise_columns(n: int) -> Model:
    return lambda x: x * x - 3, (integers(9, BESIDE, n),)


@kind
def broadcast_rows(n: int) -> Model:
    return lambda x, y: x + y, (floats(n, 1), floats(1, BESIDE))


@kind
def broadcast_columns(n: int) -> Model:
    return lambda x, y: x[:, None] * y[None], (floats(BESIDE, dtype=ml_dtypes.bfloat16), floats(n))


@kind
def reduce_columns(n: int) -> Model:
    return lambda x: x.sum(1), (floats(BESIDE, n),)


@kind
def reduce_rows(n: int) -> Model:
    return lambda x: x.max(0), (floats(n, BESIDE),)


@kind
def reduce_all(n: int) -> Model:
    return lambda x: x.sum(), (integers(100, SHORT, n),)


@kind
def softmax_columns(n: int) -> Model:
    return lambda x: jax.nn.softmax(x, -1), (floats(BESIDE, n),)


@kind
def softmax_rows(n: int) -> Model:
    return lambda x: jax.nn.softmax(x, 0), (floats(n, BESIDE),)


@kind
def argmax(n: int) -> Model:
    return lambda x: jnp.argmax(x, 1), (floats(33, n),)


# --- movement -------------------------------------------------------------------------------------


@kind
def transpose(n: int) -> Model:
    return lambda x: x.T + 1, (floats(n, BESIDE),)


@kind
def transpose_integers(n: int) -> Model:
    return lambda x: x.T + 1, (integers(99, BESIDE, n) - 50,)


@kind
def transpose_halves(n: int) -> Model:
    return lambda x: x.transpose(2, 0, 1) + 1, (floats(n, 3, 70, dtype=ml_dtypes.bfloat16),)


@kind
def transpose_inner(n: int) -> Model:
    return lambda x: x.transpose(0, 2, 1) * 2, (floats(3, 70, n),)


@kind
def reshape(n: int) -> Model:
    return lambda x: (x + 1).reshape(6, n).sum(0), (floats(n, 6),)


@kind
def concatenate(n: int) -> Model:
    return lambda x, y: jnp.concatenate([x, y + 1], 0), (floats(n, SHORT), floats(BESIDE, SHORT))


@kind
def concatenate_columns(n: int) -> Model:
    return lambda x, y: jnp.concatenate([x, y], 1) * 2, (floats(BESIDE, n), floats(BESIDE, 7))


@kind
def pad(n: int) -> Model:
    def function(x: Array) -> Any:
        return lax.pad(x, np.float32(2), ((1, 2, 1), (3, -1, 0))) * 2

    return function, (floats(n, 33),)


@kind
def pad_columns(n: int) -> Model:
    return lambda x: lax.pad(x, np.float32(2), ((0, 1, 0), (2, 1, 2))), (floats(33, n),)


@kind
def strided_slice(n: int) -> Model:
    return lambda x: x[1::2, 3::3] + 1, (floats(n + 2, 40),)


@kind
def reverse(n: int) -> Model:
    return lambda x: lax.rev(x, (0,)) + x, (floats(n, 9),)


@kind
def reverse_columns(n: int) -> Model:
    return lambda x: lax.rev(x, (1,)) + 1, (floats(9, n),)


@kind
def gather(n: int) -> Model:
    return lambda x, i: x[i] + 1, (floats(200, n), integers(200, SHORT))


@kind
def gather_many(n: int) -> Model:
    return lambda x, i: x[i], (floats(50, 6), integers(50, n))


@kind
def gather_elements(n: int) -> Model:
    def function(x: Array, i: Array) -> Any:
        return jnp.take_along_axis(x, i, 1)

    return function, (floats(SHORT, 40), integers(40, SHORT, n))


@kind
def scatter(n: int) -> Model:
    def function(x: Array, i: Array, u: Array) -> Any:
        return x.at[i].set(u, unique_indices=True)

    return function, (floats(n + 3, 4), np.arange(n, dtype=np.int32)[::-1].copy(), floats(n, 4))


@kind
def scatter_add(n: int) -> Model:
    def function(x: Array, i: Array, u: Array) -> Any:
        return x.at[i].add(u)

    return function, (floats(17, 4), integers(17, n), floats(n, 4))


@kind
def scatter_max(n: int) -> Model:
    def function(x: Array, i: Array, u: Array) -> Any:
        return x.at[i].max(u)

    return function, (floats(17, n), integers(17, SHORT), floats(SHORT, n))


@kind
def dynamic_slice(n: int) -> Model:
    def function(x: Array, i: Array) -> Any:
        return lax.dynamic_slice(x, (i, np.int32(2)), (n, 5)) * 2

    return function, (floats(2 * n, 9), np.int32(n // 2))


@kind
def dynamic_update_slice(n: int) -> Model:
    def function(x: Array, u: Array, i: Array) -> Any:
        return lax.dynamic_update_slice(x, u, (i, np.int32(2))) + 1

    return function, (floats(2 * n, 9), floats(n, 3), np.int32(n // 3))


# --- contractions ---------------------------------------------------------------------------------


def _dot(a: tuple[int, ...], b: tuple[int, ...], numbers: Any, dtype: Any = np.float32) -> Model:
    def function(x: Array, y: Array) -> Any:
        return lax.dot_general(x, y, numbers, preferred_element_type=np.float32)

    return function, (floats(*a, dtype=dtype), floats(*b, dtype=dtype))


@kind
def dot_rows(n: int) -> Model:
    return _dot((n, 70), (70, 40), (((1,), (0,)), ((), ())))


@kind
def dot_columns(n: int) -> Model:
    return _dot((40, 70), (70, n), (((1,), (0,)), ((), ())))


@kind
def dot_contracted(n: int) -> Model:
    return _dot((40, n), (n, 50), (((1,), (0,)), ((), ())))


@kind
def dot_left_transposed(n: int) -> Model:
    return _dot((n, 40), (n, 50), (((0,), (0,)), ((), ())), ml_dtypes.bfloat16)


@kind
def dot_right_transposed(n: int) -> Model:
    return _dot((40, n), (50, n), (((1,), (1,)), ((), ())))


@kind
def dot_both_transposed(n: int) -> Model:
    return _dot((70, n), (30, 70), (((0,), (1,)), ((), ())), ml_dtypes.bfloat16)


@kind
def dot_batch(n: int) -> Model:
    return _dot((n, 6, 20), (n, 20, 7), (((2,), (1,)), ((0,), (0,))))


@kind
def dot_batch_inside(n: int) -> Model:
    return _dot((9, 3, n), (n, 3, 8), (((2,), (0,)), ((1,), (1,))))


@kind
def dot_vector(n: int) -> Model:
    return _dot((n, BESIDE), (BESIDE,), (((1,), (0,)), ((), ())))


@kind
def dot_integers(n: int) -> Model:
    def function(x: Array, y: Array) -> Any:
        return lax.dot_general(x, y, (((1,), (0,)), ((), ())))

    return function, (integers(50, 9, n), integers(50, n, 11))


@kind
def dot_chain(n: int) -> Model:
    def function(x: Array, y: Array, z: Array) -> Any:
        return jax.nn.relu(x @ y) @ z

    return function, (floats(70, 33), floats(33, n), floats(n, 20))


@kind
def attention(n: int) -> Model:
    def function(q: Array, k: Array, v: Array) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    shape = (2, n, 2, 16)
    return function, (floats(*shape), floats(*shape) * 2, floats(*shape) - 1)


@kind
def layer_norm(n: int) -> Model:
    def function(x: Array, g: Array) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g

    return function, (floats(BESIDE, n), floats(n))


# --- windows --------------------------------------------------------------------------------------


def _convolution(
    x: tuple[int, ...], w: tuple[int, ...], dtype: Any = np.float32, **how: Any
) -> Model:
    options = {"window_strides": (1, 1), "padding": "SAME"} | how
    layout = ("NHWC", "HWIO", "NHWC")

    def function(a: Array, b: Array) -> Any:
        return lax.conv_general_dilated(a, b, dimension_numbers=layout, **options)

    return function, (floats(*x, dtype=dtype), floats(*w, dtype=dtype))


@kind
def convolution_width(n: int) -> Model:
    return _convolution((1, 4, n, 5), (3, 3, 5, 6))


@kind
def convolution_inputs(n: int) -> Model:
    return _convolution((1, 5, 5, n), (3, 3, n, 4))


@kind
def convolution_outputs(n: int) -> Model:
    return _convolution((2, 5, 5, 3), (1, 1, 3, n))


@kind
def convolution_strided(n: int) -> Model:
    return _convolution((2, 6, 6, n), (1, 1, n, 9), ml_dtypes.bfloat16, window_strides=(2, 2))


@kind
def convolution_dilated(n: int) -> Model:
    return _convolution((1, 7, n, 4), (3, 3, 4, 3), rhs_dilation=(2, 3), padding="SAME")


@kind
def convolution_transposed(n: int) -> Model:
    return _convolution((1, 3, n, 4), (3, 3, 4, 3), lhs_dilation=(2, 2), padding=((1, 2), (2, 1)))


@kind
def convolution_grouped(n: int) -> Model:
    return _convolution((1, 5, 5, 2 * n), (3, 3, n, 4), feature_group_count=2)


@kind
def convolution_depthwise(n: int) -> Model:
    return _convolution((1, 5, 5, n), (3, 3, 1, n), feature_group_count=n)


@kind
def convolution_1d(n: int) -> Model:
    def function(a: Array, b: Array) -> Any:
        return lax.conv_general_dilated(
            a, b, (2,), ((2, 1),), dimension_numbers=("NCH", "OIH", "NCH")
        )

    return function, (floats(2, 3, n), floats(4, 3, 4))


@kind
def pool_width(n: int) -> Model:
    def function(x: Array) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    return function, (floats(1, 7, n, 4),)


@kind
def pool_channels(n: int) -> Model:
    def function(x: Array) -> Any:
        return lax.reduce_window(x, np.float32(0), lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return function, (floats(2, 4, 4, n),)


@kind
def pool_gradient(n: int) -> Model:
    def pool(x: Array) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum()

    return jax.grad(pool), (floats(1, 4, n + 1, 3),)


@kind
def cumsum(n: int) -> Model:
    return lambda x: jnp.cumsum(x, 1), (floats(6, n),)


@kind
def cumsum_rows(n: int) -> Model:
    return lambda x: jnp.cumsum(x, 0), (floats(n, 6),)


@kind
def sort(n: int) -> Model:
    return lambda x: jnp.sort(x, 1), (floats(4, n),)


@kind
def sort_rows(n: int) -> Model:
    return lambda x: jnp.sort(x, 0), (integers(1000, n, 4) - 500,)


@kind
def top_k(n: int) -> Model:
    return lambda x: lax.top_k(x, min(4, x.shape[-1])), (floats(5, n),)
