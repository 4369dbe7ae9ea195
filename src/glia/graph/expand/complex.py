"""Complex arithmetic on pairs of real tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import C64, C128, F32, F64, S32, U32, DType
from glia.graph.expand.tensor_pairs import Family, Parts, operation_name, split_into_pairs
from glia.graph.ir import Graph, Node
from glia.graph.ops import Bitcast, Convert, Convolution, Dot, Iota, Map, Reduce, ReduceWindow
from glia.graph.passes.errors import UnsupportedComplex
from glia.graph.rules.constructors import apply, bitcast, convert, iota, select, splat_like
from glia.options import CompileOptions

_PART = {C64: F32, C128: F64}

_Pair = tuple[Node, Node]
"""The real and the imaginary part of one complex tensor."""


def expand_complex(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without complex dtypes.

    A complex parameter or result of the graph becomes a tensor of its parts with a last dimension
    of two, which has the bytes of the complex tensor. Raises UnsupportedComplex for what has no
    meaning on parts.
    """
    return split_into_pairs(graph, _FAMILY)


def _map(node: Map, args: Sequence[Parts]) -> Parts:
    function = _FUNCTIONS.get(node.function)
    if function is None:
        raise _refuse(node)
    return function(*(part for parts in args for part in parts))


def _add(a: Node, b: Node, c: Node, d: Node) -> _Pair:
    return apply("add", a, c), apply("add", b, d)


def _subtract(a: Node, b: Node, c: Node, d: Node) -> _Pair:
    return apply("subtract", a, c), apply("subtract", b, d)


def _product(a: Node, b: Node) -> Node:
    return apply("multiply", a, b)


def _multiply(a: Node, b: Node, c: Node, d: Node) -> _Pair:
    real = apply("subtract", _product(a, c), _product(b, d))
    return real, apply("add", _product(a, d), _product(b, c))


def _divide(a: Node, b: Node, c: Node, d: Node) -> _Pair:
    """(a + bi) / (c + di), scaled by the larger of |c| and |d| so that squares do not overflow."""
    swap = apply("less", apply("abs", c), apply("abs", d))
    big, small = select(swap, d, c), select(swap, c, d)
    ratio = apply("divide", small, big)
    scale = apply("add", big, _product(small, ratio))
    first, second = select(swap, b, a), select(swap, a, b)
    real = apply("divide", apply("add", first, _product(second, ratio)), scale)
    numerator = apply("subtract", second, _product(first, ratio))
    imaginary = apply("divide", select(swap, apply("negate", numerator), numerator), scale)
    return real, imaginary


def _equals(x: Node, value: float) -> Node:
    return apply("equal", x, splat_like(value, x))


def _sign_bit(x: Node) -> Node:
    bits = bitcast(x, U32)
    return apply("and", bits, splat_like(0x80000000, bits))


def _with_sign_of(magnitude: Node, x: Node) -> Node:
    """A non-negative number with the sign of x, which may be a zero."""
    return bitcast(apply("or", bitcast(magnitude, U32), _sign_bit(x)), F32)


def _scaled(a: Node, b: Node) -> tuple[Node, Node, Node]:
    """|a| and |b| times a power of four, so that squares neither overflow nor vanish; its half.

    The last is k of the factor 2^(-2 k).
    """
    x, y = apply("abs", a), apply("abs", b)
    big = apply("maximum", x, y)
    is_huge = apply("greater", big, splat_like(2.0**50, big))
    is_tiny = apply("less", big, splat_like(2.0**-45, big))

    def choose(huge: float, tiny: float, other: float) -> Node:
        rest = select(is_tiny, splat_like(tiny, big), splat_like(other, big))
        return select(is_huge, splat_like(huge, big), rest)

    factor = choose(2.0**-80, 2.0**100, 1.0)
    return _product(x, factor), _product(y, factor), choose(40, -50, 0)


def _root_of_squares(x: Node, y: Node) -> Node:
    """sqrt(x^2 + y^2) of scaled parts; infinite where one of them is, even if the other is NaN."""
    root = apply("sqrt", apply("add", _product(x, x), _product(y, y)))
    unbounded = apply("or", _equals(x, math.inf), _equals(y, math.inf))
    return select(unbounded, splat_like(math.inf, root), root)


def _power_of_two(exponent: Node) -> Node:
    """2 to a whole number whose power is a normal float32."""
    biased = apply("add", exponent, splat_like(127.0, exponent))
    word = convert(biased, S32)
    return bitcast(apply("shift_left", word, splat_like(23, word)), F32)


