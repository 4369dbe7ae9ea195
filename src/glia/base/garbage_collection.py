"""Pausing the cyclic garbage collector while many objects without cycles are allocated."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """A context in which the cyclic garbage collector does not run.

    Growing programs trigger collections again and again, each of the whole, which find no cycles.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
