"""The element-wise functions of nl, each of which also names its operator in nki.isa calls.

They allocate their result in SBUF and issue the instructions that compute it. A result has the
requested dtype, else the promoted dtype of its tensors (`dtypes.promote_dtypes`): numbers are weak.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.isa.alu import ALU_OPS
from glia.isa.instructions.vector import (
    TensorCopyPredicated,
)
from glia.isa.operand import Memory
from glia.nki.issue.functions import issuer, with_metadata
from glia.nki.issue.instruction import issue, refuse
from glia.nki.names.dtypes import DTYPES, promote_dtypes
from glia.nki.names.enums import MemoryRegion
from glia.nki.names.errors import NotInNki
from glia.nki.names.operators import OperatorToken, names_operator
from glia.nki.session.session import caller, current
from glia.nki.tensors.allocation import validate_dtype
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray

SBUF = MemoryRegion.sbuf
Operand = NkiTensor | float
UnaryFunction = Callable[..., NkiTensor]
EXACT_INTEGERS = 2.0**23  # float32 magnitudes from here on are integers
_OPERANDS = (NkiTensor, int, float, np.generic)
_FLOATS = (float, np.floating)

copy_into = issuer("tensor_copy")
reciprocal_into = issuer("reciprocal")
_activation = issuer("activation")
_tensor_tensor = issuer("tensor_tensor")
_tensor_scalar = issuer("tensor_scalar")


def tile_like(x: NkiTensor, dtype: str | None = None) -> NkiTensor:
    """A new tile in SBUF of the shape of x."""
    return ndarray(x.shape, dtype or x.dtype, SBUF, "result")


def ensure_in_sbuf(x: NkiTensor) -> NkiTensor:
    """x, or an SBUF copy if it is in PSUM, which GpSimd and half of all operands cannot access."""
    if x.tile.memory is not Memory.PSUM:
        return x
    copied = tile_like(x)
    copy_into(dst=copied, src=x)
    return copied


def convert(x: NkiTensor, dtype: str) -> NkiTensor:
    """x in SBUF as another dtype."""
    tile = tile_like(x, dtype)
    copy_into(dst=tile, src=x)
    return tile


def scalar_step(
    dst: NkiTensor, data: NkiTensor, op0: str, operand0: Operand | None,
    op1: str = "", operand1: Operand | None = None, reverse0: bool = False,
) -> NkiTensor:  # fmt: skip
    """dst = (data op0 operand0) op1 operand1."""
    is_slow = any(ALU_OPS[op].engines == ("gpsimd",) for op in (op0, op1) if op)
    _tensor_scalar(
        dst=dst, data=ensure_in_sbuf(data) if is_slow else data, op0=op0, operand0=operand0,
        op1=op1, operand1=operand1, reverse0=reverse0,
    )  # fmt: skip
    return dst


def activate(dst: NkiTensor, data: NkiTensor, function: str, **fields: Any) -> NkiTensor:
    """dst = function(data * scale + bias)."""
    _activation(dst=dst, data=data, function=function, **fields)
    return dst


def binary_step(dst: NkiTensor, x: NkiTensor, y: NkiTensor, op: str) -> NkiTensor:
    """dst = x op y with broadcast free dimensions; PSUM operands are copied where required."""
    x, y = broadcast_together(x, y)
    is_slow = ALU_OPS[op].engines == ("gpsimd",)
    if is_slow or (x.tile.memory is Memory.PSUM and y.tile.memory is Memory.PSUM):
        x = ensure_in_sbuf(x)
    if is_slow:
        y = ensure_in_sbuf(y)
    _tensor_tensor(dst=dst, data1=x, data2=y, op=op)
    return dst


def broadcast_together(x: NkiTensor, y: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Both as views of one shape: free dimensions of extent 1 repeat, partitions do not."""
    if x.shape == y.shape:
        return x, y
    rank = max(x.ndim, y.ndim)
    while x.ndim < rank:
        x = x.expand_dim(1)
    while y.ndim < rank:
        y = y.expand_dim(1)
    for dim in range(1, rank):
        if x.shape[dim] == 1:
            x = x.broadcast(dim, y.shape[dim]) if y.shape[dim] > 1 else x
        elif y.shape[dim] == 1:
            y = y.broadcast(dim, x.shape[dim])
    if x.shape != y.shape:
        refuse(
            "tensor_tensor",
            f"operands of shapes {x.shape} and {y.shape} cannot be broadcast together",
        )
    return x, y


