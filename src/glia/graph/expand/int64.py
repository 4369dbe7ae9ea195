"""64-bit integers at full precision, as pairs of 32-bit words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glia.base.dtype import F32, PRED, S32, S64, U8, U16, U32, U64, DType, Kind
from glia.graph.expand.tensor_pairs import Family, Parts, operation_name, split_into_pairs
from glia.graph.expand.wide_contraction import contract_wide
from glia.graph.expand.wide_reduction import reduce_wide
from glia.graph.expand.word_pairs import (
    Wide,
    add_wide,
    divide_wide,
    equal_wide,
    is_negative,
    leading_zeros_wide,
    less_wide,
    multiply_wide,
    negate_wide,
    raise_wide,
    select_wide,
    shift_left_wide,
    shift_right_wide,
    subtract_wide,
    wide_like,
)
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import Bitcast, Convert, Convolution, Dot, Iota, Map, Reduce, ReduceWindow
from glia.graph.passes.errors import NoIntegerDatapath
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
from glia.options import CompileOptions

_WORDS = {8: U8, 16: U16, 32: U32}
_EXPONENT_BIAS = 127


def expand_int64(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without 64-bit integers, unless `--native-int64 disabled` narrows them.

    A parameter or result of the graph becomes u32 with a last dimension of two (low, high word).
    Raises NoIntegerDatapath for what has no meaning on words, such as collectives of several cores.
    """
    return graph if options.native_int64 == "disabled" else split_into_pairs(graph, _FAMILY)


def _part_of(dtype: DType) -> DType | None:
    return U32 if dtype in (S64, U64) else None


def _map(node: Map, args: Sequence[Parts]) -> Parts:
    signed = node.args[-1].dtype.kind is Kind.SIGNED
    function = _FUNCTIONS.get(node.function)
    if function is None:
        raise _refuse(node)
    result = function(signed, *(Wide(*parts) for parts in args))
    return (result,) if isinstance(result, Node) else tuple(result)


def _apply_per_word(function: str) -> Callable[..., Wide]:
    def compute(_: bool, *args: Wide) -> Wide:
        low, high = zip(*args, strict=True)
        return Wide(apply(function, *low), apply(function, *high))

    return compute


def _less_than(signed: bool, a: Wide, b: Wide) -> Node:
    return less_wide(a, b, signed=signed)


def _negate_predicate(predicate: Callable[..., Node]) -> Callable[..., Node]:
    return lambda signed, *args: apply("not", predicate(signed, *args))


def _swap_operands(predicate: Callable[..., Node]) -> Callable[..., Node]:
    return lambda signed, a, b: predicate(signed, b, a)


def _equal(_: bool, a: Wide, b: Wide) -> Node:
    return equal_wide(a, b)


def _minimum(signed: bool, a: Wide, b: Wide) -> Wide:
    return select_wide(_less_than(signed, b, a), b, a)


def _maximum(signed: bool, a: Wide, b: Wide) -> Wide:
    return select_wide(_less_than(signed, a, b), b, a)


def _clamp(signed: bool, low: Wide, x: Wide, high: Wide) -> Wide:
    return _minimum(signed, _maximum(signed, low, x), high)


def _abs(signed: bool, a: Wide) -> Wide:
    return select_wide(is_negative(a), negate_wide(a), a) if signed else a


def _sign(signed: bool, a: Wide) -> Wide:
    one = wide_like(1, a.low)
    positive = select_wide(equal_wide(a, wide_like(0, a.low)), a, one)
    return select_wide(is_negative(a), wide_like(-1, a.low), positive) if signed else positive


def _shift_amount(b: Wide) -> Node:
    """A shift amount in one word, at most 64."""
    past = apply("not_equal", b.high, splat_like(0, b.high))
    most = splat_like(64, b.low)
    return select(past, most, apply("minimum", b.low, most))


def _shift_left(_: bool, a: Wide, b: Wide) -> Wide:
    return shift_left_wide(a, _shift_amount(b))


def _shift_right_logical(_: bool, a: Wide, b: Wide) -> Wide:
    return shift_right_wide(a, _shift_amount(b), arithmetic=False)


def _shift_right_arithmetic(_: bool, a: Wide, b: Wide) -> Wide:
    return shift_right_wide(a, _shift_amount(b), arithmetic=True)


def _popcount(_: bool, a: Wide) -> Wide:
    count = apply("add", apply("popcount", a.low), apply("popcount", a.high))
    return Wide(count, splat_like(0, count))


