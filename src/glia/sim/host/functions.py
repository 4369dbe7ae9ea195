"""NumPy's ufuncs as LLVM instructions: what each does to lanes of a dtype.

This is the meaning of NumPy's functions, not of instructions: an instruction whose `compute` uses
only these has machine code without a line here. `exp`, `log` and `tanh` are polynomials in float32
with fused multiply-adds; their errors are stated beside them and tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir

from glia.sim.host.scalar_code import Lanes, NotLowered, Value, is_float, is_integer, is_signed

Function = Callable[[Lanes, str, Sequence[Any]], Value]


def apply(lanes: Lanes, function: str, dtype: str, arguments: Sequence[Any]) -> Value:
    """A ufunc of arguments whose dtype this is (of the last ones, for `where`)."""
    if function == "positive":
        return arguments[0]
    if function == "where":
        return lanes.builder.select(*arguments)
    table = _of_kind(dtype)
    if function not in table:
        raise NotLowered(f"{function} of {dtype}")
    return table[function](lanes, dtype, arguments)


def _of_kind(dtype: str) -> dict[str, Function]:
    if dtype == "float32":
        return FLOATS | SINGLES
    if is_float(dtype) and dtype != "float16":
        return FLOATS
    if is_integer(dtype):
        return INTEGERS
    return BOOLEANS if dtype == "bool" else {}


def _instruction(name: str) -> Function:
    return lambda lanes, _, a: getattr(lanes.builder, name)(*a)


def _compared(sign: str) -> Function:
    def compare(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
        builder = lanes.builder
        if is_float(dtype):
            ordered = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
            return ordered(sign, *a)
        return (builder.icmp_signed if is_signed(dtype) else builder.icmp_unsigned)(sign, *a)

    return compare


def _extreme(sign: str) -> Function:
    """The greater or lesser; NaN where either is NaN."""

    def extreme(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
        builder = lanes.builder
        chosen = builder.select(_compared(sign)(lanes, dtype, a), a[0], a[1])
        if not is_float(dtype):
            return chosen
        return builder.select(builder.fcmp_unordered("uno", a[0], a[0]), a[0], chosen)

    return extreme


def _intrinsic(name: str) -> Function:
    return lambda lanes, _, a: lanes.call(name, *a)


def _logical(name: str) -> Function:
    def logic(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
        return getattr(lanes.builder, name)(*(lanes.cast(dtype, "bool", each) for each in a))

    return logic


def _logical_not(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
    return lanes.builder.not_(lanes.cast(dtype, "bool", a[0]))


def _sign(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
    builder, x = lanes.builder, a[0]
    zero, one, minus = (lanes.constant(dtype, value) for value in (0, 1, -1))
    above = builder.select(builder.fcmp_ordered(">", x, zero), one, x)
    return builder.select(builder.fcmp_ordered("<", x, zero), minus, above)


def _negative(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
    return lanes.builder.fneg(a[0]) if is_float(dtype) else lanes.builder.neg(a[0])


def _integer_absolute(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
    if not is_signed(dtype):
        return a[0]
    is_below = lanes.builder.icmp_signed("<", a[0], lanes.constant(dtype, 0))
    return lanes.builder.select(is_below, lanes.builder.neg(a[0]), a[0])


def _is_nan(lanes: Lanes, _: str, a: Sequence[Any]) -> Value:
    return lanes.builder.fcmp_unordered("uno", a[0], a[0])


def _is_finite(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
    size = lanes.call("llvm.fabs", a[0])
    return lanes.builder.fcmp_ordered("<", size, lanes.constant(dtype, float("inf")))


def _shift(name: str) -> Function:
    """A shift by less than the width; the declared meanings pass no other count."""

    def shift(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
        builder = lanes.builder
        if name == "left":
            return builder.shl(*a)
        return (builder.ashr if is_signed(dtype) else builder.lshr)(*a)

    return shift


def _polynomial(lanes: Lanes, coefficients: Sequence[float], x: Value) -> Value:
    """By Horner's rule, the greatest power first."""
    result = lanes.f32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = lanes.call("llvm.fma", result, x, lanes.f32(coefficient))
    return result


def _power_of_two(lanes: Lanes, exponent: Value) -> Value:
    """2 to an integer of -126..127."""
    builder = lanes.builder
    bits = builder.shl(builder.add(exponent, lanes.i32(127)), lanes.i32(23))
    return builder.bitcast(bits, lanes.of(ir.FloatType()))


SCALED_LANES = 16  # of the instruction that multiplies by powers of two
_SCALE = "llvm.x86.avx512.mask.scalef.ps.512"
_AS_IT_IS = 4  # rounds as the processor does at the time


