"""`glia conformance nki-library` runs a suite's own harness and sorts what comes of its tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glia.cli.glia import main
from glia.conformance.nki_library import run_tests
from glia.conformance.nki_library.defects import explain
from glia.conformance.suite_outcomes import SuiteOutcome, reasons, table

INI = """
[pytest]
markers =
    fast: quick ones
    trn2: for Trainium 2
"""
CONFTEST = """
import os
from pathlib import Path
import pytest
from .utils.test_orchestrator import Orchestrator

def pytest_addoption(parser):
    for name in ("--test-mode", "--platform-target", "--output-directory"):
        parser.addoption(name, required=True)
    parser.addoption("--force-local-cleanup", action="store_true")
    parser.addini("artifacts_dir", type="string", help="Where reports go.")

def pytest_configure(config):
    assert config.getoption("test_mode") == "simulation"
    import nki_cpu_simulator.nki.builtin
    import nki_cpu_simulator.nki.language.dtypes as dtypes
    import nki_cpu_simulator.nki.isa.constants
    assert dtypes.bfloat16

@pytest.fixture
def test_manager():
    return Orchestrator()
"""
HARNESS = """
import os
import numpy as np
from .perf_analysis_private import analyze_trace
from .scripts.remote_lock_scripts import LockStatus

class ValidationException(Exception):
    pass

class InferenceException(Exception):
    pass

class Orchestrator:
    def execute(self, kernel, x, expected, generation="gen3"):
        import nki
        os.environ["NKI_NC_VERSION"] = generation
        try:
            found = nki.cpu_simulate(kernel)[2](x)
        except Exception as problem:
            raise InferenceException(str(problem)) from problem
        try:
            assert not self._compiled_kernel
            assert (found == expected).all(), "Validation failed for ['out']"
        except Exception as problem:
            raise ValidationException(str(problem)) from problem
"""
VALIDATOR = """
class OutputValidator:
    def _compare_outputs(self, actual, golden, tolerance):
        return all((abs(actual[n] - golden[n]) <= tolerance).all() for n in golden)
"""
QUANTISING = """
def quantize_to_mx(data, out_x4_dtype):
    return {"float8_e4m3fn_x4": 8}[out_x4_dtype]
"""
TESTS = """
import os
import time
import neuron_dtypes as dt
import nki.isa as nisa
import nki.language as nl
import nkilib
import numpy as np
import pytest
from nkilib_src.nkilib import OFFSET

def add(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.add, OFFSET)
    nisa.dma_copy(out, tile)
    return out

def too_wide(x):
    return nl.ndarray((129, 4), x.dtype, buffer=nl.sbuf)

@pytest.fixture
def x():
    return np.ones((4, 4), np.float32)

@pytest.mark.fast
def test_packed(test_manager):
    from nkilib_src.nkilib.core.utils.mx_torch_common import quantize_to_mx
    from test.utils.output_validator import OutputValidator

    x4 = dt.static_cast(np.array([1, 2, 3, 4], np.float32), nl.float8_e4m3fn_x4)
    near = dt.static_cast(np.array([1, 2, 3.25, 4], np.float32), nl.float8_e4m3fn_x4)
    compare = OutputValidator()._compare_outputs
    assert compare({"x": near}, {"x": x4}, 0.25)
    assert not compare({"x": near}, {"x": x4}, 0.125)
    assert quantize_to_mx(None, x4.dtype) == quantize_to_mx(None, nl.float8_e4m3fn_x4) == 8

@pytest.mark.fast
class TestAdd:
    def test_right(self, test_manager, x):
        assert nkilib.OFFSET == OFFSET and dt.sizeinbytes(nl.bfloat16) == 2
        test_manager.execute(add, x, x + 1)

    def test_wrong(self, test_manager, x):
        test_manager.execute(add, x, x + 2)

    def test_refused(self, test_manager, x):
        test_manager.execute(too_wide, x, x)

    def test_left_out(self):
        pytest.skip("not today")

    @pytest.mark.xfail(reason="never")
    def test_known(self):
        raise KeyError("x")

    def test_error(self, test_manager):
        test_manager.not_there()

    def test_end(self):
        os._exit(3)

    @pytest.mark.parametrize("seconds", [0, 60])
    def test_wait(self, seconds):
        time.sleep(seconds)

def test_slow():
    assert False
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nki-library")
    library = root / "src" / "nkilib_src" / "nkilib"
    utils, tests = root / "test" / "utils", root / "test" / "integration" / "nkilib" / "core"
    for folder in (library, utils, tests):
        folder.mkdir(parents=True)
    quantising = library / "core" / "utils"
    quantising.mkdir(parents=True)
    for folder in (root / "test", utils, library.parent, quantising.parent, quantising):
        (folder / "__init__.py").touch()
    (quantising / "mx_torch_common.py").write_text(QUANTISING)
    (utils / "output_validator.py").write_text(VALIDATOR)
    (library / "__init__.py").write_text("OFFSET = 1.0\n")
    (root / "test" / "pytest.ini").write_text(INI)
    (root / "test" / "conftest.py").write_text(CONFTEST)
    (utils / "test_orchestrator.py").write_text(HARNESS)
    (tests / "test_add.py").write_text(TESTS)
    (tests / "test_broken.py").write_text("import not_in_the_repository\n")
    return root


