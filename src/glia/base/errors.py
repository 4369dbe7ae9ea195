"""The three kinds of failure, and the registry of every error a user can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from glia.base.loc import UNKNOWN, Loc

ERRORS: dict[str, type[CompileError]] = {}


class CompileError(Exception):
    """A failure the user can fix; each subclass declares its code, message and help.

    A subclass's docstring holds cause, fix and a triggering program under the headings
    `Cause:`, `Fix:` and `Example:`; `glia explain CODE` prints it.
    """

    code: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()  # other codes that the product has for the same
    message: ClassVar[str] = ""
    help: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not (cls.code and cls.message and cls.help and cls.__doc__):
            raise TypeError(f"{cls.__name__} must declare code, message, help and a docstring")
        if cls.code in ERRORS:
            raise TypeError(f"error code {cls.code} is declared twice")
        ERRORS[cls.code] = cls

    def __init__(self, *, loc: Loc = UNKNOWN, instruction: str = "", **facts: object) -> None:
        self.loc = loc
        self.instruction = instruction
        self.facts = facts
        super().__init__(self.render())

    def render(self) -> str:
        """The text shown to the user: code and message, instruction, source line, help."""
        lines = [f"[{self.code}] {self.message.format(**self.facts)}"]
        if self.instruction:
            lines.append(f"  instruction: {self.instruction}")
        if str(self.loc):
            lines.append(f"  source: {self.loc}")
        lines.append(f"  help: {self.help.format(**self.facts)}")
        lines.append(f"  more: glia explain {self.code}")
        return "\n".join(lines)


class InternalError(Exception):
    """glia is wrong: an invariant of its own did not hold."""


class Misfit(InternalError):
    """What an earlier pass chose does not suit a later one.

    `choices` names what was chosen wrong, and why; a recovery of the later pass changes it.
    """

    def __init__(self, message: str, choices: Mapping[str, str]) -> None:
        super().__init__(message)
        self.choices = choices


class Unspecified(Exception):
    """The public documentation does not say what the hardware does here; glia refuses to guess."""
