"""The table from ATen operators to HLO: who lowers which, and what lowerings are written with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from glia.base.dtype import F32, PRED, DType
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import Computation, HloValue
from glia.plugins.hlo_writer import HloWriter, Number
from glia.plugins.torch.tensors import dtype_of, torch_dtype

Scalar = HloValue | Number
Lowering = Callable[..., Any]
_Function = TypeVar("_Function", bound=Lowering)

TABLE: dict[Any, Lowering] = {}
"""The lowering of each operator overload, complete once the families are imported.

It takes an `OperatorCall` and the operator's arguments, tensors as `HloValue`, and returns as many
values as that has results.
"""


OF_PACKAGES: dict[str, Lowering] = {}
"""The lowering of operators that exist once another package is loaded, by their names."""


def lowering_of(operator: Any) -> Lowering | None:
    """The lowering of an operator overload, if there is one."""
    return TABLE.get(operator) or OF_PACKAGES.get(str(operator))


def lowers(*operators: Any) -> Callable[[_Function], _Function]:
    """Enter a function as the lowering of operator overloads."""
    return entered(TABLE, operators)


def lowers_of_package(*names: str) -> Callable[[_Function], _Function]:
    """Enter a function as the lowering of operators of another package."""
    return entered(OF_PACKAGES, names)


def entered(
    table: dict[Any, Lowering], operators: Sequence[Any]
) -> Callable[[_Function], _Function]:
    """What enters a function in a table for operator overloads, each of which has one at most."""

    def register(function: _Function) -> _Function:
        for operator in operators:
            assert operator not in table, operator
            table[operator] = function
        return function

    return register


class OperatorCall(HloWriter):
    """One call of an operator: its results' types, and the writer of what computes them.

    `given` are PyTorch's descriptions of its arguments; `random` is where it takes random bits.
    """

    def __init__(
        self,
        computation: Computation,
        results: Sequence[TensorType],
        given: Sequence[Any],
        random: Any,
    ) -> None:
        super().__init__(computation)
        self.results = tuple(results)
        self.given = given
        self.random = random

    @property
    def result(self) -> TensorType:
        """The type of the only or first result."""
        return self.results[0]

    def operand(self, x: Scalar, dtype: DType, shape: Sequence[int] | None = None) -> HloValue:
        """A tensor or number as a tensor of a dtype and shape, by default the result's shape."""
        shape = tuple(self.result.shape if shape is None else shape)
        if isinstance(x, HloValue):
            return self.expand(self.convert(x, dtype), shape)
        if dtype is PRED:
            x = bool(x)
        return self.splat(x, TensorType(dtype, shape))

    def wide(self, x: HloValue) -> HloValue:
        """x in the dtype in which PyTorch computes with it: float32 for narrower floats."""
        return self.convert(x, wide_dtype(x.dtype))

    def finished(self, x: HloValue) -> HloValue:
        """x as the first result: in its dtype and shape."""
        return self.reshape(self.convert(x, self.result.dtype), self.result.shape)

    def sibling(self, *results: TensorType) -> OperatorCall:
        """The same call with other results, to lower a part of it."""
        return OperatorCall(self.computation, results, self.given, self.random)


def wide_dtype(dtype: DType) -> DType:
    """The dtype in which PyTorch computes with another: float32 for narrower floats."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


@functools.cache
def _sample(dtype: torch.dtype, has_dimensions: bool) -> torch.Tensor:
    return torch.empty((1,) if has_dimensions else (), dtype=dtype, device="meta")


def promoted(*operands: Scalar) -> DType:
    """The dtype that PyTorch's promotion gives tensors and numbers together."""
    stand_ins = [
        _sample(torch_dtype(x.dtype), x.rank > 0) if isinstance(x, HloValue) else x
        for x in operands
    ]
    first, *others = stand_ins
    for other in others:
        dtype = torch.result_type(first, other)
        ranked = any(isinstance(each, torch.Tensor) and each.dim() for each in (first, other))
        first = _sample(dtype, ranked)
    return dtype_of(first.dtype if isinstance(first, torch.Tensor) else torch.tensor(first).dtype)


def normalized(dimension: int, rank: int) -> int:
    """A dimension counted from the front; scalars have one."""
    return dimension % max(rank, 1)


def listed(dimensions: Sequence[int] | int | None, rank: int) -> list[int]:
    """Dimensions counted from the front; all where none is named."""
    if dimensions is None:
        return list(range(rank))
    if isinstance(dimensions, int):
        dimensions = [dimensions]
    return [normalized(d, rank) for d in dimensions if rank] or list(range(rank))


def per_dimension(
    values: Sequence[int] | int, count: int, default: Sequence[int] = ()
) -> tuple[int, ...]:
    """Values for so many dimensions: one stands for all, none for the default."""
    given = (values,) if isinstance(values, int) else tuple(values)
    if not given:
        return tuple(default)
    return given * count if len(given) == 1 else given
