"""Reference text of instructions and functions of nki.isa, as `glia explain` prints it."""

from __future__ import annotations

import inspect

from glia.isa import INSTRUCTIONS
from glia.machine.reference_pages import instruction_page
from glia.nki import isa as functions


def instruction_reference(name: str) -> str:
    """The page of an instruction, or signature and help of an nki.isa function; "" if unknown.

    `name` may be qualified, as in nki.isa.nc_matmul.
    """
    name = name.rpartition(".")[2]
    if name in INSTRUCTIONS:
        return instruction_page(name)
    function = vars(functions).get(name)
    if not inspect.isfunction(function):
        return ""
    return f"nki.isa.{name}{inspect.signature(function)}\n\n{inspect.getdoc(function)}"
