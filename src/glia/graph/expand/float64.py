"""Compute 64-bit floats in float32, and complex128 in complex64 (`--f64 as-f32`).

A parameter or result of the graph keeps its bytes: it becomes u32 with a last dimension of two (low
word, high word), and is rounded to float32, or extended from it, on the device. Nothing outside has
to convert.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import C64, C128, F32, F64, U32, DType
from glia.graph.expand.word_pairs import (
    Wide,
    equal_wide,
    less_wide,
    shift_left_wide,
    shift_right_wide,
    subtract_wide,
    wide_like,
)
from glia.graph.ir import Graph, Node, Parameter, TensorType
from glia.graph.ops import Bitcast, Constant, ReducePrecision
from glia.graph.passes.retype import Retyping, retype
from glia.graph.rules.constructors import (
    apply,
    bitcast,
    convert,
    reshape,
    select,
    splat_like,
    stack,
    take,
)
from glia.graph.rules.regions import first_operation_on
from glia.options import CompileOptions

log = logging.getLogger(__name__)

_NARROW: Mapping[DType, DType] = {F64: F32, C128: C64}
_REBIAS = 1023 - 127  # from an exponent of f64 to one of f32
_DROPPED = 52 - 23  # mantissa bits


def expand_float64(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with f64 as f32 and c128 as c64 where `--f64 as-f32` asks for it.

    A warning names the first operation.
    """
    if options.f64 != "as-f32":
        return graph
    if not (first := first_operation_on(_NARROW, graph)):
        return graph
    log.warning("64-bit floats are computed in float32, first in %s", first)
    return retype(graph, Retyping(_NARROW, _SPECIAL, _enter, _leave))


def _enter(parameter: Parameter) -> tuple[Parameter, Node]:
    """The parameter as words, and its value rounded."""
    if parameter.dtype not in _NARROW:
        return parameter, parameter
    parts = (2, 2) if parameter.dtype is C128 else (2,)
    declared = TensorType(U32, (*parameter.shape, *parts))
    words = Parameter(parameter.index, declared, parameter.name, loc=parameter.loc)
    if parameter.dtype is F64:
        return words, from_words(words)
    real, imaginary = (from_words(take(words, -2, part)) for part in range(2))
    return words, apply("complex", real, imaginary)


def _leave(value: Node, dtype: DType) -> Node:
    """A result as the words of its value."""
    if dtype is F64:
        return to_words(value)
    if dtype is C128:
        return stack([to_words(apply(part, value)) for part in ("real", "imag")], -2)
    return value


def from_words(words: Node) -> Node:
    """The f64 whose low and high word lie along the last dimension, rounded to nearest even."""
    low, high = take(words, -1, 0), take(words, -1, 1)
    sign = apply("and", high, splat_like(1 << 31, high))
    upper = apply("and", high, splat_like(0xFFFFF, high))
    exponent = apply("shift_right_logical", high, splat_like(20, high))
    exponent = apply("and", exponent, splat_like(0x7FF, high))
    bits = _rounded(Wide(low, upper), exponent)
    infinite = splat_like(0xFF << 23, high)
    over = apply("greater_equal", exponent, splat_like(_REBIAS + 255, exponent))
    bits = select(over, infinite, bits)
    fraction = apply("not_equal", apply("or", low, upper), splat_like(0, high))
    special = apply("equal", exponent, splat_like(0x7FF, exponent))
    bits = select(apply("and", special, fraction), splat_like(0x7FC00000, high), bits)
    return bitcast(apply("or", bits, sign), F32)


