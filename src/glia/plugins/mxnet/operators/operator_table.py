"""The table from operators of MXNet to HLO: who lowers which, and what they are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from glia.base.dtype import F32, DType
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import Computation, HloValue
from glia.plugins.hlo_writer import HloWriter, Number
from glia.plugins.mxnet.errors import BadSymbolInputs
from glia.plugins.mxnet.operators.attributes import Attributes

Lowering = Callable[..., HloValue | Sequence[HloValue]]
_Function = TypeVar("_Function", bound=Lowering)

TABLE: dict[str, Lowering] = {}
"""The lowering of each operator by its name, complete once the families are imported.

It takes an `NodeCall` and the operands; an optional one that a node lacks keeps its default.
"""


def lowers(*operators: str) -> Callable[[_Function], _Function]:
    """Enter a function as the lowering of operators."""

    def register(function: _Function) -> _Function:
        for operator in operators:
            assert operator not in TABLE, operator
            TABLE[operator] = function
        return function

    return register


class NodeCall(HloWriter):
    """One node: its attributes, and the writer of what computes it."""

    def __init__(self, computation: Computation, attributes: Attributes) -> None:
        super().__init__(computation)
        self.attributes = attributes

    def misfit(self, problem: str) -> BadSymbolInputs:
        """The error for operands that do not fit the operator."""
        node = f"{self.attributes.operator} {self.attributes.name}"
        return BadSymbolInputs(reason=f"{node} {problem}")

    def require(self, fits: bool, problem: str) -> None:
        """Raise BadSymbolInputs unless operands fit the operator."""
        if not fits:
            raise self.misfit(problem)

    def dimension(self, dimension: int, rank: int, attribute: str = "axis") -> int:
        """A dimension counted from the front; BadAttribute where it is not there."""
        if not -rank <= dimension < rank:
            raise self.attributes.refusal(attribute, f"is no dimension of {rank}")
        return dimension % rank

    def wide(self, x: HloValue) -> HloValue:
        """x in the dtype in which it is computed with: float32 for narrower floats."""
        return self.convert(x, wide_dtype(x.dtype))

    def vector_along(self, x: HloValue, like: HloValue, dimension: int) -> HloValue:
        """A vector along a dimension of another tensor, in its dtype."""
        extent = like.shape[dimension]
        self.require(x.shape == (extent,), f"takes {extent} values, not {list(x.shape)}")
        return self.broadcast(self.convert(x, like.dtype), like.shape, [dimension])

    def repeated_over(self, x: HloValue, like: HloValue, reduced: Sequence[int]) -> HloValue:
        """A reduction's result repeated over the dimensions that it lacks."""
        return self.broadcast(x, like.shape, [d for d in range(like.rank) if d not in reduced])

    def mean(self, x: HloValue, dimensions: Sequence[int]) -> HloValue:
        """The means along dimensions, which the result lacks."""
        total = self.sum(x, dimensions)
        return self.scaled(total, total.type.elements / max(1, x.type.elements))

    def scaled(self, x: HloValue, factor: Number) -> HloValue:
        """x times one number."""
        return self.multiply(x, self.filled_like(factor, x))

    def plus(self, x: HloValue, term: Number) -> HloValue:
        """x plus one number."""
        return self.add(x, self.filled_like(term, x))

    def number(self, value: float, kind: TensorType) -> HloValue:
        """One number everywhere; a whole one for an integer dtype."""
        return self.splat(value if kind.dtype.is_float else int(value), kind)


def wide_dtype(dtype: DType) -> DType:
    """The dtype in which another is computed with: float32 for narrower floats."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype
