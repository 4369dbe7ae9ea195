"""Recurrences: deferred values that get a nest of their own, with a scan as its body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glia.base.affine import Affine
from glia.base.dtype import F32
from glia.graph import ops
from glia.tile.build.nest import Index, NestBuilder, Split
from glia.tile.build.read_cost import read_cost
from glia.tile.build.values import DeferredValue
from glia.tile.ir import Apply, Expr, Literal, Scan

if TYPE_CHECKING:
    from glia.tile.build.block import NestBlock


class ScanValue(DeferredValue):
    """The states of a recurrence along a dimension."""

    node: ops.Scan
    is_work = True
    needs_buffer = True

    def __init__(
        self, block: NestBlock, node: ops.Scan, factor: DeferredValue, x: DeferredValue
    ) -> None:
        super().__init__(block, node)
        self.factor, self.x = factor, x
        for operand in (factor, x):
            if read_cost((operand,)).needs_buffer or operand.pending_reduction:
                operand.materialise_work()
            if not self._keeps_axis(operand):
                operand.materialise()

    def _keeps_axis(self, operand: DeferredValue) -> bool:
        """Whether an element is affine in the position along the dimension, which is not split."""
        nest = NestBuilder()
        while True:
            try:
                index = tuple(nest.axis(f"i{d}", n) for d, n in enumerate(self.shape))
                operand.at(nest, index)
            except Split as request:
                nest.split(request)
            else:
                return len(index[self.node.dimension].terms) <= 1

    def _is_in_order(self, nest: NestBuilder, index: Index) -> bool:
        """Whether the nest is a plain one that goes through the dimension from first to last."""
        along, extent = index[self.node.dimension], self.shape[self.node.dimension]
        if nest.owner is not None or not nest.enumerates(index, self.shape):
            return False
        axis = along.terms[0][0] if along.terms else ""
        return extent == 1 or (along == Affine.of(axis) and nest.extents[axis] == extent)

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        if not self._is_in_order(nest, index):
            self.materialise()
            return self.at(nest, index)
        factor, term = (_widened(each.at(nest, index)) for each in (self.factor, self.x))
        along = index[self.node.dimension]
        if not along.terms:
            return self.x.at(nest, index)
        result: Expr = Scan(f"scan_{self.node.function}", (factor, term), F32, along.terms[0][0])
        return result if self.dtype is F32 else Apply("convert", (result,), self.dtype)


def _widened(expression: Expr) -> Expr:
    if expression.dtype is F32:
        return expression
    if isinstance(expression, Literal):
        return Literal(expression.value, F32)
    return Apply("convert", (expression,), F32)
