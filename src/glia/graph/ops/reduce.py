"""Operations that combine many elements with a scalar region: reductions, windows, sorting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from glia.base.dtype import F32, PRED, S32, from_numpy
from glia.graph import scalar
from glia.graph.ir import Graph, Node, TensorType, Type, one_or_tuple, op, result_type
from glia.graph.ops.scalar_regions import (
    MONOIDS,
    apply,
    fold,
    fold_at,
    identity,
    monoid,
    reduce_monoid,
    run_scan,
)
from glia.graph.ops.shape import pad
from glia.graph.ops.sort_order import sorted_order
from glia.graph.type_rules import (
    require,
    require_combiner,
    require_dimensions,
    require_length,
    require_one_shape,
    require_scalar,
    require_signature,
    tensor,
    window_positions,
)

Array = np.ndarray[Any, Any]


def _require_reduction(xs: tuple[Node, ...], inits: tuple[Node, ...], body: Graph) -> None:
    require_length(inits, len(xs), "initial values")
    for x, init in zip(xs, inits, strict=True):
        require_scalar(init, x.dtype, "an initial value")
    require_combiner(body, [x.dtype for x in xs], "the reducing body")


@op
class Reduce(Node):
    """Reduce dimensions of one or several tensors of one shape with an associative computation.

    `body` takes (accumulators..., elements...) scalars and returns the new accumulators. The result
    is a tensor for one operand, a tuple for several.
    """

    xs: tuple[Node, ...]
    inits: tuple[Node, ...]
    dimensions: tuple[int, ...]
    body: Graph
    opcode: ClassVar[str] = "reduce"

    def infer(self) -> Type:
        shape = require_one_shape(self.xs, "reduce")
        require_dimensions(self.dimensions, len(shape), "reduced dimensions")
        _require_reduction(self.xs, self.inits, self.body)
        kept = tuple(extent for d, extent in enumerate(shape) if d not in self.dimensions)
        return result_type(TensorType(x.dtype, kept) for x in self.xs)

    def compute(self, *arrays: Array) -> Any:
        xs, inits = arrays[: len(self.xs)], arrays[len(self.xs) :]
        kind = monoid(self.body)
        if kind is not None:
            total = reduce_monoid(kind, xs[0], self.dimensions)
            return apply(self.body, [np.broadcast_to(inits[0], total.shape), total])[0]
        kept = [d for d in range(xs[0].ndim) if d not in self.dimensions]
        shape = tuple(xs[0].shape[d] for d in kept)
        count = math.prod(xs[0].shape[d] for d in self.dimensions)
        rows = [np.transpose(x, (*self.dimensions, *kept)).reshape(count, *shape) for x in xs]
        return one_or_tuple(fold(self.body, inits, rows))


def _padded_shape(shape: tuple[int, ...], low: Any, high: Any, dilation: Any) -> tuple[int, ...]:
    spread = zip(shape, low, high, dilation, strict=True)
    return tuple(max(0, lo + max(0, (n - 1) * step + 1) + hi) for n, lo, hi, step in spread)


def _windows(
    window: tuple[int, ...], result: tuple[int, ...], stride: Any, dilation: Any
) -> Iterator[tuple[slice, ...]]:
    """For each position in a window, the elements at that position of every window."""
    for at in np.ndindex(window):
        yield tuple(
            slice(i * by, i * by + (count - 1) * step + 1, step) if count else slice(0)
            for i, by, count, step in zip(at, dilation, result, stride, strict=True)
        )


SCAN_MONOIDS = ("add", "multiply", "maximum", "minimum")


@op
class Scan(Node):
    """The states of a recurrence along a dimension: factor[i] * state[i - 1] combined with x[i].

    `function` is the monoid that combines, whose identity is the state before the first element.
    States are float32, rounded to the type of x where they are results.
    """

    factor: Node
    x: Node
    function: str
    dimension: int
    opcode: ClassVar[str] = "scan"

    def infer(self) -> Type:
        shape = require_one_shape((self.factor, self.x), "scan")
        require_dimensions((self.dimension,), len(shape), "the dimension of a scan")
        require(self.function in SCAN_MONOIDS, f"no scan combines by {self.function}")
        require(self.x.dtype.is_float, "a scan is over floats")
        return tensor(self.x)

    def compute(self, factor: Array, x: Array) -> Any:
        states = run_scan(self.function, factor, x, self.dimension, x.shape[self.dimension])
        return states.astype(x.dtype)


@op
class Places(Node):
    """Where the `count` greatest of each row are: int32 places along the last dimension, in order.

    Of equal elements those that come first are taken first. x is float32 and finite.
    """

    x: Node
    count: int
    opcode: ClassVar[str] = "places"

    def infer(self) -> Type:
        x = tensor(self.x)
        require(x.dtype is F32, f"places are of float32, not of {x}")
        require(bool(x.shape) and 2 <= self.count <= x.shape[-1], f"{self.count} places of {x}")
        return TensorType(S32, (*x.shape[:-1], self.count))

    def compute(self, x: Array) -> Any:
        return places_of_greatest(x, self.count)


def places_of_greatest(x: Array, count: int) -> Array:
    """The places of the greatest elements along the last dimension, equal ones in order."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :count].astype(np.int32)


