"""Algebra: equations between elementwise functions, reductions and contractions that keep values.

Every equation holds for NaN, infinities and signed zeros as well, up to the order in which a
reduction adds. The rules on integers hold modulo the width.
"""

from __future__ import annotations

from glia.graph.ir import Graph
from glia.graph.passes.canonicalize import RULES as CANONICAL
from glia.graph.rules import algebra, dot, reduction
from glia.graph.rules.driver import apply_rules
from glia.options import CompileOptions

RULES = (*algebra.RULES, *reduction.RULES, *dot.RULES)


def simplify(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with every algebraic and canonical rule applied until none fires."""
    return apply_rules(graph, (*RULES, *CANONICAL))
