"""Texts of programs as golden files hold them."""

from __future__ import annotations

import re

_LOCATION = re.compile(r'loc=\("[^"]*", \d+, ("[^"]*")\)')


def without_lines(text: str) -> str:
    """The text with only the names of source locations: files and lines are not code generation."""
    return _LOCATION.sub(r"loc=\1", text)
