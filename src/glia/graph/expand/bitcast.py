"""Bitcasts that change the width, by shifts and masks; values of 2, 4 and 64 bits included."""

from __future__ import annotations

from glia.base.dtype import U2, U4, U8, U16, U32, U64, DType
from glia.graph.ir import Graph, Node
from glia.graph.ops import Bitcast
from glia.graph.rules.constructors import apply, bitcast, convert, splat_like, stack, take
from glia.graph.rules.driver import apply_rules, rule, rules_of
from glia.options import CompileOptions

_UNSIGNED: dict[int, DType] = {2: U2, 4: U4, 8: U8, 16: U16, 32: U32, 64: U64}


def expand_bitcast(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without Bitcasts between widths up to 32 bits; same-width ones stay."""
    return apply_rules(graph, RULES)


@rule
def split_words(op: Bitcast) -> Node | None:
    """bitcast(u32 to u8) = the bytes x, x >> 8, x >> 16, x >> 24 along a new last dimension"""
    wide, narrow = op.x.dtype.bits, op.to.bits
    if not narrow < wide <= 32:
        return None
    words = bitcast(op.x, _UNSIGNED[wide])
    parts = []
    for position in range(0, wide, narrow):
        moved = apply("shift_right_logical", words, splat_like(position, words))
        parts.append(bitcast(convert(moved, _UNSIGNED[narrow]), op.to))
    return stack(parts, -1)


@rule
def join_words(op: Bitcast) -> Node | None:
    """bitcast(u8 to u32) = x[0] | x[1] << 8 | x[2] << 16 | x[3] << 24 of the last dimension"""
    narrow, wide = op.x.dtype.bits, op.to.bits
    if not narrow < wide <= 32:
        return None
    words = convert(bitcast(op.x, _UNSIGNED[narrow]), _UNSIGNED[wide])
    total: Node | None = None
    for index in range(op.x.shape[-1]):
        part = take(words, -1, index)
        moved = apply("shift_left", part, splat_like(index * narrow, part)) if index else part
        total = moved if total is None else apply("or", total, moved)
    assert total is not None
    return bitcast(total, op.to)


RULES = rules_of(globals())
