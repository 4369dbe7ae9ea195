"""What the tests of a run have in common, for the process that starts pytest and its plugin."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

SECONDS = 300  # time limit of one test
VARIABLE = "GLIA_NKI_LIBRARY"  # of the environment: ChildOptions in JSON


@dataclass(frozen=True)
class SuiteSettings:
    """What all tests of a run have in common; `marks` is an expression of pytest's."""

    root: Path
    target: str = "trn2"
    marks: str = "fast"
    seconds: float = SECONDS
    takes_large: bool = False  # also those that the suite skips in simulation for their size
    limit: int = 0  # the first so many of a file; 0 for all
    is_compiled: bool = False  # runs compiled programs, else simulates instruction by instruction


@dataclass(frozen=True)
class ChildOptions:
    """What a process of pytest is given: where it writes, and which tests it runs and how.

    An earlier process ran the first `done` of the tests that pytest collects.
    """

    descriptor: int
    done: int
    limit: int
    is_compiled: bool

    def store(self) -> dict[str, str]:
        """The variable of the environment that hands them on."""
        return {VARIABLE: json.dumps(asdict(self))}

    @staticmethod
    def load() -> ChildOptions:
        """Those of this process."""
        return ChildOptions(**json.loads(os.environ[VARIABLE]))
