"""Tests of a public repository in processes of pytest, which report by lines of JSON.

A test that crashes its process or exceeds the time limit costs itself: a new process continues with
the next.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any, Protocol

from glia.conformance.suite_outcomes import ERROR, SLOW

ORDERLY = (0, 1, 5)  # statuses of pytest: all pass, some fail, none selected
COLLECTION_FAILED = 2
COLLECTING_SECONDS = 600  # time limit of imports, and of what is between two tests

VARIABLE = "GLIA_PYTEST"  # of the environment: ChildOptions in JSON

Report = dict[str, Any]  # fields of an outcome: test, status, code, reason, seconds


@dataclass(frozen=True)
class ChildOptions:
    """What a process of pytest is given: where it writes, and which tests it runs and how.

    An earlier process ran the first `done` of the tests that pytest collects.
    """

    descriptor: int
    done: int
    limit: int
    is_compiled: bool = False  # runs compiled programs, else simulates instruction by instruction

    def store(self) -> dict[str, str]:
        """The variable of the environment that hands them on."""
        return {VARIABLE: json.dumps(asdict(self))}

    @staticmethod
    def load() -> ChildOptions:
        """Those of this process."""
        return ChildOptions(**json.loads(os.environ[VARIABLE]))


class FileOfTests(Protocol):
    """How pytest is started for a file of tests."""

    @property
    def seconds(self) -> float:
        """The time limit of one test."""

    def command(self, folder: str) -> list[str]:
        """The command; a temporary folder is its working directory."""

    def environment(self, writing: int, done: int) -> dict[str, str]:
        """The environment: reports go to a descriptor, and the first `done` tests are left out."""


class PytestRun:
    """The tests of one file, in as many processes as it takes."""

    def __init__(self, tests: FileOfTests) -> None:
        self.tests = tests
        self.done = 0
        self.is_finished = False

    def reports(self) -> Iterator[Report]:
        """A report of every test, and of what keeps the file from being imported."""
        while not self.is_finished:
            yield from self._reports_of_process()

    def _reports_of_process(self) -> Iterator[Report]:
        """Reports of one process, and of the test that ended it early if one did."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
            reading, writing = os.pipe()
            process = subprocess.Popen(
                self.tests.command(folder), cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, env=self.tests.environment(writing, self.done),
                pass_fds=(writing,),
            )  # fmt: skip
            os.close(writing)
            try:
                yield from self._read(reading, process, log)
            finally:
                process.kill()
                process.wait()

    def _read(
        self, reading: int, process: subprocess.Popen[bytes], log: IO[bytes]
    ) -> Iterator[Report]:
        running, is_broken = "", False
        lines = _lines(reading)
        while line := _next_line(lines, self.tests.seconds if running else COLLECTING_SECONDS):
            fields = json.loads(line)
            if "broken" in fields:
                is_broken = True
                yield {"status": ERROR, "reason": fields["broken"]}
            if "begins" in fields:
                running = fields["begins"]
            if "status" in fields:
                yield {"test": running, **fields}
                self.done, running = self.done + 1, ""
        self.done += 1
        self.is_finished = not running
        if line is None:
            limit = self.tests.seconds if running else COLLECTING_SECONDS
            reason = f"stopped after {limit:g} seconds"
            yield {"test": running, "status": SLOW, "reason": reason}
            return
        status = process.wait()
        if running:
            reason = f"ended the process, status {status}"
            yield {"test": running, "status": ERROR, "reason": reason}
        elif status not in (*ORDERLY, COLLECTION_FAILED) or (
            status == COLLECTION_FAILED and not is_broken
        ):
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-1:]
            reason = " ".join((f"pytest ends with {status}:", *last))
            yield {"status": ERROR, "reason": reason}


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
