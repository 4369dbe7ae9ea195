"""What the back end of kernels gains, and what it costs; writes benchmarks/BACK_END.md.

    python benchmarks/back_end.py LIBRARY

LIBRARY is a checkout of github.com/aws-neuron/nki-library at d2ad3a5. Times are simulated: of every
kernel as written, and as the back end changes it. Compiling is measured in a processor's seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import held_out
import kernel_table
import ml_dtypes
import numpy as np
from held_out_rows import LIBRARY
from nki_speed import WHOLE

import glia.nki as nki
import glia.nki.isa as nisa
import glia.nki.language as nl
from glia.arch import get_target
from glia.nki.run.launch import bind
from glia.nki.run.testing import profile_kernel
from glia.nki.run.trace import trace_launch

REPORT = Path(__file__).with_name("BACK_END.md")
SIZE = 2048
RUNS = 5  # of each compilation, of which the best counts
SHOWN = 0.001  # a change of the time that a table lists


@nki.jit
def cleared_groups(left: Any, right: Any) -> Any:
    """A loop of memset, eight products that accumulate, and a copy."""
    out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
    stationary, moving = nl.ndarray(left.shape, left.dtype), nl.ndarray(right.shape, right.dtype)
    nisa.dma_copy(stationary, left)
    nisa.dma_copy(moving, right)
    for _ in range(32):
        bank = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.memset(bank, 0.0)
        for _ in range(8):
            nisa.nc_matmul(bank, stationary, moving)
        result = nl.ndarray((128, 512), nl.float32)
        nisa.tensor_copy(result, bank)
    nisa.dma_copy(out, result)
    return out


@nki.jit
def hand_written(left: Any, right: Any) -> Any:
    """left.T @ right as in published kernels by hand: operands stay on chip, banks are cleared.

    One tile takes all results of a row on their way out.
    """
    depth, rows = left.shape
    columns = right.shape[1]
    out = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm)
    strips = []
    for operand in (left, right):
        tiles = [nl.ndarray((128, operand.shape[1]), operand.dtype) for _ in range(depth // 128)]
        for number, tile in enumerate(tiles):
            nisa.dma_copy(tile, operand[128 * number : 128 * (number + 1)])
        strips.append(tiles)
    result = nl.ndarray((128, columns), left.dtype)
    for row in range(0, rows, 128):
        for column in range(0, columns, 512):
            bank = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            nisa.memset(bank, 0.0)
            for stationary, moving in zip(*strips, strict=True):
                nisa.nc_matmul(
                    bank, stationary[:, row : row + 128], moving[:, column : column + 512]
                )
            nisa.tensor_copy(result[:, column : column + 512], bank)
        nisa.dma_copy(out[row : row + 128], result)
    return out


def loop_kernel(body_of: Callable[[Any, Any], Callable[[Any], None]], *, is_loop: bool) -> Any:
    """A kernel that does something with every 128 rows of x, in a loop on the device or Python."""

    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        body = body_of(x, out)
        if is_loop:
            nl.fori_loop(0, x.shape[0], lambda i: body(nl.ds(i, 128)), step=128)
        else:
            for i in range(0, x.shape[0], 128):
                body(slice(i, i + 128))
        return out

    return kernel


def scaled_exponentials(x: Any, out: Any) -> Callable[[Any], None]:
    """2 exp(x) of rows: a load, two instructions and a store that wait for each other."""

    def body(rows: Any) -> None:
        tile, result = (nl.ndarray((128, x.shape[1]), x.dtype) for _ in range(2))
        nisa.dma_copy(tile, x[rows])
        nisa.activation(result, nl.exp, tile)
        nisa.tensor_scalar(result, result, nl.multiply, 2.0)
        nisa.dma_copy(out[rows], result)

    return body


def row_softmax(x: Any, out: Any) -> Callable[[Any], None]:
    """Softmax of rows, step by step on two engines."""

    def body(rows: Any) -> None:
        tile, exponential, result = (nl.ndarray((128, x.shape[1]), x.dtype) for _ in range(3))
        shift, total, factor = (nl.ndarray((128, 1), nl.float32) for _ in range(3))
        nisa.dma_copy(tile, x[rows])
        nisa.tensor_reduce(shift, nl.maximum, tile, axis=1, negate=True)
        nisa.activation(exponential, nl.exp, tile, bias=shift)
        nisa.tensor_reduce(total, nl.add, exponential, axis=1)
        nisa.reciprocal(factor, total)
        nisa.tensor_scalar(result, exponential, nl.multiply, factor)
        nisa.dma_copy(out[rows], result)

    return body


def row_products(x: Any, out: Any) -> Callable[[Any], None]:
    """Rows times a square that stays on chip, transposed by the Tensor Engine."""
    depth = x.shape[1]
    weights = [nl.ndarray((128, depth), x.dtype) for _ in range(depth // 128)]
    for number, tile in enumerate(weights):
        nisa.dma_copy(tile, x[128 * number : 128 * (number + 1)])

    def body(rows: Any) -> None:
        tile, result = (nl.ndarray((128, depth), x.dtype) for _ in range(2))
        nisa.dma_copy(tile, x[rows])
        total = nl.ndarray((128, depth), nl.float32, buffer=nl.psum)
        for number, weight in enumerate(weights):
            turned = nl.ndarray((128, 128), x.dtype, buffer=nl.psum)
            nisa.nc_transpose(turned, tile[:, 128 * number : 128 * (number + 1)])
            stationary = nl.ndarray((128, 128), x.dtype)
            nisa.tensor_copy(stationary, turned)
            nisa.nc_matmul(total, stationary, weight)
        nisa.tensor_copy(result, total)
        nisa.dma_copy(out[rows], result)

    return body


LOOPS = {
    "2 exp(x)": (scaled_exponentials, 512, np.float32),
    "softmax": (row_softmax, 2048, np.float32),
    "x @ w": (row_products, 512, ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Row:
    """A kernel's microseconds as written and as changed, and what was changed."""

    name: str
    target: str
    written_us: float
    us: float
    changes: str

    @property
    def gain(self) -> float:
        return self.us / self.written_us - 1


