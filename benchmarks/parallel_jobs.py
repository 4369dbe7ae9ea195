"""What `--num-parallel-jobs` saves: wall seconds to compile a large model, and the bytes it gives.

    python benchmarks/parallel_jobs.py

`results` gives the same as data. Alternatives of a model (precisions, lower levels) are what is
compiled side by side; with one core there is nothing to save.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import jax
import networks
from report import print_table

import glia

JOBS = (1, 2, 4)
ROUNDS = 2


def measure(hlo: bytes, jobs: int, **options: Any) -> tuple[float, str]:
    """Wall seconds, the least of several, and a digest of the NEFF."""
    best, digest = float("inf"), ""
    for _ in range(ROUNDS):
        started = time.perf_counter()
        neff = glia.compile(hlo, num_parallel_jobs=jobs, **options)
        best = min(best, time.perf_counter() - started)
        digest = hashlib.sha256(neff.to_bytes()).hexdigest()[:16]
    return best, digest


def results() -> dict[str, Any]:
    """The measurements as a part of RESULTS.md; other bytes, or no gain from two, are broken."""
    forward, x = networks.bert()
    hlo = jax.jit(forward).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto()
    rows, broken = [], []
    for what, options in (
        ("--auto-cast matmult", {"auto_cast": "matmult"}),
        ("--auto-cast matmult -O3", {"auto_cast": "matmult", "optlevel": 3}),
    ):
        found = {jobs: measure(hlo, jobs, **options) for jobs in JOBS}
        alone, _ = found[1]
        for jobs, (seconds, other) in found.items():
            rows.append([what, str(jobs), f"{seconds:.1f}", f"{seconds / alone:.2f}", other])
        if len({other for _, other in found.values()}) > 1:
            broken.append(f"{what}: the bytes depend on the number of jobs, NOT KEPT")
        if (os.cpu_count() or 1) > 1 and found[2][0] >= alone:
            broken.append(f"{what}: two processes take {found[2][0] / alone:.2f} of one, NOT KEPT")
    text = (
        "Wall seconds to compile BERT-base of 128 tokens for trn2, the least of two rounds, by the "
        "number of processes (goal: two take less than one, and all give the same bytes)."
    )
    return {"title": "Parallel jobs", "text": text, "rows": rows, "broken": broken,
            "headings": ("options", "jobs", "seconds", "of one", "NEFF sha256")}  # fmt: skip


if __name__ == "__main__":
    print_table(results())
