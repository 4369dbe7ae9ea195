"""`NKIObject`, the base of what kernels group their data in, and `NkiInstruction`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any

from glia.nki.session.session import OrderEdge, caller, current


class _Fielded(type):
    """Makes objects by keyword, also of classes that a dataclass decorator gave an initialiser."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args or not dataclasses.is_dataclass(cls) or _fits(cls, kwargs):
            return super().__call__(*args, **kwargs)
        made = cls.__new__(cls)
        NKIObject.__init__(made, **kwargs)
        return made


def _fits(kind: type, kwargs: dict[str, Any]) -> bool:
    """Whether the initialiser of a dataclass takes exactly these keywords."""
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    known = {p.name for p in parameters}
    needed = {p.name for p in parameters if p.default is inspect.Parameter.empty} - {"self"}
    return kwargs.keys() <= known and needed <= kwargs.keys()


class NKIObject(metaclass=_Fielded):
    """A plain object of a kernel: the attributes of its class are its fields, given by keyword.

    A field that is annotated and has no value in the class may be set later; what has one is
    copied from there. `__post_init__` runs when there is one. TypeError for an unknown field.
    """

    def __init__(self, **kwargs: Any) -> None:
        kind = type(self)
        fields = [name for base in reversed(kind.__mro__) for name in _annotated(base)]
        for name in dict.fromkeys((*fields, *kwargs)):
            if name not in fields and not hasattr(kind, name):
                raise TypeError(f"{kind.__name__}() has no field {name!r}")
            if name in kwargs:
                setattr(self, name, kwargs[name])
            elif hasattr(kind, name):
                setattr(self, name, copy.copy(getattr(kind, name)))
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
        """Start when every one of `producers` is complete; returns self.

        TypeError for what is not an instruction.
        """
        orders = current("depends_on").orders
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise TypeError(f"depends_on takes instructions, not {type(producer).__name__}")
            orders.append(OrderEdge(self.handle, producer.handle, caller()))
        return self
