"""Collectives of elements that no exchange has, as those of elements that hold the same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from glia.base.dtype import PRED, S2, S4, S8, S64, U2, U4, U8, U32, U64, DType
from glia.graph.ir import Graph, Node, TensorType, TupleType
from glia.graph.ops import Bitcast, Collective, results_of
from glia.graph.ops.scalar_regions import monoid
from glia.graph.rules.constructors import apply, convert, monoid_region, splat_like
from glia.graph.rules.driver import results_as_node
from glia.graph.rules.regions import tensor_types

_WIDER = {S2: S8, S4: S8, U2: U8, U4: U8}
_OF_TRUTHS = {"and": "minimum", "or": "maximum"}


@dataclass(frozen=True)
class _Carrier:
    """How tensors of a dtype travel: as several of others, with more dimensions at the end."""

    leave: Callable[[Node], tuple[Node, ...]]
    arrive: Callable[..., Node]


def with_exchanged_elements(op: Collective) -> Node | None:
    """The collective of narrow, complex or pred tensors; None where it has none of them."""
    return _carried(op, [_carrier(arg.dtype) for arg in op.args])


def with_exchanged_words(op: Collective) -> Node | None:
    """The collective of 64-bit integers; None where it has none of them."""
    return _carried(op, [_words(arg.dtype) for arg in op.args])


def _carrier(dtype: DType) -> _Carrier | None:
    if dtype is PRED:
        return _Carrier(
            lambda x: (convert(x, U8),), lambda y: apply("not_equal", y, splat_like(0, y))
        )
    if dtype in _WIDER:
        return _Carrier(lambda x: (convert(x, _WIDER[dtype]),), lambda y: convert(y, dtype))
    if dtype.is_complex:
        return _Carrier(
            lambda x: (apply("real", x), apply("imag", x)),
            lambda real, imaginary: apply("complex", real, imaginary),
        )
    return None


def _words(dtype: DType) -> _Carrier | None:
    if dtype not in (S64, U64):
        return None
    return _Carrier(lambda x: (Bitcast(x, U32),), lambda y: Bitcast(y, dtype))


def _carried(op: Collective, carriers: list[_Carrier | None]) -> Node | None:
    """The collective with tensors that have a carrier on it."""
    if not any(carriers):
        return None
    own = _Carrier(lambda x: (x,), lambda y: y)
    found = [each or own for each in carriers]
    travelling = [carrier.leave(arg) for carrier, arg in zip(found, op.args, strict=True)]
    flat = tuple(part for parts in travelling for part in parts)
    kinds = []
    for parts, kind in zip(travelling, tensor_types(op.type), strict=True):
        rank = len(kind.shape)
        kinds += [TensorType(part.dtype, (*kind.shape, *part.shape[rank:])) for part in parts]
    is_tuple = isinstance(op.type, TupleType) or len(kinds) > 1
    result = TupleType(tuple(kinds)) if is_tuple else kinds[0]
    body = op.body and (_comparison(op),)
    arrived = iter(results_of(replace(op, args=flat, result=result, body=body)))
    return results_as_node(
        carrier.arrive(*(next(arrived) for _ in parts))
        for carrier, parts in zip(found, travelling, strict=True)
    )


def _comparison(op: Collective) -> Graph:
    """The reduction of pred, of bytes."""
    return monoid_region(_OF_TRUTHS[monoid(op.body[0]) or ""], U8)