def _rounded(fraction: Wide, exponent: Node) -> Node:
    """The bits of a finite magnitude, of which the exponent is not too large, as an f32.

    The significand moves right until it has the place of an f32 of the least exponent or more; the
    carry of rounding up runs into the exponent as it should.
    """
    like = exponent
    significand = Wide(fraction.low, apply("or", fraction.high, splat_like(1 << 20, like)))
    least = splat_like(_REBIAS + 1, like)
    missing = apply("subtract", least, apply("minimum", exponent, least))
    most = splat_like(63 - _DROPPED, like)
    amount = apply("add", splat_like(_DROPPED, like), apply("minimum", missing, most))
    whole = shift_right_wide(significand, amount, arithmetic=False)
    rest = subtract_wide(significand, shift_left_wide(whole, amount))
    half = shift_left_wide(wide_like(1, like), apply("subtract", amount, splat_like(1, like)))
    odd = apply("equal", apply("and", whole.low, splat_like(1, like)), splat_like(1, like))
    tie = apply("and", equal_wide(rest, half), odd)
    up = convert(apply("or", less_wide(half, rest, signed=False), tie), U32)
    above = apply("subtract", apply("maximum", exponent, least), least)
    bits = apply("add", whole.low, apply("shift_left", above, splat_like(23, like)))
    return apply("add", bits, up)


def to_words(value: Node) -> Node:
    """An f32 as the low and high word of the f64 of equal value, along a new last dimension."""
    bits = bitcast(value, U32)
    sign = apply("and", bits, splat_like(1 << 31, bits))
    exponent = apply("shift_right_logical", bits, splat_like(23, bits))
    exponent = apply("and", exponent, splat_like(0xFF, bits))
    fraction = apply("and", bits, splat_like(0x7FFFFF, bits))
    leading = apply("subtract", apply("count_leading_zeros", fraction), splat_like(8, bits))
    small = apply("equal", exponent, splat_like(0, bits))
    normal = apply("shift_left", fraction, leading)
    mantissa = select(small, apply("and", normal, splat_like(0x7FFFFF, bits)), fraction)
    wide = apply("add", exponent, splat_like(_REBIAS, bits))
    wide = select(small, apply("subtract", splat_like(_REBIAS + 1, bits), leading), wide)
    wide = select(apply("equal", exponent, splat_like(0xFF, bits)), splat_like(0x7FF, bits), wide)
    zero = apply("and", small, apply("equal", fraction, splat_like(0, bits)))
    wide = select(zero, splat_like(0, bits), wide)
    upper = apply("shift_right_logical", mantissa, splat_like(3, bits))
    high = apply("or", apply("shift_left", wide, splat_like(20, bits)), upper)
    low = apply("shift_left", mantissa, splat_like(_DROPPED, bits))
    return stack((low, apply("or", high, sign)), -1)


def _constant(node: Constant, _: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    narrow = dtypes.get(node.dtype)
    if narrow is None:
        return None
    with np.errstate(over="ignore"):
        array = np.array(np.asarray(node.value).astype(narrow.numpy), order="C")
    array.flags.writeable = False
    return Constant(array, loc=node.loc)


def _bitcast(node: Bitcast, operands: Sequence[Node], dtypes: Mapping[DType, DType]) -> Node | None:
    """The bits of the f64 of equal value, and back."""
    (x,) = operands
    if node.x.dtype is F64 and node.to is F64:
        return x
    if node.x.dtype is F64:
        words = to_words(x)
        if node.to.bits >= 32:
            return bitcast(words, node.to)
        return reshape(Bitcast(words, node.to), node.shape)
    if node.to is not F64:
        return None
    width = x.dtype.bits
    if width < 32:
        x = Bitcast(reshape(x, (*node.shape, 2, 32 // width)), U32)
    return from_words(bitcast(x, U32))


def _precision(node: ReducePrecision, operands: Sequence[Node], _: object) -> Node | None:
    """No more exponent and mantissa than f32 has."""
    bits = min(node.exponent_bits, 8), min(node.mantissa_bits, 23)
    return ReducePrecision(operands[0], *bits, loc=node.loc) if node.x.dtype is F64 else None


_SPECIAL: dict[type[Node], Any] = {
    Constant: _constant,
    Bitcast: _bitcast,
    ReducePrecision: _precision,
}
