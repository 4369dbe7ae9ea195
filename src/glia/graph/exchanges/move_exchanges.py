"""Exchanges of fewer bytes, and less often: under a distribution strategy.

A sum of which each rank takes a piece of its own is scattered. What a loop adds to a sum in every
iteration is exchanged once, after the loop, and what it exchanges in every iteration alike, before.
Terms are then added in another order: by each rank, then over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glia.base.dtype import U32
from glia.graph.evaluate import evaluate
from glia.graph.exchanges.gather_ahead import gathered_ahead
from glia.graph.ir import Graph, Node, Parameter, TensorType, TupleType
from glia.graph.ops import (
    ID_KINDS,
    Collective,
    Convert,
    DynamicSlice,
    Get,
    Map,
    While,
    results_of,
)
from glia.graph.ops.scalar_regions import monoid
from glia.graph.rules.constructors import apply, monoid_region, splat, splat_like
from glia.graph.rules.driver import RewriteRule, apply_rules, map_regions, results_as_node
from glia.graph.rules.facts import holds_exactly, uniform
from glia.graph.rules.inline_regions import inline, rebuilt
from glia.graph.rules.regions import all_nodes, parameters_read, regions_of
from glia.options import CompileOptions

MOST_PLACE_NODES = 64  # of the arithmetic from a rank's number to where its piece begins

Groups = tuple[tuple[int, ...], ...]


def move_exchanges(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with sums scattered where pieces are taken, and exchanges out of loops.

    Under fsdp what needs more memory stays in its loop: what is gathered there, and whole sums of
    which a piece is kept.
    """
    strategy = options.distribution_strategy
    if not strategy or graph.replicas * graph.partitions < 2:
        return graph
    graph = _scattered_everywhere(graph)
    loops = _Loops(is_sparing=strategy == "fsdp")
    graph = apply_rules(graph, (RewriteRule("move_out_of_loop", (While,), loops.moved),))
    return graph.rewrite(_fetching_ahead)


def _fetching_ahead(node: Node) -> Node | None:
    return gathered_ahead(node) if isinstance(node, While) else None


@dataclass(frozen=True)
class _Path:
    """One result of a collective, and elementwise steps from it that nothing else reads."""

    collective: Collective
    index: int  # of the result
    steps: tuple[Node, ...]  # the first one reads the result

    def steps_from(self, node: Node) -> Node:
        """The steps from another node on."""
        for step in self.steps:
            operands = []
            for each in step.operands:
                value = uniform(each)
                operands.append(node if value is None else splat(value, each.dtype, node.shape))
            node = step.with_operands(operands)
        return node


def _results(graph: Graph, collective: Collective) -> list[tuple[int, Node]]:
    """The results of a collective that something reads."""
    if not isinstance(collective.type, TupleType):
        return [(0, collective)]
    return [(each.index, each) for each in graph.users[collective] if isinstance(each, Get)]


def _path(
    graph: Graph, collective: Collective, index: int, result: Node, is_step: Callable[[Node], bool]
) -> tuple[_Path, Node] | None:
    """The steps from a result, and the one operation that reads what they give."""
    steps: list[Node] = []
    node = result
    while len(graph.users[node]) == 1 and not any(node is each for each in graph.results):
        (reader,) = graph.users[node]
        if not is_step(reader):
            return _Path(collective, index, tuple(steps)), reader
        steps.append(reader)
        node = reader
    return None


def _is_elementwise(node: Node) -> bool:
    """Whether elements of one operand give those of the result, each by itself."""
    if not isinstance(node, Map | Convert):
        return False
    return sum(uniform(each) is None for each in node.operands) == 1


def _is_linear(node: Node) -> bool:
    """Whether a sum of operands gives the sum of the results, rounding aside."""
    if isinstance(node, Convert):
        return holds_exactly(node.to, node.x.dtype)
    is_scaled = isinstance(node, Map) and node.dtype.is_float and (
        node.function == "multiply" or (node.function == "divide" and uniform(node.args[0]) is None)
    )  # fmt: skip
    return is_scaled and _is_elementwise(node)


# --- pieces of sums -------------------------------------------------------------------------------


