"""Equations on contractions: what only moves operands becomes dimension numbers."""

from __future__ import annotations

import dataclasses

from glia.base.dtype import BF16, F32, PRED, S16, S32, U32, DType
from glia.graph.ir import Node
from glia.graph.ops import Convolution, Dot, Reshape, Reverse, Transpose
from glia.graph.rules.constructors import bitcast, convert, reshape
from glia.graph.rules.driver import rule, rules_of
from glia.graph.rules.facts import is_increasing, values_at


@rule
def dot_of_two_dtypes(op: Dot) -> Node | None:
    """dot(a, b) = dot of a and b in a dtype that holds both, where only floats may differ"""
    return _contraction_of_one_dtype(op)


@rule
def convolution_of_two_dtypes(op: Convolution) -> Node | None:
    """convolution of x and kernel = one in a dtype that holds both, where only floats may differ"""
    return _contraction_of_one_dtype(op)


@rule
def dot_of_words(op: Dot) -> Node | None:
    """dot of u32 = dot of s32: sums wrap to the same bits"""
    return _signed_contraction(op)


@rule
def convolution_of_words(op: Convolution) -> Node | None:
    """convolution of u32 = convolution of s32: sums wrap to the same bits"""
    return _signed_contraction(op)


def _contraction_of_one_dtype(op: Dot | Convolution) -> Node | None:
    common = _common_dtype(*(x.dtype for x in op.operands))
    if common is None:
        return None
    return op.with_operands([x if x.dtype.is_float else convert(x, common) for x in op.operands])


def _common_dtype(a: DType, b: DType) -> DType | None:
    """What integers and preds of a contraction become; None when they may stay as they are."""
    if a is b or (a.is_float and b.is_float) or max(a.bits, b.bits) > 32:
        return None
    if a.is_float or b.is_float:
        number, other = (a, b) if a.is_float else (b, a)
        return BF16 if other.bits <= 8 and number is not F32 else F32
    if PRED in (a, b):
        return a if b is PRED else b
    return S16 if max(a.bits, b.bits) <= 8 else S32


def _signed_contraction(op: Dot | Convolution) -> Node | None:
    kinds = [x.dtype for x in op.operands]
    is_integral = all(kind.is_integer and kind.bits <= 32 for kind in (*kinds, op.result_dtype))
    if not is_integral or U32 not in (*kinds, op.result_dtype):
        return None
    operands = [bitcast(x, S32) if x.dtype is U32 else x for x in op.operands]
    result = S32 if op.result_dtype is U32 else op.result_dtype
    signed = dataclasses.replace(op.with_operands(operands), result_dtype=result)  # type: ignore
    return bitcast(signed, op.result_dtype) if op.result_dtype is U32 else signed


@rule
def dot_of_transposed_left(op: Dot) -> Node | None:
    """dot(transpose(a), b) = dot(a, b) with the dimensions renamed"""
    if not isinstance(op.a, Transpose):
        return None
    p = op.a.permutation
    batch, contract = values_at(p, op.a_batch), values_at(p, op.a_contract)
    if not _keeps_free_order(p, op.a_batch + op.a_contract):
        return None
    return dataclasses.replace(op, a=op.a.x, a_batch=batch, a_contract=contract)


@rule
def dot_of_transposed_right(op: Dot) -> Node | None:
    """dot(a, transpose(b)) = dot(a, b) with the dimensions renamed"""
    if not isinstance(op.b, Transpose):
        return None
    p = op.b.permutation
    batch, contract = values_at(p, op.b_batch), values_at(p, op.b_contract)
    if not _keeps_free_order(p, op.b_batch + op.b_contract):
        return None
    return dataclasses.replace(op, b=op.b.x, b_batch=batch, b_contract=contract)


def _keeps_free_order(permutation: tuple[int, ...], used: tuple[int, ...]) -> bool:
    """Whether the dimensions not in `used` stay in one order without the transpose."""
    return is_increasing([p for d, p in enumerate(permutation) if d not in used])


@rule
def dot_of_unit_reshape_left(op: Dot) -> Node | None:
    """dot(reshape(a), b) = reshape(dot(a, b)) when the reshape adds free dimensions of extent 1"""
    found = _drop_unit_reshape(op.a, op.a_batch, op.a_contract)
    if found is None:
        return None
    a, batch, contract = found
    inner = dataclasses.replace(op, a=a, a_batch=batch, a_contract=contract)
    return reshape(inner, op.shape)


@rule
def dot_of_unit_reshape_right(op: Dot) -> Node | None:
    """dot(a, reshape(b)) = reshape(dot(a, b)) when the reshape adds free dimensions of extent 1"""
    found = _drop_unit_reshape(op.b, op.b_batch, op.b_contract)
    if found is None:
        return None
    b, batch, contract = found
    inner = dataclasses.replace(op, b=b, b_batch=batch, b_contract=contract)
    return reshape(inner, op.shape)


def _drop_unit_reshape(
    x: Node, batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[Node, tuple[int, ...], tuple[int, ...]] | None:
    """x before a reshape that only added free extents of 1, with the dimensions renamed."""
    if not isinstance(x, Reshape):
        return None
    used = (*batch, *contract)
    kept = [d for d, extent in enumerate(x.shape) if extent != 1 or d in used]
    if tuple(x.shape[d] for d in kept) != x.x.shape or len(kept) == len(x.shape):
        return None
    return x.x, tuple(map(kept.index, batch)), tuple(map(kept.index, contract))


@rule
def convolution_of_reversed_kernel(op: Convolution) -> Node | None:
    """convolution(x, reverse(k)) = convolution(x, k) with the window reversed"""
    if not isinstance(op.kernel, Reverse) or min(op.kernel.dimensions, default=0) < 2:
        return None
    flipped = {d - 2 for d in op.kernel.dimensions}
    reversal = tuple(flag != (d in flipped) for d, flag in enumerate(op.kernel_reversal))
    return dataclasses.replace(op, kernel=op.kernel.x, kernel_reversal=reversal)


RULES = rules_of(globals())
