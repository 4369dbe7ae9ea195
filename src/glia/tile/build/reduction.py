"""Reductions: deferred values that become a nest, with their readers as its epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32, PRED, S32, U32, DType, Kind
from glia.frontend.errors import UnsupportedOperator
from glia.graph import ops
from glia.graph.ir import Graph, Node
from glia.graph.ops.scalar_regions import identity, monoid
from glia.tile.build.nest import Index, NestBuilder, delinearise
from glia.tile.build.read_cost import read_cost
from glia.tile.build.rounding import reads_as_tf32
from glia.tile.build.values import DeferredValue, ScalarValue, guards, plain_load
from glia.tile.ir import Accumulator, Apply, Expr, Literal, Reduction

if TYPE_CHECKING:
    from glia.tile.build.block import NestBlock


def accumulator_dtype(dtype: DType) -> DType:
    """The widest accumulator: f32 for floats, 32 bits for integers, pred for pred."""
    if dtype.is_float:
        return F32
    if dtype is PRED:
        return PRED
    return S32 if dtype.kind is Kind.SIGNED else U32


class ReductionValue(DeferredValue):
    """A reduction; it becomes the nest of a reader that reads every element once."""

    function = "add"
    is_reduction = True

    def __init__(self, block: NestBlock, node: Node) -> None:
        super().__init__(block, node)
        self.accumulator = accumulator_dtype(self.dtype)

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        if not self._claim(nest, index):
            self.materialise()
            return self.at(nest, index)
        result: Expr = Accumulator(self.accumulator)
        result = self.combine_with_start(nest, result)
        if self.dtype is not self.accumulator:
            result = Apply("convert", (result,), self.dtype)
        return result

    def _claim(self, nest: NestBuilder, index: Index) -> bool:
        """Make this the nest's reduction; False when it has one or does not read all elements."""
        if nest.owner is self:
            return index == nest.owner_index
        if nest.owner is not None or not nest.enumerates(index, self.shape):
            return False
        nest.owner, nest.owner_index = self, index
        outside = set(nest.extents)
        nest.body = self.body(nest, index)
        axes = tuple(name for name in nest.extents if name not in outside)
        nest.reduction = Reduction(axes, self.function, self.accumulator)
        return True

    def body(self, nest: NestBuilder, index: Index) -> Expr:
        """The term for the result at `index`; creates the reduced axes."""
        raise TypeError(f"{type(self).__name__} has no body")

    def combine_with_start(self, nest: NestBuilder, result: Expr) -> Expr:
        """The reduced value combined with the initial value."""
        return result


class DotValue(ReductionValue):
    """sum over k of a * b, both plain loads."""

    node: ops.Dot

    def __init__(self, block: NestBlock, node: ops.Dot, a: DeferredValue, b: DeferredValue) -> None:
        super().__init__(block, node)
        self.a, self.b = a, b
        block.names.has_wide_contractions |= _are_halves(a, b)
        if not self.dtype.is_float and self.dtype is not PRED:
            self.accumulator = S32

    def body(self, nest: NestBuilder, index: Index) -> Expr:
        node = self.node
        a: list[Affine] = [ZERO] * len(self.a.shape)
        b: list[Affine] = [ZERO] * len(self.b.shape)
        batch, rest = index[: len(node.a_batch)], iter(index[len(node.a_batch) :])
        for i, j, at in zip(node.a_batch, node.b_batch, batch, strict=True):
            a[i] = b[j] = at
        for d in _remaining_dims(len(a), node.a_batch, node.a_contract):
            a[d] = next(rest)
        for d in _remaining_dims(len(b), node.b_batch, node.b_contract):
            b[d] = next(rest)
        for count, (i, j) in enumerate(zip(node.a_contract, node.b_contract, strict=True)):
            a[i] = b[j] = nest.axis(f"k{count}", self.a.shape[i])
        return product(nest, (self.a, tuple(a)), (self.b, tuple(b)), self.accumulator)


def product(
    nest: NestBuilder, a: tuple[DeferredValue, Index], b: tuple[DeferredValue, Index], dtype: DType
) -> Expr:
    """The product of two plain loads."""
    is_rounded = reads_as_tf32(a[0], b[0])
    left, right = (plain_load(value, nest, at, is_rounded, at_offsets=True) for value, at in (a, b))
    return Apply("multiply", (left, right), dtype)


def _remaining_dims(rank: int, *used: tuple[int, ...]) -> list[int]:
    taken = {d for dims in used for d in dims}
    return [d for d in range(rank) if d not in taken]


def _are_halves(*values: DeferredValue) -> bool:
    return all(value.dtype.is_float and value.dtype.bits == 16 for value in values)


