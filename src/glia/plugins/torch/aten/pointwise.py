"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from glia.base.dtype import F32, PRED, S64, DType, Kind
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import Number
from glia.plugins.torch.aten.operator_table import (
    TABLE,
    OperatorCall,
    Scalar,
    lowers,
    lowers_of_package,
    promoted,
    wide_dtype,
)

aten = torch.ops.aten
prims = torch.ops.prims

# HLO has these for floats, as PyTorch means them; integers become floats first
_FLOAT_FUNCTIONS = {
    "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh", "atan": "atan",
    "atanh": "atanh", "cos": "cosine", "cosh": "cosh", "erf": "erf", "exp": "exponential",
    "expm1": "exponential-minus-one", "log": "log", "log1p": "log-plus-one", "rsqrt": "rsqrt",
    "sigmoid": "logistic", "sin": "sine", "sinh": "sinh", "sqrt": "sqrt", "tan": "tan",
    "tanh": "tanh",
}  # fmt: skip

# Integers are what these make of them
_ROUNDINGS = {"ceil": "ceil", "floor": "floor", "round": "round-nearest-even"}

# What PyTorch's decompositions leave of its lower level, on operands of one dtype
_PRIMS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "shift_left": "shift-left",
}  # fmt: skip
# And those that take and give what operators of the same name do
_SAME_PRIMS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_not", "ceil", "cos",
    "cosh", "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fmod", "ge", "gt", "le", "log",
    "log10", "log1p", "log2", "lt", "maximum", "minimum", "ne", "neg", "reciprocal", "remainder",
    "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "where",
)  # fmt: skip

_COMPARISONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}


def _register() -> None:
    for name, opcode in _FLOAT_FUNCTIONS.items():
        lowers(getattr(aten, name).default)(_float_function(opcode))
    for name, opcode in _ROUNDINGS.items():
        lowers(getattr(aten, name).default)(_rounding(opcode))
    for name, direction in _COMPARISONS.items():
        packet = getattr(aten, name)
        lowers(packet.Tensor, packet.Scalar)(_comparison(direction))
    for name, opcode in _BITWISE.items():
        packet = getattr(aten, name)
        lowers(packet.Tensor, packet.Scalar)(_arithmetic(opcode))
    for name, opcode in _LOGICAL.items():
        lowers(getattr(aten, name).default)(_logical(opcode))
    for name, opcode in _PRIMS.items():
        lowers(getattr(prims, name).default)(_arithmetic(opcode))
    lowers(aten.maximum.default)(_arithmetic("maximum"))
    lowers(aten.minimum.default)(_arithmetic("minimum"))
    lowers(aten.mul.Tensor, aten.mul.Scalar)(_multiply)
    for name in _SAME_PRIMS:
        packet = getattr(aten, name)
        overloads = (getattr(packet, each) for each in packet.overloads())
        lowers(getattr(prims, name).default)(next(TABLE[o] for o in overloads if o in TABLE))


def _float_function(opcode: str) -> Callable[..., HloValue]:
    def lower(at: OperatorCall, x: HloValue) -> HloValue:
        wide = at.convert(x, wide_dtype(at.result.dtype))
        return at.finished(at.unary(opcode, wide))

    return lower


def _rounding(opcode: str) -> Callable[..., HloValue]:
    def lower(at: OperatorCall, x: HloValue) -> HloValue:
        return at.unary(opcode, x) if x.dtype.is_float else x

    return lower