def profiled(name: str, kernel: Any, arrays: Sequence[np.ndarray], target: str, **more: Any) -> Row:
    """One kernel both ways."""
    written, changed = (
        profile_kernel(kernel, *arrays, target=target, as_written=as_written, **more)
        for as_written in (True, False)
    )
    notes = [note.replace("changed by the back end: ", "") for note in changed.notes]
    return Row(name, target, written.latency_us, changed.latency_us, "; ".join(notes))


def products() -> Iterator[Row]:
    """Products by hand on every target."""
    half = np.dtype(ml_dtypes.bfloat16)
    small = np.zeros((128, 128), half), np.zeros((128, 512), half)
    square = np.zeros((SIZE, SIZE), half)
    for target in ("trn1", "trn2", "trn3"):
        yield profiled("32 cleared groups of 8 products", cleared_groups, small, target)
        yield profiled(f"{SIZE}^3 by hand", hand_written, (square, square), target)


def loops() -> Iterator[Row]:
    """Loops on the device of few, some and many trips, and what they take in Python instead."""
    for name, (body, columns, dtype) in LOOPS.items():
        for trips in (8, 19, 64):
            x = np.zeros((128 * trips, columns), dtype)
            for target in ("trn1", "trn2", "trn3"):
                title = f"{name} of {x.shape[0]} x {columns} {np.dtype(dtype).name}"
                row = profiled(title, loop_kernel(body, is_loop=True), (x,), target)
                straight = profiled(title, loop_kernel(body, is_loop=False), (x,), target)
                share = row.us / straight.us
                changes = f"{row.changes}; {share:.2f} of the time of a loop in Python"
                yield replace(row, changes=changes.removeprefix("; "))


def own_library() -> Iterator[Row]:
    """The kernels of glia.kernels."""
    for case in kernel_table.cases():
        name = f"{case.kernel.__name__} {case.shape}"
        for target in case.targets:
            yield profiled(name, case.kernel, case.arguments, target, **case.constants)


def public_library(library: str) -> Iterator[Row]:
    """The kernels of the NKI library that have published times."""
    held_out.use(Path(library))
    for row in LIBRARY:
        times = []
        for as_written in (True, False):
            held_out.OPTIONS["as_written"] = as_written
            times.append(held_out.TIMES[type(row)](row).us)
        yield Row(row.name, f"trn2, {row.cores}", times[0], times[1], "")


def compiling() -> Iterator[tuple[str, int, float, float]]:
    """Kernels of 5,000 instructions: seconds to compile them as written, and with the back end."""
    target = get_target("trn2")
    for name, (kernel, shapes, *_) in WHOLE.items():
        arrays = tuple(np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in shapes)
        best, count = [], 0
        for as_written in (True, False):
            runs = []
            for _ in range(RUNS):
                launch = bind(getattr(kernel, "function", kernel), arrays, {})
                started = time.process_time()
                traced = trace_launch(launch, target, 0, as_written=as_written)
                runs.append(time.process_time() - started)
            best.append(min(runs))
            count = sum(1 for _ in traced.programs[0].instructions())
        yield name, count, best[0], best[1]


def table(title: str, rows: Sequence[Row]) -> list[str]:
    """The rows whose time changes, and a sentence about all of them."""
    changed = [row for row in rows if abs(row.gain) >= SHOWN]
    slower = [row for row in rows if row.us > row.written_us]
    counted = f"{len(rows)} kernels: the time of {len(changed)} changes, {len(slower)} take more."
    lines = [f"## {title}", "", counted, ""]
    lines += ["| kernel | target | as written us | us | change | what |", "|---" * 6 + "|"]
    for row in changed:
        times = f"{row.written_us:,.2f} | {row.us:,.2f} | {row.gain:+.1%}"
        lines.append(f"| {row.name} | {row.target} | {times} | {row.changes} |")
    return [*lines, ""]


def show(rows: Iterator[Row]) -> list[Row]:
    """The rows, printed as they come."""
    found = []
    for row in rows:
        found.append(row)
        print(
            f"{row.name:78} {row.target:8} {row.written_us:10.2f} {row.us:10.2f} {row.gain:+7.1%}"
        )
    return found


def main(library: str) -> int:
    """Print every row and write the report."""
    parts: list[tuple[str, Callable[[], Iterator[Row]]]] = [
        ("Products by hand", products),
        ("Loops on the device", loops),
        ("Kernels of glia.kernels", own_library),
        ("Kernels of the NKI library with published times", lambda: public_library(library)),
    ]
    lines = ["# The back end of kernels", ""]
    lines += ["Written by `python benchmarks/back_end.py LIBRARY`: simulated times, as written and"]
    lines += ["as changed. See `docs/decisions/back-end-of-kernels.md`.", ""]
    for title, rows in parts:
        lines += table(title, show(rows()))
    lines += ["## Compiling", "", "Seconds of a processor, the best of some runs.", ""]
    lines += ["| kernel | instructions | as written | with the back end |", "|---|---|---|---|"]
    ratios = []
    for name, count, written, changed in compiling():
        print(f"{name:40} {count:6} {written:.3f} {changed:.3f}")
        lines.append(f"| {name} | {count} | {written:.2f} | {changed:.2f} |")
        ratios.append(changed / written)
    lines += [
        "",
        f"With the back end {geometric_mean(ratios):.2f} times as written (geometric mean).",
    ]
    REPORT.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
