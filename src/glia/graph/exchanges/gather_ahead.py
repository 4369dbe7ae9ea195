"""What a loop gathers in every iteration is gathered one iteration ahead: under a strategy.

A loop over layers whose weights are divided among ranks gathers those of a layer before it computes
it. What is gathered depends on the loop's counter alone, so that of the next iteration is known: it
travels while this one computes. Two iterations become one of a new loop, the second of which reads
what the first has fetched, so that nothing is copied from one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Collective,
    Convert,
    DynamicSlice,
    Map,
    Reshape,
    Transpose,
    While,
    results_of,
)
from glia.graph.recurrences.all_iterations import Counter, counter_of
from glia.graph.rules.constructors import apply, constant
from glia.graph.rules.driver import results_as_node
from glia.graph.rules.inline_regions import inline, rebuilt
from glia.graph.rules.regions import parameters_read

FEWEST_ITERATIONS = 4  # with fewer the loop is mostly what comes before and after it
FETCHED = (Collective, Convert, DynamicSlice, Map, Parameter, Reshape, Transpose)


def gathered_ahead(loop: While) -> Node | None:
    """The loop with what it gathers fetched one iteration ahead; None where it gathers nothing."""
    counter = counter_of(loop)
    if counter is None or counter.iterations < FEWEST_ITERATIONS:
        return None
    gathers = tuple(node for node in loop.body.nodes if _is_known_ahead(loop, node, counter))
    return _PairedIterations(loop, counter, gathers).results() if gathers else None


def _is_known_ahead(loop: While, node: Node, counter: Counter) -> bool:
    """Whether a node gathers what depends on the counter, and on nothing else that changes."""
    if not isinstance(node, Collective) or node.kind != "all-gather" or len(node.args) != 1:
        return False
    cone = Graph("cone", (), (node,)).nodes
    body = loop.body
    read = parameters_read((node,))
    return (
        counter.state in read
        and all(isinstance(each, FETCHED) or not each.operands for each in cone)
        and sum(isinstance(each, Collective) for each in cone) == 1
        and all(i == counter.state or body.results[i] is body.parameters[i] for i in read)
    )


@dataclass(frozen=True)
class _PairedIterations:
    """A loop of which two iterations become one, and what it gathers."""

    loop: While
    counter: Counter
    gathers: tuple[Node, ...]

    def results(self) -> Node:
        """The results of the loop."""
        loop, count = self.loop, len(self.loop.state)
        state: Sequence[Node] = loop.state
        fetched = self._fetched(state)
        if self.counter.iterations % 2:
            state = self._iteration(state, fetched)
            fetched = self._fetched(state)
        kinds = [*(node.type for node in state), *(node.type for node in fetched)]
        parameters = []
        for n, kind in enumerate(kinds):
            assert isinstance(kind, TensorType)
            parameters.append(Parameter(n, kind, f"state.{n}"))
        half = self._iteration(parameters[:count], parameters[count:])
        after = self._iteration(half, self._fetched(half))
        at, dtype = self.counter.state, parameters[self.counter.state].dtype
        after[at] = apply("add", parameters[at], constant(2 * self.counter.step, dtype))
        # what the last iteration fetches nothing reads, but it is fetched from somewhere
        ahead = apply("minimum", after[at], constant(self.counter.last, dtype))
        fetched_next = self._fetched([*after[:at], ahead, *after[at + 1 :]])
        old: dict[Node, Node] = dict(zip(loop.condition.parameters, parameters, strict=False))
        condition = Graph(loop.condition.name, tuple(parameters), rebuilt(loop.condition, old))
        body = Graph(loop.body.name, tuple(parameters), (*after, *fetched_next))
        both = While((*state, *fetched), condition, body, loc=loop.loc)
        return results_as_node(list(results_of(both))[:count])

    def _iteration(self, state: Sequence[Node], fetched: Sequence[Node]) -> list[Node]:
        """The state after an iteration that reads what is fetched."""
        body = self.loop.body
        made: dict[Node, Node] = dict(zip(body.parameters, state, strict=True))
        made |= zip(self.gathers, fetched, strict=True)
        return list(rebuilt(body, made))

    def _fetched(self, state: Sequence[Node]) -> list[Node]:
        """What an iteration of a state gathers."""
        return list(inline(Graph("fetched", self.loop.body.parameters, self.gathers), state))
