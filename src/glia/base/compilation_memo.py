"""What one pass of a compilation has found, kept for its other passes and attempts.

A pass that does not fit on chip is run again from an earlier point, with most of the program as
before: what depends on parts of it alone is found once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

Made = TypeVar("Made")

_known: ContextVar[dict[Hashable, Any] | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def one_compilation() -> Iterator[None]:
    """Inside, `memoise` makes each value once."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def memoise(key: Hashable, make: Callable[[], Made]) -> Made:
    """What `make` returned first in this compilation; outside of one what it returns now.

    The key has to name all that the value depends on.
    """
    known = _known.get()
    if known is None:
        return make()
    if key not in known:
        known[key] = make()
    found: Made = known[key]
    return found
