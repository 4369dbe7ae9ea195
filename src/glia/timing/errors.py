"""What the timing model cannot take."""

from __future__ import annotations

from glia.base.errors import CompileError


class TimingTooLarge(CompileError):
    """The time of a program cannot be found in the time and memory that the timing model allows.

    Cause: Loops nest with so many trips, and repeat so little, that hours would pass; or a
        semaphore counts far ahead of those that wait for it. Often the file is damaged.
    Fix: Lower the trip counts and the amounts of signals, or time a part of the program.
    Example: a loop of 10**12 trips around a branch
    """

    code = "GLIA404"
    message = "the program is too large to be timed: {reason}"
    help = "lower the trip counts and the amounts of signals, or time a part of the program"
