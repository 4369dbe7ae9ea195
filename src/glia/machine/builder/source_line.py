"""Where in the user's program a function of this folder was called."""

from __future__ import annotations

import sys
from pathlib import Path

from glia.base.loc import UNKNOWN, Loc

_OWN_FOLDER = Path(__file__).parent


def caller() -> Loc:
    """The source line of the nearest caller outside this folder."""
    frame = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return UNKNOWN
    return Loc(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _is_ours(file: str) -> bool:
    return Path(file).parent == _OWN_FOLDER or file.endswith("contextlib.py")
