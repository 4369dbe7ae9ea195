"""Intervals of integers, and what scalar functions make of them.

An interval holds every value that an element may have. A function whose exact result may leave the
dtype wraps, and its interval is then the whole dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from glia.base.dtype import PRED, DType, Kind
from glia.graph.scalar import OPPOSITE


class Interval(NamedTuple):
    """The integers from `low` to `high`, both included."""

    low: int
    high: int

    def contains(self, other: Interval) -> bool:
        """Whether every value of `other` is one of this interval."""
        return self.low <= other.low and other.high <= self.high


BOOLEAN = Interval(0, 1)


def limits_of(dtype: DType) -> Interval | None:
    """Every value of an integer dtype or pred; None for other dtypes."""
    if dtype is PRED:
        return BOOLEAN
    if dtype.kind is Kind.SIGNED:
        return Interval(-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    return Interval(0, (1 << dtype.bits) - 1) if dtype.kind is Kind.UNSIGNED else None


def join(*intervals: Interval) -> Interval:
    """The smallest interval around all."""
    return Interval(min(i.low for i in intervals), max(i.high for i in intervals))


def intersect(a: Interval, b: Interval) -> Interval | None:
    """The values of both; None when there is none."""
    low, high = max(a.low, b.low), min(a.high, b.high)
    return Interval(low, high) if low <= high else None


def wrapped(found: Interval, dtype: DType) -> Interval | None:
    """What wrapping in a dtype makes of an interval."""
    limits = limits_of(dtype)
    return found if limits is not None and limits.contains(found) else limits


def sum_of(x: Interval, least: int, most: int) -> Interval:
    """The sum of `least` to `most` values of an interval."""
    counts = (least, most)
    return Interval(min(x.low * n for n in counts), max(x.high * n for n in counts))


def product_of(a: Interval, b: Interval) -> Interval:
    """The product of a value of each."""
    return _hull(lambda x, y: x * y, a, b)


def bits_of(*intervals: Interval) -> Interval:
    """What bitwise functions can make of values: as many bits, and a sign if one has it."""
    both = join(*intervals)
    bits = max(both.high.bit_length(), (~both.low).bit_length() if both.low < 0 else 0)
    return Interval(-(1 << bits) if both.low < 0 else 0, (1 << bits) - 1)


def _hull(function: Callable[..., int], *intervals: Interval) -> Interval:
    """The interval of a function that is monotone in each argument."""
    corners = [function(*corner) for corner in itertools.product(*intervals)]
    return Interval(min(corners), max(corners))


def _absolute(a: Interval) -> Interval:
    ends = abs(a.low), abs(a.high)
    return Interval(0 if a.low <= 0 <= a.high else min(ends), max(ends))


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _divide(a: Interval, b: Interval) -> Interval:
    """Truncated; -1 for a divisor of zero, which is the greatest value of an unsigned dtype."""
    parts = [intersect(b, Interval(1, max(1, b.high))), intersect(b, Interval(min(-1, b.low), -1))]
    found = [_hull(_truncated, a, part) for part in parts if part is not None]
    return join(*found, *[Interval(-1, -1)] * (b.low <= 0 <= b.high))


def _remainder(a: Interval, b: Interval) -> Interval:
    """With the sign of a, less than b in size; a itself for a divisor of zero."""
    most = max(abs(b.low), abs(b.high)) - 1
    if b.low <= 0 <= b.high:
        return Interval(min(a.low, 0), max(a.high, 0))
    return Interval(-min(most, max(0, -a.low)), min(most, max(0, a.high)))


def _and(a: Interval, b: Interval) -> Interval:
    found = bits_of(a, b)
    bounds = [x.high for x in (a, b) if x.low >= 0]
    return Interval(0, min(bounds)) if bounds else found


def _square(a: Interval) -> Interval:
    size = _absolute(a)
    return Interval(size.low**2, size.high**2)


def _minimum(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.low, b.low), min(a.high, b.high))


def _maximum(a: Interval, b: Interval) -> Interval:
    return Interval(max(a.low, b.low), max(a.high, b.high))


def _clamp(low: Interval, x: Interval, high: Interval) -> Interval:
    return _minimum(_maximum(low, x), high)


_ARITHMETIC: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: Interval(a.low + b.low, a.high + b.high),
    "subtract": lambda a, b: Interval(a.low - b.high, a.high - b.low),
    "multiply": product_of,
    "square": _square,
    "divide": _divide,
    "remainder": _remainder,
    "negate": lambda a: Interval(-a.high, -a.low),
    "abs": _absolute,
    "sign": lambda a: _clamp(Interval(-1, -1), a, Interval(1, 1)),
    "minimum": _minimum,
    "maximum": _maximum,
    "clamp": _clamp,
    "and": _and,
    "or": bits_of,
    "xor": bits_of,
    "copy": lambda a: a,
}

Comparison = Callable[[Interval, Interval], bool]
_ALWAYS: dict[str, Comparison] = {
    "less": lambda a, b: a.high < b.low,
    "less_equal": lambda a, b: a.high <= b.low,
    "greater": lambda a, b: a.low > b.high,
    "greater_equal": lambda a, b: a.low >= b.high,
    "equal": lambda a, b: a.low == a.high == b.low == b.high,
    "not_equal": lambda a, b: intersect(a, b) is None,
}


def comparison(function: str) -> str | None:
    """The comparison of integers that a scalar function is; None for other functions."""
    plain = function.removesuffix("_total_order")
    return plain if plain in OPPOSITE else None


def compared(function: str, a: Interval, b: Interval) -> Interval:
    """The results, 0 and 1, that a comparison may have."""
    if _ALWAYS[function](a, b):
        return Interval(1, 1)
    return Interval(0, 0) if _ALWAYS[OPPOSITE[function]](a, b) else BOOLEAN


def compared_with(function: str, b: Interval) -> Interval | None:
    """Around the values that may compare so with one of `b`; None when that says nothing."""
    beyond = 1 << 64
    return {
        "less": Interval(-beyond, b.high - 1),
        "less_equal": Interval(-beyond, b.high),
        "greater": Interval(b.low + 1, beyond),
        "greater_equal": Interval(b.low, beyond),
        "equal": b,
    }.get(function)


def function_of(function: str, args: Sequence[Interval], dtype: DType) -> Interval | None:
    """The interval of a scalar function that gives `dtype`, on values of these intervals."""
    named = comparison(function)
    if named is not None:
        return compared(named, args[0], args[1])
    if function == "not":
        return _not(args[0], dtype)
    if function in ("popcount", "count_leading_zeros"):
        return Interval(0, dtype.bits)
    if function.startswith("shift_"):
        return _shift(function, args[0], args[1], dtype)
    if function not in _ARITHMETIC:
        return limits_of(dtype)
    if dtype is PRED and function == "add":
        function = "or"
    return wrapped(_ARITHMETIC[function](*args), dtype)


def _not(a: Interval, dtype: DType) -> Interval | None:
    limits = limits_of(dtype)
    assert limits is not None
    total = limits.low + limits.high  # -1 for a signed dtype
    return Interval(total - a.high, total - a.low)


def _shift(function: str, a: Interval, b: Interval, dtype: DType) -> Interval | None:
    """An amount below zero or past the width gives 0, or the sign."""
    inside = intersect(b, Interval(0, dtype.bits - 1))
    past = inside is None or inside != b
    if function == "shift_left":
        parts = [] if inside is None else [_hull(lambda x, n: x << n, a, inside)]
        return wrapped(join(*parts, *[Interval(0, 0)] * past), dtype)
    signed = function == "shift_right_arithmetic"
    if a.high >= 1 << (dtype.bits - 1) if signed else a.low < 0:
        return limits_of(dtype)
    signs = Interval(-1 if a.low < 0 else 0, -1 if a.high < 0 else 0)
    parts = [] if inside is None else [_hull(lambda x, n: x >> n, a, inside)]
    return join(*parts, *[signs] * past)
