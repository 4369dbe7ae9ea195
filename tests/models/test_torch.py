"""Kernels on tensors of PyTorch, in an environment that has it: the suite's own does without."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from house.source import REPOSITORY

CASES = (
    str(Path(__file__).with_name("torch_kernels.py")),
    str(REPOSITORY / "tests/cli/test_cli_conformance.py")
    + "::test_the_cpu_stands_in_for_the_device_of_native_pytorch",
)


@pytest.mark.nightly
def test_kernels_run_on_tensors_of_pytorch(tmp_path: Path) -> None:
    """Installs what pyproject.toml asks for with the torch extra; needs a package index."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["torch"], "pytest"]
    python = _environment(tmp_path / "venv", needed)
    paths = os.pathsep.join(str(REPOSITORY / each) for each in ("src", "dropin/src", "tests"))
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *CASES]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout


def _environment(place: Path, needed: list[str]) -> Path:
    """The Python of a new environment with these distributions."""
    venv.create(place, with_pip=True)
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needed], check=True)
    return python
