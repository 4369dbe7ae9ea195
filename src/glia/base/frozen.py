"""Values of frozen dataclasses without running their initialisers, where many are made."""

from __future__ import annotations

from typing import Any, TypeVar

Value = TypeVar("Value")
_new = object.__new__
_set = object.__setattr__


def made(kind: type[Value], fields: dict[str, Any]) -> Value:
    """The value of a frozen dataclass whose fields, all of them, are in a new dictionary.

    Half the time of the initialiser, which sets the fields one by one through object.__setattr__.
    """
    value = _new(kind)
    _set(value, "__dict__", fields)
    return value
