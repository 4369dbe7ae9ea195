"""Outcomes of kernels, tests and scripts, and known defects of the vendor's files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import SkipTest


@dataclass(frozen=True)
class Outcome:
    """The outcome of one kernel or test; `status` is pass, fail, explained or not run."""

    file: str
    kernel: str
    generation: str
    status: str
    error: float | None = None
    reason: str = ""
    reached: tuple[str, ...] = ()  # kernels that it executed, as `file:name`


@dataclass(frozen=True)
class Defect:
    """A failure that the vendor documents or that is a defect of the vendor's file."""

    file: str  # base name; "" for any
    kernel: str  # "" for all kernels of the file
    text: str  # substring of the exception's text
    reason: str
    source: str


SHAPE = "asserts that a shape, which is a tuple, is a list"
TUPLE = "NKI nki.language, NkiTensor.shape"
KNOWN_DEFECTS = (
    Defect("layout-violation.py", "", "exceed", "the example breaks the limit of 128 partitions on "
          "purpose", "NKI programming model, tile size considerations"),
    Defect("layout-dynamic-loop.py", "", "differs", "the kernel returns inside its loop, after the "
          "first tile; tracing goes through the body once for all tiles", "the file itself"),
    Defect("layout-loop.py", "", "name 'i_f' is not defined", "the kernel uses a name that it does "
          "not define", "the file itself"),
    Defect("core-dump.rst", "", "out of bounds", "the example reads outside its tensor on purpose",
          "Neuron Runtime, core dump"),
    Defect("tutorial-debug-neff-nrtpy.rst", "oob_dma_kernel", "out of bounds", "the tutorial reads "
          "outside its tensor on purpose, to find it", "the page itself"),
    Defect("tiling-overview.rst:2", "", "must have the same number of elements", "the last tile "
          "has 128 rows however many are left, and both sides of a copy as many elements",
          "NKI nki.isa.dma_copy"),
    Defect("nki_simulator.rst", "my_kernel", "nl.store", "the example stores a tile nowhere: "
          "nl.store takes a destination and a value", "NKI nki.language.store"),
    Defect("allocator.rst", "kernel_without_sbm", "no attribute 'address'", "prints an attribute "
          "that the reference of tensors does not have", "NKI nki.language, NkiTensor"),
    Defect("nki-aps.rst", "scalar_dynamic_dma", "AssertionError", SHAPE, TUPLE),
    Defect("index.rst", "indirect_scalar_dynamic_dma", "AssertionError", SHAPE, TUPLE),
    Defect("index.rst", "exp_func", "returns a NoneType", "the kernel stores its result and does "
          "not return it", "the page itself"),
    Defect("nki_block_dimension_migration_guide.rst", "exp_func", "for %: 'tuple' and 'int'", "its "
          "function for addresses asserts that the index is () and takes the remainder of it",
          "the page itself"),
    Defect("", "", "nki.jit takes no platform_target", "platform_target of nki.jit has "
          "been an error since NKI 0.3.0", "NKI release notes 2.29"),
    Defect("test_nki_isa_dropout.py", "TestNkiIsaExamplesDropout.test_dropout", "True is not false",
          "drops with random probabilities of up to 100, which leaves nothing unless one is below "
          "1", "the file itself"),
    Defect("test_nki_isa_tensor_scalar_cumulative.py", "", "Cannot evaluate truth value",
          "branches on the truth of a tensor, which is documented as an error",
          "NKI API errors, err_ambiguous_tensor_truth_value"),
    Defect("test_double_row_matmul.py", "", "name 'warnings' is not defined", "the test file does "
          "not import warnings", "nki-samples, test/unit/test_double_row_matmul.py"),
)  # fmt: skip


def text_of_outcome(outcome: Outcome) -> str:
    """A row of the table: status, generation, largest error, file, kernel and reason."""
    error = "" if outcome.error is None else f"{outcome.error:.1e}"
    text = f"{outcome.status:9} {outcome.generation:8} {error:8} {outcome.file} {outcome.kernel}"
    return f"{text}: {outcome.reason}" if outcome.reason else text


def failure_outcome(path: Path, name: str, generation: str, problem: BaseException) -> Outcome:
    """The outcome of an exception: not run for a missing requirement, else explained or fail."""
    lacks = _missing_requirement(problem)
    if lacks:
        return Outcome(str(path), name, generation, "not run", reason=lacks)
    return classify_failure(path, name, generation, f"{type(problem).__name__}: {problem}")


def _missing_requirement(problem: BaseException) -> str:
    if isinstance(problem, ModuleNotFoundError):
        package = (problem.name or "").partition(".")[0]
        if package != problem.name and package in sys.modules:
            return f"imports {problem.name}, which is not in this clone"
        return f"needs the package {problem.name}"
    if isinstance(problem, AttributeError) and problem.obj is sys.modules.get("torch_neuronx"):
        return f"needs torch_neuronx.{problem.name}"
    if isinstance(problem, SkipTest) or type(problem).__name__ == "Skipped":
        return f"skips itself: {problem}"
    if isinstance(problem, SystemExit) and problem.code == 2:
        return "needs command-line arguments"
    return ""


def classify_failure(path: Path, name: str, generation: str, text: str) -> Outcome:
    """Explained if `text` matches a known defect, else fail."""
    for known in KNOWN_DEFECTS:
        fits = known.file in ("", path.name) and known.kernel in ("", name)
        if fits and known.text in text:
            reason = f"{known.reason} ({known.source})"
            return Outcome(str(path), name, generation, "explained", reason=reason)
    return Outcome(str(path), name, generation, "fail", reason=(text.splitlines() or [""])[0][:300])