@cache
def _scales() -> bool:
    """Whether this host multiplies by powers of two in one instruction."""
    return bool(binding.get_host_cpu_features().get("avx512f"))


def _scaled(lanes: Lanes, value: Value, exponent: Value) -> Value:
    """The value times 2 to an integral float32, rounded once as by multiplications in two steps."""
    module, kind = lanes.builder.module, value.type
    mask, number = ir.IntType(SCALED_LANES), ir.IntType(32)
    signature = ir.FunctionType(kind, [kind, kind, kind, mask, number])
    function = module.globals.get(_SCALE) or ir.Function(module, signature, _SCALE)
    return lanes.builder.call(function, [value, exponent, value, mask(-1), number(_AS_IT_IS)])


_LOG2_E = 1.4426950408889634
_LN_2 = (0.693145751953125, 1.42860682030941723212e-6)  # the first with trailing zeros
_EXP = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)  # |r| < 0.35: error 2e-9
_EXP_LIMITS = (-104.0, 89.0)  # beyond them it is 0 and infinity


def _exp(lanes: Lanes, _: str, a: Sequence[Any]) -> Value:
    """2**n * exp(r), r = x - n ln 2: within 1 ulp, 2 where the result is subnormal."""
    builder, x = lanes.builder, a[0]
    low, high = (lanes.f32(limit) for limit in _EXP_LIMITS)
    inside = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    inside = builder.select(builder.fcmp_ordered(">", inside, high), high, inside)
    is_scaled = lanes.count == SCALED_LANES and _scales()
    if not is_scaled:
        inside = builder.select(builder.fcmp_unordered("uno", x, x), lanes.f32(0), inside)
    n = lanes.call("llvm.rint", builder.fmul(inside, lanes.f32(_LOG2_E)))
    rest = lanes.call("llvm.fma", n, lanes.f32(-_LN_2[0]), inside)
    rest = lanes.call("llvm.fma", n, lanes.f32(-_LN_2[1]), rest)
    value = _polynomial(lanes, _EXP, rest)
    if is_scaled:
        return builder.select(builder.fcmp_unordered("uno", x, x), x, _scaled(lanes, value, n))
    whole = builder.fptosi(n, lanes.of(ir.IntType(32)))
    half = builder.ashr(whole, lanes.i32(1))
    value = builder.fmul(value, _power_of_two(lanes, half))
    value = builder.fmul(value, _power_of_two(lanes, builder.sub(whole, half)))
    return builder.select(builder.fcmp_unordered("uno", x, x), x, value)


_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip  # of Cephes' logf: log(1 + f) = f - f*f/2 + f**3 * this


def _log(lanes: Lanes, _: str, a: Sequence[Any]) -> Value:
    """e ln 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2): within 2 ulp."""
    builder, x = lanes.builder, a[0]
    word, single = lanes.of(ir.IntType(32)), lanes.of(ir.FloatType())
    is_small = builder.fcmp_ordered("<", x, lanes.f32(2.0**-126))
    scaled = builder.select(is_small, builder.fmul(x, lanes.f32(2.0**24)), x)
    bits = builder.sub(builder.bitcast(scaled, word), lanes.i32(0x3F3504F3))  # sqrt(1/2)
    exponent = builder.ashr(bits, lanes.i32(23))
    fraction = builder.add(builder.and_(bits, lanes.i32(0x7FFFFF)), lanes.i32(0x3F3504F3))
    f = builder.fsub(builder.bitcast(fraction, single), lanes.f32(1))
    shift = builder.select(is_small, lanes.i32(-24), lanes.i32(0))
    e = builder.sitofp(builder.add(exponent, shift), single)
    square = builder.fmul(f, f)
    tail = builder.fmul(builder.fmul(_polynomial(lanes, _LOG, f), f), square)
    tail = lanes.call("llvm.fma", e, lanes.f32(_LN_2[1]), tail)
    tail = lanes.call("llvm.fma", square, lanes.f32(-0.5), tail)
    value = lanes.call("llvm.fma", e, lanes.f32(_LN_2[0]), builder.fadd(f, tail))
    infinity = lanes.f32(float("inf"))
    value = builder.select(builder.fcmp_ordered("==", x, infinity), infinity, value)
    is_zero = builder.fcmp_ordered("==", x, lanes.f32(0))
    value = builder.select(is_zero, lanes.f32(float("-inf")), value)
    return builder.select(builder.fcmp_unordered("<", x, lanes.f32(0)), lanes.f32(float("nan")),
                          value)  # fmt: skip


