"""Equations between elementwise functions that hold bit for bit, NaN and signed zeros included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glia.base.dtype import F32, PRED, DType, Kind, float_limits
from glia.graph.ir import Node, TensorType
from glia.graph.ops import Broadcast, Convert, Iota, Map, Reshape
from glia.graph.ops.scalar_regions import identity
from glia.graph.rules.constructors import (
    apply,
    broadcast,
    constant,
    convert,
    reshape,
    select,
    splat_like,
)
from glia.graph.rules.driver import rule, rules_of
from glia.graph.rules.facts import holds_exactly, is_uniform, squeezed, uniform
from glia.graph.scalar import FUNCTIONS, OPPOSITE

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_IDEMPOTENT = frozenset({"maximum", "minimum", "and", "or"})
_INVOLUTIONS = frozenset({"negate", "not"})
_REFLEXIVE = {
    "equal": True,
    "less_equal": True,
    "greater_equal": True,
    "not_equal": False,
    "less": False,
    "greater": False,
}
_LARGEST_EXPONENT = 16


@rule
def constant_on_the_right(op: Map) -> Node | None:
    """f(constant, x) = f(x, constant) for commutative f"""
    match op:
        case Map(f, (a, b)) if f in _COMMUTATIVE:
            return apply(f, b, a) if uniform(a) is not None and uniform(b) is None else None
    return None


@rule
def fold_splats(op: Map) -> Node | None:
    """f(broadcast(v), broadcast(w)) = broadcast(f(v, w))"""
    values = [uniform(arg) for arg in op.args]
    if not values or any(value is None for value in values):
        return None
    result = FUNCTIONS[op.function].compute(*values)
    return broadcast(constant(result, op.dtype), op.shape)


@rule
def fold_convert_of_splat(op: Convert) -> Node | None:
    """convert(broadcast(v)) = broadcast(convert(v))"""
    value = uniform(op.x)
    if value is None:
        return None
    return broadcast(constant(op.compute(value), op.to), op.shape)


@rule
def neutral_operand(op: Map) -> Node | None:
    """x + 0 = x, x * 1 = x, max(x, -inf) = x, x and ones = x, ... (floats: x + -0.0)"""
    match op:
        case Map(f, (x, value)) if f in _COMMUTATIVE and not x.dtype.is_complex:
            return x if is_uniform(value, _neutral(f, x.dtype)) else None
    return None


def _neutral(function: str, dtype: DType) -> Any:
    """The v with f(x, v) = x for every x, NaN and -0 included."""
    if function == "add" and dtype.is_float:
        return -0.0
    return identity(function, dtype)


@rule
def subtract_zero(op: Map) -> Node | None:
    """x - 0 = x"""
    match op:
        case Map("subtract", (x, value)) if not x.dtype.is_complex and is_uniform(value, 0):
            return x
    return None


@rule
def divide_by_one(op: Map) -> Node | None:
    """x / 1 = x"""
    match op:
        case Map("divide", (x, value)) if not x.dtype.is_complex and is_uniform(value, 1):
            return x
    return None


@rule
def absorbing_operand(op: Map) -> Node | None:
    """x * 0 = 0, x and 0 = 0, x or ones = ones (integers and pred)"""
    match op:
        case Map("multiply" | "and", (x, value)) if _is_exact(x.dtype) and is_uniform(value, 0):
            return value
        case Map("or", (x, value)) if is_uniform(value, identity("and", x.dtype)):
            return value
    return None


def _is_exact(dtype: DType) -> bool:
    return dtype.is_integer or dtype is PRED


@rule
def operand_with_itself(op: Map) -> Node | None:
    """max(x, x) = x, x and x = x; x - x = 0 and x xor x = 0 for integers"""
    match op:
        case Map(f, (a, b)) if a is b and f in _IDEMPOTENT:
            return a
        case Map("subtract" | "xor", (a, b)) if a is b and _is_exact(a.dtype):
            return splat_like(0, a)
    return None


@rule
def compare_with_itself(op: Map) -> Node | None:
    """x == x is true and x < x is false (integers and pred)"""
    match op:
        case Map(f, (a, b)) if a is b and f in _REFLEXIVE and _is_exact(a.dtype):
            return broadcast(constant(_REFLEXIVE[f], PRED), a.shape)
    return None


@rule
def double_inverse(op: Map) -> Node | None:
    """-(-x) = x and not not x = x"""
    match op:
        case Map(f, (Map(g, (x,)),)) if f == g and f in _INVOLUTIONS:
            return x
    return None


@rule
def repeated_magnitude(op: Map) -> Node | None:
    """abs(abs(x)) = abs(x), and abs(-x) = abs(x) where numbers have a sign"""
    match op:
        case Map("abs", (Map("abs", (x,)),)) if not x.dtype.is_complex:
            return apply("abs", x)
        case Map("abs", (Map("negate", (x,)),)) if x.dtype.is_float or x.dtype.kind is Kind.SIGNED:
            return apply("abs", x)
    return None


@rule
def repeated_rounding(op: Map) -> Node | None:
    """floor(floor(x)) = floor(x), and so for every pair of roundings to an integer"""
    roundings = {"floor", "ceil", "round_nearest_even", "round_nearest_away"}
    match op:
        case Map(f, (Map(g, _) as inner,)) if f in roundings and g in roundings:
            return inner
    return None


@rule
def add_of_negation(op: Map) -> Node | None:
    """x + (-y) = x - y and x - (-y) = x + y"""
    match op:
        case Map("add", (x, Map("negate", (y,)))):
            return apply("subtract", x, y)
        case Map("subtract", (x, Map("negate", (y,)))):
            return apply("add", x, y)
    return None


@rule
def not_of_comparison(op: Map) -> Node | None:
    """not (x < y) = x >= y for integers; not (x == y) = x != y always"""
    match op:
        case Map("not", (Map(f, (x, y)),)) if f in OPPOSITE:
            if _is_exact(x.dtype) or f in ("equal", "not_equal"):
                return apply(OPPOSITE[f], x, y)
    return None


@rule
def select_of_equals(op: Map) -> Node | None:
    """select(p, x, x) = x"""
    match op:
        case Map("select", (_, a, b)) if a is b:
            return a
    return None


@rule
def select_by_negation(op: Map) -> Node | None:
    """select(not p, a, b) = select(p, b, a)"""
    match op:
        case Map("select", (Map("not", (p,)), a, b)):
            return select(p, b, a)
    return None


@rule
def select_of_truth(op: Map) -> Node | None:
    """select(p, true, false) = p and select(p, false, true) = not p"""
    match op:
        case Map("select", (p, a, b)) if a.dtype is PRED:
            if is_uniform(a, True) and is_uniform(b, False):
                return p
            if is_uniform(a, False) and is_uniform(b, True):
                return apply("not", p)
    return None


@rule
def nested_select(op: Map) -> Node | None:
    """select(p, select(p, a, b), c) = select(p, a, c), and so in the other branch"""
    match op:
        case Map("select", (p, Map("select", (q, a, _)), c)) if p is q:
            return select(p, a, c)
        case Map("select", (p, a, Map("select", (q, _, c)))) if p is q:
            return select(p, a, c)
    return None


@rule
def divide_by_power_of_two(op: Map) -> Node | None:
    """x / 2^k = x * 2^-k when 2^-k is a normal number"""
    match op:
        case Map("divide", (x, divisor)) if x.dtype.is_float:
            value = uniform(divisor)
            if value is None or not _is_power_of_two(float(value)):
                return None
            inverse = 1 / float(value)
            if abs(inverse) < float(float_limits(x.dtype.numpy).smallest_normal):
                return None
            rounded = float(np.asarray(inverse).astype(x.dtype.numpy))
            return apply("multiply", x, splat_like(inverse, x)) if rounded == inverse else None
    return None


def _is_power_of_two(value: float) -> bool:
    return math.isfinite(value) and value != 0 and abs(math.frexp(value)[0]) == 0.5


@rule
def known_power(op: Map) -> Node | None:
    """x^0 = 1, x^1 = x, x^2 = square(x); for integers x^n by squaring"""
    match op:
        case Map("power", (x, exponent)) if not x.dtype.is_complex and x.dtype is not PRED:
            value = uniform(exponent)
            if value is None or float(value) not in range(_LARGEST_EXPONENT + 1):
                return None
            n = int(value)
            if n == 0:
                return splat_like(1, x)
            return _power(x, n) if n <= 2 or x.dtype.is_integer else None
    return None


def _power(x: Node, n: int) -> Node:
    if n == 1:
        return x
    half = apply("square", _power(x, n // 2))
    return apply("multiply", half, x) if n % 2 else half


@rule
def multiply_by_itself(op: Map) -> Node | None:
    """x * x = square(x)"""
    match op:
        case Map("multiply", (a, b)) if a is b and a.dtype is not PRED:
            return apply("square", a)
    return None


@rule
def one_over(op: Map) -> Node | None:
    """1 / x = reciprocal(x); in float32 1 / sqrt(x) = rsqrt(x), 1 / (1 + exp(-x)) = logistic(x)"""
    match op:
        case Map("divide", (one, x)) if x.dtype.is_float and is_uniform(one, 1):
            if x.dtype is F32:
                match x:
                    case Map("sqrt", (y,)):
                        return apply("rsqrt", y)
                    case Map("add", (Map("exp", (Map("negate", (y,)),)), other)):
                        return apply("logistic", y) if is_uniform(other, 1) else None
            return None if uniform(x) is not None else apply("reciprocal", x)
    return None


@rule
def logistic_reciprocal(op: Map) -> Node | None:
    """reciprocal(sqrt(x)) = rsqrt(x) and reciprocal(1 + exp(-x)) = logistic(x) in float32"""
    match op:
        case Map("reciprocal", (Map("sqrt", (x,)),)) if x.dtype is F32:
            return apply("rsqrt", x)
        case Map("reciprocal", (Map("add", (Map("exp", (Map("negate", (x,)),)), one)),)):
            return apply("logistic", x) if x.dtype is F32 and is_uniform(one, 1) else None
    return None


@rule
def merge_converts(op: Convert) -> Node | None:
    """convert(convert(x, a), b) = convert(x, b) when the way through `a` loses nothing"""
    match op:
        case Convert(Convert(x, middle), to):
            source = x.dtype
            if source.is_integer and middle.is_integer and to.is_integer:
                truncates = to.bits <= middle.bits
                return convert(x, to) if truncates or holds_exactly(middle, source) else None
            saturates = source.is_integer and to.is_integer and not holds_exactly(to, source)
            return convert(x, to) if holds_exactly(middle, source) and not saturates else None
    return None


@rule
def convert_of_iota(op: Convert) -> Node | None:
    """convert(iota) = iota of the other dtype when that dtype counts as far"""
    match op:
        case Convert(Iota(result, dimension), to) if to.is_integer or to.is_float:
            last = result.shape[dimension] - 1
            if _represents_up_to(result.dtype, last) and _represents_up_to(to, last):
                return Iota(TensorType(to, result.shape), dimension)
    return None


def _represents_up_to(dtype: DType, last: int) -> bool:
    if dtype.is_float:
        return last <= 1 << (float_limits(dtype.numpy).nmant + 1)
    return dtype.is_integer and last < 2 ** (dtype.bits - (dtype.kind is Kind.SIGNED))


@rule
def map_of_broadcasts(op: Map) -> Node | None:
    """f(broadcast(x), broadcast(y)) = broadcast(f(x, y)) for broadcasts of one kind"""
    wide = [arg for arg in op.args if uniform(arg) is None]
    if not wide or not all(_is_same_broadcast(arg, wide[0]) for arg in wide):
        return None
    first = wide[0]
    assert isinstance(first, Broadcast)
    args = [_operand_before_broadcast(arg, first) for arg in op.args]
    return broadcast(apply(op.function, *args), op.shape, first.dimensions)


def _is_same_broadcast(arg: Node, first: Node) -> bool:
    if not isinstance(arg, Broadcast) or not isinstance(first, Broadcast):
        return False
    return arg.dimensions == first.dimensions and arg.x.shape == first.x.shape


def _operand_before_broadcast(arg: Node, first: Broadcast) -> Node:
    value = uniform(arg)
    if value is not None:
        return broadcast(constant(value, arg.dtype), first.x.shape)
    assert isinstance(arg, Broadcast)
    return arg.x


@rule
def map_of_reshapes(op: Map) -> Node | None:
    """f(reshape(x), reshape(y)) = reshape(f(x, y)) for reshapes that add or drop extents of 1"""
    inner = {arg.x.shape for arg in op.args if isinstance(arg, Reshape)}
    is_alike = all(isinstance(arg, Reshape) or uniform(arg) is not None for arg in op.args)
    if len(inner) != 1 or not is_alike:
        return None
    (shape,) = inner
    if squeezed(shape) != squeezed(op.shape):
        return None
    return reshape(
        apply(op.function, *(_operand_before_reshape(arg, shape) for arg in op.args)), op.shape
    )


def _operand_before_reshape(arg: Node, shape: tuple[int, ...]) -> Node:
    value = uniform(arg)
    if value is not None:
        return broadcast(constant(value, arg.dtype), shape)
    assert isinstance(arg, Reshape)
    return arg.x


@rule
def parts_of_reals(op: Map) -> Node | None:
    """real(x) = x and imag(x) = 0 for x that is not complex"""
    match op:
        case Map("real" | "imag" as part, (x,)) if not x.dtype.is_complex:
            return x if part == "real" else splat_like(0, x)
    return None


@rule
def convert_of_reshape(op: Convert) -> Node | None:
    """convert(reshape(x)) = reshape(convert(x)) for reshapes that add or drop extents of 1"""
    match op:
        case Convert(Reshape(x, shape), to) if squeezed(x.shape) == squeezed(shape):
            return reshape(convert(x, to), shape)
    return None


@rule
def convert_of_broadcast(op: Convert) -> Node | None:
    """convert(broadcast(x)) = broadcast(convert(x))"""
    match op:
        case Convert(Broadcast(x, shape, dimensions), to):
            return broadcast(convert(x, to), shape, dimensions)
    return None


RULES = rules_of(globals())
