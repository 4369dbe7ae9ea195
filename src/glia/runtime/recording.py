"""Which models run meanwhile, for a profiler of a part of a program."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glia.runtime.model import Model


@dataclass(frozen=True)
class RecordedRun:
    """A run of a model, and when the host began it, in nanoseconds since the epoch."""

    model: Model
    begin_ns: int


_RECORDINGS: list[list[RecordedRun]] = []


@contextlib.contextmanager
def recorded_runs() -> Iterator[list[RecordedRun]]:
    """The runs of all models of the process that begin inside, in their order."""
    found: list[RecordedRun] = []
    _RECORDINGS.append(found)
    try:
        yield found
    finally:
        _RECORDINGS[:] = [each for each in _RECORDINGS if each is not found]


def note_run(model: Model) -> None:
    """Tell of a run that begins."""
    for each in _RECORDINGS:
        each.append(RecordedRun(model, time.time_ns()))