def _magnitude(a: Node, b: Node) -> Node:
    """sqrt(a^2 + b^2)"""
    x, y, half = _scaled(a, b)
    factor = _power_of_two(_product(half, splat_like(2.0, half)))
    return _product(_root_of_squares(x, y), factor)


def _exp(a: Node, b: Node) -> _Pair:
    """exp(a) (cos b + i sin b), in two factors where exp(a) alone may overflow or vanish."""
    is_far = apply("greater", apply("abs", a), splat_like(80.0, a))
    half = apply("exp", select(is_far, _product(a, splat_like(0.5, a)), a))
    rest = select(is_far, half, splat_like(1.0, half))
    real = _product(_product(half, apply("cos", b)), rest)
    imaginary = _product(_product(half, apply("sin", b)), rest)
    imaginary = select(_equals(b, 0), b, imaginary)
    is_bounded = apply("is_finite", b)
    zero, infinity = splat_like(0, a), splat_like(math.inf, a)
    real = select(is_bounded, real, select(_equals(a, math.inf), infinity, real))
    vanishes = apply("and", _equals(a, -math.inf), apply("not", is_bounded))
    return select(vanishes, zero, real), select(vanishes, zero, imaginary)


def _log(a: Node, b: Node) -> _Pair:
    """log |z| and the angle; near |z| = 1 from |z|^2 - 1, which keeps the digits of 1."""
    x, y, half = _scaled(a, b)
    root = _root_of_squares(x, y)
    far = apply("add", apply("log", root), _product(half, splat_like(2 * math.log(2), half)))
    one = splat_like(1.0, x)
    big, small = apply("maximum", x, y), apply("minimum", x, y)
    excess = _product(apply("subtract", big, one), apply("add", big, one))
    excess = apply("add", excess, _product(small, small))
    near = _product(apply("log1p", excess), splat_like(0.5, x))
    is_near = apply(
        "and", _equals(half, 0), apply("less", apply("abs", excess), splat_like(0.5, x))
    )
    return select(is_near, near, far), apply("atan2", b, a)


def _power(a: Node, b: Node, c: Node, d: Node) -> Parts:
    """exp(exponent * log(base)); 0 to a power is 0, and anything to the power 0 is 1."""
    real, imaginary = _exp(*_multiply(*_log(a, b), c, d))
    zero, one = splat_like(0, a), splat_like(1, a)
    nothing = apply("equal", _magnitude(a, b), zero)
    unit = apply("equal", _magnitude(c, d), zero)
    real = select(unit, one, select(nothing, zero, real))
    return real, select(apply("or", nothing, unit), zero, imaginary)


def _sqrt(a: Node, b: Node) -> _Pair:
    """Half the angle: the part of one sign from |z| + |a|, the other from b."""
    x, y, exponent = _scaled(a, b)
    half, zero = splat_like(0.5, a), splat_like(0, a)
    larger = apply("sqrt", _product(apply("add", _root_of_squares(x, y), x), half))
    nothing = _equals(larger, 0)
    smaller = apply("divide", _product(y, half), select(nothing, splat_like(1, a), larger))
    is_long = _equals(x, math.inf)  # along the real axis, the other part is 0
    smaller = select(is_long, _product(y, zero), smaller)
    is_high = _equals(y, math.inf)
    infinity = splat_like(math.inf, a)
    factor = _power_of_two(exponent)
    larger = select(is_high, infinity, _product(larger, factor))
    smaller = select(is_high, infinity, _product(smaller, factor))
    right = apply("greater_equal", a, zero)
    real, size = select(right, larger, smaller), select(right, smaller, larger)
    return real, _with_sign_of(apply("abs", size), b)


def _damped(x: Node, y: Node, rest: Node) -> Node:
    """x y rest, which is 0 where x or y is, whatever the others are."""
    vanishes = apply("or", _equals(x, 0), _equals(y, 0))
    sign = apply("xor", _sign_bit(x), _sign_bit(y))
    return select(vanishes, bitcast(sign, F32), _product(_product(x, y), rest))


def _hyperbolic(a: Node) -> tuple[Node, Node, Node]:
    """cosh a and sinh a over a common factor, and the factor: each fits where they overflow."""
    half = splat_like(0.5, a)
    is_far = apply("greater", apply("abs", a), splat_like(80.0, a))
    root = apply("exp", select(is_far, _product(apply("abs", a), half), splat_like(0, a)))
    cosh = select(is_far, root, apply("cosh", a))
    sinh = select(is_far, _with_sign_of(root, a), apply("sinh", a))
    return cosh, sinh, select(is_far, _product(root, half), splat_like(1, a))


