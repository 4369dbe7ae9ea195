"""`NKIObject`, the base class of a kernel's own data classes, and `NkiInstruction`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any

from glia.nki.session.session import OrderEdge, caller, current


class _FieldsMeta(type):
    """Constructs objects by keyword, also of dataclasses, whose fields may be set later."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args or not dataclasses.is_dataclass(cls) or _takes_exactly(cls, kwargs):
            return super().__call__(*args, **kwargs)
        made = cls.__new__(cls)
        NKIObject.__init__(made, **kwargs)
        return made


def _takes_exactly(kind: type, kwargs: dict[str, Any]) -> bool:
    """Whether the initialiser of a dataclass accepts these keywords and needs no others."""
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    known = {p.name for p in parameters}
    needed = {p.name for p in parameters if p.default is inspect.Parameter.empty} - {"self"}
    return kwargs.keys() <= known and needed <= kwargs.keys()


class NKIObject(metaclass=_FieldsMeta):
    """A data class of a kernel: the attributes of the class are its fields, given by keyword.

    A field that is only annotated may be set later; a default is copied from the class.
    `__post_init__` runs if defined. TypeError for an unknown field.
    """

    def __init__(self, **kwargs: Any) -> None:
        kind = type(self)
        fields = [name for base in reversed(kind.__mro__) for name in _annotated_fields(base)]
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


def _annotated_fields(kind: type) -> list[str]:
    return list(inspect.get_annotations(kind))


class NkiInstruction(NKIObject):
    """The result of an nki.isa function: the handle of its instruction, for order edges.

    `names_engine` says whether the call left no choice of the engine.
    """

    def __init__(self, handle: Any, *, names_engine: bool = False) -> None:
        self.handle = handle
        self.names_engine = names_engine

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
