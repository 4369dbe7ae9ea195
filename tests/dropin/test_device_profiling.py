"""A part of a program leaves traces of what ran on the device, with simulated times."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glia
from glia.base.errors import Unspecified
from glia.nki.names.errors import NotInGlia
from glia.runtime.model import Model
from glia.runtime.recording import recorded_runs
from glia_dropin.device_profiling import SUMMARY, profile
from support.hlo_text import entry

X = np.arange(4, dtype=np.float32)
MODELS = [
    glia.load(glia.compile(entry(f"p = f32[4] parameter(0)\n ROOT r = f32[4] {each}(p, p)")))
    for each in ("add", "multiply")
]


def _summary(directory: Path) -> Any:
    return json.loads((directory / SUMMARY).read_text())


def test_each_program_that_ran_has_a_trace_and_its_count(tmp_path: Path) -> None:
    first, second = MODELS
    bound = first.bind()
    with profile(neuron_tensorboard_plugin_dir=tmp_path / "logs" / "neuron") as found:
        bound(X)
        second(X)
        bound(X)
    second(X)
    summary = _summary(tmp_path / "logs" / "neuron")
    assert [each["executions"] for each in summary["programs"]] == [2, 1]
    assert [each["program"] for each in summary["executions"]] == [0, 1, 0]
    assert summary["programs"][0]["latency_us"] == first.profile().latency_us
    assert len(found.files) == 2
    for file in found.files:
        assert any(each["ph"] == "X" for each in json.loads(file.read_text())["traceEvents"])


def test_recordings_nest_and_end() -> None:
    with recorded_runs() as outer:
        with recorded_runs() as inner:
            MODELS[0](X)
        MODELS[1](X)
    MODELS[1](X)
    assert [each.model for each in outer] == MODELS and [e.model for e in inner] == MODELS[:1]


def test_a_program_that_cannot_be_timed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untimed(model: Model) -> Any:
        raise Unspecified("how long it takes is not documented")

    monkeypatch.setattr(Model, "profile", untimed)
    with profile(output_dir=tmp_path) as found:
        MODELS[0](X)
    (program,) = _summary(tmp_path)["programs"]
    assert program["untimed"] == "how long it takes is not documented" and not found.files


def test_options_without_meaning_are_named(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="port, traced_only have no meaning"),
        profile(port=1, output_dir=tmp_path, traced_only=True),
    ):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profile(profile_type="operator", target="neuron_profile", output_dir=tmp_path):
            pass
    assert _summary(tmp_path) == {"programs": [], "executions": []}


@pytest.mark.parametrize("option", [{"profile_type": "trace"}, {"auto_start": False}])
def test_what_the_simulated_device_lacks_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(NotInGlia, match=f"GLIA644.*{next(iter(option))}"), profile(**option):
        pass
