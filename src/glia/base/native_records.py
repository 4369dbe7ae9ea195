"""Declarations of the records of integer arrays that functions of `base.native` work on."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import Any

Words = MutableSequence[int]


@dataclass(frozen=True)
class WordArray:
    """The declaration of an array: one word for each `per`, of this unit and meaning.

    `is_state` where it belongs to the core's state, which decides, with the arrays that a run does
    not change, how the core goes on.
    """

    per: str
    unit: str
    meaning: str
    is_state: bool


def words(per: str, unit: str, meaning: str, *, is_state: bool = False) -> Any:
    """Declare an array of a record; see WordArray."""
    return WordArray(per, unit, meaning, is_state)


def arrays_of(record: type) -> dict[str, WordArray]:
    """The arrays that a record declares, in declared order."""
    return {name: each for name, each in vars(record).items() if isinstance(each, WordArray)}
