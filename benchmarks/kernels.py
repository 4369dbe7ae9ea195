"""Simulated times of the kernels in `glia.kernels`, each beside its own roofline.

    python benchmarks/kernels.py [TEXT]         the table of kernels whose name holds TEXT

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
from glia.kernels.flash_attention import flash_attention
from glia.kernels.flash_attention_backward import flash_attention_backward
from glia.kernels.layernorm import layernorm
from glia.kernels.matmul import (
    matmul_blocked_free,
    matmul_fully_blocked,
    matmul_hoisted,
    matmul_tiled,
)
from glia.kernels.mlp import swiglu
from glia.kernels.rmsnorm import rmsnorm, rmsnorm_quantized
from glia.kernels.rope import rope
from glia.kernels.softmax import softmax
from glia.kernels.tensor_add import tensor_add
from glia.kernels.transpose2d import transpose2d
from glia.nki.testing import profile_kernel

Cycles = Mapping[str, float]
GOAL = 0.7  # of the roofline
HEADINGS = (
    "kernel", "arguments", "target", "latency us", "kernel us", "roofline us", "bound", "reached",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments, and what its roofline is made of.

    `moved` is bytes through DMA, `cycles` those of each engine. `shared` engines divide the work
    between them: their times are added and halved. Engines `in_turn` share a port of SBUF on
    generation 2: there their times are added.
    """

    kernel: Any
    arguments: tuple[np.ndarray, ...]
    moved: float = 0.0
    cycles: Cycles = field(default_factory=dict)
    shared: Cycles = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    in_turn: Cycles = field(default_factory=dict)
    targets: tuple[str, ...] = ("trn1", "trn2")

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
            found[name] = cycles / arch.clocks_ghz[name] / 1000
        if self.shared:
            times = [cycles / arch.clocks_ghz[name] for name, cycles in self.shared.items()]
            found[" and ".join(self.shared)] = sum(times) / len(times) / 1000
        if self.in_turn and arch.generation == 2:
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
    yield Case(swiglu, (x, up, up, down), cycles=array, targets=("trn2",))


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
        yield Case(step, (square, square), moved, array, targets=("trn2",))
    tiles = {"tiles": (8, 1, 4)}
    yield Case(
        matmul_fully_blocked, (square, square), cycles=array, constants=tiles, targets=("trn2",)
    )
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
    yield Case(rmsnorm, (x, row), moved, {"vector": 2 * each, "scalar": each})
    yield Case(rmsnorm_quantized, (x, row), x.nbytes + x.size, {"vector": 3 * each})
    x, table = zeros(2048, 16, 128, dtype=dtype), zeros(2048, 64, dtype=dtype)
    each = x.size / 128
    cycles = 3 * each * (1 if dtype is np.float32 else 0.5)  # two engines share float32
    yield Case(rope, (x, table, table), 2 * x.nbytes, {"vector": cycles}, targets=("trn2",))


def _attention() -> Iterator[Case]:
    size = 4096
    q, v, lse = zeros(1, 1, 128, size), zeros(1, 1, size, 128), zeros(1, 1, size, dtype=np.float32)
    for causal in (False, True):
        keys = [first + 128 if causal else size for first in range(0, size, 128)]
        sums = sum(-(-count // 1024) for count in keys)
        both = {
            "vector": (579 + 323) * sum(keys) / 512 + 195 * sums,
            "scalar": sum(keys),
        }
        constants = {"causal": causal}
        array = {"tensor": 3 * sum(keys)}
        yield Case(flash_attention, (q, q, v), 0, array, both, constants, targets=("trn2",))
        array = {"tensor": 6 * sum(keys)}
        yield Case(
            flash_attention_backward,
            (q, q, v, v, v, lse),
            0,
            array,
            {},
            constants,
            targets=("trn2",),
        )


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
