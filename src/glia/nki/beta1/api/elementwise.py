"""Element-wise functions of nl; each also names an operator for nki.isa."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from glia.base.dtype import F32, U8, U16, U32
from glia.isa.alu import ALU_OPS
from glia.isa.instructions.vector import Reciprocal, TensorCopy, TensorCopyPredicated, TensorScalar
from glia.nki.api import elementwise as core
from glia.nki.beta1.api.issue import (
    assign,
    broadcast_operand,
    broadcast_view,
    check_partitions,
    copy_tile,
    defer,
    ensure_in_sbuf,
    fill,
    operand,
    temporary_tile,
)
from glia.nki.beta1.errors import UnsupportedHere
from glia.nki.beta1.run.frame import Frame, require_frame
from glia.nki.beta1.tensors.dtypes import promote, scalar_dtype, to_dtype_name
from glia.nki.beta1.tensors.index import broadcast_shape
from glia.nki.beta1.tensors.tensor import FUNCTIONS, Tensor
from glia.nki.issue.instruction import issue
from glia.nki.names.dtypes import DTYPES
from glia.nki.names.operators import names_operator
from glia.nki.session.session import caller
from glia.nki.tensors.nki_tensor import NkiTensor

TRUTH = "bool"
_UNSIGNED = {1: U8, 2: U16, 4: U32}


def _signature_text(name: str, text: str) -> str:
    return f"{text} `mask` leaves elements out; as an operator, {name}."


def _result_dtype(dtype: Any, *operands: Any) -> str:
    if dtype is not None:
        return to_dtype_name(dtype)
    names = [x.dtype_name if isinstance(x, Tensor) else scalar_dtype(x) for x in operands]
    return promote(*names)


def _quotient_dtype(name: str) -> str:
    """Integers divide to float32."""
    return name if DTYPES[name].is_float else "float32"


# --- two operands --------------------------------------------------------------------------------


def binary(name: str, text: str, default_dtype: str | None = None) -> Callable[..., Tensor]:
    """A function of two operands, tiles or numbers, that broadcasts as NumPy."""

    def function(
        x: Any, y: Any, *, dtype: Any = None, mask: Any = None, spreads_partitions: bool = True,
    ) -> Tensor:  # fmt: skip
        result = default_dtype if dtype is None and default_dtype else _result_dtype(dtype, x, y)
        if name == "divide" and dtype is None:
            result = _quotient_dtype(result)
        return _binary(name, x, y, result, mask, spreads_partitions)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _signature_text(name, text)
    FUNCTIONS[name] = function
    return names_operator(name)(function)


def _binary(name: str, x: Any, y: Any, dtype: str, mask: Any, spreads: bool) -> Tensor:
    tensors = [each for each in (x, y) if isinstance(each, Tensor)]
    if not tensors:
        raise UnsupportedHere(
            what=f"nl.{name} without a tensor",
            why="one operand is a tile; compute with numbers in Python",
            loc=caller(),
        )
    frame = require_frame(f"nl.{name}")
    if len(tensors) == 1:
        is_reversed = tensors[0] is y
        number = np.asarray(x if is_reversed else y).item()
        data = operand(name, "x", tensors[0])

        def with_number(dst: NkiTensor, cut: Any) -> None:
            scalar_step(frame, dst, cut(data), name, number, is_reversed)

        return defer(f"nl.{name}", data.shape, dtype, with_number, mask=mask, splits=True)
    a, b = operand(name, "x", x), operand(name, "y", y)
    if not spreads:
        check_partitions(name, data1=a, data2=b)
    shape = broadcast_operands(a.shape, b.shape)

    def with_tile(dst: NkiTensor, cut: Any) -> None:
        _issue_binary(frame, dst, cut(a), cut(b), name, dst.shape)

    return defer(f"nl.{name}", shape, dtype, with_tile, mask=mask, splits=True)


def broadcast_operands(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two tiles broadcast to; a column fits a tile of more free dimensions too."""
    if a[0] == b[0] and len(a) != len(b):
        longer, shorter = (a, b) if len(a) > len(b) else (b, a)
        if all(count == 1 for count in shorter[1:]):
            return longer
    return broadcast_shape(a, b)


