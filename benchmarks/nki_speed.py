"""How fast kernels are simulated step by step, traced, compiled and called again.

    python benchmarks/nki_speed.py

`results` gives the same as data. Rates are those of a processor's seconds, since other work on the
machine does not count; edit-run is a whole Python process from its start. How fast Python runs is
how fast kernels are recorded: one built without profile-guided optimisation takes an eighth longer.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import glia.nki as nki
import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.kernels.images.conv2d import conv2d
from glia.kernels.layernorm import layernorm
from glia.kernels.mamba import mamba
from glia.kernels.matmul import matmul_fully_blocked
from glia.kernels.rope import rope
from glia.kernels.softmax import softmax
from glia.nki.run.trace import trace

Row = tuple[str, float, str, float | None, bool]  # what, value, unit, goal, is less better?
MATMUL = 2048
ADDITIONS = 5000
EDIT_RUN = """\
import numpy as np
import glia
from glia.kernels.tensor_add import tensor_add
a = np.ones((128, 512), np.float32)
print(glia.simulate(tensor_add)(a, a).sum())
"""


FLOAT, HALF = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
RUNS = 9  # of each whole kernel, of which the best counts
# Library kernels at shapes that make 5,000 instructions and more of them: the kernel, its
# arguments, and how many instructions a second are recorded and compiled at the least.
WHOLE: dict[str, tuple[Any, list[tuple[tuple[int, ...], np.dtype]], float, float]] = {
    "softmax": (softmax, [((115200, 512), FLOAT)], 1e5, 2e4),
    "layernorm": (layernorm, [((64000, 512), FLOAT), *[((512,), FLOAT)] * 2], 1e5, 2e4),
    "rope": (rope, [((51200, 8, 64), FLOAT), *[((51200, 32), FLOAT)] * 2], 1e5, 2e4),
    "mamba": (
        mamba,
        [
            *[((6, 256, 2048), FLOAT)] * 2, ((256, 16), FLOAT), *[((6, 16, 2048), FLOAT)] * 2,
        ],
        1e5, 2e4,
    ),
    "conv2d": (
        partial(conv2d, padding=1), [((18, 256, 56, 56), HALF), ((256, 256, 3, 3), HALF)],
        1e5, 2e4,
    ),
    "fully blocked product": (
        matmul_fully_blocked, [((65536, 1024), HALF), ((65536, 512), HALF)], 1e5, 1.5e4,
    ),
}  # fmt: skip

stamps: list[float] = []  # seconds of the processor before and after the additions of each run


@nki.jit
def additions(x, count):
    """x + x, written `count` times by as many instructions."""
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    total = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    stamps.append(time.process_time())
    for _ in range(count):
        nisa.tensor_tensor(dst=total, data1=tile, data2=tile, op=nl.add)
    stamps.append(time.process_time())
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=total)
    return result


def seconds(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def traced_whole(name: str) -> tuple[int, float, float]:
    """Instructions of a whole kernel, and seconds to record them and to compile what is recorded.

    A processor's seconds, of the best of some runs: other work on the machine does not count.
    """
    kernel, shapes, *_ = WHOLE[name]
    arrays = [np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in shapes]
    marks: list[float] = []

    def stamped(*tensors: Any) -> Any:
        marks.append(time.process_time())
        result = kernel(*tensors)
        marks.append(time.process_time())
        return result

    found = []
    for _ in range(RUNS):
        marks.clear()
        program = trace(stamped, *arrays)
        found.append((marks[1] - marks[0], time.process_time() - marks[1]))
    count = sum(1 for _ in program.instructions())
    return count, min(run[0] for run in found), min(run[1] for run in found)


def whole_kernels() -> list[Row]:
    """How fast whole kernels are recorded and compiled."""
    rows: list[Row] = []
    for name, (*_, recorded, compiled) in WHOLE.items():
        count, recording, compiling = traced_whole(name)
        what = f"{name}, {count:,} instructions"
        rows.append((f"recording {what}", count / recording, "/s", recorded, False))
        rows.append((f"compiling {what}", count / compiling, "/s", compiled, False))
    return rows


def measure() -> list[Row]:
    """Everything that is measured."""
    square = np.ones((MATMUL, MATMUL), ml_dtypes.bfloat16)
    small = np.ones((128, 8), np.float32)
    nki.simulate(additions)(small, 1)
    eager = seconds(lambda: nki.simulate(matmul_fully_blocked)(square, square))
    stamps.clear()
    started = time.process_time()
    trace(additions, small, count=ADDITIONS)
    traced = time.process_time() - started
    recorded = stamps[1] - stamps[0]
    additions.compile(small, count=8)
    again = seconds(lambda: additions.compile(small, count=8))
    edit_run = seconds(lambda: subprocess.run([sys.executable, "-c", EDIT_RUN], check=True,
                                              capture_output=True))  # fmt: skip
    return [
        (f"bf16 product {MATMUL} cubed, step by step", eager, "s", 10, True),
        ("tracing: recording calls", ADDITIONS / recorded, "/s", 1e5, False),
        ("from calls to a placed, checked program", ADDITIONS / traced, "/s", 1.5e4, False),
        ("second call of a compiled kernel", 1000 * again, "ms", 50, True),
        ("edit and run a tutorial kernel", edit_run, "s", 1, True),
        *whole_kernels(),
    ]


def results() -> dict[str, Any]:
    """The measurements as a part of RESULTS.md; what misses its goal is broken."""
    rows, broken = [], []
    for what, value, unit, goal, is_less_better in measure():
        if goal is None:
            rows.append([what, f"{value:,.3g} {unit}", "", ""])
            continue
        is_kept = value <= goal if is_less_better else value >= goal
        limit = f"at {'most' if is_less_better else 'least'} {goal:,g} {unit}"
        rows.append([what, f"{value:,.3g} {unit}", limit, "kept" if is_kept else "NOT KEPT"])
        if not is_kept:
            broken.append(f"kernels: {what}: {value:,.3g} {unit}, {limit}, NOT KEPT")
    text = "The front end and the step-by-step simulator, in one process."
    return {"title": "Writing kernels", "text": text, "rows": rows, "broken": broken,
            "headings": ("what", "measured", "goal", "")}  # fmt: skip


if __name__ == "__main__":
    for row in results()["rows"]:
        print("  ".join(row))
