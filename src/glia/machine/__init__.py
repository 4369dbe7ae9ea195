"""Level 3: machine programs, and `ProgramBuilder` to write them by hand; imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glia.base.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from glia.machine.builder.program_builder import ProgramBuilder
    from glia.machine.builder.view import View, ds
    from glia.machine.ir import Program

__all__ = ["Program", "ProgramBuilder", "View", "ds"]

_HOMES = {
    "Program": "glia.machine.ir",
    "ProgramBuilder": "glia.machine.builder.program_builder",
    "View": "glia.machine.builder.view",
    "ds": "glia.machine.builder.view",
}

__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)
