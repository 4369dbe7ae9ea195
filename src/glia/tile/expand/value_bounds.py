"""Bounds of what a scalar expression can be, from the functions and constants in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from glia.base.dtype import PRED, TF32, DType, float_limits, integer_limits
from glia.tile.ir import Apply, Expr, Literal
from glia.tile.nest_rewriting import fold

Bounds = tuple[float, float]
ANY_NUMBER: Bounds = (-math.inf, math.inf)
ROUNDING = 2.0**-6  # of a bound: more than any float format here may round it


def bounds_of_dtype(dtype: DType) -> Bounds:
    """What the finite numbers of a dtype lie between; any where float32 has no greater ones."""
    if dtype is PRED:
        return 0.0, 1.0
    if dtype is TF32:  # which has the range of float32, and none in NumPy
        return ANY_NUMBER
    limits = integer_limits(dtype.numpy) if dtype.is_integer else float_limits(dtype.numpy)
    if float(limits.max) >= float(np.finfo(np.float32).max) / 2:
        return ANY_NUMBER
    return float(limits.min), float(limits.max)


def bounds_of_leaf(leaf: Expr) -> Bounds:
    """What is known of a leaf by itself: its value, or its dtype."""
    if isinstance(leaf, Literal):
        return float(leaf.value), float(leaf.value)
    return bounds_of_dtype(leaf.dtype)


def value_bounds(expression: Expr, of_leaf: Callable[[Expr], Bounds] = bounds_of_leaf) -> Bounds:
    """Numbers between which the values of a float expression lie, given those of its leaves.

    Of those for which nothing in it is infinite or NaN.
    """

    def of_call(part: Apply, bounds: list[Bounds]) -> Bounds:
        if not part.dtype.is_float:
            return bounds_of_dtype(part.dtype)
        args = part.args[1:] if part.function == "select" else part.args
        if part.function == "convert" and not args[0].dtype.is_float:
            return bounds_of_dtype(args[0].dtype)
        rule = _RULES.get(part.function)
        if rule is None or not all(each.dtype.is_float for each in args):
            return ANY_NUMBER
        return rounded(*apply_rule(rule, bounds[len(bounds) - len(args) :]))

    return fold(expression, of_leaf, of_call)


def apply_rule(rule: Callable[..., Bounds], args: Iterable[Bounds]) -> Bounds:
    """What a rule says of arguments; any number where that is undefined."""
    with np.errstate(all="ignore"):
        low, high = rule(*args)
    return ANY_NUMBER if math.isnan(low) or math.isnan(high) else (low, high)


def rounded(low: float, high: float) -> Bounds:
    """Bounds of numbers that were between others before they were rounded."""
    return low - abs(low) * ROUNDING, high + abs(high) * ROUNDING


def _add(a: Bounds, b: Bounds) -> Bounds:
    return a[0] + b[0], a[1] + b[1]


def _multiply(a: Bounds, b: Bounds) -> Bounds:
    corners = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(corners), max(corners)


def _square(a: Bounds) -> Bounds:
    return _nonnegative(a, lambda x: x * x)


def _abs(a: Bounds) -> Bounds:
    return _nonnegative(a, lambda x: x)


def _nonnegative(a: Bounds, of_magnitude: Callable[[float], float]) -> Bounds:
    """An even function that grows with the magnitude."""
    least = 0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return of_magnitude(least), of_magnitude(max(abs(a[0]), abs(a[1])))


def _sqrt(a: Bounds) -> Bounds:
    largest = min(max(a[1], 0.0), float(np.finfo(np.float32).max))
    return math.sqrt(max(a[0], 0.0)), math.sqrt(largest)


def exp_bounds(a: Bounds) -> Bounds:
    """Bounds of the exponentials of numbers between bounds."""
    return 0.0 if a[0] < -80 else float(np.exp(a[0])), float(np.exp(a[1]))


_RULES: dict[str, Callable[..., Bounds]] = {
    "add": _add,
    "subtract": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "multiply": _multiply,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "select": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "convert": lambda a: a,
    "square": _square,
    "abs": _abs,
    "sqrt": _sqrt,
    "exp": exp_bounds,
    "logistic": lambda _: (0.0, 1.0),
    "tanh": lambda _: (-1.0, 1.0),
    "erf": lambda _: (-1.0, 1.0),
}
