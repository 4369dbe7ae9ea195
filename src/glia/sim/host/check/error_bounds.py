"""How far two evaluations of one traced expression may lie apart.

They may differ in the order of sums and, by the steps that `functions.STEPS` states, in functions;
what is computed with such results is bounded by running error analysis. Elsewhere the bound is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from glia.sim.host.functions import STEPS
from glia.sim.host.traced import (
    ArrayTerm,
    CastTerm,
    ConstantTerm,
    LoadTerm,
    ProductTerm,
    ReduceTerm,
    ReshapeTerm,
    RowFunctionTerm,
    TransposeTerm,
    UfuncTerm,
)

Array = np.ndarray[Any, Any]
Load = Callable[[LoadTerm], Array]
TINY = 1e-300
EPSILON = 2.0**-23  # of float32, in which products are summed
SMALLEST = 2.0**-126  # pairs of bfloat16 below it are multiplied as 0, and so are their products


@dataclass(frozen=True)
class Bounded:
    """The value of a term, and for each element how far another evaluation may lie from it."""

    value: Array
    error: Array  # float64


class BoundEvaluator:
    """Values and bounds of terms, with operands from a function."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._known: dict[ArrayTerm, Bounded] = {}

    def bound(self, term: ArrayTerm) -> Bounded:
        """The value and the bound of a term, in its shape."""
        if term not in self._known:
            with np.errstate(all="ignore"):
                self._known[term] = self._evaluated(term)
        return self._known[term]

    def _evaluated(self, term: ArrayTerm) -> Bounded:
        match term:
            case LoadTerm():
                return _exact(np.asarray(self._load(term)))
            case ConstantTerm(value=value):
                return _exact(np.asarray(value, term.dtype))
            case ReshapeTerm(argument=argument):
                inside = self.bound(argument)
                return Bounded(inside.value.reshape(term.shape), inside.error.reshape(term.shape))
            case TransposeTerm(argument=argument, axes=axes):
                inside = self.bound(argument)
                return Bounded(inside.value.transpose(axes), inside.error.transpose(axes))
            case CastTerm(argument=argument):
                return _cast(self.bound(argument), term.dtype)
            case ReduceTerm(function=function, argument=argument, axes=axes):
                return _reduced(function, self.bound(argument), axes)
            case ProductTerm(left=left, right=right):
                return _product(self.bound(left), self.bound(right))
            case RowFunctionTerm(meaning=meaning, arguments=arguments, options=options):
                given = [self.bound(each) for each in arguments]
                value = meaning(*(each.value for each in given), *options)
                is_exact = not any(each.error.any() for each in given)
                return Bounded(value, np.full(value.shape, 0.0 if is_exact else np.inf))
            case UfuncTerm(function=function, arguments=arguments):
                return _applied(function, [self.bound(each) for each in arguments], term)
        raise TypeError(type(term).__name__)


def _exact(value: Array) -> Bounded:
    return Bounded(value, np.zeros(value.shape))


def step_of(value: Any) -> Array:
    """The distance from a float to the next in its dtype; 0 for others."""
    if value.dtype.kind not in "fV":
        return np.zeros(value.shape)
    facts = ml_dtypes.finfo(value.dtype)  # type: ignore[no-untyped-call]
    _, exponents = np.frexp(value.astype(np.float64))
    steps = np.ldexp(float(facts.eps), exponents - 1)
    return np.asarray(np.maximum(steps, float(facts.smallest_subnormal)))


def _cast(inside: Bounded, dtype: np.dtype[Any]) -> Bounded:
    value, error = inside.value.astype(dtype), inside.error
    if dtype == np.bool_:
        return Bounded(value, (np.abs(inside.value.astype(np.float64)) <= error) * (error > 0.0))
    rounding = step_of(value) if dtype.kind in "fV" else 1.0
    return Bounded(value, np.where(error > 0, error + rounding, 0.0))


def _reduced(function: str, inside: Bounded, axes: tuple[int, ...]) -> Bounded:
    value = getattr(np, function).reduce(inside.value, axis=axes)
    error = inside.error.sum(axis=axes)
    count = math.prod(inside.value.shape[axis] for axis in axes)
    if function == "add":
        sizes = np.abs(inside.value.astype(np.float64)).sum(axis=axes)
        return Bounded(value, error + count * float(np.finfo(value.dtype).eps) * sizes)
    if function == "multiply" and value.dtype.kind == "f":
        return Bounded(value, np.where(error > 0, np.inf, count * step_of(value)))
    return Bounded(value, error)


