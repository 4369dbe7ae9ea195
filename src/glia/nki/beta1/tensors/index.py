"""Index objects of Beta 1: affine functions of tile positions, and masks of comparisons."""

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
from glia.nki.beta1.tensors.mask_syntax import conjoin_left_side, opens_conjunction
from glia.nki.session.session import caller
from glia.nki.tensors.views import is_integer

# For every axis of a tile the first element and one past the last
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Index:
    """An affine index: `start` + the sum over axes of step times position along the axis."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    start: int = 0

    __array_ufunc__ = None  # NumPy's scalars defer to these operators

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def at_rank(self, rank: int) -> Index:
        """The index with leading axes of one element, as NumPy aligns shapes."""
        missing = rank - self.ndim
        if missing <= 0:
            return self
        return Index((1,) * missing + self.shape, (0,) * missing + self.steps, self.start)

    def transposed(self) -> Index:
        """The index over its axes in reverse order."""
        return Index(self.shape[::-1], self.steps[::-1], self.start)

    def value_range(self, box: Box | None = None) -> tuple[int, int]:
        """The least and greatest value within a box of the axes, by default all of them."""
        ranges = box or tuple((0, count) for count in self.shape)
        low = high = self.start
        for step, (first, end) in zip(self.steps, ranges, strict=True):
            reaches = (step * first, step * (end - 1))
            low, high = low + min(reaches), high + max(reaches)
        return low, high

    def __getitem__(self, key: Any) -> Index:
        """New axes by None, existing ones by `:` or a slice; UnsupportedIndex otherwise."""
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

    def _add_affine(self, other: Any, sign: int) -> Any:
        """This plus `sign` times `other`: an Index, or a ShiftedIndex beside a tile."""
        if is_integer(other):
            return Index(self.shape, self.steps, self.start + sign * int(other))
        if hasattr(other, "is_tile"):
            return other.offset_index(self if sign > 0 else self * -1, sign)
        if not isinstance(other, Index):
            raise UnsupportedIndex(what=f"an index and a {type(other).__name__}", loc=caller())
        rank = max(self.ndim, other.ndim)
        a, b = self.at_rank(rank), other.at_rank(rank)
        shape = broadcast_shape(a.shape, b.shape)
        steps = tuple(x + sign * y for x, y in zip(a.steps, b.steps, strict=True))
        return Index(shape, steps, a.start + sign * b.start)

    def __add__(self, other: Any) -> Any:
        return self._add_affine(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._add_affine(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (self * -1)._add_affine(other, 1)

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

    def _divide_affine(self, other: Any) -> tuple[Index, Index]:
        """Quotient and remainder by a positive number; UnsupportedIndex when not affine."""
        if not is_integer(other) or int(other) < 1:
            raise UnsupportedIndex(what="division of an index by other than a number", loc=caller())
        divisor = int(other)
        low, high = self.value_range()
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
        return self._divide_affine(other)[0]

    def __mod__(self, other: Any) -> Index:
        return self._divide_affine(other)[1]

    # --- comparisons ---------------------------------------------------------------------------

    def __lt__(self, other: Any) -> Any:
        return _comparison_mask(lambda: (other - self - 1,), other)

    def __le__(self, other: Any) -> Any:
        return _comparison_mask(lambda: (other - self,), other)

    def __gt__(self, other: Any) -> Any:
        return _comparison_mask(lambda: (self - other - 1,), other)

    def __ge__(self, other: Any) -> Any:
        return _comparison_mask(lambda: (self - other,), other)

    def __eq__(self, other: object) -> Any:
        return _comparison_mask(lambda: (self - other, other - self), other)

    def __ne__(self, other: object) -> Any:
        return _comparison_mask(lambda: (self - other, other - self), other, is_negated=True)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ControlFlowOnIndex(loc=caller())

    def __repr__(self) -> str:
        return f"Index(start={self.start}, steps={self.steps}, shape={self.shape})"


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that NumPy broadcasts `shapes` to; UnsupportedIndex when it cannot."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError as problem:
        text = " and ".join(map(str, shapes))
        raise UnsupportedIndex(what=f"shapes {text} together", loc=caller()) from problem


def _comparison_mask(make: Any, other: Any, *, is_negated: bool = False) -> Any:
    if not isinstance(other, Index) and not is_integer(other):
        raise UnsupportedMask(what=f"an index and a {type(other).__name__}", loc=caller())
    mask = Mask((tuple(make()),))
    return conjoin_left_side(~mask if is_negated else mask)


Conditions = tuple[Index, ...]  # a conjunction: each index is at least 0
MOST_ALTERNATIVES = 64
ALWAYS, NEVER = Index((1,), (0,), 0), Index((1,), (0,), -1)


@dataclass(frozen=True, eq=False)
class Mask:
    """A disjunction of conjunctions of affine conditions, its alternatives disjoint."""

    alternatives: tuple[Conditions, ...]

    __array_ufunc__ = None

    @classmethod
    def of_alternatives(cls, alternatives: Iterable[Conditions]) -> Mask:
        """The mask of disjoint alternatives; UnsupportedMask for more than MOST_ALTERNATIVES."""
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
        return Mask.of_alternatives(filter(None, map(_simplify_conjunction, pairs)))

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        if isinstance(other, bool | np.bool_):
            return True if other else self
        if not isinstance(other, Mask):
            raise UnsupportedMask(what=f"| with a {type(other).__name__}", loc=caller())
        return Mask.of_alternatives((*self.alternatives, *(other & ~self).alternatives))

    __ror__ = __or__

    def __invert__(self) -> Mask:
        result = Mask(((ALWAYS,),))
        for conditions in self.alternatives:
            result = result & Mask(_negate_conjunction(conditions))
        return result

    def __bool__(self) -> bool:
        """True as the left operand of `and`, which means `&`; ControlFlowOnIndex elsewhere."""
        if opens_conjunction(self):
            return True
        raise ControlFlowOnIndex(loc=caller())

    def __setitem__(self, key: Any, value: Any) -> None:
        raise IndexCannotBeAssigned(loc=caller())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all its conditions broadcast to."""
        return broadcast_shape(*(c.shape for each in self.alternatives for c in each))

    def transposed(self) -> Mask:
        """The mask over a tile with its dimensions in reverse order."""
        return Mask(tuple(tuple(c.transposed() for c in each) for each in self.alternatives))

    def bounding_box(self, shape: tuple[int, ...]) -> tuple[Box | None, Mask | None]:
        """(box, rest): the bounding box of the mask in a tile, None when it holds nowhere.

        `rest` is the mask when it does not fill its bounding box, else None. Axes are aligned as
        NumPy aligns shapes where that broadcasts, else from the first axis.
        """
        aligned = [tuple(_align_axes(c, shape) for c in each) for each in self.alternatives]
        kept: list[tuple[Conditions, Box, Conditions]] = []
        for conditions in aligned:
            bounds, others = _solve_bounds(conditions, shape)
            if bounds is not None:
                kept.append((conditions, bounds, others))
        if not kept:
            return None, None
        box = _box_hull([each[1] for each in kept])
        if len(kept) == 1:
            rest = kept[0][2]
            return box, Mask((rest,)) if rest else None
        if any(each == box and not rest for _, each, rest in kept):
            return box, None
        return box, Mask(tuple(each for each, _, _ in kept))

    def boxes(self, box: Box) -> Iterator[Box]:
        """Disjoint boxes that make up the mask within `box`; conditions are over its tile."""
        shape = tuple(end - first for first, end in box)
        for conditions in self.alternatives:
            moved = tuple(_translate_condition(each, box, shape) for each in conditions)
            found, rest = _solve_bounds(moved, shape)
            if found is None:
                continue
            inner = tuple((a + f, b + f) for (a, b), (f, _) in zip(found, box, strict=True))
            if not rest:
                yield inner
                continue
            axis = max(range(len(inner)), key=lambda i: inner[i][1] - inner[i][0])
            for at in range(*inner[axis]):
                yield from Mask((conditions,)).boxes(
                    (*inner[:axis], (at, at + 1), *inner[axis + 1 :])
                )


