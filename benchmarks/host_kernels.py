"""How fast the host executor runs the library's kernels, beside the reference executor.

    python benchmarks/host_kernels.py [TEXT] [--target T]

The kernels and shapes of kernel_table.py whose name holds TEXT. A ratio of 5 is five times as fast
as by NumPy; the last line is the geometric mean. What NumPy executes on the host too is named
behind a row.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from kernel_table import Case, cases

import glia
from glia.neff.package import Neff
from glia.nki.run.trace import trace

HOST_RUNS, REFERENCE_SECONDS = 7, 4.0  # runs by NumPy end after so many seconds, but for the first
MOST = 1024  # rows that all tables have whose rows a kernel takes


def drawn(array: np.ndarray) -> np.ndarray:
    """An array of the same shape and dtype: random floats; integers that count up to MOST."""
    if array.dtype.kind in "iu":
        return (np.arange(array.size) % MOST).reshape(array.shape).astype(array.dtype)
    random = np.random.default_rng(array.size)
    return random.standard_normal(array.shape, np.float32).astype(array.dtype)


def measure(case: Case, target: str) -> tuple[str, float]:
    """A row of the table, and how many times as fast as the reference the host is."""
    function = getattr(case.kernel, "function", case.kernel)
    arguments = [drawn(each) for each in case.arguments]
    program = trace(function, *arguments, target=target, **dict(case.constants))
    neff = Neff((program,))
    model, reference = glia.load(neff, device="host"), glia.load(neff, device="reference")
    model(*arguments)
    host = statistics.median(_times(lambda: model(*arguments), HOST_RUNS, math.inf))
    slow = statistics.median(_times(lambda: reference(*arguments), 3, REFERENCE_SECONDS))
    counts = model.host_report.in_python
    left = ", ".join(f"{count} {name}" for (name, _), count in counts.items())
    cells = [
        case.kernel.__name__, case.shape, f"{1e3 * host:.2f}", f"{1e3 * slow:.1f}",
        f"{slow / host:.1f}", left,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |", slow / host


def _times(run: Callable[[], Any], count: int, seconds: float) -> Iterator[float]:
    """Seconds of each of so many runs, of fewer where they take longer than `seconds` together."""
    started = time.perf_counter()
    for number in range(count):
        if number and time.perf_counter() - started > seconds:
            return
        begun = time.perf_counter()
        run()
        yield time.perf_counter() - begun


def main() -> int:
    """Print the table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="?", default="", help="part of a kernel's name")
    parser.add_argument("--target", default="trn2")
    given = parser.parse_args()
    chosen = [each for each in cases() if given.text in each.kernel.__name__]
    if not chosen:
        parser.error(f"no kernel of glia.kernels has {given.text} in its name")
    print("| kernel | arguments | host ms | reference ms | times as fast | by NumPy |")
    print("|" + " --- |" * 6)
    ratios = []
    for case in chosen:
        if given.target not in case.targets:
            continue
        line, ratio = measure(case, given.target)
        ratios.append(ratio)
        print(line, flush=True)
    print(f"geometric mean {math.exp(sum(map(math.log, ratios)) / max(1, len(ratios))):.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
