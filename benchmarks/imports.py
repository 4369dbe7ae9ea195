"""How long packages take to import, NumPy and the start of Python included.

    python benchmarks/imports.py

`results` gives the same as data: processor seconds of a fresh interpreter, the least of several.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

REPETITIONS = 7
GOALS = {"glia.isa": 0.3}  # seconds
PACKAGES = ("numpy", "glia", "glia.isa", "glia.machine", "glia.nki", "glia.cli.glia")


def seconds(package: str) -> float:
    """Processor seconds of `import package` in an interpreter of its own."""
    best = float("inf")
    for _ in range(REPETITIONS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", f"import {package}"], check=True, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, spent)
    return best


def results() -> dict[str, Any]:
    """The measurements as a part of RESULTS.md; what misses its goal is broken."""
    rows, broken = [], []
    for package in PACKAGES:
        value, goal = seconds(package), GOALS.get(package)
        limit = "" if goal is None else f"at most {goal} s"
        verdict = "" if goal is None else "kept" if value <= goal else "NOT KEPT"
        rows.append([package, f"{value:.3f} s", limit, verdict])
        if verdict == "NOT KEPT":
            broken.append(f"import {package}: {value:.3f} s, {limit}, NOT KEPT")
    text = "Processor seconds of a fresh interpreter that imports the package, least of several."
    return {"title": "Imports", "text": text, "rows": rows, "broken": broken,
            "headings": ("package", "measured", "goal", "")}  # fmt: skip


if __name__ == "__main__":
    for row in results()["rows"]:
        print("  ".join(row))
