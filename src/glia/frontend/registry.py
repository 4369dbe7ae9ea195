"""Every format a model can be given in, and `read_module`, which finds the one that fits.

A new front end is a file that declares a `Format`, and its line here.
"""

from __future__ import annotations

from glia.frontend import hlo, stablehlo
from glia.frontend.formats import Format
from glia.graph.ir import Graph

GRAPH = Format(
    "a graph", accepts=lambda module: isinstance(module, Graph), read=lambda graph: graph
)

# The first that accepts a module reads it; STABLEHLO precedes HLO_FILE, as text may be a path.
FORMATS: tuple[Format, ...] = (
    GRAPH,
    stablehlo.STABLEHLO,
    stablehlo.LOWERED,
    hlo.HLO_FILE,
    hlo.HLO_BYTES,
)


def read_module(module: object) -> Graph:
    """The graph of a model.

    `module` is serialized HLO (bytes), StableHLO (text or bytecode, with jaxlib), the path of a
    file of serialized HLO, a jax `Lowered`, or a graph. Raises the front ends' errors, and
    TypeError for anything else.
    """
    for each in FORMATS:
        if each.accepts(module):
            return each.read(module)
    given = type(module).__name__
    known = ", ".join(each.name for each in FORMATS)
    raise TypeError(f"cannot compile a {given}; give one of: {known}")
