"""Operators that multiply and add: matrix products, convolutions, Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from glia.base.dtype import C64, F32, S32, DType
from glia.frontend.errors import UnsupportedOperator
from glia.graph.ir import TensorType
from glia.plugins.hlo_module import HloValue
from glia.plugins.hlo_writer import Number, Window, product
from glia.plugins.torch.aten.operator_table import (
    OperatorCall,
    lowers,
    lowers_of_package,
    normalized,
    per_dimension,
)

aten = torch.ops.aten


@lowers(aten.mm.default)
def _mm(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    return at.dot(x, y, (1, 0))


@lowers(aten.bmm.default)
def _bmm(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    return at.dot(x, y, (2, 1), [0])


@lowers(aten.mv.default)
def _mv(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    return at.dot(x, y, (1, 0))


@lowers(aten.dot.default)
def _dot(at: OperatorCall, x: HloValue, y: HloValue) -> HloValue:
    return at.dot(x, y, (0, 0))


@lowers(aten.addmm.default)
def _addmm(
    at: OperatorCall,
    bias: HloValue,
    x: HloValue,
    y: HloValue,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> HloValue:
    return _scaled_sum(at, bias, at.dot(x, y, (1, 0), dtype=_of_sums(x.dtype)), beta, alpha)


@lowers(aten.baddbmm.default)
def _baddbmm(
    at: OperatorCall,
    bias: HloValue,
    x: HloValue,
    y: HloValue,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> HloValue:
    product_ = at.dot(x, y, (2, 1), [0], _of_sums(x.dtype))
    return _scaled_sum(at, bias, product_, beta, alpha)


@lowers(aten._grouped_mm.default)
def _grouped_mm(
    at: OperatorCall,
    x: HloValue,
    y: HloValue,
    ends: HloValue | None = None,
    bias: HloValue | None = None,
    out_dtype: torch.dtype | None = None,
) -> HloValue:
    """Rows of x in consecutive groups, which end at `ends`, times the matrix of their group."""
    if ends is None:
        return at.finished(_bmm(at, x, y))
    if (x.rank, y.rank) != (2, 3) or bias is not None:
        form = f"aten._grouped_mm of {x.type} and {y.type}"
        raise UnsupportedOperator(opcode=form, nearest="", loc=at.computation.loc)
    return at.finished(_grouped(at, x, y, ends))


def _grouped(at: OperatorCall, x: HloValue, y: HloValue, ends: HloValue) -> HloValue:
    """Rows of x in groups, times the matrix of each in y; zero after the last group."""
    starts, ends = _starts_and_ends(at, ends)
    return at.ragged_dot(x, y, at.subtract(ends, starts))


def _starts_and_ends(at: OperatorCall, ends: HloValue) -> tuple[HloValue, HloValue]:
    ends = at.convert(ends, S32)
    return at.pad(ends, at.constant(0, S32), [1], [-1]), ends


@lowers_of_package("transformers.grouped_mm_fallback.default")
def _grouped_by_transformers(
    at: OperatorCall, x: HloValue, y: HloValue, ends: HloValue
) -> HloValue:
    """The same, for dtypes that PyTorch's operator does not take."""
    return at.finished(_grouped(at, x, y, ends))


@lowers_of_package("transformers.grouped_mm_fallback_backward.default")
def _grouped_backward_by_transformers(
    at: OperatorCall, x: HloValue, y: HloValue, ends: HloValue, grad: HloValue
) -> tuple[HloValue, HloValue]:
    """The gradients of x and y."""
    of_x = _grouped(at, grad, at.transpose(y, (0, 2, 1)), ends)
    shape = (y.shape[0], *x.shape)
    rows = at.iota(TensorType(S32, shape), 1)
    starts, ends = (at.broadcast(each, shape, (0,)) for each in _starts_and_ends(at, ends))
    inside = at.binary("and", at.compare("GE", rows, starts), at.compare("LT", rows, ends))
    wide = at.broadcast(x, shape, (1, 2))
    of_group = at.select(inside, wide, at.filled_like(0, wide))
    of_y = at.dot(of_group, grad, (1, 0), (), _of_sums(x.dtype))
    return at.convert(of_x, x.dtype), at.convert(of_y, y.dtype)


def _of_sums(dtype: DType) -> DType:
    """The dtype of a sum of products that is used before it is rounded."""
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def _scaled_sum(
    at: OperatorCall, bias: HloValue, product_: HloValue, beta: Number, alpha: Number
) -> HloValue:
    """beta * bias + alpha * product; a factor 0 takes what it multiplies out, NaN and all."""
    if alpha != 1:
        product_ = at.multiply(product_, at.filled_like(alpha, product_))
    if beta == 0:
        return at.finished(product_)
    added = at.operand(bias, product_.dtype)
    if beta != 1:
        added = at.multiply(added, at.filled_like(beta, added))
    return at.finished(at.add(added, product_))


