"""Elements of rows at computed places, and the places of the greatest: deferred values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from glia.base.affine import Affine
from glia.base.dtype import F32, S32
from glia.graph import ops
from glia.graph.rules.interval import Interval
from glia.graph.rules.ranges import range_of
from glia.tile.build.nest import Index, NestBuilder
from glia.tile.build.reduction import ReductionValue
from glia.tile.build.values import DeferredValue, plain_load
from glia.tile.ir import PLACES, Accumulator, Expr, Reduction
from glia.tile.row_search import PICKED_DTYPES, pick

if TYPE_CHECKING:
    from glia.tile.build.block import NestBlock

MOST_ROW_BYTES = 2**15  # that SBUF holds for the sake of some of its elements
BYTES_PER_PICK = 2048  # that come from HBM in about the time of one element from each of 128 rows


def picks_from_rows(node: ops.Gather) -> bool:
    """Whether a gather takes single elements from each row, at places inside of it, and many.

    Whole rows then come to SBUF. A place that may be outside is left to DMA, which reports it.
    """
    batch = tuple(range(len(node.x.shape) - 1))
    is_along_last = (node.start_index_map, node.collapsed_dims) == ((len(batch),),) * 2
    is_in_rows = (node.x_batch_dims, node.indices_batch_dims) == (batch, batch)
    if not is_along_last or not is_in_rows or node.offset_dims or node.dtype not in PICKED_DTYPES:
        return False
    if node.x.shape[-1] < 2:
        return False
    extent, row_bytes = node.x.shape[-1], node.x.shape[-1] * node.dtype.bytes
    count = math.prod(node.shape[len(batch) :])
    is_worth = row_bytes <= min(MOST_ROW_BYTES, BYTES_PER_PICK * count)
    if not is_worth or node.indices.dtype is not S32:
        return False
    found = range_of(node.indices)
    return found is not None and Interval(0, extent - 1).contains(found)


class PickValue(ReductionValue):
    """Elements of each row at places along the last dimension."""

    node: ops.Gather

    def __init__(
        self, block: NestBlock, node: ops.Gather, x: DeferredValue, places: DeferredValue
    ) -> None:
        super().__init__(block, node)
        places.materialise_work()
        self.x, self.places = x, places

    def _claim(self, nest: NestBuilder, index: Index) -> bool:
        if nest.owner is self:
            return index == nest.owner_index
        if nest.owner is not None or not nest.enumerates(index, self.shape):
            return False
        nest.owner, nest.owner_index = self, index
        batch = index[: len(self.x.shape) - 1]
        along = nest.axis("k", self.x.shape[-1])
        at = list(index)
        if self.node.index_vector_dim < len(self.places.shape):
            at.insert(self.node.index_vector_dim, Affine())
        place = plain_load(self.places, nest, tuple(at))
        row = plain_load(self.x, nest, (*batch, along))
        nest.body, nest.reduction = pick(row, place, along.terms[0][0])
        return True


class PlacesValue(DeferredValue):
    """The places of the greatest elements of each row; they get a nest of their own."""

    node: ops.Places
    needs_buffer = True
    is_work = True

    def __init__(self, block: NestBlock, node: ops.Places, x: DeferredValue) -> None:
        super().__init__(block, node)
        x.materialise()
        self.x = x

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        rank = index[-1].variables[0] if index[-1].terms else ""
        is_plain = index[-1] == Affine.of(rank) and nest.extents[rank] == self.shape[-1]
        if nest.owner is not None or not is_plain or not nest.enumerates(index, self.shape):
            self.materialise()
            return self.at(nest, index)
        along = nest.axis("k", self.x.shape[-1])
        nest.owner, nest.owner_index = self, index
        nest.body = plain_load(self.x, nest, (*index[:-1], along))
        assert nest.body.dtype is F32
        nest.reduction = Reduction((along.terms[0][0],), PLACES, S32, rank)
        return Accumulator(S32)
