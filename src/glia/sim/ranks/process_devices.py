"""Where ranks can run in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence

from glia.machine.ir import Program
from glia.machine.merge_cores import joined_program
from glia.sim.ranks.errors import OneProcessOnly

PROCESS_DEVICES = ("host", "reference")


def one_program(programs: Sequence[Program], device: str) -> Program:
    """The program of a rank in a process of its own, which joins those of its cores.

    Raises OneProcessOnly where ranks cannot run in processes of their own.
    """
    if device not in PROCESS_DEVICES:
        raise OneProcessOnly(why=f"device {device} orders the accesses of all of them")
    joined = joined_program(programs)
    if joined is None:
        raise OneProcessOnly(
            why="each has several cores, which meet in ways known only as they run"
        )
    return joined
