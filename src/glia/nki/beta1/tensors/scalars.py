"""`nt.scalar`: one element of a tile as a number, and what is computed of it on the device."""

# The name is the one that kernels write.
# ruff: noqa: N801

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from glia.nki.beta1.errors import DynamicControlFlow, UnsupportedHere
from glia.nki.beta1.run.frame import is_in_kernel
from glia.nki.beta1.run.while_loop import condition_holds
from glia.nki.beta1.tensors.tensor import FUNCTIONS, Tensor
from glia.nki.session.session import caller
from glia.nki.tensors.registers import while_statement
from glia.nki.typing import Annotation


class scalar(Annotation):
    """A number for the condition of a `while` of the form do-while: of Python, or of a tile.

    That of a tile is what its one element holds when the scalar is made. It compares, adds,
    subtracts and multiplies; no other use of it in Python is possible, since only the running
    program knows it.
    """

    def __init__(self, value: Any) -> None:
        if isinstance(value, scalar):
            value = value.value
        if isinstance(value, Tensor):
            if value.size != 1:
                why = "index one element of it"
                raise UnsupportedHere(
                    what=f"nt.scalar of shape {value.shape}", why=why, loc=caller()
                )
            value = FUNCTIONS["copy"](value)
        elif not isinstance(value, bool | int | float | np.generic):
            what = f"nt.scalar of a {type(value).__name__}"
            raise UnsupportedHere(what=what, why="it is of a tile or a number", loc=caller())
        self.value = value

    @classmethod
    def of_tile(cls, tile: Tensor) -> scalar:
        """The number that a tile of one element holds, which nothing else writes."""
        made = cls(0)
        made.value = tile
        return made

    @property
    def is_known(self) -> bool:
        """Whether Python knows the number."""
        return not isinstance(self.value, Tensor)

    def on_device(self) -> Tensor:
        """The number in a tile of one element."""
        if isinstance(self.value, Tensor):
            return self.value
        dtype = np.float32 if isinstance(self.value, float | np.floating) else np.int32
        return FUNCTIONS["full"]((1, 1), self.value, dtype)

    def truth(self) -> Tensor:
        """An integer in a tile of one element that is not 0 where the number is not."""
        number = self.on_device()
        if number.name_of_dtype == "int32":
            return number
        return FUNCTIONS["not_equal"](number, 0, dtype=np.int32)

    def __bool__(self) -> bool:
        user = sys._getframe(1)
        statement = while_statement(user.f_code, user.f_lasti) if is_in_kernel() else None
        if statement is None:
            return bool(self._known())
        return condition_holds(self, statement, user)

    def _known(self) -> Any:
        if not self.is_known:
            raise DynamicControlFlow(loc=caller())
        return self.value

    def __int__(self) -> int:
        return int(self._known())

    def __index__(self) -> int:
        return operator.index(self._known())

    def __float__(self) -> float:
        return float(self._known())

    def __abs__(self) -> NoReturn:
        raise UnsupportedHere(what="abs() of an nt.scalar", why="compute on the tile", loc=caller())

    __hash__ = object.__hash__


def _method(name: str, compute: Callable[[Any, Any], Any]) -> Any:
    """A method that computes a function of nl of two numbers, of Python where it knows both."""

    def method(self: scalar, other: Any) -> scalar:
        if not isinstance(other, scalar):
            other = scalar(other)
        if self.is_known and other.is_known:
            return scalar(compute(self.value, other.value))
        x = self.on_device() if not self.is_known else self.value
        y = other.on_device() if not other.is_known else other.value
        dtype = np.int32 if name in _COMPARISONS else None
        return scalar.of_tile(FUNCTIONS[name](x, y, dtype=dtype))

    return method


_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
_SHORT = ("lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply"}
for _short, _long in (*zip(_SHORT, _COMPARISONS, strict=True), *_ARITHMETIC.items()):
    setattr(scalar, f"__{_short}__", _method(_long, getattr(operator, _short)))
for _short in ("add", "mul"):
    setattr(scalar, f"__r{_short}__", getattr(scalar, f"__{_short}__"))
