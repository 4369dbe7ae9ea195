"""Deferred values: functions from an index to a scalar expression, until a buffer is needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glia.base.affine import ZERO
from glia.base.dtype import S32, TF32, DType, integer_limits
from glia.base.loc import Loc
from glia.graph import ops
from glia.graph.ir import Node, TensorType
from glia.isa.alu import COMPARISONS
from glia.tile.build.nest import (
    Index,
    NestBuilder,
    NotAffine,
    Split,
    delinearise,
    linearise,
    reshape_groups,
)
from glia.tile.build.read_cost import ReadCost, read_cost
from glia.tile.ir import Apply, Expr, Guard, Literal, Load
from glia.tile.ir import Index as IndexValue

if TYPE_CHECKING:
    from glia.tile.build.block import NestBlock

MAXIMUM_APPLIES = 64  # functions in one nest: the intermediates of more would fill SBUF
MAXIMUM_LOADS = 6  # buffers read by one nest
CHEAP_APPLIES = (
    6  # an expression without loads and with no more functions is recomputed, not stored
)
LONGEST_ROW_BYTES = 1 << 17  # of a value along its last dimension that stays in SBUF for readers
FILL_BYTES = 1 << 19  # that are written in the time of one more nest
CHEAP_FUNCTIONS = frozenset(
    {"add", "subtract", "multiply", "negate", "maximum", "minimum", "abs", *COMPARISONS}
)


@dataclass(frozen=True)
class StoreTarget:
    """The destination of a value: a buffer, and the map from the value's index to the buffer's."""

    buffer: str
    place: Callable[[Index], Index]
    is_whole: bool = False  # place is the identity on the buffer's shape
    is_shifted: bool = False  # place adds a constant in each dimension


class DeferredValue:
    """A tensor of the graph: `at` gives the expression of an element, `materialise` a buffer."""

    is_view = False  # `at` gives a load without guards
    is_work = False  # an engine computes every element
    is_reduction = False  # becomes the nest of its reader
    keeps_axes = False  # a reduction that is not to be computed over parts of its axes
    needs_buffer = False  # has no expression of its own
    has_several_readers = False
    parts: tuple[DeferredValue, ...] = ()  # the values that `at` reads

    def __init__(self, block: NestBlock, node: Node, type_: TensorType | None = None) -> None:
        self.block = block
        self.node = node
        kind = type_ or node.type
        assert isinstance(kind, TensorType)
        self.dtype: DType = kind.dtype
        self.shape: tuple[int, ...] = kind.shape
        self.buffer = ""
        self._flat = ""

    @property
    def loc(self) -> Loc:
        return self.node.loc

    @property
    def pending_reduction(self) -> DeferredValue | None:
        """The reduction that a reader of this value would have to compute, if any."""
        return read_cost((self,)).reduction

    @property
    def elements(self) -> int:
        return TensorType(self.dtype, self.shape).elements

    @property
    def stem(self) -> str:
        """The stem of the name of a nest that computes this value."""
        return getattr(self.node, "function", "") or self.node.opcode

    def at(self, nest: NestBuilder, index: Index) -> Expr:
        """The expression of the element at `index`; may raise Split."""
        if self.buffer:
            return Load(self.buffer, self.dtype, index)
        key = (id(self), index)
        found = nest.memory.get(key)
        if found is None:
            found = nest.memory[key] = self.compute(nest, index)
        return found

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        """The expression of the element at `index`, for a value without a buffer."""
        raise TypeError(f"{type(self).__name__} has no element expression")

    def load_at_offsets(self, index: Index) -> Load | None:
        """The element at `index` as one load at run-time offsets, where the value is one."""
        return None

    def emit_into(self, target: StoreTarget) -> None:
        """Append the nests that write the value to `target`."""
        if self.buffer:
            self.block.store(self, target)
        else:
            self.write(target)

    def write(self, target: StoreTarget) -> None:
        """Append the nests that compute the value into `target`."""
        self.block.store(self, target)

    def materialise(self) -> None:
        """Give the value a buffer of its own shape."""
        if self.buffer:
            return
        name, target = self.block.buffer_for(self)
        self.emit_into(target)
        self._place_in(name)

    def _place_in(self, name: str) -> None:
        self.buffer, self.is_view = name, True

    def materialise_work(self) -> None:
        """Materialise the computation in the value; movement on top of it stays a view."""
        self.materialise()

    def flat(self) -> str:
        """A one-dimensional buffer holding the value in row-major order."""
        if not self._flat:
            name = self.block.new_temporary(self.dtype, (self.elements,))
            target = StoreTarget(name, lambda index: (linearise(index, self.shape),))
            self.emit_into(target)
            self._flat = name
        return self._flat

    @property
    def is_costly(self) -> bool:
        """Whether readers should share a buffer rather than each recompute the value."""
        found = read_cost((self,))
        if found.reduction or found.needs_buffer:
            return True
        if not found.sources:
            return len(found.work) > CHEAP_APPLIES
        return bool(found.work) and not self._is_cheap(found)

    def _is_cheap(self, found: ReadCost) -> bool:
        """Whether it takes no longer to compute it from one tensor of its size than to load it.

        That is so of one cheap operation, and of some of any kind where the value is stored in HBM
        because its rows are too long for SBUF.
        """
        buffers = self.block.names.buffers
        read = [buffers[name] for name in found.sources]
        if sum(each.elements for each in read) > 1.1 * self.elements:
            return False
        if not all(isinstance(each, ElementwiseValue) for each in found.work):
            return False
        if self.shape and self.shape[-1] * self.dtype.bytes > LONGEST_ROW_BYTES:
            return len(found.work) <= CHEAP_APPLIES
        (first, *rest) = found.work
        return not rest and getattr(first, "function", "") in CHEAP_FUNCTIONS

    @property
    def has_work(self) -> bool:
        """Whether an element takes computation, beyond loads."""
        found = read_cost((self,))
        return bool(found.sources and found.work) or self.is_costly


class BufferValue(DeferredValue):
    """A value that is already in a buffer."""

    def __init__(self, block: NestBlock, node: Node, buffer: str, kind: TensorType | None = None):
        super().__init__(block, node, kind)
        self._place_in(buffer)


class ScalarValue(DeferredValue):
    """A literal broadcast to a shape."""

    def __init__(self, block: NestBlock, node: Node, number: float | int, kind: TensorType) -> None:
        super().__init__(block, node, kind)
        self.number = number

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        return Literal(self.number, self.dtype)


class IotaValue(DeferredValue):
    """The index along one dimension; one that does not fit the dtype wraps."""

    node: ops.Iota

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        position = index[self.node.dimension]
        if self.dtype.is_integer and self.dtype.bits < S32.bits:
            _, last = position.bounds(nest.extents)
            if last > integer_limits(self.dtype.numpy).max:  # engines would saturate
                return Apply("convert", (IndexValue(position, S32),), self.dtype)
        return IndexValue(position, self.dtype)


class ProgressionValue(DeferredValue):
    """A constant of 32-bit integers: `start`, and a step for each index."""

    def __init__(self, block: NestBlock, node: Node, start: int, steps: tuple[int, ...]) -> None:
        super().__init__(block, node)
        self.start = start
        self.steps = steps

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        value = sum((i * step for i, step in zip(index, self.steps, strict=True)), ZERO)
        return IndexValue(value + self.start, self.dtype)


class ElementwiseValue(DeferredValue):
    """A scalar function of values of one shape; `extra` literals follow the operands."""

    def __init__(
        self,
        block: NestBlock,
        node: Node,
        function: str,
        args: list[DeferredValue],
        extra: tuple[int, ...] = (),
    ) -> None:
        super().__init__(block, node)
        self.function = function
        self.args = args
        self.extra = tuple(Literal(number, S32) for number in extra)
        self.parts = tuple(args)
        self.is_work = function != "convert"
        self._limit_size()

    def _limit_size(self) -> None:
        """Materialise operands until one reduction at most and a bounded expression remain."""
        reduction: DeferredValue | None = None
        for arg in self.args:
            if read_cost((arg,)).needs_buffer:
                arg.materialise_work()
            pending_reduction = arg.pending_reduction
            if pending_reduction and reduction and pending_reduction is not reduction:
                arg.materialise_work()
            reduction = reduction or pending_reduction
        while True:
            found = read_cost(self.args)
            if len(found.work) < MAXIMUM_APPLIES and len(found.sources) <= MAXIMUM_LOADS:
                return
            largest = max(self.args, key=lambda arg: len(read_cost((arg,)).work))
            if largest.buffer or not (found.fork or read_cost((largest,)).work):
                return
            (found.fork or largest).materialise()  # at the fork: parts above would repeat it

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        args = tuple(arg.at(nest, index) for arg in self.args)
        return Apply(self.function, (*args, *self.extra), self.dtype)


class RoundedValue(ElementwiseValue):
    """A value rounded to tf32, which a contraction of such values does as it reads them."""

    @property
    def is_costly(self) -> bool:
        return self.args[0].is_costly


class MovementValue(DeferredValue):
    """A data movement: every element is an element of the source."""

    def __init__(self, block: NestBlock, node: Node, source: DeferredValue) -> None:
        super().__init__(block, node)
        if self.is_partial and (
            source.pending_reduction or (self.repeats_elements and source.has_work)
        ):
            source.materialise_work()
        self.source = source
        self.parts = (source,)
        self.is_view = source.is_view

    is_partial = False  # not every element of the source is read exactly once

    @property
    def repeats_elements(self) -> bool:
        """Whether elements of the source are read more than once."""
        return False

    def source_index(self, nest: NestBuilder, index: Index) -> Index:
        """The source's index of the element at `index`; raises Split or NotAffine."""
        raise TypeError(f"{type(self).__name__} has no index map")

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        return self.source.at(nest, self.source_index(nest, index))

    def materialise_work(self) -> None:
        if not self.buffer:
            self.source.materialise_work()
            self.is_view = self.source.is_view


