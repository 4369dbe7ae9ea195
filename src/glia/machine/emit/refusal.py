"""What an emitter raises when it cannot take a schedule."""

from __future__ import annotations


class Refusal(Exception):
    """The instructions of a nest cannot be emitted under its schedule.

    `buffers` are those whose layout does not suit the schedule, if that is the reason. What was
    emitted of the nest is void. `machine/emit/fitting.py` tries another schedule.
    """

    def __init__(self, reason: str, *buffers: str) -> None:
        super().__init__(reason)
        self.buffers = buffers


class TooLarge(Refusal):
    """The tiles of a nest that are live together exceed what SBUF or PSUM has left for it."""
