"""The user's source line that called into this package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from glia.base.loc import UNKNOWN, Loc

_OWN_FOLDER = Path(__file__).parent


def caller() -> Loc:
    """The source line of the nearest caller outside this folder."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return UNKNOWN
    return Loc(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _is_internal(file: str) -> bool:
    return Path(file).parent == _OWN_FOLDER or file.endswith("contextlib.py")
