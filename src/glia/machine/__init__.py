"""Level 3: machine programs, and `ProgramBuilder` to write them by hand; imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'glia.machine' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
