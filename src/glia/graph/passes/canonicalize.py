"""Bring equal programs to one form: movement merged, known control flow and indices resolved."""

from __future__ import annotations

from glia.graph.ir import Graph
from glia.graph.rules import control_flow, movement
from glia.graph.rules.driver import apply_rules
from glia.options import CompileOptions

RULES = (*control_flow.RULES, *movement.RULES)


def canonicalize(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with every rule of `movement` and `control_flow` applied until none fires."""
    return apply_rules(graph, RULES)
