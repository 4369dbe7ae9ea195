"""The table of scalar functions that `graph.Map` and the tile level apply to each element.

Every function has XLA semantics: integers wrap, integer division by zero is -1, shifts past the
width give zero (or the sign), maximum and minimum propagate NaN, floats narrower than 32 bits are
computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.base.dtype import DTYPES, PRED, DType, Kind, from_numpy

Array = np.ndarray[Any, Any]

_COMPONENT = {"c64": DTYPES["f32"], "c128": DTYPES["f64"]}
_COMPLEX = {"f32": DTYPES["c64"], "f64": DTYPES["c128"]}

FLOAT = frozenset({Kind.FLOAT})
INEXACT = FLOAT | {Kind.COMPLEX}
INTEGER = frozenset({Kind.SIGNED, Kind.UNSIGNED})
BITS = INTEGER | {Kind.PRED}
REAL = BITS | FLOAT
NUMBER = INTEGER | INEXACT
ANY = REAL | INEXACT


@dataclass(frozen=True)
class ScalarFunction:
    """A function of scalars; `compute` applies it to arrays of one shape.

    `result` says how the result dtype follows: "same" as the last operand, "pred", "component" (the
    float inside a complex operand; reals keep their dtype), or "complex" (of the float operands).
    """

    name: str
    arity: int
    result: str
    kinds: frozenset[Kind]
    compute: Callable[..., Array]
    prose: str

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        """The result's dtype; TypeError when the operands' number or dtypes do not fit."""
        if len(dtypes) != self.arity:
            raise TypeError(f"{self.name} takes {self.arity} operands, not {len(dtypes)}")
        data = dtypes[1:] if self.name == "select" else dtypes
        if self.name == "select" and dtypes[0] is not PRED:
            raise TypeError(f"select needs a pred first operand, not {dtypes[0]}")
        if any(dtype is not data[0] for dtype in data):
            raise TypeError(f"{self.name} needs operands of one dtype, not {list(data)}")
        dtype = data[0]
        if dtype.kind not in self.kinds:
            raise TypeError(f"{self.name} is not defined on {dtype}")
        if self.result == "pred":
            return PRED
        if self.result == "component":
            return _COMPONENT.get(dtype.name, dtype)
        if self.result == "complex":
            if dtype.name not in _COMPLEX:
                raise TypeError(f"complex needs f32 or f64 parts, not {dtype}")
            return _COMPLEX[dtype.name]
        return dtype


FUNCTIONS: dict[str, ScalarFunction] = {}


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The NumPy dtype of arithmetic: float32 for narrower floats, bytes for narrower integers."""
    known = from_numpy(dtype)
    if known.is_float and known.bits < 32:
        return np.dtype(np.float32)
    if known.is_integer and known.bits < 8:
        return np.dtype(np.int8 if known.kind is Kind.SIGNED else np.uint8)
    return known.numpy


def narrow(value: Array, dtype: np.dtype[Any]) -> Array:
    """A value computed in `working_dtype(dtype)` as `dtype`: floats round, integers wrap."""
    if value.dtype == dtype:
        return value
    known = from_numpy(dtype)
    if known.is_integer and known.bits < 8:
        return wrap(value, known.bits, signed=known.kind is Kind.SIGNED).astype(dtype)
    return value.astype(dtype)


def wrap(value: Array, bits: int, *, signed: bool) -> Array:
    """The low `bits` of integers as bytes, with their sign if `signed`."""
    low = np.asarray(value.astype(np.uint8) & np.uint8((1 << bits) - 1))
    if not signed:
        return low
    sign = np.int8(1 << (bits - 1))
    return np.asarray((low.view(np.int8) ^ sign) - sign)


