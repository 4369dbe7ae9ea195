"""How many examples a property is tried with: more at night."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

# A run with more examples than usual: GLIA_TEST_EXAMPLES=20 draws twenty times as many
FACTOR = int(os.environ.get("GLIA_TEST_EXAMPLES", "1"))


def with_examples(count: int, **rest: Any) -> settings:
    """The settings of a property: `count` examples, however long each takes."""
    return settings(max_examples=count * FACTOR, deadline=None, **rest)
