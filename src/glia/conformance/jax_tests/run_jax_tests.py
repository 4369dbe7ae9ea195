"""Run JAX's own tests, of a clone of jax-ml/jax, on the platform `neuron`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from glia.conformance.errors import NoChecks, NothingSelected, PackagesMissing
from glia.conformance.pytest_run import ChildOptions, PytestRun
from glia.conformance.suite_outcomes import ERROR, SuiteOutcome

FILES = ("lax", "lax_numpy", "nn", "random", "pmap", "shard_map")  # of tests/<name>_test.py
PLATFORM = "neuron"
PACKAGES = {"absl": "absl-py", "jax": "jax", "pytest": "pytest"}


@dataclass(frozen=True)
class JaxSettings:
    """What all tests of a run have in common.

    `cases` is how many cases JAX generates of a parameterised test; `devices` how many there are.
    """

    root: Path
    cases: int = 1
    devices: int = 8
    seconds: float = 300.0
    limit: int = 0  # the first so many of a file; 0 for all


def run_all(settings: JaxSettings, only: str = "") -> Iterator[SuiteOutcome]:
    """Outcomes of the tests in FILES whose path holds `only`, file by file.

    Raises NoChecks where there is no such file, NothingSelected where `only` names none, and
    PackagesMissing.
    """
    missing = [name for module, name in PACKAGES.items() if not importlib.util.find_spec(module)]
    if missing:
        raise PackagesMissing(names=", ".join(missing), install=" ".join(missing))
    paths = [Path("tests") / f"{name}_test.py" for name in FILES]
    files = [path for path in paths if (settings.root / path).is_file()]
    if not files:
        raise NoChecks(what=settings.root)
    chosen = [settings.root / path for path in files if only in path.as_posix()]
    if not chosen:
        raise NothingSelected(option="--only", value=only, count=len(files), place="tests")
    for path in chosen:
        blank = SuiteOutcome(path.name, "", PLATFORM, ERROR)
        with tempfile.TemporaryDirectory() as folder:
            for report in PytestRun(_File(path, settings, Path(folder))).reports():
                yield replace(blank, **report)


@dataclass(frozen=True)
class _File:
    """A file of JAX's tests; `folder` makes the plugin known where glia is not installed."""

    path: Path
    settings: JaxSettings
    folder: Path

    @property
    def seconds(self) -> float:
        """The time limit of one test."""
        return self.settings.seconds

    def command(self, folder: str) -> list[str]:
        """The command of pytest: the installed JAX is tested, not the clone's."""
        return [
            sys.executable, "-P", "-m", "pytest", str(self.path), "-q", "-p", "no:cacheprovider",
            "-p", "glia.conformance.jax_tests.report_plugin", "--import-mode=importlib",
            "--noconftest", "--rootdir", folder, "-c", os.devnull,
        ]  # fmt: skip

    def environment(self, writing: int, done: int) -> dict[str, str]:
        """The environment: the platform, its devices, and how many cases are generated."""
        declare_plugin(self.folder)
        settings = self.settings
        path = [str(self.folder), *(each for each in sys.path if each)]
        found = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "JAX_PLATFORMS": f"{PLATFORM},cpu",
            "JAX_NUM_GENERATED_CASES": str(settings.cases),
            "NEURON_RT_NUM_CORES": str(settings.devices),
            **ChildOptions(writing, done, settings.limit).store(),
        }
        found.pop("PYTEST_ADDOPTS", None)
        return found


def declare_plugin(folder: Path) -> None:
    """Have JAX find the plugin, where this glia runs from a folder that is not installed."""
    group = "jax_plugins"
    if any(each.name == PLATFORM for each in importlib.metadata.entry_points(group=group)):
        return
    metadata = folder / "glia_checkout-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Name: glia-checkout\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{PLATFORM} = glia.plugins.jax\n")