def _simplify_conjunction(conditions: Conditions) -> Conditions | None:
    """The tightest condition for each linear form; None when the conjunction never holds."""
    kept: dict[Any, Index] = {}
    for each in conditions:
        low, high = each.value_range()
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


def _negate_conjunction(conditions: Conditions) -> tuple[Conditions, ...]:
    """The complement of a conjunction, as disjoint conjunctions."""
    return tuple((*conditions[:n], each * -1 - 1) for n, each in enumerate(conditions))


def _solve_bounds(conditions: Conditions, shape: tuple[int, ...]) -> tuple[Box | None, Conditions]:
    """The box where conditions on one axis hold (None when empty), and the other conditions."""
    bounds = [[0, count] for count in shape]
    rest = []
    for condition in conditions:
        axes = [axis for axis, step in enumerate(condition.steps) if step and shape[axis] > 1]
        low, high = condition.value_range(tuple((0, count) for count in shape))
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


def _box_hull(boxes: list[Box]) -> Box:
    """The smallest box that contains `boxes`."""
    axes = zip(*boxes, strict=True)
    return tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in map(tuple, axes))


def _translate_condition(condition: Index, box: Box, shape: tuple[int, ...]) -> Index:
    """A condition over positions relative to the first element of a box."""
    firsts = zip(condition.steps, box, strict=True)
    start = condition.start + sum(step * first for step, (first, _) in firsts)
    steps = tuple(s if n > 1 else 0 for s, n in zip(condition.steps, shape, strict=True))
    return Index(shape, steps, start)


