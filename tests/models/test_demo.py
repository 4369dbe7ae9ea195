"""The demo keeps its promises, and says so when it does not."""

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
    return story.tell(folder, "trn2"), folder


def test_every_promise_of_the_demo_holds(told: tuple[int, Path]) -> None:
    status, folder = told
    assert status == 0
    assert [name for name in FILES if not (folder / name).stat().st_size] == []


def test_the_trace_is_json_with_an_event_for_every_engine_that_worked(
    told: tuple[int, Path],
) -> None:
    events = json.loads((told[1] / "digits.perfetto.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"tensor", "vector"} <= {names[e["tid"]] for e in events if e["ph"] == "X"}


def test_the_page_needs_nothing_but_itself(told: tuple[int, Path]) -> None:
    page = (told[1] / "digits.html").read_text()
    assert "<html" in page
    assert re.findall(r"<link|<img|<script[^>]*src|@import|url\(|fetch\(|XMLHttp", page) == []


def test_a_broken_promise_makes_the_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell_of_other_predictions(told: story.Story) -> None:
        labels = np.zeros(100, np.int32)
        story._compare(told, labels, labels + 1, labels)

    monkeypatch.setattr(story, "_tell", tell_of_other_predictions)
    assert story.tell(tmp_path, "trn2") == 1
    assert "did not hold: equal predictions" in capsys.readouterr().out


def test_a_failed_command_ends_the_demo_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_nothing(told: story.Story) -> None:
        (tmp_path / "digits.hlo.pb").write_bytes(b"no module")
        story._compile(told, "digits")

    monkeypatch.setattr(story, "_tell", compile_nothing)
    assert CliRunner().invoke(main, ["demo", "--output", str(tmp_path)]).exit_code == 1


def test_a_loss_that_strays_or_is_not_finite_breaks_the_promise(tmp_path: Path) -> None:
    told = story.Story(tmp_path, "trn2", story.Console(quiet=True))
    host = np.linspace(2, 1, story.STEPS)
    story._print_losses(told, host * (1 + 9e-4), host)
    assert told.broken == []
    story._print_losses(told, host * (1 + 2e-3), host)
    story._print_losses(told, np.where(host < 1.5, np.nan, host), host)
    assert len(told.broken) == 2
