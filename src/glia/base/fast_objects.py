"""Values of which programs hold very many, made in less time than Python's own ways take.

Every trick with an object's memory stands here, as a function with a *plain twin*: the same
contract, written as one would write it if time did not matter. tests/law/test_fast_objects.py
checks that both agree; a house test keeps the tricks out of all other modules.
"""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

import numpy as np

Value = TypeVar("Value")
Fields = dict[str, Any]

_IS_GUARDED = sys.flags.dev_mode
_DEFAULTS: dict[type, Fields] = {}

# What these do, their plain twins say
allocate = object.__new__
fields_of: Callable[[object], Fields] = attrgetter("__dict__")
set_field: Callable[[object, str, Any], None] = object.__setattr__


def allocate_plainly(kind: type[Value]) -> Value:
    """An object of a class whose initialiser did not run; the caller sets every field.

    `allocate` is for classes that keep the `__new__` of object. In a loop that makes views it
    saves the call of an initialiser, half the time of making one.
    """
    return kind.__new__(kind)


def fields_of_plainly(made: object) -> Fields:
    """The fields of an object without slots, to be read, or filled while it is being made."""
    return vars(made)


def set_field_plainly(made: object, name: str, content: Any) -> None:
    """Set a field of an object that is being made, although its class refuses writes to fields."""
    field = getattr(type(made), name, None)
    if inspect.ismemberdescriptor(field):  # a slot
        field.__set__(made, content)
    else:
        vars(made)[name] = content


@dataclass_transform(frozen_default=True)
def frozen_value(kind: type[Value]) -> type[Value]:
    """A frozen dataclass with slots whose fields are guarded in development mode only.

    It is made in a fifth of the time of one that guards its fields: the guard stands before the
    initialiser too. Type checkers refuse writes to a field always, Python does so when it is
    started with -X dev. A class that defines `__hash__` keeps it.
    """
    return _slotted(kind, frozen=_IS_GUARDED)


@dataclass_transform(frozen_default=True)
def frozen_value_plainly(kind: type[Value]) -> type[Value]:
    """The plain twin of `frozen_value`: a frozen dataclass with slots."""
    return _slotted(kind, frozen=True)


def _slotted(kind: type[Value], *, frozen: bool) -> type[Value]:
    is_hashed = "__hash__" in vars(kind)
    return dataclass(slots=True, weakref_slot=True, frozen=frozen, unsafe_hash=not is_hashed)(kind)


def from_fields(kind: type[Value], fields: Fields) -> Value:
    """A value of a frozen dataclass without slots, of all its fields; it keeps the dictionary.

    The caller gives the dictionary away and computes derived fields itself. Half the time of the
    initialiser, which sets field by field.
    """
    made = allocate(kind)
    set_field(made, "__dict__", fields)
    return made


def from_fields_plainly(kind: type[Value], fields: Mapping[str, Any]) -> Value:
    """The plain twin of `from_fields`: the initialiser computes derived fields."""
    names = [each.name for each in dataclasses.fields(kind) if each.init]  # type: ignore[arg-type]
    return kind(**{name: fields[name] for name in names})


def with_defaults(kind: type[Value], fields: Mapping[str, Any]) -> Value:
    """A value of a frozen dataclass without slots; fields that are not given have their defaults.

    The class computes no field after its initialiser. All fields without a default have to be
    given.
    """
    defaults = _DEFAULTS.get(kind)
    if defaults is None:
        defaults = _DEFAULTS[kind] = _defaults(kind)
    made = allocate(kind)
    own = fields_of(made)
    own.update(defaults)
    own.update(fields)
    return made


def with_defaults_plainly(kind: type[Value], fields: Mapping[str, Any]) -> Value:
    """The plain twin of `with_defaults`."""
    return kind(**fields)


def _defaults(kind: type) -> Fields:
    """The default of every field, MISSING where there is none."""
    return {
        each.name: each.default
        if each.default_factory is dataclasses.MISSING
        else each.default_factory()
        for each in dataclasses.fields(kind)
    }


def identities(objects: np.ndarray) -> np.ndarray:
    """`id` of each object of a one-dimensional array of objects without gaps.

    It is the word that the array holds for the object: they are read as one block.
    """
    if not objects.size:
        return np.zeros(0, np.int64)
    words = (ctypes.c_int64 * objects.size).from_address(objects.ctypes.data)
    return np.frombuffer(memoryview(words), np.int64).copy()


def identities_plainly(objects: np.ndarray) -> np.ndarray:
    """The plain twin of `identities`."""
    return np.array([id(each) for each in objects], np.int64)
