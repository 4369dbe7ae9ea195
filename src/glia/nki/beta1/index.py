"""Index objects of the earlier generation: affine in positions along axes, and masks of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.nki.beta1.conjunction import joined, opens_conjunction
from glia.nki.beta1.errors import (
    ControlFlowOnIndex,
    IndexCannotBeAssigned,
    UnsupportedIndex,
    UnsupportedMask,
)
from glia.nki.session import caller

Box = tuple[
    tuple[int, int], ...
]  # for every axis of a tile the first element and one past the last


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)


@dataclass(frozen=True, eq=False)
class Index:
    """`start` + the sum over axes of `steps` times the position along the axis."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    start: int = 0

    __array_ufunc__ = None  # so that NumPy's scalars leave the operators to it

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def at_rank(self, rank: int) -> Index:
        """The same with axes of one element in front, as NumPy aligns shapes."""
        missing = rank - self.ndim
        if missing <= 0:
            return self
        return Index((1,) * missing + self.shape, (0,) * missing + self.steps, self.start)

    def ends(self, box: Box | None = None) -> tuple[int, int]:
        """The least and greatest value, over the part of the axes that a box leaves."""
        ranges = box or tuple((0, count) for count in self.shape)
        low = high = self.start
        for step, (first, end) in zip(self.steps, ranges, strict=True):
            reaches = (step * first, step * (end - 1))
            low, high = low + min(reaches), high + max(reaches)
        return low, high

    def __getitem__(self, key: Any) -> Index:
        """New axes by None, old ones by `:`; a slice of an axis takes part of it."""
        entries = list(key) if isinstance(key, tuple) else [key]
        at = next((i for i, entry in enumerate(entries) if entry is Ellipsis), None)
        if at is not None:
            missing = self.ndim - sum(e is not None and e is not Ellipsis for e in entries)
            entries[at : at + 1] = [slice(None)] * missing
        shape, steps, start, axis = [], [], self.start, 0
        for entry in entries:
            if entry is None:
                shape.append(1)
                steps.append(0)
                continue
            if axis >= self.ndim or not isinstance(entry, slice):
                raise UnsupportedIndex(
                    what=f"an index of shape {self.shape} by {entry}", loc=caller()
                )
            first, end, each = entry.indices(self.shape[axis])
            shape.append(max(0, -(-(end - first) // each)))
            steps.append(self.steps[axis] * each)
            start += self.steps[axis] * first
            axis += 1
        return Index((*shape, *self.shape[axis:]), (*steps, *self.steps[axis:]), start)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise IndexCannotBeAssigned(loc=caller())

    def __iter__(self) -> Iterator[Any]:
        raise UnsupportedIndex(what="iteration over an index", loc=caller())

    # --- affine arithmetic ---------------------------------------------------------------------

    def _plus(self, other: Any, sign: int) -> Index:
        if is_integer(other):
            return Index(self.shape, self.steps, self.start + sign * int(other))
        if hasattr(other, "is_tile"):
            return other.shifted(self if sign > 0 else self * -1, sign)
        if not isinstance(other, Index):
            raise UnsupportedIndex(what=f"an index and a {type(other).__name__}", loc=caller())
        rank = max(self.ndim, other.ndim)
        a, b = self.at_rank(rank), other.at_rank(rank)
        shape = broadcast_shape(a.shape, b.shape)
        steps = tuple(x + sign * y for x, y in zip(a.steps, b.steps, strict=True))
        return Index(shape, steps, a.start + sign * b.start)

    def __add__(self, other: Any) -> Index:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Index:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Index:
        return (self * -1)._plus(other, 1)

    def __neg__(self) -> Index:
        return self * -1

    def __mul__(self, other: Any) -> Index:
        if isinstance(other, Index) and not any(other.steps):
            other = other.start
        if isinstance(other, Index) and not any(self.steps):
            return other * self.start
        if not is_integer(other):
            raise UnsupportedIndex(what=f"an index times a {type(other).__name__}", loc=caller())
        factor = int(other)
        steps = tuple(step * factor for step in self.steps)
        return Index(self.shape, steps, self.start * factor)

    __rmul__ = __mul__

    def _divided(self, other: Any) -> tuple[Index, Index]:
        """Quotient and remainder where both are affine over the whole extent."""
        if not is_integer(other) or int(other) < 1:
            raise UnsupportedIndex(what="division of an index by other than a number", loc=caller())
        divisor = int(other)
        low, high = self.ends()
        if all(step % divisor == 0 for step in self.steps):
            quotient = tuple(step // divisor for step in self.steps)
            zeros = (0,) * self.ndim
            return (
                Index(self.shape, quotient, self.start // divisor),
                Index(self.shape, zeros, self.start % divisor),
            )
        if low // divisor == high // divisor:
            whole = low // divisor
            zeros = (0,) * self.ndim
            return Index(self.shape, zeros, whole), self - whole * divisor
        raise UnsupportedIndex(
            what=f"an index // or % {divisor}, which is not affine", loc=caller()
        )

    def __floordiv__(self, other: Any) -> Index:
        return self._divided(other)[0]

    def __mod__(self, other: Any) -> Index:
        return self._divided(other)[1]

    # --- comparisons ---------------------------------------------------------------------------

    def __lt__(self, other: Any) -> Any:
        return _compared(lambda: (other - self - 1,), other)

    def __le__(self, other: Any) -> Any:
        return _compared(lambda: (other - self,), other)

    def __gt__(self, other: Any) -> Any:
        return _compared(lambda: (self - other - 1,), other)

    def __ge__(self, other: Any) -> Any:
        return _compared(lambda: (self - other,), other)

    def __eq__(self, other: object) -> Any:
        return _compared(lambda: (self - other, other - self), other)  # type: ignore[operator]

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ControlFlowOnIndex(loc=caller())

    def __repr__(self) -> str:
        return f"Index(start={self.start}, steps={self.steps}, shape={self.shape})"


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of all together, as NumPy broadcasts; UnsupportedIndex when they do not fit."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError as problem:
        text = " and ".join(map(str, shapes))
        raise UnsupportedIndex(what=f"shapes {text} together", loc=caller()) from problem


def _compared(make: Any, other: Any) -> Any:
    if not isinstance(other, Index) and not is_integer(other):
        raise UnsupportedMask(what=f"an index and a {type(other).__name__}", loc=caller())
    return joined(Mask(tuple(make())))


@dataclass(frozen=True, eq=False)
class Mask:
    """Where all of its conditions, each an index that must not be negative, hold."""

    conditions: tuple[Index, ...]

    __array_ufunc__ = None

    def __and__(self, other: Any) -> Any:
        if isinstance(other, bool | np.bool_):
            return self if other else False
        if not isinstance(other, Mask):
            raise UnsupportedMask(what=f"& with a {type(other).__name__}", loc=caller())
        return Mask(self.conditions + other.conditions)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        if isinstance(other, bool | np.bool_):
            return True if other else self
        raise UnsupportedMask(what="| of comparisons", loc=caller())

    __ror__ = __or__

    def __invert__(self) -> Mask:
        if len(self.conditions) != 1:
            raise UnsupportedMask(what="~ of more than one comparison", loc=caller())
        return Mask((self.conditions[0] * -1 - 1,))

    def __bool__(self) -> bool:
        """True as the left side of `and`, which counts as `&`; ControlFlowOnIndex elsewhere."""
        if opens_conjunction(self):
            return True
        raise ControlFlowOnIndex(loc=caller())

    def __setitem__(self, key: Any, value: Any) -> None:
        raise IndexCannotBeAssigned(loc=caller())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all conditions have together."""
        return broadcast_shape(*(each.shape for each in self.conditions))

    def within(self, shape: tuple[int, ...]) -> tuple[Box | None, Mask | None]:
        """(box, rest): the smallest box of a tile that holds it, None when that is empty.

        `rest` are the conditions that are no box. Axes are aligned as NumPy aligns shapes, where
        that fits, else from the first on.
        """
        bounds = [[0, count] for count in shape]
        rest = []
        for condition in self.conditions:
            aligned = _aligned(condition, shape)
            axes = [axis for axis, step in enumerate(aligned.steps) if step and shape[axis] > 1]
            low, high = aligned.ends(tuple((0, count) for count in shape))
            if high < 0:
                return None, None
            if low >= 0:
                continue
            if len(axes) > 1:
                rest.append(aligned)
                continue
            axis, step = axes[0], aligned.steps[axes[0]]
            if step > 0:
                bounds[axis][0] = max(bounds[axis][0], -(aligned.start // step))
            else:
                bounds[axis][1] = min(bounds[axis][1], aligned.start // -step + 1)
        if any(first >= end for first, end in bounds):
            return None, None
        return tuple((a, b) for a, b in bounds), Mask(tuple(rest)) if rest else None

    def within_box(self, box: Box) -> tuple[Box | None, Mask | None]:
        """As `within`, for conditions over the axes of a box and the elements in it."""
        shape = tuple(end - first for first, end in box)
        moved = []
        for each in self.conditions:
            start = each.start + sum(
                step * first for step, (first, _) in zip(each.steps, box, strict=True)
            )
            steps = tuple(s if n > 1 else 0 for s, n in zip(each.steps, shape, strict=True))
            moved.append(Index(shape, steps, start))
        inner, rest = Mask(tuple(moved)).within(shape)
        if inner is None:
            return None, None
        firsts = [first for first, _ in box]
        return tuple((a + f, b + f) for (a, b), f in zip(inner, firsts, strict=True)), rest


def _aligned(condition: Index, shape: tuple[int, ...]) -> Index:
    """A condition with one axis for each of the tile's."""
    rank = len(shape)
    if condition.ndim > rank:
        spare = condition.ndim - rank
        if any(condition.steps[:spare]):
            raise UnsupportedMask(
                what=f"a mask of shape {condition.shape} for {shape}", loc=caller()
            )
        condition = Index(condition.shape[spare:], condition.steps[spare:], condition.start)
    right = condition.at_rank(rank)
    if _fits(right.shape, shape):
        return right
    spare = rank - condition.ndim
    left = Index(condition.shape + (1,) * spare, condition.steps + (0,) * spare, condition.start)
    if _fits(left.shape, shape):
        return left
    raise UnsupportedMask(what=f"a mask of shape {condition.shape} for {shape}", loc=caller())


def _fits(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(a in (1, b) or b == 1 for a, b in zip(own, shape, strict=True))


def arange(*args: int) -> Index:
    """The numbers from start (0) below stop by step (1), along one axis."""
    values = range(*(int(each) for each in args))
    return Index((len(values),), (values.step,), values.start)


class Grid(tuple):
    """The indices of nl.mgrid: unpacked, or by the names p, x, y, z, w of their axes."""

    __slots__ = ()

    p = property(lambda self: self[0])
    x = property(lambda self: self[1])
    y = property(lambda self: self[2])
    z = property(lambda self: self[3])
    w = property(lambda self: self[4])


class _Mgrid:
    """`mgrid[0:128, 0:512]`: one index for each slice, all of the shape of all."""

    def __getitem__(self, key: Any) -> Grid:
        slices = key if isinstance(key, tuple) else (key,)
        ranges = [range(int(s.start or 0), int(s.stop), int(s.step or 1)) for s in slices]
        shape = tuple(len(r) for r in ranges)
        zeros = [0] * len(ranges)
        result = []
        for axis, values in enumerate(ranges):
            steps = list(zeros)
            steps[axis] = values.step
            result.append(Index(shape, tuple(steps), values.start))
        return Grid(result)


mgrid = _Mgrid()


class LoopIndex(int):
    """The number of a loop's iteration, which knows whether it is the first."""

    is_first = False


def ds(start: Any, size: int) -> slice:
    """`size` elements from `start`, for indexing."""
    return slice(int(start), int(start) + int(size))
