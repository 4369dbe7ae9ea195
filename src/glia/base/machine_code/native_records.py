"""Declarations of the records of integer arrays that functions in machine code work on."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """The arrays that a record and its bases declare, in declared order, the bases' first."""
    declared = (item for kind in reversed(record.__mro__) for item in vars(kind).items())
    return {name: each for name, each in declared if isinstance(each, WordArray)}


def words_of(values: Any) -> np.ndarray:
    """Values as words: at least one, so that every array has an address."""
    array = np.ascontiguousarray(values, np.int64).reshape(-1)
    return array if array.size else np.zeros(1, np.int64)


def as_words(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a record as words."""
    return {name: words_of(values) for name, values in record.items()}
