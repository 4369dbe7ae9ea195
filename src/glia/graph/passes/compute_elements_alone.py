"""Single elements of rows, read or changed: what depends on them is computed for them alone.

A loss reads one logarithm of each row, and its gradient changes one element of each. Whole rows of
logarithms, and of zeros with one other element, would be computed and stored for their sake.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from glia.base.loc import Loc
from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import (
    Broadcast,
    Constant,
    Convert,
    Gather,
    Map,
    Reduce,
    ReducePrecision,
    Reshape,
    Scatter,
    Slice,
    Transpose,
)
from glia.graph.ops.scalar_regions import monoid, returned_parameter, scalar_graph
from glia.graph.rules.algebra import fold_convert_of_splat, fold_splats
from glia.graph.rules.constructors import apply, reshape, select, slice_along, splat, splat_like
from glia.graph.rules.driver import map_regions
from glia.graph.rules.facts import is_increasing, uniform
from glia.graph.rules.inline_regions import inline_scalar_graph
from glia.options import CompileOptions

ELEMENTWISE = (Map, Convert, ReducePrecision)
RECOMPUTED = frozenset({"add", "subtract", "multiply", "negate", "maximum", "minimum"})
LEAST_SHARE = 64  # elements of a tensor for each that is read or changed: else all may be no more


def compute_elements_alone(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with gathers before elementwise operations, and scatters after them.

    gather(f(x, rows), i) = f(gather(x, i), rows), where x is stored for other readers anyway;
    f(scatter(x, i, u), y) = scatter(f(x, y), i, f(u, gather(y, i))), where each row has one u;
    sum(scatter(0, i, u)) over rows = u, or 0 for what lies outside.
    """
    return _rewrite(graph)


def _rewrite(graph: Graph) -> Graph:
    changed = _Rewriter(graph).results()
    same = all(new is old for new, old in zip(changed, graph.results, strict=True))
    return graph if same else dataclasses.replace(graph, results=changed)


@dataclass(frozen=True)
class _Places:
    """Where single elements of a tensor lie: `shape` of them, each in the row of its batch."""

    indices: Node
    vector_dim: int
    starts: tuple[int, ...]  # the dimension of the tensor for each number of an index vector
    dropped: tuple[int, ...]
    x_batch: tuple[int, ...]
    indices_batch: tuple[int, ...]
    shape: tuple[int, ...]
    loc: Loc

    def read(self, x: Node) -> Node:
        """The elements of a tensor at the places."""
        return Gather(x, self.indices, (), self.dropped, self.x_batch, self.indices_batch,
                      self.starts, self.vector_dim, (1,) * len(x.shape), loc=self.loc)  # fmt: skip

    def has_rows_of(self, node: Node) -> bool:
        """Whether elements of a tensor depend on the row only."""
        return (
            isinstance(node, Broadcast)
            and set(node.dimensions) <= set(self.x_batch)
            and node.x.shape == tuple(node.shape[d] for d in node.dimensions)
        )

    def rows(self, node: Broadcast, x: Node) -> Node:
        """The elements at the places of a tensor that repeats x along its rows."""
        at = [self.indices_batch[self.x_batch.index(d)] for d in node.dimensions]
        return Broadcast(x, self.shape, tuple(d - (d > self.vector_dim) for d in at))


@dataclass
class _Parts:
    """What elements are computed from: operations, tensors that are read, and constants."""

    computed: set[Node] = field(default_factory=set)
    leaves: set[Node] = field(default_factory=set)
    constants: set[Node] = field(default_factory=set)  # of all, or of each row


def _places_read(op: Gather, indices: Node) -> _Places | None:
    """The places of a gather of single elements, where they are few."""
    if op.offset_dims or {*op.slice_sizes} != {1} or not _are_few(op.shape, op.x.shape):
        return None
    return _Places(indices, op.index_vector_dim, op.start_index_map, op.collapsed_dims,
                   op.x_batch_dims, op.indices_batch_dims, op.shape, op.loc)  # fmt: skip


def _places_changed(op: Scatter) -> _Places | None:
    """The places of a scatter of one element in each row."""
    if len(op.xs) != 1 or op.update_window_dims:
        return None
    (x,), (update,) = op.xs, op.updates
    rows = math.prod(x.shape[d] for d in op.x_batch_dims)
    if math.prod(update.shape) != rows or not _are_few(update.shape, x.shape):
        return None
    return _Places(op.indices, op.index_vector_dim, op.scatter_dims, op.inserted_window_dims,
                   op.x_batch_dims, op.indices_batch_dims, update.shape, op.loc)  # fmt: skip


