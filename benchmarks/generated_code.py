"""How near compiled models come to what the machine can do; writes the table of CODE.md.

    python benchmarks/generated_code.py [--only TEXT] [--target trn2] [--level 2] [--heavy]
                                        [--json FILE] [--write]

Without --target every workload is measured on the targets that its goal holds for. Workloads that
take minutes are left out unless --heavy is given. --write puts the measured rows into CODE.md,
where other rows stay as they are.

The roof is the longest of three times that no program can be below: the contractions at the PE's
peak, arguments and results once through all DMA engines, and what an engine has to do; its part of
the latency is what is reached.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from markdown_table import rows_of, table_of
from workload import BOTH, Workload
from workloads import workloads

import glia
from glia.base.errors import CompileError
from glia.base.files import write_atomically
from glia.cli.guard import internal_error
from glia.graph.passes.errors import DeviceMemoryFull
from glia.neff.package import Neff
from glia.nki.run.testing import profile_kernel
from glia.profile.report import profile_programs

REPORT = Path(__file__).with_name("CODE.md")
HEADINGS = (
    "workload", "target", "-O", "latency us", "bound us", "by", "roof", "HBM", "compile s",
    "kernel us", "goal", "reached",
)  # fmt: skip
ABOUT = """# Compiled code

Written by `benchmarks/generated_code.py --write`; `benchmarks/workloads.py` has the workloads.
Latencies are simulated, launch included.

* **bound** is the longest of three times that no program on one core can be below: contractions at
  the PE's peak, arguments and results once through all DMA engines, the work of an engine; **by**
  says which. **roof** is its part of the latency.
* What does not fit the memory of one core runs on both of a logical core; so is its bound.
* **HBM** is traffic, as a multiple of arguments and results once.
* **compile** is CPU time of all processes.
* **kernel** is the latency of the library's kernel for the same work.
* **goal** is of the roof, of the kernel's speed, or a latency.

"""


@dataclass(frozen=True)
class Row:
    """A workload on a target: times in microseconds, or the error that ended its compilation."""

    workload: str
    target: str
    level: int
    bound_us: float
    bound: str
    goal: str
    latency_us: float = 0.0
    traffic: float = 0.0
    compile_s: float = 0.0
    kernel_us: float = 0.0
    is_reached: bool = False
    error: str = ""

    @property
    def roof(self) -> float:
        return self.bound_us / self.latency_us

    def cells(self) -> tuple[str, ...]:
        """The row as text, below HEADINGS."""
        what = self.workload, self.target, str(self.level)
        bound = f"{self.bound_us:,.1f}", self.bound
        if self.error:
            return (*what, f"FAILED {self.error}".replace("|", "\\|"), *bound, "", "", "", "",
                    self.goal, "no")  # fmt: skip
        return (
            *what, f"{self.latency_us:,.1f}", *bound, f"{self.roof:.2f}", f"{self.traffic:.2f}",
            f"{self.compile_s:.1f}", f"{self.kernel_us:,.1f}" if self.kernel_us else "", self.goal,
            "yes" if self.is_reached else "no",
        )  # fmt: skip


def measure(work: Workload, target: str, level: int) -> Row:
    """Compile and time one workload."""
    bounds = work.bounds_us(target)
    bound = max(bounds, key=lambda name: bounds[name])
    row = Row(work.name, target, level, bounds[bound], bound, goal_of(work))
    lowered = work.lowered()
    started = _cpu_seconds()
    try:
        neff = _compiled(lowered, target, level)
        seconds = _cpu_seconds() - started
        found = profile_programs(neff.programs, target)
    except CompileError as error:
        return Row(**asdict(row) | {"error": str(error).partition("\n")[0]})
    except Exception as error:
        return Row(**asdict(row) | {"error": internal_error(error).partition("\n")[0]})
    if len(neff.programs) > 1:
        cores = len(neff.programs)
        row = replace(row, bound_us=row.bound_us / cores, bound=f"{bound}, {cores} cores")
    kernel_us = kernel_latency(work, target)
    if work.is_against_kernel:
        is_reached = kernel_us / found.latency_us >= work.goal
    elif work.goal > 1:
        is_reached = found.latency_us <= work.goal
    else:
        is_reached = row.bound_us / found.latency_us >= work.goal
    measured = {
        "latency_us": found.latency_us, "traffic": found.hbm_bytes / work.work[1],
        "compile_s": seconds, "kernel_us": kernel_us, "is_reached": is_reached,
    }  # fmt: skip
    return Row(**asdict(row) | measured)


def _compiled(lowered: Any, target: str, level: int) -> Neff:
    """The model on one core, or where that has not the memory on those of a logical core."""

    def compiled(logical_core: int) -> Neff:
        return glia.compile(
            lowered, target=target, optlevel=level, auto_cast="none", no_cache=True,
            logical_nc_config=logical_core,
        )  # fmt: skip

    try:
        return compiled(1)
    except DeviceMemoryFull:
        return compiled(2)


def goal_of(work: Workload) -> str:
    """The goal in words."""
    if work.is_against_kernel:
        return f"{work.goal:.2f} of kernel"
    return f"{work.goal:,.0f} us" if work.goal > 1 else f"{work.goal:.2f}"


def kernel_latency(work: Workload, target: str) -> float:
    """Microseconds of the library's kernel; 0 without one."""
    if work.kernel is None:
        return 0.0
    kernel = work.kernel
    return profile_kernel(
        kernel.function, *kernel.arguments, target=target, **kernel.constants
    ).latency_us


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def updated(text: str, rows: Iterable[Row]) -> str:
    """The report with these rows in place of those of the same workload, target and level."""
    known = {cells[:3]: cells for cells in rows_of(text)}
    known |= {row.cells()[:3]: row.cells() for row in rows}
    order = {(work.name, t): n for n, work in enumerate(workloads()) for t in BOTH}
    kept = [key for key in known if key[:2] in order]
    kept.sort(key=lambda key: (order[key[0], key[1]], BOTH.index(key[1]), key[2]))
    return ABOUT + table_of(HEADINGS, (known[key] for key in kept)) + "\n"


def main() -> int:
    """Measure, print every row as it ends, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    parser.add_argument("--target", choices=BOTH, help="one target for all")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2, help="of -O")
    parser.add_argument("--heavy", action="store_true", help="those that take minutes too")
    parser.add_argument("--json", type=Path, help="write the rows as JSON")
    parser.add_argument("--write", action="store_true", help=f"put the rows into {REPORT.name}")
    chosen = parser.parse_args()
    works = [work for work in workloads() if chosen.only.lower() in work.name.lower()]
    skipped = [work.name for work in works if work.heavy and not chosen.heavy]
    rows = []
    print(table_of(HEADINGS, []), flush=True)
    for work in works:
        for target in (chosen.target,) if chosen.target else work.targets:
            if work.name in skipped:
                continue
            rows.append(measure(work, target, chosen.level))
            print(f"| {' | '.join(rows[-1].cells())} |", flush=True)
            if chosen.write:
                text = REPORT.read_text() if REPORT.exists() else ""
                write_atomically(REPORT, [updated(text, rows).encode()])
            if chosen.json:
                write_atomically(chosen.json, [json.dumps([asdict(r) for r in rows]).encode()])
    for name in skipped:
        print(f"skipped without --heavy: {name}", file=sys.stderr)
    if not works:
        print(f"no workload's name holds {chosen.only!r}", file=sys.stderr)
    return 0 if works else 2


if __name__ == "__main__":
    sys.exit(main())