# --- convolutions --------------------------------------------------------------------------------


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def _convolution(
    at: OperatorCall,
    x: HloValue,
    weight: HloValue,
    bias: HloValue | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> HloValue:
    steps = _Steps(at, x.rank - 2, stride, padding, dilation, groups)
    if x.rank == weight.rank - 1:  # without a batch
        x = at.reshape(x, (1, *x.shape))
        steps = _Steps(at, x.rank - 2, stride, padding, dilation, groups)
    spatial = at.result.shape[-(x.rank - 2) :]
    found = steps.spread(x, weight, spatial) if transposed else steps.convolve(x, weight)
    if bias is not None:
        found = at.add(found, at.broadcast(bias, found.shape, (1,)))
    return at.finished(found)


@lowers(aten.convolution_backward.default)
def _convolution_backward(
    at: OperatorCall,
    grad: HloValue,
    x: HloValue,
    weight: HloValue,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[HloValue | None, ...]:
    """The gradients by input, weight and bias; a transposed convolution swaps input and result."""
    steps = _Steps(at, x.rank - 2, stride, padding, dilation, groups)
    by_x = by_weight = by_bias = None
    if wanted[0]:
        by_x = (
            steps.convolve(grad, weight, x.shape[2:])
            if transposed
            else steps.spread(grad, weight, x.shape[2:])
        )
    if wanted[1]:
        wide, narrow = (grad, x) if transposed else (x, grad)
        by_weight = steps.weight_gradient(wide, narrow, weight.shape)
    if wanted[2]:
        over = [d for d in range(grad.rank) if d != 1]
        by_bias = at.convert(at.sum(at.wide(grad), over), grad.dtype)
    return by_x, by_weight, by_bias


class _Steps:
    """The stride, padding, dilation and groups of a convolution, and the three forms it has."""

    def __init__(
        self,
        at: OperatorCall,
        rank: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.at = at
        self.stride = per_dimension(stride, rank)
        self.padding = per_dimension(padding, rank)
        self.dilation = per_dimension(dilation, rank)
        self.groups = groups

    def convolve(
        self, x: HloValue, weight: HloValue, spatial: Sequence[int] | None = None
    ) -> HloValue:
        """The convolution itself; of its result so much as has these extents."""
        window = Window(
            weight.shape[2:], self.stride, self.padding, self.padding, dilation=self.dilation
        )
        if spatial is not None:
            window = window.reaching(x.shape[2:], spatial)
        return self.at.convolve(x, weight, window, groups=self.groups)

    def spread(self, x: HloValue, weight: HloValue, spatial: Sequence[int]) -> HloValue:
        """Its transpose: every element of x spreads over a window of a result of these extents."""
        at, groups = self.at, self.groups
        swapped = self._with_swapped_features(weight)
        reach = [(k - 1) * d for k, d in zip(weight.shape[2:], self.dilation, strict=True)]
        low = [r - p for r, p in zip(reach, self.padding, strict=True)]
        covered = [(e - 1) * s + 1 for e, s in zip(x.shape[2:], self.stride, strict=True)]
        high = [
            extent - c - before + r
            for extent, c, before, r in zip(spatial, covered, low, reach, strict=True)
        ]
        ones = (1,) * len(reach)
        window = Window(
            weight.shape[2:], ones, tuple(low), tuple(high), self.stride, self.dilation, True
        )
        return at.convolve(x, swapped, window, groups=groups)

    def _with_swapped_features(self, weight: HloValue) -> HloValue:
        """The kernel with its input features as outputs, within each group."""
        at, groups = self.at, self.groups
        outputs, inputs, *spatial = weight.shape
        order = list(range(weight.rank))
        if groups == 1:
            return at.transpose(weight, [1, 0, *order[2:]])
        parts = at.reshape(weight, (groups, outputs // groups, inputs, *spatial))
        swapped = at.transpose(parts, [0, 2, 1, *(d + 1 for d in order[2:])])
        return at.reshape(swapped, (groups * inputs, outputs // groups, *spatial))

    def weight_gradient(self, x: HloValue, grad: HloValue, shape: Sequence[int]) -> HloValue:
        """The gradient by the kernel: a convolution over the batch, strides as dilations."""
        at = self.at
        order = [1, 0, *range(2, x.rank)]
        spatial = zip(
            x.shape[2:], grad.shape[2:], shape[2:], self.stride, self.padding, self.dilation,
            strict=True,
        )  # fmt: skip
        high = [(k - 1) * d + (g - 1) * s + 1 - extent - p for extent, g, k, s, p, d in spatial]
        window = Window(
            grad.shape[2:], self.dilation, self.padding, tuple(high), dilation=self.stride
        )
        found = at.convolve(
            at.transpose(x, order), at.transpose(grad, order), window, batch_groups=self.groups
        )
        return at.transpose(found, order)


# --- Fourier transforms --------------------------------------------------------------------------


@lowers(aten._fft_r2c.default)
def _fft_r2c(
    at: OperatorCall, x: HloValue, dimensions: Sequence[int], normalization: int, onesided: bool
) -> HloValue:
    dimensions = [normalized(d, x.rank) for d in dimensions]
    count = product([x.shape[d] for d in dimensions])
    if not onesided:
        found = _transformed(at, "fft", at.convert(x, C64), dimensions)
    else:
        last = dimensions[-1]
        found = _transformed(at, "rfft", x, [last])
        found = _transformed(at, "fft", found, dimensions[:-1])
    return _normalized(at, found, normalization, count)


@lowers(aten._fft_c2r.default)
def _fft_c2r(
    at: OperatorCall, x: HloValue, dimensions: Sequence[int], normalization: int, length: int
) -> HloValue:
    dimensions = [normalized(d, x.rank) for d in dimensions]
    last = dimensions[-1]
    found = _transformed(at, "ifft", x, dimensions[:-1])
    half = at.slice_dimension(found, last, 0, length // 2 + 1)
    real = _transformed(at, "irfft", half, [last], length)
    count = product([at.result.shape[d] for d in dimensions])
    return _normalized(at, at.multiply(real, at.filled_like(count, real)), normalization, count)


@lowers(aten._fft_c2c.default)
def _fft_c2c(
    at: OperatorCall, x: HloValue, dimensions: Sequence[int], normalization: int, forward: bool
) -> HloValue:
    dimensions = [normalized(d, x.rank) for d in dimensions]
    count = product([x.shape[d] for d in dimensions])
    found = _transformed(at, "fft" if forward else "ifft", x, dimensions)
    if not forward:
        found = at.multiply(found, at.filled_like(count, found))
    return _normalized(at, found, normalization, count)


def _transformed(
    at: OperatorCall, kind: str, x: HloValue, dimensions: Sequence[int], length: int | None = None
) -> HloValue:
    """Transforms along single dimensions, one after the other."""
    for d in dimensions:
        order = [each for each in range(x.rank) if each != d] + [d]
        moved = at.transpose(x, order)
        moved = at.fourier(kind, moved, [moved.shape[-1] if length is None else length])
        x = at.transpose(moved, [order.index(each) for each in range(x.rank)])
    return x


def _normalized(at: OperatorCall, x: HloValue, normalization: int, count: int) -> HloValue:
    """Not scaled (0), by the root of the count (1), or by the count (2)."""
    factor = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization]
    return x if factor == 1 else at.multiply(x, at.filled_like(factor, x))


@lowers(aten.view_as_real.default)
def _view_as_real(at: OperatorCall, x: HloValue) -> HloValue:
    parts = [at.reshape(at.unary(p, x, F32), (*x.shape, 1)) for p in ("real", "imag")]
    return at.concatenate(parts, x.rank)


@lowers(aten.view_as_complex.default)
def _view_as_complex(at: OperatorCall, x: HloValue) -> HloValue:
    last = x.rank - 1
    parts = [at.reshape(at.slice_dimension(x, last, i, i + 1), x.shape[:-1]) for i in (0, 1)]
    return at.computation.add("complex", TensorType(C64, x.shape[:-1]), parts)


@lowers(
    aten._conj.default, aten._conj_physical.default, torch.ops.prims.conj_physical.default
)  # fmt: skip
def _conj(at: OperatorCall, x: HloValue) -> HloValue:
    parts = [at.unary(part, x, F32) for part in ("real", "imag")]
    opposite = [parts[0], at.unary("negate", parts[1])]
    return at.computation.add("complex", x.type, opposite)


@lowers(aten.complex.default)
def _complex(at: OperatorCall, real: HloValue, imaginary: HloValue) -> HloValue:
    shape = at.result.shape
    parts = [at.expand(real, shape), at.expand(imaginary, shape)]
    return at.computation.add("complex", at.result, parts)


@lowers(aten.real.default)
def _real(at: OperatorCall, x: HloValue, *_: Any) -> HloValue:
    return at.unary("real", x, F32) if x.dtype.is_complex else x


@lowers(aten.imag.default)
def _imag(at: OperatorCall, x: HloValue) -> HloValue:
    return at.unary("imag", x, F32)