def result_dtype(dtype: str | None, *operands: Operand) -> str:
    """The requested dtype, else the promoted dtype of the tensors; numbers are weak."""
    tensors = [x for x in operands if isinstance(x, NkiTensor)]
    if not tensors:
        raise NotInNki(feature="a function of nl without a tensor", loc=caller())
    if dtype is not None:
        return validate_dtype(dtype, tensors[0].shape, SBUF)
    name = promote_dtypes(*(x.dtype for x in tensors))
    has_float = any(isinstance(x, _FLOATS) for x in operands)
    return "float32" if has_float and not DTYPES[name].is_float else name


# --- unary and binary functions -----------------------------------------------------------------


def _unary_signature() -> inspect.Signature:
    return _signature("x", of="NkiTensor")


def _signature(*names: str, of: str = "NkiTensor | float") -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, annotation=of) for n in names]
    parameters.append(inspect.Parameter("dtype", kind, default=None, annotation="str | None"))
    return inspect.Signature(parameters, return_annotation="NkiTensor")


def _binary(op: str, text: str) -> Callable[..., NkiTensor]:
    def function(x: Operand, y: Operand, dtype: str | None = None) -> NkiTensor:
        _require_tensor(op, x, y)
        name = result_dtype(dtype, x, y)
        if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
            left, right = broadcast_together(x, y)
            return binary_step(tile_like(left, name), left, right, op)
        tensor, number = (x, y) if isinstance(x, NkiTensor) else (y, x)
        assert isinstance(tensor, NkiTensor)
        is_reversed = tensor is not x
        return scalar_step(tile_like(tensor, name), tensor, op, number, reverse0=is_reversed)

    return names_operator(op)(
        with_metadata(function, op, "nki.language", _signature("x", "y"), text)
    )


def _unary(name: str, text: str, compute: Callable[[NkiTensor, NkiTensor], Any]) -> UnaryFunction:
    def function(x: NkiTensor, dtype: str | None = None) -> NkiTensor:
        _require_tensor(name, x)
        dst = tile_like(x, result_dtype(dtype, x))
        compute(dst, x)
        return dst

    return names_operator(name)(
        with_metadata(function, name, "nki.language", _unary_signature(), text)
    )


def _comparison(op: str, text: str) -> Callable[..., NkiTensor]:
    """A binary function whose result is a condition that Python may ask for."""
    compute = _binary(op, text)

    def function(x: Operand, y: Operand, dtype: str | None = None) -> NkiTensor:
        result = compute(x, y, dtype)
        current(op).truths.add(result.tile.name)
        return result

    return names_operator(op)(
        with_metadata(function, op, "nki.language", _signature("x", "y"), text)
    )


def _table(name: str, text: str) -> Callable[..., NkiTensor]:
    """A function of the Scalar Engine's tables."""
    return _unary(name, text, lambda dst, x: activate(dst, x, name))


def _require_tensor(name: str, *operands: Any) -> None:
    for operand in operands:
        if not isinstance(operand, _OPERANDS):
            feature = f"nl.{name} of a {type(operand).__name__}"
            raise NotInNki(feature=feature, loc=caller())


# --- operators of two operands -----------------------------------------------------------------

