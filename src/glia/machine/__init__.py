"""Level 3: machine programs, and `ProgramBuilder` to write them by hand; imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glia.base.lazy_imports import imported_on_use

if TYPE_CHECKING:
    from glia.machine.ir import Program
    from glia.machine.program_builder import ProgramBuilder
    from glia.machine.view import View, ds

__all__ = ["Program", "ProgramBuilder", "View", "ds"]

_HOMES = {
    "Program": "glia.machine.ir",
    "ProgramBuilder": "glia.machine.program_builder",
    "View": "glia.machine.view",
    "ds": "glia.machine.view",
}

__getattr__, __dir__ = imported_on_use(__name__, _HOMES)