def _product(left: Bounded, right: Bounded) -> Bounded:
    sizes = [np.abs(side.value.astype(np.float64)) for side in (left, right)]
    depth = left.value.shape[1]
    error = depth * EPSILON * (sizes[0] @ sizes[1])
    totals = sizes[0].sum(axis=1, keepdims=True) + sizes[1].sum(axis=0, keepdims=True)
    error += SMALLEST * (totals + 1)
    error += left.error @ sizes[1] + sizes[0] @ right.error + left.error @ right.error
    return Bounded(left.value @ right.value, error)


def _applied(function: str, given: Sequence[Bounded], term: ArrayTerm) -> Bounded:
    values = [each.value for each in given]
    errors = [each.error for each in given]
    if function == "where":
        value = np.where(*values)
        chosen = np.where(values[0], errors[1], errors[2])
        between = np.abs(values[1].astype(np.float64) - values[2].astype(np.float64))
        error = chosen + np.where(errors[0] > 0, between + errors[1] + errors[2], 0.0)
    else:
        value = getattr(np, function)(*values)
        error = _propagated(function, values, errors, value)
        error = np.where(error > 0, error + step_of(value), 0.0)
        error = error + 2 * STEPS.get(function, 0.0) * step_of(value)
    shape = term.shape
    return Bounded(np.broadcast_to(value, shape), np.broadcast_to(np.asarray(error), shape))


def _propagated(
    function: str, values: Sequence[Array], errors: Sequence[Array], result: Array
) -> Array:
    """What errors of arguments make of a result; infinite where no rule says."""
    if not any(error.any() for error in errors):
        return np.zeros(result.shape)
    rule = _RULES.get(function)
    if rule is None:
        return np.where(sum(errors) > 0, np.inf, 0.0)
    sizes = [np.abs(value.astype(np.float64)) for value in values]
    wide = [value.astype(np.float64) for value in values]
    return np.asarray(rule(wide, sizes, errors, np.abs(result.astype(np.float64))))


Rule = Callable[[Sequence[Array], Sequence[Array], Sequence[Array], Array], Array]


def _sum_of_errors(_: object, __: object, errors: Sequence[Array], ___: object) -> Array:
    return np.asarray(sum(errors))


def _of_multiply(_: object, sizes: Any, errors: Any, __: object) -> Array:
    return np.asarray(sizes[0] * errors[1] + sizes[1] * errors[0] + errors[0] * errors[1])


def _of_divide(_: object, sizes: Any, errors: Any, result: Array) -> Array:
    left = np.maximum(sizes[1] - errors[1], TINY)
    return np.asarray((errors[0] + result * errors[1]) / left)


def _of_sqrt(_: object, __: object, errors: Any, result: Array) -> Array:
    return np.asarray(np.minimum(np.sqrt(errors[0]), errors[0] / np.maximum(result, TINY)))


def _of_exp(_: object, __: object, errors: Any, result: Array) -> Array:
    return np.asarray(result * np.expm1(errors[0]))


def _of_log(_: object, sizes: Any, errors: Any, __: object) -> Array:
    return np.asarray(errors[0] / np.maximum(sizes[0] - errors[0], TINY))


def _of_square(_: object, sizes: Any, errors: Any, __: object) -> Array:
    return np.asarray(errors[0] * (2 * sizes[0] + errors[0]))


def _of_rounding(_: object, __: object, errors: Any, ___: object) -> Array:
    return np.where(errors[0] > 0, errors[0] + 1, 0.0)


def _of_comparison(values: Any, _: object, errors: Any, __: object) -> Array:
    error = errors[0] + errors[1]
    return np.asarray((error > 0) & (np.abs(values[0] - values[1]) <= error)).astype(np.float64)


def _of_sign(_: object, sizes: Any, errors: Any, __: object) -> Array:
    return np.asarray(2.0 * ((errors[0] > 0) & (sizes[0] <= errors[0])))


def _of_logic(_: object, __: object, errors: Any, ___: object) -> Array:
    return np.asarray(sum(errors) > 0).astype(np.float64)


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_LOGIC = ("logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isfinite")
_PASSING = ("add", "subtract", "maximum", "minimum", "negative", "absolute", "positive", "tanh")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_PASSING, _sum_of_errors),
    **dict.fromkeys(_COMPARISONS, _of_comparison),
    **dict.fromkeys(_LOGIC, _of_logic),
    **dict.fromkeys(("rint", "floor"), _of_rounding),
    "multiply": _of_multiply,
    "divide": _of_divide,
    "sqrt": _of_sqrt,
    "exp": _of_exp,
    "log": _of_log,
    "square": _of_square,
    "sign": _of_sign,
}