class BroadcastValue(MovementValue):
    """A broadcast: dimensions absent in the operand, or of extent 1, do not affect its index."""

    node: ops.Broadcast

    is_partial = True

    @property
    def repeats_elements(self) -> bool:
        return self.elements > TensorType(self.dtype, self.node.operands[0].shape).elements

    def __init__(self, block: NestBlock, node: Node, source: DeferredValue) -> None:
        self.is_partial = TensorType(node.dtype, node.shape).elements != source.elements
        super().__init__(block, node, source)

    def source_index(self, nest: NestBuilder, index: Index) -> Index:
        dimensions = self.node.dimensions
        extents = self.source.shape
        return tuple(
            index[d] if extent != 1 else ZERO for d, extent in zip(dimensions, extents, strict=True)
        )


class ReshapeValue(MovementValue):
    """A reshape; where its index map is not affine, the source is materialised in one dimension.

    A convolution keeps its own axes: split, its channels would be few rows for the PE.
    """

    def __init__(self, block: NestBlock, node: Node, source: DeferredValue) -> None:
        super().__init__(block, node, source)
        pending = source.pending_reduction
        if pending is not None and pending.keeps_axes and self._splits_or_joins():
            source.materialise_work()

    def _splits_or_joins(self) -> bool:
        """Whether dimensions of several elements are no longer what they were."""
        groups = reshape_groups(self.source.shape, self.shape)
        return any(
            sum(self.source.shape[d] > 1 for d in left) > 1
            or sum(self.shape[d] > 1 for d in right) > 1
            for left, right in groups
        )

    def source_index(self, nest: NestBuilder, index: Index) -> Index:
        source, result = self.source.shape, self.shape
        mapped = [ZERO] * len(source)
        for left, right in reshape_groups(source, result):
            wide = [d for d in left if source[d] != 1]
            narrow = [d for d in right if result[d] != 1]
            if len(wide) == 1 and len(narrow) == 1:
                mapped[wide[0]] = index[narrow[0]]
                continue
            linear = linearise([index[d] for d in right], [result[d] for d in right])
            parts = delinearise(linear, [source[d] for d in left], nest.extents)
            for d, part in zip(left, parts, strict=True):
                mapped[d] = part
        return tuple(mapped)

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        try:
            mapped = self.source_index(nest, index)
        except NotAffine:
            return Load(self.source.flat(), self.dtype, (linearise(index, self.shape),))
        return self.source.at(nest, mapped)