def _sinh(a: Node, b: Node) -> Parts:
    cosh, sinh, factor = _hyperbolic(a)
    return _damped(sinh, apply("cos", b), factor), _damped(cosh, apply("sin", b), factor)


def _cosh(a: Node, b: Node) -> Parts:
    cosh, sinh, factor = _hyperbolic(a)
    return _damped(cosh, apply("cos", b), factor), _damped(sinh, apply("sin", b), factor)


def _sin(a: Node, b: Node) -> Parts:
    cosh, sinh, factor = _hyperbolic(b)
    return _damped(apply("sin", a), cosh, factor), _damped(apply("cos", a), sinh, factor)


def _cos(a: Node, b: Node) -> Parts:
    cosh, sinh, factor = _hyperbolic(b)
    imaginary = apply("negate", _damped(apply("sin", a), sinh, factor))
    return _damped(apply("cos", a), cosh, factor), imaginary


def _tanh(a: Node, b: Node) -> Parts:
    """(tanh a + i tan b) / (1 + i tanh a tan b)"""
    real, imaginary = apply("tanh", a), apply("tan", b)
    real, imaginary = _divide(real, imaginary, splat_like(1, a), _product(real, imaginary))
    return real, select(_equals(b, 0), b, imaginary)


def _tan(a: Node, b: Node) -> Parts:
    """-i tanh(i z)"""
    real, imaginary = _tanh(apply("negate", b), a)
    return imaginary, apply("negate", real)


def _reciprocal(a: Node, b: Node) -> Parts:
    return _divide(splat_like(1, a), splat_like(0, a), a, b)


def _sign(a: Node, b: Node) -> Parts:
    """z / |z|, or 0 for 0."""
    size = _magnitude(a, b)
    nothing = apply("equal", size, splat_like(0, size))
    divisor = select(nothing, splat_like(1, size), size)
    return apply("divide", a, divisor), apply("divide", b, divisor)


def _extreme(order: str) -> Callable[..., Parts]:
    """The first of two numbers in lexicographic order; a NaN in either part wins."""

    def choose(a: Node, b: Node, c: Node, d: Node) -> Parts:
        tie = apply("and", apply("equal", a, c), apply(order, b, d))
        wins = apply("or", apply(order, a, c), tie)
        is_nan = apply("or", apply("not_equal", a, a), apply("not_equal", b, b))
        wins = apply("or", wins, is_nan)
        other_is_nan = apply("or", apply("not_equal", c, c), apply("not_equal", d, d))
        wins = apply("and", wins, apply("or", is_nan, apply("not", other_is_nan)))
        return select(wins, a, c), select(wins, b, d)

    return choose


def _clamp(*parts: Node) -> Parts:
    low, x, high = parts[:2], parts[2:4], parts[4:]
    return _extreme("less")(*_extreme("greater")(*low, *x), *high)


def _equal(a: Node, b: Node, c: Node, d: Node) -> Parts:
    return (apply("and", apply("equal", a, c), apply("equal", b, d)),)


def _not_equal(a: Node, b: Node, c: Node, d: Node) -> Parts:
    return (apply("or", apply("not_equal", a, c), apply("not_equal", b, d)),)


def _log1p(a: Node, b: Node) -> Parts:
    """log |1 + z| from |1 + z|^2 - 1 = a (2 + a) + b^2 where that is small."""
    shifted = apply("add", a, splat_like(1, a))
    real, angle = _log(shifted, b)
    half, tiny = splat_like(0.5, a), splat_like(2.0**-40, a)
    excess = apply("add", _product(a, apply("add", a, splat_like(2, a))), _product(b, b))
    is_near = apply("less", apply("abs", excess), half)
    near = _product(apply("log1p", select(is_near, excess, splat_like(0, a))), half)
    # Squares of the least numbers vanish, and so would a against 1
    is_least = apply("less", apply("maximum", apply("abs", a), apply("abs", b)), tiny)
    return select(is_near, select(is_least, a, near), real), angle


def _expm1(a: Node, b: Node) -> Parts:
    """expm1(a) cos(b) - 2 sin(b/2)^2 + i exp(a) sin(b); as exp where 1 is lost"""
    real, imaginary = _exp(a, b)
    half = apply("sin", _product(b, splat_like(0.5, b)))
    lost = _product(splat_like(2, b), _product(half, half))
    near = apply("subtract", _product(apply("expm1", a), apply("cos", b)), lost)
    is_far = apply("greater", apply("abs", a), splat_like(40, a))
    far = apply("subtract", real, splat_like(1, a))
    return select(is_far, far, near), imaginary


