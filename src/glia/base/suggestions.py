"""What a misspelt name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

LIKE = 0.55  # of 1, two letters changed places in a short name
MOST_LETTERS = 64  # of a name that comes from a file


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known name most like `name`, the first of equals, or nothing."""
    matcher = SequenceMatcher(b=name[:MOST_LETTERS])

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    best = max(known, key=likeness, default="")
    return f"; did you mean {best}?" if likeness(best) >= LIKE else ""
