"""Graph values held as functions from an index to a scalar expression until a buffer is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glia.base.affine import ZERO
from glia.base.dtype import S32, DType
from glia.base.loc import Loc
from glia.graph.ir import Node, TensorType
from glia.tile.build.nest import (
    Index,
    NestInProgress,
    NotAffine,
    Split,
    blocks,
    delinearise,
    linearise,
)
from glia.tile.build.read_cost import Survey, survey
from glia.tile.ir import Apply, Expr, Guard, Literal, Load
from glia.tile.ir import Index as IndexValue

if TYPE_CHECKING:
    from glia.tile.build.block import Block

MOST_APPLIES = 64  # a larger expression is cut: its values at once would fill SBUF
MOST_LOADS = 6
CHEAP_APPLIES = 6  # an expression without loads of at most this size is computed again, not stored
CHEAP_FUNCTIONS = ("add", "subtract", "multiply", "negate", "maximum", "minimum", "abs")


@dataclass(frozen=True)
class Target:
    """Where a value goes: a buffer, and the index there of each index of the value."""

    buffer: str
    place: Callable[[Index], Index]
    is_whole: bool = False  # place is the identity on the buffer's shape


class Value:
    """One tensor of the graph. `at` gives its element; `materialise` puts it into a buffer."""

    is_view = False  # `at` gives a plain load
    is_work = False  # an engine computes every element
    is_reduction = False  # becomes the nest of its reader
    needs_buffer = False  # has no expression of its own
    has_several_readers = False
    parts: tuple[Value, ...] = ()  # the values that `at` reads

    def __init__(self, block: Block, node: Node, type_: TensorType | None = None) -> None:
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
    def pending(self) -> Value | None:
        """The reduction that reading this value would still compute."""
        return survey((self,)).reduction

    @property
    def elements(self) -> int:
        return TensorType(self.dtype, self.shape).elements

    @property
    def stem(self) -> str:
        """What a nest that computes this value is called."""
        return getattr(self.node, "function", "") or self.node.opcode

    def at(self, nest: NestInProgress, index: Index) -> Expr:
        """The element at `index`; may raise Split."""
        if self.buffer:
            return Load(self.buffer, self.dtype, index)
        key = (id(self), index)
        found = nest.memory.get(key)
        if found is None:
            found = nest.memory[key] = self.compute(nest, index)
        return found

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        """The element at `index` when the value is in no buffer."""
        raise TypeError(f"{type(self).__name__} has no element expression")

    def emit_into(self, target: Target) -> None:
        """Append the nests that write the value to `target`."""
        if self.buffer:
            self.block.store(self, target)
        else:
            self.write(target)

    def write(self, target: Target) -> None:
        """Append the nests that compute the value into `target`."""
        self.block.store(self, target)

    def materialise(self) -> None:
        """Give the value a buffer of its own shape."""
        if self.buffer:
            return
        name, target = self.block.buffer_for(self)
        self.emit_into(target)
        self._now_in(name)

    def _now_in(self, name: str) -> None:
        self.buffer, self.is_view = name, True

    def settle(self) -> None:
        """Materialise what is costly in the value; movement on top of it stays a view."""
        self.materialise()

    def flat(self) -> str:
        """A one-dimensional buffer holding the value in row-major order."""
        if not self._flat:
            name = self.block.fresh_buffer(self.dtype, (self.elements,))
            target = Target(name, lambda index: (linearise(index, self.shape),))
            self.emit_into(target)
            self._flat = name
        return self._flat

    @property
    def is_costly(self) -> bool:
        """Whether two readers should share a buffer rather than both compute it."""
        found = survey((self,))
        if found.reduction or found.needs_buffer:
            return True
        if not found.sources:
            return len(found.work) > CHEAP_APPLIES
        return bool(found.work) and not self._is_cheap(found)

    def _is_cheap(self, found: Survey) -> bool:
        """One plain operation on one tensor of this size: reading the result would cost more."""
        buffers = self.block.names.buffers
        read = sum(buffers[name].elements for name in found.sources)
        only = found.work[0]
        is_plain = isinstance(only, Elementwise) and only.function in CHEAP_FUNCTIONS
        return len(found.work) == 1 and is_plain and read <= 1.1 * self.elements

    @property
    def has_work(self) -> bool:
        """Whether an element is computed from what is loaded."""
        found = survey((self,))
        return bool(found.sources and found.work) or self.is_costly


class Stored(Value):
    """A value that is in a buffer from the start."""

    def __init__(self, block: Block, node: Node, buffer: str, kind: TensorType | None = None):
        super().__init__(block, node, kind)
        self._now_in(buffer)


class Scalar(Value):
    """The same literal everywhere."""

    def __init__(self, block: Block, node: Node, number: float | int, kind: TensorType) -> None:
        super().__init__(block, node, kind)
        self.number = number

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        return Literal(self.number, self.dtype)


class Counted(Value):
    """Iota."""

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        return IndexValue(index[self.node.dimension], self.dtype)  # type: ignore[attr-defined]


class Elementwise(Value):
    """A scalar function of values of one shape; `extra` literals follow the operands."""

    def __init__(
        self,
        block: Block,
        node: Node,
        function: str,
        args: list[Value],
        extra: tuple[int, ...] = (),
    ) -> None:
        super().__init__(block, node)
        self.function = function
        self.args = args
        self.extra = tuple(Literal(number, S32) for number in extra)
        self.parts = tuple(args)
        self.is_work = function != "convert"
        self._fit()

    def _fit(self) -> None:
        """Materialise operands until at most one reduction and a bounded expression remain."""
        held: Value | None = None
        for arg in self.args:
            if survey((arg,)).needs_buffer:
                arg.settle()
            pending = arg.pending
            if pending and held and pending is not held:
                arg.settle()
            held = held or pending
        while True:
            found = survey(self.args)
            if len(found.work) < MOST_APPLIES and len(found.sources) <= MOST_LOADS:
                return
            largest = max(self.args, key=lambda arg: len(survey((arg,)).work))
            if largest.buffer or not (found.fork or survey((largest,)).work):
                return
            (found.fork or largest).materialise()  # cut below a fork, all above reduce again

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        args = tuple(arg.at(nest, index) for arg in self.args)
        return Apply(self.function, (*args, *self.extra), self.dtype)


class Moved(Value):
    """A value whose every element is an element of another."""

    def __init__(self, block: Block, node: Node, source: Value) -> None:
        super().__init__(block, node)
        if self.is_partial and (source.pending or (self.repeats and source.has_work)):
            source.settle()
        self.source = source
        self.parts = (source,)
        self.is_view = source.is_view

    is_partial = False  # not every element of the source is read exactly once

    @property
    def repeats(self) -> bool:
        """Whether elements of the source are read several times."""
        return False

    def source_index(self, nest: NestInProgress, index: Index) -> Index:
        """The source's index of the element at `index`; raises Split or NotAffine."""
        raise TypeError(f"{type(self).__name__} has no index map")

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        return self.source.at(nest, self.source_index(nest, index))

    def settle(self) -> None:
        if not self.buffer:
            self.source.settle()
            self.is_view = self.source.is_view


