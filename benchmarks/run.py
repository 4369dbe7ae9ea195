"""Measure the compiler and the simulator on whole models; writes RESULTS.md beside this file.

    python benchmarks/run.py [--only digits|bert|resnet50] [--quick] [--output FILE]

Whole models first, then kernels, the timing model and the executor (not with --only).

Every measurement runs in a process of its own (measure.py). One that fails is a cell of the table
that says so. The exit status is 1 when a measurement failed or a limit was not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from report import render

MODELS = ("digits", "bert", "resnet50")
TARGETS = ("trn1", "trn2")
OPTLEVELS = ("1", "2", "3")
CASTS = ("none", "bf16")
TABLES = (
    "kernel_table", "nki_speed", "machine_timing", "machine", "scratchpad", "imports",
    "model_types", "parallel_jobs", "many_cores",
)  # fmt: skip
EXECUTED = ("trn2", "2")  # what is run as well as timed
LONGEST_SECONDS = 900
# The executor multiplies one instruction's tiles at a time; more threads only wait for each other.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

Found = dict[str, Any]


def main() -> int:
    """Measure, print what goes on, write the report."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--quick", action="store_true", help="only trn2 with -O2")
    parser.add_argument("--output", type=Path, default=here / "RESULTS.md", help="report file")
    arguments = parser.parse_args()
    models = (arguments.only,) if arguments.only else MODELS
    found = {name: measure_model(name, arguments.quick) for name in models}
    tables = {} if arguments.only else {name: measure("table", name) for name in TABLES}
    text, failures = render(found, tables)
    arguments.output.write_text(text)
    print(f"\nwrote {arguments.output}")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


def measure_model(name: str, is_quick: bool) -> dict[str, Found]:
    """By name of the measurement (`trn2-2-none`, `execute-none`), what was found."""
    configurations = [
        (target, optlevel, cast)
        for cast in CASTS
        for target in TARGETS
        for optlevel in OPTLEVELS
        if not is_quick or (target, optlevel) == EXECUTED
    ]
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as folder:
        found["prepare"] = measure("prepare", name, folder)
        for configuration in configurations:
            found["-".join(configuration)] = measure("compile", folder, *configuration)
        for cast in CASTS:
            key = f"execute-{cast}"
            if error := found["-".join((*EXECUTED, cast))].get("error"):
                found[key] = {"error": f"not compiled: {error}"}
            else:
                found[key] = measure("execute", name, folder, *EXECUTED, cast)
    for key, values in found.items():
        values["what"] = f"{name} {key}"
    return found


def measure(*arguments: str) -> Found:
    """Run one measurement; {"error": ...} when it does not end in a result."""
    script = Path(__file__).with_name("measure.py")
    print(" ".join(a for a in arguments if "/" not in a), end=" ", flush=True)
    try:
        ended = subprocess.run(
            [sys.executable, str(script), *arguments],
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            stdin=subprocess.DEVNULL,
            env=os.environ | ONE_THREAD,
            check=False,
        )
    except subprocess.TimeoutExpired:
        found: Found = {"error": f"no result in {LONGEST_SECONDS} s"}
    else:
        found = _result(ended)
    print(found.get("error") or _headline(found), flush=True)
    return found


def _result(ended: subprocess.CompletedProcess[str]) -> Found:
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
    return {"error": f"exit status {ended.returncode}: {last[:200]}"}


def _headline(found: Found) -> str:
    if "rows" in found:
        return f"{len(found['rows'])} rows"
    shown = ("hlo_bytes", "seconds", "latency_us", "executor_seconds", "relative_l2")
    return " ".join(f"{key}={found[key]:.4g}" for key in shown if key in found)


if __name__ == "__main__":
    sys.exit(main())
