"""Programs of eight devices: simulated time and exposed exchanges; how fast many ranks run.

    python benchmarks/rank_programs.py > benchmarks/RANKS.md

The programs are those of `tests/ranks/jax_programs.py`, small ones.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import glia
from glia.base.dtype import F32
from glia.compiler import compile_graph
from glia.graph import ops
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.options import CompileOptions

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from ranks.jax_programs import PROGRAMS

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
ROWS, COLUMNS, LAYERS = 64, 256, 4


def exposed_rows() -> list[str]:
    """A line of a table for each program and target."""
    lines = []
    for make in PROGRAMS:
        for target in TARGETS:
            profile = glia.load(glia.compile(make().lowered(), target=target)).profile()
            found = profile.communication
            assert found is not None
            lines.append(
                f"| {make.__name__.replace('_', ' ')} | {target} | {profile.latency_us:.1f} |"
                f" {found.exchanges} | {found.flight_us:.1f} | {found.exposed_us:.1f} |"
                f" {found.hidden_share:.0%} |"
            )
    return lines


def layered(ranks: int) -> Graph:
    """Layers of a product, tanh, and a sum over all ranks."""
    kind = TensorType(F32, (ROWS, COLUMNS))
    x = Parameter(0, kind, "x")
    weights = np.random.default_rng(1).standard_normal((COLUMNS, COLUMNS), np.float32)
    w = ops.Constant(weights)
    value: Node = x
    for _ in range(LAYERS):
        value = ops.Map("tanh", (ops.Dot(value, w, (), (), (1,), (0,), F32),))
        groups, body = (tuple(range(ranks)),), (ops.combiner("add", F32),)
        value = ops.Collective((value,), "all-reduce", kind, -1, groups, (), body)
    return Graph("layered", (x,), (value,))


def run(device: str, ranks: int) -> None:
    """Print a line of a table: seconds of the first and second run, and the peak of memory."""
    model = glia.load(compile_graph(layered(ranks), CompileOptions()), device=device)
    inputs = [
        [np.random.default_rng(rank).standard_normal((ROWS, COLUMNS), np.float32)]
        for rank in range(ranks)
    ]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        model.run_ranks(inputs)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"| {device} | {ranks} | {seconds[0]:.2f} | {min(seconds[1:]):.2f} | {peak} |")


def main() -> None:
    """Print the page."""
    if len(sys.argv) == 3:
        run(sys.argv[1], int(sys.argv[2]))
        return
    print("# Programs of several ranks\n\nWritten by `python benchmarks/rank_programs.py`.\n")
    print("Small programs of eight devices, compiled without a strategy. In flight is the time of")
    print(
        "one rank with at least one exchange on its way; exposed, that in which no engine computes."
    )
    print("A loop, such as that of ring attention, is timed for one iteration.\n")
    print("| program | target | us | exchanges | in flight, us | exposed, us | hidden |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(exposed_rows()))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\n## Ranks in one process ({machine}, NumPy {np.__version__})\n")
    print(f"{LAYERS} layers: {ROWS} x {COLUMNS} times {COLUMNS} x {COLUMNS}, tanh, the sum of all")
    print("ranks. MiB is the peak of the process.\n")
    print("| device | ranks | first run, s | later runs, s | MiB |\n|---|---|---|---|---|")
    sys.stdout.flush()
    for device in ("host", "reference"):
        for ranks in (8, 64):
            subprocess.run([sys.executable, __file__, device, str(ranks)], check=True)


if __name__ == "__main__":
    main()