def _log1p(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
    """By the polynomial of log about 1, else log(1 + x) and what 1 + x has lost: within 2 ulp."""
    builder, x = lanes.builder, a[0]
    square = builder.fmul(x, x)
    tail = builder.fmul(builder.fmul(_polynomial(lanes, _LOG, x), x), square)
    near = builder.fadd(x, lanes.call("llvm.fma", square, lanes.f32(-0.5), tail))
    whole = builder.fadd(x, lanes.f32(1))
    lost = builder.fsub(x, builder.fsub(whole, lanes.f32(1)))
    far = builder.fadd(_log(lanes, dtype, [whole]), builder.fdiv(lost, whole))
    is_large = builder.fcmp_ordered(">", x, lanes.f32(2.0**24))  # nothing is lost of these
    far = builder.select(is_large, _log(lanes, dtype, [x]), far)
    is_least = builder.fcmp_ordered("==", x, lanes.f32(-1))
    far = builder.select(is_least, lanes.f32(float("-inf")), far)
    is_near = builder.fcmp_ordered("<", lanes.call("llvm.fabs", x), lanes.f32(0.29))
    return builder.select(is_near, near, far)


_PI_HALVES = (1.5707963267948966, 6.123233995736766e-17)
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)  # Cephes: r + r**3 * this(r * r)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
MOST_OF_SIN = 2.0**30  # beyond it sin is NaN: the one meaning that asks for it takes another value


def _sin(lanes: Lanes, _: str, a: Sequence[Any]) -> Value:
    """Of what is left of quarters of a turn, found in float64: within 2 ulp up to 2**30."""
    builder, x = lanes.builder, a[0]
    word, single, double = (lanes.of(k) for k in (ir.IntType(32), ir.FloatType(), ir.DoubleType()))

    def f64(value: float) -> Value:
        return lanes.constant("float64", value)

    size = lanes.call("llvm.fabs", x)
    is_inside = builder.fcmp_ordered("<=", size, lanes.f32(MOST_OF_SIN))
    wide = builder.fpext(builder.select(is_inside, x, lanes.f32(0)), double)
    quarters = lanes.call("llvm.rint", builder.fmul(wide, f64(1 / _PI_HALVES[0])))
    rest = lanes.call("llvm.fma", quarters, f64(-_PI_HALVES[0]), wide)
    rest = lanes.call("llvm.fma", quarters, f64(-_PI_HALVES[1]), rest)
    r, number = builder.fptrunc(rest, single), builder.fptosi(quarters, word)
    square = builder.fmul(r, r)
    cubic = builder.fmul(_polynomial(lanes, _SIN, square), builder.fmul(square, r))
    sine = builder.fadd(r, cubic)
    fourth = builder.fmul(_polynomial(lanes, _COS, square), builder.fmul(square, square))
    cosine = builder.fadd(lanes.call("llvm.fma", square, lanes.f32(-0.5), lanes.f32(1)), fourth)
    is_odd = builder.icmp_signed("!=", builder.and_(number, lanes.i32(1)), lanes.i32(0))
    is_turned = builder.icmp_signed("!=", builder.and_(number, lanes.i32(2)), lanes.i32(0))
    value = builder.select(is_odd, cosine, sine)
    value = builder.select(is_turned, builder.fneg(value), value)
    is_tiny = builder.fcmp_ordered("<", size, lanes.f32(2.0**-13))  # -0 stays what it is
    value = builder.select(is_tiny, x, value)
    return builder.select(is_inside, value, lanes.f32(float("nan")))


_ARCTAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_TAN_EIGHTHS = (0.41421356237309503, 2.414213562373095)  # of pi: 1 and 3


def _arctan(lanes: Lanes, _: str, a: Sequence[Any]) -> Value:
    """By thirds of the range, as Cephes' atanf, with what sums and constants lose: within 2 ulp."""
    builder, x = lanes.builder, a[0]
    size, one, zero = lanes.call("llvm.fabs", x), lanes.f32(1), lanes.f32(0)
    is_far = builder.fcmp_ordered(">", size, lanes.f32(_TAN_EIGHTHS[1]))
    is_middle = builder.fcmp_ordered(">", size, lanes.f32(_TAN_EIGHTHS[0]))
    whole = builder.fadd(size, one)
    lost = builder.fsub(size, builder.fsub(whole, one))
    above = builder.select(is_far, lanes.f32(-1), builder.fsub(size, one))
    below = builder.select(is_far, size, whole)
    y = builder.select(is_middle, builder.fdiv(above, below), size)
    start, rest = zero, zero
    for condition, value in ((is_middle, _PI_HALVES[0] / 2), (is_far, _PI_HALVES[0])):
        near = float(np.float32(value))
        start = builder.select(condition, lanes.f32(near), start)
        rest = builder.select(condition, lanes.f32(value - near), rest)
    # of y = above / (whole + lost)
    lost = builder.select(is_far, zero, builder.fdiv(builder.fmul(y, lost), whole))
    rest = builder.fsub(rest, builder.select(is_middle, lost, zero))
    square = builder.fmul(y, y)
    tail = builder.fmul(_polynomial(lanes, _ARCTAN, square), builder.fmul(square, y))
    value = builder.fadd(start, builder.fadd(y, builder.fadd(tail, rest)))
    return lanes.call("llvm.copysign", value, x)


