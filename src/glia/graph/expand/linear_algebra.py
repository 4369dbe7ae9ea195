"""Triangular solve and Cholesky as loops over rows and columns, in batches."""

from __future__ import annotations

import math

from glia.base.dtype import F32, S32, DType
from glia.graph.ir import Graph, Node
from glia.graph.ops import Cholesky, Dot, TriangularSolve
from glia.graph.rules.constructors import (
    apply,
    broadcast_missing,
    constant,
    convert,
    counted_loop,
    dynamic_slice,
    dynamic_update_slice,
    iota,
    reshape,
    reverse,
    select,
    splat_like,
    swap,
)
from glia.graph.rules.driver import apply_rules, rule, rules_of
from glia.options import CompileOptions


def expand_linear_algebra(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without TriangularSolve and Cholesky; narrow floats are computed in float32."""
    return apply_rules(graph, RULES)


@rule
def solve_by_substitution(op: TriangularSolve) -> Node | None:
    """solve(a, b) = one row after the other, from the rows before it"""
    a, b = _flatten_batch(op.a, op.b.dtype), _flatten_batch(op.b, op.b.dtype)
    lower = op.lower
    if op.transpose != "no":
        a, lower = swap(_conjugate(a) if op.transpose == "adjoint" else a, 1, 2), not lower
    if not op.left_side:
        a, b, lower = swap(a, 1, 2), swap(b, 1, 2), not lower
    if not lower:
        a, b = reverse(a, (1, 2)), reverse(b, (1,))
    x = _forward_substitution(a, b, unit=op.unit_diagonal)
    x = x if lower else reverse(x, (1,))
    x = x if op.left_side else swap(x, 1, 2)
    return convert(reshape(x, op.shape), op.b.dtype)


def _flatten_batch(x: Node, dtype: DType) -> Node:
    """x with its batch dimensions merged into one; floats in at least 32 bits."""
    rows, columns = x.shape[-2:]
    wide = convert(x, F32) if dtype.is_float and dtype.bits < 32 else x
    return reshape(wide, (math.prod(x.shape[:-2]), rows, columns))


def _conjugate(x: Node) -> Node:
    if not x.dtype.is_complex:
        return x
    return apply("complex", apply("real", x), apply("negate", apply("imag", x)))


def _below_diagonal(a: Node) -> Node:
    """a with zeros on and above the diagonal."""
    index = [iota(S32, a.shape, d) for d in (1, 2)]
    return select(apply("greater", *index), a, splat_like(0, a))


def _forward_substitution(a: Node, b: Node, *, unit: bool) -> Node:
    """Solve a x = b for batches [k, n, n] and [k, n, m] of a lower triangle.

    An infinity on the diagonal is a divisor and no factor: the sums leave the diagonal out.
    """
    batch, extent, width = b.shape
    zero = constant(0, S32)

    def step(i: Node, x: Node, below: Node, b: Node, *divisors: Node) -> tuple[Node, ...]:
        row = dynamic_slice(below, (zero, i, zero), (batch, 1, extent))
        right = dynamic_slice(b, (zero, i, zero), (batch, 1, width))
        value = apply("subtract", right, Dot(row, x, (0,), (0,), (2,), (1,), x.dtype))
        for a in divisors:
            pivot = dynamic_slice(a, (zero, i, i), (batch, 1, 1))
            divisor = broadcast_missing(reshape(pivot, (batch,)), value.shape, (1, 2))
            value = apply("divide", value, divisor)
        return dynamic_update_slice(x, value, (zero, i, zero)), below, b, *divisors

    state = (splat_like(0, b), _below_diagonal(a), b, *(() if unit else (a,)))
    return counted_loop("substitute", extent, state, step)[0]


@rule
def factor_by_columns(op: Cholesky) -> Node | None:
    """cholesky(a) = one column after the other, from the columns before it"""
    a = _flatten_batch(op.x, op.x.dtype)
    if not op.lower:
        a = _conjugate(swap(a, 1, 2))
    factor = _factor_columns(a)
    if not op.lower:
        factor = _conjugate(swap(factor, 1, 2))
    return convert(reshape(factor, op.shape), op.x.dtype)


def _factor_columns(a: Node) -> Node:
    """The lower factor of batches [k, n, n]; column j is a's, less the share of earlier columns."""
    batch, extent, _ = a.shape
    zero = constant(0, S32)

    def step(j: Node, factor: Node, a: Node) -> tuple[Node, ...]:
        row = _conjugate(dynamic_slice(factor, (zero, j, zero), (batch, 1, extent)))
        column = dynamic_slice(a, (zero, zero, j), (batch, extent, 1))
        done = Dot(factor, row, (0,), (0,), (2,), (2,), a.dtype)
        rest = apply("subtract", column, done)
        pivot = dynamic_slice(rest, (zero, j, zero), (batch, 1, 1))
        scale = broadcast_missing(reshape(_pivot_root(pivot), (batch,)), rest.shape, (1, 2))
        index = iota(S32, rest.shape, 1)
        below = apply("greater_equal", index, broadcast_missing(j, rest.shape, (0, 1, 2)))
        value = select(below, apply("divide", rest, scale), splat_like(0, rest))
        return dynamic_update_slice(factor, value, (zero, zero, j)), a

    return counted_loop("factor", extent, (splat_like(0, a), a), step)[0]


def _pivot_root(pivot: Node) -> Node:
    """The square root of a pivot, which is real."""
    if not pivot.dtype.is_complex:
        return apply("sqrt", pivot)
    real = apply("sqrt", apply("real", pivot))
    return apply("complex", real, splat_like(0, real))


RULES = rules_of(globals())
