"""Simulated times of the kernels in `glia.kernels`, each beside its own roofline.

    python benchmarks/kernel_table.py [TEXT]         the table of kernels whose name holds TEXT

`kernel_rows` gives the same as data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from glia.arch import get_target
from glia.kernels.cross_entropy import cross_entropy_backward, cross_entropy_forward
from glia.kernels.cumsum import cumsum
from glia.kernels.depthwise_conv1d import depthwise_conv1d
from glia.kernels.flash_attention import flash_attention
from glia.kernels.flash_attention_backward import flash_attention_backward
from glia.kernels.images.average_pool2d import average_pool2d
from glia.kernels.images.conv2d import conv2d, conv2d_image_gradient
from glia.kernels.images.conv2d_weights import conv2d_weight_gradient
from glia.kernels.images.resize_nearest import resize_nearest
from glia.kernels.images.select_and_scatter import select_and_scatter
from glia.kernels.layernorm import layernorm
from glia.kernels.mamba import mamba
from glia.kernels.matmul import (
    matmul_blocked_free,
    matmul_fully_blocked,
    matmul_hoisted,
    matmul_tiled,
)
from glia.kernels.mlp import swiglu
from glia.kernels.moe_blocks import moe_blocks
from glia.kernels.rmsnorm import rmsnorm, rmsnorm_quantized
from glia.kernels.rope import rope
from glia.kernels.softmax import softmax
from glia.kernels.tensor_add import tensor_add
from glia.kernels.top_k import top_k
from glia.kernels.transpose2d import transpose2d
from glia.nki.run.testing import profile_kernel

Cycles = Mapping[str, float]
GOAL = 0.7  # of the roofline
HEADINGS = (
    "kernel", "arguments", "target", "latency us", "kernel us", "roofline us", "bound", "reached",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments, and what its roofline is made of.

    `moved` is bytes through DMA, `cycles` those of each engine. `shared` engines divide the work
    between them: their times are added and halved. On generation 2 engines `in_turn` share a port
    of SBUF, or PSUM: there their times are added. `paired` are elements of a partition for which
    Vector reads two tensors in SBUF.
    """

    kernel: Any
    arguments: tuple[np.ndarray, ...]
    moved: float = 0.0
    cycles: Cycles = field(default_factory=dict)
    shared: Cycles = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    in_turn: Cycles = field(default_factory=dict)
    targets: tuple[str, ...] = ("trn1", "trn2")
    paired: float = 0.0

    @property
    def shape(self) -> str:
        """Dtype and shapes of the arguments, those of the same shape once; then constants."""
        shapes = dict.fromkeys("x".join(map(str, each.shape)) for each in self.arguments)
        constants = "".join(f", {name}={value}" for name, value in self.constants.items())
        return f"{self.arguments[0].dtype} {' '.join(shapes)}{constants}"

    def bounds_us(self, target: str) -> dict[str, float]:
        """By what bounds it: the least time in microseconds."""
        arch = get_target(target).arch
        rate = arch.dma_engines * arch.dma_bytes_per_ns
        found = {"DMA": self.moved / rate / 1000}
        for name, cycles in self.cycles.items():
            both = self.paired * arch.two_input_cycles if name == "vector" else 0.0
            found[name] = (cycles + both) / arch.clocks_ghz[name] / 1000
        if self.shared:
            times = [cycles / arch.clocks_ghz[name] for name, cycles in self.shared.items()]
            found[" and ".join(self.shared)] = sum(times) / len(times) / 1000
        if self.in_turn and arch.capabilities.has_shared_sbuf_port:
            times = [cycles / arch.clocks_ghz[name] for name, cycles in self.in_turn.items()]
            found[" and ".join(self.in_turn)] = sum(times) / 1000
        return found


@dataclass(frozen=True)
class KernelRow:
    """One kernel at one shape on one target; times in microseconds.

    `latency` has the pre- and postamble of a launch, `span` has not; `fraction` is of the roofline,
    within the span.
    """

    kernel: str
    shape: str
    target: str
    latency: float
    span: float
    roofline: float
    bound: str
    fraction: float


def zeros(*shape: int, dtype: Any = bfloat16) -> np.ndarray:
    """An argument: nothing is computed, its values do not matter."""
    return np.zeros(shape, dtype)


def cases() -> Iterator[Case]:
    """Every kernel at the shapes of the documentation, or at shapes of large models."""
    yield from _products()
    for dtype in (np.float32, bfloat16):
        yield from _row_kernels(dtype)
    yield from _attention()
    x, up, down = zeros(2048, 2048), zeros(2048, 8192), zeros(8192, 2048)
    array = {"tensor": 3 * x.size * 8192 / 128**2}
    yield Case(swiglu, (x, up, up, down), cycles=array)
    yield from _experts()
    for dtype in (np.float32, bfloat16):
        yield from _sequences(dtype)
        yield from _vocabularies(dtype)
        yield from _images(dtype)
    yield from _convolutions()


