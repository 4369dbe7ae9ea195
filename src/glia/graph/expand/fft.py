"""Fourier transforms as contractions with constant matrices, split by the factors of the length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glia.base.dtype import F32
from glia.graph.ir import Graph, Node
from glia.graph.ops import Dot, Fft
from glia.graph.rules.constructors import (
    apply,
    broadcast_missing,
    concatenate,
    constant,
    move_back,
    move_last,
    reshape,
    reverse,
    slice_along,
    splat_like,
    swap,
)
from glia.graph.rules.driver import apply_rules, rule, rules_of
from glia.options import CompileOptions

LARGEST_MATRIX = 128
"""Lengths up to this are one contraction; longer ones are split where they have a factor."""

Parts = tuple[Node, Node]
"""Real and imaginary part."""


def expand_fft(graph: Graph, options: CompileOptions) -> Graph:
    """The graph without Fft; spectra are computed in float32."""
    return apply_rules(graph, RULES)


@rule
def transform_by_dimension(op: Fft) -> Node | None:
    """fft over several dimensions = fft over each in turn, the halved one first or last"""
    rank, count = len(op.x.shape), len(op.lengths)
    dimensions = range(rank - count, rank)
    if op.kind == "rfft":
        parts: Parts = (op.x, splat_like(0, op.x))
    else:
        parts = apply("real", op.x), apply("imag", op.x)
    order = dimensions if op.kind == "irfft" else reversed(dimensions)
    for d in order:
        length = op.lengths[d - rank + count]
        last = d == rank - 1
        if last and op.kind == "irfft":
            parts = _full_spectrum(parts, length)
        parts = _transform_dimension(parts, d, inverse=op.kind in ("ifft", "irfft"))
        if last and op.kind == "rfft":
            parts = _map_parts(parts, lambda x, n=length: slice_along(x, -1, 0, n // 2 + 1))
    return parts[0] if op.kind == "irfft" else apply("complex", *parts)


def _map_parts(parts: Parts, change: Any) -> Parts:
    return change(parts[0]), change(parts[1])


def _full_spectrum(parts: Parts, length: int) -> Parts:
    """The spectrum of a real signal from its first half: the rest is its mirrored conjugate."""
    real, imaginary = parts
    known = real.shape[-1]
    if length == known:
        return parts
    last = [len(real.shape) - 1]
    mirrored = _map_parts(parts, lambda x: reverse(slice_along(x, -1, 1, length - known + 1), last))
    whole_real = concatenate([real, mirrored[0]], -1)
    return whole_real, concatenate([imaginary, apply("negate", mirrored[1])], -1)


def _transform_dimension(parts: Parts, d: int, *, inverse: bool) -> Parts:
    """The transform of dimension d; the inverse one is scaled by 1 / length."""
    length = parts[0].shape[d]
    if length == 1:  # no product with 0, which would make a NaN of an infinity
        return parts
    found = _transform_last(_map_parts(parts, lambda x: move_last(x, d)), -1 if not inverse else 1)
    if inverse:
        found = _map_parts(found, lambda x: apply("multiply", x, splat_like(1 / length, x)))
    return _map_parts(found, lambda x: move_back(x, d))


def _transform_last(parts: Parts, sign: int) -> Parts:
    """The transform of the last dimension with the exponent's sign, not normalised."""
    length = parts[0].shape[-1]
    first = _split_factor(length)
    if first == length:
        return _contract(parts, sign)
    second = length // first
    outer = parts[0].shape[:-1]
    grid = _map_parts(parts, lambda x: swap(reshape(x, (*outer, first, second)), -1, -2))
    grid = _map_parts(_contract(grid, sign), lambda x: swap(x, -1, -2))
    rotated = _rotate(grid, _angles(first, second, length, sign))
    done = _transform_last(rotated, sign)
    return _map_parts(done, lambda x: reshape(swap(x, -1, -2), (*outer, length)))


def _split_factor(length: int) -> int:
    """The largest factor that one contraction takes; the length itself when it has none."""
    if length <= LARGEST_MATRIX:
        return length
    return next((f for f in range(LARGEST_MATRIX, 1, -1) if length % f == 0), length)


def _angles(rows: int, columns: int, period: int, sign: int) -> np.ndarray[Any, Any]:
    """sign 2 pi j k / period, with the product reduced first so that large lengths stay exact."""
    product = np.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64))
    return sign * 2 * math.pi * (product % period) / period


def _contract(parts: Parts, sign: int) -> Parts:
    """Multiply the last dimension by the matrix of the transform, both parts in one contraction."""
    length = parts[0].shape[-1]
    angles = _angles(length, length, length, sign)
    cosine, sine = np.cos(angles), np.sin(angles)
    matrix = constant(np.block([[cosine, sine], [-sine, cosine]]), F32)
    joined = concatenate(parts, -1)
    last = len(joined.shape) - 1
    product = Dot(joined, matrix, (), (), (last,), (0,), F32)
    return slice_along(product, -1, 0, length), slice_along(product, -1, length, 2 * length)


def _rotate(parts: Parts, angles: np.ndarray[Any, Any]) -> Parts:
    """Multiply by e^(i angle), angles given for the last two dimensions."""
    real, imaginary = parts
    outer = range(len(real.shape) - 2)
    cosine = broadcast_missing(constant(np.cos(angles), F32), real.shape, outer)
    sine = broadcast_missing(constant(np.sin(angles), F32), real.shape, outer)
    rotated = apply("subtract", apply("multiply", real, cosine), apply("multiply", imaginary, sine))
    other = apply("add", apply("multiply", real, sine), apply("multiply", imaginary, cosine))
    return rotated, other


RULES = rules_of(globals())