def _issue_binary(
    frame: Frame, dst: NkiTensor, a: NkiTensor, b: NkiTensor, name: str, shape: tuple[int, ...]
) -> None:
    """Issue dst = a op b: as tensor_scalar where one operand is a float32 column, else as tiles."""
    if _is_column(b, shape) and not _is_column(a, shape) and _takes_column(name, a, b):
        scalar_step(frame, dst, broadcast_view(a, shape, frame), name, b, False)
    elif _is_column(a, shape) and not _is_column(b, shape) and _takes_column(name, b, a):
        scalar_step(frame, dst, broadcast_view(b, shape, frame), name, a, True)
    else:
        first, second = (
            broadcast_operand(frame, one, shape, other) for one, other in ((a, b), (b, a))
        )
        core.binary_step(dst, first, second, name)


def _is_column(tensor: NkiTensor, shape: tuple[int, ...]) -> bool:
    return tensor.shape[0] == shape[0] and tensor.size == tensor.shape[0]


def _takes_column(name: str, data: NkiTensor, column: NkiTensor) -> bool:
    return ALU_OPS[name].family != "bitvec" and data.stored.is_float and column.stored is F32


def scalar_step(
    frame: Frame, dst: NkiTensor, data: NkiTensor, name: str, value: Any, is_reversed: bool
) -> None:
    """dst = data op value, or value op data; the value is a number or one per partition."""
    is_slow = ALU_OPS[name].engines == ("gpsimd",)
    if isinstance(value, NkiTensor):
        value = value.reshape((value.shape[0], 1)) if value.ndim != 2 else value
        value = ensure_in_sbuf(frame, value) if is_slow else value
    elif isinstance(value, bool):
        value = int(value)
    fields = {
        "dst": dst, "data": ensure_in_sbuf(frame, data) if is_slow else data, "op0": name,
        "operand0": value, "reverse0": is_reversed,
    }  # fmt: skip
    issue(frame.session, "tensor_scalar", TensorScalar, fields)


def accumulate(tensor: Tensor, value: Any) -> Tensor:
    """tensor += value, in place: a deferred product is accumulated by the Tensor Engine.

    The free dimensions of a product are those of the tensor that it is added to.
    """
    offer = value.storage.deferred if isinstance(value, Tensor) else None
    adds = offer.accumulate if offer is not None else None
    if adds is not None and _fits_product(tensor.shape, value.shape) and _accepts_products(tensor):
        value.storage.take_deferred()
        adds(tensor)
        return tensor
    if hasattr(value, "add_to"):
        value.add_to(tensor)
        return tensor
    dtype = tensor.dtype_name
    with tensor.frame.combining():
        assign(tensor, FUNCTIONS["add"](tensor, value, dtype=dtype, spreads_partitions=False))
    return tensor


def _fits_product(shape: tuple[int, ...], product: tuple[int, ...]) -> bool:
    return shape[0] == product[0] and math.prod(shape) == math.prod(product)


def _accepts_products(tensor: Tensor) -> bool:
    """Whether a product can accumulate into the tile: it holds only zeros and sums in PSUM."""
    if tensor.region.value != "psum" or tensor.storage.forwarded_to is not None:
        return False
    found = tensor.storage.physical_tile(tensor.block)
    if found.holds_sums or found.last_block != tensor.block:
        return True
    view = tensor.view_of(found.tensor)
    return tensor.frame.session.accumulates(view.pattern, caller()) is True


# --- one operand ---------------------------------------------------------------------------------


