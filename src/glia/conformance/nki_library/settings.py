"""What the tests of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SECONDS = 300  # time limit of one test


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
