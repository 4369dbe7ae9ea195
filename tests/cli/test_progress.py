"""Progress names what is running: a line on a terminal, lines at intervals in a log."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glia.cli import console
from glia.cli.conformance import with_progress
from glia.cli.console import Progress
from glia.compiler import compile_graph
from glia.conformance.suite_outcomes import PASS, SuiteOutcome
from glia.frontend.registry import read_module
from glia.options import CompileOptions
from glia.pass_runner import PassStart
from glia.pipeline import PIPELINE
from support.corpus import PROGRAMS, hlo_bytes

MODEL = hlo_bytes(next(program for program in PROGRAMS if program.name == "matmul"))


def wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_log_gets_a_line_at_every_interval(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LOG_SECONDS", 0.1)
    with Progress("compiling m.pb") as progress:
        progress(PassStart("schedule", 7, 40))
        wait(0.35)
    lines = capfd.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 4
    form = r"compiling m.pb: \[7/40\] schedule, \d+\.\d s \(\d+\.\d s in all\)"
    assert all(re.fullmatch(form, line) for line in lines)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_short_run_writes_nothing_to_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress("compiling m.pb") as progress:
        progress(PassStart("schedule", 7, 40))
    assert capfd.readouterr().err == ""


def test_who_wants_silence_has_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LOG_SECONDS", 0.05)
    with Progress("compiling m.pb", is_silent=True) as progress:
        progress(PassStart("schedule", 7, 40))
        wait(0.15)
    assert capfd.readouterr().err == ""


def test_outcomes_of_tests_are_counted_while_they_come(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LOG_SECONDS", 0.1)
    given = [SuiteOutcome("a.py", f"test_{i}", "trn2", PASS) for i in range(3)]

    def slow() -> Iterator[SuiteOutcome]:
        for each in given:
            yield each
            wait(0.25)

    assert list(with_progress(slow())) == given
    lines = capfd.readouterr().err.splitlines()
    assert lines and all(line.startswith("running: ") for line in lines)
    assert "3 pass; last a.py::test_2, " in lines[-1]


def test_every_pass_is_named_when_it_begins(tmp_path: Path) -> None:
    (tmp_path / "m.pb").write_bytes(MODEL)
    found: list[PassStart] = []
    ended: list[str] = []

    def begin(step: PassStart) -> None:
        assert step.name not in ended
        found.append(step)

    compile_graph(
        read_module(tmp_path / "m.pb"), CompileOptions(auto_cast="none"),
        lambda step: ended.append(step.name), begin,
    )  # fmt: skip
    names = [each.name for each in PIPELINE]
    assert [step.name for step in found][: len(names)] == names
    assert [step.index for step in found][: len(names)] == list(range(1, len(names) + 1))


def test_a_terminal_has_one_line_that_is_removed(tmp_path: Path) -> None:
    (tmp_path / "m.pb").write_bytes(MODEL)
    command = "from glia.cli.start import neuronx_cc; neuronx_cc()"
    arguments = ["compile", "m.pb", "--framework", "XLA", "--target", "trn2"]
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stderr=theirs, cwd=tmp_path,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 1 << 16):
            written += piece
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert run.wait() == 0
    text = written.decode()
    assert "\n" not in text
    assert text.endswith("\r\x1b[2K")
    assert re.search(r"compiling m.pb: \[\d+/\d+\] insert_semaphores, 0.0 s", text)
