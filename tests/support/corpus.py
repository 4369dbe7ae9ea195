"""Small JAX programs, one per operation family and shape oddity, that every level is tested on.

Each program runs in milliseconds on NumPy. Arguments are seeded; all arguments are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

Array = np.ndarray[Any, Any]

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
I32, U32, U8, PRED = np.int32, np.uint32, np.uint8, np.bool_

_TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "complex64": 2e-5}


@dataclass(frozen=True, eq=False)
class Program:
    """A JAX function with example arguments; `slack` widens the tolerance of its dtypes."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Array, ...]
    slack: float = 1.0

    def __repr__(self) -> str:
        return self.name


@cache
def hlo_bytes(program: Program) -> bytes:
    """The program as a serialized HloModuleProto."""
    lowered = jax.jit(program.function, keep_unused=True).lower(*program.arguments)
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


@cache
def expected(program: Program) -> tuple[Array, ...]:
    """The program's results on JAX's CPU backend, flattened."""
    results = jax.jit(program.function)(*program.arguments)
    return tuple(np.asarray(result) for result in jax.tree.leaves(results))


def assert_close(program: Program, found: list[Array]) -> None:
    """Every result has the expected type and, within the dtype's tolerance, the expected value."""
    wanted = expected(program)
    assert len(found) == len(wanted)
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"result {index} of {program.name}"
        tolerance = _TOLERANCE.get(b.dtype.name, 0) * program.slack
        if not tolerance:
            np.testing.assert_array_equal(a, b, err_msg=f"result {index} of {program.name}")
            continue
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1.0)
        place = f"result {index} of {program.name}"
        np.testing.assert_allclose(a, b, tolerance, tolerance * scale, err_msg=place)


def _seed(shape: tuple[int, ...], salt: int) -> np.random.Generator:
    return np.random.default_rng([salt, *shape])


def _normal(*shape: int, dtype: Any = F32, salt: int = 0) -> Array:
    return np.asarray(_seed(shape, salt).standard_normal(shape)).astype(dtype)


def _positive(*shape: int, dtype: Any = F32, salt: int = 1) -> Array:
    return np.asarray(_seed(shape, salt).uniform(0.1, 2.0, shape)).astype(dtype)


def _integers(*shape: int, low: int = -9, high: int = 10, dtype: Any = I32, salt: int = 2) -> Array:
    return np.asarray(_seed(shape, salt).integers(low, high, shape)).astype(dtype)


def _fair(*shape: int, salt: int = 3) -> Array:
    return _seed(shape, salt).random(shape) < 0.5


PROGRAMS: list[Program] = []


def _add(name: str, function: Callable[..., Any], *arguments: Array, slack: float = 1.0) -> None:
    PROGRAMS.append(Program(name, function, arguments, slack))


