"""`glia conformance jax` runs tests of JAX on the platform, and sorts what comes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glia.cli.glia import main
from glia.conformance.jax_tests import run_jax_tests
from glia.conformance.jax_tests.report_plugin import outcome_of
from glia.conformance.jax_tests.run_jax_tests import JaxSettings, run_all

TESTS = """
import os
import jax
import jax.numpy as jnp
import numpy as np
import pytest

def test_passes():
    assert {each.platform for each in jnp.ones(3).devices()} == {"neuron"}
    assert os.environ["JAX_NUM_GENERATED_CASES"] == "2" and len(jax.devices()) == 2

def test_differs():
    np.testing.assert_array_equal(jnp.ones(3) * 2, np.ones(3))

def test_is_refused():
    jax.jit(lambda x: jax.ffi.ffi_call("unheard", jax.ShapeDtypeStruct((), x.dtype))(x))(1.0)

def test_has_no_rule():
    jnp.linalg.eigh(jnp.eye(2))

def test_crashes():
    os._exit(3)

def test_raises():
    raise KeyError("missing")

def test_is_skipped():
    pytest.skip("not here")
"""


def conformance(repository: Path, *options: str) -> Result:
    words = ["conformance", "jax", "--repo", str(repository), *options]
    return CliRunner().invoke(main, words)


@pytest.fixture(autouse=True)
def without_absl(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own files need absl, those here do not."""
    monkeypatch.setattr(run_jax_tests, "PACKAGES", {"pytest": "pytest"})


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "nn_test.py").write_text(TESTS)
    (tmp_path / "tests" / "other_test.py").write_text("def test_other():\n    assert False\n")
    return tmp_path


def test_every_outcome_is_told_apart(clone: Path) -> None:
    result = conformance(clone, "--cases", "2", "--devices", "2", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout.splitlines()[0])["tests"]
    assert {each["test"]: each["status"] for each in found} == {
        "test_passes": "pass",
        "test_differs": "mismatch",
        "test_is_refused": "refused",
        "test_has_no_rule": "refused",
        "test_crashes": "error",
        "test_raises": "error",
        "test_is_skipped": "skipped",
    }
    assert {each["code"] for each in found} == {"", "NCC_EVRF015"}
    assert {each["file"] for each in found} == {"nn_test.py"}


def test_a_limit_is_for_each_file(clone: Path) -> None:
    (only,) = run_all(JaxSettings(clone, cases=2, devices=2, limit=1))
    assert (only.test, only.status) == ("test_passes", "pass")


def test_a_folder_without_the_tests_is_refused(tmp_path: Path) -> None:
    assert "GLIA129" in conformance(tmp_path).output


def test_files_are_chosen_by_a_part_of_their_path(clone: Path) -> None:
    (clone / "tests" / "lax_numpy_test.py").write_text("def test_one():\n    pass\n")
    settings = JaxSettings(clone, devices=2, limit=1)
    assert {each.file for each in run_all(settings, "tests/nn_")} == {"nn_test.py"}
    assert "GLIA133" in conformance(clone, "--only", "lax_test").output


def test_missing_packages_are_named(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_jax_tests, "PACKAGES", {"absl_of_no_one": "absl-py"})
    assert "pip install absl-py" in conformance(clone).output


def test_a_code_is_found_behind_another_error() -> None:
    try:
        try:
            raise RuntimeError("INVALID_ARGUMENT: [GLIA301] too large\n  help: less")
        except RuntimeError as error:
            raise AssertionError("not equal") from error
    except AssertionError as error:
        assert outcome_of(error) == ("refused", "GLIA301", "[GLIA301] too large")