def _leading_zeros(_: bool, a: Wide) -> Wide:
    count = leading_zeros_wide(a)
    return Wide(count, splat_like(0, count))


def _divide(signed: bool, a: Wide, b: Wide) -> Wide:
    """The quotient rounded towards zero; -1 for a divisor of zero."""
    if not signed:
        return divide_wide(a, b)[0]
    quotient, _ = divide_wide(_abs(True, a), _abs(True, b))
    differ = apply("xor", is_negative(a), is_negative(b))
    result = select_wide(differ, negate_wide(quotient), quotient)
    zero = equal_wide(b, wide_like(0, b.low))
    return select_wide(zero, wide_like(-1, a.low), result)


def _remainder(signed: bool, a: Wide, b: Wide) -> Wide:
    """The remainder with the sign of a; a for a divisor of zero."""
    if not signed:
        return divide_wide(a, b)[1]
    _, rest = divide_wide(_abs(True, a), _abs(True, b))
    return select_wide(is_negative(a), negate_wide(rest), rest)


def _power(signed: bool, a: Wide, b: Wide) -> Wide:
    """a to the b by repeated squaring; 1 / a truncated to an integer for a negative b."""
    result = raise_wide(a, b)
    if not signed:
        return result
    one, minus_one, zero = (wide_like(value, a.low) for value in (1, -1, 0))
    odd = apply("not_equal", apply("and", b.low, one.low), zero.low)
    inverse = select_wide(equal_wide(a, one), one, zero)
    inverse = select_wide(equal_wide(a, minus_one), select_wide(odd, minus_one, one), inverse)
    return select_wide(is_negative(b), inverse, result)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda _, a, b: add_wide(a, b),
    "subtract": lambda _, a, b: subtract_wide(a, b),
    "multiply": lambda _, a, b: multiply_wide(a, b),
    "square": lambda _, a: multiply_wide(a, a),
    "divide": _divide,
    "remainder": _remainder,
    "power": _power,
    "negate": lambda _, a: negate_wide(a),
    "abs": _abs,
    "sign": _sign,
    "maximum": _maximum,
    "minimum": _minimum,
    "clamp": _clamp,
    "shift_left": _shift_left,
    "shift_right_logical": _shift_right_logical,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "popcount": _popcount,
    "count_leading_zeros": _leading_zeros,
    **{name: _apply_per_word(name) for name in ("and", "or", "xor", "not")},
}
for _suffix in ("", "_total_order"):
    _FUNCTIONS |= {
        f"equal{_suffix}": _equal,
        f"not_equal{_suffix}": _negate_predicate(_equal),
        f"less{_suffix}": _less_than,
        f"greater{_suffix}": _swap_operands(_less_than),
        f"less_equal{_suffix}": _negate_predicate(_swap_operands(_less_than)),
        f"greater_equal{_suffix}": _negate_predicate(_less_than),
    }


def _convert(node: Convert, parts: Parts) -> Parts:
    source, to = node.x.dtype, node.to
    if len(parts) == 1:
        return _from_float(parts[0], to) if source.is_float else _sign_extend(parts[0])
    return _convert_wide(Wide(*parts), to, signed=source.kind is Kind.SIGNED)


def _convert_wide(a: Wide, to: DType, *, signed: bool) -> Parts:
    if _part_of(to) is not None:
        return a
    if to is PRED:
        return (apply("not", equal_wide(a, wide_like(0, a.low))),)
    if to.is_integer:
        return (convert(a.low, to),)
    return (convert(_to_float(a, signed=signed), to),)


def _sign_extend(x: Node) -> Wide:
    """An integer of up to 32 bits, or a pred, with its sign in the high word."""
    if x.dtype.kind is Kind.SIGNED:
        word = convert(x, S32)
        sign = apply("shift_right_arithmetic", word, splat_like(31, word))
        return Wide(bitcast(word, U32), bitcast(sign, U32))
    low = convert(x, U32)
    return Wide(low, splat_like(0, low))