add = _binary("add", "x + y, element by element.")
subtract = _binary("subtract", "x - y, element by element.")
multiply = _binary("multiply", "x * y, element by element.")
divide = _binary("divide", "x / y, element by element, on GpSimd.")
maximum = _binary("maximum", "The greater of x and y, element by element.")
minimum = _binary("minimum", "The lesser of x and y, element by element.")
abs_max = _binary("abs_max", "x or y, of greater magnitude; y if equal. From generation 4.")
abs_min = _binary("abs_min", "x or y, of lesser magnitude; y if equal. From generation 4.")
power = _binary("power", "x to the power y, element by element, on GpSimd.")
mod = _binary("mod", "The remainder of x / y with the sign of y, on GpSimd.")
fmod = _binary("fmod", "The remainder of x / y with the sign of x, on GpSimd.")
equal = _comparison("equal", "1 where x == y, else 0.")
not_equal = _comparison("not_equal", "1 where x != y, else 0.")
less = _comparison("less", "1 where x < y, else 0.")
less_equal = _comparison("less_equal", "1 where x <= y, else 0.")
greater = _comparison("greater", "1 where x > y, else 0.")
greater_equal = _comparison("greater_equal", "1 where x >= y, else 0.")
logical_and = _comparison("logical_and", "1 where neither x nor y is 0, else 0.")
logical_or = _comparison("logical_or", "1 where x or y is not 0, else 0.")
logical_xor = _comparison("logical_xor", "1 where one of x and y is 0, else 0.")
bitwise_and = _binary("bitwise_and", "The bits that x and y both have.")
bitwise_or = _binary("bitwise_or", "The bits that x or y has.")
bitwise_xor = _binary("bitwise_xor", "The bits that one of x and y has.")
left_shift = _binary("left_shift", "x with its bits y places to the left.")
right_shift = _binary("right_shift", "x with its bits y places to the right, zeros from the left.")

# --- functions of one operand ------------------------------------------------------------------

exp = _table("exp", "e to the power x.")
log = _table("log", "The natural logarithm of x, from 2**-64 to 2**64.")
sqrt = _table("sqrt", "The square root of x, from 2**-116 to 2**118.")
rsqrt = _table("rsqrt", "1 / sqrt(x), from 2**-87 to 2**97.")
tanh = _table("tanh", "The hyperbolic tangent of x.")
sigmoid = _table("sigmoid", "1 / (1 + exp(-x)).")
relu = _table("relu", "x where it is positive, else 0.")
gelu = _table("gelu", "x times the normal distribution of x.")
gelu_apprx_sigmoid = _table("gelu_apprx_sigmoid", "x * sigmoid(1.702 x).")
gelu_apprx_tanh = _table("gelu_apprx_tanh", "gelu through tanh.")
gelu_dx = _table("gelu_dx", "The derivative of gelu.")
gelu_apprx_sigmoid_dx = _table("gelu_apprx_sigmoid_dx", "The derivative of gelu_apprx_sigmoid.")
silu = _table("silu", "x * sigmoid(x).")
silu_dx = _table("silu_dx", "The derivative of silu.")
softplus = _table("softplus", "log(1 + exp(x)).")
mish = _table("mish", "x * tanh(softplus(x)).")
erf = _table("erf", "The error function of x.")
erf_dx = _table("erf_dx", "The derivative of erf.")
arctan = _table("arctan", "The arc tangent of x.")
sign = _table("sign", "-1, 0 or 1 as x is negative, 0 or positive.")
square = _table("square", "x * x.")
abs = _unary("abs", "The magnitude of x.", lambda dst, x: scalar_step(dst, x, "abs", None))
negative = _unary("negative", "-x.", lambda dst, x: scalar_step(dst, x, "multiply", -1.0))
invert = _unary(
    "invert", "x with all bits inverted.", lambda dst, x: scalar_step(dst, x, "invert", None)
)
logical_not = _unary(
    "logical_not",
    "1 where x is 0, else 0.",
    lambda dst, x: scalar_step(dst, x, "logical_not", None),
)