def _comparison(direction: str) -> Callable[..., HloValue]:
    def lower(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
        dtype = promoted(x, y)
        return at.compare(direction, at.operand(x, dtype), at.operand(y, dtype))

    return lower


def _logical(opcode: str) -> Callable[..., HloValue]:
    def lower(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
        return at.binary(opcode, at.operand(x, PRED), at.operand(y, PRED))

    return lower


def _arithmetic(opcode: str) -> Callable[..., HloValue]:
    def lower(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
        dtype = at.result.dtype
        return at.binary(opcode, at.operand(x, dtype), at.operand(y, dtype))

    return lower


def _common(at: OperatorCall, x: Scalar, y: Scalar) -> tuple[HloValue, HloValue]:
    """Operands in the dtype in which PyTorch computes: numbers are not rounded to narrow floats."""
    dtype = at.result.dtype
    if not (isinstance(x, HloValue) and isinstance(y, HloValue)):
        dtype = wide_dtype(dtype)
    return at.operand(x, dtype), at.operand(y, dtype)


def _multiply(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
    if at.result.dtype is PRED:
        return at.binary("and", at.operand(x, PRED), at.operand(y, PRED))
    return at.finished(at.multiply(*_common(at, x, y)))


@lowers_of_package("prims.fma.default")
def _multiply_add(at: OperatorCall, x: HloValue, y: HloValue, z: HloValue) -> HloValue:
    dtype = wide_dtype(at.result.dtype)
    x, y, z = (at.operand(each, dtype) for each in (x, y, z))
    return at.finished(at.add(at.multiply(x, y), z))


@lowers(aten.add.Tensor, aten.add.Scalar)
def _add(at: OperatorCall, x: Scalar, y: Scalar, alpha: Number = 1) -> HloValue:
    if at.result.dtype is PRED:
        return at.binary("or", at.operand(x, PRED), at.operand(y if alpha else False, PRED))
    return _sum(at, "add", x, y, alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def _sub(at: OperatorCall, x: Scalar, y: Scalar, alpha: Number = 1) -> HloValue:
    return _sum(at, "subtract", x, y, alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(at: OperatorCall, x: Scalar, y: Scalar, alpha: Number = 1) -> HloValue:
    """y - alpha * x."""
    return _sum(at, "subtract", y, x, alpha)


def _sum(at: OperatorCall, opcode: str, x: Scalar, y: Scalar, alpha: Number) -> HloValue:
    if alpha == 1:
        return at.finished(at.binary(opcode, *_common(at, x, y)))
    dtype = wide_dtype(at.result.dtype)
    scaled = at.multiply(at.operand(y, dtype), at.operand(alpha, dtype))
    return at.finished(at.binary(opcode, at.operand(x, dtype), scaled))


@lowers(aten.div.Tensor, aten.div.Scalar)
def _div(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
    return at.finished(at.divide(*_common(at, x, y)))


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(at: OperatorCall, x: Scalar, y: Scalar, rounding_mode: str | None = None) -> HloValue:
    if rounding_mode is None:
        return _div(at, x, y)
    dtype = wide_dtype(at.result.dtype)
    x, y = at.operand(x, dtype), at.operand(y, dtype)
    if rounding_mode == "floor":
        return at.finished(_floor_divided(at, x, y))
    quotient = at.divide(x, y)
    if not dtype.is_float:
        return at.finished(quotient)
    rounded = at.convert(at.convert(quotient, at.result.dtype), dtype)  # as PyTorch does first
    return at.finished(_truncated(at, rounded))


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
    return _div_mode(at, x, y, "floor")


def _floor_divided(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    """The quotient rounded down, from the remainder, which is exact."""
    if x.dtype.kind is Kind.UNSIGNED:
        return at.divide(x, y)
    rest = at.binary("remainder", x, y)
    is_off = at.binary("and", at.compare_to("NE", rest, 0), _differ_in_sign(at, rest, y))
    one = at.filled_like(1, x)
    if not x.dtype.is_float:
        quotient = at.divide(x, y)
        return at.select(is_off, at.subtract(quotient, one), quotient)
    quotient = at.divide(at.subtract(x, rest), y)
    quotient = at.unary("round-nearest-even", quotient)
    quotient = at.select(is_off, at.subtract(quotient, one), quotient)
    return at.select(at.compare_to("EQ", y, 0), at.divide(x, y), quotient)


def _differ_in_sign(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    return at.compare("NE", at.compare_to("LT", x, 0), at.compare_to("LT", y, 0))


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
    return at.finished(at.binary("remainder", *_common(at, x, y)))


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
    """The remainder with the sign of the divisor."""
    x, y = _common(at, x, y)
    rest = at.binary("remainder", x, y)
    is_off = at.binary("and", at.compare_to("NE", rest, 0), _differ_in_sign(at, rest, y))
    return at.finished(at.select(is_off, at.add(rest, y), rest))


@lowers(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def _pow(at: OperatorCall, x: Scalar, y: Scalar) -> HloValue:
    dtype = wide_dtype(at.result.dtype)
    base = at.operand(x, dtype)
    if isinstance(y, int | float) and float(y).is_integer() and 0 <= y <= 4:
        return at.finished(_small_power(at, base, int(y)))
    if y == 0.5:
        return at.finished(at.unary("sqrt", base))
    if y == -0.5:
        return at.finished(at.unary("rsqrt", base))
    if y == -1 and dtype.is_float:
        return at.finished(at.divide(at.filled_like(1, base), base))
    return at.finished(at.binary("power", base, at.operand(y, dtype)))


def _small_power(at: OperatorCall, base: HloValue, exponent: int) -> HloValue:
    if exponent == 0:
        return at.filled_like(1, base)
    power = base
    for _ in range(exponent - 1):
        power = at.multiply(power, base)
    return power


@lowers(aten.atan2.default)
def _atan2(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    dtype = wide_dtype(at.result.dtype)
    return at.finished(at.binary("atan2", at.operand(x, dtype), at.operand(y, dtype)))


@lowers(aten.log2.default)
def _log2(at: OperatorCall, x: HloValue) -> HloValue:
    return _logarithm(at, x, math.log(2))


@lowers(aten.log10.default)
def _log10(at: OperatorCall, x: HloValue) -> HloValue:
    return _logarithm(at, x, math.log(10))


def _logarithm(at: OperatorCall, x: HloValue, of_base: float) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    return at.finished(at.divide(at.unary("log", wide), at.filled_like(of_base, wide)))


@lowers(aten.exp2.default)
def _exp2(at: OperatorCall, x: HloValue) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    return at.finished(at.binary("power", at.filled_like(2, wide), wide))


@lowers(aten.erfc.default)
def _erfc(at: OperatorCall, x: HloValue) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    return at.finished(at.subtract(at.filled_like(1, wide), at.unary("erf", wide)))


@lowers(aten.reciprocal.default)
def _reciprocal(at: OperatorCall, x: HloValue) -> HloValue:
    wide = at.convert(x, wide_dtype(at.result.dtype))
    return at.finished(at.divide(at.filled_like(1, wide), wide))


@lowers(aten.abs.default)
def _abs(at: OperatorCall, x: HloValue) -> HloValue:
    if x.dtype is PRED or x.dtype.kind is Kind.UNSIGNED:
        return x
    return at.unary("abs", x, at.result.dtype)


@lowers(aten.neg.default, aten._neg_view.default)
def _neg(at: OperatorCall, x: HloValue) -> HloValue:
    return at.unary("negate", x)


@lowers(aten.sign.default)
def _sign(at: OperatorCall, x: HloValue) -> HloValue:
    """Zero of NaN, which has no sign; a bool is its own."""
    if x.dtype is PRED:
        return x
    sign = at.unary("sign", x)
    return at.select(_is_nan(at, x), at.filled_like(0, x), sign) if x.dtype.is_float else sign


@lowers(aten.trunc.default)
def _trunc(at: OperatorCall, x: HloValue) -> HloValue:
    return _truncated(at, x) if x.dtype.is_float else x


def _truncated(at: OperatorCall, x: HloValue) -> HloValue:
    is_negative = at.compare_to("LT", x, 0)
    return at.select(is_negative, at.unary("ceil", x), at.unary("floor", x))


def _is_nan(at: OperatorCall, x: HloValue) -> HloValue:
    return at.compare("NE", x, x)


@lowers(aten.isnan.default)
def _isnan(at: OperatorCall, x: HloValue) -> HloValue:
    if x.dtype.is_complex:
        parts = [at.unary(part, x, F32) for part in ("real", "imag")]
        return at.binary("or", *(_is_nan(at, part) for part in parts))
    return _is_nan(at, x)


@lowers(aten.isinf.default)
def _isinf(at: OperatorCall, x: HloValue) -> HloValue:
    if not x.dtype.is_float:
        return at.splat(False, at.result)
    return at.compare_to("EQ", at.unary("abs", x), math.inf)


@lowers(aten.logical_not.default)
def _logical_not(at: OperatorCall, x: HloValue) -> HloValue:
    return at.unary("not", at.convert(x, PRED))


@lowers(aten.bitwise_not.default)
def _bitwise_not(at: OperatorCall, x: HloValue) -> HloValue:
    return at.unary("not", x)


@lowers(
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.__lshift__.Scalar,
)
def _left_shift(at: OperatorCall, x: HloValue, y: Scalar) -> HloValue:
    return _arithmetic("shift-left")(at, x, y)


@lowers(
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.__rshift__.Scalar,
)
def _right_shift(at: OperatorCall, x: HloValue, y: Scalar) -> HloValue:
    is_signed = at.result.dtype.kind is Kind.SIGNED
    return _arithmetic(f"shift-right-{'arithmetic' if is_signed else 'logical'}")(at, x, y)


@lowers(aten.where.self)
def _choose(at: OperatorCall, condition: HloValue, x: Scalar, y: Scalar) -> HloValue:
    dtype = at.result.dtype
    return at.select(at.operand(condition, PRED), at.operand(x, dtype), at.operand(y, dtype))


@lowers(aten.clamp.default, aten.clamp.Tensor)
def _clamp(
    at: OperatorCall, x: HloValue, low: Scalar | None = None, high: Scalar | None = None
) -> HloValue:
    """A NaN stays; the upper bound wins over the lower."""
    dtype = at.result.dtype
    found = at.operand(x, dtype)
    if low is not None:
        found = at.binary("maximum", found, at.operand(low, dtype))
    if high is not None:
        found = at.binary("minimum", found, at.operand(high, dtype))
    return found


@lowers(aten.hardtanh.default)
def _hardtanh(at: OperatorCall, x: HloValue, low: Number = -1, high: Number = 1) -> HloValue:
    return _clamp(at, x, low, high)


# --- activations ---------------------------------------------------------------------------------


@lowers(aten.relu.default)
def _relu(at: OperatorCall, x: HloValue) -> HloValue:
    return at.binary("maximum", x, at.filled_like(0, x))


@lowers(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def _shrink_backward(at: OperatorCall, grad: HloValue, x: HloValue, limit: Number) -> HloValue:
    inside = at.compare_to("LE", at.unary("abs", x), limit)
    return at.finished(at.select(inside, at.filled_like(0, grad), grad))


@lowers(aten.leaky_relu.default)
def _leaky_relu(at: OperatorCall, x: HloValue, slope: Number = 0.01) -> HloValue:
    wide = at.wide(x)
    scaled = at.multiply(wide, at.filled_like(slope, wide))
    return at.finished(at.select(at.compare_to("GT", wide, 0), wide, scaled))


@lowers(aten.elu.default)
def _elu(
    at: OperatorCall, x: HloValue, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> HloValue:
    wide = at.wide(x)
    power = at.unary("exponential-minus-one", at.multiply(wide, at.filled_like(input_scale, wide)))
    below = at.multiply(power, at.filled_like(alpha * scale, wide))
    above = at.multiply(wide, at.filled_like(scale, wide))
    return at.finished(at.select(at.compare_to("GT", wide, 0), above, below))


@lowers(aten.gelu.default)
def _gelu(at: OperatorCall, x: HloValue, approximate: str = "none") -> HloValue:
    wide = at.wide(x)
    half = at.multiply(wide, at.filled_like(0.5, wide))
    if approximate == "tanh":
        cube = at.multiply(at.multiply(wide, wide), wide)
        inner = at.add(wide, at.multiply(cube, at.filled_like(0.044715, wide)))
        gate = at.unary("tanh", at.multiply(inner, at.filled_like(math.sqrt(2 / math.pi), wide)))
    else:
        gate = at.unary("erf", at.multiply(wide, at.filled_like(math.sqrt(0.5), wide)))
    return at.finished(at.multiply(half, at.add(gate, at.filled_like(1, wide))))


@lowers(aten.silu.default)
def _silu(at: OperatorCall, x: HloValue) -> HloValue:
    wide = at.wide(x)
    return at.finished(at.multiply(wide, at.unary("logistic", wide)))


# --- conversions ---------------------------------------------------------------------------------


@lowers(aten._to_copy.default)
def _to_copy(at: OperatorCall, x: HloValue, **_: Any) -> HloValue:
    return converted(at, x, at.result.dtype)


@lowers(torch.ops.prims.convert_element_type.default)
def _convert_element_type(at: OperatorCall, x: HloValue, dtype: torch.dtype) -> HloValue:
    return converted(at, x, at.result.dtype)


def converted(at: OperatorCall, x: HloValue, dtype: DType) -> HloValue:
    """x in another dtype; floats become narrow integers by way of 64 bits, which wrap around."""
    if x.dtype.is_float and dtype.is_integer and dtype.bits < 32:
        x = at.convert(x, S64)
    return at.convert(x, dtype)


@lowers(
    aten.alias.default,
    aten.detach.default,
    aten.clone.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
)
def _same(at: OperatorCall, x: HloValue, **_: Any) -> HloValue:
    return x


@lowers(aten.copy.default)
def _copy(at: OperatorCall, x: HloValue, source: HloValue, non_blocking: bool = False) -> HloValue:
    return at.operand(source, at.result.dtype)


@lowers(aten.fill.Scalar, aten.fill.Tensor)
def _fill(at: OperatorCall, x: HloValue, value: Scalar) -> HloValue:
    return at.operand(value, at.result.dtype)


# --- new tensors ---------------------------------------------------------------------------------


@lowers(aten.full.default)
def _full(at: OperatorCall, size: Any, value: Number, **_: Any) -> HloValue:
    return at.operand(value, at.result.dtype)


@lowers(aten.full_like.default)
def _full_like(at: OperatorCall, x: HloValue, value: Number, **_: Any) -> HloValue:
    return at.operand(value, at.result.dtype)


@lowers(aten.scalar_tensor.default)
def _scalar_tensor(at: OperatorCall, value: Number, **_: Any) -> HloValue:
    return at.operand(value, at.result.dtype)


@lowers(
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    torch.ops.prims.empty_strided.default,
    aten.empty_permuted.default,
)
def _empty(at: OperatorCall, *_: Any, **__: Any) -> HloValue:
    """Contents that nothing may rely on: zeros."""
    return at.splat(0, at.result)


@lowers(aten.arange.start_step)
def _arange(at: OperatorCall, start: Number, end: Number, step: Number = 1, **_: Any) -> HloValue:
    """start + step * index, rounded once."""
    (count,) = at.result.shape
    dtype = at.result.dtype
    places_in_64 = np.arange(count, dtype=np.float64 if dtype.is_float else np.int64)
    values = np.asarray(start) + np.asarray(step) * places_in_64
    if count <= 1 or (dtype.is_float and dtype.bits < 32):
        return at.constant(values, dtype)
    places = at.iota(TensorType(dtype, (count,)), 0)
    scaled = places if step == 1 else at.multiply(places, at.filled_like(step, places))
    return scaled if start == 0 else at.add(scaled, at.filled_like(start, places))


_register()
