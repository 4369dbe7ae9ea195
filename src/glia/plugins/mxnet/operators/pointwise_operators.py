"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

from glia.base.dtype import PRED
from glia.plugins.hlo_module import HloValue
from glia.plugins.mxnet.operators.operator_table import NodeCall, lowers

_FUNCTIONS = {
    "sigmoid": "logistic", "tanh": "tanh", "exp": "exponential", "log": "log", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "cbrt": "cbrt", "sin": "sine", "cos": "cosine", "tan": "tan",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "sinh": "sinh", "cosh": "cosh",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "erf": "erf",
    "expm1": "exponential-minus-one", "log1p": "log-plus-one",
}  # fmt: skip

# These leave integers as they are
_ROUNDINGS = {
    "floor": "floor", "ceil": "ceil", "rint": "round-nearest-even", "round": "round-nearest-afz",
}  # fmt: skip

_SIGNED = {"abs": "abs", "sign": "sign", "negative": "negate"}

_ARITHMETIC = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "power": "power",
    "maximum": "maximum", "minimum": "minimum",
}  # fmt: skip

_COMPARISONS = {
    "equal": "EQ", "not_equal": "NE", "greater": "GT", "greater_equal": "GE", "lesser": "LT",
    "lesser_equal": "LE",
}  # fmt: skip

_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}

# The names that operands of one shape have: MXNet grew several sets of them
_PLAIN_NAMES = {
    "add": ("elemwise_add", "_plus", "_Plus", "_add", "_grad_add"),
    "sub": ("elemwise_sub", "_minus", "_Minus", "_sub"),
    "mul": ("elemwise_mul", "_mul", "_Mul"), "div": ("elemwise_div", "_div", "_Div"),
    "power": ("_power", "_Power"), "maximum": ("_maximum", "_Maximum"),
    "minimum": ("_minimum", "_Minimum"),
}  # fmt: skip

# A tensor and a number: the name, the opcode, and whether the number comes first
_WITH_NUMBER = (
    ("_plus_scalar", "add", False), ("_PlusScalar", "add", False),
    ("_minus_scalar", "subtract", False), ("_MinusScalar", "subtract", False),
    ("_rminus_scalar", "subtract", True), ("_RMinusScalar", "subtract", True),
    ("_mul_scalar", "multiply", False), ("_MulScalar", "multiply", False),
    ("_div_scalar", "divide", False), ("_DivScalar", "divide", False),
    ("_rdiv_scalar", "divide", True), ("_RDivScalar", "divide", True),
    ("_rpower_scalar", "power", True), ("_maximum_scalar", "maximum", False),
    ("_minimum_scalar", "minimum", False),
)  # fmt: skip

Pair = tuple[HloValue, HloValue]


def _register() -> None:
    for name, opcode in _FUNCTIONS.items():
        lowers(name)(_function(opcode))
    for names, is_exact in ((_ROUNDINGS, True), (_SIGNED, False)):
        for name, opcode in names.items():
            lowers(name)(_sign_or_rounding(opcode, is_exact))
    for name, opcode in _ARITHMETIC.items():
        lowers(f"broadcast_{name}", *_PLAIN_NAMES[name])(_arithmetic(opcode))
    for name, direction in _COMPARISONS.items():
        lowers(f"broadcast_{name}", f"_{name}")(_comparison(direction))
        lowers(f"_{name}_scalar")(_comparison_with_number(direction))
    for name, opcode in _LOGICAL.items():
        lowers(f"broadcast_{name}", f"_{name}")(_logical(opcode))
    for name, opcode, is_first in _WITH_NUMBER:
        lowers(name)(_with_number(opcode, is_first))


def _function(opcode: str) -> Callable[..., HloValue]:
    def lower(at: NodeCall, x: HloValue) -> HloValue:
        at.require(x.dtype.is_float, f"takes floats, not {x.dtype}")
        return at.convert(at.unary(opcode, at.wide(x)), x.dtype)

    return lower


def _sign_or_rounding(opcode: str, is_exact: bool) -> Callable[..., HloValue]:
    """An operation on any number, of which integers stay what they are where it only rounds."""

    def lower(at: NodeCall, x: HloValue) -> HloValue:
        return x if is_exact and not x.dtype.is_float else at.unary(opcode, x)

    return lower


