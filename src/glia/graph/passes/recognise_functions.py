"""Recognition of functions that the engines hold in tables, however they are written.

Frameworks lower erf, gelu or softplus to dozens of operations: rational approximations, case
distinctions, exponentials. Such a part of a graph depends on one tensor only, element by element,
so it is a function of one variable, and which one shows in its values: where it equals a function
of the tables at every sample, the samples including all constants it mentions and their neighbours,
it is replaced.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from glia.base.dtype import F32
from glia.graph.ir import Graph, Node
from glia.graph.ops import Convert, Map
from glia.graph.rules.constructors import apply
from glia.graph.rules.driver import map_regions
from glia.graph.rules.facts import uniform
from glia.graph.scalar import FUNCTIONS
from glia.options import CompileOptions

Array = np.ndarray[Any, Any]

RELATIVE = 2e-6  # of the function's value: some 16 steps of float32
ABSOLUTE = 2e-7  # and of 1 + |x|, which 1 + erf(x) and its like lose where they cancel
CANCELLATION_LIMIT = 16.0  # beyond it functions do not cancel any more
LARGEST = 100.0  # as a power of two: beyond it the way a formula is written decides on overflow
FEWEST_STEPS = 2
MOST_STEPS = 400


@dataclass(frozen=True)
class KnownFunction:
    """A function of one variable: its exact value, and the nodes that compute it."""

    name: str
    exact: Callable[[Array], Array]  # in float64
    build: Callable[[Node], Node]


def _known_function(name: str) -> KnownFunction:
    return KnownFunction(name, FUNCTIONS[name].compute, lambda x: apply(name, x))


# Not erfc: 1 - erf(x), which is all that the engines offer, has no digits where erfc is small.
KNOWN_FUNCTIONS = tuple(
    map(_known_function, ("gelu", "gelu_tanh", "silu", "softplus", "erf", "tanh", "logistic"))
)


def recognise_functions(graph: Graph, options: CompileOptions | None = None) -> Graph:
    """The graph with parts that equal functions of the tables replaced by these.

    No option changes the result. Only float32 values are looked at; the largest parts come first.
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
            is_function = isinstance(node, Map) and node.dtype is F32
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
            if variable.dtype is not F32 or len(steps) < FEWEST_STEPS:
                continue
            key = _structural_key(steps, variable)
            if key not in self._verdicts:
                self._verdicts[key] = _identify(steps, variable)
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


def _identify(steps: list[Node], variable: Node) -> KnownFunction | None:
    """The table function that a subgraph computes of its variable; None if there is none."""
    candidates = KNOWN_FUNCTIONS
    for samples in (_screening_samples(), _samples(steps)):
        values = _evaluate_steps(steps, variable, samples)
        candidates = tuple(k for k in candidates if _agrees(k, samples, values))
        if not candidates:
            return None
    return candidates[0]


def _evaluate_steps(steps: list[Node], variable: Node, samples: Array) -> Array:
    """The subgraph's values at `samples` of its variable, computed in its own dtypes."""
    known: dict[Node, Array] = {variable: samples}

    def value(operand: Node) -> Array:
        if operand in known:
            return known[operand]
        constant = uniform(operand)
        assert constant is not None
        return np.broadcast_to(constant, samples.shape)

    with np.errstate(all="ignore"):
        for step in reversed(steps):
            known[step] = step.compute(*map(value, step.operands))
    return known[steps[0]]


def _agrees(known: KnownFunction, samples: Array, values: Array) -> bool:
    """Whether values equal the function at all samples; at infinity they may be NaN instead."""
    with np.errstate(all="ignore"):
        exact = known.exact(samples.astype(np.float64))
        size = np.minimum(np.abs(samples.astype(np.float64)), CANCELLATION_LIMIT)
        near = np.abs(values - exact) <= ABSOLUTE * (1 + size) + RELATIVE * np.abs(exact)
    undefined = np.isnan(values) & (np.isnan(exact) | np.isinf(samples))
    return bool((near | (values == exact) | undefined).all())


@cache
def _screening_samples() -> Array:
    return np.array([-7.3, -2.1, -0.77, -0.01, 0.3, 1.4, 3.9, 11.0], np.float32)


@cache
def _standard_samples() -> Array:
    """All magnitudes of both signs, dense where functions curve; zeros, NaN and infinities."""
    dense = np.linspace(-16, 16, 4001)
    sizes = np.exp2(np.linspace(-140, LARGEST, 961))
    special = np.array([0.0, -0.0, math.nan, math.inf, -math.inf])
    return np.concatenate([dense, sizes, -sizes, special]).astype(np.float32)


def _samples(steps: list[Node]) -> Array:
    """The standard samples, and every constant of the subgraph with its neighbours, both signs."""
    constants = {
        float(value)
        for step in steps
        for operand in step.operands
        if (value := uniform(operand)) is not None
    }
    near = np.array(sorted(constants), np.float64).astype(np.float32)
    near = np.concatenate([near, np.nextafter(near, -np.inf), np.nextafter(near, np.inf)])
    return np.concatenate([_standard_samples(), near, -near]).astype(np.float32)
