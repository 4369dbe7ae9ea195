"""Affine expressions over named integer variables (loop indices, axes, registers)."""

from __future__ import annotations

from collections.abc import Mapping

from glia.base.fast_objects import frozen_value


@frozen_value
class Affine:
    """`constant + sum(coefficient * variable)`; terms are sorted by name and never zero."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @staticmethod
    def of(value: Affine | str | int) -> Affine:
        """An affine expression from a constant or a variable's name."""
        if isinstance(value, Affine):
            return value
        if isinstance(value, str):
            return Affine(((value, 1),))
        return Affine((), int(value))

    @staticmethod
    def build(coefficients: Mapping[str, int], constant: int = 0) -> Affine:
        """The expression with these coefficients."""
        terms = tuple(sorted([term for term in coefficients.items() if term[1]]))
        return Affine(terms, constant)

    def __add__(self, other: Affine | str | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        other = Affine.of(other)
        coefficients = dict(self.terms)
        for variable, coefficient in other.terms:
            coefficients[variable] = coefficients.get(variable, 0) + coefficient
        return Affine.build(coefficients, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | str | int) -> Affine:
        return self + Affine.of(other) * -1

    def __mul__(self, factor: int) -> Affine:
        if not self.terms:
            return Affine((), self.constant * factor)
        return Affine.build({v: c * factor for v, c in self.terms}, self.constant * factor)

    __rmul__ = __mul__

    @property
    def is_constant(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(variable for variable, _ in self.terms)

    def coefficient(self, variable: str) -> int:
        """The coefficient of `variable`, 0 when it does not occur."""
        return dict(self.terms).get(variable, 0)

    def substitute(self, values: Mapping[str, Affine | str | int]) -> Affine:
        """Replace variables by affine expressions, names or constants."""
        if not any(variable in values for variable, _ in self.terms):
            return self
        coefficients: dict[str, int] = {}
        constant = self.constant
        for variable, coefficient in self.terms:
            value = Affine.of(values.get(variable, variable))
            constant += value.constant * coefficient
            for name, factor in value.terms:
                coefficients[name] = coefficients.get(name, 0) + factor * coefficient
        return Affine.build(coefficients, constant)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value under an assignment of every variable."""
        return self.constant + sum(c * values[v] for v, c in self.terms)

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """The least and greatest value when every variable v runs over 0 .. extents[v]-1."""
        low = high = self.constant
        for variable, coefficient in self.terms:
            reach = coefficient * (extents[variable] - 1)
            low, high = low + min(0, reach), high + max(0, reach)
        return low, high

    def __str__(self) -> str:
        parts = [v if c == 1 else f"{c}*{v}" for v, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


ZERO = Affine()