def _declare(
    name: str,
    arity: int,
    kinds: frozenset[Kind],
    function: Callable[..., Any],
    prose: str,
    *,
    result: str = "same",
    bits: bool = False,
    raw: bool = False,
) -> None:
    """Enter a function; `bits` passes the operand's width, `raw` skips the working precision."""

    def compute(*arrays: Array) -> Array:
        arrays = tuple(np.asarray(array) for array in arrays)
        dtype = arrays[-1].dtype
        wide = arrays if raw else [a.astype(working_dtype(a.dtype), copy=False) for a in arrays]
        extra = {"bits": from_numpy(dtype).bits} if bits else {}
        with np.errstate(all="ignore"):
            value = np.asarray(function(*wide, **extra))
            return narrow(value, dtype) if value.dtype == working_dtype(dtype) else value

    FUNCTIONS[name] = ScalarFunction(name, arity, result, kinds, compute, prose)


def convert(array: Array, dtype: DType) -> Array:
    """Convert elements as XLA does.

    Floats round to nearest even; a float to an integer truncates and saturates, NaN becomes 0; an
    integer to a narrower integer wraps; anything to pred is `!= 0`; complex to real keeps the real
    part.
    """
    array = np.asarray(array)
    source = from_numpy(array.dtype)
    if source is dtype:
        return array
    if dtype is PRED:
        return np.asarray(array.astype(working_dtype(array.dtype), copy=False) != 0)
    if source.is_complex and not dtype.is_complex:
        return convert(np.ascontiguousarray(array.real).reshape(array.shape), dtype)
    with np.errstate(all="ignore"):
        wide = array.astype(working_dtype(array.dtype), copy=False)
        if source.is_float and dtype.is_integer:
            return _float_to_integer(wide, dtype)
        if dtype.is_integer:
            wide = wide.astype(working_dtype(dtype.numpy))
            return narrow(wide, dtype.numpy)
        if dtype.is_float and dtype.bits < 32 and not source.is_float:
            wide = wide.astype(np.float32)
        return wide.astype(dtype.numpy)


def _float_to_integer(array: Array, dtype: DType) -> Array:
    signed = dtype.kind is Kind.SIGNED
    low = -(1 << (dtype.bits - 1)) if signed else 0
    high = (1 << (dtype.bits - signed)) - 1
    holder = working_dtype(dtype.numpy)
    above, below = array >= float(high), array <= float(low)
    inside = np.where(above | below | np.isnan(array), array.dtype.type(0), array)
    whole = inside.astype(holder)
    whole = np.where(above, holder.type(high), np.where(below, holder.type(low), whole))
    return whole.astype(dtype.numpy)


def _unsigned(array: Array, bits: int) -> Array:
    """The bit pattern as an unsigned integer, the bits above the width cleared."""
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    pattern = np.ascontiguousarray(array).reshape(array.shape)
    pattern = pattern.view(np.dtype(f"u{array.dtype.itemsize}"))
    masked: Array = pattern & pattern.dtype.type((1 << bits) - 1)
    return masked


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    return np.where(b == 0, np.array(-1).astype(a.dtype), _truncated_quotient(a, b))


def _truncated_quotient(a: Array, b: Array) -> Array:
    """a / b towards zero where b is neither 0 nor -1; -a where b is -1 (so that it wraps)."""
    minus_one = (b == -1) if a.dtype.kind == "i" else np.zeros_like(b, bool)
    safe = np.where((b == 0) | minus_one, a.dtype.type(1), b)
    floor = np.floor_divide(a, safe)
    inexact = (floor * safe != a) & ((a < 0) != (safe < 0))
    return np.where(minus_one, np.negative(a), floor + inexact.astype(a.dtype))


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    return np.where(b == 0, a, a - _truncated_quotient(a, b) * b)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "b":
        return a | ~b
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    one = a.dtype.type(1)
    result, base, rest = np.full(a.shape, one), a, np.where(b < 0, a.dtype.type(0), b)
    while np.any(rest):
        result = np.where(rest & one, result * base, result)
        base, rest = base * base, rest >> one
    if a.dtype.kind == "u":
        return result
    parity = np.where(b & one, a, one)
    reciprocal = np.where(a == 1, one, np.where(a == -1, parity, a.dtype.type(0)))
    return np.where(b < 0, reciprocal, result)


