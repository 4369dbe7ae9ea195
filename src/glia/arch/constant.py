"""How a number of the hardware is declared: its unit, its source, and what publications give."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass

SPREADS = {"high": 0.0, "medium": 0.1, "low": 0.25, "assumed": 0.5}  # to each side of a value
CONFIDENCES = tuple(SPREADS)
AGREEMENT = 0.25  # relative: publications that differ by less give the same constant


@dataclass(frozen=True)
class Reading:
    """What one publication gives for a constant, low to high, and where it does."""

    publication: str
    low: float
    high: float
    where: str

    def __post_init__(self) -> None:
        if not (self.publication and self.where and self.low <= self.high):
            raise ValueError(f"reading {self} needs a publication, a place in it and an interval")

    @property
    def middle(self) -> float:
        return statistics.mean((self.low, self.high))

    def supports(self, value: float) -> bool:
        """Whether a value lies in the interval, or misses it by no more than AGREEMENT."""
        return self.low * (1 - AGREEMENT) <= value <= self.high * (1 + AGREEMENT)


@dataclass(frozen=True)
class Constant:
    """One published (or assumed) number of the hardware.

    confidence: "high" stated in text or by several measurements, "medium" one measurement or a
    consistent inference, "low" read off one picture, "assumed" not published at all. `readings`
    are what publications give, where it was read off measurements or they differ.
    """

    value: float
    unit: str
    source: str
    confidence: str
    readings: tuple[Reading, ...] = ()

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES or not self.source or not self.unit:
            raise ValueError(f"constant {self.value} needs a unit, a source and a known confidence")

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest value that can be held: of all readings, else by confidence.

        What a text states and no other publication doubts is exact.
        """
        if self.readings:
            low, high = (r.low for r in self.readings), (r.high for r in self.readings)
            return min(self.value, *low), max(self.value, *high)
        part = SPREADS[self.confidence]
        return self.value * (1 - part), self.value * (1 + part)

    def leave_out(self, publication: str) -> Constant | None:
        """The constant as the other publications give it; None where no other does.

        A value that one of them allows stays; else it is the median of what they give.
        """
        others = tuple(r for r in self.readings if r.publication != publication)
        if len(others) == len(self.readings):
            return self
        if not others:
            return None
        if any(reading.low <= self.value <= reading.high for reading in others):
            return dataclasses.replace(self, readings=others)
        middle = statistics.median(reading.middle for reading in others)
        return dataclasses.replace(self, value=middle, readings=others)
