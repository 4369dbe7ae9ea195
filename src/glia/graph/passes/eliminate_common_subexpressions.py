"""Value numbering: nodes of one opcode with equal attributes and operands merge."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import numpy as np

from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import Constant
from glia.graph.rules.driver import map_regions
from glia.options import CompileOptions


def eliminate_common_subexpressions(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with equal nodes merged, regions included; constants are equal by content."""
    return _ValueNumbering().merge(graph)


class _ValueNumbering:
    def __init__(self) -> None:
        self._regions: dict[Graph, Hashable] = {}
        self._merged: dict[Graph, Graph] = {}

    def merge(self, graph: Graph) -> Graph:
        """Merge equal nodes of one graph and of its regions."""
        if graph not in self._merged:
            first: dict[Hashable, Node] = {}

            def change(node: Node) -> Node:
                node = map_regions(node, self.merge)
                if isinstance(node, Parameter) or not node.is_pure:
                    return node
                return first.setdefault(self._key(node, tuple(map(id, node.operands))), node)

            self._merged[graph] = graph.rewrite(change)
        return self._merged[graph]

    def _key(self, node: Node, operands: Hashable) -> Hashable:
        """The value number of a node; `operands` identifies its operands."""
        if isinstance(node, Constant):
            return content_key(np.asarray(node.value))
        attributes = tuple(getattr(node, name) for name in node.attribute_fields)
        regions = tuple(self._region_key(getattr(node, name)) for name in node.region_fields)
        counts = tuple(_operand_count(getattr(node, name)) for name in node.operand_fields)
        return node.opcode, attributes, operands, regions, counts

    def _region_key(self, region: Graph | tuple[Graph, ...]) -> Hashable:
        if not isinstance(region, Graph):
            return tuple(self._region_key(each) for each in region)
        if region not in self._regions:
            self._regions[region] = self._structure(region)
        return self._regions[region]

    def _structure(self, region: Graph) -> Hashable:
        """The structure of a region, with nodes numbered in order and names left out."""
        number = {node: position for position, node in enumerate(region.nodes)}
        lines: list[Hashable] = []
        for node in region.nodes:
            if isinstance(node, Parameter):
                lines.append((node.index, node.type))
            elif not node.is_pure:
                lines.append(id(node))
            else:
                lines.append(self._key(node, tuple(number[o] for o in node.operands)))
        return tuple(lines), tuple(number[result] for result in region.results)


def content_key(array: np.ndarray[Any, Any]) -> Hashable:
    """A hash of an array's dtype, shape and bytes."""
    digest = hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).tobytes()).digest()
    return "constant", str(array.dtype), array.shape, digest


def _operand_count(value: Node | tuple[Node, ...]) -> int:
    return 1 if isinstance(value, Node) else len(value)