def _elementwise() -> None:
    unary = (jnp.exp, jnp.tanh, jnp.sin, jnp.cos, jnp.abs, jnp.sign, jnp.floor, jnp.ceil,
             jnp.negative, lax.logistic, jnp.expm1, lax.erf, jnp.round, lax.cbrt)  # fmt: skip
    _add("unary_f32", lambda x: [f(x) for f in unary], _normal(3, 129))
    _add("unary_bf16", lambda x: [f(x) for f in unary[:10]], _normal(127, dtype=BF16))
    _add("unary_f16", lambda x: [f(x) for f in unary[:10]], _normal(1, 513, dtype=F16))
    positive = (jnp.sqrt, lax.rsqrt, jnp.log, jnp.log1p, jnp.reciprocal, jnp.square)
    _add("unary_positive", lambda x: [f(x) for f in positive], _positive(129, 3))
    _add("trigonometry", lambda x: [f(x * 0.4) for f in (jnp.tan, jnp.arcsin, jnp.arccos,
         jnp.arctan, jnp.sinh, jnp.cosh, jnp.arctanh, jnp.arcsinh)], _positive(127))  # fmt: skip
    binary = (jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum)
    _add("binary_f32", lambda a, b: [f(a, b) for f in binary], _normal(129, 3), _positive(129, 3))
    _add("binary_bf16", lambda a, b: [f(a, b) for f in binary],
         _normal(2, 127, dtype=BF16), _positive(2, 127, dtype=BF16))  # fmt: skip
    _add("power_remainder_atan2", lambda a, b: [a**b, lax.rem(a, b), jnp.arctan2(a, b)],
         _positive(33), _positive(33, salt=9))  # fmt: skip
    integer = (jnp.add, jnp.subtract, jnp.multiply, lax.div, lax.rem, jnp.maximum,
               jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor)  # fmt: skip
    _add("binary_i32", lambda a, b: [f(a, b) for f in integer],
         _integers(127, low=-(2**31), high=2**31 - 1), _integers(127, salt=8))  # fmt: skip
    _add("binary_u8", lambda a, b: [a + b, a * b, a // (b | 1), a & b, jnp.minimum(a, b)],
         _integers(513, low=0, high=256, dtype=U8),
         _integers(513, low=0, high=256, dtype=U8, salt=5))  # fmt: skip
    _add("shifts", lambda a, b: [a << b, a >> b, lax.shift_right_logical(a, b), ~a,
         lax.population_count(a), lax.clz(a)], _integers(65, low=-(2**31), high=2**31 - 1),
         _integers(65, low=0, high=32, salt=7))  # fmt: skip
    _add("compare_select_clamp", lambda a, b: [a < b, a >= b, a == b, jnp.where(a != b, a, -b),
         lax.clamp(jnp.float32(-0.5), a, jnp.float32(0.5))], _normal(7, 31),
         _normal(7, 31, salt=4))  # fmt: skip
    _add("pred_logic", lambda a, b: [a & b, a | b, ~a, a ^ b, a == b],
         _fair(129), _fair(129, salt=6))  # fmt: skip
    _add("convert", lambda x, i: [x.astype(BF16), x.astype(F16), (x * 9).astype(I32),
         i.astype(F32), i.astype(U8), i.astype(PRED), x.astype(BF16).astype(F32)],
         _normal(3, 43), _integers(3, 43))  # fmt: skip
    _add("bitcast", lambda x: lax.bitcast_convert_type(x, jnp.int32) & 0x7F800000, _normal(5, 5))
    _add("reduce_precision", lambda x: lax.reduce_precision(x, 5, 3), _normal(64))
    _add("is_finite", lambda x: [jnp.isfinite(1 / x), jnp.isnan(x / x)],
         np.array([0, 1, -1, np.inf, np.nan], F32))  # fmt: skip
    _add("complex", lambda x, y: [jnp.abs(lax.complex(x, y)), jnp.real(lax.complex(x, y) ** 2),
         lax.complex(x, y) * 1j], _normal(9), _normal(9, salt=5))  # fmt: skip


def _movement() -> None:
    _add("scalar", lambda x: x * 2 + 1, _normal())
    _add("broadcast", lambda v, m: v[:, None] + m + v[None, :3].sum(),
         _normal(127), _normal(127, 3))  # fmt: skip
    _add("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, 5, 3), (0, 2)), _normal(2, 3))
    _add("reshape", lambda x: x.reshape(43, 9) + 1, _normal(129, 3))
    _add("transpose", lambda x: [x.T, x.swapaxes(0, 0)], _normal(129, 127))
    _add("transpose_4d", lambda x: jnp.transpose(x, (2, 0, 3, 1)), _normal(2, 3, 5, 7))
    _add("slice", lambda x: x[1:120:7, ::2, -1], _normal(129, 5, 3))
    _add("reverse", lambda x: x[::-1, :, ::-1], _normal(3, 5, 7))
    _add("pad", lambda x: lax.pad(x, jnp.float32(7), ((1, 2, 0), (-1, 3, 2))), _normal(5, 9))
    _add("pad_mode", lambda x: jnp.pad(x, ((2, 0), (1, 1)), mode="edge"), _normal(3, 4))
    _add("concatenate", lambda a, b, c: jnp.concatenate([a, b, c * 2], axis=1),
         _normal(3, 1), _normal(3, 127), _normal(3, 5))  # fmt: skip
    _add("stack", lambda a, b: jnp.stack([a, b], axis=1), _normal(129), _normal(129, salt=1))
    _add("iota", lambda x: x + jnp.arange(129, dtype=F32) + lax.broadcasted_iota(F32, (3, 129), 0),
         _normal(3, 129))  # fmt: skip
    _add("iota_words", lambda k: (jnp.arange(5, dtype=U32) * k, k - jnp.arange(5, dtype=U32)),
         np.full((), 3123456789, U32))  # fmt: skip
    _add("empty", lambda x: [x.sum(), jnp.concatenate([x, jnp.ones((2, 3))])],
         np.zeros((0, 3), F32))  # fmt: skip
    _add("gather_rows", lambda table, i: table[i], _normal(33, 5), _integers(4, 7, low=0, high=33))
    _add("gather_clamped", lambda x, i: x.at[i].get(mode="clip"),
         _normal(9), _integers(20, high=30))  # fmt: skip
    _add("gather_fill", lambda x, i: jnp.take(x, i, axis=1), _normal(3, 9), _integers(5, high=12))
    _add("take_along_axis", lambda x, i: jnp.take_along_axis(x, i, axis=1),
         _normal(3, 17), _integers(3, 5, low=0, high=17))  # fmt: skip
    _add("scatter_add", lambda x, i, u: x.at[i].add(u),
         _normal(9, 3), _integers(20, low=0, high=9), _normal(20, 3))  # fmt: skip
    _add("scatter_products", lambda x, i, a, b: x.at[i].add(a @ b), _normal(9, 33),
         _integers(20, low=0, high=9), _normal(20, 17), _normal(17, 33))  # fmt: skip
    _add("scatter_set", lambda x, i: x.at[i, 1].set(7.0, mode="drop", unique_indices=True),
         _normal(9, 3), np.array([3, 0, 40, 8], I32))  # fmt: skip
    _add("scatter_one", lambda x, i, u: x.at[i].set(u).at[i, i].add(1.0),
         _normal(9, 33), np.full((), 3, I32), _normal(33))  # fmt: skip
    _add("scatter_max", lambda x, i, u: x.at[i].max(u),
         _normal(9), _integers(20, low=0, high=9), _normal(20))  # fmt: skip
    _add("dynamic_slice", lambda x, i, j: lax.dynamic_slice(x, (i, j), (3, 4)),
         _normal(9, 9), np.full((), 4, I32), np.full((), 99, I32))  # fmt: skip
    _add("dynamic_update_slice", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
         _normal(9, 4), _normal(2, 3), np.full((), 5, I32))  # fmt: skip
    _add("sort", lambda x: jnp.sort(x, axis=0), _normal(129, 3))
    _add("sort_descending_int", lambda x: -jnp.sort(-x), _integers(127))
    _add("argsort", lambda x: jnp.argsort(x, axis=-1), _integers(3, 65))
    _add("sort_pairs", lambda k, v: lax.sort((k, v), num_keys=1), _integers(65), _normal(65))
    _add("top_k", lambda x: lax.top_k(x, 5), _normal(3, 127))
    _add("one_hot", lambda i: jax.nn.one_hot(i, 11), _integers(7, low=0, high=11))


def _contractions() -> None:
    _add("matmul", lambda a, b: a @ b, _normal(129, 127), _normal(127, 3))
    _add("matmul_bf16", lambda a, b: a @ b,
         _normal(64, 130, dtype=BF16), _normal(130, 33, dtype=BF16))  # fmt: skip
    _add("matmul_f16_f32", lambda a, b: jnp.matmul(a, b, preferred_element_type=F32),
         _normal(17, 40, dtype=F16), _normal(40, 9, dtype=F16))  # fmt: skip
    _add("matmul_i32", lambda a, b: a @ b, _integers(5, 33), _integers(33, 7))
    _add("vector_dot", lambda a, b: a @ b, _normal(513), _normal(513, salt=1))
    _add("batched", lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b),
         _normal(2, 3, 17, 8), _normal(2, 3, 19, 8))  # fmt: skip
    _add("odd_dot_general", lambda a, b: lax.dot_general(a, b, (((0, 3), (2, 1)), ((2,), (0,)))),
         _normal(3, 4, 5, 6), _normal(5, 6, 3, 7))  # fmt: skip
    _add("outer", lambda a, b: jnp.outer(a, b), _normal(127), _normal(3))
    _add("sums", lambda x: [x.sum(), x.sum(0), x.sum(-1), x.mean((0, 2)), x.prod(1)],
         _positive(3, 7, 9))  # fmt: skip
    _add("extremes", lambda x: [x.max(), x.min(1), x.argmax(0), x.argmin(1)], _normal(129, 5))
    _add("reduce_logic", lambda x: [x.any(0), x.all(1), x.sum()], _fair(5, 33))
    _add("reduce_bf16", lambda x: x.sum(1), _normal(5, 513, dtype=BF16))
    _add("variance", lambda x: [x.var(-1), x.std()], _normal(17, 33))
    _add("cumulative", lambda x: [jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x)],
         _positive(13, 7), slack=4)  # fmt: skip
    _add("max_pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1),
         "SAME"), _normal(2, 9, 9, 3))  # fmt: skip
    _add("average_pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), "VALID") / 6,
         _normal(9, 17))  # fmt: skip
    _add("dilated_window", lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), ((2, 1),),
         base_dilation=(2,), window_dilation=(2,)), _normal(11))  # fmt: skip
    _add("max_pool_gradient", jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (2, 2),
         (2, 2), "VALID") ** 2).sum()), _normal(8, 6))  # fmt: skip


