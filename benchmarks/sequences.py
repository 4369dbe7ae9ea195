"""Hold the timing model against sequences of optimisations; writes benchmarks/SEQUENCES.md.

    python benchmarks/sequences.py AUTOCOMP [TEXT]    only sequences whose name holds TEXT: no page

AUTOCOMP is a checkout of github.com/ucb-bar/autocomp at dd26a56. Its `examples/` hold traces of
NKI Beta 1 kernels, each a better version of the one before, with the milliseconds (p99 of
nki.benchmark) that it took on a trn1.2xlarge. They run here as they are; no constant was fitted to
any of them, but that loops of at most 512 iterations are merged rests on the last step of the
convolution.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from glia.base.errors import CompileError

REPORT = Path(__file__).with_name("SEQUENCES.md")
DROP_IN = Path(__file__).parents[1] / "dropin" / "src"
TARGET = "trn1"

# What the traces leave out: the imports of the harness that each kernel was put into.
HARNESS = """\
import math
from functools import reduce

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt
import numpy as np
from neuronxcc.nki.language import par_dim

"""


@dataclass(frozen=True)
class Optimisation:
    """A trace, and the arguments of its kernels."""

    name: str
    path: str
    arguments: Callable[[], tuple[np.ndarray, ...]]
    constants: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Step:
    """One kernel of a sequence: published and predicted milliseconds, or why there are none.

    `spilled` are the bytes that left each memory, and came back, where the kernel does not fit.
    """

    number: int
    published: float
    predicted: float | None
    problem: str = ""
    spilled: str = ""

    @property
    def error(self) -> float:
        """Relative: +0.1 is a prediction 10 % too long."""
        assert self.predicted is not None
        return self.predicted / self.published - 1


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An argument: nothing is computed, its values do not matter."""
    return np.zeros(shape, dtype)


def _scan_arguments() -> tuple[np.ndarray, ...]:
    batch, steps, channels, states = 1, 2048, 256, 16
    wide, narrow = zeros(batch, channels, steps), zeros(batch, states, steps)
    return wide, wide, zeros(channels, states), narrow, narrow


SEQUENCES = (
    Optimisation(
        "matrix product bf16 4096 x 8192 x 8192", "trn-tutorial/2_gemm_trace.py",
        lambda: (zeros(8192, 4096, dtype=ml_dtypes.bfloat16),
                 zeros(8192, 8192, dtype=ml_dtypes.bfloat16)),
    ),
    Optimisation("mamba fp32, 256 channels, 2048 steps", "trn-tutorial/3_mamba_trace.py",
              _scan_arguments),
    Optimisation("attention bf16 4096 x 128", "trn-tutorial/4_attention_trace.py",
              lambda: (zeros(128, 4096, dtype=ml_dtypes.bfloat16),) * 3),
    Optimisation("attention fp32 4096 x 64", "trn-tutorial/5_sd_attention_trace.py",
              lambda: (zeros(4096, 64),) * 3),
    Optimisation("depthwise convolution fp32 8 x 512 x 2048", "trn-advanced/4_conv1d_trace.py",
              lambda: (zeros(8, 512, 1, 2048), zeros(512, 1, 1, 3)),
              (("padding", ((0, 0), (1, 1))),)),
)  # fmt: skip