class ConvolutionValue(ReductionValue):
    """sum over features and window of x * kernel, with guards where the window leaves x."""

    keeps_axes = True
    node: ops.Convolution

    def __init__(
        self, block: NestBlock, node: ops.Convolution, x: DeferredValue, kernel: DeferredValue
    ) -> None:
        super().__init__(block, node)
        self.x, self.kernel = x, kernel
        block.names.has_wide_contractions |= _are_halves(x, kernel)

    def body(self, nest: NestBuilder, index: Index) -> Expr:
        node, window = self.node, self.kernel.shape[2:]
        features = self.kernel.shape[1]
        batch, output, *spatial = index
        groups = max(node.groups, node.batch_groups)
        group = ZERO
        if groups > 1:
            shape = (groups, self.kernel.shape[0] // groups)
            group, _ = delinearise(output, shape, nest.extents)
        feature = nest.axis("k", features)
        x, kernel = [batch, feature], [output, feature]
        if node.batch_groups > 1:
            x[0] = group * self.shape[0] + batch
        elif groups > 1:
            x[1] = group * features + feature
        for d, at in enumerate(spatial):
            step = nest.axis(f"w{d}", window[d])
            x.append(at * node.stride[d] + step * node.kernel_dilation[d] - node.low[d])
            kernel.append(step * -1 + (window[d] - 1) if node.kernel_reversal[d] else step)
        is_rounded = reads_as_tf32(self.x, self.kernel)
        left = guarded_load(self.x, nest, tuple(x), 0, is_rounded)
        right = plain_load(self.kernel, nest, tuple(kernel), is_rounded)
        return Apply("multiply", (left, right), self.accumulator)


def guarded_load(
    x: DeferredValue, nest: NestBuilder, index: Index, fill: float | int, is_rounded: bool = False
) -> Expr:
    """A load that gives `fill` outside x.

    Where x is a view whose indices are not those that the guards are on, it gets a buffer.
    """
    checks = guards(index, x.shape, nest)
    load = plain_load(x, nest, index, is_rounded)
    if any(check.expression not in load.index for check in checks):
        x.materialise()
        load = plain_load(x, nest, index, is_rounded)
    return replace(load, guards=checks, fill=fill if checks else 0)


def monoid_of(body: Graph, node: ops.Reduce | ops.ReduceWindow | ops.Scatter) -> str:
    """The monoid that a region computes; UnsupportedOperator when there is none."""
    found = monoid(body)
    if found is None:
        raise UnsupportedOperator(
            opcode=f"{node.opcode} with this computation", nearest="", loc=node.loc
        )
    return found


class _MonoidReductionValue(ReductionValue):
    """A reduction by a monoid, with an initial value."""

    def __init__(
        self,
        block: NestBlock,
        node: ops.Reduce | ops.ReduceWindow,
        x: DeferredValue,
        start: DeferredValue,
    ) -> None:
        super().__init__(block, node)
        if self.dtype.is_float and not block.names.accumulates_in_float32:
            self.accumulator = self.dtype
        self.function = monoid_of(node.body, node)
        if self.accumulator.bits == 16 and self.function in ("add", "multiply"):
            block.names.has_narrow_reductions = True
        self.x, self.start = x, start
        if start.is_costly:
            start.materialise_work()

    @property
    def neutral(self) -> float | int:
        """The identity element of the monoid."""
        neutral: float | int = identity(self.function, self.dtype).item()
        return neutral

    def combine_with_start(self, nest: NestBuilder, result: Expr) -> Expr:
        if isinstance(self.start, ScalarValue) and self.start.number == self.neutral:
            return result
        start = self.start.at(nest, ())
        if isinstance(start, Literal):
            start = replace(start, dtype=self.accumulator)
        elif start.dtype is not self.accumulator:
            start = Apply("convert", (start,), self.accumulator)
        return Apply(self.function, (result, start), self.accumulator)


class ReduceValue(_MonoidReductionValue):
    """A reduction over whole dimensions; the operand's expression becomes its body."""

    node: ops.Reduce

    def __init__(
        self, block: NestBlock, node: ops.Reduce, x: DeferredValue, start: DeferredValue
    ) -> None:
        super().__init__(block, node, x, start)
        if read_cost((x,)).needs_buffer or x.pending_reduction:
            x.materialise_work()

    def body(self, nest: NestBuilder, index: Index) -> Expr:
        kept = iter(index)
        at = tuple(
            nest.axis(f"k{d}", extent) if d in self.node.dimensions else next(kept)
            for d, extent in enumerate(self.x.shape)
        )
        return self.x.at(nest, at)


class ReduceWindowValue(_MonoidReductionValue):
    """A reduction over sliding windows of a plain load."""

    node: ops.ReduceWindow

    def body(self, nest: NestBuilder, index: Index) -> Expr:
        node, at = self.node, []
        for d, i in enumerate(index):
            step = nest.axis(f"w{d}", node.window[d])
            at.append(i * node.stride[d] + step * node.window_dilation[d] - node.low[d])
        return guarded_load(self.x, nest, tuple(at), self.neutral)
