"""HLO operations that work element by element."""

from __future__ import annotations

from glia.base.dtype import S8, S16, S32, S64, U8, U16, U32, U64
from glia.frontend.hlo_import.module_context import Importer, Site
from glia.frontend.hlo_import.node_builder import Value
from glia.graph import ops
from glia.graph.ir import Node

_UNARY = {
    "abs": "abs", "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh",
    "atan": "atan", "atanh": "atanh", "cbrt": "cbrt", "ceil": "ceil", "cosh": "cosh",
    "cosine": "cos", "count-leading-zeros": "count_leading_zeros", "erf": "erf",
    "exponential": "exp", "exponential-minus-one": "expm1", "floor": "floor", "imag": "imag",
    "is-finite": "is_finite", "log": "log", "log-plus-one": "log1p", "logistic": "logistic",
    "negate": "negate", "not": "not", "popcnt": "popcount", "real": "real",
    "round-nearest-afz": "round_nearest_away", "round-nearest-even": "round_nearest_even",
    "rsqrt": "rsqrt", "sign": "sign", "sine": "sin", "sinh": "sinh", "sqrt": "sqrt",
    "tan": "tan", "tanh": "tanh",
}  # fmt: skip

_BINARY = {
    "add": "add", "and": "and", "atan2": "atan2", "complex": "complex", "divide": "divide",
    "maximum": "maximum", "minimum": "minimum", "multiply": "multiply", "or": "or",
    "power": "power", "remainder": "remainder", "shift-left": "shift_left",
    "shift-right-arithmetic": "shift_right_arithmetic",
    "shift-right-logical": "shift_right_logical", "subtract": "subtract", "xor": "xor",
}  # fmt: skip

_UNSIGNED = {S8: U8, S16: U16, S32: U32, S64: U64, U8: U8, U16: U16, U32: U32, U64: U64}

_COMPARISONS = {
    "EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal", "GT": "greater",
    "GE": "greater_equal",
}  # fmt: skip

# XLA compares pred as an unsigned byte; the graph's logical functions say the same.
_COMPARISON_TYPES = ("", "FLOAT", "SIGNED", "UNSIGNED", "TOTALORDER")


def _map_importer(function: str, arity: int) -> Importer:
    return lambda site: site.map(function, *site.tensors(arity))


def _multiply_high(site: Site) -> Value:
    """mulhi: the upper half of a product of integers, from products of half words."""
    a, b = site.tensors(2)
    unsigned = _UNSIGNED.get(a.dtype)
    if unsigned is None or a.type != b.type:
        raise site.reject(f"mulhi of {a.type} and {b.type}")
    x, y = (site.make(ops.Bitcast, value, unsigned) for value in (a, b))
    high = _unsigned_high(site, x, y)
    if unsigned is a.dtype:
        return high
    zero = site.splat(0, a)
    for factor, other in ((a, y), (b, x)):  # a negative factor is its word less 2 ** width
        excess = site.map("select", site.map("less", factor, zero), other, site.splat(0, other))
        high = site.map("subtract", high, excess)
    return site.make(ops.Bitcast, high, a.dtype)


def _unsigned_high(site: Site, x: Node, y: Node) -> Node:
    half = x.dtype.bits // 2
    amount, mask = site.splat(half, x), site.splat((1 << half) - 1, x)

    def upper(value: Node) -> Node:
        return site.map("shift_right_logical", value, amount)

    def lower(value: Node) -> Node:
        return site.map("and", value, mask)

    def product(left: Node, right: Node) -> Node:
        return site.map("multiply", left, right)

    x_low, x_high, y_low, y_high = lower(x), upper(x), lower(y), upper(y)
    cross = site.map("add", product(x_high, y_low), upper(product(x_low, y_low)))
    rest = site.map("add", product(x_low, y_high), lower(cross))
    high = site.map("add", product(x_high, y_high), upper(cross))
    return site.map("add", high, upper(rest))


def _compare(site: Site) -> Value:
    a, b = site.tensors(2)
    direction, order = site.proto.comparison_direction, site.proto.comparison_type
    if direction not in _COMPARISONS:
        raise site.malformed(f"comparison direction {direction!r}")
    if order not in _COMPARISON_TYPES:
        raise site.malformed(f"comparison type {order!r}")
    function = _COMPARISONS[direction]
    if order == "TOTALORDER" and a.dtype.is_float:
        function += "_total_order"
    return site.map(function, a, b)


def _select(site: Site) -> Value:
    """The predicate may be a scalar for tensors of any shape."""
    predicate, on_true, on_false = site.tensors(3)
    return site.map("select", site.broadcast_scalar(predicate, on_true), on_true, on_false)


def _clamp(site: Site) -> Value:
    """The bounds may be scalars."""
    low, x, high = site.tensors(3)
    return site.map("clamp", site.broadcast_scalar(low, x), x, site.broadcast_scalar(high, x))


def _convert(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.convert(x, site.tensor_type.dtype)


def _bitcast_convert(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.make(ops.Bitcast, x, site.tensor_type.dtype)


def _reduce_precision(site: Site) -> Value:
    (x,) = site.tensors(1)
    return site.make(ops.ReducePrecision, x, site.proto.exponent_bits, site.proto.mantissa_bits)


def _map(site: Site) -> Value:
    """HLO map: a computation on scalars, applied to every element."""
    args = site.tensors()
    if not args:
        raise site.malformed("map without operands")
    body = site.region()
    if len(body.parameters) != len(args) or len(body.results) != 1:
        raise site.malformed(f"{body.name} takes {len(body.parameters)} scalars")
    shape = args[0].shape
    image = dict[Node, Node](zip(body.parameters, args, strict=True))
    for node in body.nodes[len(body.parameters) :]:
        if isinstance(node, (ops.Map, ops.Convert, ops.ReducePrecision)):
            image[node] = node.with_operands(image[operand] for operand in node.operands)
        elif isinstance(node, ops.Constant):
            image[node] = site.broadcast(node, shape, ())
        else:
            raise site.reject(f"{node.opcode} inside map is not an elementwise operation")
    return image[body.results[0]]


ELEMENTWISE: dict[str, Importer] = {
    **{opcode: _map_importer(function, 1) for opcode, function in _UNARY.items()},
    **{opcode: _map_importer(function, 2) for opcode, function in _BINARY.items()},
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
    "bitcast-convert": _bitcast_convert,
    "reduce-precision": _reduce_precision,
    "map": _map,
    "mulhi": _multiply_high,
}
