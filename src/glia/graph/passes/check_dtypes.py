"""Rejection of element types that no later pass converts to one the engines have."""

from __future__ import annotations

from glia.base.dtype import C128, F8E4M3B11FNUZ, F8E4M3FNUZ, F8E5M2FNUZ, F64, DType
from glia.base.errors import CompileError
from glia.graph.ir import Graph
from glia.graph.passes.errors import UnsupportedDtype, UnsupportedFp8
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions

_REFUSALS: dict[DType, type[CompileError]] = {
    **dict.fromkeys((F64, C128), UnsupportedDtype),
    **dict.fromkeys((F8E4M3FNUZ, F8E4M3B11FNUZ, F8E5M2FNUZ), UnsupportedFp8),
}


def check_dtypes(graph: Graph, options: CompileOptions) -> Graph:
    """The graph itself; raises UnsupportedDtype for f64 and UnsupportedFp8 for foreign formats."""
    for node in all_nodes(graph):
        for kind in tensor_types(node.type):
            refusal = _REFUSALS.get(kind.dtype)
            if refusal is not None:
                raise refusal(opcode=node.opcode, type=kind, dtype=kind.dtype, loc=node.loc)
    return graph
