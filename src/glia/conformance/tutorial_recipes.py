"""Inputs and expected results for kernels of the public tutorials, by the name of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

Array = np.ndarray
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3)


@dataclass(frozen=True)
class Trial:
    """Arguments of a kernel, its expected results in order, and the relative tolerance.

    NaN in an expected result matches any value.
    """

    arguments: tuple[Any, ...]
    expected: tuple[Array, ...]
    grid: tuple[int, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-3
    results: int = 0  # how many trailing arguments are results


Recipe = Callable[[np.random.Generator, str], Trial | tuple[Trial, ...] | None]
RecipeT = TypeVar("RecipeT", bound=Recipe)
RECIPES: dict[str, Recipe] = {}


def recipe(*names: str) -> Callable[[RecipeT], RecipeT]:
    """Register a recipe for kernels of these names; it takes the file name, may return None."""

    def register(make: RecipeT) -> RecipeT:
        RECIPES.update(dict.fromkeys(names, make))
        return make

    return register


def floats(rng: np.random.Generator, *shape: int) -> Array:
    """Floats between -1 and 1."""
    return rng.random(shape, dtype=np.float32) * 2 - 1


@recipe("tensor_exp_kernel_")
def _exp(rng: np.random.Generator, file: str) -> Trial:
    rows = {"layout-pass.py": 128, "layout-loop.py": 256, "layout-violation.py": 256}.get(file, 250)
    rows = 128 if file.startswith("prof-") else rows
    x = floats(rng, rows, 512)
    return Trial((x,), (np.exp(x),))


@recipe("nki_tensor_add")
def _add_rows(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 512, 2048), floats(rng, 512, 2048)
    return Trial((a, b), (a + b,))


@recipe("nki_tensor_add_kernel", "nki_tensor_add_kernel_", "add_kernel", "nki_tensor_add_nc2")
def _add(rng: np.random.Generator, file: str) -> Trial:
    is_tiled = "tensor_addition" in file or "spmd" in file
    shape = (512, 2048) if is_tiled else (4, 3)
    a, b = floats(rng, *shape), floats(rng, *shape)
    return Trial((a, b), (a + b,), (4, 4) if is_tiled else ())


@recipe("add_kernel_nx8x128x512")
def _add_blocks(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 2, 8, 128, 512), floats(rng, 2, 8, 128, 512)
    return Trial((a, b, a.size), (a + b,), (2, 8))


@recipe("matmul_128x128x512_spmd")
def _spmd_product(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 512, 128), floats(rng, 128, 1024)
    given = a if "-nl-" in file else np.ascontiguousarray(a.T)
    return Trial((given, b), (a @ b,), (4, 2))


@recipe("nki_matmul_basic_")
def _small_product(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 128, 64), floats(rng, 128, 512)
    return Trial((a, b), (a.T @ b,))


@recipe("nki_matmul_tiled_", "nki_matmul_hoist_load_", "nki_matmul_block_free_dimension_")
def _product(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 256, 256), floats(rng, 256, 1024)
    return Trial((a, b), (a.T @ b,))


@recipe("nki_matmul_fully_optimized_", "matmul")
def _large_product(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 1024, 2048), floats(rng, 1024, 2048)
    return Trial((a, b), (a.T @ b,))


@recipe("tensor_avgpool_kernel")
def _average_pool(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 2, 6, 6)
    return Trial((x, 2), (x.reshape(2, 3, 2, 3, 2).mean(axis=(2, 4)),))


@recipe("tensor_maxpool_kernel_")
def _max_pool(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 2, 6, 6)
    return Trial((x, 2), (x.reshape(2, 3, 2, 3, 2).max(axis=(2, 4)),))


@recipe("max_pooling_2d_stride_1")
def _sliding_max(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 300, 40)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
    return Trial((x, 3), (windows.max(axis=(2, 3)),))


@recipe("tensor_split_kernel_")
def _split(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 4, 5)
    return Trial((x,), (x[:, ::2], x[:, 1::2]))


@recipe("tensor_transpose2D_kernel_")
def _transpose(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 2, 12)
    return Trial((x, (3, 4)), (x.reshape(2, 3, 4).transpose(0, 2, 1).reshape(2, 12),))


@recipe("nki_dma_transpose_2d_hbm2sb", "nki_dma_transpose_2d_sb2sb")
def _moved_transposed(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 64, 96)
    return Trial((x,), (x.T.copy(),))


@recipe("nki_layernorm_kernel_v1", "nki_layernorm_kernel_v2")
def _layer_norm(rng: np.random.Generator, file: str) -> Trial:
    x, gamma, beta = floats(rng, 300, 1024), floats(rng, 1024), floats(rng, 1024)
    middle, spread = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    expected = (x - middle) / np.sqrt(spread + 1e-5) * gamma + beta
    return Trial((x, 1e-5, gamma, beta), (expected,))


@recipe("nki_rmsnorm_kernel")
def _rms_norm(rng: np.random.Generator, file: str) -> Trial:
    x, gain = floats(rng, 250, 512), floats(rng, 512)
    root = np.sqrt((x * x).mean(axis=1, keepdims=True))
    given = (x, gain, 1e-6) if file == "nki_custom_rmsnorm.py" else (x, gain)
    return Trial(given, (x / root * gain,))


def softmax(x: Array) -> Array:
    """Softmax along the last dimension."""
    exponentials: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return shares


@recipe("nki_softmax_kernel")
def _softmax_rows(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 256, 512)
    return Trial((x,), (softmax(x),))


@recipe("attn_fwd_v1", "attn_fwd_v2")
def _small_attention(rng: np.random.Generator, file: str) -> Trial:
    q, k, v = (floats(rng, 128, 128) for _ in range(3))
    return Trial((q, k, v), (softmax(q.T @ k) @ v.T,), tolerance=1e-2)


@recipe(*(f"attn_fwd_v{n}" for n in (3, 4, 5, 6, 7, 8, "8a", 9, 10, 11)))
def _attention(rng: np.random.Generator, file: str) -> Trial:
    q, k, v = (floats(rng, 128, 4096) for _ in range(3))
    return Trial((q, k, v), (softmax(q.T @ k) @ v.T,), tolerance=1e-2)


@recipe("fused_self_attn_for_SD_small_head_size")
def _fused_attention(rng: np.random.Generator, file: str) -> Trial:
    q, k, v = (floats(rng, 1, *shape) for shape in ((64, 1024), (1024, 64), (1024, 64)))
    if "sd_attention" in file:
        q, k, v = (each[0] for each in (q, k, v))
        q = np.ascontiguousarray(q.T)
        return Trial((q, k, v), (softmax(q @ k.T * 0.125) @ v,), tolerance=1e-2)
    scores = softmax(q.transpose(0, 2, 1) @ k.transpose(0, 2, 1) * 0.125)
    return Trial((q, k, v), (scores @ v,), (1,), tolerance=1e-2)


@recipe("mamba_v1", "mamba_v2", "mamba_v3")
def _mamba(rng: np.random.Generator, file: str) -> Trial:
    batch, channels, length, states = 1, 256, 512, 4
    delta, u = rng.random((2, batch, channels, length), dtype=np.float32)
    a = -rng.random((channels, states), dtype=np.float32)
    b, c = rng.random((2, batch, states, length), dtype=np.float32)
    decay = np.exp(delta[:, :, None, :] * a[None, :, :, None])
    gain = delta[:, :, None, :] * b[:, None, :, :] * u[:, :, None, :]
    state = np.zeros((batch, channels, states), np.float32)
    result = np.empty_like(delta)
    for step in range(length):
        state = decay[..., step] * state + gain[..., step]
        result[..., step] = (c[:, None, :, step] * state).sum(axis=-1)
    return Trial((delta, u, a, b, c), (result,))


def _upsample_2x(x: Array, axis: int) -> Array:
    """Linear interpolation to twice as many samples along an axis."""
    x = np.moveaxis(x, axis, -1)
    before = np.concatenate([x[..., :1], x[..., :-1]], axis=-1)
    after = np.concatenate([x[..., 1:], x[..., -1:]], axis=-1)
    pairs = np.stack([0.25 * before + 0.75 * x, 0.75 * x + 0.25 * after], axis=-1)
    samples: Array = np.moveaxis(pairs.reshape(*x.shape[:-1], -1), -1, axis)
    return samples


@recipe("interpolate_bilinear_2x_fwd")
def _bilinear(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 2, 64, 28, 28)
    return Trial((x,), (_upsample_2x(_upsample_2x(x, 2), 3),))


@recipe("interpolate_trilinear_2x_fwd")
def _trilinear(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 1, 8, 10, 10, 10)
    return Trial((x,), (_upsample_2x(_upsample_2x(_upsample_2x(x, 2), 3), 4),))


def rotary_embedding(x: Array, cos: Array, sin: Array) -> Array:
    """The rotary embedding of x [B, H, S, D] by angles [B, S, D], features paired by halves."""
    middle = x.shape[-1] // 2
    half = np.concatenate([-x[..., middle:], x[..., :middle]], axis=-1)
    rotated: Array = x * cos[:, None] + half * sin[:, None]
    return rotated


@recipe("nki_apply_rotary_embedding")
def _rotary(rng: np.random.Generator, file: str) -> Trial:
    q, k = rng.random((2, 1, 2, 256, 64), dtype=np.float32)
    cos, sin = rng.random((2, 1, 256, 64), dtype=np.float32)
    expected = np.stack([rotary_embedding(q, cos, sin), rotary_embedding(k, cos, sin)])
    return Trial((q, k, cos, sin), (expected,), (1, 2))


@recipe("quantized_double_row_matmul")
def _double_rows(rng: np.random.Generator, file: str) -> Trial:
    rows, depth, columns = 256, 512, 1024
    x = floats(rng, rows, depth).astype(BFLOAT16)
    scale = (1 + rng.random(columns, dtype=np.float32)) / 240
    weights = (floats(rng, depth, columns) * 240).astype(FLOAT8)
    expected = x.astype(np.float32) @ (weights.astype(np.float32) * scale)
    # Pairs of blocks of 128 rows side by side, for every 512 columns.
    pairs = weights.reshape(depth // 256, 2, 128, columns // 512, 512).transpose(0, 2, 3, 1, 4)
    scales = np.broadcast_to(scale, (128, columns)).astype(np.float32)
    given = (x, np.ascontiguousarray(pairs).reshape(depth // 2, 2 * columns), scales, 2, 2, 4)
    return Trial(given, (expected,), tolerance=0.1)


@recipe("rmsnorm_quant_kernel")
def _quantized_norm(rng: np.random.Generator, file: str) -> tuple[Trial, ...]:
    given = (floats(rng, 2, 70, 512).astype(BFLOAT16), floats(rng, 1, 512).astype(BFLOAT16))
    x, gain = (each.astype(np.float32) for each in given)
    options = SimpleNamespace(
        eps=1e-6, lower_bound=0.0,
        needs_rms_normalization=lambda: True, has_lower_bound=lambda: False,
        is_static_quant=lambda: False, is_row_quant=lambda: True,
    )  # fmt: skip
    normal = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * gain
    scale = np.abs(normal).max(axis=-1, keepdims=True) / 240
    quantized = (normal / scale).astype(FLOAT8).astype(np.float32)
    bytes_of_scale = np.full((2, 70, 4), np.nan, np.float32)
    expected = np.concatenate([quantized, bytes_of_scale], axis=-1)
    # On one core and on two; the tolerance is a step of float8.
    return tuple(Trial((*given, options), (expected,), grid, tolerance=0.13) for grid in ((), (2,)))


@recipe("flash_fwd")
def _flash(rng: np.random.Generator, file: str) -> Trial | None:
    if file != "pipelined_attention.py":
        return None
    q, k = (rng.random((1, 128, 16384), dtype=np.float32).astype(BFLOAT16) for _ in range(2))
    v = rng.random((1, 16384, 128), dtype=np.float32).astype(BFLOAT16)
    q32, k32, v32 = (each[0].astype(np.float32) for each in (q, k, v))
    rows = [softmax(q32[:, n : n + 512].T @ k32 * 0.125) @ v32 for n in range(0, 16384, 512)]
    named = {"softmax_scale": 0.125, "use_causal_mask": False}
    return Trial((q, k, v), (np.concatenate(rows)[None],), (1,), named, tolerance=1e-2)


@recipe("vector_add_naive")
def _add_short_vectors(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 128), floats(rng, 128)
    return Trial((a, b), (a + b,))


@recipe("vector_add_tiled")
def _add_rows_of_vectors(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 512), floats(rng, 512)
    return Trial((a, b), (a + b,))


@recipe("vector_add_stream", "vector_add_direct_allocation")
def _add_vectors(rng: np.random.Generator, file: str) -> Trial:
    a, b = floats(rng, 128_000), floats(rng, 128_000)
    return Trial((a, b), (a + b,))


@recipe("matrix_transpose")
def _transpose_matrix(rng: np.random.Generator, file: str) -> Trial:
    x = floats(rng, 256, 384)
    return Trial((x,), (x.T.copy(),))


@recipe("fused_conv2d_maxpool")
def _pooled_convolution(rng: np.random.Generator, file: str) -> tuple[Trial, ...]:
    images, weights = floats(rng, 1, 128, 32, 16), floats(rng, 256, 128, 3, 3) / 16
    bias = floats(rng, 256)
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, weights, optimize=True)
    sums += bias[:, None, None]
    pooled = sums.reshape(1, 256, 15, 2, 7, 2).max(axis=(3, 5))
    return tuple(
        Trial((images, weights, bias), (expected,), named={"pool_size": size}, tolerance=1e-2)
        for size, expected in ((1, sums), (2, pooled))
    )
