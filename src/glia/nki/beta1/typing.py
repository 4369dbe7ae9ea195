"""`neuronxcc.nki.typing`: annotations of parameters, as `nt`, and run-time scalars.

`x: nt.tensor[128, 512]` is checked against the array that is passed; `nt.mutable_tensor` lets the
kernel write the parameter, which it must return.
"""

# The names are those that kernels write.
# ruff: noqa: N801

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from glia.nki.beta1.tensor import Tensor
from glia.nki.typing import Annotation, immutable, mutable, mutable_tensor, tensor


class scalar(Annotation):
    """The one element of a tile as a number, for `while` loops of the form do-while."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def _now(self) -> Any:
        return self.value.contents().item() if isinstance(self.value, Tensor) else self.value

    def __bool__(self) -> bool:
        return bool(self._now())

    def __int__(self) -> int:
        return int(self._now())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._now())


def _comparison(compare: Callable[[Any, Any], Any]) -> Any:
    def method(self: scalar, other: Any) -> scalar:
        return scalar(compare(self._now(), other._now() if isinstance(other, scalar) else other))

    return method


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul"):
    setattr(scalar, f"__{_name}__", _comparison(getattr(operator, _name)))

__all__ = ["immutable", "mutable", "mutable_tensor", "scalar", "tensor"]
