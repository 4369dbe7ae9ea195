"""`NKIObject`, the base of what kernels group their data in, and `NkiInstruction`."""

from __future__ import annotations

import copy
import inspect
from typing import Any


class NKIObject:
    """A plain object of a kernel: its annotated attributes are its fields, given by keyword.

    A field without a value in the class must be given; `__post_init__` runs when there is one.
    """

    def __init__(self, **kwargs: Any) -> None:
        kind = type(self)
        fields = [name for base in reversed(kind.__mro__) for name in _annotated(base)]
        for name in dict.fromkeys(fields):
            if name in kwargs:
                setattr(self, name, kwargs.pop(name))
            elif hasattr(kind, name):
                setattr(self, name, copy.copy(getattr(kind, name)))
            else:
                raise TypeError(f"{kind.__name__}() misses its field {name!r}")
        if kwargs:
            raise TypeError(f"{kind.__name__}() has no field {next(iter(kwargs))!r}")
        finish = getattr(self, "__post_init__", None)
        if finish is not None:
            finish()


def _annotated(kind: type) -> list[str]:
    return list(inspect.get_annotations(kind))


class NkiInstruction(NKIObject):
    """What a call of an nki.isa function returns: a handle to order it behind others with."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Run after every one of `producers`, which program order gives already; returns self.

        TypeError for what is not an instruction.
        """
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise TypeError(f"depends_on takes instructions, not {type(producer).__name__}")
        return self