def _align_axes(condition: Index, shape: tuple[int, ...]) -> Index:
    """A condition with the axes of a tile of `shape`; UnsupportedMask when it has others."""
    rank = len(shape)
    if condition.ndim > rank:
        spare = condition.ndim - rank
        if any(condition.steps[:spare]):
            raise UnsupportedMask(
                what=f"a mask of shape {condition.shape} for {shape}", loc=caller()
            )
        condition = Index(condition.shape[spare:], condition.steps[spare:], condition.start)
    right = condition.at_rank(rank)
    if _broadcasts_to(right.shape, shape):
        return right
    spare = rank - condition.ndim
    left = Index(condition.shape + (1,) * spare, condition.steps + (0,) * spare, condition.start)
    if _broadcasts_to(left.shape, shape):
        return left
    raise UnsupportedMask(what=f"a mask of shape {condition.shape} for {shape}", loc=caller())


def _broadcasts_to(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(a in (1, b) or b == 1 for a, b in zip(own, shape, strict=True))


def arange(*args: int) -> Index:
    """The index of range(start, stop, step) along one axis."""
    values = range(*(int(each) for each in args))
    return Index((len(values),), (values.step,), values.start)


class Grid(tuple[Index, ...]):
    """The indices of nl.mgrid, one for each axis; p, x, y, z and w name the first five."""

    __slots__ = ()

    p = property(lambda self: self[0])
    x = property(lambda self: self[1])
    y = property(lambda self: self[2])
    z = property(lambda self: self[3])
    w = property(lambda self: self[4])


class _Mgrid:
    """`mgrid[0:128, 0:512]`: an index for each slice, all broadcast to the grid's shape."""

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
    """The number of a loop iteration; `is_first` marks the first iteration."""

    is_first = False


@dataclass(frozen=True)
class DynamicSlice:
    """`count` elements from the start that a tile of one element holds."""

    start: Any
    count: int


def ds(start: Any, size: int) -> slice | DynamicSlice:
    """`size` elements from `start`, a number or a tile of one element, for indexing."""
    if hasattr(start, "is_tile"):
        return DynamicSlice(start, int(size))
    return slice(int(start), int(start) + int(size))
