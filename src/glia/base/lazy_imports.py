"""Package attributes that are imported on first access.

Part of the start of every command: it imports what the interpreter has loaded already.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_attributes(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `homes` maps each name to its defining module."""
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        __import__(home)
        value = namespace[name] = getattr(sys.modules[home], name)
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return get, names
