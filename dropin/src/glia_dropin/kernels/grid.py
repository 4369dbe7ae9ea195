"""What kernels under names of Beta 1 share: parts of a grid, refused options."""

from __future__ import annotations

from typing import Any

from glia.nki.beta1 import language as nl
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.session.session import caller

Range = tuple[int, int]  # first, count


def share_of(count: int) -> Range:
    """What a program of the grid has of so many, as even as can be; all of them without a grid."""
    if not nl.program_ndim():
        return 0, count
    number, programs = int(nl.program_id(0)), int(nl.num_programs(0))
    first = count * number // programs
    return first, count * (number + 1) // programs - first


def refuse(function: str, options: dict[str, Any], instead: str) -> None:
    """UnsupportedHere for an option with a value other than None or False; `instead` has it."""
    for name, value in options.items():
        if value is not None and value is not False:
            what = f"{name} in {function}"
            raise UnsupportedHere(what=what, why=f"{instead} has it", loc=caller())