def _convolution(**options: Any) -> Callable[..., Any]:
    return lambda x, k: lax.conv_general_dilated(x, k, **options)


def _convolutions() -> None:
    images, oihw = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
    _add("conv_nchw", _convolution(window_strides=(1, 1), padding="SAME", dimension_numbers=oihw),
         _normal(2, 3, 9, 7), _normal(5, 3, 3, 3))  # fmt: skip
    _add("conv_nhwc_strided", _convolution(window_strides=(2, 3), padding=((1, 0), (2, 2)),
         dimension_numbers=images), _normal(1, 11, 13, 3), _normal(3, 2, 3, 4))  # fmt: skip
    _add("conv_dilated", _convolution(window_strides=(1, 1), padding="VALID", rhs_dilation=(2, 1),
         dimension_numbers=oihw), _normal(1, 2, 9, 9), _normal(4, 2, 3, 2))  # fmt: skip
    _add("conv_transposed", _convolution(window_strides=(1, 1), padding=((2, 1), (-1, 2)),
         lhs_dilation=(2, 3), dimension_numbers=oihw), _normal(1, 2, 5, 4),
         _normal(3, 2, 3, 3))  # fmt: skip
    _add("conv_depthwise", _convolution(window_strides=(1, 1), padding="SAME",
         feature_group_count=6, dimension_numbers=images), _normal(1, 5, 5, 6),
         _normal(3, 3, 1, 12))  # fmt: skip
    _add("conv_1d", _convolution(window_strides=(2,), padding="SAME",
         dimension_numbers=("NWC", "WIO", "NWC")), _normal(2, 17, 3), _normal(4, 3, 8))  # fmt: skip
    _add("conv_3d", _convolution(window_strides=(1, 2, 1), padding="VALID",
         dimension_numbers=("NCDHW", "OIDHW", "NCDHW")), _normal(1, 2, 4, 5, 6),
         _normal(3, 2, 2, 2, 3))  # fmt: skip
    _add("conv_batch_groups", _convolution(window_strides=(1, 1), padding="VALID",
         batch_group_count=2, dimension_numbers=oihw), _normal(4, 3, 5, 5),
         _normal(6, 3, 2, 2))  # fmt: skip
    _add("conv_bf16", _convolution(window_strides=(1, 1), padding="SAME", dimension_numbers=oihw),
         _normal(1, 8, 6, 6, dtype=BF16), _normal(4, 8, 3, 3, dtype=BF16))  # fmt: skip
    _add("conv_gradient", jax.grad(lambda x, k: (_convolution(window_strides=(2, 2),
         padding="SAME", dimension_numbers=images)(x, k) ** 2).sum(), (0, 1)),
         _normal(2, 7, 7, 3), _normal(3, 3, 3, 4), slack=4)  # fmt: skip