def _scattered_everywhere(graph: Graph) -> Graph:
    """A graph, and those inside of it, with sums scattered."""
    graph = graph.rewrite(_with_scattered_regions)
    for node in graph.nodes:
        if isinstance(node, Collective) and (made := dict(_pieces(graph, node))):
            return _scattered_everywhere(replace(graph, results=rebuilt(graph, made)))
    return graph


def _with_scattered_regions(node: Node) -> Node | None:
    changed = map_regions(node, _scattered_everywhere)
    return None if changed is node else changed


def _pieces(graph: Graph, node: Collective) -> Iterator[tuple[Node, Node]]:
    """dynamic_slice(all_reduce(x), place of the rank) = reduce_scatter(x), of all its results."""
    if node.kind != "all-reduce":
        return
    found = []
    for index, result in _results(graph, node):
        path = _path(graph, node, index, result, _is_elementwise)
        piece = path and isinstance(path[1], DynamicSlice) and _piece(path[0], path[1])
        if not path or not piece:
            return
        found.append((path[1], piece))
    yield from found


def _piece(path: _Path, op: DynamicSlice) -> Node | None:
    if path.collective not in Graph("whole", (), (op.x,)).nodes:
        return None
    along = [d for d, extent in enumerate(op.x.shape) if op.slice_sizes[d] != extent]
    if len(along) != 1:
        return None
    (dimension,) = along
    given = path.collective.replica_groups
    places = _places(op.starts[dimension], given)
    groups = _by_piece(given, places, op.slice_sizes[dimension], op.x.shape[dimension])
    if groups is None:
        return None
    arg = path.collective.args[path.index]
    kind = TensorType(arg.dtype, op.slice_sizes)
    whole = path.collective
    return path.steps_from(
        replace(
            whole, kind="reduce-scatter", args=(arg,), result=kind, dimension=dimension,
            replica_groups=groups,
        )
    )  # fmt: skip


def _places(start: Node, groups: Groups) -> Mapping[int, int]:
    """Where the piece of each rank begins, where that depends on nothing else; else nothing."""
    nodes = Graph("place", (), (start,)).nodes
    rank = Parameter(0, TensorType(U32), "rank")
    image: dict[Node, Node] = {}
    for node in nodes:
        is_rank = isinstance(node, Collective) and node.kind == "rank-id"
        is_other = isinstance(node, Parameter | Collective) or any(regions_of(node))
        if len(nodes) > MOST_PLACE_NODES or (is_other and not is_rank):
            return {}
        image[node] = rank if is_rank else node.with_operands([image[o] for o in node.operands])
    place = Graph("place", (rank,), (image[start],))
    return {r: int(evaluate(place, [np.array(r, np.uint32)])[0]) for group in groups for r in group}


def _by_piece(groups: Groups, places: Mapping[int, int], step: int, extent: int) -> Groups | None:
    """The groups with members in the order of their pieces; None unless each has one of its own."""
    ordered = []
    for group in groups if places else ():
        ranks = {min(max(places[rank], 0), extent - step): rank for rank in group}
        if sorted(ranks) != list(range(0, extent, step)) or len(ranks) != len(group):
            return None
        ordered.append(tuple(ranks[begin] for begin in sorted(ranks)))
    return tuple(ordered) or None


# --- loops ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Accumulated:
    """A state to which each iteration adds a result of a collective, after some steps."""

    path: _Path
    state: int
    addition: Node

    @property
    def local(self) -> Node:
        """What a rank adds by itself."""
        return self.path.steps_from(self.path.collective.args[self.path.index])