class TransposeValue(MovementValue):
    """A permutation of dimensions."""

    node: ops.Transpose

    def source_index(self, nest: NestBuilder, index: Index) -> Index:
        mapped = [ZERO] * len(index)
        for d, source in enumerate(self.node.permutation):
            mapped[source] = index[d]
        return tuple(mapped)


class SliceValue(MovementValue):
    """A strided slice."""

    node: ops.Slice

    is_partial = True

    def source_index(self, nest: NestBuilder, index: Index) -> Index:
        start, stride = self.node.start, self.node.stride
        return tuple(i * by + at for i, at, by in zip(index, start, stride, strict=True))


class ReverseValue(MovementValue):
    """A reversal of dimensions."""

    node: ops.Reverse

    def source_index(self, nest: NestBuilder, index: Index) -> Index:
        reversed_ = self.node.dimensions
        return tuple(
            i * -1 + (extent - 1) if d in reversed_ else i
            for d, (i, extent) in enumerate(zip(index, self.shape, strict=True))
        )


class PadValue(DeferredValue):
    """Padding: a guarded load of a view, or the interior and a fill of what is around it.

    A source that has to be computed gets a buffer of its own only where the load is guarded.
    """

    node: ops.Pad

    def __init__(
        self, block: NestBlock, node: ops.Pad, source: DeferredValue, value: DeferredValue
    ) -> None:
        super().__init__(block, node)
        self.source, self.value = source, value
        self.is_deferred = bool(source.pending_reduction or source.is_costly)
        is_view = self.is_deferred or source.is_view
        can_guard = is_view and isinstance(value, ScalarValue) and not any(node.interior)
        self.is_guarded = can_guard
        self.needs_buffer = not can_guard
        self.parts = (source,) if can_guard and not self.is_deferred else ()

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        if not self.is_guarded:
            self.materialise()
            return self.at(nest, index)
        assert isinstance(self.value, ScalarValue)
        if self.is_deferred:
            self.source.materialise_work()
        inner = tuple(i - low for i, low in zip(index, self.node.low, strict=True))
        load = self.source.at(nest, inner)
        assert isinstance(load, Load)
        checks = guards(inner, self.source.shape, nest)
        if load.guards or load.dynamic or any(c.expression not in load.index for c in checks):
            self.is_guarded, self.needs_buffer, self.parts = False, True, ()
            return self.compute(nest, index)
        return replace(load, guards=checks, fill=self.value.number)

    def write(self, target: StoreTarget) -> None:
        node, place = self.node, target.place
        steps = [gap + 1 for gap in node.interior]
        first, count = [], []
        for low, step, extent, length in zip(
            node.low,
            steps,
            self.source.shape,
            self.shape,
            strict=True,
        ):
            begin = max(0, -(low // step))
            end = min(extent, (length - 1 - low) // step + 1)
            first.append(begin)
            count.append(max(0, end - begin))
        is_dense = all(step == 1 for step in steps)
        start = tuple(max(0, low) for low in node.low)
        for at, shape in self._boxes_to_fill(start, tuple(count), is_dense=is_dense):
            fill = FillValue(self.block, node, self.value, shape)
            fill.emit_into(StoreTarget(target.buffer, _moved(place, at)))
        inside = self.source
        if tuple(count) != inside.shape or inside.buffer:
            inside = WindowValue(self.block, node, self.source, tuple(first), tuple(count))

        def shifted(index: Index) -> Index:
            return place(
                tuple(
                    (i + begin) * step + low
                    for i, begin, step, low in zip(index, first, steps, node.low, strict=True)
                )
            )

        is_shifted = is_dense and (target.is_whole or target.is_shifted)
        inside.emit_into(StoreTarget(target.buffer, shifted, is_shifted=is_shifted))

    def _boxes_to_fill(
        self, begin: tuple[int, ...], count: tuple[int, ...], *, is_dense: bool
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The (first element, shape) of boxes to fill: all there is, or what is around the inside.

        A box on either side in each dimension, within the inside of those before.
        """
        whole = ((0,) * len(self.shape), self.shape)
        if count == self.shape:
            return []
        boxes = []
        for d, extent in enumerate(self.shape):
            for low, high in ((0, begin[d]), (begin[d] + count[d], extent)):
                at = (*begin[:d], low, *whole[0][d + 1 :])
                shape = (*count[:d], high - low, *self.shape[d + 1 :])
                if math.prod(shape):
                    boxes.append((at, shape))
        filled = sum(math.prod(shape) for _, shape in boxes)
        saved = (self.elements - filled) * self.dtype.bytes
        return boxes if is_dense and saved > FILL_BYTES * (len(boxes) - 1) else [whole]


def guards(index: Index, shape: tuple[int, ...], nest: NestBuilder) -> tuple[Guard, ...]:
    """The guards that keep `index` inside `shape`, without those that always hold."""
    found = []
    for part, extent in zip(index, shape, strict=True):
        low, high = part.bounds(nest.extents)
        if low < 0 or high >= extent:
            found.append(Guard(part, extent))
    return tuple(found)


class FillValue(DeferredValue):
    """A scalar value broadcast to the shape of a node, or to another."""

    def __init__(
        self,
        block: NestBlock,
        node: Node,
        scalar: DeferredValue,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        kind = None if shape is None else TensorType(node.dtype, shape)
        super().__init__(block, node, kind)
        if scalar.is_costly:
            scalar.materialise_work()
        self.scalar = scalar
        self.parts = (scalar,)

    @property
    def stem(self) -> str:
        return "fill"

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        return self.scalar.at(nest, ())


class WindowValue(DeferredValue):
    """The box of `count` elements from `first` of a value."""

    def __init__(
        self,
        block: NestBlock,
        node: Node,
        source: DeferredValue,
        first: tuple[int, ...],
        count: tuple[int, ...],
    ) -> None:
        super().__init__(block, node, TensorType(source.dtype, count))
        self.source, self.first = source, first
        self.parts = (source,)

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        return self.source.at(nest, tuple(i + f for i, f in zip(index, self.first, strict=True)))


class ConcatenateValue(DeferredValue):
    """A concatenation: every part is stored into its slice of the result."""

    node: ops.Concatenate
    needs_buffer = True

    def __init__(
        self, block: NestBlock, node: ops.Concatenate, joined: list[DeferredValue]
    ) -> None:
        super().__init__(block, node)
        self.joined = joined

    def compute(self, nest: NestBuilder, index: Index) -> Expr:
        self.materialise()
        return self.at(nest, index)

    def write(self, target: StoreTarget) -> None:
        dimension, offset = self.node.dimension, 0
        for part in self.joined:
            at = tuple(offset * (d == dimension) for d in range(len(self.shape)))
            is_shifted = target.is_whole or target.is_shifted
            place = _moved(target.place, at)
            part.emit_into(StoreTarget(target.buffer, place, is_shifted=is_shifted))
            offset += part.shape[dimension]


def _moved(place: Callable[[Index], Index], by: tuple[int, ...]) -> Callable[[Index], Index]:
    """The place of what lies so far from the first element."""
    return lambda index: place(tuple(i + n for i, n in zip(index, by, strict=True)))


def plain_load(
    value: DeferredValue,
    nest: NestBuilder,
    index: Index,
    is_rounded: bool = False,
    *,
    at_offsets: bool = False,
) -> Load:
    """The element at `index` as one load without guards, for a contraction.

    A movement that needs axes split, or that repeats elements, is materialised itself, in the
    reader's shape; otherwise its source is, which `at_offsets` may be a load at run-time offsets.
    With `is_rounded` the load reads tf32, and so needs no rounding before it.
    """
    load = _plain_load(value, nest, index, is_rounded, at_offsets)
    return replace(load, dtype=TF32) if is_rounded else load


def _plain_load(
    value: DeferredValue, nest: NestBuilder, index: Index, is_rounded: bool, at_offsets: bool
) -> Load:
    if not value.buffer:
        base, at = value, index
        try:
            while not base.buffer:
                if isinstance(base, MovementValue):
                    at = base.source_index(nest, at)
                    base = base.source
                elif isinstance(base, RoundedValue) and is_rounded:
                    base = base.args[0]
                else:
                    break
        except (Split, NotAffine):
            value.materialise()
        else:
            if _variables(at) == _variables(index):
                found = base.load_at_offsets(at) if at_offsets and not base.buffer else None
                if found is not None:
                    return found
                base.materialise()
                return Load(base.buffer, base.dtype, at)
            value.materialise()
    return Load(value.buffer, value.dtype, index)


def _variables(index: Index) -> frozenset[str]:
    return frozenset(variable for part in index for variable in part.variables)
