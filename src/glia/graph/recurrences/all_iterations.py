"""Values of a loop's body at all iterations at once, with iterations as the first dimension."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from glia.base.dtype import S32
from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import (
    Bitcast,
    Broadcast,
    Concatenate,
    Convert,
    DynamicSlice,
    Map,
    Reduce,
    ReducePrecision,
    Reshape,
    Reverse,
    Scan,
    Slice,
    Transpose,
    While,
)
from glia.graph.rules.constructors import broadcast, iota, reshape, reverse
from glia.graph.rules.facts import integer


class NotSeparable(Exception):
    """A value is not known at all iterations at once."""


def is_counter(result: Node, counter: Node) -> bool:
    """Whether a state grows by one in each iteration."""
    return _step(result, counter) == 1


@dataclasses.dataclass(frozen=True)
class Counter:
    """The state that a loop counts by: from `start`, by `step` in each of its `iterations`."""

    state: int
    start: int
    step: int
    iterations: int

    @property
    def last(self) -> int:
        """The value in the last iteration."""
        return self.start + (self.iterations - 1) * self.step


def counter_of(loop: While) -> Counter | None:
    """The counter of a loop that counts up from a constant to a constant; None for others."""
    match loop.condition.results[0]:
        case Map("less", (Parameter() as counter, end)):
            state = counter.index
        case Map("greater", (end, Parameter() as counter)):
            state = counter.index
        case _:
            return None
    step = _step(loop.body.results[state], loop.body.parameters[state])
    start, limit = integer(loop.state[state]), integer(end)
    if start is None or limit is None or not step or step < 0:
        return None
    if limit + step > np.iinfo(counter.dtype.numpy).max:
        return None  # it may wrap around
    return Counter(state, start, step, max(0, -((start - limit) // step)))


def iterations(loop: While) -> int | None:
    """How often a loop runs that counts up from a constant to a constant; None for others."""
    counter = counter_of(loop)
    return counter.iterations if counter else None


def _step(result: Node, counter: Node) -> int | None:
    """By how much a state grows in each iteration, where that is known."""
    match result:
        case Map("add", (a, b)):
            return integer(b) if a is counter else integer(a) if b is counter else None
    return None


class AllIterations:
    """Finds the values of nodes of a body that runs `count` times.

    `invariants` are the values outside of the loop of the parameters that stay as they are.
    """

    def __init__(self, count: int, counter: Node, invariants: Mapping[Node, Node]) -> None:
        self.count, self.counter = count, counter
        self.invariants = invariants
        self._known: dict[Node, Node] = {counter: iota(S32, (count,), 0)}
        self._constant: dict[Node, Node | None] = {}

    def know(self, node: Node, value: Node) -> None:
        """Take `value`, iterations first, as what a node is."""
        self._known[node] = value

    def of(self, root: Node) -> Node:
        """A node's value [count, ...]; NotSeparable where it depends on other states."""
        for node in Graph("", (), (root,)).nodes:
            if node in self._known:
                continue
            fixed = self.fixed(node)
            if fixed is not None:
                shape = (self.count, *node.shape)
                self._known[node] = broadcast(fixed, shape, range(1, len(shape)))
            elif self._is_needed(node, root):
                self._known[node] = self._batched(node)
        return self._known[root]

    def fixed(self, node: Node) -> Node | None:
        """The value of a node that is the same in every iteration; None for others."""
        if node not in self._constant:
            self._constant[node] = self._fixed(node)
        return self._constant[node]

    def _fixed(self, node: Node) -> Node | None:
        if isinstance(node, Parameter):
            return self.invariants.get(node)
        if node in self._known:
            return None
        operands = [self.fixed(operand) for operand in node.operands]
        found = [operand for operand in operands if operand is not None]
        if len(found) < len(operands):
            return None
        return node.with_operands(found) if found else node

    def _is_needed(self, node: Node, root: Node) -> bool:
        """Whether a node has to be known for the root: no known node hides it."""
        waiting, seen = [root], {root}
        while waiting:
            part = waiting.pop()
            if part is node:
                return True
            if part in self._known:
                continue
            for operand in part.operands:
                if operand not in seen:
                    seen.add(operand)
                    waiting.append(operand)
        return False

    def _batched(self, node: Node) -> Node:
        if isinstance(node, DynamicSlice):
            return self._slices(node)
        if isinstance(node, Reduce):
            return self._reduced(node)
        if any(operand not in self._known for operand in node.operands) or not node.operands:
            raise NotSeparable
        operands = [self._known[operand] for operand in node.operands]
        if isinstance(node, Map | Convert | Bitcast | ReducePrecision):
            if isinstance(node, Bitcast) and node.x.dtype.bits != node.dtype.bits:
                raise NotSeparable
            return node.with_operands(operands)
        return _moved(node, self.count).with_operands(operands)

    def _reduced(self, node: Reduce) -> Node:
        """A reduction whose initial values are the same in every iteration."""
        inits = [self.fixed(init) for init in node.inits]
        if None in inits or any(x not in self._known for x in node.xs):
            raise NotSeparable
        operands = [*(self._known[x] for x in node.xs), *(each for each in inits if each)]
        return _moved(node, self.count).with_operands(operands)

    def _slices(self, node: DynamicSlice) -> Node:
        """A row of an invariant array in each iteration, from the first to the last or back."""
        first, *others = node.starts
        x = self.fixed(node.x)
        is_row = x is not None and node.slice_sizes == (1, *node.x.shape[1:])
        is_whole = is_row and node.x.shape[0] == self.count
        if not is_whole or any(integer(each) != 0 for each in others):
            raise NotSeparable
        assert x is not None
        shape = (self.count, *node.shape)
        return reshape(self.in_order(x, first), shape)

    def in_order(self, x: Node, index: Node) -> Node:
        """The rows of an array as iterations come to them, which access it at `index`."""
        if index is self.counter:
            return x
        if self._counts_back(index):
            return reverse(x, (0,))
        raise NotSeparable

    def _counts_back(self, start: Node) -> bool:
        """Whether an index is count - 1 - counter."""
        match start:
            case Map("subtract", (a, b)) if b is self.counter:
                return integer(a) == self.count - 1
            case Map("subtract", (Map("subtract", (a, b)), c)) if b is self.counter:
                return integer(a) == self.count and integer(c) == 1
            case Map("add", (Map("subtract", (a, b)), c)) if b is self.counter:
                known = integer(a), integer(c)
                return None not in known and sum(n for n in known if n is not None) == (
                    self.count - 1
                )
        return False


def _moved(node: Node, count: int) -> Node:
    """An operation on one iteration's value as one on all; its operands are still the old."""
    match node:
        case Reshape():
            return dataclasses.replace(node, result_shape=(count, *node.result_shape))
        case Broadcast():
            shape, dimensions = (count, *node.result_shape), (0, *(d + 1 for d in node.dimensions))
            return dataclasses.replace(node, result_shape=shape, dimensions=dimensions)
        case Transpose():
            order = (0, *(d + 1 for d in node.permutation))
            return dataclasses.replace(node, permutation=order)
        case Slice():
            start, limit, stride = (0, *node.start), (count, *node.limit), (1, *node.stride)
            return dataclasses.replace(node, start=start, limit=limit, stride=stride)
        case Reverse() | Reduce():
            return dataclasses.replace(node, dimensions=tuple(d + 1 for d in node.dimensions))
        case Concatenate() | Scan():
            return dataclasses.replace(node, dimension=node.dimension + 1)
    raise NotSeparable