def _control() -> None:
    _add("call", lambda x: jax.jit(lambda y: jnp.sin(y) * 2)(x) + jax.jit(jnp.sum)(x), _normal(9))
    _add("fori_loop", lambda x: lax.fori_loop(0, 5, lambda i, s: s * 0.9 + i, x), _normal(3, 5))
    _add("while_loop", lambda x, n: lax.while_loop(lambda s: (s[0] < n) & (s[1].sum() < 1e6),
         lambda s: (s[0] + 1, s[1] * 1.5 + s[2], s[2]), (jnp.int32(0), x, x[0])),
         _positive(3, 5), np.full((), 7, I32))  # fmt: skip
    _add("scan", lambda x, w: lax.scan(lambda h, v: (jnp.tanh(h @ w + v), h.sum()), x[0], x),
         _normal(6, 4), _normal(4, 4))  # fmt: skip
    _add("cond", lambda p, x: lax.cond(p, lambda v: (v + 1, v.sum()),
         lambda v: (v * 2, v[0, 0]), x), np.array(True), _normal(3, 4))  # fmt: skip
    _add("switch", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda v: v * 3], x),
         np.full((), 9, I32), _normal(5))  # fmt: skip
    _add("nested_tuples", lambda x: {"a": (x + 1, [x * 2, (x,)]), "b": x - 1}, _normal(4))
    _add("nested_loops", lambda x: lax.fori_loop(0, 3, lambda i, s: lax.fori_loop(
         0, i + 1, lambda j, t: t + j, s * 1.1), x), _normal(7))  # fmt: skip
    _add("random_bits", lambda k: jax.random.bits(jax.random.wrap_key_data(k), (33,)),
         np.array([1, 2], U32))  # fmt: skip
    _add("random_normal", lambda k: jax.random.normal(jax.random.wrap_key_data(k), (5, 9)),
         np.array([3, 4], U32))  # fmt: skip
    _add("fft", lambda x: [jnp.fft.fft(x), jnp.fft.rfft(x.real), jnp.fft.ifft(x)],
         (_normal(3, 16) + 1j * _normal(3, 16, salt=2)).astype(np.complex64))  # fmt: skip


