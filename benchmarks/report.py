"""The measurements as a page of tables, and the limits they must keep."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from glia import __version__

GIB = 1 << 30
EMPTY: Mapping[str, dict[str, Any]] = {}
TITLES = {
    "digits": "Digits classifier (120 images of 8 x 8)",
    "bert": "BERT-base encoder (12 layers, batch 1, sequence 128)",
    "resnet50": "ResNet-50 (batch 1, 224 x 224)",
}
MOST_COMPILE_SECONDS = {"digits": 60, "bert": 60, "resnet50": 120}
MOST_COMPILE_GIB = 4
MOST_RELATIVE_L2 = {"none": 1e-5, "bf16": 2e-2}
CAST_OPTIONS = {"none": "--auto-cast none", "bf16": "--auto-cast matmult (bf16)"}
PACKAGES = ("numpy", "ml_dtypes", "protobuf", "llvmlite", "jax", "jaxlib")

INTRODUCTION = """\
# Measurements

Written by `make bench`. Every measurement ran in a process of its own, one after the other.

* **compile** is the time from the serialized HLO on disk to the NEFF on disk, without the start of
  the interpreter; **memory** is the peak resident size of that process.
* **instructions** are counted in the program (static) and as a run executes them (dynamic).
* **latency** is simulated, for one core, with what the core does before and after the program; what
  the simulation leaves out is in `Profile.not_modelled`.
* **roofline** is the part of the possible that is reached: the longer of (multiplications at the
  peak rate of their type, each input, constant and output moved once through HBM), over latency.
* **executor** is the wall time of one run of the compiled program on this host with one thread,
  the shortest of three unless it is long; **XLA:CPU** is the same model in the same process,
  compiled by JAX, on all cores.
* **error** is the relative L2 distance of the executed result from that of XLA:CPU.
"""


def render(
    found: Mapping[str, Mapping[str, dict[str, Any]]], tables: Mapping[str, dict[str, Any]] = EMPTY
) -> tuple[str, list[str]]:
    """The page, and one line for each failed measurement or limit not kept."""
    parts = [INTRODUCTION, _machine()]
    failures: list[str] = []
    for name, measurements in found.items():
        parts += [f"## {TITLES[name]}\n", *_tables(measurements)]
        failed = [f"{m['what']}: {m['error']}" for m in measurements.values() if "error" in m]
        kept, broken = _limits(name, measurements)
        parts.append("\n".join(f"* {line}" for line in (*kept, *broken)) + "\n")
        failures += failed + broken
    for name, table in tables.items():
        if error := table.get("error"):
            parts.append(f"## {name}\n\nFAILED {error}\n")
            failures.append(f"{name}: {error}")
            continue
        parts += [f"## {table['title']}\n\n{table['text']}\n"]
        parts.append(_table(table["headings"], table["rows"]))
        failures += table["broken"]
        if table["broken"]:
            parts.append("\n".join(f"* {line}" for line in table["broken"]) + "\n")
    return "\n".join(parts), failures


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    today = datetime.datetime.now(datetime.UTC).date()
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return (
        f"{today}, {_cpu()}, {cores} cores, {memory / GIB:.1f} GiB of memory, "
        f"glia {__version__}, Python {platform.python_version()}, {versions}.\n"
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _tables(measurements: Mapping[str, dict[str, Any]]) -> list[str]:
    compiled = {key: m for key, m in measurements.items() if key.startswith("trn")}
    parts = []
    if error := measurements["prepare"].get("error"):
        parts.append(f"FAILED to make the HLO: {error}\n")
    headings = (
        "target", "-O", "auto-cast", "compile s", "memory MiB", "NEFF bytes", "static", "dynamic",
        "latency us", "roofline", "HBM bytes",
    )  # fmt: skip
    parts.append(_table(headings, (_compile_row(key, m) for key, m in compiled.items())))
    headings = ("auto-cast", "executor s", "XLA:CPU s", "error")
    executed = {k: m for k, m in measurements.items() if k.startswith("execute")}
    parts.append("Executed, trn2 -O2:\n")
    parts.append(_table(headings, (_execute_row(key, m) for key, m in executed.items())))
    parts.append("Seconds of the longest passes, trn2 -O2:\n")
    passes = {cast: measurements[f"trn2-2-{cast}"].get("passes", {}) for cast in CAST_OPTIONS}
    parts.append(_table(("pass", *CAST_OPTIONS.values()), _pass_rows(list(passes.values()))))
    return parts


def _pass_rows(passes: list[dict[str, float]]) -> Iterable[list[str]]:
    """Passes in order, those of less than a fiftieth of the whole summed up in a last row."""
    names = list(dict.fromkeys(name for seconds in passes for name in seconds))
    long = {n for n in names for s in passes if s.get(n, 0) >= sum(s.values()) / 50 > 0}
    for name in names:
        if name in long:
            yield [name, *(f"{s[name]:.2f}" if s else "FAILED" for s in passes)]
    rest = [sum(s.get(name, 0) for name in names if name not in long) for s in passes]
    yield [f"{len(names) - len(long)} others", *(f"{seconds:.2f}" for seconds in rest)]


def _compile_row(key: str, found: dict[str, Any]) -> list[str]:
    configuration = key.split("-")
    if error := found.get("error"):
        return [*configuration, f"FAILED {error}"]
    return [
        *configuration,
        f"{found['seconds']:.1f}",
        f"{found['peak_gib'] * 1024:.0f}",
        f"{found['neff_bytes']:,}",
        f"{found['static_instructions']:,}",
        f"{found['dynamic_instructions']:,}",
        f"{found['latency_us']:,.1f}",
        f"{found['roofline']:.1%}",
        f"{found['hbm_bytes']:,}",
    ]


def _execute_row(key: str, found: dict[str, Any]) -> list[str]:
    cast = key.removeprefix("execute-")
    if error := found.get("error"):
        return [cast, f"FAILED {error}"]
    seconds = (f"{found['executor_seconds']:.3f}", f"{found['xla_seconds']:.4f}")
    return [cast, *seconds, f"{found['relative_l2']:.1e}"]


def _limits(name: str, found: Mapping[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The limits kept and those broken, as sentences; one without a measurement is broken."""
    kept: list[str] = []
    broken: list[str] = []
    for cast, options in CAST_OPTIONS.items():
        compiled, executed = found[f"trn2-2-{cast}"], found[f"execute-{cast}"]
        for what, values, key, most in (
            ("seconds to compile", compiled, "seconds", MOST_COMPILE_SECONDS[name]),
            ("GiB of memory to compile", compiled, "peak_gib", MOST_COMPILE_GIB),
            ("relative L2 error", executed, "relative_l2", MOST_RELATIVE_L2[cast]),
        ):
            value = values.get(key)
            is_kept = value is not None and value <= most
            shown = "not measured" if value is None else f"{value:.3g}"
            verdict = "kept" if is_kept else "NOT KEPT"
            sentence = f"{name} {options}: {what}: {shown}, at most {most:g}, {verdict}"
            (kept if is_kept else broken).append(sentence)
    return kept, broken


def _table(headings: Iterable[str], rows: Iterable[list[str]]) -> str:
    headings = tuple(headings)
    lines = [_line(headings), _line(["---"] * len(headings))]
    for row in rows:
        lines.append(_line([*row, *[""] * (len(headings) - len(row))]))
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def print_table(found: Mapping[str, Any]) -> None:
    """Print what `results` of a benchmark gives: its rows, and the limits it broke."""
    for row in (found["headings"], *found["rows"]):
        print(" | ".join(row))
    print("\n".join(found["broken"]))
