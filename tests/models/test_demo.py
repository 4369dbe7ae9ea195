"""The checks of the demo pass, and fail when they should."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from glia.cli.demo import story
from glia.cli.glia import main

FILES = ("digits.hlo.pb", "digits.neff", "train_step.neff", "digits.html", "digits.perfetto.json")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The demo's exit status and its folder."""
    folder = tmp_path_factory.mktemp("demo")
    return story.run_demo(folder, "trn2"), folder


def test_every_check_of_the_demo_passes(told: tuple[int, Path]) -> None:
    status, folder = told
    assert status == 0
    assert [name for name in FILES if not (folder / name).stat().st_size] == []


def test_the_trace_is_json_with_an_event_for_every_engine_that_worked(
    told: tuple[int, Path],
) -> None:
    events = json.loads((told[1] / "digits.perfetto.json").read_text())["traceEvents"]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"tensor", "vector"} <= {lanes[e["pid"], e["tid"]] for e in events if e["ph"] == "X"}


def test_the_page_needs_nothing_but_itself(told: tuple[int, Path]) -> None:
    page = (told[1] / "digits.html").read_text()
    assert "<html" in page
    assert re.findall(r"<link|<img|<script[^>]*src|@import|url\(|fetch\(|XMLHttp", page) == []


def test_a_failed_check_makes_the_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare_other_predictions(demo: story.DemoRun) -> None:
        labels = np.zeros(100, np.int32)
        story._compare(demo, labels, labels + 1, labels)

    monkeypatch.setattr(story, "_run_chapters", compare_other_predictions)
    assert story.run_demo(tmp_path, "trn2") == 1
    assert "failed: equal predictions" in capsys.readouterr().out


def test_a_failed_command_ends_the_demo_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_nothing(demo: story.DemoRun) -> None:
        (tmp_path / "digits.hlo.pb").write_bytes(b"no module")
        story._compile(demo, "digits")

    monkeypatch.setattr(story, "_run_chapters", compile_nothing)
    assert CliRunner().invoke(main, ["demo", "--output", str(tmp_path)]).exit_code == 1


def test_a_loss_that_strays_or_is_not_finite_fails_the_check(tmp_path: Path) -> None:
    demo = story.DemoRun(tmp_path, "trn2", story.Console(quiet=True))
    host = np.linspace(2, 1, story.STEPS)
    story._print_losses(demo, host * (1 + 9e-4), host)
    assert demo.failures == []
    story._print_losses(demo, host * (1 + 2e-3), host)
    story._print_losses(demo, np.where(host < 1.5, np.nan, host), host)
    assert len(demo.failures) == 2
