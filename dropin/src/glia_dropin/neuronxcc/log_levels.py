"""The level of Python's logging that importing AWS's package adds."""

from __future__ import annotations

import logging

OFF = logging.CRITICAL + 10

logging.OFF = OFF  # type: ignore[attr-defined]  # callers turn logging off by it
