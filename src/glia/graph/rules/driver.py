"""The driver of every rewriting pass: rules as equations, applied bottom-up to a fixed point.

A rule sees one operation whose operands are already in normal form and returns an equal node, or
None where it does not apply. What a rule returns is normalised in turn, so one walk over the graph
reaches the fixed point; the work is linear in the nodes plus the rules that fire.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args, get_type_hints

from glia.base.errors import InternalError
from glia.base.loc import UNKNOWN, Loc
from glia.graph.ir import Graph, Node, Parameter, TupleType, Type
from glia.graph.ops import Get

LONGEST_CHAIN = 400
"""How many rules may be applied in a chain that starts from one node."""


@dataclass(frozen=True)
class RewriteRule:
    """An equation: `apply` maps an operation of one of the classes `patterns` to an equal node."""

    name: str
    patterns: tuple[type[Node], ...]
    apply: Callable[[Any], Node | None]

    def __call__(self, operation: Node) -> Node | None:
        return self.apply(operation)

    @property
    def equation(self) -> str:
        """The first line of the rule's docstring."""
        return (self.apply.__doc__ or "").partition("\n")[0]


def rule(function: Callable[[Any], Node | None]) -> RewriteRule:
    """Make a rule; the annotation of its one parameter says which operations it is tried on."""
    hints = get_type_hints(function)
    (subject,) = (hint for name, hint in hints.items() if name != "return")
    return RewriteRule(function.__name__, get_args(subject) or (subject,), function)


def rules_of(namespace: Mapping[str, object]) -> tuple[RewriteRule, ...]:
    """Every rule declared in a module, in the order of declaration; pass `globals()`."""
    return tuple(value for value in namespace.values() if isinstance(value, RewriteRule))


@dataclass(frozen=True, eq=False, repr=False)
class Tuple(Node):
    """The results of an operation that a rule replaced by several nodes; only `Get` uses it."""

    parts: tuple[Node, ...] = ()

    opcode: ClassVar[str] = "tuple"
    operand_fields: ClassVar[tuple[str, ...]] = ("parts",)

    def infer(self) -> Type:
        return TupleType(tuple(part.type for part in self.parts))


def results_as_node(results: Iterable[Node]) -> Node:
    """What a rule returns for an operation with these results: one node, or a Tuple."""
    parts = tuple(results)
    return parts[0] if len(parts) == 1 else Tuple(parts)


def apply_rules(graph: Graph, rules: Iterable[RewriteRule]) -> Graph:
    """`graph` and its regions with `rules` applied until none fires.

    Raises InternalError when rules undo each other or one changes the type of what it rewrites.
    """
    return _Rewriter(tuple(rules)).rewrite_graph(graph)


@dataclass(frozen=True)
class _Origin:
    """The provenance of a node: its source line, and how many rules were applied in a chain."""

    loc: Loc = UNKNOWN
    chain: int = 0


class _Rewriter:
    def __init__(self, rules: tuple[RewriteRule, ...]) -> None:
        self._rules = rules
        self._by_class: dict[type[Node], tuple[RewriteRule, ...]] = {}
        self._normal: dict[Node, Node] = {}
        self._replacement: dict[Node, Node] = {}
        self._origins: dict[Node, _Origin] = {}
        self._regions: dict[Graph, Graph] = {}

    def rewrite_graph(self, graph: Graph) -> Graph:
        """Rewrite to normal form; the same object when nothing changes."""
        if graph not in self._regions:
            results = tuple(self._normalise(result) for result in graph.results)
            same = all(new is old for new, old in zip(results, graph.results, strict=True))
            self._regions[graph] = graph if same else dataclasses.replace(graph, results=results)
        return self._regions[graph]

    def _normalise(self, root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._normal:
                stack.pop()
                continue
            waiting = self._pending_inputs(node)
            if waiting:
                self._inherit_origin(node, waiting)
                stack.extend(waiting)
            else:
                self._step(node)
        return self._normal[root]

    def _pending_inputs(self, node: Node) -> list[Node]:
        """The nodes that must be in normal form before `node` is rewritten."""
        needs = (self._replacement[node],) if node in self._replacement else node.operands
        return [need for need in needs if need not in self._normal]

    def _inherit_origin(self, node: Node, made: Iterable[Node]) -> None:
        origin = self._origins.get(node)
        if origin is not None:
            for each in made:
                self._origins.setdefault(each, origin)

    def _step(self, node: Node) -> None:
        if node in self._replacement:
            self._normal[node] = self._normal[self._replacement[node]]
            return
        if isinstance(node, Get) and isinstance(results := self._normal[node.x], Tuple):
            self._replace(node, results.parts[node.index], rules_fired=0)
            return
        rebuilt = self._rebuild(node)
        if rebuilt is not node:
            self._replace(node, rebuilt, rules_fired=0)
            return
        for candidate in self._rules_for(type(node)):
            image = candidate(node)
            if image is not None:
                self._check_replacement(candidate, node, image)
                self._replace(node, image, rules_fired=1)
                return
        self._normal[node] = node

    def _rebuild(self, node: Node) -> Node:
        """The node with normalised operands and regions, and the source line of its origin."""
        if isinstance(node, Parameter):  # its graph knows it by identity
            return node
        origin = self._origins.get(node)
        operands = [self._normal[operand] for operand in node.operands]
        if any(new is not old for new, old in zip(operands, node.operands, strict=True)):
            node = node.with_operands(operands)
        if origin is not None and node.loc is UNKNOWN and origin.loc is not UNKNOWN:
            node = dataclasses.replace(node, loc=origin.loc)
            for region in regions_of(node):
                for result in region.results:
                    self._origins.setdefault(result, _Origin(origin.loc))
        return map_regions(node, self.rewrite_graph)

    def _replace(self, node: Node, image: Node, rules_fired: int) -> None:
        self._replacement[node] = image
        before = self._origins.get(node, _Origin())
        loc = node.loc if node.loc is not UNKNOWN else before.loc
        self._origins.setdefault(image, _Origin(loc, before.chain + rules_fired))

    def _check_replacement(self, fired: RewriteRule, node: Node, image: Node) -> None:
        if image is node or image.type != node.type:
            raise InternalError(
                f"rule {fired.name} rewrote {node!r} of type {node.type} to {image!r} of type"
                f" {image.type}"
            )
        if self._origins.get(node, _Origin()).chain >= LONGEST_CHAIN:
            raise InternalError(f"rules do not terminate: {fired.name} applies to {node!r}")

    def _rules_for(self, cls: type[Node]) -> tuple[RewriteRule, ...]:
        if cls not in self._by_class:
            fitting = tuple(each for each in self._rules if issubclass(cls, each.patterns))
            self._by_class[cls] = fitting
        return self._by_class[cls]


def regions_of(node: Node) -> Iterator[Graph]:
    """The regions of a node."""
    for name in node.region_fields:
        value = getattr(node, name)
        yield from (value,) if isinstance(value, Graph) else value


def map_regions(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """The node with each of its regions changed; the node itself when none is."""
    changes: dict[str, Any] = {}
    for name in node.region_fields:
        value = getattr(node, name)
        new = change(value) if isinstance(value, Graph) else tuple(change(g) for g in value)
        if new is not value and new != value:
            changes[name] = new
    return dataclasses.replace(node, **changes) if changes else node
