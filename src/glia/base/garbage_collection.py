"""Without the search for cycles while many long-lived values are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """While the block runs, Python does not look for cycles among all that there is.

    It would do so again and again while lists of instructions grow, and find none.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
