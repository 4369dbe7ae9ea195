"""Operators by name: the values that `op=` of an nki.isa function takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import ALU_OPS

Function = TypeVar("Function", bound=Callable[..., Any])
_NAMES: dict[Any, str] = {}
_NUMPY = {
    "max": "maximum", "amax": "maximum", "min": "minimum", "amin": "minimum", "sum": "add",
    "prod": "multiply", "true_divide": "divide", "float_power": "power", "fabs": "abs",
    "absolute": "abs", "remainder": "mod", "bitwise_not": "invert", "all": "logical_and",
}  # fmt: skip


class OperatorToken:
    """An operator without a function of nl, such as nl.bypass."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        _NAMES[self] = name

    def __repr__(self) -> str:
        return f"nl.{self.__name__}"


# A function of nl such as nl.add, an operator's name, or a token such as nl.bypass.
Op = Callable[..., Any] | str | OperatorToken


def names_operator(name: str) -> Callable[[Function], Function]:
    """Decorate a function of nl to stand for an operator of the engines as well."""

    def decorate(function: Function) -> Function:
        _NAMES[function] = name
        return function

    return decorate


def operator_name(value: Any) -> str | None:
    """The name of the operator that a function of nl, a NumPy function or a name stands for."""
    if isinstance(value, str):
        return value if value in ALU_OPS or value in ACTIVATIONS else None
    try:
        known = _NAMES.get(value)
    except TypeError:
        return None
    if known is None and callable(value) and _is_from_numpy(value):
        name = value.__name__
        return operator_name(_NUMPY.get(name, name))
    return known


def _is_from_numpy(value: Any) -> bool:
    return isinstance(value, np.ufunc) or getattr(value, "__module__", "") == "numpy"
