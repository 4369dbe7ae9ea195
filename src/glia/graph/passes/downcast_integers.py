"""Compute integer operations as the product does (`--implicit-integer-downcast`).

Contractions, scatters that add up and reductions among cores take float32, which holds integers up
to 2^24; powers take 32 bits. Values beyond that are lost, of which a warning tells.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from glia.base.dtype import F32, S32, S64, U32, U64, DType
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import (
    Collective,
    Convert,
    Convolution,
    Dot,
    Map,
    Scatter,
    monoid,
    with_factors,
)
from glia.graph.rules.constructors import convert, monoid_region
from glia.graph.rules.driver import map_regions
from glia.graph.rules.regions import operation_text
from glia.options import DOWNCASTS, CompileOptions

log = logging.getLogger(__name__)

_NARROW: Mapping[DType, DType] = {S64: S32, U64: U32}
_LEAST_BITS = 32  # of integers that float32 does not hold
_IN_FLOAT32 = "float32, exact up to 2^24"


def downcast_integers(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with the named operations on integers computed in fewer bits.

    A warning names the first operation of each kind.
    """
    asked = options.implicit_integer_downcast
    names = DOWNCASTS if asked == ("all",) else () if asked == ("none",) else asked
    return _Downcast(frozenset(names)).graph(graph) if names else graph


class _Downcast:
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._warned: set[str] = set()

    def graph(self, graph: Graph) -> Graph:
        """The graph and its regions, rewritten."""
        return graph.rewrite(self._change)

    def _change(self, node: Node) -> Node | None:
        rebuilt = map_regions(node, self.graph)
        name = _name_of(rebuilt)
        if name not in self._names:
            return rebuilt
        changed = _REWRITES[name](rebuilt)
        if changed is not rebuilt and name not in self._warned:
            self._warned.add(name)
            log.warning(
                "--implicit-integer-downcast: %s of %s is computed in %s, first in %s",
                name,
                node.dtype,
                "32 bits" if name == "pow" else _IN_FLOAT32,
                operation_text(node),
            )
        return changed


def _name_of(node: Node) -> str:
    """The name of an operation in the option; empty for others."""
    match node:
        case Dot() | Convolution():
            return "dot"
        case Scatter():
            return "scatter"
        case Collective(kind="all-reduce" | "reduce-scatter"):
            return node.kind.replace("-", "_")
        case Map(function="power"):
            return "pow"
    return ""


def _is_large(dtype: DType) -> bool:
    return dtype.is_integer and dtype.bits >= _LEAST_BITS


def _dot(node: Dot | Convolution) -> Node:
    a, b = node.operands
    if not _is_large(node.result_dtype) or a.dtype.is_float or b.dtype.is_float:
        return node
    product = with_factors(node, convert(a, F32), convert(b, F32), F32)
    return Convert(product, node.result_dtype, loc=node.loc)


def _scatter(node: Scatter) -> Node:
    kind = monoid(node.body)
    if kind is None or len(node.xs) > 1 or not _is_large(node.xs[0].dtype) or kind in _BITWISE:
        return node
    found = dataclasses.replace(
        node,
        xs=(convert(node.xs[0], F32),),
        updates=(convert(node.updates[0], F32),),
        body=monoid_region(kind, F32),
    )
    return Convert(found, node.xs[0].dtype, loc=node.loc)


def _collective(node: Collective) -> Node:
    (body,) = node.body
    kind = monoid(body)
    if kind is None or len(node.args) > 1 or not _is_large(node.args[0].dtype) or kind in _BITWISE:
        return node
    assert isinstance(node.result, TensorType)
    found = dataclasses.replace(
        node,
        args=(convert(node.args[0], F32),),
        result=TensorType(F32, node.result.shape),
        body=(monoid_region(kind, F32),),
    )
    return Convert(found, node.args[0].dtype, loc=node.loc)


def _power(node: Map) -> Node:
    narrow = _NARROW.get(node.dtype)
    if narrow is None:
        return node
    args = tuple(convert(arg, narrow) for arg in node.args)
    return Convert(Map("power", args, loc=node.loc), node.dtype, loc=node.loc)


_BITWISE = ("and", "or", "xor")
_REWRITES: Mapping[str, Callable[[Any], Node]] = {
    "dot": _dot,
    "scatter": _scatter,
    "all_reduce": _collective,
    "reduce_scatter": _collective,
    "pow": _power,
}
