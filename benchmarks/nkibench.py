"""Time the kernels of NKIBench, and what tuners made of them, against published profiles.

    python benchmarks/nkibench.py ACCELOPT KDA [OPERATION ...]

ACCELOPT is a checkout of github.com/zhang677/AccelOpt at 47e29a7: fourteen kernels of Beta 1 and
their profiles on a trn1.32xlarge. KDA is one of github.com/Jerry2423/kda-for-trainium at 90770f2:
131 more kernels for the same operations and their profiles on Trn2. All run as they are. Rows of
operations that are not named stay what they were in NKIBENCH.md.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from markdown_table import rows_of, table_of

from glia.base.errors import CompileError
from glia.nki.run.testing import profile_kernel

REPORT = Path(__file__).with_name("NKIBENCH.md")
DROP_IN = Path(__file__).parents[1] / "dropin" / "src"
PROFILES = "experiments/full_complete_local/profile_results.csv"
SCALE = 2.016
HEADINGS = ("operation", "kernel", "target", "published us", "us", "error", "Vector us", "here")
ABOUT = f"""# Kernels of NKIBench

Written by `python benchmarks/nkibench.py ACCELOPT KDA`. Fourteen kernels of Beta 1 with profiles on
Trn1 (zhang677/AccelOpt), and others for the same operations with profiles on Trn2
(Jerry2423/kda-for-trainium); float32, one core. They run as they are. Vector us is how long the
Vector Engine is busy, where the profile says it.

The times of the second publication are not those of a core of Trn2: products in bfloat16 would run
at 145 TFLOPS on an array that does 79, and one core would move 820 GB/s through engines that move
368. What activations take for 512 to 2304 elements gives the clock of the Scalar Engine as 2.42 GHz
instead of 1.2: published here is {SCALE} times what is published there, for all rows. By the same
profiles an update of AdamW on Vector takes 1.02 cycles an element, which `two_input_cycles` of
core_v3 is read off; a scan there would take 1.2 to 1.4, which no other publication has, so that
it is 2 as documented. Nothing else was fitted to these rows.

What is far off: on Trn1 reciprocals (silu, adamw) take 8 cycles an element here, as documented and
as a profile of Trn1 has it, where this one leaves 1.7 to 2.8 for them; of Trn2, with the same
kernel, 7 to 8 fit. Of the first publication's kernels matmul_add_rmsnorm and add_rmsnorm_matmul
take 3.3 times as long on Trn2 as here, and as long as here on Trn1: what their compiler did there
is not known. Products of few rows (bmm) take up to twice as long there where transpositions stand
between them: how a pause of the array counts is fitted to another publication.

"""


@dataclass(frozen=True)
class Row:
    """A kernel with its published time, and what its profile says of Vector; microseconds."""

    operation: str
    kernel: str
    target: str
    published_us: float
    vector_us: float | None
    us: float
    vector_here_us: float
    refused: str = ""  # the code of why it has no time here

    def cells(self) -> tuple[str, ...]:
        vector = "" if self.vector_us is None else f"{self.vector_us:.0f}"
        what = self.operation, self.kernel, self.target, f"{self.published_us:.1f}"
        if self.refused:
            return (*what, self.refused, "", vector, "")
        error = self.us / self.published_us - 1
        return (*what, f"{self.us:.1f}", f"{error:+.1%}", vector, f"{self.vector_here_us:.0f}")


def module_of(path: Path) -> ModuleType:
    """A file as a module."""
    name = "nkibench_" + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _halves(loc: float = 0.0, scale: float = 1.0, size: Any = None) -> np.ndarray:
    """An array without memory of its own in place of random numbers, which decide nothing."""
    return np.broadcast_to(np.float32(0.5), () if size is None else size)


def arguments_of(reference: Path) -> Sequence[Any]:
    """What the kernels of an operation take."""
    module = module_of(reference)
    with mock.patch.object(np.random, "normal", _halves):
        arguments: Sequence[Any] = module.transform_to_nki_inputs(module.get_inputs())
    return arguments


def tuned(kda: Path, operation: str) -> Iterator[tuple[Path, float, float | None]]:
    """Kernels of an operation on Trn2, with times and Vector's share as published."""
    folder = kda / "workspaces" / operation
    busy: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    for line in (folder / "candidates.jsonl").read_text().splitlines():
        found: Mapping[str, Any] = json.loads(line)
        share = (found.get("metrics") or {}).get("Vec_pct")
        if share is not None and found.get("candidate") and found.get("latency_ms"):
            busy[found["candidate"]] = share / 100
    with (folder / "benchmark.csv").open() as stream:
        for each in csv.DictReader(stream):
            if each["passed"] == "true" and each["latency_ms"] not in ("", "N/A"):
                times.setdefault(each["candidate"], []).append(float(each["latency_ms"]))
    for name, found_ms in times.items():
        if (folder / name).exists():
            yield folder / name, statistics.median(found_ms), busy.get(name)


