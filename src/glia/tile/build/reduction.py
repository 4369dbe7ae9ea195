"""Reductions: values that a nest may hold one of, with their readers as its epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32, PRED, S32, U32, DType, Kind
from glia.frontend.errors import UnsupportedOperator
from glia.graph import ops
from glia.graph.ir import Graph, Node
from glia.graph.ops.scalar_regions import identity, monoid
from glia.tile.build.nest import Index, NestInProgress, delinearise
from glia.tile.build.read_cost import survey
from glia.tile.build.values import Scalar, Value, guards, plain_load
from glia.tile.ir import Accumulator, Apply, Expr, Literal, Reduction

if TYPE_CHECKING:
    from glia.tile.build.block import Block


def accumulator_dtype(dtype: DType) -> DType:
    """What a reduction over `dtype` is summed in: floats in f32, integers in 32 bits."""
    if dtype.is_float:
        return F32
    if dtype is PRED:
        return PRED
    return S32 if dtype.kind is Kind.SIGNED else U32


class Reduced(Value):
    """A value that is a reduction; it becomes the nest of whoever reads all of it once."""

    function = "add"
    is_reduction = True

    def __init__(self, block: Block, node: Node) -> None:
        super().__init__(block, node)
        self.accumulator = accumulator_dtype(self.dtype)

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        if not self._claim(nest, index):
            self.materialise()
            return self.at(nest, index)
        result: Expr = Accumulator(self.accumulator)
        result = self.combine_with_start(nest, result)
        if self.dtype is not self.accumulator:
            result = Apply("convert", (result,), self.dtype)
        return result

    def _claim(self, nest: NestInProgress, index: Index) -> bool:
        """Make the nest's reduction this one; False when it has another or reads only a part."""
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

    def body(self, nest: NestInProgress, index: Index) -> Expr:
        """The term for the result at `index`; creates the reduced axes."""
        raise TypeError(f"{type(self).__name__} has no body")

    def combine_with_start(self, nest: NestInProgress, result: Expr) -> Expr:
        """The reduced value with the initial value taken in."""
        return result


class DotValue(Reduced):
    """sum over k of a * b, both plain loads."""

    node: ops.Dot

    def __init__(self, block: Block, node: ops.Dot, a: Value, b: Value) -> None:
        super().__init__(block, node)
        self.a, self.b = a, b
        if not self.dtype.is_float and self.dtype is not PRED:
            self.accumulator = S32

    def body(self, nest: NestInProgress, index: Index) -> Expr:
        node = self.node
        a: list[Affine] = [ZERO] * len(self.a.shape)
        b: list[Affine] = [ZERO] * len(self.b.shape)
        batch, rest = index[: len(node.a_batch)], iter(index[len(node.a_batch) :])
        for i, j, at in zip(node.a_batch, node.b_batch, batch, strict=True):
            a[i] = b[j] = at
        for d in _others(len(a), node.a_batch, node.a_contract):
            a[d] = next(rest)
        for d in _others(len(b), node.b_batch, node.b_contract):
            b[d] = next(rest)
        for count, (i, j) in enumerate(zip(node.a_contract, node.b_contract, strict=True)):
            a[i] = b[j] = nest.axis(f"k{count}", self.a.shape[i])
        return product(nest, (self.a, tuple(a)), (self.b, tuple(b)), self.accumulator)


def product(
    nest: NestInProgress, a: tuple[Value, Index], b: tuple[Value, Index], dtype: DType
) -> Expr:
    """The product of two plain loads."""
    return Apply("multiply", (plain_load(a[0], nest, a[1]), plain_load(b[0], nest, b[1])), dtype)


def _others(rank: int, *used: tuple[int, ...]) -> list[int]:
    taken = {d for dims in used for d in dims}
    return [d for d in range(rank) if d not in taken]


class ConvolutionValue(Reduced):
    """sum over features and window of x * kernel, with guards where the window leaves x."""

    node: ops.Convolution

    def __init__(self, block: Block, node: ops.Convolution, x: Value, kernel: Value) -> None:
        super().__init__(block, node)
        self.x, self.kernel = x, kernel

    def body(self, nest: NestInProgress, index: Index) -> Expr:
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
        left = guarded_load(self.x, nest, tuple(x), 0)
        right = plain_load(self.kernel, nest, tuple(kernel))
        return Apply("multiply", (left, right), self.accumulator)


def guarded_load(x: Value, nest: NestInProgress, index: Index, fill: float | int) -> Expr:
    """A plain load that gives `fill` outside x."""
    checks = guards(index, x.shape, nest)
    return replace(plain_load(x, nest, index), guards=checks, fill=fill if checks else 0)


def monoid_of(body: Graph, node: ops.Reduce | ops.ReduceWindow | ops.Scatter) -> str:
    """The monoid a region computes; UnsupportedOperator when it is none."""
    found = monoid(body)
    if found is None:
        raise UnsupportedOperator(
            opcode=f"{node.opcode} with this computation", nearest="", loc=node.loc
        )
    return found


class _Monoid(Reduced):
    """What reductions with an initial value share."""

    def __init__(
        self, block: Block, node: ops.Reduce | ops.ReduceWindow, x: Value, start: Value
    ) -> None:
        super().__init__(block, node)
        self.function = monoid_of(node.body, node)
        self.x, self.start = x, start
        if start.is_costly:
            start.settle()

    @property
    def neutral(self) -> float | int:
        return identity(self.function, self.dtype).item()

    def combine_with_start(self, nest: NestInProgress, result: Expr) -> Expr:
        if isinstance(self.start, Scalar) and self.start.number == self.neutral:
            return result
        start = self.start.at(nest, ())
        if isinstance(start, Literal):
            start = replace(start, dtype=self.accumulator)
        elif start.dtype is not self.accumulator:
            start = Apply("convert", (start,), self.accumulator)
        return Apply(self.function, (result, start), self.accumulator)


class ReduceValue(_Monoid):
    """A reduction over whole dimensions; what computes the operand becomes its prologue."""

    node: ops.Reduce

    def __init__(self, block: Block, node: ops.Reduce, x: Value, start: Value) -> None:
        super().__init__(block, node, x, start)
        if survey((x,)).needs_buffer or x.pending:
            x.settle()

    def body(self, nest: NestInProgress, index: Index) -> Expr:
        kept = iter(index)
        at = tuple(
            nest.axis(f"k{d}", extent) if d in self.node.dimensions else next(kept)
            for d, extent in enumerate(self.x.shape)
        )
        return self.x.at(nest, at)


class ReduceWindowValue(_Monoid):
    """A reduction over sliding windows of a plain load."""

    node: ops.ReduceWindow

    def body(self, nest: NestInProgress, index: Index) -> Expr:
        node, at = self.node, []
        for d, i in enumerate(index):
            step = nest.axis(f"w{d}", node.window[d])
            at.append(i * node.stride[d] + step * node.window_dilation[d] - node.low[d])
        return guarded_load(self.x, nest, tuple(at), self.neutral)
