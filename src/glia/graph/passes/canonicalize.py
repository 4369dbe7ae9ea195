"""Bring equal programs to one form: movement merged, known control flow and indices resolved."""

from __future__ import annotations

from glia.base.options import CompileOptions
from glia.graph.ir import Graph
from glia.graph.passes import movement, structure
from glia.graph.passes.rewrite import apply_rules

RULES = (*structure.RULES, *movement.RULES)


def canonicalize(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with every rule of `movement` and `structure` applied until none fires."""
    return apply_rules(graph, RULES)