class BroadcastValue(Moved):
    """Result dimensions that the operand lacks, or has with extent 1, do not move it."""

    is_partial = True

    @property
    def repeats(self) -> bool:
        return self.elements > TensorType(self.dtype, self.node.operands[0].shape).elements

    def __init__(self, block: Block, node: Node, source: Value) -> None:
        self.is_partial = TensorType(node.dtype, node.shape).elements != source.elements
        super().__init__(block, node, source)

    def source_index(self, nest: NestInProgress, index: Index) -> Index:
        dimensions = self.node.dimensions  # type: ignore[attr-defined]
        extents = self.source.shape
        return tuple(
            index[d] if extent != 1 else ZERO for d, extent in zip(dimensions, extents, strict=True)
        )


class ReshapeValue(Moved):
    """Row-major order is kept; where the index is not affine the source goes to a flat buffer."""

    def source_index(self, nest: NestInProgress, index: Index) -> Index:
        source, result = self.source.shape, self.shape
        mapped = [ZERO] * len(source)
        for left, right in blocks(source, result):
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

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        try:
            mapped = self.source_index(nest, index)
        except NotAffine:
            return Load(self.source.flat(), self.dtype, (linearise(index, self.shape),))
        return self.source.at(nest, mapped)


class TransposeValue(Moved):
    """Dimensions in another order."""

    def source_index(self, nest: NestInProgress, index: Index) -> Index:
        mapped = [ZERO] * len(index)
        for d, source in enumerate(self.node.permutation):  # type: ignore[attr-defined]
            mapped[source] = index[d]
        return tuple(mapped)


class SliceValue(Moved):
    """Every stride-th element from a start."""

    is_partial = True

    def source_index(self, nest: NestInProgress, index: Index) -> Index:
        start, stride = self.node.start, self.node.stride  # type: ignore[attr-defined]
        return tuple(i * by + at for i, at, by in zip(index, start, stride, strict=True))


class ReverseValue(Moved):
    """The last element first."""

    def source_index(self, nest: NestInProgress, index: Index) -> Index:
        reversed_ = self.node.dimensions  # type: ignore[attr-defined]
        return tuple(
            i * -1 + (extent - 1) if d in reversed_ else i
            for d, (i, extent) in enumerate(zip(index, self.shape, strict=True))
        )