def unary(
    name: str, text: str, compute: Callable[[Any, NkiTensor, NkiTensor], Any],
    default_dtype: str | None = None,
) -> Callable[..., Tensor]:  # fmt: skip
    """A function of one tile."""

    def function(x: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
        frame = require_frame(f"nl.{name}")
        result = default_dtype if dtype is None and default_dtype else _result_dtype(dtype, x)
        data = operand(name, "x", x)
        return defer(
            f"nl.{name}", data.shape, result,
            lambda dst, cut: compute(frame, dst, cut(data)), mask=mask, splits=True,
        )  # fmt: skip

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _signature_text(name, text)
    FUNCTIONS[name] = function
    return names_operator(name)(function)


def _activation_function(name: str) -> Callable[..., Tensor]:
    return unary(
        name, f"{name} of x, from a table of the Scalar Engine.",
        lambda frame, dst, x: core.activate(dst, x, name),
    )  # fmt: skip


def _scalar_function(
    name: str, text: str, op: str, value: float | None, dtype: str | None = None
) -> Any:
    def compute(frame: Frame, dst: NkiTensor, x: NkiTensor) -> None:
        core.scalar_step(dst, x, op, value)

    return unary(name, text, compute, dtype)


def _composed_function(name: str, text: str) -> Callable[..., Tensor]:
    """A function of several instructions, issued by the current nl function of the same name."""
    function = getattr(core, name)

    def compute(frame: Frame, dst: NkiTensor, x: NkiTensor) -> None:
        result = function(x, dtype="float32" if DTYPES[dst.dtype].is_float else dst.dtype)
        issue(frame.session, "tensor_copy", TensorCopy, {"dst": dst, "src": result})

    return unary(name, text, compute)


def _reciprocal(frame: Frame, dst: NkiTensor, x: NkiTensor) -> None:
    issue(frame.session, "reciprocal", Reciprocal, {"dst": dst, "data": x})


def _copy(frame: Frame, dst: NkiTensor, x: NkiTensor) -> None:
    issue(frame.session, "tensor_copy", TensorCopy, {"dst": dst, "src": x})


def where(condition: Tensor, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """x where the condition is not 0, y elsewhere; both are tiles or numbers."""
    frame = require_frame("nl.where")
    result = _result_dtype(dtype, x, y)
    chooser = operand("where", "condition", condition)
    sides = {
        name: operand("where", name, each) if isinstance(each, Tensor) else np.asarray(each).item()
        for name, each in (("x", x), ("y", y))
    }
    shapes = [side.shape for side in sides.values() if isinstance(side, NkiTensor)]
    shape = broadcast_shape(chooser.shape, *shapes)

    def write(dst: NkiTensor, cut: Any) -> None:
        chosen = ensure_in_sbuf(
            frame, as_predicate(frame, broadcast_view(cut(chooser), dst.shape, frame))
        )
        read = [each for each in (chosen, *sides.values()) if isinstance(each, NkiTensor)]
        if any(each.tile is dst.tile for each in read):
            _select_into(frame, dst, sides["y"], cut, chosen, is_reversed=True)
        elif isinstance(sides["y"], NkiTensor):
            copy_tile(frame, dst, broadcast_view(cut(sides["y"]), dst.shape, frame))
        else:
            fill(dst, sides["y"])
        _select_into(frame, dst, sides["x"], cut, chosen, is_reversed=False)

    return defer("nl.where", shape, result, write, mask=mask)


def as_predicate(frame: Frame, tensor: NkiTensor) -> NkiTensor:
    """A predicate as unsigned integers: floats are compared with 0, integers reinterpreted."""
    if tensor.stored.is_float:
        truth = temporary_tile(frame, tensor.shape, "uint8")
        scalar_step(frame, truth, tensor, "not_equal", 0.0, False)
        return truth
    return tensor._derive(tensor.dims, stored=_UNSIGNED[tensor.stored.bytes])


def _select_into(
    frame: Frame, dst: NkiTensor, side: Any, cut: Any, chosen: NkiTensor, is_reversed: bool
) -> None:
    """Copy one side of nl.where to the elements that the predicate selects."""
    value = broadcast_view(cut(side), dst.shape, frame) if isinstance(side, NkiTensor) else side
    fields = {"dst": dst, "src": value, "predicate": chosen, "reverse": is_reversed}
    issue(frame.session, "tensor_copy_predicated", TensorCopyPredicated, fields)


add = binary("add", "x + y.")
subtract = binary("subtract", "x - y.")
multiply = binary("multiply", "x * y.")
divide = binary("divide", "x / y.")
power = binary("power", "x to the power y.")
mod = binary("mod", "The remainder of x / y with the sign of y.")
fmod = binary("fmod", "The remainder of x / y with the sign of x.")
maximum = binary("maximum", "The greater of x and y.")
minimum = binary("minimum", "The lesser of x and y.")
equal = binary("equal", "Whether x == y.", TRUTH)
not_equal = binary("not_equal", "Whether x != y.", TRUTH)
less = binary("less", "Whether x < y.", TRUTH)
less_equal = binary("less_equal", "Whether x <= y.", TRUTH)
greater = binary("greater", "Whether x > y.", TRUTH)
greater_equal = binary("greater_equal", "Whether x >= y.", TRUTH)
logical_and = binary("logical_and", "Whether neither x nor y is 0.", TRUTH)
logical_or = binary("logical_or", "Whether x or y is not 0.", TRUTH)
logical_xor = binary("logical_xor", "Whether one of x and y is 0.", TRUTH)
bitwise_and = binary("bitwise_and", "The bits that x and y both have.")
bitwise_or = binary("bitwise_or", "The bits that x or y has.")
bitwise_xor = binary("bitwise_xor", "The bits that one of x and y has.")
left_shift = binary("left_shift", "x with its bits y places to the left.")
right_shift = binary("right_shift", "x with its bits y places to the right, zeros from the left.")

exp = _activation_function("exp")
log = _activation_function("log")
sqrt = _activation_function("sqrt")
rsqrt = _activation_function("rsqrt")
tanh = _activation_function("tanh")
sigmoid = _activation_function("sigmoid")
relu = _activation_function("relu")
gelu = _activation_function("gelu")
gelu_apprx_sigmoid = _activation_function("gelu_apprx_sigmoid")
gelu_apprx_tanh = _activation_function("gelu_apprx_tanh")
gelu_dx = _activation_function("gelu_dx")
silu = _activation_function("silu")
silu_dx = _activation_function("silu_dx")
softplus = _activation_function("softplus")
mish = _activation_function("mish")
erf = _activation_function("erf")
erf_dx = _activation_function("erf_dx")
arctan = _activation_function("arctan")
sign = _activation_function("sign")
square = _activation_function("square")
negative = _scalar_function("negative", "-x.", "multiply", -1.0)
invert = _scalar_function("invert", "x with every bit inverted.", "invert", None)
abs = _scalar_function("abs", "The magnitude of x.", "abs", None)
logical_not = _scalar_function("logical_not", "Whether x is 0.", "logical_not", None, TRUTH)
sin = _composed_function("sin", "The sine of x, multiples of 2 pi removed first.")
cos = _composed_function("cos", "The cosine of x, multiples of 2 pi removed first.")
tan = _composed_function("tan", "The tangent of x.")
floor = _composed_function("floor", "The greatest whole number not above x.")
ceil = _composed_function("ceil", "The least whole number not below x.")
trunc = _composed_function("trunc", "x without its fraction.")
reciprocal = unary("reciprocal", "1 / x.", _reciprocal)
_copied = unary("copy", "x in another tile.", _copy)


@names_operator("copy")
def copy(src: Any, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """The contents of a tile in another one, converted to a dtype."""
    return _copied(src, dtype=dtype, mask=mask)


FUNCTIONS["accumulate"] = accumulate
FUNCTIONS["assign"] = assign