def _products() -> Iterator[Case]:
    size = 2048
    square = zeros(size, size)
    array = {"tensor": size**3 / 128**2}
    for step, left, right in (
        (matmul_tiled, 4, 16),
        (matmul_hoisted, 1, 16),
        (matmul_blocked_free, 1, 4),
    ):
        moved = square.nbytes * (left + right + 1)
        yield Case(step, (square, square), moved, array)
    for target, tiles in (("trn1", (16, 4, 4)), ("trn2", (8, 1, 4))):
        yield Case(
            matmul_fully_blocked, (square, square), cycles=array, constants={"tiles": tiles},
            targets=(target,),
        )  # fmt: skip
    left, right = zeros(8192, 4096), zeros(8192, 8192)
    array = {"tensor": left.size * 8192 / 128**2}
    tiles = {"tiles": (32, 1, 4)}
    yield Case(matmul_fully_blocked, (left, right), cycles=array, constants=tiles)


def _row_kernels(dtype: Any) -> Iterator[Case]:
    a = zeros(512, 2048, dtype=dtype)
    yield Case(tensor_add, (a, a), 3 * a.nbytes)
    a = zeros(1024, 2048, dtype=dtype)
    yield Case(transpose2d, (a,), 2 * a.nbytes, constants={"shape": (64, 32)})
    x, row = zeros(4096, 2048, dtype=dtype), zeros(2048, dtype=dtype)
    each, moved = x.size / 128, 2 * x.nbytes
    yield Case(softmax, (x,), moved, {"vector": each, "scalar": each})
    turns = {"vector": 2 * each, "gpsimd": 2 * each}
    cycles = {"vector": 2 * each, "scalar": 3 * each}
    yield Case(layernorm, (x, row, row), moved, cycles, in_turn=turns)
    yield Case(rmsnorm, (x, row), moved, {"vector": 0, "scalar": each}, paired=each)
    yield Case(rmsnorm_quantized, (x, row), x.nbytes + x.size, {"vector": each}, paired=each)
    x, table = zeros(2048, 16, 128, dtype=dtype), zeros(2048, 64, dtype=dtype)
    each = x.size / 128
    cycles = {"vector": 3 * each * (1 if dtype is np.float32 else 0.5)}  # shared in float32
    alone = {"vector": 3 * each * (2 if dtype is np.float32 else 1)}
    yield Case(rope, (x, table, table), 2 * x.nbytes, cycles, in_turn=alone)


