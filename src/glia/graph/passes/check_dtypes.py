"""Rejection of element types that no later pass converts to one the engines have."""

from __future__ import annotations

from glia.base.dtype import C128, F8E4M3B11FNUZ, F8E4M3FNUZ, F8E5M2FNUZ, F64
from glia.base.loc import Loc
from glia.graph.ir import Graph, Node, Parameter
from glia.graph.passes.errors import UnsupportedDtype, UnsupportedFp8
from glia.graph.rules.regions import all_nodes, tensor_types
from glia.options import CompileOptions

_REFUSED_BY_THE_PRODUCT = (F8E4M3FNUZ, F8E4M3B11FNUZ, F8E5M2FNUZ)
_CURE = (
    "compile with --f64 as-f32, which computes in float32, or give float32: in PyTorch"
    " .float() of the model and its inputs, in JAX jax_enable_x64 off"
)


def check_dtypes(graph: Graph, options: CompileOptions) -> Graph:
    """The graph itself.

    Raises UnsupportedDtype for 64-bit floats, unless `--f64 as-f32` narrows them, and with
    `--product-limits` UnsupportedFp8 for the formats that the product refuses.
    """
    refused = () if options.f64 == "as-f32" else (F64, C128)
    foreign = _REFUSED_BY_THE_PRODUCT if options.product_limits else ()
    for node in all_nodes(graph):
        name = f"parameter {node.name}".rstrip() if isinstance(node, Parameter) else node.opcode
        for kind in tensor_types(node.type):
            dtype = kind.dtype
            if dtype in refused:
                loc = _line_of(node, graph)
                raise UnsupportedDtype(opcode=name, type=kind, dtype=dtype, cure=_CURE, loc=loc)
            if dtype in foreign:
                loc = _line_of(node, graph)
                raise UnsupportedFp8(opcode=name, type=kind, dtype=dtype, loc=loc)
    return graph


def _line_of(node: Node, graph: Graph) -> Loc:
    """The line of a node, or of the first that takes it where it has none, as parameters do."""
    takers = (each for each in all_nodes(graph) if any(o is node for o in each.operands))
    return next((each.loc for each in (node, *takers) if str(each.loc)), node.loc)