def _are_few(elements: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether there are elements, few of all that a tensor of a shape has."""
    return 0 < LEAST_SHARE * math.prod(elements) <= math.prod(shape)


class _Rewriter:
    """Rewrites a graph; `image` has the new node of each, `root` the scatter that some come from.

    Who reads a value is asked of the graph as it was.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self.image: dict[Node, Node] = {}
        self.root: dict[Node, Node] = {}

    def results(self) -> tuple[Node, ...]:
        """The new results."""
        for node in self.graph.nodes:
            operands = [self.image[operand] for operand in node.operands]
            same = all(new is old for new, old in zip(operands, node.operands, strict=True))
            rebuilt = node if same else node.with_operands(operands)
            found = self._rewritten(node, rebuilt) or map_regions(rebuilt, _rewrite)
            self.image[node] = found
            if isinstance(found, Scatter) and _places_changed(found):
                self.root.setdefault(node, node)
        return tuple(self.image[result] for result in self.graph.results)

    def _rewritten(self, node: Node, rebuilt: Node) -> Node | None:
        if isinstance(node, Gather):
            places = _places_read(node, self.image[node.indices])
            return self._gathered(node, places) if places else None
        if isinstance(node, ELEMENTWISE):
            return self._after_scatter(node)
        if isinstance(node, Reduce) and isinstance(rebuilt, Reduce):
            return self._summed(node, rebuilt)
        return None

    def _gathered(self, node: Gather, places: _Places) -> Node | None:
        """gather(f(x, rows), i) = f(gather(x, i), rows)"""
        if not _is_elementwise(node.x) or self._is_stored(node.x, places):
            return None
        found = self._elements_at([node.x], places, node, must_read=True)
        return found[0] if found else None

    def _after_scatter(self, node: Node) -> Node | None:
        """f(scatter(x, i, u), y) = scatter(f(x, y), i, f(u, gather(y, i)))"""
        changed = [each for each in dict.fromkeys(node.operands) if each in self.root]
        if len(changed) != 1 or any(each.shape != node.shape for each in node.operands):
            return None
        (source,) = changed
        scatter = self.image[source]
        assert isinstance(scatter, Scatter)
        places = _places_changed(scatter)
        assert places is not None
        old, new = uniform(scatter.xs[0]), scatter.updates[0]
        replaces = returned_parameter(scatter.body) == 1
        if old is None and not (replaces and self._is_read_by(source, {node})):
            return None
        others = [each for each in dict.fromkeys(node.operands) if each is not source]
        alone = self._elements_at(others, places, node)
        if alone is None:
            return None
        if not replaces:
            (new,) = inline_scalar_graph(scatter.body, (splat_like(old, new), new))
        values = {source: new, **dict(zip(others, alone, strict=True))}
        bases = {source: scatter.xs[0], **{each: self.image[each] for each in others}}
        update, base = (
            node.with_operands([of[each] for each in node.operands]) for of in (values, bases)
        )
        self.root[node] = self.root[source]
        base = _folded(base)
        replacing = scalar_graph("replace", (node.dtype, node.dtype), lambda _, after: after)
        return dataclasses.replace(scatter, xs=(base,), updates=(update,), body=replacing)

    def _summed(self, node: Reduce, rebuilt: Reduce) -> Node | None:
        """sum(scatter(0, i, u)) over rows = u where i is inside, else 0

        Where something else reads the scatter, which reports what lies outside.
        """
        source = node.xs[0]
        root = self.root.get(source)
        if root is None or len(node.xs) != 1 or monoid(node.body) != "add":
            return None
        scatter = self.image[source]
        assert isinstance(scatter, Scatter)
        is_sum = returned_parameter(scatter.body) == 1 or monoid(scatter.body) == "add"
        in_order = is_increasing(scatter.x_batch_dims) and is_increasing(scatter.indices_batch_dims)
        is_row = set(node.dimensions) == set(scatter.inserted_window_dims)
        is_reported = len(self.graph.users[root]) > 1 or root in self.graph.results
        if not (is_sum and in_order and is_row and is_reported):
            return None
        base = uniform(scatter.xs[0])
        if base is None or base != 0:
            return None
        values = reshape(scatter.updates[0], node.shape)
        nothing = splat_like(base, values)
        for number, dimension in enumerate(scatter.scatter_dims):
            at = reshape(self._numbers(scatter, number), node.shape)
            last = splat_like(scatter.xs[0].shape[dimension] - 1, at)
            values = select(apply("less_equal", at, last), values, nothing)
            values = select(apply("greater_equal", at, splat_like(0, at)), values, nothing)
        init = Broadcast(rebuilt.inits[0], node.shape, ())
        return inline_scalar_graph(node.body, (init, values))[0]

    @staticmethod
    def _numbers(scatter: Scatter, number: int) -> Node:
        """One number of each index vector."""
        if scatter.index_vector_dim == len(scatter.indices.shape):
            return scatter.indices
        return slice_along(scatter.indices, scatter.index_vector_dim, number, number + 1)

    # --- elements of what is computed elementwise ------------------------------------------------

    def _elements_at(
        self, values: Sequence[Node], places: _Places, reader: Node, *, must_read: bool = False
    ) -> list[Node] | None:
        """The elements of tensors at places, computed from those of one tensor that is stored.

        None where they take elements of several, or of one that nothing but `reader` needs; with
        `must_read` also where they take none, so that nothing reports a place outside.
        """
        for stops_at_stored in (False, True):
            parts = self._parts(values, places, stops_at_stored=stops_at_stored)
            if len(parts.leaves) > 1 or (must_read and not parts.leaves):
                continue
            if all(self._is_there(leaf, parts.computed, reader) for leaf in parts.leaves):
                return self._elements(values, parts, places)
        return None

    def _parts(self, values: Sequence[Node], places: _Places, *, stops_at_stored: bool) -> _Parts:
        """What elements of tensors are computed from, down to what has several readers or all."""
        parts = _Parts()
        waiting = list(values)
        while waiting:
            node = waiting.pop()
            if uniform(node) is not None or places.has_rows_of(node):
                parts.constants.add(node)
            elif node in parts.computed:
                continue
            elif _is_elementwise(node) and not (stops_at_stored and self._is_stored(node, places)):
                parts.computed.add(node)
                waiting += node.operands
            else:
                parts.leaves.add(node)
        return parts

    def _elements(self, values: Sequence[Node], parts: _Parts, places: _Places) -> list[Node]:
        """The elements of tensors at places, operands first."""
        made: dict[Node, Node] = {}
        every = (*parts.computed, *parts.leaves, *parts.constants)
        for node in sorted(every, key=self.position.__getitem__):
            if node in parts.leaves:
                made[node] = places.read(self.image[node])
            elif node in parts.computed:
                made[node] = node.with_operands([made[operand] for operand in node.operands])
            else:
                made[node] = self._constant(node, places)
        return [made[value] for value in values]

    def _constant(self, node: Node, places: _Places) -> Node:
        """The elements of a tensor of one value, or of one for each row."""
        value = uniform(node)
        if value is not None:
            return splat(value, node.dtype, places.shape)
        assert isinstance(node, Broadcast)
        return places.rows(node, self.image[node.x])

    def _is_stored(self, node: Node, places: _Places) -> bool:
        """Whether an elementwise result has several readers, and is no cheap function of one."""
        is_cheap = not isinstance(node, Map) or node.function in RECOMPUTED
        return len(self.graph.users[node]) > 1 and not (is_cheap and _has_one_tensor(node, places))

    def _is_there(self, leaf: Node, computed: Set[Node], reader: Node) -> bool:
        """Whether a tensor is stored for others than `reader`.

        They read it, or a cheap function of it, which is not stored in its place.
        """
        source = leaf
        while isinstance(source, Slice | Reshape | Transpose):
            source = source.x
        if isinstance(source, Parameter | Constant) or leaf in self.graph.results:
            return True
        own, waiting = {*computed, reader}, [leaf]
        while waiting:
            node = waiting.pop()
            readers = self.graph.users[node]
            if not own.issuperset(readers):
                return True
            waiting += (
                each for each in readers
                if each in computed and (not isinstance(each, Map) or each.function in RECOMPUTED)
            )  # fmt: skip
        return False

    def _is_read_by(self, node: Node, readers: Set[Node]) -> bool:
        """Whether nothing else reads a value."""
        return set(self.graph.users[node]) <= readers and node not in self.graph.results


def _folded(node: Node) -> Node:
    """An elementwise operation on one value, as that value."""
    rules = (fold_splats, fold_convert_of_splat)
    found = (each(node) for each in rules if isinstance(node, each.patterns))
    return next(found, None) or node


def _is_elementwise(node: Node) -> bool:
    return isinstance(node, ELEMENTWISE) and all(each.shape == node.shape for each in node.operands)


def _has_one_tensor(node: Node, places: _Places) -> bool:
    """Whether all operands of an operation but one repeat a value, or one of each row."""
    whole = (
        each for each in node.operands if uniform(each) is None and not places.has_rows_of(each)
    )
    return len({*whole}) == 1