def pair(at: NodeCall, x: HloValue, y: HloValue) -> Pair:
    """Operands in one dtype and repeated to one shape."""
    at.require(x.dtype is y.dtype, f"takes operands of one dtype, not {x.dtype} and {y.dtype}")
    shape = []
    rank = max(x.rank, y.rank)
    for a, b in zip(
        (1,) * (rank - x.rank) + x.shape, (1,) * (rank - y.rank) + y.shape, strict=True
    ):
        at.require(a == b or 1 in (a, b), f"takes {list(x.shape)} and {list(y.shape)}")
        shape.append(b if a == 1 else a)
    return at.expand(x, shape), at.expand(y, shape)


def _arithmetic(opcode: str) -> Callable[..., HloValue]:
    def lower(at: NodeCall, x: HloValue, y: HloValue) -> HloValue:
        return at.binary(opcode, *pair(at, x, y))

    return lower


def _comparison(direction: str) -> Callable[..., HloValue]:
    def lower(at: NodeCall, x: HloValue, y: HloValue) -> HloValue:
        return at.convert(at.compare(direction, *pair(at, x, y)), x.dtype)

    return lower


def _logical(opcode: str) -> Callable[..., HloValue]:
    def lower(at: NodeCall, x: HloValue, y: HloValue) -> HloValue:
        x_set, y_set = (at.compare_to("NE", each, 0) for each in pair(at, x, y))
        return at.convert(at.binary(opcode, x_set, y_set), x.dtype)

    return lower


def _scalar(at: NodeCall, x: HloValue) -> HloValue:
    """The number of a node with one, as a tensor like x."""
    value = at.attributes.number("scalar", 0.0)
    at.attributes.flag("is_int")  # says how the number was written
    at.require(
        x.dtype.is_float or value.is_integer(), f"has the number {value} for integers of {x.dtype}"
    )
    return at.number(value, x.type)


def _with_number(opcode: str, is_first: bool) -> Callable[..., HloValue]:
    def lower(at: NodeCall, x: HloValue) -> HloValue:
        number = _scalar(at, x)
        return at.binary(opcode, *((number, x) if is_first else (x, number)))

    return lower


def _comparison_with_number(direction: str) -> Callable[..., HloValue]:
    def lower(at: NodeCall, x: HloValue) -> HloValue:
        return at.convert(at.compare(direction, x, _scalar(at, x)), x.dtype)

    return lower


@lowers("_power_scalar")
def _power(at: NodeCall, x: HloValue) -> HloValue:
    exponent = at.attributes.number("scalar", 1.0)
    at.attributes.flag("is_int")
    if exponent == 2:
        return at.multiply(x, x)
    if exponent == 0.5 and x.dtype.is_float:
        return at.unary("sqrt", x)
    return at.binary("power", x, at.number(exponent, x.type))


@lowers("broadcast_mod", "_mod", "_Mod")
def _modulo(at: NodeCall, x: HloValue, y: HloValue) -> HloValue:
    """The remainder with the sign of the divisor; 0 for a divisor 0."""
    x, y = pair(at, x, y)
    rest = at.binary("remainder", x, y)
    differs = at.compare("NE", at.compare_to("LT", rest, 0), at.compare_to("LT", y, 0))
    is_off = at.binary("and", at.compare_to("NE", rest, 0), differs)
    found = at.select(is_off, at.add(rest, y), rest)
    return at.select(at.compare_to("EQ", y, 0), at.filled_like(0, y), found)


@lowers("_mod_scalar")
def _modulo_number(at: NodeCall, x: HloValue) -> HloValue:
    return _modulo(at, x, _scalar(at, x))


@lowers("add_n", "ElementWiseSum")
def _add_all(at: NodeCall, *xs: HloValue) -> HloValue:
    at.require(bool(xs) and len({x.type for x in xs}) == 1, "takes tensors of one shape and dtype")
    total = xs[0]
    for x in xs[1:]:
        total = at.add(total, x)
    return total


@lowers(
    "identity", "_copy", "BlockGrad", "stop_gradient", "make_loss", "_identity_with_attr_like_rhs"
)
def _identity(at: NodeCall, x: HloValue, *_: HloValue) -> HloValue:
    return x


