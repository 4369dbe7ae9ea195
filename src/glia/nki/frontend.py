"""How a kernel's Python becomes a program: Python traces it, or the compiler parses it."""

from __future__ import annotations

import enum
import os

from glia.nki.errors import BadLaunch

VARIABLE = "NKI_COMPILER_FRONTEND"


class Frontend(enum.Enum):
    """A way to specialise a kernel."""

    TRACER = "tracer"  # what NKI 0.7 and later do
    PARSER = "parser"  # what NKI 0.2 to 0.6 did


_NAMES = {
    "": Frontend.TRACER, "tracer": Frontend.TRACER,
    "custom": Frontend.PARSER, "parser": Frontend.PARSER,
}  # fmt: skip


def frontend() -> Frontend:
    """The tracer, unless the environment asks for the parser; BadLaunch for other words."""
    word = os.environ.get(VARIABLE, "")
    if word not in _NAMES:
        known = ", ".join(filter(None, _NAMES))
        raise BadLaunch(kernel="", problem=f"{VARIABLE}={word} is none of {known}")
    return _NAMES[word]