def _layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def _rms_norm(x: Any, scale: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _graph_attention(x: Any, w: Any, a: Any, sources: Any, targets: Any) -> Any:
    """One layer over the edges of a graph: a softmax over those that end at the same node."""
    nodes = x.shape[0]
    features = x @ w
    ends = jnp.concatenate([features[sources], features[targets]], -1)
    scores = jax.nn.leaky_relu(ends @ a)
    shifted = jnp.exp(scores - jax.ops.segment_max(scores, targets, nodes)[targets])
    shares = shifted / jax.ops.segment_sum(shifted, targets, nodes)[targets]
    return jax.ops.segment_sum(shares[:, None] * features[sources], targets, nodes)


def _mlp_loss(weights: Any, x: Any, labels: Any) -> Any:
    w1, b1, w2, b2 = weights
    logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
    return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, 10)).sum(-1).mean()


def _training_step(x: Any, labels: Any, *weights: Any) -> Any:
    loss, gradients = jax.value_and_grad(_mlp_loss)(weights, x, labels)
    return loss, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def _models() -> None:
    _add("softmax", lambda x: jax.nn.softmax(x), _normal(129, 65))
    _add("softmax_bf16", lambda x: jax.nn.softmax(x), _normal(5, 127, dtype=BF16))
    _add("log_softmax", lambda x: jax.nn.log_softmax(x, axis=0), _normal(33, 5))
    _add("dense_softmax", lambda x, w, b: jax.nn.softmax(x @ w + b),
         _normal(130, 24), _normal(24, 17), _normal(17))  # fmt: skip
    _add("layer_norm", _layer_norm, _normal(129, 48), _positive(48), _normal(48))
    _add("rms_norm", _rms_norm, _normal(3, 127), _positive(127))
    _add("gelu", lambda x: [jax.nn.gelu(x), jax.nn.gelu(x, approximate=False)], _normal(127))
    _add("activations", lambda x: [jax.nn.silu(x), jax.nn.relu(x), jax.nn.softplus(x),
         jax.nn.elu(x), jax.nn.leaky_relu(x)], _normal(3, 43))  # fmt: skip
    _add("attention", _attention, *(_normal(2, 9, 3, 8, salt=s) for s in range(3)))
    _add("graph_attention", _graph_attention, _normal(40, 8), _normal(8, 8), _normal(16),
         _integers(300, low=0, high=40), _integers(300, low=0, high=40, salt=7))  # fmt: skip
    _add("embedding", lambda t, i, w: jax.nn.relu(t[i] @ w),
         _normal(50, 16), _integers(2, 7, low=0, high=50), _normal(16, 8))  # fmt: skip
    _add("mlp", lambda x, a, b: jnp.tanh(x @ a) @ b,
         _normal(1, 33), _normal(33, 129), _normal(129, 5))  # fmt: skip
    _add("mlp_training_step", _training_step, _normal(8, 20), _integers(8, low=0, high=10),
         _normal(20, 16), _normal(16), _normal(16, 10), _normal(10))  # fmt: skip
    _add("cnn", lambda x, k, w: jax.nn.relu(_convolution(window_strides=(1, 1), padding="SAME",
         dimension_numbers=("NHWC", "HWIO", "NHWC"))(x, k)).mean((1, 2)) @ w,
         _normal(2, 8, 8, 3), _normal(3, 3, 3, 8), _normal(8, 4))  # fmt: skip


for _family in (_elementwise, _movement, _contractions, _convolutions, _control, _models):
    _family()

BY_NAME = {program.name: program for program in PROGRAMS}
