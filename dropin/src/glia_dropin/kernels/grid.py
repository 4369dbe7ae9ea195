"""Shared by the shipped kernels: splitting work over a grid, rejecting options."""

from __future__ import annotations

from typing import Any

from glia.nki.beta1 import language as nl
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.session.session import caller

Range = tuple[int, int]  # first, count


def program_share(count: int) -> Range:
    """The range of `count` items of this program, split evenly; all of them without a grid."""
    if not nl.program_ndim():
        return 0, count
    number, programs = int(nl.program_id(0)), int(nl.num_programs(0))
    first = count * number // programs
    return first, count * (number + 1) // programs - first


def refuse_options(function: str, options: dict[str, Any], alternative: str) -> None:
    """UnsupportedHere for any option other than None or False, naming what to use instead."""
    for name, value in options.items():
        if value is not None and value is not False:
            what = f"{name} in {function}"
            raise UnsupportedHere(what=what, why=f"use {alternative}", loc=caller())
