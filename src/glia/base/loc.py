"""Source locations: where in the user's program a value or instruction came from."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A user's source line and the framework's name for the operation; any part may be unknown."""

    file: str = ""
    line: int = 0
    name: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else ""
        return f"{where} ({self.name})" if where and self.name else where or self.name


UNKNOWN = Loc()


def stacklevel_of_caller() -> int:
    """The `stacklevel` with which `warnings.warn`, called here, names the caller of glia."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_ours(module: str) -> bool:
    return module.startswith(("glia.", "glia_dropin.")) or module == "contextlib"