@lowers("Dropout")
def _dropout(at: NodeCall, x: HloValue) -> HloValue:
    """Nothing is dropped where a model is not trained."""
    at.attributes.fixed("mode", "training", "drops elements of a compiled model")
    at.attributes.number("p", 0.5)
    at.attributes.extents("axes", ())
    return x


@lowers("LinearRegressionOutput", "MAERegressionOutput", "MakeLoss")
def _output(at: NodeCall, x: HloValue, label: HloValue | None = None) -> HloValue:
    return x


@lowers("LogisticRegressionOutput")
def _logistic_output(at: NodeCall, x: HloValue, label: HloValue | None = None) -> HloValue:
    return at.unary("logistic", x)


@lowers("square")
def _square(at: NodeCall, x: HloValue) -> HloValue:
    return at.multiply(x, x)


@lowers("reciprocal")
def _reciprocal(at: NodeCall, x: HloValue) -> HloValue:
    return at.divide(at.filled_like(1, x), x)


@lowers("rcbrt")
def _reciprocal_cube_root(at: NodeCall, x: HloValue) -> HloValue:
    return _reciprocal(at, at.unary("cbrt", x))


@lowers("log2")
def _log2(at: NodeCall, x: HloValue) -> HloValue:
    return at.scaled(at.unary("log", x), 1 / math.log(2))


@lowers("log10")
def _log10(at: NodeCall, x: HloValue) -> HloValue:
    return at.scaled(at.unary("log", x), 1 / math.log(10))


@lowers("degrees")
def _degrees(at: NodeCall, x: HloValue) -> HloValue:
    return at.scaled(x, 180 / math.pi)


@lowers("radians")
def _radians(at: NodeCall, x: HloValue) -> HloValue:
    return at.scaled(x, math.pi / 180)


@lowers("trunc", "fix")
def _truncate(at: NodeCall, x: HloValue) -> HloValue:
    if not x.dtype.is_float:
        return x
    return at.select(at.compare_to("LT", x, 0), at.unary("ceil", x), at.unary("floor", x))


@lowers("logical_not")
def _logical_not(at: NodeCall, x: HloValue) -> HloValue:
    return at.convert(at.compare_to("EQ", x, 0), x.dtype)


@lowers("broadcast_hypot", "_hypot")
def _hypotenuse(at: NodeCall, x: HloValue, y: HloValue) -> HloValue:
    x, y = pair(at, x, y)
    return at.unary("sqrt", at.add(at.multiply(x, x), at.multiply(y, y)))


@lowers("clip")
def _clip(at: NodeCall, x: HloValue) -> HloValue:
    low, high = at.attributes.number("a_min"), at.attributes.number("a_max")
    raised = at.binary("maximum", x, at.number(low, x.type))
    return at.binary("minimum", raised, at.number(high, x.type))


@lowers("where")
def _chosen_elements(at: NodeCall, condition: HloValue, x: HloValue, y: HloValue) -> HloValue:
    """A condition of one dimension chooses rows."""
    at.require(x.type == y.type, f"takes tensors of one type, not {x.type} and {y.type}")
    is_set = condition if condition.dtype is PRED else at.compare_to("NE", condition, 0)
    if is_set.shape != x.shape:
        at.require(is_set.shape == x.shape[:1], f"has a condition of {list(is_set.shape)}")
        is_set = at.broadcast(is_set, x.shape, [0])
    return at.select(is_set, x, y)


@lowers("Cast", "cast", "amp_cast")
def _cast(at: NodeCall, x: HloValue) -> HloValue:
    dtype = at.attributes.dtype("dtype", x.dtype)
    return at.compare_to("NE", x, 0) if dtype is PRED else at.convert(x, dtype)


@lowers("zeros_like")
def _zeros_like(at: NodeCall, x: HloValue) -> HloValue:
    return at.filled_like(0, x)


@lowers("ones_like")
def _ones_like(at: NodeCall, x: HloValue) -> HloValue:
    return at.filled_like(1, x)


# --- activations ---------------------------------------------------------------------------------


@lowers("relu")
def relu(at: NodeCall, x: HloValue) -> HloValue:
    """The greater of x and 0."""
    return at.binary("maximum", x, at.filled_like(0, x))


