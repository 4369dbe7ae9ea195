"""Every operation of the graph level: each declares operands, attributes, type and meaning."""

from __future__ import annotations

from glia.graph.bodies import (
    MONOIDS,
    combiner,
    identity,
    monoid,
    returned_parameter,
    scalar_graph,
)
from glia.graph.ops_collective import COLLECTIVE_KINDS, Collective
from glia.graph.ops_contract import Convolution, Dot
from glia.graph.ops_control import Conditional, CustomCall, Get, While, results_of
from glia.graph.ops_element import Bitcast, Constant, Convert, Iota, Map, ReducePrecision
from glia.graph.ops_index import DynamicSlice, DynamicUpdateSlice, Gather, Scatter
from glia.graph.ops_numeric import Cholesky, Fft, RngBits, RngUniform, TriangularSolve
from glia.graph.ops_reduce import Reduce, ReduceWindow, SelectAndScatter, Sort
from glia.graph.ops_shape import Broadcast, Concatenate, Pad, Reshape, Reverse, Slice, Transpose

__all__ = [
    "COLLECTIVE_KINDS",
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
    "Reduce",
    "ReducePrecision",
    "ReduceWindow",
    "Reshape",
    "Reverse",
    "RngBits",
    "RngUniform",
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
    "results_of",
    "returned_parameter",
    "scalar_graph",
]