def _from_float(x: Node, to: DType) -> Wide:
    """Truncate and saturate; NaN is 0. Scaling by 2^32 is exact, so the words are."""
    x = convert(x, F32)
    signed = to.kind is Kind.SIGNED
    size = apply("floor", apply("abs", x))
    scale = splat_like(2.0**32, x)
    upper = apply("floor", apply("multiply", size, splat_like(2.0**-32, x)))
    lower = apply("subtract", size, apply("multiply", upper, scale))
    found = Wide(convert(lower, U32), convert(upper, U32))
    limit = 2.0**63 if signed else 2.0**64
    most = wide_like(2**63 - 1 if signed else 2**64 - 1, found.low)
    least = wide_like(-(2**63) if signed else 0, found.low)
    negative = apply("less", x, splat_like(0, x))
    inside = apply("less", size, splat_like(limit, x))
    below = select_wide(inside, negate_wide(found), least) if signed else least
    result = select_wide(negative, below, select_wide(inside, found, most))
    return select_wide(apply("not_equal", x, x), wide_like(0, found.low), result)


def _to_float(a: Wide, *, signed: bool) -> Node:
    """Round to nearest even once: the top 32 bits, the rest folded into the lowest of them."""
    size = _abs(True, a) if signed else a
    zeros = leading_zeros_wide(size)
    top = shift_left_wide(size, zeros)
    rest = convert(apply("not_equal", top.low, splat_like(0, top.low)), U32)
    fraction = convert(apply("or", top.high, rest), F32)
    exponent = apply("subtract", splat_like(_EXPONENT_BIAS + 32, zeros), zeros)
    scale = bitcast(apply("shift_left", exponent, splat_like(23, zeros)), F32)
    value = apply("multiply", fraction, scale)
    return select(is_negative(a), apply("negate", value), value) if signed else value


def _bitcast(node: Bitcast, parts: Parts) -> Parts:
    if len(parts) == 2:
        if node.to.bits == 64:
            return parts
        words = stack(parts, -1)
        narrow = bitcast(words, node.to) if node.to.bits == 32 else Bitcast(words, node.to)
        return (reshape(narrow, node.shape),)
    (x,) = parts
    width = node.x.dtype.bits
    if width < 32:
        x = Bitcast(reshape(x, (*node.shape, 2, 32 // width)), U32)
    words = bitcast(x, U32)
    return take(words, -1, 0), take(words, -1, 1)


def _contract(node: Dot | Convolution, left: Parts, right: Parts) -> Parts:
    """Integer operands are extended to words; beside a float, words become floats too."""
    if any(operand.dtype.is_float for operand in node.operands):
        pairs = zip(node.operands, (left, right), strict=True)
        return (node.with_operands(_as_float(x, node.result_dtype, parts) for x, parts in pairs),)
    a, b = (Wide(*parts) if len(parts) == 2 else _sign_extend(parts[0]) for parts in (left, right))
    return _convert_wide(contract_wide(node, a, b), node.result_dtype, signed=True)


def _as_float(x: Node, to: DType, parts: Parts) -> Node:
    signed = x.dtype.kind is Kind.SIGNED
    return parts[0] if len(parts) == 1 else _convert_wide(Wide(*parts), to, signed=signed)[0]


def _reduce(node: Reduce | ReduceWindow, x: Parts, start: Parts) -> Parts | None:
    return reduce_wide(node, Wide(*x), Wide(*start))


def _iota(node: Iota) -> Parts:
    low = Iota(TensorType(U32, node.shape), node.dimension)
    return low, splat_like(0, low)


def _index(index: Node, parts: Parts) -> Node:
    """The index saturated to s32: no tensor has an extent beyond 32 bits."""
    if len(parts) == 1:
        return parts[0]
    a = Wide(*parts)
    low = bitcast(a.low, S32)
    sign = apply("shift_right_arithmetic", low, splat_like(31, low))
    most = splat_like(2**31 - 1, low)
    if index.dtype.kind is Kind.UNSIGNED:
        fits = equal_wide(a, Wide(bitcast(apply("and", low, most), U32), splat_like(0, a.high)))
        return select(fits, low, most)
    fits = apply("equal", bitcast(sign, U32), a.high)
    return select(fits, low, select(is_negative(a), splat_like(-(2**31), low), most))


def _split(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    bits = array.astype(np.uint64)
    low = (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return np.asarray(low), np.asarray((bits >> np.uint64(32)).astype(np.uint32))


def _refuse(node: Node) -> NoIntegerDatapath:
    return NoIntegerDatapath(opcode=operation_name(node), bits=64, loc=node.loc)


_FAMILY = Family(
    part_of=_part_of,
    split=_split,
    map=_map,
    reduce=_reduce,
    convert=_convert,
    bitcast=_bitcast,
    contract=_contract,
    iota=_iota,
    index=_index,
    refuse=_refuse,
)
