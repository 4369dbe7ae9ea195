"""A nest under construction: its axes, and the affine index arithmetic reshapes need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from glia.base.affine import ZERO, Affine
from glia.tile.ir import Axis, Expr, Reduction

Index = tuple[Affine, ...]


class Split(Exception):
    """An index becomes affine once `axis` is split so that its inner part has extent `inner`."""

    def __init__(self, axis: str, inner: int) -> None:
        super().__init__(axis, inner)
        self.axis = axis
        self.inner = inner


class NotAffine(Exception):
    """No splitting of axes makes an index affine."""


class NestInProgress:
    """Hands out axes and remembers the one reduction that a nest may hold.

    `splits` survives a restart, so that a nest is begun again with finer axes until every index
    is affine.
    """

    def __init__(self) -> None:
        self._factors: dict[str, list[int]] = {}
        self._parts: dict[str, tuple[str, int]] = {}
        self.restart()

    def restart(self) -> None:
        """Forget everything but the splits."""
        self.extents: dict[str, int] = {}
        self.reduction: Reduction | None = None
        self.body: Expr | None = None
        self.owner: object = None
        self.owner_index: Index = ()
        self.memory: dict[tuple[int, Index], Expr] = {}

    def axis(self, name: str, extent: int) -> Affine:
        """An index running over `extent` values; a constant 0 when there is only one."""
        factors = self._factors.setdefault(name, [extent])
        result = ZERO
        for position, factor in enumerate(factors):
            part = name if len(factors) == 1 else f"{name}_{position}"
            self._parts[part] = (name, position)
            result = result * factor
            if factor != 1:
                self.extents[part] = factor
                result = result + part
        return result

    def split(self, request: Split) -> None:
        """Divide an axis in two and start over."""
        name, position = self._parts[request.axis]
        factors = self._factors[name]
        extent = factors[position]
        factors[position : position + 1] = [extent // request.inner, request.inner]
        self.restart()

    def parallel_extents(self) -> dict[str, int]:
        """The axes in no reduction."""
        reduced = self.reduction.axes if self.reduction else ()
        return {name: extent for name, extent in self.extents.items() if name not in reduced}

    def axes(self) -> tuple[Axis, ...]:
        """Every axis in the order of its creation."""
        return tuple(Axis(name, extent) for name, extent in self.extents.items())

    def enumerates(self, index: Index, shape: tuple[int, ...]) -> bool:
        """Whether `index` takes every value of a tensor of `shape` exactly once over the axes."""
        extents = self.parallel_extents()
        linear = linearise(index, shape)
        if set(linear.variables) != set(extents):
            return False
        reach = 1
        for variable, coefficient in sorted(linear.terms, key=lambda term: abs(term[1])):
            if abs(coefficient) != reach:
                return False
            reach *= extents[variable]
        return reach == math.prod(shape)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def linearise(index: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """The row-major position of an element of a tensor of `shape`."""
    total = ZERO
    for part, stride in zip(index, strides_of(shape), strict=True):
        total = total + part * stride
    return total


def delinearise(linear: Affine, shape: Sequence[int], extents: Mapping[str, int]) -> Index:
    """The index whose row-major position in `shape` is `linear`.

    Raises Split when an axis must be divided first, NotAffine when that does not help.
    """
    real = [d for d, extent in enumerate(shape) if extent != 1]
    strides = strides_of(shape)
    constant, terms = _with_positive_terms(linear, extents)
    index = [ZERO] * len(shape)
    for term, variable, coefficient in terms:
        d = _dimension_of(variable, coefficient, extents[variable], real, shape, strides)
        index[d] = index[d] + term * (coefficient // strides[d])
    for d in real:
        index[d] = index[d] + constant // strides[d]
        constant %= strides[d]
    for d, extent in enumerate(shape):
        low, high = index[d].bounds(extents)
        if low < 0 or high >= extent:
            raise NotAffine
    return tuple(index)


def _with_positive_terms(
    linear: Affine, extents: Mapping[str, int]
) -> tuple[int, list[tuple[Affine, str, int]]]:
    """`linear` as constant + sum of coefficient * term where every coefficient is positive."""
    constant, terms = linear.constant, []
    for variable, coefficient in linear.terms:
        term = Affine.of(variable)
        if coefficient < 0:
            term = Affine.build({variable: -1}, extents[variable] - 1)
            constant += coefficient * (extents[variable] - 1)
        terms.append((term, variable, abs(coefficient)))
    if constant < 0:
        raise NotAffine
    return constant, terms


def _dimension_of(
    variable: str,
    coefficient: int,
    extent: int,
    real: Sequence[int],
    shape: Sequence[int],
    strides: Sequence[int],
) -> int:
    """The dimension that a term moves along."""
    for d in real:
        if strides[d] > coefficient:
            continue
        end = strides[d] * shape[d]
        if coefficient % strides[d]:
            break
        if coefficient * (extent - 1) < end:
            return d
        inner = end // coefficient
        if end % coefficient == 0 and inner > 1 and extent % inner == 0:
            raise Split(variable, inner)
        break
    raise NotAffine


def blocks(source: Sequence[int], result: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions of equal element count that a reshape maps to each other."""
    found: list[tuple[list[int], list[int]]] = []
    s = r = 0
    while s < len(source) or r < len(result):
        left, right = [], []
        left_count = right_count = 1
        if s < len(source):
            left, left_count, s = [s], source[s], s + 1
        if r < len(result) and not (left and left_count == 1):
            right, right_count, r = [r], result[r], r + 1
        while left_count != right_count:
            if left_count < right_count:
                left, left_count, s = [*left, s], left_count * source[s], s + 1
            else:
                right, right_count, r = [*right, r], right_count * result[r], r + 1
        found.append((left, right))
    return found
