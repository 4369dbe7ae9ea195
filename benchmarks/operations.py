"""How many times its transfers each kind of operation takes; writes OPERATIONS.md.

    python benchmarks/operations.py [--target trn2] [--only TEXT] [--write]

A layout that moves single elements, or leaves the work to one partition, shows as a hundred times.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import glia
from glia.arch import get_target
from glia.base.errors import CompileError
from glia.base.files import write_atomically

REPORT = Path(__file__).with_name("OPERATIONS.md")
LAUNCH_US = 15.3
TARGETS = ("trn2", "trn1")
ABOUT = """# Operations beside their transfers

Written by `benchmarks/operations.py --write`. Latencies are simulated, launch included, at -O2;
**times** is the latency over the launch and arguments and results once through all DMA engines;
CPU is what compilation takes. float32 where nothing else is said.

"""
Function = Callable[..., Any]
MATRIX = (1024, 1024)
VECTOR = (1 << 20,)
IMAGES = (8, 56, 56, 64)


@dataclass(frozen=True)
class Case:
    """A function of arrays of some shapes and one dtype."""

    name: str
    function: Function
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any = np.float32


def cases() -> Iterator[Case]:
    """Every case, by kind."""
    for name in ("exp", "expm1", "log1p", "sin", "tan", "asin", "atan", "asinh", "erfc", "erf_inv",
                 "lgamma", "digamma", "floor", "bessel_i1e"):  # fmt: skip
        yield Case(name, getattr(lax, name), (MATRIX,))
    for name in ("div", "rem", "pow", "atan2", "nextafter", "igamma"):
        yield Case(name, getattr(lax, name), (MATRIX, MATRIX))
    for name in ("div", "rem", "max", "eq"):
        yield Case(f"{name} int32", getattr(lax, name), (MATRIX, MATRIX), np.int32)
    yield from _reductions()
    yield from _movements()
    yield from _orders()


def _reductions() -> Iterator[Case]:
    yield Case("sum of all", jnp.sum, (MATRIX,))
    yield Case("sum of all int32", jnp.sum, (MATRIX,), np.int32)
    yield Case("mean squared error", lambda x, y: ((x - y) ** 2).mean(), ((1000, 999),) * 2)
    yield Case("argmax of all", jnp.argmax, (MATRIX,))
    yield Case("sum of columns", lambda x: x.sum(0), (MATRIX,))
    yield Case("sum of 4 long columns", lambda x: x.sum(0), ((1 << 18, 4),))
    yield Case("sum of 8 long rows", lambda x: x.sum(1), ((8, 1 << 17),))
    yield Case("variance of columns", lambda x: x.var(0), (MATRIX,))
    yield Case("vdot", jnp.vdot, (VECTOR, VECTOR))
    yield Case("softmax of 128256 logits", jax.nn.softmax, ((1, 128_256),))
    yield Case("argmax of 128256 logits", lambda x: x.argmax(-1), ((1, 128_256),))
    yield Case("log-softmax of 4 x 50257", jax.nn.log_softmax, ((4, 50_257),))
    yield Case("mean of images NHWC", lambda x: x.mean((1, 2)), ((8, 28, 28, 512),))
    yield Case("mean of images NCHW", lambda x: x.mean((2, 3)), ((8, 512, 28, 28),))
    yield Case("batch norm NHWC", _batch_norm((0, 1, 2)), ((16, 56, 56, 64),))
    yield Case("batch norm NCHW", _batch_norm((0, 2, 3)), ((16, 64, 56, 56),))
    yield Case("group norm NHWC", _batch_norm((1, 2, 4)), ((2, 64, 64, 32, 10),))
    yield Case("group norm NCHW", _batch_norm((2, 3, 4)), ((2, 32, 10, 64, 64),))
    yield Case("cumsum along rows", lambda x: jnp.cumsum(x, 1), (MATRIX,))
    yield Case("cumsum along columns", lambda x: jnp.cumsum(x, 0), (MATRIX,))
    yield Case("cumsum of a vector", jnp.cumsum, ((1 << 16,),))


def _batch_norm(axes: tuple[int, ...]) -> Function:
    def normalise(x: Any) -> Any:
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5)

    return normalise


def _movements() -> Iterator[Case]:
    yield Case("map of a vector", lambda x: x * 2 + 1, (VECTOR,))
    yield Case("map of 100003 numbers", lambda x: x + 1, ((100_003,),))
    yield Case("map of 2 x 524288", jax.nn.relu, ((2, 1 << 19),))
    yield Case("map of triples", lambda x: x * 2, ((1 << 18, 3),))
    yield Case("triples turned", lambda x: x.T + 1, ((1 << 18, 3),))
    yield Case("transposition", lambda x: x.T, (MATRIX,))
    yield Case("three dimensions turned", lambda x: x.transpose(2, 0, 1), ((64, 16, 1024),))
    yield Case("NCHW to NHWC", lambda x: x.transpose(0, 2, 3, 1), ((8, 64, 56, 56),))
    yield Case("differences", lambda x: x[1:] - x[:-1], (VECTOR,))
    yield Case("backwards", lambda x: x[::-1] + 1, (VECTOR,))
    yield Case("every other", lambda x: x[::2] + x[1::2], (VECTOR,))
    yield Case("padded", lambda x: jnp.pad(x, (3, 4)) * 2, (VECTOR,))
    yield Case("rolled", lambda x: jnp.roll(x, 5), (VECTOR,))
    yield Case("patches of images", _patches, ((8, 224, 224, 3),))
    yield Case("upsampled", lambda x: jnp.repeat(jnp.repeat(x, 2, 2), 2, 3), ((4, 64, 64, 64),))
    yield Case("largest of 2 x 2", _pooled, ((8, 64, 56, 56),))


def _patches(x: Any) -> Any:
    return x.reshape(8, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(8, 196, 768)


def _pooled(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _orders() -> Iterator[Case]:
    yield Case("sort of rows", lambda x: jnp.sort(x, 1), (MATRIX,))
    yield Case("sort of rows int32", lambda x: jnp.sort(x, 1), (MATRIX,), np.int32)
    yield Case("argsort of 128 x 256", lambda x: jnp.argsort(x, 1), ((128, 256),))
    yield Case("median of rows", lambda x: jnp.median(x, 1), (MATRIX,))
    yield Case("top 2 of 2048 x 64", lambda x: lax.top_k(x, 2), ((2048, 64),))
    yield Case("top 50 of 32000", lambda x: lax.top_k(x, 50), ((1, 32_000),))
    yield Case("counts of 16384", lambda i: jnp.bincount(i, length=256), ((1 << 14,),), np.int32)


def measured(case: Case, target: str) -> str:
    """A row of the table."""
    arguments = [jax.ShapeDtypeStruct(shape, case.dtype) for shape in case.shapes]
    started = time.process_time()
    lowered = jax.jit(case.function).lower(*arguments)
    try:
        neff = glia.compile(lowered, target=target, logical_nc_config=1)
    except CompileError as error:
        return f"| {case.name} | {target} | {error.code} | | | |"
    seconds = time.process_time() - started
    profile = glia.load(neff).profile()
    arrays = [*arguments, *jax.tree.leaves(lowered.out_info)]
    moved = sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in arrays)
    arch = get_target(target).arch
    bound = LAUNCH_US + moved / (arch.dma_engines * arch.dma_bytes_per_ns) / 1000
    return (
        f"| {case.name} | {target} | {profile.latency_us:.1f} | {profile.latency_us / bound:.1f} "
        f"| {profile.instructions} | {seconds:.2f} |"
    )


def main() -> None:
    """Measure, print, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", help="one of them; default trn2 and trn1")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    options = parser.parse_args()
    lines = ["| operation | target | latency us | times | instructions | CPU s |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    print("\n".join(lines))
    for target in options.target or TARGETS:
        for case in cases():
            if options.only in case.name:
                lines.append(measured(case, target))
                print(lines[-1], flush=True)
    if options.write:
        write_atomically(REPORT, (ABOUT + "\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
