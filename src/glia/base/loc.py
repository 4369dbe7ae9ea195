"""Source locations: where in the user's program a value or instruction came from."""

from __future__ import annotations

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