def _roots_about_one(a: Node, b: Node) -> tuple[_Pair, _Pair]:
    """sqrt(1 + z) and sqrt(1 - z), on the side of the cuts that signed zeros name."""
    one = splat_like(1, a)
    return _sqrt(apply("add", one, a), b), _sqrt(apply("subtract", one, a), apply("negate", b))


def _is_far(a: Node, b: Node) -> Node:
    """Whether |z| is so large, or infinite, that 1 + z^2 is z^2."""
    limit = splat_like(2.0**30, a)
    return apply("or", *(apply("greater", apply("abs", x), limit) for x in (a, b)))


def _log_of_double(a: Node, b: Node) -> Node:
    """log |2 z|"""
    return apply("add", _log(a, b)[0], splat_like(math.log(2), a))


def _asin(a: Node, b: Node) -> _Pair:
    """Kahan, "Branch Cuts for Complex Elementary Functions", 1987, as are the inverses below.

    Far from 0 each is a logarithm, of which parts may be infinite.
    """
    (p, q), (r, s) = _roots_about_one(a, b)
    far = _is_far(a, b)
    across = apply("subtract", _product(p, r), _product(q, s))
    real = apply("atan2", a, select(far, apply("abs", b), across))
    near = apply("asinh", apply("subtract", _product(q, r), _product(p, s)))
    imaginary = select(far, _with_sign_of(_log_of_double(a, b), b), near)
    return select(_equals(a, 0), a, real), imaginary


def _acos(a: Node, b: Node) -> _Pair:
    (p, q), (r, s) = _roots_about_one(a, b)
    far = _is_far(a, b)
    angle = apply("atan2", apply("abs", b), a)
    real = select(far, angle, _product(splat_like(2, a), apply("atan2", r, p)))
    near = apply("asinh", apply("subtract", _product(p, s), _product(q, r)))
    distant = apply("negate", _with_sign_of(_log_of_double(a, b), b))
    upright = splat_like(math.pi / 2, a)
    return select(_equals(a, 0), upright, real), select(far, distant, near)


def _acosh(a: Node, b: Node) -> _Pair:
    one = splat_like(1, a)
    (p, q), (r, s) = _sqrt(apply("subtract", a, one), b), _sqrt(apply("add", a, one), b)
    far = _is_far(a, b)
    near = apply("asinh", apply("add", _product(p, r), _product(q, s)))
    angle = select(far, apply("atan2", b, a), _product(splat_like(2, a), apply("atan2", q, r)))
    upright = _with_sign_of(splat_like(math.pi / 2, a), b)
    return select(far, _log_of_double(a, b), near), select(_equals(a, 0), upright, angle)


def _atanh(a: Node, b: Node) -> _Pair:
    """The angle is that of 1 - z^2 + 2 b i, of which halves do not overflow.

    At a distance s from the poles at 1 and -1 the real part is log(2 / s) / 2; far from 0 it is
    that of 1 / z.
    """
    size, one = apply("abs", a), splat_like(1, a)
    half, quarter = splat_like(0.5, a), splat_like(0.25, a)
    below, above = apply("subtract", one, size), apply("add", one, size)
    squares = apply("add", _product(below, below), _product(b, b))
    real = _product(apply("log1p", apply("divide", size, _product(squares, quarter))), quarter)
    distance = apply("maximum", apply("abs", below), apply("abs", b))
    is_at_pole = apply("less", distance, splat_like(2.0**-30, a))
    at_pole = apply("subtract", splat_like(math.log(2), a), _log(below, b)[0])
    real = select(is_at_pole, _product(at_pole, half), real)
    far = _is_far(a, b)
    is_high = _equals(apply("abs", b), math.inf)
    unbounded = apply("or", _equals(size, math.inf), is_high)
    inverse, _ = _reciprocal(size, b)
    real = select(far, select(unbounded, splat_like(0, a), inverse), real)
    across = apply("subtract", _product(below, above), _product(b, b))
    angle = _product(apply("atan2", b, _product(across, half)), half)
    is_angle = apply("and", apply("equal", b, b), apply("or", is_high, apply("equal", a, a)))
    upright = _with_sign_of(splat_like(math.pi / 2, a), b)
    upright = select(is_angle, upright, apply("add", a, b))
    real = select(_equals(a, 0), a, _with_sign_of(apply("abs", real), a))
    return real, select(far, upright, angle)


