"""Complex arithmetic on pairs of real tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import C64, C128, F32, F64, DType
from glia.graph.expand.tensor_pairs import Family, Parts, operation_name, split_into_pairs
from glia.graph.ir import Graph, Node
from glia.graph.ops import Bitcast, Convert, Convolution, Dot, Iota, Map, Reduce, ReduceWindow
from glia.graph.passes.errors import UnsupportedComplex
from glia.graph.rules.constructors import apply, convert, select, splat_like
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


def _magnitude(a: Node, b: Node) -> Node:
    """sqrt(a^2 + b^2), scaled by the larger part."""
    x, y = apply("abs", a), apply("abs", b)
    big, small = apply("maximum", x, y), apply("minimum", x, y)
    trivial = apply("equal", big, splat_like(0, big))
    ratio = apply("divide", small, select(trivial, splat_like(1, big), big))
    root = apply("sqrt", apply("add", splat_like(1, big), _product(ratio, ratio)))
    unbounded = apply("equal", big, splat_like(math.inf, big))
    return select(unbounded, big, _product(big, root))


def _exp(a: Node, b: Node) -> _Pair:
    size = apply("exp", a)
    return _product(size, apply("cos", b)), _product(size, apply("sin", b))


def _log(a: Node, b: Node) -> _Pair:
    return apply("log", _magnitude(a, b)), apply("atan2", b, a)


def _power(a: Node, b: Node, c: Node, d: Node) -> Parts:
    """exp(exponent * log(base)); 0 to a power is 0, and anything to the power 0 is 1."""
    real, imaginary = _exp(*_multiply(*_log(a, b), c, d))
    zero, one = splat_like(0, a), splat_like(1, a)
    nothing = apply("equal", _magnitude(a, b), zero)
    unit = apply("equal", _magnitude(c, d), zero)
    real = select(unit, one, select(nothing, zero, real))
    return real, select(apply("or", nothing, unit), zero, imaginary)


def _sqrt(a: Node, b: Node) -> Parts:
    """Half the angle: the part of one sign from |z| + |a|, the other from b."""
    half, zero = splat_like(0.5, a), splat_like(0, a)
    larger = apply("sqrt", _product(apply("add", _magnitude(a, b), apply("abs", a)), half))
    nothing = apply("equal", larger, zero)
    divisor = select(nothing, splat_like(1, a), larger)
    smaller = apply("divide", _product(apply("abs", b), half), divisor)
    right = apply("greater_equal", a, zero)
    real, size = select(right, larger, smaller), select(right, smaller, larger)
    negative = apply("less", b, zero)
    return real, select(negative, apply("negate", size), size)


def _cosh_sinh(a: Node) -> tuple[Node, Node]:
    return apply("cosh", a), apply("sinh", a)


def _sin(a: Node, b: Node) -> Parts:
    cosh, sinh = _cosh_sinh(b)
    return _product(apply("sin", a), cosh), _product(apply("cos", a), sinh)


def _cos(a: Node, b: Node) -> Parts:
    cosh, sinh = _cosh_sinh(b)
    return _product(apply("cos", a), cosh), apply("negate", _product(apply("sin", a), sinh))


def _tanh(a: Node, b: Node) -> Parts:
    """(tanh a + i tan b) / (1 + i tanh a tan b)"""
    real, imaginary = apply("tanh", a), apply("tan", b)
    return _divide(real, imaginary, splat_like(1, a), _product(real, imaginary))


def _sinh(a: Node, b: Node) -> Parts:
    cosh, sinh = _cosh_sinh(a)
    return _product(sinh, apply("cos", b)), _product(cosh, apply("sin", b))


def _cosh(a: Node, b: Node) -> Parts:
    cosh, sinh = _cosh_sinh(a)
    return _product(cosh, apply("cos", b)), _product(sinh, apply("sin", b))


def _reciprocal(a: Node, b: Node) -> Parts:
    return _divide(splat_like(1, a), splat_like(0, a), a, b)


def _sign(a: Node, b: Node) -> Parts:
    """z / |z|, or 0 for 0."""
    size = _magnitude(a, b)
    nothing = apply("equal", size, splat_like(0, size))
    divisor = select(nothing, splat_like(1, size), size)
    return apply("divide", a, divisor), apply("divide", b, divisor)


def _equal(a: Node, b: Node, c: Node, d: Node) -> Parts:
    return (apply("and", apply("equal", a, c), apply("equal", b, d)),)


def _not_equal(a: Node, b: Node, c: Node, d: Node) -> Parts:
    return (apply("or", apply("not_equal", a, c), apply("not_equal", b, d)),)


def _log1p(a: Node, b: Node) -> Parts:
    return _log(apply("add", a, splat_like(1, a)), b)


def _expm1(a: Node, b: Node) -> Parts:
    """expm1(a) cos(b) - 2 sin(b/2)^2 + i exp(a) sin(b)"""
    half = apply("sin", _product(b, splat_like(0.5, b)))
    lost = _product(splat_like(2, b), _product(half, half))
    real = apply("subtract", _product(apply("expm1", a), apply("cos", b)), lost)
    return real, _product(apply("exp", a), apply("sin", b))


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
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "sqrt": _sqrt,
    "rsqrt": lambda a, b: _reciprocal(*_sqrt(a, b)),
    "sin": _sin,
    "cos": _cos,
    "tan": lambda a, b: _divide(*_sin(a, b), *_cos(a, b)),
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "logistic": _logistic,
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
    raise _refuse(node)


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