def _shift_left(a: Array, b: Array, bits: int) -> Array:
    amount = _unsigned(b, bits)
    inside = np.where(amount < bits, amount, amount.dtype.type(0)).astype(a.dtype)
    shifted: Array = np.left_shift(a, inside)
    return np.where(amount < bits, shifted, a.dtype.type(0))


def _shift_right_arithmetic(a: Array, b: Array, bits: int) -> Array:
    amount = np.minimum(_unsigned(b, bits), bits - 1)
    signed = np.ascontiguousarray(a).reshape(a.shape).view(np.dtype(f"i{a.dtype.itemsize}"))
    if bits < 8:
        signed = wrap(signed, bits, signed=True)
    shifted: Array = np.right_shift(signed, amount.astype(signed.dtype))
    return shifted.astype(a.dtype)


def _shift_right_logical(a: Array, b: Array, bits: int) -> Array:
    amount, pattern = _unsigned(b, bits), _unsigned(a, bits)
    inside = np.where(amount < bits, amount, amount.dtype.type(0))
    shifted = np.right_shift(pattern, inside)
    return np.where(amount < bits, shifted, shifted.dtype.type(0)).astype(a.dtype)


def _count_leading_zeros(a: Array, bits: int) -> Array:
    pattern, step = _unsigned(a, bits), 1
    while step < bits:
        pattern = pattern | (pattern >> pattern.dtype.type(step))
        step *= 2
    return (bits - np.bitwise_count(pattern).astype(np.int16)).astype(a.dtype)


def _sign(a: Array) -> Array:
    if a.dtype.kind == "f":
        return np.where((a == 0) | np.isnan(a), a, np.copysign(a.dtype.type(1), a))
    return np.sign(a)


def _round_nearest_away(a: Array) -> Array:
    whole = np.trunc(a)
    away = np.where(np.abs(a - whole) >= 0.5, a.dtype.type(1), a.dtype.type(0))
    rounded: Array = np.copysign(np.abs(whole) + away, a)
    return rounded


def _atan2(y: Array, x: Array) -> Array:
    if y.dtype.kind == "c":
        angle: Array = -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))
        return angle
    return np.arctan2(y, x)


def _cbrt(a: Array) -> Array:
    return np.power(a, a.dtype.type(1 / 3)) if a.dtype.kind == "c" else np.cbrt(a)


def _unit_of(a: Array) -> Any:
    return a.dtype.type(1)


def _logistic(a: Array) -> Array:
    result: Array = _unit_of(a) / (_unit_of(a) + np.exp(-a))
    return result


def _complex(real: Array, imaginary: Array) -> Array:
    result = np.empty(real.shape, np.complex64 if real.dtype == np.float32 else np.complex128)
    result.real, result.imag = real, imaginary
    return result


def _component(part: str) -> Callable[[Array], Array]:
    return lambda a: np.ascontiguousarray(getattr(a, part)).reshape(a.shape)


def _erf_polynomials() -> tuple[np.polynomial.Chebyshev, np.polynomial.Chebyshev]:
    """erf(sqrt(u))/sqrt(u) on u in [0, 1] and 1 - erf on [1, 6], to double precision."""

    def even(u: Array) -> Array:
        roots = np.sqrt(u)
        return np.array([math.erf(root) / root for root in roots])

    def tail(x: Array) -> Array:
        return np.array([math.erfc(point) for point in x])

    interpolate = np.polynomial.Chebyshev.interpolate
    return interpolate(even, 14, [0, 1]), interpolate(tail, 40, [1, 6])


_ERF_EVEN, _ERF_TAIL = _erf_polynomials()


def _erf(a: Array) -> Array:
    """erf to about 1e-15, by Chebyshev interpolants of math.erf; saturates at |a| = 6."""
    x = np.atleast_1d(a).astype(np.float64)
    size = np.abs(x)
    result = np.where(np.isnan(x), x, np.sign(x))
    small, middle = size < 1, (size >= 1) & (size < 6)
    even, tail = _ERF_EVEN, _ERF_TAIL
    if a.dtype != np.float64:
        even, tail = even.truncate(9), tail.truncate(24)  # enough for float32
    near = x[small]
    result[small] = near * even(near * near)
    result[middle] = np.sign(x[middle]) * (1 - tail(size[middle]))
    return result.reshape(a.shape).astype(a.dtype)