def _rotation(function: Callable[[Node, Node], _Pair]) -> Callable[[Node, Node], Parts]:
    """-i f(i z): asinh of asin, atan of atanh"""

    def rotate(a: Node, b: Node) -> Parts:
        real, imaginary = function(apply("negate", b), a)
        return imaginary, apply("negate", real)

    return rotate


def _atan2(a: Node, b: Node, c: Node, d: Node) -> Parts:
    """-i log((x + i y) / sqrt(x^2 + y^2)) of (y, x)"""
    squares = _multiply(a, b, a, b), _multiply(c, d, c, d)
    total = (apply("add", x, y) for x, y in zip(*squares, strict=True))
    point = apply("subtract", c, b), apply("add", d, a)
    real, imaginary = _log(*_divide(*point, *_sqrt(*total)))
    return imaginary, apply("negate", real)


def _scaled_exp(factor: float) -> Callable[[Node, Node], Parts]:
    """exp(factor z)"""
    return lambda a, b: _exp(*(_product(x, splat_like(factor, x)) for x in (a, b)))


def _log2(a: Node, b: Node) -> Parts:
    real, angle = _log(a, b)
    scale = splat_like(1 / math.log(2), a)
    return _product(real, scale), _product(angle, scale)


def _cbrt(a: Node, b: Node) -> Parts:
    return _power(a, b, splat_like(1 / 3, a), splat_like(0, a))


def _logistic(a: Node, b: Node) -> Parts:
    real, imaginary = _exp(apply("negate", a), apply("negate", b))
    return _reciprocal(apply("add", real, splat_like(1, real)), imaginary)


_FUNCTIONS: dict[str, Callable[..., Parts]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "power": _power,
    "negate": lambda a, b: (apply("negate", a), apply("negate", b)),
    "real": lambda a, b: (a,),
    "imag": lambda a, b: (b,),
    "complex": lambda a, b: (a, b),
    "abs": lambda a, b: (_magnitude(a, b),),
    "sign": _sign,
    "square": lambda a, b: _multiply(a, b, a, b),
    "reciprocal": _reciprocal,
    "exp": _exp,
    "exp2": _scaled_exp(math.log(2)),
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log1p": _log1p,
    "sqrt": _sqrt,
    "cbrt": _cbrt,
    "rsqrt": lambda a, b: _reciprocal(*_sqrt(a, b)),
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "asin": _asin,
    "acos": _acos,
    "atan": _rotation(_atanh),
    "asinh": _rotation(_asin),
    "acosh": _acosh,
    "atanh": _atanh,
    "atan2": _atan2,
    "logistic": _logistic,
    "maximum": _extreme("greater"),
    "minimum": _extreme("less"),
    "clamp": _clamp,
    "equal": _equal,
    "not_equal": _not_equal,
}


def _convert(node: Convert, parts: Parts) -> Parts:
    part = _PART.get(node.to)
    if part is None:
        return (convert(parts[0], node.to),)
    if len(parts) == 2:
        return convert(parts[0], part), convert(parts[1], part)
    real = convert(parts[0], part)
    return real, splat_like(0, real)


def _bitcast(node: Bitcast, parts: Parts) -> Parts:
    raise _refuse(node)


def _complex_contraction(node: Dot | Convolution, left: Parts, right: Parts) -> Parts:
    """(a + bi)(c + di) of contractions: four real ones."""

    def product(x: Node, y: Node) -> Node:
        part = _PART[node.result_dtype]
        return dataclasses.replace(node.with_operands((x, y)), result_dtype=part)  # type: ignore

    (a, b), (c, d) = left, right
    real = apply("subtract", product(a, c), product(b, d))
    return real, apply("add", product(a, d), product(b, c))


def _reduce(node: Reduce | ReduceWindow, x: Parts, start: Parts) -> None:
    return None


def _iota(node: Iota) -> Parts:
    counts = iota(_PART[node.dtype], node.shape, node.dimension)
    return counts, splat_like(0, counts)


def _index_part(_: Node, parts: Parts) -> Node:
    return parts[0]


def _split(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.array(array.real, order="C"), np.array(array.imag, order="C")


def _part_of(dtype: DType) -> DType | None:
    return _PART.get(dtype)


def _refuse(node: Node) -> UnsupportedComplex:
    return UnsupportedComplex(opcode=operation_name(node), loc=node.loc)


_FAMILY = Family(
    part_of=_part_of,
    split=_split,
    map=_map,
    reduce=_reduce,
    convert=_convert,
    bitcast=_bitcast,
    contract=_complex_contraction,
    iota=_iota,
    index=_index_part,
    refuse=_refuse,
)
