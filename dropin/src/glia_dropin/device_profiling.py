"""What runs on the device in a part of a program, written as traces with simulated times."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glia.base.errors import CompileError, Unspecified
from glia.base.output_files import writing
from glia.nki.names.errors import NotInGlia
from glia.runtime.model import Model
from glia.runtime.recording import RecordedRun, recorded_runs

SUMMARY = "executions.json"
_WITHOUT_MEANING: Mapping[str, Any] = {
    "port": 9012, "ms_duration": 60000, "delete_working": True, "traced_only": False,
    "target": "neuron_profile",
}  # fmt: skip  # their defaults


@dataclass
class DeviceProfile:
    """What ran on the device; `files` are the traces, once the part of the program has ended."""

    directory: Path
    files: Sequence[Path] = ()


@contextlib.contextmanager
def profile(
    port: int = 9012,
    ms_duration: int = 60000,
    neuron_tensorboard_plugin_dir: str | Path = "logs/plugins/neuron",
    profile_type: str = "operator",
    auto_start: bool = True,
    delete_working: bool = True,
    traced_only: bool = False,
    *,
    target: str = "neuron_profile",
    output_dir: str | Path | None = None,
) -> Iterator[DeviceProfile]:
    """Record the models that run on the device inside, and write traces when it ends.

    `output_dir`, else `neuron_tensorboard_plugin_dir`, is given a trace of one execution of each
    program, which ui.perfetto.dev opens, and `executions.json`: how often each ran and what time an
    execution takes. Other options have no meaning on a simulated device, and a warning names those
    that are given. Raises NotInGlia for another `profile_type` and for a start by a client of
    `port`, and UnwritableOutput.
    """
    _refuse_unless("profile_type", profile_type, "operator", "the runtime has no trace of its own")
    _refuse_unless("auto_start", auto_start, True, "no client asks for a start")
    given = {
        "port": port, "ms_duration": ms_duration, "delete_working": delete_working,
        "traced_only": traced_only, "target": target,
    }  # fmt: skip
    if changed := [name for name, value in given.items() if value != _WITHOUT_MEANING[name]]:
        text = f"{', '.join(changed)} have no meaning for the profile of a simulated device"
        warnings.warn(text, stacklevel=3)
    found = DeviceProfile(Path(output_dir or neuron_tensorboard_plugin_dir))
    with recorded_runs() as runs:
        yield found
    found.files = _write(found.directory, runs)


def _refuse_unless(option: str, value: object, only: object, problem: str) -> None:
    if value != only:
        raise NotInGlia(
            name=f"profile({option}={value!r})", problem=problem, cure=f"use {option}={only!r}"
        )


def _write(directory: Path, runs: Sequence[RecordedRun]) -> list[Path]:
    """Write a trace of each program that ran, and what all runs were; the traces."""
    counts: dict[int, int] = {}
    models: dict[int, Model] = {}
    for run in runs:
        key = id(run.model.neff)
        counts[key] = counts.get(key, 0) + 1
        models.setdefault(key, run.model)
    places = {key: number for number, key in enumerate(models)}
    files: list[Path] = []
    programs = []
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for key, model in models.items():
            name = re.sub(r"[^\w.-]", "_", model.neff.name)
            file = directory / f"{places[key]:03d}-{name}.json"
            time_or_problem = _write_trace(model, file)
            programs.append({"name": model.neff.name, "executions": counts[key], **time_or_problem})
            files += [file] if "trace" in time_or_problem else []
        order = [{"program": places[id(run.model.neff)], "begin_ns": run.begin_ns} for run in runs]
        text = json.dumps({"programs": programs, "executions": order})
        (directory / SUMMARY).write_text(text)
    return files


def _write_trace(model: Model, file: Path) -> dict[str, Any]:
    """Write the trace of a program; its file and the time of an execution, or why there is none."""
    try:
        found = model.profile()
    except (CompileError, Unspecified) as problem:
        return {"untimed": str(problem).partition("\n")[0]}
    found.save_perfetto(file)
    return {"trace": file.name, "latency_us": found.latency_us}
