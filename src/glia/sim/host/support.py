"""Whether machine code can be made and run on this host."""

from __future__ import annotations

import struct
import sys
import warnings
from functools import cache

from glia.base.loc import stacklevel_of_caller
from glia.sim.host.library import host_library
from glia.sim.host.threads.pool import PoolCode

WORD_BYTES = 8


class HostUnsupported(UserWarning):
    """Models run by the reference executor: as exactly, but slower."""


@cache
def why_unsupported() -> str:
    """Why programs cannot run as machine code of this host; "" where they can."""
    if sys.byteorder != "little" or struct.calcsize("P") != WORD_BYTES:
        return "it is not a little-endian machine of 64 bits"
    try:
        host_library().load([PoolCode()])
    except (RuntimeError, OSError, MemoryError) as problem:
        return f"LLVM makes no code for it: {problem!s:.200}"
    return ""


def warn_unsupported(why: str) -> None:
    """Say that the reference executor runs instead; once for each line of the caller."""
    text = f'device "host" is not supported here ({why}): the reference executor runs instead'
    warnings.warn(text, HostUnsupported, stacklevel=stacklevel_of_caller())