def measured(
    operation: str, path: Path, target: str, us: float, share: float | None, arguments: Any
) -> Row:
    """One kernel, timed."""
    vector = None if share is None else share * us
    try:
        profile = profile_kernel(module_of(path).kernel, *arguments, target=target)
    except CompileError as error:
        return Row(operation, path.name, target, us, vector, 0.0, 0.0, refused=error.code)
    busy = profile.engines["vector"].busy_us
    return Row(operation, path.name, target, us, vector, profile.latency_us, busy)


def rows(accelopt: Path, kda: Path, operations: Sequence[str]) -> Iterator[Row]:
    """Every kernel, one after the other."""
    bench = accelopt / "NKIBench"
    baselines = {
        each["op"]: each["baseline_latency_ms"]
        for each in json.loads((kda / "baselines.json").read_text()).values()
    }
    with (accelopt / PROFILES).open() as stream:
        for each in csv.DictReader(stream):
            operation = each["problem"]
            if operations and operation not in operations:
                continue
            found = json.loads(each["profile"])
            arguments = arguments_of(bench / "reference" / Path(each["task"]).name)
            kernel = bench / "kernels" / Path(each["kernel"]).name
            share = found.get("vector_engine_active_time_percent")
            ms = found["latency"]
            yield measured(operation, kernel, "trn1", 1000 * ms, share, arguments)
            ms = baselines[operation]
            yield measured(operation, kernel, "trn2", 1000 * SCALE * ms, None, arguments)
            for path, ms, share in tuned(kda, operation):
                yield measured(operation, path, "trn2", 1000 * SCALE * ms, share, arguments)


def summary(cells: Sequence[Sequence[str]]) -> list[str]:
    """Errors by publication, from rows of the table."""
    lines = []
    parts = {
        "AccelOpt, Trn1": [c for c in cells if c[2] == "trn1"],
        "kda-for-trainium, Trn2": [c for c in cells if c[2] == "trn2" and not _is_first(c, cells)],
        "the first's kernels on Trn2": [c for c in cells if c[2] == "trn2" and _is_first(c, cells)],
    }
    for name, every in parts.items():
        part = [cell for cell in every if cell[5]]
        errors = [float(cell[5].strip("%")) for cell in part]
        busy = [float(c[7]) / float(c[6]) - 1 for c in part if c[6] and float(c[6]) > 100]
        if errors:
            text = f"* {name}: {len(errors)} kernels, mean absolute error "
            text += f"{statistics.mean(map(abs, errors)):.1f}%, "
            text += f"median {statistics.median(errors):+.1f}%"
            if busy:
                text += f"; Vector busy {statistics.median(busy):+.1%} (median of {len(busy)})"
            if len(part) < len(every):
                text += f"; {len(every) - len(part)} refused"
            lines.append(text)
    return lines


def _is_first(cell: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    return any(c[1] == cell[1] and c[2] == "trn1" for c in cells)


def updated(text: str, found: Sequence[Row]) -> str:
    """The report with these rows in place of those of the same kernel and target."""
    known = {cells[:3]: cells for cells in rows_of(text)}
    known |= {row.cells()[:3]: row.cells() for row in found}
    cells = [known[key] for key in sorted(known)]
    return ABOUT + "\n".join((*summary(cells), "", table_of(HEADINGS, cells))) + "\n"


def main(accelopt: str, kda: str, *operations: str) -> int:
    """Print every row and write the report."""
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(DROP_IN))
    for row in rows(Path(accelopt), Path(kda), operations):
        print(" ".join(row.cells()), flush=True)
        REPORT.write_text(updated(REPORT.read_text() if REPORT.exists() else "", [row]))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