def _gelu(a: Array) -> Array:
    half = a.dtype.type(0.5)
    result: Array = half * a * (_unit_of(a) + _erf(a * a.dtype.type(math.sqrt(0.5))))
    return result


def _gelu_tanh(a: Array) -> Array:
    number = a.dtype.type
    inner = number(math.sqrt(2 / math.pi)) * (a + number(0.044715) * a * a * a)
    result: Array = number(0.5) * a * (_unit_of(a) + np.tanh(inner))
    return result


def total_order_key(array: Array) -> Array:
    """Integers that order as XLA's total order: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    known = from_numpy(array.dtype)
    if not known.is_float:
        return array.astype(working_dtype(array.dtype), copy=False)
    array = np.ascontiguousarray(array).reshape(array.shape)
    if known.bits < 8:
        array = array.astype(np.float32)
    bits = array.view(np.dtype(f"i{array.dtype.itemsize}"))
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _compare_in_total_order(
    compare: Callable[[Array, Array], Array],
) -> Callable[[Array, Array], Array]:
    return lambda a, b: compare(total_order_key(a), total_order_key(b))


_declare("add", 2, ANY, np.add, "a + b; integers wrap, pred is or")
_declare("subtract", 2, NUMBER, np.subtract, "a - b; integers wrap")
_declare("multiply", 2, ANY, np.multiply, "a * b; integers wrap, pred is and")
_declare("divide", 2, NUMBER, _divide, "a / b; integers truncate, by zero -1, INT_MIN / -1 wraps")
_declare("remainder", 2, INTEGER | FLOAT, _remainder, "a - b * trunc(a / b); integers by zero: a")
_declare("power", 2, ANY, _power, "a to the b; integers wrap")
_declare("maximum", 2, ANY, np.maximum, "the greater; NaN if either is NaN; complex by parts")
_declare("minimum", 2, ANY, np.minimum, "the lesser; NaN if either is NaN; complex by parts")
_declare("atan2", 2, INEXACT, _atan2, "the angle of the point (x=b, y=a)")
_declare("complex", 2, FLOAT, _complex, "a + b i", result="complex")

_declare("and", 2, BITS, np.bitwise_and, "bitwise and; logical on pred")
_declare("or", 2, BITS, np.bitwise_or, "bitwise or; logical on pred")
_declare("xor", 2, BITS, np.bitwise_xor, "bitwise exclusive or; logical on pred")
_declare("not", 1, BITS, np.invert, "bitwise complement; logical on pred")
_declare("shift_left", 2, INTEGER, _shift_left, "a << b; 0 when b is past the width", bits=True)
_declare("shift_right_arithmetic", 2, INTEGER, _shift_right_arithmetic,
         "a >> b keeping the sign; all sign bits when b is past the width", bits=True)  # fmt: skip
_declare("shift_right_logical", 2, INTEGER, _shift_right_logical,
         "a >> b filling with zeros; 0 when b is past the width", bits=True)  # fmt: skip
_declare("popcount", 1, INTEGER,
         lambda a, bits: np.bitwise_count(_unsigned(a, bits)).astype(a.dtype),
         "the number of one bits", bits=True)  # fmt: skip
_declare("count_leading_zeros", 1, INTEGER, _count_leading_zeros,
         "the number of zero bits above the highest one bit", bits=True)  # fmt: skip

_COMPARISONS: dict[str, tuple[np.ufunc, str, frozenset[Kind]]] = {
    "equal": (np.equal, "==", ANY),
    "not_equal": (np.not_equal, "!=", ANY),
    "less": (np.less, "<", REAL),
    "less_equal": (np.less_equal, "<=", REAL),
    "greater": (np.greater, ">", REAL),
    "greater_equal": (np.greater_equal, ">=", REAL),
}
OPPOSITE = {  # what holds of integers where a comparison does not
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}
MIRRORED = {  # the comparison of b with a that holds where one of a with b does
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
for _name, (_compare, _sign_text, _kinds) in _COMPARISONS.items():
    _declare(_name, 2, _kinds, _compare, f"a {_sign_text} b; a NaN equals nothing", result="pred")
    _declare(f"{_name}_total_order", 2, REAL, _compare_in_total_order(_compare),
             f"a {_sign_text} b with NaNs and zeros ordered by sign", result="pred",
             raw=True)  # fmt: skip

_declare("select", 3, ANY, np.where, "b where a holds, else c", raw=True)
_declare("clamp", 3, ANY, lambda low, x, high: np.minimum(np.maximum(low, x), high),
         "min(max(low, x), high) of operands (low, x, high)")  # fmt: skip

_UNARY_FLOAT: dict[str, tuple[Callable[[Array], Any], str]] = {
    "exp": (np.exp, "e to the a"),
    "exp2": (np.exp2, "2 to the a"),
    "expm1": (np.expm1, "e to the a, minus 1, without cancellation"),
    "log": (np.log, "natural logarithm"),
    "log2": (np.log2, "logarithm to base 2"),
    "log1p": (np.log1p, "log(1 + a) without cancellation"),
    "logistic": (_logistic, "1 / (1 + exp(-a))"),
    "tanh": (np.tanh, "hyperbolic tangent"),
    "tan": (np.tan, "tangent"),
    "sin": (np.sin, "sine"),
    "cos": (np.cos, "cosine"),
    "asin": (np.arcsin, "inverse sine"),
    "acos": (np.arccos, "inverse cosine"),
    "atan": (np.arctan, "inverse tangent"),
    "sinh": (np.sinh, "hyperbolic sine"),
    "cosh": (np.cosh, "hyperbolic cosine"),
    "asinh": (np.arcsinh, "inverse hyperbolic sine"),
    "acosh": (np.arccosh, "inverse hyperbolic cosine"),
    "atanh": (np.arctanh, "inverse hyperbolic tangent"),
    "sqrt": (np.sqrt, "square root"),
    "rsqrt": (lambda a: _unit_of(a) / np.sqrt(a), "1 / sqrt(a)"),
    "cbrt": (_cbrt, "cube root"),
    "reciprocal": (lambda a: _unit_of(a) / a, "1 / a"),
}
for _name, (_unary, _prose) in _UNARY_FLOAT.items():
    _declare(_name, 1, INEXACT, _unary, _prose)

_declare("erf", 1, FLOAT, _erf, "error function")
_declare("gelu", 1, FLOAT, _gelu, "a (1 + erf(a / sqrt(2))) / 2")
_declare("gelu_tanh", 1, FLOAT, _gelu_tanh, "a (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) / 2")
_declare("silu", 1, FLOAT, lambda a: a * _logistic(a), "a / (1 + exp(-a))")
_declare("softplus", 1, FLOAT, lambda a: np.logaddexp(a, a.dtype.type(0)), "log(1 + exp(a))")
_declare("square", 1, NUMBER, lambda a: a * a, "a * a")
_declare("floor", 1, FLOAT, np.floor, "round towards minus infinity")
_declare("ceil", 1, FLOAT, np.ceil, "round towards plus infinity")
_declare("round_nearest_even", 1, FLOAT, np.rint, "round to the nearest integer, ties to even")
_declare("round_nearest_away", 1, FLOAT, _round_nearest_away,
         "round to the nearest integer, ties away from zero")  # fmt: skip
_declare("sign", 1, NUMBER, _sign, "-1, 0 or 1 by sign; zeros and NaN stay themselves")
_declare("negate", 1, NUMBER, np.negative, "-a; integers wrap")
_declare("abs", 1, NUMBER, np.abs, "magnitude; the least integer wraps", result="component")
_declare("real", 1, INEXACT, _component("real"), "real part", result="component")
_declare("imag", 1, INEXACT, _component("imag"), "imaginary part", result="component")
_declare("is_finite", 1, FLOAT, np.isfinite, "neither infinite nor NaN", result="pred")
_declare("copy", 1, ANY, lambda a: a, "a itself", raw=True)
