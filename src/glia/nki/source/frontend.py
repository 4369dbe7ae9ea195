"""The front end that specialises kernels: Python traces them, or their source is parsed."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from glia.nki.names.errors import BadLaunch

VARIABLE = "NKI_COMPILER_FRONTEND"


class Frontend(enum.Enum):
    """A way to specialise a kernel."""

    TRACER = "tracer"  # what NKI 0.7 and later do
    PARSER = "parser"  # what NKI 0.2 to 0.6 did


_NAMES = {
    "": Frontend.TRACER, "tracer": Frontend.TRACER,
    "custom": Frontend.PARSER, "parser": Frontend.PARSER,
}  # fmt: skip


_CHOSEN: ContextVar[Frontend | None] = ContextVar("frontend of the caller", default=None)


@contextmanager
def specialising_with(chosen: Frontend) -> Iterator[None]:
    """Use this front end while the block runs, whatever the environment says."""
    token = _CHOSEN.set(chosen)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def frontend() -> Frontend:
    """The caller's choice, else the environment's, else the tracer; BadLaunch for others."""
    chosen = _CHOSEN.get()
    if chosen is not None:
        return chosen
    word = os.environ.get(VARIABLE, "")
    if word not in _NAMES:
        known = ", ".join(filter(None, _NAMES))
        raise BadLaunch(kernel="", problem=f"{VARIABLE}={word} is none of {known}")
    return _NAMES[word]
