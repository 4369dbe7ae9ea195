"""Index objects of Beta 1: affine in positions along axes, and masks of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.nki.beta1.errors import (
    ControlFlowOnIndex,
    IndexCannotBeAssigned,
    UnsupportedIndex,
    UnsupportedMask,
)
from glia.nki.beta1.tensors.mask_syntax import joined, opens_conjunction
from glia.nki.session.session import caller
from glia.nki.tensors.views import is_integer

# For every axis of a tile the first element and one past the last
Box = tuple[tuple[int, int], ...]


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
            what=f"an index // or % {divisor}, which is not affine (give it two axes)", loc=caller()
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

    def __ne__(self, other: object) -> Any:
        return _compared(
            lambda: (self - other, other - self),
            other,
            is_negated=True,  # type: ignore[operator]
        )

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


def _compared(make: Any, other: Any, *, is_negated: bool = False) -> Any:
    if not isinstance(other, Index) and not is_integer(other):
        raise UnsupportedMask(what=f"an index and a {type(other).__name__}", loc=caller())
    mask = Mask((tuple(make()),))
    return joined(~mask if is_negated else mask)


Conditions = tuple[Index, ...]  # none of which must be negative
MOST_ALTERNATIVES = 64
ALWAYS, NEVER = Index((1,), (0,), 0), Index((1,), (0,), -1)


@dataclass(frozen=True, eq=False)
class Mask:
    """Where all conditions of one of its alternatives hold; no two hold at once."""

    alternatives: tuple[Conditions, ...]

    __array_ufunc__ = None

    @classmethod
    def among(cls, alternatives: Iterable[Conditions]) -> Mask:
        """The mask of these; UnsupportedMask for too many."""
        found = tuple(alternatives)
        if len(found) > MOST_ALTERNATIVES:
            what = f"one with more than {MOST_ALTERNATIVES} alternatives (write several masks)"
            raise UnsupportedMask(what=what, loc=caller())
        return cls(found or ((NEVER,),))

    def __and__(self, other: Any) -> Any:
        if isinstance(other, bool | np.bool_):
            return self if other else False
        if not isinstance(other, Mask):
            raise UnsupportedMask(what=f"& with a {type(other).__name__}", loc=caller())
        pairs = (a + b for a in self.alternatives for b in other.alternatives)
        return Mask.among(filter(None, map(_joined, pairs)))

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        if isinstance(other, bool | np.bool_):
            return True if other else self
        if not isinstance(other, Mask):
            raise UnsupportedMask(what=f"| with a {type(other).__name__}", loc=caller())
        return Mask.among((*self.alternatives, *(other & ~self).alternatives))

    __ror__ = __or__

    def __invert__(self) -> Mask:
        result = Mask(((ALWAYS,),))
        for conditions in self.alternatives:
            result = result & Mask(_negated(conditions))
        return result

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
        return broadcast_shape(*(c.shape for each in self.alternatives for c in each))

    def within(self, shape: tuple[int, ...]) -> tuple[Box | None, Mask | None]:
        """(box, rest): the smallest box of a tile that holds it, None when that is empty.

        `rest` is the mask where that is no box. Axes are aligned as NumPy aligns shapes, where that
        fits, else from the first on.
        """
        aligned = [tuple(_aligned(c, shape) for c in each) for each in self.alternatives]
        kept = [(each, *_within(each, shape)) for each in aligned]
        kept = [each for each in kept if each[1] is not None]
        if not kept:
            return None, None
        box = _around([each[1] for each in kept])
        if len(kept) == 1:
            rest = kept[0][2]
            return box, Mask((rest,)) if rest else None
        if any(each == box and not rest for _, each, rest in kept):
            return box, None
        return box, Mask(tuple(each for each, _, _ in kept))

    def boxes(self, box: Box) -> Iterator[Box]:
        """Boxes that together are the mask within a box, in whose axes the conditions are."""
        shape = tuple(end - first for first, end in box)
        for conditions in self.alternatives:
            moved = tuple(_moved(each, box, shape) for each in conditions)
            found, rest = _within(moved, shape)
            if found is None:
                continue
            inner = tuple((a + f, b + f) for (a, b), (f, _) in zip(found, box, strict=True))
            if not rest:
                yield inner
                continue
            axis = next(i for i, (first, end) in enumerate(inner) if end > first + 1)
            for at in range(*inner[axis]):
                yield from Mask((conditions,)).boxes(
                    (*inner[:axis], (at, at + 1), *inner[axis + 1 :])
                )


def _joined(conditions: Conditions) -> Conditions | None:
    """The tightest of conditions on each sum of axes; None when they never all hold."""
    kept: dict[Any, Index] = {}
    for each in conditions:
        low, high = each.ends()
        if high < 0:
            return None
        if low >= 0:
            continue
        steps = tuple(s if n > 1 else 0 for s, n in zip(each.steps, each.shape, strict=True))
        known, opposite = (kept.get((each.shape, key)) for key in (steps, tuple(-s for s in steps)))
        if opposite is not None and each.start + opposite.start < 0:
            return None
        if known is None or each.start < known.start:
            kept[each.shape, steps] = each
    return tuple(kept.values()) or (ALWAYS,)


def _negated(conditions: Conditions) -> tuple[Conditions, ...]:
    """Where not all conditions hold: up to the first that does not, apart from each other."""
    return tuple((*conditions[:n], each * -1 - 1) for n, each in enumerate(conditions))


def _within(conditions: Conditions, shape: tuple[int, ...]) -> tuple[Any, Conditions]:
    """The box of a tile that conditions leave, None when it is empty, and those that are none."""
    bounds = [[0, count] for count in shape]
    rest = []
    for condition in conditions:
        axes = [axis for axis, step in enumerate(condition.steps) if step and shape[axis] > 1]
        low, high = condition.ends(tuple((0, count) for count in shape))
        if high < 0:
            return None, ()
        if low >= 0:
            continue
        if len(axes) > 1:
            rest.append(condition)
            continue
        axis, step = axes[0], condition.steps[axes[0]]
        if step > 0:
            bounds[axis][0] = max(bounds[axis][0], -(condition.start // step))
        else:
            bounds[axis][1] = min(bounds[axis][1], condition.start // -step + 1)
    if any(first >= end for first, end in bounds):
        return None, ()
    return tuple((a, b) for a, b in bounds), tuple(rest)


def _around(boxes: list[Box]) -> Box:
    """The smallest box that holds all."""
    axes = zip(*boxes, strict=True)
    return tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in map(tuple, axes))


def _moved(condition: Index, box: Box, shape: tuple[int, ...]) -> Index:
    """A condition over the elements of a box of its axes."""
    firsts = zip(condition.steps, box, strict=True)
    start = condition.start + sum(step * first for step, (first, _) in firsts)
    steps = tuple(s if n > 1 else 0 for s, n in zip(condition.steps, shape, strict=True))
    return Index(shape, steps, start)


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


@dataclass(frozen=True)
class DynamicSlice:
    """`count` elements from where the one element of a tile says."""

    start: Any
    count: int


def ds(start: Any, size: int) -> slice | DynamicSlice:
    """`size` elements from `start`, a number or a tile of one element, for indexing."""
    if hasattr(start, "is_tile"):
        return DynamicSlice(start, int(size))
    return slice(int(start), int(start) + int(size))