def conform(clone: Path, *arguments: str) -> Result:
    command = ["conformance", "nki-library", "--repo", str(clone)]
    return CliRunner().invoke(main, [*command, *arguments])


@pytest.fixture
def harness_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tests, "PACKAGES", {"pytest": "pytest"})


@pytest.mark.usefixtures("harness_only")
def test_every_test_has_its_outcome(clone: Path) -> None:
    result = conform(clone, "--json", "--seconds", "3")
    assert result.exit_code == 1 and "5 of 11 fail" in result.stderr
    tests = json.loads(result.stdout)["tests"]
    found = {each["test"].removeprefix("TestAdd::test_"): each for each in tests}
    assert {name: each["status"] for name, each in found.items()} == {
        "right": "pass", "wrong": "mismatch", "refused": "refused", "left_out": "skipped",
        "known": "skipped", "error": "error", "end": "error", "wait[0]": "pass",
        "wait[60]": "too slow", "": "error", "test_packed": "pass",
    }  # fmt: skip
    assert found["refused"]["code"].startswith("GLIA")
    assert found["left_out"]["reason"] == "not today"
    assert found["known"]["reason"] == "expected to fail: never"
    assert found["end"]["reason"] == "ended the process, status 3"
    assert found["wait[60]"]["reason"] == "stopped after 3 seconds"
    assert "No module named 'not_in_the_repository'" in found[""]["reason"]
    assert {each["file"] for each in tests} == {"core/test_add.py", "core/test_broken.py"}


@pytest.mark.usefixtures("harness_only")
def test_kernels_run_compiled_too(clone: Path) -> None:
    result = conform(clone, "--only", "test_add", "--limit", "4", "--compiled", "--json")
    statuses = [each["status"] for each in json.loads(result.stdout)["tests"]]
    assert statuses == ["pass", "pass", "mismatch", "refused"]


@pytest.mark.usefixtures("harness_only")
def test_a_limit_takes_the_first_tests_of_a_file(clone: Path) -> None:
    result = conform(clone, "--only", "test_add", "--limit", "1")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["core/test_add.py", "1"],
        ["all", "1"],
    ]


def test_packages_that_the_suite_needs_are_named(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "PACKAGES", {"pytest": "pytest", "not_there": "not-there"})
    result = conform(clone)
    assert result.exit_code == 1 and "GLIA130" in result.stderr
    assert "pip install not-there" in result.stderr


@pytest.mark.usefixtures("harness_only")
def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    result = conform(tmp_path)
    assert result.exit_code == 1 and "GLIA129" in result.stderr


@pytest.mark.usefixtures("harness_only")
@pytest.mark.parametrize("option", ["--only", "--marks"])
def test_a_filter_that_selects_nothing_is_named(clone: Path, option: str) -> None:
    for broken in clone.rglob("test_broken.py"):
        broken.unlink()
    result = conform(clone, option, "nonesuch")
    assert result.exit_code == 1 and "GLIA133" in result.stderr
    assert f"{option} 'nonesuch' selects none" in result.stderr


@pytest.mark.usefixtures("harness_only")
def test_a_suite_that_pytest_cannot_start_is_an_error(clone: Path) -> None:
    result = conform(clone, "--only", "test_add", "--marks", "fast and (")
    assert result.exit_code == 1 and "pytest ends with 4: ERROR: Wrong expression" in result.stdout


def test_defects_of_the_suite_explain_failures_and_nothing_else() -> None:
    broken = "IndentationError: unexpected indent"
    failed = SuiteOutcome("core/mlp/test_mlp.py", "", "trn2", "error", reason=broken)
    assert explain(failed).status == "explained"
    passed = SuiteOutcome("core/mlp/test_mlp.py", "test_a", "trn2", "pass", reason=broken)
    assert explain(passed) is passed


def test_the_table_counts_by_file_and_says_why() -> None:
    outcomes = [
        SuiteOutcome("b.py", "test_a", "trn2", "pass"),
        SuiteOutcome("a.py", "test_a", "trn2", "refused", "GLIA615", "race"),
        SuiteOutcome("a.py", "test_b", "trn2", "skipped", reason="large"),
    ]
    names = [line.split()[0] for line in table(outcomes)[1:]]
    assert names == ["a.py", "b.py", "all"]
    assert reasons(outcomes) == ["refused: GLIA615: 1", "skipped: large: 1"]
