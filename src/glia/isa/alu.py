"""The operators of the vector-style engines: one table, with the meaning of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from glia.arch import generations_from
from glia.base.errors import Unspecified

Array = np.ndarray[Any, Any]

PAGE = "NKI API common fields, Supported Math Operators for NKI ISA"
EARLIER = "NKI release 2.26.1, Supported Math Operators for NKI ISA"
MAGNITUDES = "NKI nki.language.abs_max and abs_min"


@dataclass(frozen=True)
class AluOp:
    """One operator.

    `family` is "arithmetic" (float32 inside, any dtype outside) or "bitvec" (integers, bit by bit).
    Comparisons and logic give 0 or 1. `identity` is the start of a reduction, None where the
    operator does not reduce.
    """

    name: str
    arity: int
    family: str
    compute: Callable[..., Array]
    engines: tuple[str, ...] = ("vector", "gpsimd")
    identity: float | None = None
    generations: tuple[int, ...] = generations_from(1)
    source: str = PAGE


def _truncated_quotient(a: Array, b: Array) -> Array:
    """Integer quotient towards zero; -1 where b is 0, as processors without traps have it."""
    safe = np.where(b == 0, np.ones_like(b), b)
    floor = np.floor_divide(a, safe)
    inexact = (floor * safe != a) & ((a < 0) != (safe < 0))
    return np.where(b == 0, np.full_like(floor, -1 if a.dtype.kind == "i" else ~np.uint32(0)),
                    floor + inexact.astype(a.dtype))  # fmt: skip


def _divide(a: Array, b: Array) -> Array:
    return np.divide(a, b) if a.dtype.kind == "f" else _truncated_quotient(a, b)


def _modulo(a: Array, b: Array) -> Array:
    """The remainder with the sign of the divisor."""
    if a.dtype.kind == "f":
        return np.mod(a, b)
    return np.where(b == 0, a, np.mod(a, np.where(b == 0, np.ones_like(b), b)))


def _remainder(a: Array, b: Array) -> Array:
    """The remainder with the sign of the dividend."""
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, np.ones_like(b), b)))


def _abs_max(a: Array, b: Array) -> Array:
    """Whichever has the greater magnitude, with its sign; b where neither has."""
    return np.where(np.abs(a) > np.abs(b), a, b)


def _abs_min(a: Array, b: Array) -> Array:
    """Whichever has the lesser magnitude, with its sign; b where neither has."""
    return np.where(np.abs(a) < np.abs(b), a, b)


def _unsigned(a: Array) -> Array:
    return a.astype(f"u{a.dtype.itemsize}", copy=False)


def _left_shift(a: Array, b: Array) -> Array:
    """Shift left; 0 when the count is not less than the width."""
    width = 8 * a.dtype.itemsize
    bits, count = _unsigned(a), _unsigned(b)
    shifted = np.left_shift(bits, np.minimum(count, count.dtype.type(width - 1)))
    result: Array = np.where(count < width, shifted, bits.dtype.type(0))
    return result.astype(a.dtype)


def _right_shift(a: Array, b: Array) -> Array:
    """Shift right, zeros from the left; 0 when the count is not less than the width."""
    width = 8 * a.dtype.itemsize
    bits, count = _unsigned(a), _unsigned(b)
    shifted = np.right_shift(bits, np.minimum(count, count.dtype.type(width - 1)))
    result: Array = np.where(count < width, shifted, bits.dtype.type(0))
    return result.astype(a.dtype)


def _arithmetic_right_shift(a: Array, b: Array) -> Array:
    """Shift right, copies of the sign from the left."""
    width = 8 * a.dtype.itemsize
    count = np.minimum(_unsigned(b), _unsigned(b).dtype.type(width - 1))
    signed = a.astype(f"i{a.dtype.itemsize}", copy=False)
    shifted: Array = np.right_shift(signed, count.astype(signed.dtype))
    return shifted.astype(a.dtype)


def _rsqrt(a: Array) -> Array:
    return np.float32(1) / np.sqrt(a)


def _reciprocal(a: Array) -> Array:
    return np.float32(1) / a


def _table(*ops: AluOp) -> dict[str, AluOp]:
    return {op.name: op for op in ops}


_VECTOR = ("vector",)
_GPSIMD = ("gpsimd",)
_INFINITY = float("inf")

ALU_OPS: dict[str, AluOp] = _table(
    AluOp("add", 2, "arithmetic", np.add, identity=0.0),
    AluOp("subtract", 2, "arithmetic", np.subtract, identity=0.0),
    AluOp("multiply", 2, "arithmetic", np.multiply, identity=1.0),
    AluOp("maximum", 2, "arithmetic", np.maximum, identity=-_INFINITY),
    AluOp("minimum", 2, "arithmetic", np.minimum, identity=_INFINITY),
    AluOp(
        "abs_max",
        2,
        "arithmetic",
        _abs_max,
        identity=0.0,
        generations=generations_from(4),
        source=MAGNITUDES,
    ),
    AluOp(
        "abs_min",
        2,
        "arithmetic",
        _abs_min,
        identity=_INFINITY,
        generations=generations_from(4),
        source=MAGNITUDES,
    ),
    AluOp("divide", 2, "arithmetic", _divide, _GPSIMD, source="assumed"),
    AluOp("mod", 2, "arithmetic", _modulo, _GPSIMD, source="assumed"),
    AluOp("fmod", 2, "arithmetic", _remainder, _GPSIMD, source="assumed"),
    AluOp("power", 2, "arithmetic", np.power, _GPSIMD),
    AluOp("equal", 2, "arithmetic", np.equal),
    AluOp("not_equal", 2, "arithmetic", np.not_equal),
    AluOp("greater", 2, "arithmetic", np.greater),
    AluOp("greater_equal", 2, "arithmetic", np.greater_equal),
    AluOp("less", 2, "arithmetic", np.less),
    AluOp("less_equal", 2, "arithmetic", np.less_equal),
    AluOp("logical_and", 2, "arithmetic", np.logical_and, identity=1.0),
    AluOp("logical_or", 2, "arithmetic", np.logical_or, identity=0.0),
    AluOp("logical_xor", 2, "arithmetic", np.logical_xor, identity=0.0),
    AluOp("bitwise_and", 2, "bitvec", np.bitwise_and, _VECTOR, identity=-1),
    AluOp("bitwise_or", 2, "bitvec", np.bitwise_or, _VECTOR, identity=0),
    AluOp("bitwise_xor", 2, "bitvec", np.bitwise_xor, _VECTOR, identity=0),
    AluOp("left_shift", 2, "bitvec", _left_shift, _VECTOR),
    AluOp("right_shift", 2, "bitvec", _right_shift, _VECTOR),
    AluOp(
        "arithmetic_right_shift", 2, "bitvec", _arithmetic_right_shift, _VECTOR, source="assumed"
    ),
    AluOp("bypass", 1, "arithmetic", np.positive),
    AluOp("abs", 1, "arithmetic", np.abs),
    AluOp("square", 1, "arithmetic", np.square),
    AluOp("relu", 1, "arithmetic", lambda a: np.maximum(a, a.dtype.type(0))),
    AluOp("rsqrt", 1, "arithmetic", _rsqrt, _GPSIMD),
    AluOp("reciprocal", 1, "arithmetic", _reciprocal),
    AluOp("logical_not", 1, "arithmetic", np.logical_not, source=EARLIER),
    AluOp("invert", 1, "bitvec", np.invert, _VECTOR),
)

COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")


def apply(op: str, a: Array, b: Array | None, reverse: bool = False) -> Array:
    """a `op` b, or b `op` a when `reverse`; a unary operator ignores b. KeyError when unknown."""
    declared = ALU_OPS[op]
    if declared.arity == 1:
        return declared.compute(a)
    return declared.compute(b, a) if reverse else declared.compute(a, b)


def reduce_along(op: str, array: Array, axis: int | tuple[int, ...]) -> Array:
    """Reduce `array` along axes with a binary operator that has an identity; TypeError else.

    Unspecified for subtract: its order is not documented.
    """
    if ALU_OPS[op].identity is None:
        raise TypeError(f"{op} does not reduce")
    if op == "subtract":
        raise Unspecified("whether a reduction by subtract takes the first element away too")
    function = ALU_OPS[op].compute
    if not isinstance(function, np.ufunc):
        return reduce(function, _listed(array, axis))
    if op.startswith("logical"):
        array = array != 0
    reduced: Array = function.reduce(array, axis=axis)
    return reduced


def _listed(array: Array, axis: int | tuple[int, ...]) -> Array:
    """The elements along axes, in order, as the first dimension."""
    axes = (axis,) if isinstance(axis, int) else axis
    kept = [size for number, size in enumerate(array.shape) if number not in axes]
    return np.moveaxis(array, axes, range(len(axes))).reshape(-1, *kept)