_TANH = (
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
)  # fmt: skip  # of Cephes' tanhf: tanh(x) = x + x**3 * this(x * x), |x| < 0.625


def _tanh(lanes: Lanes, dtype: str, a: Sequence[Any]) -> Value:
    """An odd polynomial below 0.625, from exp above it: within 2 ulp."""
    builder, x = lanes.builder, a[0]
    size = lanes.call("llvm.fabs", x)
    square = builder.fmul(x, x)
    cubic = builder.fmul(_polynomial(lanes, _TANH, square), builder.fmul(square, x))
    near = builder.fadd(x, cubic)
    grown = _exp(lanes, dtype, [builder.fadd(size, size)])
    quotient = builder.fdiv(lanes.f32(2), builder.fadd(grown, lanes.f32(1)))
    far = lanes.call("llvm.copysign", builder.fsub(lanes.f32(1), quotient), x)
    return builder.select(builder.fcmp_unordered("<", size, lanes.f32(0.625)), near, far)


_COMPARISONS: dict[str, Function] = {
    "equal": _compared("=="),
    "not_equal": _compared("!="),
    "less": _compared("<"),
    "less_equal": _compared("<="),
    "greater": _compared(">"),
    "greater_equal": _compared(">="),
}
_ANY: dict[str, Function] = {
    **_COMPARISONS,
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "negative": _negative,
    "logical_and": _logical("and_"),
    "logical_or": _logical("or_"),
    "logical_xor": _logical("xor"),
    "logical_not": _logical_not,
}
FLOATS: dict[str, Function] = {
    **_ANY,
    "add": _instruction("fadd"),
    "subtract": _instruction("fsub"),
    "multiply": _instruction("fmul"),
    "divide": _instruction("fdiv"),
    "square": lambda lanes, _, a: lanes.builder.fmul(a[0], a[0]),
    "absolute": _intrinsic("llvm.fabs"),
    "sqrt": _intrinsic("llvm.sqrt"),
    "rint": _intrinsic("llvm.rint"),
    "floor": _intrinsic("llvm.floor"),
    "sign": _sign,
    "isnan": _is_nan,
    "isfinite": _is_finite,
}
STEPS = dict.fromkeys(("exp", "log", "tanh", "log1p", "sin", "arctan"), 2.0)
"""How many steps of float32 a function may lie from its value; others are rounded correctly."""
SINGLES: dict[str, Function] = {
    "exp": _exp, "log": _log, "tanh": _tanh, "log1p": _log1p, "sin": _sin, "arctan": _arctan,
}  # fmt: skip
INTEGERS: dict[str, Function] = {
    **_ANY,
    "add": _instruction("add"),
    "subtract": _instruction("sub"),
    "multiply": _instruction("mul"),
    "square": lambda lanes, _, a: lanes.builder.mul(a[0], a[0]),
    "absolute": _integer_absolute,
    "bitwise_and": _instruction("and_"),
    "bitwise_or": _instruction("or_"),
    "bitwise_xor": _instruction("xor"),
    "invert": _instruction("not_"),
    "left_shift": _shift("left"),
    "right_shift": _shift("right"),
}
BOOLEANS: dict[str, Function] = {
    "logical_and": _instruction("and_"),
    "logical_or": _instruction("or_"),
    "logical_xor": _instruction("xor"),
    "logical_not": _instruction("not_"),
    "bitwise_and": _instruction("and_"),
    "bitwise_or": _instruction("or_"),
    "bitwise_xor": _instruction("xor"),
    "invert": _instruction("not_"),
    "equal": lambda lanes, _, a: lanes.builder.not_(lanes.builder.xor(*a)),
    "not_equal": _instruction("xor"),
}

IDENTITIES: dict[str, float | str] = {
    "add": 0, "multiply": 1, "maximum": "least", "minimum": "greatest", "bitwise_and": -1,
    "bitwise_or": 0, "bitwise_xor": 0, "logical_and": 1, "logical_or": 0, "logical_xor": 0,
}  # fmt: skip
"""What a reduction starts with; the dtype's extremes where a word says so."""