@op
class ReduceWindow(Node):
    """Reduce sliding windows of one or several tensors of one shape."""

    xs: tuple[Node, ...]
    inits: tuple[Node, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    x_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    body: Graph
    opcode: ClassVar[str] = "reduce_window"

    def infer(self) -> Type:
        shape = require_one_shape(self.xs, "reduce_window")
        for name in ("window", "stride", "low", "high", "x_dilation", "window_dilation"):
            require_length(getattr(self, name), len(shape), f"reduce_window's {name}")
        _require_reduction(self.xs, self.inits, self.body)
        result = tuple(map(window_positions, shape, self.window, self.stride, self.low, self.high,
                           self.x_dilation, self.window_dilation))  # fmt: skip
        return result_type(TensorType(x.dtype, result) for x in self.xs)

    def compute(self, *arrays: Array) -> Any:
        xs, inits = arrays[: len(self.xs)], arrays[len(self.xs) :]
        kind = monoid(self.body)
        shape = tuple(map(window_positions, xs[0].shape, self.window, self.stride, self.low,
                          self.high, self.x_dilation, self.window_dilation))  # fmt: skip
        if kind is not None:
            total = self._reduce_by_dimension(kind, xs[0])
            return apply(self.body, [np.broadcast_to(inits[0], shape), total])[0]
        padded = [self._pad(x, init) for x, init in zip(xs, inits, strict=True)]
        inside = self._pad(np.ones(xs[0].shape, bool), np.zeros((), bool))
        totals = [np.broadcast_to(init, shape) for init in inits]
        for region in _windows(self.window, shape, self.stride, self.window_dilation):
            new = apply(self.body, totals + [x[region] for x in padded])
            totals = [np.where(inside[region], a, b) for a, b in zip(new, totals, strict=True)]
        return one_or_tuple(totals)

    def _pad(self, x: Array, value: Array) -> Array:
        shape = _padded_shape(x.shape, self.low, self.high, self.x_dilation)
        return pad(x, value, shape, self.low, self.x_dilation)

    def _reduce_by_dimension(self, kind: str, x: Array) -> Array:
        """The windows of a monoid, one dimension after another."""
        combine, dtype = MONOIDS[kind], x.dtype
        padded = self._pad(x, identity(kind, from_numpy(dtype)))
        total = padded.astype(scalar.working_dtype(dtype))
        for d in range(x.ndim):
            reach = (self.window[d] - 1) * self.window_dilation[d] + 1
            count = max(0, (total.shape[d] - reach) // self.stride[d] + 1)
            ones = (slice(None),) * d
            parts = _windows((self.window[d],), (count,), (self.stride[d],),
                             (self.window_dilation[d],))  # fmt: skip
            first, *rest = [total[(*ones, *region)] for region in parts]
            total = np.array(first)
            with np.errstate(all="ignore"):
                for part in rest:
                    combine(total, part, out=total)
        return scalar.narrow(total, dtype)


@op
class SelectAndScatter(Node):
    """Scatter `source` to the element that `select` picks in each window.

    The first element of a window stays picked until `select(picked, next)` does not hold; values
    that arrive at one element are combined with `scatter`, starting from `init`.
    """

    x: Node
    source: Node
    init: Node
    window: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    select: Graph
    scatter: Graph
    opcode: ClassVar[str] = "select_and_scatter"

    def infer(self) -> Type:
        x, source = tensor(self.x), tensor(self.source)
        for name in ("window", "stride", "low", "high"):
            require_length(getattr(self, name), len(x.shape), f"select_and_scatter's {name}")
        ones = (1,) * len(x.shape)
        windows = tuple(map(window_positions, x.shape, self.window, self.stride, self.low,
                            self.high, ones, ones))  # fmt: skip
        require(source.shape == windows, f"source {source} for windows {list(windows)}")
        require_scalar(self.init, source.dtype, "the initial value")
        pair = [TensorType(x.dtype)] * 2
        require_signature(self.select, pair, [TensorType(PRED)], "select")
        require_combiner(self.scatter, [source.dtype], "scatter")
        return TensorType(source.dtype, x.shape)

    def compute(self, x: Array, source: Array, init: Array) -> Array:
        ones = (1,) * x.ndim
        shape = _padded_shape(x.shape, self.low, self.high, ones)
        padded = pad(x, np.zeros((), x.dtype), shape, self.low, ones)
        counted = np.arange(x.size).reshape(x.shape)
        places = pad(counted, np.array(-1), shape, self.low, ones)
        picked = np.full(source.shape, -1)
        best = np.zeros(source.shape, x.dtype)
        for region in _windows(self.window, source.shape, self.stride, ones):
            value, place = padded[region], places[region]
            keeps = apply(self.select, [best, value])[0]
            take = (place >= 0) & ((picked < 0) | ~keeps)
            picked, best = np.where(take, place, picked), np.where(take, value, best)
        target = np.full(x.size, init, source.dtype)
        hit = picked >= 0
        fold_at(self.scatter, [target], picked[hit], [source[hit]])
        return target.reshape(x.shape)


@op
class Sort(Node):
    """Sort one or several tensors of one shape along a dimension with a scalar comparator.

    `comparator` takes (a of the first tensor, b of the first, a of the second, ...) and holds when
    a belongs before b. The evaluation is stable whatever `is_stable` says.
    """

    xs: tuple[Node, ...]
    dimension: int
    is_stable: bool
    comparator: Graph
    opcode: ClassVar[str] = "sort"

    def infer(self) -> Type:
        shape = require_one_shape(self.xs, "sort")
        require_dimensions((self.dimension,), len(shape), "sorted dimension")
        pairs = [TensorType(x.dtype) for x in self.xs for _ in range(2)]
        require_signature(self.comparator, pairs, [TensorType(PRED)], "the comparator")
        return result_type(tensor(x) for x in self.xs)

    def compute(self, *arrays: Array) -> Any:
        rows = [np.moveaxis(array, self.dimension, -1) for array in arrays]
        order = sorted_order(self.comparator, rows)
        found = [np.take_along_axis(row, order, -1) for row in rows]
        return one_or_tuple([np.moveaxis(row, -1, self.dimension) for row in found])
