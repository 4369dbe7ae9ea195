"""Collectives of one participant: each result is the operand itself."""

from __future__ import annotations

from glia.graph.ir import Graph, Node
from glia.graph.ops import Collective
from glia.graph.rules.constructors import constant, splat_like
from glia.graph.rules.driver import apply_rules, results_as_node, rule, rules_of
from glia.options import CompileOptions


def expand_collective(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without collectives that have one participant."""
    return apply_rules(graph, RULES)


@rule
def collective_of_one_participant(op: Collective) -> Node | None:
    """collective(x) among one = x"""
    if max((len(group) for group in op.replica_groups), default=1) > 1:
        return None
    if op.kind in ("partition-id", "replica-id"):
        return constant(0, op.dtype)
    if any(pair != (0, 0) for pair in op.pairs):
        return None
    if op.kind == "collective-permute" and not op.pairs:
        return results_as_node(splat_like(0, arg) for arg in op.args)
    return results_as_node(op.args) if _is_identity(op) else None


def _is_identity(op: Collective) -> bool:
    return results_as_node(op.args).type == op.type


RULES = rules_of(globals())
