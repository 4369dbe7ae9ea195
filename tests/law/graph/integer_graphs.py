"""Random graphs of integer operations, for laws about ranges and widths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glia.base.dtype import PRED, S8, S32, S64, U32, U64, DType, Kind
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import (
    Broadcast,
    Concatenate,
    Conditional,
    Convert,
    Dot,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Iota,
    Map,
    Pad,
    Reduce,
    ReduceWindow,
    Reverse,
    Scatter,
    Slice,
    Sort,
    While,
    combiner,
    identity,
    results_of,
    scalar_graph,
)
from glia.graph.rules.constructors import constant, region, splat

EXTENT = 6
WIDE = (S64, U64)
DTYPES = (S64, S64, S64, U64, S32, U32, S8, PRED)
BINARY = ("add", "subtract", "multiply", "divide", "remainder", "minimum", "maximum", "and", "or",
          "xor", "shift_left", "shift_right_logical", "shift_right_arithmetic")  # fmt: skip
UNARY = ("negate", "abs", "sign", "not", "popcount", "count_leading_zeros", "square")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
EDGES = (0, 1, -1, 2, 3, 5, 31, 32, 63, 64, 100, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40,
         -(2**31), -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63))  # fmt: skip

Array = np.ndarray[Any, Any]


def random_graph(seed: int, operations: int = 14) -> tuple[Graph, list[Array]]:
    """A graph on vectors of EXTENT integers whose results are its values, and inputs for it."""
    maker = _Maker(np.random.default_rng(seed))
    for _ in range(operations):
        maker.add_operation()
    return maker.graph(), maker.inputs


class _Maker:
    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._parameters: list[Parameter] = []
        self.inputs: list[Array] = []
        self._values: list[Node] = []
        for dtype in (S64, U64, S32, S8, PRED):
            self._add_parameter(dtype)
        self._values += [self._splat(dtype) for dtype in (S64, S64, S64, U64, S32)]
        self._values += [Iota(TensorType(dtype, (EXTENT,)), 0) for dtype in (S64, U64)]

    def graph(self) -> Graph:
        """Every value that was made, as results."""
        return Graph("random", tuple(self._parameters), tuple(self._values))

    def add_operation(self) -> None:
        """One more operation on the values there are."""
        kinds = (self._binary, self._binary, self._unary, self._comparison, self._select,
                 self._convert, self._convert, self._clamp, self._bounded, self._movement,
                 self._reduction, self._window, self._indexed, self._updated, self._scatter,
                 self._sort, self._loop, self._branch, self._extreme, self._product)  # fmt: skip
        kind: Callable[[], tuple[Node, ...] | Node] = kinds[self._random.integers(len(kinds))]
        made = kind()
        self._values += made if isinstance(made, tuple) else (made,)

    def _add_parameter(self, dtype: DType) -> None:
        kind = TensorType(dtype, (EXTENT,))
        self._parameters.append(Parameter(len(self.inputs), kind, f"x{len(self.inputs)}"))
        self._values.append(self._parameters[-1])
        edges = np.array([self._edge() for _ in range(EXTENT)], object) & (2**64 - 1)
        array = edges.astype(np.uint64)
        self.inputs.append(array != 0 if dtype is PRED else array.astype(dtype.numpy))

    def _edge(self) -> int:
        return EDGES[self._random.integers(len(EDGES))] + int(self._random.integers(-1, 2))

    def _number(self, dtype: DType) -> Array:
        value = np.array(self._edge() & (2**64 - 1), np.uint64)
        return value != 0 if dtype is PRED else value.astype(dtype.numpy)

    def _splat(self, dtype: DType) -> Node:
        return splat(self._number(dtype), dtype, (EXTENT,))

    def _dtype(self) -> DType:
        return DTYPES[self._random.integers(len(DTYPES))]

    def _pick(self, dtype: DType | None = None, count: int = 1) -> list[Node]:
        """Values of one dtype, of the last ones rather than the first; a new one is converted."""
        dtype = dtype or self._dtype()
        found = [value for value in self._values if value.dtype is dtype]
        if not found:
            found = [Convert(self._values[self._random.integers(len(self._values))], dtype)]
        weights = np.arange(1, len(found) + 1, dtype=float)
        places = self._random.choice(len(found), count, p=weights / weights.sum())
        return [found[place] for place in places]

    def _integer(self) -> DType:
        dtype = self._dtype()
        return S64 if dtype is PRED else dtype

    def _binary(self) -> Node:
        a, b = self._pick(self._integer(), 2)
        return Map(BINARY[self._random.integers(len(BINARY))], (a, b))

    def _unary(self) -> Node:
        (x,) = self._pick(self._integer())
        function = UNARY[self._random.integers(len(UNARY))]
        if function in ("negate", "abs") and x.dtype.kind is Kind.UNSIGNED:
            function = "not"
        return Map(function, (x,))

    def _comparison(self) -> Node:
        a, b = self._pick(None, 2)
        return Map(COMPARISONS[self._random.integers(len(COMPARISONS))], (a, b))

    def _select(self) -> Node:
        """As of an index from the end: x where it is not negative, else x plus an extent."""
        a, b = self._pick(self._integer(), 2)
        predicate = Map(COMPARISONS[self._random.integers(len(COMPARISONS))], (a, b))
        if self._random.integers(2):
            predicate = Map("and", (predicate, self._pick(PRED)[0]))
        return Map("select", (predicate, a, Map("add", (a, b))))

    def _convert(self) -> Node:
        (x,) = self._pick()
        return Convert(x, self._dtype())

    def _clamp(self) -> Node:
        return Map("clamp", tuple(self._pick(self._integer(), 3)))

    def _bounded(self) -> Node:
        """A value of few bits."""
        (x,) = self._pick(self._integer())
        return Map("and", (x, splat(int(self._random.integers(1, 100)), x.dtype, (EXTENT,))))

    def _movement(self) -> Node:
        a, b = self._pick(None, 2)
        choice = self._random.integers(3)
        if choice == 0:
            return Reverse(a, (0,))
        if choice == 1:
            padded = Pad(a, constant(self._number(a.dtype), a.dtype), (2,), (1,), (0,))
            return Slice(padded, (1,), (1 + EXTENT,), (1,))
        return Slice(Concatenate((a, b), 0), (0,), (2 * EXTENT,), (2,))

    def _monoid(self) -> str:
        return str(self._random.choice(["add", "multiply", "minimum", "maximum", "and", "or"]))

    def _reduction(self) -> Node:
        (x,) = self._pick(self._integer())
        kind = self._monoid()
        init = identity(kind, x.dtype) if self._random.integers(3) else self._number(x.dtype)
        total = Reduce((x,), (constant(init, x.dtype),), (0,), combiner(kind, x.dtype))
        return Broadcast(total, (EXTENT,), ())

    def _window(self) -> Node:
        (x,) = self._pick(self._integer())
        kind = self._monoid()
        init = constant(identity(kind, x.dtype), x.dtype)
        low = int(self._random.integers(0, 5))
        high = 2 - low  # as many windows as elements
        return ReduceWindow((x,), (init,), (3,), (1,), (low,), (high,), (1,), (1,),
                            combiner(kind, x.dtype))  # fmt: skip

    def _indexed(self) -> Node:
        (x,), (i,) = self._pick(), self._pick(self._index_dtype())
        if self._random.integers(2):
            return Gather(x, i, (), (0,), (), (), (0,), 1, (1,))
        first = Reduce((start_of(i),), (constant(0, i.dtype),), (0,), combiner("add", i.dtype))
        return Concatenate((DynamicSlice(x, (first,), (EXTENT - 1,)), start_of(x)), 0)

    def _index_dtype(self) -> DType:
        return (S64, U64, S32)[self._random.integers(3)]

    def _updated(self) -> Node:
        x, update = self._pick(None, 2)
        (i,) = self._pick(self._index_dtype())
        start = Reduce((i,), (constant(0, i.dtype),), (0,), combiner("maximum", i.dtype))
        return DynamicUpdateSlice(x, start_of(update), (start,))

    def _scatter(self) -> Node:
        x, update = self._pick(self._integer(), 2)
        (i,) = self._pick(self._index_dtype())
        body = (scalar_graph("set", [x.dtype] * 2, lambda old, new: new)
                if self._random.integers(2) else combiner(self._monoid(), x.dtype))  # fmt: skip
        return Scatter((x,), i, (update,), (), (0,), (), (), (0,), 1, False, body)

    def _sort(self) -> tuple[Node, ...]:
        (key,), (value,) = self._pick(self._integer()), self._pick()
        order = scalar_graph(
            "order", [key.dtype] * 2 + [value.dtype] * 2, lambda a, b, c, d: Map("less", (a, b))
        )
        return results_of(Sort((key, value), 0, True, order))

    def _loop(self) -> tuple[Node, ...]:
        """A counter up to a bound, and a value that each iteration changes."""
        (x,), (y,) = self._pick(self._integer()), self._pick(S64)
        bound, function = int(self._random.integers(1, 9)), self._monoid()
        step = int(self._random.integers(1, 3))
        counter = TensorType(S64)
        types = [counter, TensorType(x.dtype, x.shape), TensorType(S64, y.shape)]

        def more(i: Node, *_: Node) -> Node:
            return Map("less", (i, constant(bound, S64)))

        def body(i: Node, x: Node, y: Node) -> tuple[Node, ...]:
            counts = Broadcast(i, (EXTENT,), ())
            changed = Map(function, (x, Convert(counts, x.dtype)))
            return Map("add", (i, constant(step, S64))), changed, Map("minimum", (y, counts))

        first = constant(int(self._random.integers(-3, 3)), S64)
        loop = While((first, x, y), region("more", types, more), region("body", types, body))
        i, *rest = results_of(loop)
        return Broadcast(i, (EXTENT,), ()), *rest

    def _branch(self) -> tuple[Node, ...]:
        a, b = self._pick(self._integer(), 2)
        (p,) = self._pick(PRED)
        chosen = Reduce((p,), (constant(False, PRED),), (0,), combiner("or", PRED))
        kind = TensorType(a.dtype, a.shape)
        branches = (region("true", [kind], lambda x: Map("subtract", (x, x))),
                    region("false", [kind], lambda x: Map("not", (x,))))  # fmt: skip
        return results_of(Conditional(chosen, (a, b), (1, 1), branches))

    def _extreme(self) -> tuple[Node, ...]:
        """The maximum and the value that stands beside it, as a reduction of two tensors."""
        (x,), (i,) = self._pick(self._integer()), self._pick(self._integer())

        def better(a: Node, i: Node, b: Node, j: Node) -> tuple[Node, ...]:
            takes = Map("greater_equal", (a, b))
            return Map("select", (takes, a, b)), Map("select", (takes, i, j))

        body = scalar_graph("better", [x.dtype, i.dtype, x.dtype, i.dtype], better)
        inits = (constant(identity("maximum", x.dtype), x.dtype), constant(0, i.dtype))
        found = results_of(Reduce((x, i), inits, (0,), body))
        return tuple(Broadcast(each, (EXTENT,), ()) for each in found)

    def _product(self) -> Node:
        a, b = self._pick(WIDE[self._random.integers(2)], 2)
        return Broadcast(Dot(a, b, (), (), (0,), (0,), a.dtype), (EXTENT,), ())


def start_of(x: Node) -> Node:
    """The first element of a vector, as a vector."""
    return Slice(x, (0,), (1,), (1,))
