"""What public kernels write that no document has: one row for each name and keyword.

A row is what such a file contains; it raises, or returns pairs of what it got and what is right.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from glia import nki
from glia.nki import beta1
from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.beta1 import compiler as ncc
from glia.nki.beta1 import isa as beta1_isa
from glia.nki.beta1 import language as beta1_nl
from glia.nki.beta1.run import current_generation as current
from glia.nki.beta1.run import framework_kernel as framework
from glia_dropin.kernels import attention as shipped_attention
from glia_dropin.kernels import shipped as shipped
from glia_dropin.neuronxcc import mx
from support.nki_ways import both, normal, stored

Pairs = Iterator[tuple[Any, Any]]
PUBLIC: dict[str, Callable[[], Pairs]] = {}
X, Y = normal(8, 16), normal(8, 16, seed=1)
LEAST = np.float32(-3.4028235e38)


def row(name: str) -> Callable[[Callable[[], Pairs]], Callable[[], Pairs]]:
    """Enter a function under what it shows."""

    def enter(function: Callable[[], Pairs]) -> Callable[[], Pairs]:
        PUBLIC[name] = function
        return function

    return enter


def saved(value):
    """A tensor of Beta 1 in shared HBM."""
    out = beta1_nl.ndarray(value.shape, value.dtype, buffer=beta1_nl.shared_hbm)
    beta1_nl.store(out, value)
    return out


def run_beta1(kernel: Any, *arrays: Any, **options: Any) -> Any:
    """What a kernel of Beta 1 returns, compiled, which is as simulated."""
    known = beta1.jit(kernel, **options)
    compiled = known(*arrays)
    np.testing.assert_array_equal(beta1.simulate_kernel(known, *arrays), compiled)
    return compiled


# --- options of kernels --------------------------------------------------------------------------


def _doubled(x):
    return stored(nl.multiply(nl.load(x), 2.0))


def _beta1_doubled(x):
    return saved(beta1_nl.multiply(beta1_nl.load(x), 2.0))


def _beta1_into(x, out):
    beta1_nl.store(out, beta1_nl.multiply(beta1_nl.load(x), 2.0))


@row("nki.jit(show_compiler_tb, debug_kernel, kernel_return, additional_compile_opt, experimental)")
def _() -> Pairs:
    given: dict[str, Any] = {
        "show_compiler_tb": True, "debug_kernel": True, "kernel_return": True,
        "additional_compile_opt": "-O1", "experimental_flags": "skip-pelican",
    }  # fmt: skip
    yield nki.jit(**given)(_doubled)(X), 2 * X
    yield run_beta1(_beta1_doubled, X, **given), 2 * X


@row("nki.jit(platform_target) of Beta 1")
def _() -> Pairs:
    kernel = beta1.jit(_beta1_doubled, platform_target="trn1")
    yield kernel(X), 2 * X
    yield kernel.target().name, "trn1"


@row("nki.trace(grid, platform_target)")
def _() -> Pairs:
    traced = beta1.trace(_beta1_into, grid=(1,), platform_target="trn2")
    out = np.zeros_like(X)
    beta1.simulate_kernel(traced, X, out)
    yield out, 2 * X


MEASURING = {
    "warmup": 1, "iters": 2, "additional_compile_opt": "-O1", "disable_allocation_opt": True,
    "n_iterations": 1,
}  # fmt: skip


@row("baremetal and benchmark: bare, called and as functions, in both generations")
def _() -> Pairs:
    for module, kernel in ((current, _doubled), (beta1, _beta1_doubled)):
        yield module.baremetal(kernel)(X), 2 * X
        yield module.baremetal(additional_compile_opt="-O1")(kernel)(X), 2 * X
        yield module.baremetal(kernel, disable_allocation_opt=True)(X), 2 * X
        for measured in (
            module.benchmark(kernel),
            module.benchmark(**MEASURING)(kernel),
            module.benchmark(kernel, warmup=1, iters=2),
        ):
            measured(X)
            time = measured.benchmark_result.nc_latency
            yield time.get_latency_percentile(50) > 0, True


@row("profile and save_neff_name: the files that are asked for, in both generations")
def _() -> Pairs:
    for number, (module, kernel) in enumerate(((current, _doubled), (beta1, _beta1_doubled))):
        folder = Path(f"files{number}").absolute()
        known = module.profile(
            kernel, working_directory=str(folder), save_neff_name="k.neff",
            save_trace_name="k.ntff", additional_compile_opt="-O1", overwrite=True, profile_nth=1,
            num_execs=1,
        )  # fmt: skip
        known(X)
        names = [each.name for each in sorted(folder.iterdir())]
        yield any(name.endswith(".neff") for name in names), True
        yield any(name.endswith(".ntff") for name in names), True
        kept = module.baremetal(save_neff_name=f"{folder}/b.neff", artifacts_dir=str(folder))
        yield kept(kernel)(X), 2 * X
        yield (folder / "b.neff").is_file(), True


# --- keywords ------------------------------------------------------------------------------------


@row("nl.zeros and nl.full (lazy_initialization)")
def _() -> Pairs:
    def kernel(x, y):
        acc = nl.zeros((16, 16), nl.float32, buffer=nl.psum, lazy_initialization=True)
        more = nl.full((8, 16), 3, nl.float32, lazy_initialization=True)
        nisa.nc_matmul(acc, nl.load(x), nl.load(y))
        nisa.nc_matmul(acc, nl.load(x), more)
        return stored(acc)

    def beta1_kernel(x, y):
        acc = beta1_nl.zeros(
            (16, 16), beta1_nl.float32, buffer=beta1_nl.psum, lazy_initialization=True
        )
        more = beta1_nl.full((8, 16), 3, beta1_nl.float32, lazy_initialization=True)
        acc[...] += beta1_isa.nc_matmul(beta1_nl.load(x), beta1_nl.load(y))
        acc[...] += beta1_isa.nc_matmul(beta1_nl.load(x), beta1_nl.copy(more))
        return saved(acc)

    right = X.T @ Y + X.T @ np.full_like(Y, 3)
    yield both(kernel, X, Y), right
    yield run_beta1(beta1_kernel, X, Y), right


@row("nl.sequential_range(directives, body_no_reorder), nl.affine_range(precise_schedule)")
def _() -> Pairs:
    def kernel(x):
        total = nl.zeros((8, 1), nl.float32)
        tile = nl.load(x)
        for i in nl.sequential_range(2, directives=ncc.multi_buffer(2)):
            nisa.tensor_tensor(total, total, tile[:, i : i + 1], nl.add)
        for i in nl.sequential_range(2, 4, body_no_reorder=True):
            nisa.tensor_tensor(total, total, tile[:, i : i + 1], nl.add)
        for i in nl.affine_range(4, 6, precise_schedule=True):
            nisa.tensor_tensor(total, total, tile[:, i : i + 1], nl.add)
        return stored(total)

    def beta1_kernel(x):
        out = beta1_nl.ndarray((8, 8), beta1_nl.float32, buffer=beta1_nl.shared_hbm)
        for i in beta1_nl.sequential_range(2, directives=ncc.multi_buffer(2)):
            beta1_nl.store(
                out[:, beta1_nl.ds(i * 2, 2)], beta1_nl.load(x[:, beta1_nl.ds(i * 2, 2)])
            )
        for i in beta1_nl.sequential_range(2, body_no_reorder=True):
            beta1_nl.store(
                out[:, beta1_nl.ds(4 + i, 1)], beta1_nl.load(x[:, beta1_nl.ds(4 + i, 1)])
            )
        for i in beta1_nl.affine_range(2, precise_schedule=True):
            beta1_nl.store(
                out[:, beta1_nl.ds(6 + i, 1)], beta1_nl.load(x[:, beta1_nl.ds(6 + i, 1)])
            )
        return out

    yield both(kernel, X), X[:, :6].sum(1, keepdims=True)
    yield run_beta1(beta1_kernel, X), X[:, :8]


@row("nl.loop_reduce(name)")
def _() -> Pairs:
    def kernel(x):
        out = beta1_nl.ndarray((8, 1), beta1_nl.float32, buffer=beta1_nl.shared_hbm)
        most = beta1_nl.ndarray((8, 1), beta1_nl.float32, buffer=beta1_nl.sbuf)
        for i in beta1_nl.affine_range(4):
            part = beta1_nl.max(beta1_nl.load(x[:, beta1_nl.ds(i * 4, 4)]), axis=1, keepdims=True)
            most[...] = beta1_nl.loop_reduce(part, op=np.max, loop_indices=[i], name="most")
        beta1_nl.store(out, most)
        return out

    yield run_beta1(kernel, X), X.max(1, keepdims=True)


@row("nisa.nc_matmul(perf_mode='double_row_gen3')")
def _() -> Pairs:
    def kernel(x, y):
        acc = nl.ndarray((16, 8), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(acc, nl.load(x), nl.load(y), perf_mode="double_row_gen3")
        return stored(acc)

    def beta1_kernel(x, y):
        acc = beta1_nl.zeros((16, 8), beta1_nl.float32, buffer=beta1_nl.psum)
        acc[...] += beta1_isa.nc_matmul(
            beta1_nl.load(x), beta1_nl.load(y), perf_mode="double_row_gen3"
        )
        return saved(acc)

    a, b = (each.astype(ml_dtypes.float8_e4m3) for each in (normal(8, 2, 16), normal(8, 2, 8)))
    right = np.einsum("krm,krn->mn", a.astype(np.float32), b.astype(np.float32))
    yield both(kernel, a, b), right
    yield run_beta1(beta1_kernel, a, b), right


# --- names ---------------------------------------------------------------------------------------


@row("nl.bool, nl.range, nl.float32r, nl.fp32.min, nisa.fp32.min")
def _() -> Pairs:
    def kernel(x):
        least = nl.full((8, 1), nl.fp32.min, nl.float32r)
        for i in nl.range(2):
            nisa.tensor_scalar(least, nl.load(x)[:, i : i + 1], nl.minimum, nisa.fp32.min)
        return stored(least), stored(nl.less(nl.load(x), 0.0, dtype=nl.bool))

    def beta1_kernel(x):
        least = beta1_nl.full((8, 1), beta1_nl.fp32.min, beta1_nl.float32r)
        for i in beta1_nl.range(2):
            least[...] = beta1_nl.minimum(
                beta1_nl.load(x[:, beta1_nl.ds(i, 1)]), beta1_isa.fp32.min
            )
        return saved(least)

    least, less = both(kernel, X)
    yield least, np.full((8, 1), LEAST)
    yield less, X < 0
    yield run_beta1(beta1_kernel, X), np.full((8, 1), LEAST)
    yield np.dtype(beta1_nl.bool), np.dtype(bool)


@row("nl.par_dim of the current generation")
def _() -> Pairs:
    def kernel(x):
        tile = nl.ndarray((nl.par_dim(8), 16), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(tile, x)
        return stored(tile)

    yield both(kernel, X), X


@row("tensor_scalar_cumulative(dst) and reduce_cmd.load_reduce of Beta 1")
def _() -> Pairs:
    def kernel(x):
        dst = beta1_nl.ndarray((8, 16), beta1_nl.float32, buffer=beta1_nl.sbuf)
        beta1_isa.tensor_scalar_cumulative(
            dst=dst, src=beta1_nl.load(x), op0=beta1_nl.add, op1=beta1_nl.add, imm0=0.0, imm1=1.0,
            reduce_cmd=beta1_isa.reduce_cmd.load_reduce,
        )  # fmt: skip
        return saved(dst)

    yield run_beta1(kernel, X), 1 + np.cumsum(X, axis=1)


@row("functions of NumPy as operators; dtypes of NumPy and strings")
def _() -> Pairs:
    def kernel(x, y):
        one, two = nl.load(x), nl.load(y)
        total, most = nl.ndarray((8, 16), np.float32), nl.ndarray((8, 1), "float32")
        nisa.tensor_tensor(total, one, two, np.add)
        nisa.tensor_tensor(total, total, two, np.subtract)
        nisa.tensor_scalar(total, total, np.multiply, 2.0, op1=np.maximum, operand1=0.0)
        nisa.activation(total, np.square, total)
        nisa.tensor_reduce(most, np.max, total, axis=1)
        narrow = nl.ndarray((8, 1), np.dtype(ml_dtypes.bfloat16))
        nisa.tensor_copy(narrow, most)
        return stored(narrow)

    def beta1_kernel(x, y):
        total = beta1_isa.tensor_tensor(beta1_nl.load(x), beta1_nl.load(y), np.add, dtype="float32")
        total = beta1_isa.tensor_scalar(total, np.multiply, 2.0, op1=np.maximum, operand1=0.0)
        total = beta1_isa.activation(op=np.square, data=total)
        return saved(beta1_isa.tensor_reduce(np.max, total, axis=[1], dtype=np.dtype("float32")))

    once = np.maximum(2 * (X + Y - Y), 0)
    yield both(kernel, X, Y), (once**2).max(1, keepdims=True).astype(ml_dtypes.bfloat16)
    right = (np.maximum(2 * (X + Y), 0) ** 2).max(1, keepdims=True)
    yield run_beta1(beta1_kernel, X, Y).reshape(8, 1), right


@row("imports in the body of a kernel, strings as statements, language.constants")
def _() -> Pairs:
    def kernel(x):
        from glia.nki.beta1 import language as inner
        from glia.nki.beta1.constants import sizeinbytes

        out = inner.ndarray((8, 16), inner.float32, buffer=inner.shared_hbm)
        for i in inner.affine_range(sizeinbytes(inner.float32)):
            "four columns at a time"
            inner.store(out[:, inner.ds(i * 4, 4)], inner.load(x[:, inner.ds(i * 4, 4)]))
        return out

    def now(x):
        from glia.nki import language as inner

        total = inner.zeros((8, 1), inner.float32)
        for i in inner.affine_range(2):
            "add a column"
            nisa.tensor_tensor(total, total, inner.load(x)[:, i : i + 1], inner.add)
        return stored(total)

    yield run_beta1(kernel, X), X
    yield both(now, X), X[:, :2].sum(1, keepdims=True)


# --- kernels and helpers that were shipped -------------------------------------------------------


@row("add_kernel_nx8x128x512")
def _() -> Pairs:
    a, b = normal(2, 8, 128, 512), normal(2, 8, 128, 512, seed=1)
    count = a.size - 70000
    found = shipped.add_kernel_nx8x128x512[2](a, b, count)
    yield found.ravel()[:count], (a + b).ravel()[:count]


@row("nisa.attention_kernel of release 2.20")
def _() -> Pairs:
    q, k, v = normal(2, 256, 64), normal(2, 128, 64, seed=1), normal(2, 128, 64, seed=2)
    weights = np.exp(0.125 * q @ k.transpose(0, 2, 1))
    right = weights / weights.sum(-1, keepdims=True) @ v

    def swapped(q, k, v):
        out = beta1_nl.ndarray((2, 256, 64), beta1_nl.float32, buffer=beta1_nl.shared_hbm)
        shipped_attention.attention_kernel("AttentionMMSoftmaxMM", q, k, v, 0.125, out)
        return out

    def straight(q, k, v):
        out = beta1_nl.ndarray((2, 64, 256), beta1_nl.float32, buffer=beta1_nl.shared_hbm)
        name = "AttentionMMSoftmaxMMWithoutSwap"
        shipped_attention.attention_kernel(name, q, k, v, scale=0.125, out=out)
        return out

    turned = [np.ascontiguousarray(each.transpose(0, 2, 1)) for each in (q, k)]
    yield beta1.jit(swapped)(turned[0], k, v), right
    yield beta1.jit(straight)(q, turned[1], v), right.transpose(0, 2, 1)


@row("quantize_mx_golden and nc_matmul_mx_golden agree with the instructions")
def _() -> Pairs:
    def kernel(x, y):
        kept = []
        for each in (x, y):
            data = nl.ndarray((32, each.shape[1] // 4), nl.float8_e4m3fn_x4)
            scale = nl.zeros((32, each.shape[1] // 4), nl.uint8)
            nisa.quantize_mx(data, nl.load(each), scale)
            kept.append((data, scale))
        (left, left_scale), (right, right_scale) = kept
        dst = nl.ndarray((left.shape[1], right.shape[1]), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(dst, left, right, left_scale, right_scale)
        return stored(left), stored(left_scale), stored(dst)

    x, y = (normal(32, 32, seed=s).astype(ml_dtypes.bfloat16) for s in (0, 1))
    data, scale, product = nki.simulate(kernel, target="trn3")(x, y)
    made = [
        mx.quantize_mx_golden(each, mx.float8_e4m3fn_x4, custom_mx_max_exp=lambda _: 7)
        for each in (x, y)
    ]
    (left, left_scale), (right, right_scale) = made
    yield left.view(np.uint32), np.asarray(data).view(np.uint32)
    yield left_scale, scale[:4]
    yield mx.nc_matmul_mx_golden(left, right, left_scale, right_scale), product
    spread = [np.zeros((32, 8), np.uint8) for _ in made]
    for place, (_, codes) in zip(spread, made, strict=True):
        place[4:8] = codes
    yield mx.nc_matmul_mx_golden(left, right, *spread, False, 4, 4), product
    ordinary, codes = mx.quantize_mx_golden(x, mx.float8_e4m3fn_x4)
    yield codes, left_scale - 1
    values = ordinary.view(ml_dtypes.float8_e4m3fn).reshape(4, 8, 8, 4).astype(np.float32)
    near = np.ldexp(values, codes.astype(np.int32)[:, None, :, None] - 127).reshape(32, 32)
    yield bool((np.abs(near - x.astype(np.float32)) <= 0.13 * np.abs(x) + 1e-2).all()), True
    packed, codes = mx.quantize_mx_golden(x, mx.float4_e2m1fn_x4)
    yield packed.dtype, mx.float4_e2m1fn_x4
    yield codes, left_scale + 5
    reverse, _ = mx.quantize_mx_golden(x, mx.float8_e4m3fn_x4, reverse_dst_fdim_group=4)
    yield reverse.view(np.uint32), ordinary.view(np.uint32)[:, ::-1]


@row("UnifiedKernel")
def _() -> Pairs:
    class Hosted(framework.UnifiedKernel):
        """As callers in PyTorch write it, on arrays of NumPy."""

        def dump_config_with_boundargs(self, boundargs):
            key = self._generate_hash_key(boundargs.arguments)
            self._map_args(boundargs)
            return key, super().dump_config_with_boundargs(boundargs)

    def kernel(x, scale=2.0):
        return saved(beta1_nl.multiply(beta1_nl.load(x), scale))

    known = Hosted.trace(kernel)
    bound = inspect.signature(kernel).bind(X)
    key, (config, inputs, outputs) = known.dump_config_with_boundargs(bound)
    yield key, ((), ("x", ((8, 16), "float32")))
    yield (inputs, len(outputs)), (["x"], 1)
    yield config, framework.FrameworkKernel("kernel", kernel).dump_config(X, 2.0)[0]
