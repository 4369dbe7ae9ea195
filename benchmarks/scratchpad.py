"""The bytes of HBM that temporaries of large models take, and what sharing them costs.

    python benchmarks/scratchpad.py

The models are decoders in the proportions of one with 8 billion parameters, a quarter as wide, and
that one, whose weights NeuronCore-v2 has no room for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from glia.arch import get_target
from glia.frontend.hlo import import_hlo
from glia.isa.operand import Memory
from glia.machine.ir import Program
from glia.machine.passes.insert_semaphores import insert_semaphores
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.passes.pack_intervals import Block, largest_live_set
from glia.machine.passes.place import place
from glia.machine.scratchpad import scratchpad, temporaries_in_hbm
from glia.options import CompileOptions
from glia.pass_runner import run_pipeline
from glia.timing.simulate import simulate_timing

MOST_OF_LIVE = 1.1  # of the largest live set
MOST_SLOWDOWN = 1.02


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder with grouped queries and a gated feed-forward part."""

    width: int = 1024
    heads: int = 8
    shared_heads: int = 2
    hidden: int = 3584
    tokens: int = 1024

    def hlo(self, layers: int) -> bytes:
        """The model in bf16, its weights as inputs."""
        rows = self.width // self.heads * self.shared_heads
        shapes = {"q": (self.width, self.width), "k": (self.width, rows), "v": (self.width, rows)}
        shapes |= {"o": (self.width, self.width), "gate": (self.width, self.hidden)}
        shapes |= {"up": (self.width, self.hidden), "down": (self.hidden, self.width)}
        shapes |= {"norm1": (self.width,), "norm2": (self.width,)}
        weights = {n: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for n, shape in shapes.items()}
        x = jax.ShapeDtypeStruct((self.tokens, self.width), jnp.bfloat16)

        def forward(x: Any, stack: list[dict[str, Any]]) -> Any:
            for each in stack:
                x = self._layer(x, each)
            return x

        lowered = jax.jit(forward).lower(x, [weights] * layers)
        return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()

    def _layer(self, x: Any, w: dict[str, Any]) -> Any:
        h = _norm(x, w["norm1"])
        q, k, v = (self._heads(h @ w[name]) for name in "qkv")
        group = self.heads // self.shared_heads
        k, v = jnp.repeat(k, group, 0), jnp.repeat(v, group, 0)
        scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32)
        scores /= np.float32((self.width // self.heads) ** 0.5)
        causal = jnp.tril(jnp.ones((self.tokens, self.tokens), bool))
        shares = jax.nn.softmax(jnp.where(causal, scores, -1e30), -1).astype(x.dtype)
        mixed = jnp.einsum("hqk,hkd->hqd", shares, v).transpose(1, 0, 2)
        x = x + mixed.reshape(self.tokens, self.width) @ w["o"]
        h = _norm(x, w["norm2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]

    def _heads(self, x: Any) -> Any:
        return x.reshape(self.tokens, -1, self.width // self.heads).transpose(1, 0, 2)


def _norm(x: Any, gain: Any) -> Any:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype) * gain


def apart(program: Program) -> Program:
    """The program with an address of its own for each temporary."""
    addresses, end = {}, 1 << 34
    for tile in temporaries_in_hbm(program):
        addresses[tile.name], end = end, end + tile.bytes
    return insert_semaphores(place(replace(program, addresses=addresses)))


NARROW = Decoder()
WHOLE = Decoder(width=4096, heads=32, shared_heads=8, hidden=14336, tokens=2048)
CASES = (  # decoder, layers, target
    *((NARROW, layers, target) for layers in (4, 8) for target in ("trn1", "trn2", "trn3")),
    *((WHOLE, 32, target) for target in ("trn2", "trn3")),
)


def measure(decoder: Decoder, layers: int, target: str) -> dict[str, Any]:
    """Bytes and simulated microseconds with addresses apart and shared."""
    options = CompileOptions(target=target)
    scheduled = run_pipeline(import_hlo(decoder.hlo(layers)), options, stop_after="schedule")
    shared = insert_semaphores(place(scheduled))
    lifetimes = find_lifetimes(shared, (Memory.HBM,))
    live = [
        Block(tile.bytes, lifetimes[tile.name].first, lifetimes[tile.name].last)
        for tile in temporaries_in_hbm(shared)
    ]
    arch = get_target(target).arch
    return {
        "tensors": len(live),
        "apart": sum(each.extent for each in live),
        "shared": scratchpad(shared)[1],
        "live": largest_live_set(live),
        "apart_us": simulate_timing(apart(scheduled), arch).latency_ns / 1000,
        "shared_us": simulate_timing(shared, arch).latency_ns / 1000,
    }


def results() -> dict[str, Any]:
    """The table of this benchmark and the limits it broke."""
    found = {case: measure(*case) for case in CASES}
    broken = [
        f"{layers} layers on {target}: more than {MOST_OF_LIVE} of the largest live set"
        for (_, layers, target), row in found.items()
        if row["shared"] > MOST_OF_LIVE * row["live"]
    ]
    broken += [
        f"{layers} layers on {target}: sharing costs more than a factor of {MOST_SLOWDOWN}"
        for (_, layers, target), row in found.items()
        if row["shared_us"] > MOST_SLOWDOWN * row["apart_us"]
    ]
    return {
        "title": "Temporaries in HBM",
        "text": (
            "Decoders in the proportions of one with 8 billion parameters, a quarter as wide "
            "(width 1,024, 8 heads of 2 groups, hidden 3,584, 1,024 tokens, bf16), and that one "
            "(width 4,096, 32 heads of 8 groups, hidden 14,336, 2,048 tokens), -O2: bytes of "
            "temporaries each at an address of its own and sharing addresses, the largest live "
            f"set (goal: at most {MOST_OF_LIVE} of it), simulated latency with either."
        ),
        "headings": [
            "width", "layers", "target", "tensors", "bytes apart", "bytes shared",
            "largest live set",
            "latency us apart", "latency us shared",
        ],
        "rows": [
            [
                str(decoder.width), str(layers), target, str(row["tensors"]), f"{row['apart']:,}",
                f"{row['shared']:,}", f"{row['live']:,}", f"{row['apart_us']:,.1f}",
                f"{row['shared_us']:,.1f}",
            ]
            for (decoder, layers, target), row in found.items()
        ],
        "broken": broken,
    }  # fmt: skip


def main() -> None:
    """Print the table."""
    found = results()
    for row in (found["headings"], *found["rows"]):
        print(" | ".join(row))
    print("\n".join(found["broken"]))


if __name__ == "__main__":
    main()