def _copy(dst: NkiTensor, x: NkiTensor) -> None:
    copy_into(dst=dst, src=x)


def _reciprocal(dst: NkiTensor, x: NkiTensor) -> None:
    reciprocal_into(dst=dst, data=x)


def _reduce_angle(x: NkiTensor, shift: float) -> NkiTensor:
    """x + shift reduced modulo 2 pi to -pi .. pi."""
    shifted = tile_like(x, "float32")
    scalar_step(shifted, x, "add", shift + np.pi, "mod", 2 * np.pi)
    return scalar_step(shifted, shifted, "subtract", float(np.float32(np.pi)))


def _sin(dst: NkiTensor, x: NkiTensor) -> NkiTensor:
    return activate(dst, _reduce_angle(x, 0.0), "sin")


def _cos(dst: NkiTensor, x: NkiTensor) -> NkiTensor:
    return activate(dst, _reduce_angle(x, np.pi / 2), "sin")


def _tan(dst: NkiTensor, x: NkiTensor) -> NkiTensor:
    above, below = tile_like(x, "float32"), tile_like(x, "float32")
    return binary_step(dst, _sin(above, x), _cos(below, x), "divide")


def _rounding(compute: Callable[[NkiTensor, NkiTensor], Any]) -> Callable[..., Any]:
    """A rounding function computed in float32, where it is exact; the identity for integers."""

    def function(dst: NkiTensor, x: NkiTensor) -> None:
        if not DTYPES[x.dtype].is_float:
            _copy(dst, x)
            return
        compute(dst, x if x.dtype == "float32" else convert(x, "float32"))

    return function


def _floor(dst: NkiTensor, x: NkiTensor) -> NkiTensor:
    """The floor of x: rounded, minus 1 where rounding went up.

    Magnitudes from 2**23 on are integers already; NaN stays NaN.
    """
    whole, rounded, above = (tile_like(x, n) for n in ("int32", "float32", "float32"))
    _copy(whole, x)
    _copy(rounded, whole)
    binary_step(above, rounded, ensure_in_sbuf(x), "greater")
    binary_step(rounded, rounded, above, "subtract")
    is_small = tile_like(x, "uint8")
    scalar_step(is_small, x, "abs", None, "less", EXACT_INTEGERS)
    fields = {"dst": rounded, "src": x, "predicate": is_small, "reverse": True}
    issue(current("nl.floor"), "tensor_copy_predicated", TensorCopyPredicated, fields)
    _copy(dst, rounded)
    return dst


def _ceil(dst: NkiTensor, x: NkiTensor) -> NkiTensor:
    minus = scalar_step(tile_like(x, "float32"), x, "multiply", -1.0)
    return scalar_step(dst, _floor(minus, minus), "multiply", -1.0)


def _trunc(dst: NkiTensor, x: NkiTensor) -> NkiTensor:
    size = scalar_step(tile_like(x, "float32"), x, "abs", None)
    signs = activate(tile_like(x, "float32"), x, "sign")
    return binary_step(dst, _floor(size, size), signs, "multiply")


copy = _unary("copy", "x in another tile.", _copy)
reciprocal = _unary("reciprocal", "1 / x.", _reciprocal)
sin = _unary("sin", "The sine of x, reduced modulo 2 pi first.", _sin)
cos = _unary("cos", "The cosine of x, reduced modulo 2 pi first.", _cos)
tan = _unary("tan", "The tangent of x.", _tan)
floor = _unary("floor", "The greatest integer not above x.", _rounding(_floor))
ceil = _unary("ceil", "The least integer not below x.", _rounding(_ceil))
trunc = _unary("trunc", "x without its fraction.", _rounding(_trunc))

average = OperatorToken("average")
bypass = OperatorToken("bypass")
prelu = OperatorToken("prelu")
