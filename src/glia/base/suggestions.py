"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

SIMILARITY_THRESHOLD = 0.55  # of 1: two letters exchanged in a short name
LONGEST_COMPARED = 64  # letters of a name that comes from a file


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the most similar known name, '' when none is similar enough."""
    matcher = SequenceMatcher(b=name[:LONGEST_COMPARED])

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    best = max(known, key=likeness, default="")
    return f"; did you mean {best}?" if likeness(best) >= SIMILARITY_THRESHOLD else ""
