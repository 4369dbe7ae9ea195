"""Functions of nl that reduce along free dimensions, and functions composed of them."""

from __future__ import annotations

import math

from glia.isa.instructions.random import Dropout
from glia.isa.instructions.vector import TensorCopyPredicated
from glia.nki.api.creation import fill
from glia.nki.api.elementwise import (
    SBUF,
    activate,
    binary_step,
    broadcast_together,
    convert,
    copy_into,
    ensure_in_sbuf,
    reciprocal_into,
    result_dtype,
    scalar_step,
    tile_like,
)
from glia.nki.api.load_store import broadcast_to
from glia.nki.issue.arguments import trailing_axis_count
from glia.nki.issue.functions import issuer
from glia.nki.issue.instruction import issue
from glia.nki.names.errors import NotInNki
from glia.nki.names.operators import names_operator
from glia.nki.session.session import caller, current
from glia.nki.tensors.nki_tensor import NkiTensor, ndarray

_tensor_reduce = issuer("tensor_reduce")

Axis = int | tuple[int, ...] | list[int]


def _reduce(
    x: NkiTensor, axis: Axis, op: str, dtype: str | None = None, keepdims: bool = False
) -> NkiTensor:
    """x reduced over its last dimensions, in float32."""
    count = trailing_axis_count(axis, x.ndim)
    if count is None:
        feature = f"a reduction over axis {axis!r} of {x.ndim} (not the last free ones)"
        raise NotInNki(feature=feature, loc=caller())
    name = result_dtype(dtype, x)
    kept = x.shape[: x.ndim - count]
    ones = (1,) * count if keepdims or len(kept) < 2 else ()
    shape = (*kept, *(ones if keepdims else ones[:1]))
    result = ndarray(shape, name, SBUF, "reduced")
    _tensor_reduce(dst=result, data=x, op=op, axes=count)
    return result


def _reduced_count(x: NkiTensor, axis: Axis) -> int:
    count = trailing_axis_count(axis, x.ndim) or 0
    return math.prod(x.shape[x.ndim - count :])


@names_operator("add")
def sum(x: NkiTensor, axis: Axis, dtype: str | None = None, keepdims: bool = False) -> NkiTensor:
    """The sum over the last dimensions; as an operator, add."""
    return _reduce(x, axis, "add", dtype, keepdims)


@names_operator("maximum")
def max(x: NkiTensor, axis: Axis, dtype: str | None = None, keepdims: bool = False) -> NkiTensor:
    """The maximum over the last dimensions; as an operator, maximum."""
    return _reduce(x, axis, "maximum", dtype, keepdims)


@names_operator("minimum")
def min(x: NkiTensor, axis: Axis, dtype: str | None = None, keepdims: bool = False) -> NkiTensor:
    """The minimum over the last dimensions; as an operator, minimum."""
    return _reduce(x, axis, "minimum", dtype, keepdims)


@names_operator("multiply")
def prod(x: NkiTensor, axis: Axis, dtype: str | None = None, keepdims: bool = False) -> NkiTensor:
    """The product over the last dimensions; as an operator, multiply."""
    return _reduce(x, axis, "multiply", dtype, keepdims)


def mean(x: NkiTensor, axis: Axis, dtype: str | None = None, keepdims: bool = False) -> NkiTensor:
    """The mean over the last dimensions, computed in float32."""
    total = _reduce(x, axis, "add", "float32", keepdims)
    return scalar_step(
        tile_like(total, result_dtype(dtype, x)), total, "multiply", 1.0 / _reduced_count(x, axis)
    )


def var(x: NkiTensor, axis: Axis, dtype: str | None = None, keepdims: bool = False) -> NkiTensor:
    """The variance over the last dimensions, which stay with extent 1."""
    middle = mean(x, axis, "float32", keepdims=True)
    _, spread = broadcast_together(x, middle)
    distance = binary_step(tile_like(x, "float32"), ensure_in_sbuf(x), spread, "subtract")
    squares = activate(tile_like(x, "float32"), distance, "square")
    return mean(squares, axis, result_dtype(dtype, x), keepdims=True)


@names_operator("logical_and")
def all(x: NkiTensor, axis: Axis, dtype: str | None = None) -> NkiTensor:
    """1 where no element of the last dimensions is 0, else 0."""
    return _reduce(x, axis, "logical_and", dtype)


def softmax(x: NkiTensor, axis: Axis = -1, dtype: str | None = None) -> NkiTensor:
    """exp(x - maximum) over its sum along the last dimensions, computed in float32."""
    most = _reduce(x, axis, "maximum", "float32", keepdims=True)
    _, spread = broadcast_together(x, most)
    exponents = binary_step(tile_like(x, "float32"), ensure_in_sbuf(x), spread, "subtract")
    powers = activate(tile_like(x, "float32"), exponents, "exp")
    total = _reduce(powers, axis, "add", "float32", keepdims=True)
    inverse = tile_like(total)
    reciprocal_into(dst=inverse, data=total)
    return binary_step(tile_like(x, result_dtype(dtype, x)), powers, inverse, "multiply")


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axis,
    n: int,
    epsilon: float = 1e-06,
    dtype: str | None = None,
    compute_dtype: str | None = None,
) -> NkiTensor:
    """w * x / sqrt(sum(x * x) / n + epsilon), the sum along `axis`."""
    inner = compute_dtype or "float32"
    squares = activate(tile_like(x, inner), x, "square")
    total = _reduce(squares, axis, "add", "float32", keepdims=True)
    shifted = scalar_step(tile_like(total), total, "multiply", 1.0 / n, "add", epsilon)
    root = activate(tile_like(total), shifted, "rsqrt")
    normal = binary_step(tile_like(x, inner), ensure_in_sbuf(x), root, "multiply")
    weight = w if w.shape[0] == x.shape[0] else broadcast_to(w, (x.shape[0], *w.shape[1:]))
    return binary_step(tile_like(x, result_dtype(dtype, x)), normal, weight, "multiply")


def where(
    condition: NkiTensor, x: NkiTensor | float, y: NkiTensor | float, dtype: str | None = None
) -> NkiTensor:
    """x where the condition is not 0, y elsewhere."""
    session = current("nl.where")
    tensors = [each for each in (x, y) if isinstance(each, NkiTensor)]
    for each in tensors:
        condition, _ = broadcast_together(condition, each)
    result = tile_like(condition, result_dtype(dtype, x, y))
    if isinstance(y, NkiTensor):
        source = broadcast_together(condition, y)[1]
        copy_into(dst=result, src=source)
    else:
        fill(result, y)
    chosen = ensure_in_sbuf(condition)
    if not condition.dtype.startswith("uint"):
        chosen = scalar_step(tile_like(condition, "uint8"), condition, "not_equal", 0.0)
    value = broadcast_together(condition, x)[1] if isinstance(x, NkiTensor) else x
    if isinstance(value, NkiTensor) and value.dtype != result.dtype:
        value = convert(value, result.dtype)
    fields = {"dst": result, "src": value, "predicate": chosen}
    issue(session, "tensor_copy_predicated", TensorCopyPredicated, fields)
    return result


def dropout(x: NkiTensor, rate: NkiTensor | float, dtype: str | None = None) -> NkiTensor:
    """x with elements replaced by 0, each with the probability `rate`."""
    result = tile_like(x, result_dtype(dtype, x))
    fields = {"dst": result, "data": x, "probability": rate}
    issue(current("nl.dropout"), "dropout", Dropout, fields)
    return result
