"""What came of a kernel, test or script, and the failures that lie in the vendor's files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import SkipTest


@dataclass(frozen=True)
class Outcome:
    """What came of one kernel or test: `status` is pass, fail, explained or not run."""

    file: str
    kernel: str
    generation: str
    status: str
    error: float | None = None
    reason: str = ""
    reached: tuple[str, ...] = ()  # the kernels that ran in it, as `file:name`


@dataclass(frozen=True)
class Known:
    """A failure that the vendor documents or that lies in the vendor's file."""

    file: str  # its name; "" for any
    kernel: str  # "" for all of the file
    text: str  # part of what is raised
    reason: str
    source: str


SHAPE = "asserts that a shape, which is a tuple, is a list"
TUPLE = "NKI nki.language, NkiTensor.shape"
KNOWN = (
    Known("layout-violation.py", "", "exceed", "the example breaks the limit of 128 partitions on "
          "purpose", "NKI programming model, tile size considerations"),
    Known("layout-dynamic-loop.py", "", "differs", "the kernel returns inside its loop, after the "
          "first tile; tracing goes through the body once for all tiles", "the file itself"),
    Known("layout-loop.py", "", "name 'i_f' is not defined", "the kernel uses a name that it does "
          "not define", "the file itself"),
    Known("core-dump.rst", "", "out of bounds", "the example reads outside its tensor on purpose",
          "Neuron Runtime, core dump"),
    Known("tutorial-debug-neff-nrtpy.rst", "oob_dma_kernel", "out of bounds", "the tutorial reads "
          "outside its tensor on purpose, to find it", "the page itself"),
    Known("tiling-overview.rst:2", "", "must have the same number of elements", "the last tile has "
          "128 rows however many are left, and both sides of a copy as many elements",
          "NKI nki.isa.dma_copy"),
    Known("nki_simulator.rst", "my_kernel", "nl.store", "the example stores a tile nowhere: "
          "nl.store takes a destination and a value", "NKI nki.language.store"),
    Known("allocator.rst", "kernel_without_sbm", "no attribute 'address'", "prints an attribute "
          "that the reference of tensors does not have", "NKI nki.language, NkiTensor"),
    Known("nki-aps.rst", "scalar_dynamic_dma", "AssertionError", SHAPE, TUPLE),
    Known("index.rst", "indirect_scalar_dynamic_dma", "AssertionError", SHAPE, TUPLE),
    Known("index.rst", "exp_func", "returns a NoneType", "the kernel stores its result and does "
          "not return it", "the page itself"),
    Known("nki_block_dimension_migration_guide.rst", "exp_func", "for %: 'tuple' and 'int'", "its "
          "function for addresses asserts that the index is () and takes the remainder of it",
          "the page itself"),
    Known("", "", "nki.jit takes no platform_target", "platform_target of nki.jit has "
          "been an error since NKI 0.3.0", "NKI release notes 2.29"),
    Known("test_nki_isa_dropout.py", "TestNkiIsaExamplesDropout.test_dropout", "True is not false",
          "drops with random probabilities of up to 100, which leaves nothing unless one is below "
          "1", "the file itself"),
    Known("test_nki_isa_tensor_scalar_cumulative.py", "", "Cannot evaluate truth value",
          "branches on the truth of a tensor, which is documented as an error",
          "NKI API errors, err_ambiguous_tensor_truth_value"),
    Known("test_double_row_matmul.py", "", "name 'warnings' is not defined", "the test file does "
          "not import warnings", "nki-samples, test/unit/test_double_row_matmul.py"),
)  # fmt: skip


def text_of_outcome(outcome: Outcome) -> str:
    """One line of the table: status, generation, greatest error, file, kernel and reason."""
    error = "" if outcome.error is None else f"{outcome.error:.1e}"
    text = f"{outcome.status:9} {outcome.generation:8} {error:8} {outcome.file} {outcome.kernel}"
    return f"{text}: {outcome.reason}" if outcome.reason else text


def failed(path: Path, name: str, generation: str, problem: BaseException) -> Outcome:
    """A failure: not run for what this environment lacks, explained when it is a known one."""
    lacks = _lacking(problem)
    if lacks:
        return Outcome(str(path), name, generation, "not run", reason=lacks)
    return judged(path, name, generation, f"{type(problem).__name__}: {problem}")


def _lacking(problem: BaseException) -> str:
    if isinstance(problem, ModuleNotFoundError):
        package = (problem.name or "").partition(".")[0]
        if package != problem.name and package in sys.modules:
            return f"imports {problem.name}, which is not in this clone"
        return f"needs the package {problem.name}"
    if isinstance(problem, AttributeError) and problem.obj is sys.modules.get("torch_neuronx"):
        return f"needs torch_neuronx.{problem.name}"
    if isinstance(problem, SkipTest) or type(problem).__name__ == "Skipped":
        return f"it skips itself: {problem}"
    if isinstance(problem, SystemExit) and problem.code == 2:
        return "needs arguments of a command line"
    return ""


def judged(path: Path, name: str, generation: str, text: str) -> Outcome:
    """Explained by a known reason, or a failure."""
    for known in KNOWN:
        fits = known.file in ("", path.name) and known.kernel in ("", name)
        if fits and known.text in text:
            reason = f"{known.reason} ({known.source})"
            return Outcome(str(path), name, generation, "explained", reason=reason)
    return Outcome(str(path), name, generation, "fail", reason=(text.splitlines() or [""])[0][:300])