@dataclass(frozen=True)
class _Loops:
    """Moves exchanges out of loops; one that `is_sparing` leaves those whose results are larger."""

    is_sparing: bool

    def moved(self, op: While) -> Node | None:
        """The loop with an exchange before it, or after it; None where nothing can move."""
        for node in op.body.nodes:
            if isinstance(node, Collective) and node.kind not in ID_KINDS:
                if self._is_alike(op, node):
                    return _exchanged_before(op, node)
                if found := list(self._accumulations(op, node)):
                    return _exchanged_after(op, found)
        return None

    def _is_alike(self, op: While, node: Collective) -> bool:
        """Whether an exchange gives the same in every iteration."""
        if self.is_sparing and node.kind == "all-gather":
            return False
        body = op.body
        is_repeatable = all(each.is_pure for each in all_nodes(Graph("cone", (), (node,))))
        return is_repeatable and all(
            body.results[i] is body.parameters[i] for i in parameters_read((node,))
        )

    def _accumulations(self, op: While, node: Collective) -> Iterator[_Accumulated]:
        """What is added of all results of a sum over ranks; nothing where one has another use."""
        kinds = ("all-reduce",) if self.is_sparing else ("all-reduce", "reduce-scatter")
        if node.kind not in kinds or monoid(node.body[0]) != "add":
            return
        found = []
        for index, result in _results(op.body, node):
            path = _path(op.body, node, index, result, _is_linear)
            state = path and _state_added_to(op, path[1])
            if not path or state is None:
                return
            found.append(_Accumulated(path[0], state, path[1]))
        yield from found


def _state_added_to(op: While, addition: Node) -> int | None:
    """The state that is only ever added to, by this addition."""
    body = op.body
    if not isinstance(addition, Map) or addition.function != "add":
        return None
    for operand in addition.operands:
        if not isinstance(operand, Parameter) or body.users[operand] != (addition,):
            continue
        state = body.parameters.index(operand)
        gives = [n for n, result in enumerate(body.results) if result is addition]
        read = parameters_read(op.condition.results)
        if gives == [state] and not body.users[addition] and state not in read:
            return state
    return None


def _exchanged_before(op: While, node: Collective) -> Node:
    """while(s) with the results of an exchange as states that never change."""
    body, count = op.body, len(op.state)
    wanted = _results(body, node)
    region = Graph(body.name, body.parameters, tuple(result for _, result in wanted))
    states = (*op.state, *inline(region, op.state))
    more = [_parameter(count + n, result) for n, (_, result) in enumerate(wanted)]
    made = {result: new for (_, result), new in zip(wanted, more, strict=True)}
    loop = _loop(op, states, (*body.parameters, *more), (*rebuilt(body, made), *more))
    return results_as_node(results_of(loop)[:count])


def _exchanged_after(op: While, found: Sequence[_Accumulated]) -> Node:
    """s + all_reduce(while(0)), of the states to which sums over ranks are added."""
    body = op.body
    states, parameters = list(op.state), list(body.parameters)
    made: dict[Node, Node] = {}
    for each in found:
        local = each.local
        states[each.state] = splat_like(0, local)
        parameters[each.state] = _parameter(each.state, local)
        made[each.addition] = apply("add", parameters[each.state], local)
    made |= zip(body.parameters, parameters, strict=True)
    made |= {each.addition: _moved_into(body, made, each.addition) for each in found}
    results = rebuilt(body, made)
    totals = list(results_of(_loop(op, states, parameters, results)))
    for each in found:
        total = _sum_over_ranks(each, totals[each.state], op.state[each.state])
        totals[each.state] = apply("add", op.state[each.state], total)
    return results_as_node(totals)


def _moved_into(body: Graph, made: Mapping[Node, Node], addition: Node) -> Node:
    """An addition made of the nodes of a body, with its parameters replaced."""
    own: dict[Node, Node] = {o: new for o, new in made.items() if isinstance(o, Parameter)}
    (result,) = rebuilt(Graph(body.name, body.parameters, (made[addition],)), own)
    return result


def _sum_over_ranks(each: _Accumulated, local: Node, like: Node) -> Node:
    node = each.path.collective
    region = monoid_region("add", local.dtype)
    return replace(node, args=(local,), result=like.type, body=(region,))


def _loop(
    op: While, states: Sequence[Node], parameters: Sequence[Parameter], results: Sequence[Node]
) -> While:
    """A loop like `op`, of other states and with another body."""
    body = Graph(op.body.name, tuple(parameters), tuple(results))
    used = tuple(_parameter(n, state) for n, state in enumerate(states))
    old: dict[Node, Node] = dict(zip(op.condition.parameters, used, strict=False))
    condition = Graph(op.condition.name, used, rebuilt(op.condition, old))
    return While(tuple(states), condition, body, loc=op.loc)


def _parameter(index: int, like: Node) -> Parameter:
    """The parameter of a state."""
    assert isinstance(like.type, TensorType)
    return Parameter(index, like.type, f"state.{index}")
