"""The coefficients of a value that is linear in a state, or its maximum or minimum with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glia.graph.ir import Graph, Node
from glia.graph.ops import Map
from glia.graph.rules.constructors import apply, select, splat_like


class NotLinear(Exception):
    """A value is not linear in the state."""


@dataclass(frozen=True)
class Recurrence:
    """The new state: `monoid` of factor times the old one, and term.

    None stands for a factor of one, and for a term that is the identity of the monoid.
    """

    monoid: str
    factor: Node | None
    term: Node | None


@dataclass(frozen=True)
class _Line:
    """factor * state + term; None stands for zero, and `is_one` for a factor of one."""

    factor: Node | None
    term: Node | None
    is_one: bool = False


def recurrence_of(value: Node, state: Node) -> Recurrence:
    """How a float value follows from a state of its shape; NotLinear where no scan computes it."""
    if not state.dtype.is_float:
        raise NotLinear
    match value:
        case Map("maximum" | "minimum" as monoid, (a, b)) if state in (a, b):
            other = b if a is state else a
            if _depends(other, state):
                raise NotLinear
            return Recurrence(monoid, None, other)
    line = _Lines(state).of(value)
    if line.factor is None and not line.is_one:
        raise NotLinear
    return Recurrence("add", line.factor, line.term)


def _depends(value: Node, state: Node) -> bool:
    return state in Graph("", (), (value,)).nodes


class _Lines:
    """The lines of values in one state."""

    def __init__(self, state: Node) -> None:
        self.state = state
        self._depends: dict[Node, bool] = {}

    def depends(self, node: Node) -> bool:
        """Whether a value depends on the state."""
        found = self._depends.get(node)
        if found is None:
            found = self._depends[node] = _depends(node, self.state)
        return found

    def of(self, node: Node) -> _Line:
        """The line of a value; NotLinear where it is none."""
        if node is self.state:
            return _Line(None, None, is_one=True)
        if not self.depends(node):
            return _Line(None, node)
        if not isinstance(node, Map) or node.shape != self.state.shape:
            raise NotLinear
        match node.function, node.args:
            case ("add" | "subtract") as function, (a, b):
                return self._sum(function, self.of(a), self.of(b))
            case "negate", (a,):
                return self._mapped(self.of(a), lambda x: apply("negate", x))
            case "multiply", (a, b) if not self.depends(b):
                return self._mapped(self.of(a), lambda x: apply("multiply", x, b), b)
            case "multiply", (a, b) if not self.depends(a):
                return self._mapped(self.of(b), lambda x: apply("multiply", a, x), a)
            case "select", (where, a, b) if not self.depends(where):
                one, other = self._full(self.of(a)), self._full(self.of(b))
                factor, term = (select(where, x, y) for x, y in zip(one, other, strict=True))
                return _Line(factor, term)
        raise NotLinear

    def _mapped(
        self, line: _Line, change: Callable[[Node], Node], of_one: Node | None = None
    ) -> _Line:
        """A line with what is not zero changed; one becomes `of_one`, where that is given."""
        factor = None if line.factor is None else change(line.factor)
        if line.is_one:
            factor = change(splat_like(1.0, self.state)) if of_one is None else of_one
        return _Line(factor, None if line.term is None else change(line.term))

    def _sum(self, function: str, a: _Line, b: _Line) -> _Line:
        if a.is_one and b.factor is None and not b.is_one:
            return _Line(None, self._combined(function, a.term, b.term), is_one=True)
        if b.is_one and a.factor is None and not a.is_one and function == "add":
            return _Line(None, self._combined(function, a.term, b.term), is_one=True)
        factors = (self._factor(a), self._factor(b))
        return _Line(self._combined(function, *factors), self._combined(function, a.term, b.term))

    def _factor(self, line: _Line) -> Node | None:
        return splat_like(1.0, self.state) if line.is_one else line.factor

    @staticmethod
    def _combined(function: str, a: Node | None, b: Node | None) -> Node | None:
        if b is None:
            return a
        if a is None:
            return apply("negate", b) if function == "subtract" else b
        return apply(function, a, b)

    def _full(self, line: _Line) -> tuple[Node, Node]:
        zero = splat_like(0.0, self.state)
        return self._factor(line) or zero, line.term or zero
