"""A builder of one nest: its axes, and the affine index arithmetic that reshapes need."""

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


class NestBuilder:
    """Creates the axes of a nest and records its reduction, at most one.

    Splits of axes survive a restart: a nest is rebuilt with finer axes until every index is affine.
    """

    def __init__(self) -> None:
        self._factors: dict[str, list[int]] = {}
        self._parts: dict[str, tuple[str, int]] = {}
        self.restart()

    def restart(self) -> None:
        """Reset everything but the splits of axes."""
        self.extents: dict[str, int] = {}
        self.reduction: Reduction | None = None
        self.body: Expr | None = None
        self.owner: object = None
        self.owner_index: Index = ()
        self.memory: dict[tuple[int, Index], Expr] = {}

    def axis(self, name: str, extent: int) -> Affine:
        """A new axis of `extent` values, as an index; the constant 0 when there is only one."""
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
        """Split an axis in two and restart."""
        name, position = self._parts[request.axis]
        factors = self._factors[name]
        extent = factors[position]
        factors[position : position + 1] = [extent // request.inner, request.inner]
        self.restart()

    def parallel_extents(self) -> dict[str, int]:
        """The extents of the axes that are not reduced."""
        reduced = self.reduction.axes if self.reduction else ()
        return {name: extent for name, extent in self.extents.items() if name not in reduced}

    def axes(self) -> tuple[Axis, ...]:
        """Every axis in the order of its creation."""
        return tuple(Axis(name, extent) for name, extent in self.extents.items())

    def enumerates(self, index: Index, shape: tuple[int, ...]) -> bool:
        """Whether `index` visits every element of a tensor of `shape` exactly once."""
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

    Raises Split when an axis must be split first, NotAffine when no split helps.
    """
    real = [d for d, extent in enumerate(shape) if extent != 1]
    strides = strides_of(shape)
    constant, terms = _make_terms_positive(linear, extents)
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


def _make_terms_positive(
    linear: Affine, extents: Mapping[str, int]
) -> tuple[int, list[tuple[Affine, str, int]]]:
    """`linear` as a constant plus a sum of terms with positive coefficients."""
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


def reshape_groups(
    source: Sequence[int], result: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The finest grouping of dimensions into pairs of equal size that a reshape preserves."""
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
