"""Recognition of functions that the engines hold in tables, however they are written.

Frameworks lower erf, gelu or softplus to dozens of operations: rational approximations, case
distinctions, exponentials. Such a part of a graph depends on one tensor only, element by element,
so it is a function of one variable, and which one shows in its values (`identify_function.py`).
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator

from glia.base.dtype import BF16, F16, F32
from glia.graph.ir import Graph, Node
from glia.graph.ops import Convert, Map
from glia.graph.passes.identify_function import KnownFunction, identify
from glia.graph.rules.driver import map_regions
from glia.graph.rules.facts import uniform
from glia.options import CompileOptions

FEWEST_STEPS = 2
MOST_STEPS = 400
FLOATS = (F32, BF16, F16)


def recognise_functions(graph: Graph, options: CompileOptions | None = None) -> Graph:
    """The graph with parts that equal functions of the tables replaced by these.

    No option changes the result. The largest parts come first.
    """
    return _Recogniser().graph(graph)


class _Recogniser:
    def __init__(self) -> None:
        self._verdicts: dict[tuple[object, ...], KnownFunction | None] = {}

    def graph(self, graph: Graph) -> Graph:
        """The graph and its regions rewritten."""
        found = self._find_matches(graph)
        image: dict[Node, Node] = {}
        for node in graph.nodes:
            if node in found:
                known, variable = found[node]
                image[node] = dataclasses.replace(known.build(image[variable]), loc=node.loc)
                continue
            operands = [image[operand] for operand in node.operands]
            same = all(new is old for new, old in zip(operands, node.operands, strict=True))
            rebuilt = node if same else node.with_operands(operands)
            image[node] = map_regions(rebuilt, self.graph)
        results = tuple(image[result] for result in graph.results)
        return dataclasses.replace(graph, results=results)

    def _find_matches(self, graph: Graph) -> dict[Node, tuple[KnownFunction, Node]]:
        """The replacements, node -> (function, variable), skipping nodes that only they use."""
        position = {node: number for number, node in enumerate(graph.nodes)}
        found: dict[Node, tuple[KnownFunction, Node]] = {}
        is_read = set(graph.results)
        for node in reversed(graph.nodes):
            if node not in is_read:
                continue
            is_function = isinstance(node, Map) and node.dtype in FLOATS
            match = self._match_function(node, position) if is_function else None
            if match is None:
                is_read.update(node.operands)
            else:
                found[node] = match
                is_read.add(match[1])
        return found

    def _match_function(
        self, node: Node, position: dict[Node, int]
    ) -> tuple[KnownFunction, Node] | None:
        """(function, variable) when a node is a known function of some node below it."""
        for variable, steps in _dominators(node, position):
            if variable.dtype is not node.dtype or len(steps) < FEWEST_STEPS:
                continue
            key = _structural_key(steps, variable)
            if key not in self._verdicts:
                self._verdicts[key] = identify(steps, variable)
            known = self._verdicts[key]
            if known is not None:
                return known, variable
        return None


def _dominators(root: Node, position: dict[Node, int]) -> Iterator[tuple[Node, list[Node]]]:
    """Each dominator of the root with respect to its variables, with the functions above it.

    The functions are listed with users first. Constants are not variables.
    """
    waiting = [(-position[root], root)]
    seen, above = {root}, list[Node]()
    while waiting:
        node = heapq.heappop(waiting)[1]
        if not waiting and above:
            yield node, list(above)
        if not isinstance(node, Map | Convert) or len(above) == MOST_STEPS:
            return
        above.append(node)
        for operand in node.operands:
            if operand not in seen and uniform(operand) is None:
                seen.add(operand)
                heapq.heappush(waiting, (-position[operand], operand))


def _scalar_function(step: Node) -> str:
    return step.function if isinstance(step, Map) else "convert"


def _structural_key(steps: list[Node], variable: Node) -> tuple[object, ...]:
    """A key that two subgraphs share when they are the same function of their variables."""
    names = {variable: -1} | {step: number for number, step in enumerate(steps)}

    def name(operand: Node) -> object:
        if operand in names:
            return names[operand]
        value = uniform(operand)
        assert value is not None
        return value.dtype.name, value.tobytes()

    return tuple((_scalar_function(s), s.dtype, *map(name, s.operands)) for s in steps)
