"""Run the tests of a clone of aws-neuron/nki-library in its simulation mode."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from glia.conformance.errors import NoChecks, NothingSelected, PackagesMissing
from glia.conformance.load import require_dropin
from glia.conformance.nki_library.defects import explain
from glia.conformance.nki_library.settings import SuiteSettings
from glia.conformance.pytest_run import ChildOptions, PytestRun
from glia.conformance.suite_outcomes import ERROR, SuiteOutcome

FOLDER = "test/integration/nkilib"
PACKAGES = {  # what the suite imports, and the distribution that has it
    "allpairspy": "allpairspy",
    "attr": "attrs",
    "aws_embedded_metrics": "aws-embedded-metrics",
    "boto3": "boto3",
    "fabric2": "fabric2",
    "filelock": "filelock",
    "plotext": "plotext",
    "pytest": "pytest",
    "pytest_html": "pytest-html",
    "scipy": "scipy",
    "torch": "torch",
    "xdist": "pytest-xdist",
}


def run_all(settings: SuiteSettings, only: str = "") -> Iterator[SuiteOutcome]:
    """Outcomes of the tests whose file's path holds `only`, file by file.

    Raises NoChecks where there are none, NothingSelected, PackagesMissing and DropinMissing.
    """
    require_dropin()
    missing = [name for module, name in PACKAGES.items() if not importlib.util.find_spec(module)]
    if missing:
        raise PackagesMissing(names=", ".join(missing), install=" ".join(missing))
    home = settings.root / FOLDER
    found = sorted(home.rglob("test_*.py"))
    files = [path for path in found if only in str(path.relative_to(home))]
    if not found:
        raise NoChecks(what=settings.root)
    if not files:
        raise _nothing("--only", only, found, home)
    is_empty = True
    for path in files:
        for outcome in _outcomes_of_file(path, settings):
            is_empty = False
            yield outcome
    if is_empty:
        raise _nothing("--marks", settings.marks, files, home)


def _nothing(option: str, value: str, files: list[Path], place: Path) -> NothingSelected:
    return NothingSelected(option=option, value=value, count=len(files), place=place)


def _outcomes_of_file(path: Path, settings: SuiteSettings) -> Iterator[SuiteOutcome]:
    name = path.relative_to(settings.root / FOLDER).as_posix()
    blank = SuiteOutcome(name, "", settings.target, ERROR)
    for report in PytestRun(_File(path, settings)).reports():
        yield explain(replace(blank, **report))


@dataclass(frozen=True)
class _File:
    """A file of the suite's tests."""

    path: Path
    settings: SuiteSettings

    @property
    def seconds(self) -> float:
        """The time limit of one test."""
        return self.settings.seconds

    def command(self, folder: str) -> list[str]:
        """The command of pytest, with results in a folder."""
        settings = self.settings
        test = settings.root / "test"
        return [
            sys.executable, "-m", "pytest", str(self.path), "-q", "-p", "no:cacheprovider",
            "-p", "glia.conformance.nki_library.plugin", "--rootdir", str(test),
            "-c", str(test / "pytest.ini"), "-o", f"artifacts_dir={folder}/artifacts",
            "--output-directory", f"{folder}/results", "--force-local-cleanup",
            "--test-mode", "simulation", "--platform-target", settings.target,
            *(("-m", settings.marks) if settings.marks else ()),
        ]  # fmt: skip

    def environment(self, writing: int, done: int) -> dict[str, str]:
        """The environment, with the suite's own packages on the path."""
        root = self.settings.root
        path = [str(root), str(root / "src"), *(each for each in sys.path if each)]
        found = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "NKILIB_SIMULATION_RUN_ALL": str(int(self.settings.takes_large)),
            "NEURON_PYTHONHASHSEED": "0",
        }
        settings = self.settings
        found |= ChildOptions(writing, done, settings.limit, settings.is_compiled).store()
        found.pop("PYTEST_ADDOPTS", None)
        return found
