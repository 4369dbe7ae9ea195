"""Arithmetic on 64-bit unsigned integers held as two tensors of 32 bits."""

from __future__ import annotations

from typing import NamedTuple

from glia.base.dtype import U32
from glia.graph.ir import Node
from glia.graph.passes.build import apply, convert, splat_like


class Wide(NamedTuple):
    """A 64-bit integer: low and high word, both u32 of one shape."""

    low: Node
    high: Node


def add_wide(a: Wide, b: Wide) -> Wide:
    """a + b modulo 2^64."""
    low = apply("add", a.low, b.low)
    high = apply("add", apply("add", a.high, b.high), carry(low, b.low))
    return Wide(low, high)


def carry(total: Node, part: Node) -> Node:
    """1 where `total`, a sum of u32 with `part`, wrapped; else 0."""
    return convert(apply("less", total, part), U32)


def full_product(a: Node, b: Node) -> Wide:
    """a * b of two u32 tensors, exact, from products of 16-bit halves."""
    half, mask = splat_like(16, a), splat_like(0xFFFF, a)
    a_low, a_high = apply("and", a, mask), apply("shift_right_logical", a, half)
    b_low, b_high = apply("and", b, mask), apply("shift_right_logical", b, half)
    low = apply("multiply", a_low, b_low)
    middle = apply("multiply", a_high, b_low)
    middle = apply("add", middle, apply("shift_right_logical", low, half))
    other = apply("multiply", a_low, b_high)
    other = apply("add", other, apply("and", middle, mask))
    high = apply("add", apply("multiply", a_high, b_high),
                 apply("shift_right_logical", middle, half))  # fmt: skip
    high = apply("add", high, apply("shift_right_logical", other, half))
    return Wide(apply("multiply", a, b), high)