class PadValue(Value):
    """A guarded load of a view, or a fill followed by the interior."""

    def __init__(self, block: Block, node: Node, source: Value, value: Value) -> None:
        super().__init__(block, node)
        self.source, self.value = source, value
        if source.pending or source.is_costly:
            source.settle()
        can_guard = source.is_view and isinstance(value, Scalar) and not any(node.interior)  # type: ignore[attr-defined]
        self.is_guarded = can_guard
        self.needs_buffer = not can_guard
        self.parts = (source,) if can_guard else ()

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        if not self.is_guarded:
            self.materialise()
            return self.at(nest, index)
        assert isinstance(self.value, Scalar)
        inner = tuple(i - low for i, low in zip(index, self.node.low, strict=True))  # type: ignore[attr-defined]
        load = self.source.at(nest, inner)
        assert isinstance(load, Load)
        if load.guards or load.dynamic:
            self.is_guarded, self.needs_buffer, self.parts = False, True, ()
            return self.compute(nest, index)
        return replace(load, guards=guards(inner, self.source.shape, nest), fill=self.value.number)

    def write(self, target: Target) -> None:
        node, place = self.node, target.place
        steps = [gap + 1 for gap in node.interior]  # type: ignore[attr-defined]
        first, count = [], []
        for low, step, extent, length in zip(
            node.low,
            steps,
            self.source.shape,
            self.shape,
            strict=True,  # type: ignore[attr-defined]
        ):
            begin = max(0, -(low // step))
            end = min(extent, (length - 1 - low) // step + 1)
            first.append(begin)
            count.append(max(0, end - begin))
        if tuple(count) != self.shape:
            fill = BroadcastScalar(self.block, node, self.value)
            fill.emit_into(target)
        inside = Window(self.block, node, self.source, tuple(first), tuple(count))

        def shifted(index: Index) -> Index:
            return place(
                tuple(
                    (i + begin) * step + low
                    for i, begin, step, low in zip(index, first, steps, node.low, strict=True)  # type: ignore[attr-defined]
                )
            )

        inside.emit_into(Target(target.buffer, shifted))


def guards(index: Index, shape: tuple[int, ...], nest: NestInProgress) -> tuple[Guard, ...]:
    """What must hold for `index` to lie inside `shape`, leaving out what always does."""
    found = []
    for part, extent in zip(index, shape, strict=True):
        low, high = part.bounds(nest.extents)
        if low < 0 or high >= extent:
            found.append(Guard(part, extent))
    return tuple(found)


class BroadcastScalar(Value):
    """A scalar value repeated over the shape of a node."""

    def __init__(self, block: Block, node: Node, scalar: Value) -> None:
        super().__init__(block, node)
        if scalar.is_costly:
            scalar.settle()
        self.scalar = scalar
        self.parts = (scalar,)

    @property
    def stem(self) -> str:
        return "fill"

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        return self.scalar.at(nest, ())


class Window(Value):
    """The box of `count` elements from `first` of a value."""

    def __init__(
        self,
        block: Block,
        node: Node,
        source: Value,
        first: tuple[int, ...],
        count: tuple[int, ...],
    ) -> None:
        super().__init__(block, node, TensorType(source.dtype, count))
        self.source, self.first = source, first
        self.parts = (source,)

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        return self.source.at(nest, tuple(i + f for i, f in zip(index, self.first, strict=True)))


class Joined(Value):
    """Concatenate: every part is stored into its slice of the result."""

    needs_buffer = True

    def __init__(self, block: Block, node: Node, joined: list[Value]) -> None:
        super().__init__(block, node)
        self.joined = joined

    def compute(self, nest: NestInProgress, index: Index) -> Expr:
        self.materialise()
        return self.at(nest, index)

    def write(self, target: Target) -> None:
        dimension, offset = self.node.dimension, 0  # type: ignore[attr-defined]
        for part in self.joined:
            part.emit_into(Target(target.buffer, _shift(target.place, dimension, offset)))
            offset += part.shape[dimension]


def _shift(
    place: Callable[[Index], Index], dimension: int, offset: int
) -> Callable[[Index], Index]:
    def shifted(index: Index) -> Index:
        moved = list(index)
        moved[dimension] = moved[dimension] + offset
        return place(tuple(moved))

    return shifted


def plain_load(value: Value, nest: NestInProgress, index: Index) -> Load:
    """The element at `index` as one load without guards or run-time offsets, for a contraction.

    A movement that would need axes split, or that repeats elements, is materialised in the shape
    the reader wants; otherwise the value beneath it is.
    """
    if not value.buffer:
        base, at = value, index
        try:
            while isinstance(base, Moved) and not base.buffer:
                at = base.source_index(nest, at)
                base = base.source
        except (Split, NotAffine):
            value.materialise()
        else:
            if _variables(at) == _variables(index):
                base.materialise()
                return Load(base.buffer, base.dtype, at)
            value.materialise()
    return Load(value.buffer, value.dtype, index)


def _variables(index: Index) -> frozenset[str]:
    return frozenset(variable for part in index for variable in part.variables)
