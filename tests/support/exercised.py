"""What the suite has exercised while it ran: errors made, instructions and functions computed.

Functions are watched by wrappers that take themselves away at the first call, so that watching
costs nothing after it. A class of errors stays watched: making one is rare. Each process of a
parallel run watches for itself; the one that started them adds up what they saw.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from glia.base.error_catalogue import declared_errors
from glia.base.errors import CompileError
from glia.graph.ir import OPS
from glia.graph.scalar import FUNCTIONS
from glia.isa.kit import INSTRUCTIONS

EXERCISED: set[str] = set()  # "error GLIA301", "instruction X", "operation X", "function X"
IS_WATCHING = [False]

OTHERWISE_REACHED = {
    "operation parameter": "an input has no meaning of its own",
}


def watch() -> None:
    """Watch everything from here on; done once, before the first test of a whole run."""
    IS_WATCHING[0] = True
    _watch_errors()
    for label, owner in _methods().items():
        _watch_method(owner, label)
    for name, function in FUNCTIONS.items():
        _watch_function(function, f"function {name}")


def missing() -> list[str]:
    """What a run of the whole suite has to exercise and did not."""
    wanted = {f"error {code}" for code, each in declared_errors().items() if _is_ours(each)}
    wanted |= _methods().keys() | {f"function {name}" for name in FUNCTIONS}
    return sorted(wanted - EXERCISED - OTHERWISE_REACHED.keys())


def _is_ours(error: type[CompileError]) -> bool:
    """Whether this suite raises an error: those of frameworks are raised in suites of their own."""
    return not error.__module__.startswith("glia.plugins.")


def _methods() -> dict[str, type]:
    """The classes with a meaning of their own, by label."""
    instructions = {f"instruction {name}": i for name, i in INSTRUCTIONS.items()}
    operations = {f"operation {name}": o for name, o in OPS.items()}
    return {
        n: owner for n, owner in (instructions | operations).items() if "compute" in vars(owner)
    }


def _watch_errors() -> None:
    make = CompileError.__init__

    @functools.wraps(make)
    def recorded(self: CompileError, **facts: Any) -> None:
        EXERCISED.add(f"error {type(self).code}")
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
        EXERCISED.add(label)
        restore()
        return plain(*args, **kwargs)

    return once
