"""Every operation of the graph level: each declares operands, attributes, type and meaning."""

from __future__ import annotations

from glia.graph.ops.collective import COLLECTIVE_KINDS, ID_KINDS, Collective
from glia.graph.ops.contract import Convolution, Dot, with_factors
from glia.graph.ops.control import Conditional, CustomCall, Get, While, results_of
from glia.graph.ops.indexed import DynamicSlice, DynamicUpdateSlice, Gather, Scatter
from glia.graph.ops.numeric import Cholesky, Fft, RngBits, RngUniform, TriangularSolve
from glia.graph.ops.pointwise import Bitcast, Constant, Convert, Iota, Map, ReducePrecision
from glia.graph.ops.reduce import (
    Places,
    Reduce,
    ReduceWindow,
    Scan,
    SelectAndScatter,
    Sort,
    places_of_greatest,
)
from glia.graph.ops.scalar_regions import (
    MONOIDS,
    combiner,
    identity,
    monoid,
    returned_parameter,
    scalar_graph,
)
from glia.graph.ops.shape import Broadcast, Concatenate, Pad, Reshape, Reverse, Slice, Transpose

__all__ = [
    "COLLECTIVE_KINDS",
    "ID_KINDS",
    "MONOIDS",
    "Bitcast",
    "Broadcast",
    "Cholesky",
    "Collective",
    "Concatenate",
    "Conditional",
    "Constant",
    "Convert",
    "Convolution",
    "CustomCall",
    "Dot",
    "DynamicSlice",
    "DynamicUpdateSlice",
    "Fft",
    "Gather",
    "Get",
    "Iota",
    "Map",
    "Pad",
    "Places",
    "Reduce",
    "ReducePrecision",
    "ReduceWindow",
    "Reshape",
    "Reverse",
    "RngBits",
    "RngUniform",
    "Scan",
    "Scatter",
    "SelectAndScatter",
    "Slice",
    "Sort",
    "Transpose",
    "TriangularSolve",
    "While",
    "combiner",
    "identity",
    "monoid",
    "places_of_greatest",
    "results_of",
    "returned_parameter",
    "scalar_graph",
    "with_factors",
]
