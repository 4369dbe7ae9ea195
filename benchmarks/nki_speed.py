"""How fast kernels are simulated step by step, traced, compiled and called again.

    python benchmarks/nki_speed.py

`results` gives the same as data. Times are of this process on one core; edit-run is a whole Python
process from its start.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import glia.nki as nki
import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.kernels.matmul import matmul_fully_blocked
from glia.nki.trace import trace

MATMUL = 2048
ADDITIONS = 5000
EDIT_RUN = """\
import numpy as np
import glia
from glia.kernels.tensor_add import tensor_add
a = np.ones((128, 512), np.float32)
print(glia.simulate(tensor_add)(a, a).sum())
"""


stamps: list[float] = []  # before and after the additions of each run


@nki.jit
def additions(x, count):
    """x + x, written `count` times by as many instructions."""
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    total = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    stamps.append(time.perf_counter())
    for _ in range(count):
        nisa.tensor_tensor(dst=total, data1=tile, data2=tile, op=nl.add)
    stamps.append(time.perf_counter())
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=total)
    return result


def seconds(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure() -> list[tuple[str, float, str, float | None, bool]]:
    """(what, value, unit, goal if there is one, whether less is better)."""
    square = np.ones((MATMUL, MATMUL), ml_dtypes.bfloat16)
    small = np.ones((128, 8), np.float32)
    nki.simulate(additions)(small, 1)
    eager = seconds(lambda: nki.simulate(matmul_fully_blocked)(square, square))
    stamps.clear()
    traced = seconds(lambda: trace(additions, small, count=ADDITIONS))
    recorded = stamps[1] - stamps[0]
    additions.compile(small, count=8)
    again = seconds(lambda: additions.compile(small, count=8))
    edit_run = seconds(lambda: subprocess.run([sys.executable, "-c", EDIT_RUN], check=True,
                                              capture_output=True))  # fmt: skip
    return [
        (f"bf16 product {MATMUL} cubed, step by step", eager, "s", 10, True),
        ("tracing: recording calls", ADDITIONS / recorded, "/s", 1e5, False),
        ("from calls to a placed, checked program", ADDITIONS / traced, "/s", None, False),
        ("second call of a compiled kernel", 1000 * again, "ms", 50, True),
        ("edit and run a tutorial kernel", edit_run, "s", 1, True),
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
    text = "Wall times of the front end and the step-by-step simulator, in one process."
    return {"title": "Writing kernels", "text": text, "rows": rows, "broken": broken,
            "headings": ("what", "measured", "goal", "")}  # fmt: skip


if __name__ == "__main__":
    for row in results()["rows"]:
        print("  ".join(row))
