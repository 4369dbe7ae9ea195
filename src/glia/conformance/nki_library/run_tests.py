"""Run the tests of a clone of aws-neuron/nki-library in its simulation mode.

Each test file runs in a process of pytest; a test that crashes it or exceeds the time limit costs
itself, as a new process continues with the next.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from glia.conformance.errors import NoChecks, PackagesMissing
from glia.conformance.load import require_dropin
from glia.conformance.nki_library.defects import explain
from glia.conformance.nki_library.results import ERROR, SLOW, LibraryOutcome
from glia.conformance.nki_library.settings import ChildOptions, SuiteSettings

FOLDER = "test/integration/nkilib"
ORDERLY = (0, 1, 5)  # statuses of pytest: all pass, some fail, none selected
COLLECTION_FAILED = 2
COLLECTING_SECONDS = 600  # time limit of imports, and of what is between two tests
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


def run_all(settings: SuiteSettings, only: str = "") -> Iterator[LibraryOutcome]:
    """Outcomes of the tests whose file's path holds `only`, file by file.

    Raises NoChecks where there is no such file, PackagesMissing and DropinMissing.
    """
    require_dropin()
    missing = [name for module, name in PACKAGES.items() if not importlib.util.find_spec(module)]
    if missing:
        raise PackagesMissing(names=", ".join(missing), install=" ".join(missing))
    home = settings.root / FOLDER
    found = sorted(home.rglob("test_*.py"))
    files = [path for path in found if only in str(path.relative_to(home))]
    if not files:
        raise NoChecks(what=settings.root)
    for path in files:
        yield from _outcomes_of_file(path, settings)


def _outcomes_of_file(path: Path, settings: SuiteSettings) -> Iterator[LibraryOutcome]:
    name = path.relative_to(settings.root / FOLDER).as_posix()
    run = _FileRun(path, settings, LibraryOutcome(name, "", settings.target, ERROR))
    while not run.is_finished:
        for outcome in run.outcomes():
            yield explain(outcome)


class _FileRun:
    """The tests of one file, in as many processes as it takes."""

    def __init__(self, path: Path, settings: SuiteSettings, blank: LibraryOutcome) -> None:
        self.path = path
        self.settings = settings
        self.blank = blank
        self.done = 0
        self.is_finished = False

    def outcomes(self) -> Iterator[LibraryOutcome]:
        """Outcomes of one process, and of the test that ended it early if one did."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
            reading, writing = os.pipe()
            process = subprocess.Popen(
                self._command(folder), cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, env=self._environment(writing), pass_fds=(writing,),
            )  # fmt: skip
            os.close(writing)
            try:
                yield from self._read(reading, process, log)
            finally:
                process.kill()
                process.wait()

    def _read(
        self, reading: int, process: subprocess.Popen[bytes], log: IO[bytes]
    ) -> Iterator[LibraryOutcome]:
        running, is_broken = "", False
        lines = _lines(reading)
        while line := _next_line(lines, self.settings.seconds if running else COLLECTING_SECONDS):
            fields = json.loads(line)
            if "broken" in fields:
                is_broken = True
                yield replace(self.blank, reason=fields["broken"])
            if "begins" in fields:
                running = fields["begins"]
            if "status" in fields:
                yield replace(self.blank, test=running, **fields)
                self.done, running = self.done + 1, ""
        self.done += 1
        self.is_finished = not running
        if line is None:
            limit = self.settings.seconds if running else COLLECTING_SECONDS
            reason = f"stopped after {limit:g} seconds"
            yield replace(self.blank, test=running, status=SLOW, reason=reason)
            return
        status = process.wait()
        if running:
            yield replace(self.blank, test=running, reason=f"ended the process, status {status}")
        elif status not in (*ORDERLY, COLLECTION_FAILED) or (
            status == COLLECTION_FAILED and not is_broken
        ):
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-1:]
            yield replace(self.blank, reason=" ".join((f"pytest ends with {status}:", *last)))

    def _command(self, folder: str) -> list[str]:
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

    def _environment(self, writing: int) -> dict[str, str]:
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
        found |= ChildOptions(writing, self.done, settings.limit, settings.is_compiled).store()
        found.pop("PYTEST_ADDOPTS", None)
        return found


def _lines(reading: int) -> queue.Queue[bytes]:
    """The lines of a pipe as they come, and an empty one at its end."""
    found: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        with os.fdopen(reading, "rb") as stream:
            for line in stream:
                found.put(line)
        found.put(b"")

    threading.Thread(target=read, daemon=True).start()
    return found


def _next_line(lines: queue.Queue[bytes], seconds: float) -> bytes | None:
    """The next line; None when it exceeds the time limit."""
    try:
        return lines.get(timeout=seconds)
    except queue.Empty:
        return None
