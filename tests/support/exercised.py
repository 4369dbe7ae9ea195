"""What the suite has exercised while it ran: errors made, instructions and functions computed.

Functions are watched by wrappers that take themselves away at the first call, so that watching
costs nothing after it. A class of errors stays watched: making one is rare.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from glia.base.errors import CompileError
from glia.graph.ir import OPS
from glia.graph.scalar import FUNCTIONS
from glia.isa.kit import INSTRUCTIONS

ERRORS_MADE: set[str] = set()
COMPUTED: set[str] = set()  # "instruction X", "operation X", "function X"

IS_WATCHING = [False]


def watch() -> None:
    """Watch everything from here on; done once, before the first test of a whole run."""
    IS_WATCHING[0] = True
    _watch_errors()
    for name, instruction in INSTRUCTIONS.items():
        if "compute" in vars(instruction):
            _watch_method(instruction, f"instruction {name}")
    for name, operation in OPS.items():
        if "compute" in vars(operation):
            _watch_method(operation, f"operation {name}")
    for name, function in FUNCTIONS.items():
        _watch_function(function, f"function {name}")


def _watch_errors() -> None:
    make = CompileError.__init__

    @functools.wraps(make)
    def recorded(self: CompileError, **facts: Any) -> None:
        ERRORS_MADE.add(type(self).code)
        make(self, **facts)

    CompileError.__init__ = recorded  # type: ignore[method-assign]


def _watch_method(owner: type, label: str) -> None:
    declared = vars(owner)["compute"]
    is_static = isinstance(declared, staticmethod)
    plain = declared.__func__ if is_static else declared

    def restore() -> None:
        setattr(owner, "compute", declared)  # noqa: B010

    once = _once(plain, label, restore)
    setattr(owner, "compute", staticmethod(once) if is_static else once)  # noqa: B010


def _watch_function(owner: Any, label: str) -> None:
    plain = owner.compute

    def restore() -> None:
        object.__setattr__(owner, "compute", plain)

    object.__setattr__(owner, "compute", _once(plain, label, restore))


def _once(plain: Callable[..., Any], label: str, restore: Callable[[], None]) -> Any:
    @functools.wraps(plain)
    def once(*args: Any, **kwargs: Any) -> Any:
        COMPUTED.add(label)
        restore()
        return plain(*args, **kwargs)

    return once
