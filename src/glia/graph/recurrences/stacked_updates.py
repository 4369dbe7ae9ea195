"""Slices of a stack that a loop changes and stacks again are changed where they lie.

A decoder by `lax.scan` takes the cache of each layer from a stack, writes one position of it, reads
it, and stacks the caches that it gives: a copy of all of them, though only a position of each is
new. The stack that is read becomes the state that is written, and each iteration writes its part.
"""

from __future__ import annotations

from dataclasses import dataclass

from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import DynamicSlice, DynamicUpdateSlice, Reshape, While
from glia.graph.recurrences.all_iterations import Counter, counter_of
from glia.graph.rules.constructors import dynamic_slice, reshape
from glia.graph.rules.driver import rule
from glia.graph.rules.facts import integer
from glia.graph.rules.inline_regions import rebuilt
from glia.graph.rules.regions import parameters_read


@dataclass(frozen=True)
class _Stacked:
    """A state to which each iteration writes the changed slice of a stack that stays as it is."""

    written: DynamicUpdateSlice  # of the state
    changed: DynamicUpdateSlice  # the slice with something new in it
    stack: Parameter


@rule
def stacked_updates(op: While) -> Node | None:
    """while(s[i] = update(x[i], u)) = while(s = update(s, u at i)) from s = x, of all rows i"""
    counter = counter_of(op)
    if counter is None or (counter.start, counter.step) != (0, 1):
        return None
    read = parameters_read(op.condition.results)
    for parameter, result in zip(op.body.parameters, op.body.results, strict=True):
        found = _stacked(op, counter, parameter, result)
        if found is not None and parameter.index not in read:
            return _in_place(op, counter, parameter, found)
    return None


def _stacked(op: While, counter: Counter, state: Parameter, result: Node) -> _Stacked | None:
    body = op.body
    if not isinstance(result, DynamicUpdateSlice) or result.x is not state:
        return None
    is_all = body.users[state] == (result,) and state.shape[:1] == (counter.iterations,)
    at = body.parameters[counter.state]
    if not is_all or not _is_row(result.starts, result.update.shape, state, at):
        return None
    changed = _without_first(result.update)
    if not isinstance(changed, DynamicUpdateSlice):
        return None
    taken = _without_first(changed.x, is_taken=True)
    if not isinstance(taken, DynamicSlice) or not isinstance(taken.x, Parameter):
        return None
    stack = taken.x
    is_kept = body.results[stack.index] is stack and stack.type == state.type
    if not is_kept or not _is_row(taken.starts, taken.slice_sizes, stack, at):
        return None
    if {each.dtype for each in changed.starts} != {at.dtype}:
        return None
    return _Stacked(result, changed, stack)


def _is_row(starts: tuple[Node, ...], sizes: tuple[int, ...], of: Node, at: Node) -> bool:
    """Whether a slice is the row of a tensor that a counter picks."""
    is_whole = sizes == (1, *of.shape[1:]) and all(integer(each) == 0 for each in starts[1:])
    return bool(starts) and starts[0] is at and is_whole


def _without_first(node: Node, *, is_taken: bool = False) -> Node | None:
    """What a reshape adds a first dimension of 1 to, or takes it from; None of other nodes."""
    if not isinstance(node, Reshape):
        return None
    longer, shorter = (node.x, node) if is_taken else (node, node.x)
    return node.x if longer.shape == (1, *shorter.shape) else None


def _in_place(op: While, counter: Counter, state: Parameter, found: _Stacked) -> Node:
    at, changed = op.body.parameters[counter.state], found.changed
    written = DynamicUpdateSlice(
        state, reshape(changed.update, (1, *changed.update.shape)), (at, *changed.starts),
        loc=changed.loc,
    )  # fmt: skip
    sizes = (1, *changed.shape)
    row = reshape(dynamic_slice(written, found.written.starts, sizes), changed.shape)
    results = rebuilt(op.body, {found.written: written, changed: row})
    body = Graph(op.body.name, op.body.parameters, results)
    states = [*op.state]
    states[state.index] = op.state[found.stack.index]
    return While(tuple(states), op.condition, body, loc=op.loc)
