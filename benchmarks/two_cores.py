"""Models on one core and on the two cores of a logical core: simulated time, and what divides them.

    python benchmarks/two_cores.py > benchmarks/CORES.md

Of each model only the first layers are compiled: all layers are alike.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import networks
import numpy as np
from ml_dtypes import bfloat16

import glia
from glia.alternatives import latency_us

TARGETS = ("trn2", "trn3")
HEAD = 128


@dataclass(frozen=True)
class Divided:
    """A model, the shapes it takes, and how much faster two cores are meant to be."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    goal: float

    def lowered(self) -> Any:
        arguments = [jax.ShapeDtypeStruct(shape, bfloat16) for shape in self.shapes]
        return jax.jit(self.function).lower(*arguments)


def matmul(size: int) -> Divided:
    return Divided(f"matmul {size}", lambda a, b: a @ b, ((size, size),) * 2, 1.8)


def bert(batch: int, tokens: int, layers: int = 2) -> Divided:
    forward, x = networks.bert(layers=layers, tokens=tokens, batch=batch, dtype=bfloat16)
    return Divided(f"BERT-base {batch} x {tokens}, {layers} layers", forward, (x.shape,), 1.6)


def decode(width: int, hidden: int, context: int, batch: int = 4) -> Divided:
    """A layer of a decoder for one new token of each sequence, with its cache."""
    heads = width // HEAD

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
        return x * scale.astype(x.dtype)

    def layer(x, keys, values, wq, wk, wv, wo, gate, up, down):  # type: ignore[no-untyped-def]
        q, k, v = (jnp.reshape(norm(x) @ w, (-1, heads, HEAD)) for w in (wq, wk, wv))
        keys = jnp.concatenate([keys, k[:, :, None]], 2)
        values = jnp.concatenate([values, v[:, :, None]], 2)
        scores = jnp.einsum("bhd,bhtd->bht", q, keys).astype(jnp.float32) / HEAD**0.5
        weights = jax.nn.softmax(scores, -1).astype(x.dtype)
        x = x + jnp.einsum("bht,bhtd->bhd", weights, values).reshape(-1, width) @ wo
        return x + (jax.nn.silu(norm(x) @ gate) * (norm(x) @ up)) @ down, k, v

    cache = (batch, heads, context - 1, HEAD)
    square, wide = (width, width), (width, hidden)
    shapes = ((batch, width), cache, cache, *[square] * 4, wide, wide, (hidden, width))
    return Divided(f"decode {batch} x {context}, {width}, {hidden}", layer, shapes, 1.7)


def in_a_loop(one: Divided, layers: int = 8) -> Divided:
    """Layers of a decoder by `lax.scan`, which give what they add to the caches."""

    def model(x, *stacked):  # type: ignore[no-untyped-def]
        def layer(x, own):  # type: ignore[no-untyped-def]
            x, *added = one.function(x, *own)
            return x, added

        return jax.lax.scan(layer, x, stacked)

    stacks = ((layers, *shape) for shape in one.shapes[1:])
    return Divided(f"{one.name}, {layers} layers by scan", model, (one.shapes[0], *stacks), 1.7)


MODELS = (
    matmul(1024), matmul(2048), matmul(4096),
    bert(1, 128), bert(8, 128), bert(8, 384),
    decode(1024, 2816, 512), decode(2048, 5632, 1024), decode(4096, 14336, 2048),
    in_a_loop(decode(2048, 5632, 1024)), in_a_loop(decode(4096, 14336, 2048)),
)  # fmt: skip


def rows() -> Iterator[str]:
    """A line of a table for each model and target."""
    for model in MODELS:
        lowered = model.lowered()
        for target in TARGETS:
            started = time.monotonic()
            neffs = [glia.compile(lowered, target=target, logical_nc_config=n) for n in (1, 2)]
            seconds = time.monotonic() - started
            one, two = (latency_us(neff.programs, target) for neff in neffs)
            assert one is not None and two is not None
            met = [note.rpartition("they meet ")[2] for note in neffs[1].notes if "meet" in note]
            yield (
                f"| {model.name} | {target} | {one:.1f} | {two:.1f} | {one / two:.2f} |"
                f" {model.goal} | {met[0].split()[0] if met else 'one core is kept'} |"
                f" {seconds:.0f} |"
            )


def main() -> None:
    """Print the page."""
    print("# One core and two\n\nWritten by `python benchmarks/two_cores.py`.\n")
    print(
        "Simulated time of models in bf16 on one physical core, and with `--lnc 2` on the two of a"
    )
    print("logical core. Barriers are those of the program; where two cores would be slower, the")
    print("program of one is kept. Seconds are of both compilations together.\n")
    machine = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"
    print(f"{machine}, JAX {jax.__version__}.\n")
    print("| model | target | one, us | two, us | times | goal | barriers | compile s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows():
        print(row, flush=True)


if __name__ == "__main__":
    main()
