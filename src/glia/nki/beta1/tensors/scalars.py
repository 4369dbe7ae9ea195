"""`nt.scalar`: a number of Python or of a one-element tile, and arithmetic on the device."""

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
    """The condition of a do-while loop: a Python number, or the element of a one-element tile.

    A tile's element is copied when the scalar is made. It compares, adds, subtracts and multiplies
    on the device; any other use in Python is an error, since only the running program knows it.
    """

    value: Any  # a one-element Tensor, or a number of Python

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
    def from_tile(cls, tile: Tensor) -> scalar:
        """The scalar of a one-element tile that nothing else writes; the tile is not copied."""
        made = cls(0)
        made.value = tile
        return made

    @property
    def is_known(self) -> bool:
        """Whether the value is known in Python."""
        return not isinstance(self.value, Tensor)

    def to_tile(self) -> Tensor:
        """The value in a one-element tile."""
        if isinstance(self.value, Tensor):
            return self.value
        dtype = np.float32 if isinstance(self.value, float | np.floating) else np.int32
        tile: Tensor = FUNCTIONS["full"]((1, 1), self.value, dtype)
        return tile

    def truth(self) -> Tensor:
        """A one-element int32 tile, nonzero where the value is."""
        number = self.to_tile()
        if number.dtype_name == "int32":
            return number
        truth: Tensor = FUNCTIONS["not_equal"](number, 0, dtype=np.int32)
        return truth

    def __bool__(self) -> bool:
        user = sys._getframe(1)
        statement = while_statement(user.f_code, user.f_lasti) if is_in_kernel() else None
        if statement is None:
            return bool(self._python_value())
        return condition_holds(self, statement, user)

    def _python_value(self) -> Any:
        if not self.is_known:
            raise DynamicControlFlow(loc=caller())
        return self.value

    def __int__(self) -> int:
        return int(self._python_value())

    def __index__(self) -> int:
        return operator.index(self._python_value())

    def __float__(self) -> float:
        return float(self._python_value())

    def __abs__(self) -> NoReturn:
        raise UnsupportedHere(what="abs() of an nt.scalar", why="compute on the tile", loc=caller())

    __hash__ = object.__hash__


def _binary_method(name: str, compute: Callable[[Any, Any], Any]) -> Any:
    """A method that applies `compute` when both values are known, else the nl function `name`."""

    def method(self: scalar, other: Any) -> scalar:
        if not isinstance(other, scalar):
            other = scalar(other)
        if self.is_known and other.is_known:
            return scalar(compute(self.value, other.value))
        x = self.to_tile() if not self.is_known else self.value
        y = other.to_tile() if not other.is_known else other.value
        dtype = np.int32 if name in _COMPARISONS else None
        return scalar.from_tile(FUNCTIONS[name](x, y, dtype=dtype))

    return method


_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
_SHORT = ("lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC = {"add": "add", "sub": "subtract", "mul": "multiply"}
for _short, _long in (*zip(_SHORT, _COMPARISONS, strict=True), *_ARITHMETIC.items()):
    setattr(scalar, f"__{_short}__", _binary_method(_long, getattr(operator, _short)))
for _short in ("add", "mul"):
    setattr(scalar, f"__r{_short}__", getattr(scalar, f"__{_short}__"))
