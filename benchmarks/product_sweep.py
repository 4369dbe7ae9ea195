"""Random products and sums against their bounds, to find orders of axes that compile badly.

    python benchmarks/product_sweep.py [--first SEED] [--count N] [--most RATIO] [--target T ...]

A seed draws an einsum of one to three operands, extents, a dtype and what follows. Its simulated
latency stands beside a bound: operands and result once through all DMA engines or products at the
PE's peak, and 5 us for a launch. Printed are those over RATIO times their bound, worst last, and
how the others are distributed; the exit status says whether there are any.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import glia
from glia.arch import get_target
from glia.base.errors import CompileError

EXTENTS = (2, 3, 4, 8, 12, 16, 32, 64, 96, 128, 200, 256, 384, 512, 768, 1024)
LARGEST, LEAST, MOST_PRODUCTS = 2**23, 2**14, 2**31  # elements of a tensor, and of the whole space
LAUNCH_US = 5.0
AFTER: dict[str, Any] = {
    "": lambda y: y,
    "relu": jax.nn.relu,
    "softmax": lambda y: jax.nn.softmax(y, -1),
    "norm": lambda y: y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1),
    "max": lambda y: y.max(0),
    "turned": lambda y: y.T + 1,
}


@dataclass(frozen=True)
class Product:
    """An einsum with its extents by axis, the dtype of all tensors, and what follows it."""

    text: str
    extents: dict[str, int]
    dtype: Any
    after: str

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the operands."""
        operands = self.text.partition("->")[0].split(",")
        return [tuple(self.extents[axis] for axis in axes) for axes in operands]

    def __str__(self) -> str:
        extents = " ".join(f"{axis}={n}" for axis, n in sorted(self.extents.items()))
        return f"{self.text} {extents} {np.dtype(self.dtype).name} {self.after}".rstrip()


def drawn(seed: int) -> Product:
    """The product of a seed."""
    rng = random.Random(seed)
    while True:
        axes = "abcdef"[: rng.randint(3, 5)]
        extents = {axis: rng.choice(EXTENTS) for axis in axes}
        operands = [
            "".join(rng.sample(axes, rng.randint(1, min(4, len(axes)))))
            for _ in range(rng.choice([1, 2, 2, 2, 3]))
        ]
        used = sorted({*"".join(operands)})
        result = "".join(rng.sample(used, rng.randint(1, max(1, len(used) - 1))))
        sizes = [np.prod([extents[a] for a in each], dtype=float) for each in (*operands, result)]
        products = np.prod([extents[a] for a in used], dtype=float)
        if LEAST < max(sizes) < LARGEST and products < MOST_PRODUCTS:
            break
    dtype = rng.choice([jnp.float32, jnp.bfloat16])
    kept = {axis: extents[axis] for axis in used}
    return Product(f"{','.join(operands)}->{result}", kept, dtype, rng.choice([*AFTER]))


def measure(product: Product, target: str) -> tuple[float, float]:
    """(simulated microseconds, bound) on a target."""
    after = AFTER[product.after]
    arrays = [np.zeros(shape, np.dtype(product.dtype)) for shape in product.shapes]
    lowered = jax.jit(lambda *given: after(jnp.einsum(product.text, *given))).lower(*arrays)
    neff = glia.compile(lowered, target=target)
    model, arch = glia.load(neff), get_target(target).arch
    results = sum(int(np.prod(b.shape)) * b.dtype.bytes for b in model.outputs)
    moved = results + sum(array.nbytes for array in arrays)
    moved_us = moved / (arch.dma_bytes_per_ns * arch.dma_engines) / 1000
    passes = arch.tensor_passes.get("f32" if product.dtype is jnp.float32 else "bf16", 1.0)
    rate = 2 * 128 * 128 * arch.clocks_ghz["tensor"] * 1000 / passes
    bound = max(moved_us, float(neff.statistics.get("flops", 0)) / rate) + LAUNCH_US
    return model.profile(*arrays).latency_us, bound


def main() -> int:
    """Print what is far from its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=100, metavar="N")
    parser.add_argument("--most", type=float, default=20.0, metavar="RATIO")
    parser.add_argument("--target", nargs="+", default=["trn1", "trn2"])
    given = parser.parse_args()
    found: list[tuple[float, str]] = []
    shown = time.monotonic()
    for seed in range(given.first, given.first + given.count):
        product = drawn(seed)
        for target in given.target:
            try:
                took, bound = measure(product, target)
            except CompileError as problem:
                print(f"{seed} {product} on {target}: {str(problem).partition(chr(10))[0]}")
                found.append((float("inf"), f"{seed} {product} on {target}: refused"))
                continue
            text = f"{seed} {product} on {target}: {took:.0f} us, bound {bound:.0f}"
            found.append((took / bound, text))
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{seed - given.first + 1} of {given.count}", file=sys.stderr, flush=True)
    found.sort()
    ratios = [ratio for ratio, _ in found]
    far = [(ratio, text) for ratio, text in found if ratio > given.most]
    for ratio, text in far:
        print(f"{ratio:7.1f}  {text}")
    tenths = ", ".join(f"{ratios[len(ratios) * n // 100]:.1f}" for n in (50, 90, 99))
    print(f"{len(far)} of {len(found)} over {given.most:g}; half, 90 and 99 % are below {tenths}")
    return 1 if far else 0


if __name__ == "__main__":
    raise SystemExit(main())