def candidates(trace: Path) -> list[tuple[float, str]]:
    """(milliseconds, source) of every kernel of a trace, the first version first.

    The file is one nested expression, which is read and not run.
    """
    found: list[tuple[float, str]] = []
    for node in ast.walk(ast.parse(trace.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CodeCandidate":
            values = {each.arg: each.value for each in node.keywords}
            score, code = values["score"], values["code"]
            assert isinstance(score, ast.Constant) and isinstance(code, ast.Constant)
            found.append((float(score.value), str(code.value)))
    return found[::-1]


def steps_of(sequence: Optimisation, autocomp: Path) -> Iterator[Step]:
    """Every kernel of a sequence with its prediction."""
    versions = candidates(autocomp / "examples" / sequence.path)
    for number, (published, code) in enumerate(versions):
        try:
            predicted, notes = _milliseconds(code, f"step_{number}", sequence)
            yield Step(number, published, predicted, spilled=_spilled(notes))
        except CompileError as error:
            yield Step(number, published, None, str(error).splitlines()[0])
        except (NameError, SyntaxError) as error:
            yield Step(number, published, None, f"the trace's own fault: {error}")


def _spilled(notes: Sequence[str]) -> str:
    """The megabytes of spills by memory: out, and back where anything comes back."""
    totals: dict[str, list[int]] = {}
    for note in notes:
        memory, is_full, rest = note.partition(" is full: ")
        if is_full:
            total = totals.setdefault(memory, [0, 0])
            for way, pattern in enumerate((r"spill (\d+) bytes", r"reloads of (\d+) bytes")):
                total[way] += sum(map(int, re.findall(pattern, rest)))
    return ", ".join(
        f"{memory} {out / 1e6:.1f} MB out" + (f", {back / 1e6:.1f} back" if back else "")
        for memory, (out, back) in sorted(totals.items())
    )


def _milliseconds(code: str, name: str, sequence: Optimisation) -> tuple[float, tuple[str, ...]]:
    """The simulated time of a kernel, and what its compilation noted."""
    nki = importlib.import_module("neuronxcc.nki")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(HARNESS + code)
        kernel = runpy.run_path(str(path))["test"]
        measured = nki.benchmark(kernel)
        measured(*sequence.arguments(), **dict(sequence.constants))
    result = measured.benchmark_result
    return float(result.nc_latency.get_latency_percentile(99)) / 1000, result.profile.notes


def rank_correlation(steps: Sequence[Step]) -> float:
    """Spearman's coefficient between published and predicted times; equal ones share a rank."""
    published = _ranks([step.published for step in steps])
    predicted = _ranks([step.predicted or 0.0 for step in steps])
    return float(np.corrcoef(published, predicted)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    ordered = np.sort(np.array(values))
    low = np.searchsorted(ordered, values, "left")
    return (low + np.searchsorted(ordered, values, "right") - 1) / 2


def summary(steps: Sequence[Step]) -> str:
    """Number, errors and rank correlation of the steps that have a prediction."""
    known = [step for step in steps if step.predicted is not None]
    if len(known) < 2:
        return f"{len(known)} of {len(steps)} kernels predicted"
    errors = np.array([step.error for step in known])
    return (
        f"{len(known)} of {len(steps)} kernels predicted: mean absolute error "
        f"{np.abs(errors).mean():.1%}, median {np.median(errors):+.1%}, worst "
        f"{errors[np.abs(errors).argmax()]:+.1%}, rank correlation {rank_correlation(known):.2f}"
    )


def page(found: Sequence[tuple[Optimisation, list[Step]]]) -> str:
    """SEQUENCES.md."""
    everything = [step for _, steps in found for step in steps]
    lines = ["# Sequences of optimisations that the timing model was not fitted to", ""]
    lines += ["Written by `python benchmarks/sequences.py AUTOCOMP`. The kernels are those of the",
              "traces in github.com/ucb-bar/autocomp, unchanged, each a step from the one before;",
              "the times are theirs, p99 of nki.benchmark on a trn1.2xlarge. The row of the first",
              "matrix product and of the last were seen when a constant was removed; no constant",
              "was fitted to any row. That loops of at most 512 iterations are merged rests on",
              "the last step of the convolution; CALIBRATION.md says what bounds its others.",
              f"{sum(bool(step.spilled) for step in everything)} of the kernels do not fit on chip",
              "as they are written: they spill what the second column says.",
              "", f"All: {summary(everything)}.", ""]  # fmt: skip
    for sequence, steps in found:
        lines += [f"## {sequence.name}", "", f"{summary(steps)}.", ""]
        lines += [
            "| step | spilled | published ms | predicted ms | error |",
            "|---|---|---|---|---|",
        ]
        for step in steps:
            start = f"| {step.number} | {step.spilled} | {step.published} |"
            if step.predicted is None:
                lines.append(f"{start} | {step.problem} |")
            else:
                lines.append(f"{start} {step.predicted:.3f} | {step.error:+.1%} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Print every step; write the page when no text selects sequences."""
    if not arguments:
        print(__doc__)
        return 2
    autocomp, text = Path(arguments[0]), arguments[1] if len(arguments) > 1 else ""
    sys.path.insert(0, str(DROP_IN))
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = TARGET
    found = []
    for sequence in SEQUENCES:
        if text not in sequence.name:
            continue
        print(sequence.name)
        steps = []
        for step in steps_of(sequence, autocomp):
            steps.append(step)
            shown = step.problem or f"{step.predicted:9.3f} {step.error:+7.1%}"
            print(f"  {step.number:2} {step.published:8.3f} {shown}", flush=True)
        print(f"  {summary(steps)}")
        found.append((sequence, steps))
    if not text:
        REPORT.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