def _softplus(at: NodeCall, x: HloValue) -> HloValue:
    """log(1 + exp(x)), without an overflow."""
    below = at.unary("exponential", at.unary("negate", at.unary("abs", x)))
    return at.add(relu(at, x), at.unary("log-plus-one", below))


@lowers("softsign")
def _softsign(at: NodeCall, x: HloValue) -> HloValue:
    return at.divide(x, at.plus(at.unary("abs", x), 1))


@lowers("hard_sigmoid")
def _hard_sigmoid(at: NodeCall, x: HloValue) -> HloValue:
    slope, offset = at.attributes.number("alpha", 0.2), at.attributes.number("beta", 0.5)
    line = at.plus(at.scaled(x, slope), offset)
    return at.binary("minimum", relu(at, line), at.filled_like(1, x))


@lowers("Activation")
def _activation(at: NodeCall, x: HloValue) -> HloValue:
    known = ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    chosen = at.attributes.choice("act_type", known)
    wide = at.wide(x)
    if chosen == "relu":
        return relu(at, x)
    if chosen == "softrelu":
        found = _softplus(at, wide)
    elif chosen == "softsign":
        found = _softsign(at, wide)
    else:
        found = at.unary(_FUNCTIONS[chosen], wide)
    return at.convert(found, x.dtype)


@lowers("LeakyReLU")
def _leaky_relu(at: NodeCall, x: HloValue, slopes: HloValue | None = None) -> HloValue:
    known = ("leaky", "prelu", "elu", "selu", "gelu", "rrelu")
    chosen = at.attributes.choice("act_type", known, "leaky")
    slope = at.attributes.number("slope", 0.25)
    lower, upper = (
        at.attributes.number("lower_bound", 0.125), at.attributes.number("upper_bound", 0.334),
    )  # fmt: skip
    wide = at.wide(x)
    if chosen == "prelu":
        at.require(slopes is not None, "lacks its slopes")
        assert slopes is not None
        below = at.multiply(wide, _slopes(at, at.wide(slopes), wide))
    elif chosen == "gelu":
        return at.convert(gelu(at, wide), x.dtype)
    elif chosen in ("elu", "selu"):
        return at.convert(_exponential_unit(at, wide, slope, chosen), x.dtype)
    else:
        below = at.scaled(wide, (lower + upper) / 2 if chosen == "rrelu" else slope)
    return at.convert(at.select(at.compare_to("GT", wide, 0), wide, below), x.dtype)


def _slopes(at: NodeCall, slopes: HloValue, like: HloValue) -> HloValue:
    """One slope for all, or one for each channel."""
    if slopes.type.elements == 1 and slopes.rank <= 1:
        return at.broadcast(at.reshape(slopes, ()), like.shape, [])
    return at.vector_along(slopes, like, min(1, like.rank - 1))


def _exponential_unit(at: NodeCall, x: HloValue, slope: float, kind: str) -> HloValue:
    scale, alpha = (1.0507009873554805, 1.6732632423543772) if kind == "selu" else (1.0, slope)
    below = at.scaled(at.unary("exponential-minus-one", x), alpha)
    return at.scaled(at.select(at.compare_to("GT", x, 0), x, below), scale)


def gelu(at: NodeCall, x: HloValue) -> HloValue:
    """x * (1 + erf(x / sqrt(2))) / 2."""
    gate = at.plus(at.unary("erf", at.scaled(x, math.sqrt(0.5))), 1)
    return at.multiply(at.scaled(x, 0.5), gate)


@lowers("smooth_l1")
def _smooth_l1(at: NodeCall, x: HloValue) -> HloValue:
    square = at.attributes.number("scalar", 1.0) ** 2
    size = at.unary("abs", x)
    inside = at.scaled(at.multiply(x, x), 0.5 * square)
    is_small = at.compare_to("LT", size, 1 / square)
    return at.select(is_small, inside, at.plus(size, -0.5 / square))


@lowers("_contrib_div_sqrt_dim")
def _over_root_of_last(at: NodeCall, x: HloValue) -> HloValue:
    return at.scaled(x, 1 / math.sqrt(max(1, x.shape[-1])))


_register()
