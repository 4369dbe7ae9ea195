"""How fast the reference executor and the race detector go, and the memory that they take.

    python benchmarks/machine.py [--quick]

`rows` gives the measurements as a list of dicts, one for each program; each is measured in a
process of its own, so that memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from glia.machine import ProgramBuilder, ds
from glia.machine.ir import Branch, Loop, Program, Statement, While
from glia.sim.order.concurrent import run_concurrently
from glia.sim.policy import Policy
from glia.sim.run import Executor

Row = dict[str, Any]
GIB = 1 << 30
HEADINGS = ("program", "executions", "per second", "concurrent per second", "MiB", "HBM spanned")


def product(rows: int) -> Program:
    """A matrix product, 512 columns, 512 deep, in tiles of 128 x 128 x 512."""
    b = ProgramBuilder(f"product {rows} x 512 x 512")
    left, right = b.input("left", (rows, 512), "bf16"), b.input("right", (512, 512), "bf16")
    result = b.output("result", (rows, 512))
    with b.loop(rows // 128, "m") as m:
        total, out = b.psum((128, 512), name="total"), b.sbuf((128, 512), name="out")
        with b.loop(4, "k") as k:
            w, x = b.sbuf((128, 128), "bf16"), b.sbuf((128, 512), "bf16")
            b.dma_copy(w, left[ds(128 * m, 128), ds(128 * k, 128)].T)
            b.dma_copy(x, right[ds(128 * k, 128)], queue="right", on="gpsimd")
            b.nc_matmul(total, w, x, accumulate=k)
        b.tensor_copy(out, total)
        b.dma_copy(result[ds(128 * m, 128)], out)
    return b.finish()


def elementwise(tiles: int, columns: int = 512) -> Program:
    """Loads, a square on one engine, a product on another, stores."""
    b = ProgramBuilder(f"{tiles} tiles of 128 x {columns}")
    x, y = b.input("x", (128 * tiles, columns)), b.output("y", (128 * tiles, columns))
    with b.loop(tiles) as i:
        t = b.sbuf((128, columns), name="t")
        b.dma_copy(t, x[ds(128 * i, 128)])
        b.activation(t, t, "square")
        b.tensor_scalar(t, t, 2.0, "multiply")
        b.dma_copy(y[ds(128 * i, 128)], t)
    return b.finish(double_buffered=True)


def sparse(gib: int) -> Program:
    """A few rows at the end of a tensor that fills most of HBM."""
    b = ProgramBuilder(f"rows at the end of {gib} GiB")
    big, y = (
        b.hbm((gib * GIB // 4096, 1024), name="big", at=0),
        b.output("y", (128, 1024), at=gib * GIB),
    )
    t = b.sbuf((128, 1024), name="t")
    last = big[ds(big.shape[0] - 128, 128)]
    b.memset(t, 1.0)
    b.dma_copy(last, t)
    b.dma_copy(y, last)
    return b.finish()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "product": lambda: product(2048),
    "product-longer": lambda: product(8192),
    "elementwise": lambda: elementwise(256),
    "elementwise-longer": lambda: elementwise(1024),
    "small": lambda: elementwise(1024, 8),
    "small-longer": lambda: elementwise(4096, 8),
    "sparse": lambda: sparse(90),
}
QUICK = ("product", "small", "sparse")


def resident_bytes() -> int:
    """Memory of this process that is in use now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def executions(body: tuple[Statement, ...]) -> int:
    """How many instructions a run executes (of While and Branch: each once)."""
    total = 0
    for each in body:
        if isinstance(each, Loop):
            total += each.trips * executions(each.body)
        elif isinstance(each, While):
            total += executions(each.condition) + executions(each.body)
        elif isinstance(each, Branch):
            total += max(map(executions, each.arms))
        else:
            total += 1
    return total


def measure(name: str) -> Row:
    """One program: executions per second in program order and concurrently, and its memory."""
    program = PROGRAMS[name]()
    rng = np.random.default_rng(0)
    inputs = {b.name: rng.random(b.shape, np.float32).astype(b.dtype.numpy) for b in program.inputs}
    before = resident_bytes()
    executor = Executor(program, policy=Policy())
    for binding in program.inputs:
        executor.set_input(binding, inputs[binding.name])
    started = time.perf_counter()
    executor.execute()
    seconds = time.perf_counter() - started
    grown = resident_bytes() - before
    started = time.perf_counter()
    run_concurrently(program, inputs)
    concurrent = time.perf_counter() - started
    count = executions(program.body)
    return {
        "program": program.name,
        "executions": count,
        "per second": round(count / seconds),
        "concurrent per second": round(count / concurrent),
        "MiB": round(grown / 2**20, 1),
        "HBM spanned": sum(t.bytes for t in program.tiles.values() if t.memory.value == "HBM"),
    }


def rows(is_quick: bool = False) -> list[Row]:
    """Every measurement, with the keys of HEADINGS; raises CalledProcessError when one fails."""
    names = QUICK if is_quick else tuple(PROGRAMS)
    found = []
    for name in names:
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def results() -> dict[str, Any]:
    """The measurements as a part of RESULTS.md."""
    return {
        "title": "Reference executor",
        "text": "Executions are of instructions; the last column but one is what a run adds to the "
        "process, the last how many bytes of HBM its tensors span.",
        "headings": HEADINGS,
        "rows": [[f"{row[heading]:,}" if heading != "program" else row[heading]
                  for heading in HEADINGS] for row in rows()],
        "broken": [],
    }  # fmt: skip


def main() -> int:
    """Print the measurements, one row a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few programs only")
    parser.add_argument("--one", choices=tuple(PROGRAMS), help="measure one here; print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return 0
    for row in rows(arguments.quick):
        print("  ".join(f"{heading}: {row[heading]}" for heading in HEADINGS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