def _attention() -> Iterator[Case]:
    size = 4096
    q, v, lse = zeros(1, 1, 128, size), zeros(1, 1, size, 128), zeros(1, 1, size, dtype=np.float32)
    for causal in (False, True):
        keys = [first + 128 if causal else size for first in range(0, size, 128)]
        sums, parts = (sum(-(-count // most) for count in keys) for most in (1024, 512))
        both = {
            "vector": (579 + 323) * sum(keys) / 512 + 195 * sums,
            "scalar": sum(keys),
        }
        constants = {"causal": causal}
        array = {"tensor": 3 * sum(keys)}
        psum = {"vector": sum(keys) + 20 * parts + 148 * sums, "scalar": 2 * sum(keys)}
        yield Case(flash_attention, (q, q, v), 0, array, both, constants, psum)
        array = {"tensor": 6 * sum(keys)}
        psum = {"vector": sum(keys) + 168 * parts, "scalar": 2 * sum(keys)}
        arguments = q, q, v, v, v, lse
        yield Case(flash_attention_backward, arguments, 0, array, {}, constants, psum)


def _experts() -> Iterator[Case]:
    block, size, blocks = 512, 1024, 8
    weights = zeros(8, size, 2, size), zeros(8, size, size)
    positions, experts = zeros(blocks * block, dtype=np.int32), zeros(blocks, 1, dtype=np.int32)
    tokens = zeros(2049, size), zeros(2049 * 8, 1)
    array = {"tensor": blocks * (3 * block * size**2 / 128**2 + size * block / 128)}
    moved = blocks * (6 * size**2 + 6 * block * size)
    arguments = (*tokens, *weights, positions, experts)
    yield Case(moe_blocks, arguments, moved, array, {}, {"block": block})


def _sequences(dtype: Any) -> Iterator[Case]:
    x = zeros(2048, 8192, dtype=dtype)
    yield Case(cumsum, (x,), 2 * x.nbytes, {"vector": 2 * x.size / 128})
    image, taps = zeros(1, 1024, 8192, dtype=dtype), zeros(1024, 4, dtype=dtype)
    array = {"tensor": 4 * 8 * 8189 * (4 if dtype is np.float32 else 1)}
    yield Case(depthwise_conv1d, (image, taps), 2 * image.nbytes, array)
    if dtype is np.float32:
        for time in (512, 4096):
            wide, row = zeros(1, 256, time, dtype=dtype), zeros(1, 16, time, dtype=dtype)
            arguments = wide, wide, zeros(256, 16, dtype=dtype), row, row
            moved = 3 * wide.nbytes + 2 * row.nbytes
            yield Case(mamba, arguments, moved, {"vector": 2 * 16 * 4 * time})


def _vocabularies(dtype: Any) -> Iterator[Case]:
    logits, targets = zeros(512, 32768, dtype=dtype), zeros(512, dtype=np.int32)
    each = logits.size / 128
    cycles = {"vector": each, "scalar": each}
    yield Case(cross_entropy_forward, (logits, targets), logits.nbytes, cycles)
    arguments = logits, targets, zeros(512, dtype=np.float32)
    constants, cycles = {"scale": 1 / 512}, {"scalar": each}
    yield Case(cross_entropy_backward, arguments, 2 * logits.nbytes, cycles, {}, constants)
    for rows, columns, elements in ((128, 8192, 8192), (8, 32768, 2048 + 16 * 64)):
        cycles = {"vector": 16 * elements}
        x = zeros(rows, columns, dtype=dtype)
        yield Case(top_k, (x,), x.nbytes, cycles, {}, {"k": 64})


def _images(dtype: Any) -> Iterator[Case]:
    image = zeros(128, 224, 224, dtype=dtype)
    cycles = {"vector": image.size / 128}
    yield Case(average_pool2d, (image,), 1.25 * image.nbytes, cycles, {}, {"pool": 2})
    image = zeros(10 if dtype is np.float32 else 1, 30, 20, 1280, dtype=dtype)
    moved = image.nbytes * (1 + 59 * 38 / (30 * 20))
    yield Case(resize_nearest, (image,), moved, constants={"shape": (59, 38)})
    image, source = zeros(8, 64, 112, 112, dtype=dtype), zeros(8, 64, 56, 56, dtype=dtype)
    moved = 2 * image.nbytes + source.nbytes
    cycles, earlier = ({"vector": each * source.size / 128} for each in (33.75, 45))
    yield Case(select_and_scatter, (image, source), moved, cycles, in_turn=earlier)


def _convolutions() -> Iterator[Case]:
    """3 x 3 filters over four images of 128 rows and columns."""
    image, weights = zeros(4, 128, 128, 128), zeros(128, 128, 3, 3)
    pixels, moved = 4 * 128 * 128, 2 * image.nbytes
    steps: dict[str, Any] = {"stride": 1, "padding": 1}
    array = {"tensor": 9 * pixels}
    yield Case(conv2d, (image, weights), moved, array, {}, steps)
    shaped = {"shape": image.shape, **steps}
    yield Case(conv2d_image_gradient, (image, weights), moved, array, {}, shaped)
    array = {"tensor": (9 + 3 + 1) * pixels}
    steps = {"taps": (3, 3), **steps}
    yield Case(conv2d_weight_gradient, (image, image), moved, array, {}, steps)


def measure(case: Case, target: str) -> KernelRow:
    """Time one kernel."""
    found = profile_kernel(case.kernel, *case.arguments, target=target, **case.constants)
    arch = found.target.arch
    span = found.latency_us - (found.timing.begin_ns + arch.postamble_ns) / 1000
    bounds = case.bounds_us(target)
    bound = max(bounds, key=lambda name: bounds[name])
    return KernelRow(
        case.kernel.__name__, case.shape, target, found.latency_us, span, bounds[bound], bound,
        bounds[bound] / span,
    )  # fmt: skip


def kernel_rows(text: str = "") -> list[KernelRow]:
    """The rows of all kernels whose name holds `text`."""
    chosen = [case for case in cases() if text in case.kernel.__name__]
    return [measure(case, target) for case in chosen for target in case.targets]


def table(rows: Iterable[KernelRow]) -> str:
    """The rows as a table in Markdown."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: KernelRow) -> tuple[str, ...]:
    """One row as text, below HEADINGS."""
    times = (f"{microseconds:,.1f}" for microseconds in (row.latency, row.span, row.roofline))
    return (row.kernel, row.shape, row.target, *times, row.bound, f"{row.fraction:.0%}")


def results() -> dict[str, Any]:
    """The measurements as a part of RESULTS.md; what misses the goal is broken."""
    rows = kernel_rows()
    slow = [
        f"kernel {row.kernel} on {row.target}: {row.fraction:.0%} of its roofline, at least "
        f"{GOAL:.0%}, NOT KEPT"
        for row in rows
        if row.fraction < GOAL
    ]
    text = (
        "Simulated. `kernel` is the latency without the pre- and postamble of a launch, `bound` "
        "what the roofline is of: the time that engine, or DMA, cannot go below."
    )
    return {"title": "Kernels", "text": text, "headings": HEADINGS,
            "rows": [cells(row) for row in rows], "broken": slow}  # fmt: skip


if __name__ == "__main__":
    print(table(kernel_rows(*sys.argv[1:2])))
