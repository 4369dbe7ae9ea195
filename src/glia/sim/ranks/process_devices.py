"""Where ranks can run in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence

from glia.machine.ir import Program
from glia.sim.ranks.errors import OneProcessOnly

PROCESS_DEVICES = ("host", "reference")


def require_one_core(programs: Sequence[Program], device: str) -> None:
    """Raise OneProcessOnly where ranks cannot run in processes of their own."""
    if device not in PROCESS_DEVICES:
        raise OneProcessOnly(why=f"device {device} orders the accesses of all of them")
    if len(programs) != 1:
        raise OneProcessOnly(why="each has several cores, which share memory")
