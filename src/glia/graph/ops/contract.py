"""Contractions: dot and convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any, ClassVar

import numpy as np

from glia.base.dtype import PRED, DType, from_numpy
from glia.graph.ir import Node, TensorType, Type, op
from glia.graph.ops.shape import pad
from glia.graph.scalar import convert, working_dtype
from glia.graph.type_rules import (
    require,
    require_dimensions,
    require_length,
    tensor,
    window_positions,
)

Array = np.ndarray[Any, Any]


def _widen(a: Array, b: Array, result: DType) -> tuple[Array, Array, DType]:
    """The operands converted to the dtype products accumulate in, and the result's dtype.

    Floats narrower than 32 bits are summed in float32. Integers of at most 16 bits go through
    float64, where their sums are exact; wider ones wrap in the result's dtype.
    """
    kinds = [from_numpy(a.dtype), from_numpy(b.dtype), result]
    if all(kind.is_integer or kind is PRED for kind in kinds):
        exact = max(kind.bits for kind in kinds[:2]) <= 16
        holder = np.dtype(np.float64) if exact else working_dtype(result.numpy)
    else:
        holder = np.result_type(*(working_dtype(kind.numpy) for kind in kinds))
    return a.astype(holder), b.astype(holder), result


def _narrow(total: Array, result: DType) -> Array:
    """An accumulated sum in the result's dtype; integers held in float64 wrap."""
    if result.is_integer and total.dtype == np.float64:
        total = total.astype(np.int64)
    return convert(total, result)


@op
class Dot(Node):
    """General contraction; result dimensions are batch, free of a, free of b.

    Floats narrower than 32 bits are accumulated in float32 and rounded once.
    """

    a: Node
    b: Node
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    a_contract: tuple[int, ...]
    b_contract: tuple[int, ...]
    result_dtype: DType
    opcode: ClassVar[str] = "dot"

    def infer(self) -> Type:
        a, b = tensor(self.a), tensor(self.b)
        require_dimensions((*self.a_batch, *self.a_contract), len(a.shape), "dot dimensions of a")
        require_dimensions((*self.b_batch, *self.b_contract), len(b.shape), "dot dimensions of b")
        require_length(self.b_batch, len(self.a_batch), "batch dimensions of b")
        require_length(self.b_contract, len(self.a_contract), "contracting dimensions of b")
        pairs = zip(self.a_batch + self.a_contract, self.b_batch + self.b_contract, strict=True)
        for i, j in pairs:
            same = a.shape[i] == b.shape[j]
            require(same, f"dimension {i} of {a} and {j} of {b} must have one extent")
        batch = tuple(a.shape[d] for d in self.a_batch)
        free_a = tuple(a.shape[d] for d in self.free_a)
        return TensorType(
            self.result_dtype, batch + free_a + tuple(b.shape[d] for d in self.free_b)
        )

    @property
    def free_a(self) -> tuple[int, ...]:
        """The dimensions of a that are neither batch nor contracted."""
        used = {*self.a_batch, *self.a_contract}
        return tuple(d for d in range(len(self.a.shape)) if d not in used)

    @property
    def free_b(self) -> tuple[int, ...]:
        """The dimensions of b that are neither batch nor contracted."""
        used = {*self.b_batch, *self.b_contract}
        return tuple(d for d in range(len(self.b.shape)) if d not in used)

    def compute(self, a: Array, b: Array) -> Array:
        assert isinstance(self.type, TensorType)
        a, b, result = _widen(a, b, self.result_dtype)
        batch = math.prod(a.shape[d] for d in self.a_batch)
        depth = math.prod(a.shape[d] for d in self.a_contract)
        rows = math.prod(a.shape[d] for d in self.free_a)
        columns = math.prod(b.shape[d] for d in self.free_b)
        left = np.transpose(a, self.a_batch + self.free_a + self.a_contract)
        right = np.transpose(b, self.b_batch + self.b_contract + self.free_b)
        with np.errstate(all="ignore"):
            total = np.matmul(
                left.reshape(batch, rows, depth), right.reshape(batch, depth, columns)
            )
        return _narrow(total, result).reshape(self.type.shape)


@op
class Convolution(Node):
    """N-d convolution in canonical layout.

    x is [batch, in_features, *spatial], kernel is [out_features, in_features / groups, *window],
    the result is [batch, out_features, *spatial] (the importer inserts transposes).
    `batch_groups` > 1 contracts groups of the batch instead, as in XLA's batch_group_count.
    """

    x: Node
    kernel: Node
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    x_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    kernel_reversal: tuple[bool, ...]
    groups: int
    batch_groups: int
    result_dtype: DType
    opcode: ClassVar[str] = "convolution"

    def infer(self) -> Type:
        x, kernel = tensor(self.x), tensor(self.kernel)
        rank = len(x.shape) - 2
        require(rank >= 0 and len(kernel.shape) == rank + 2, f"convolution of {x} by {kernel}")
        for name in ("stride", "low", "high", "x_dilation", "kernel_dilation", "kernel_reversal"):
            require_length(getattr(self, name), rank, f"convolution's {name}")
        batch, features = x.shape[:2]
        outputs, depth = kernel.shape[:2]
        groups, batch_groups = self.groups, self.batch_groups
        require(groups > 0 and batch_groups > 0, f"groups {groups} and {batch_groups} are positive")
        require(1 in (groups, batch_groups), f"groups {groups} and {batch_groups}: one must be 1")
        divides = features == depth * groups and outputs % (groups * batch_groups) == 0
        require(divides, f"{groups * batch_groups} groups do not fit {x} and {kernel}")
        require(batch % batch_groups == 0, f"{batch_groups} batch groups of batch {batch}")
        spatial = map(window_positions, x.shape[2:], kernel.shape[2:], self.stride, self.low,
                      self.high, self.x_dilation, self.kernel_dilation)  # fmt: skip
        return TensorType(self.result_dtype, (batch // batch_groups, outputs, *spatial))

    def compute(self, x: Array, kernel: Array) -> Array:
        assert isinstance(self.type, TensorType)
        x, kernel, result = _widen(x, kernel, self.result_dtype)
        axes = tuple(2 + d for d, is_reversed in enumerate(self.kernel_reversal) if is_reversed)
        kernel = np.flip(kernel, axes)
        groups = max(self.groups, self.batch_groups)
        shape = self.type.shape
        spread = [low + max(0, (extent - 1) * step + 1) + high for low, high, extent, step in
                  zip(self.low, self.high, x.shape[2:], self.x_dilation, strict=True)]  # fmt: skip
        if self.batch_groups > 1:
            folded = x.reshape(groups, shape[0], *x.shape[1:]).swapaxes(0, 1)
            x = folded.reshape(shape[0], -1, *x.shape[2:])
        padded = pad(x, np.zeros((), x.dtype), (*x.shape[:2], *(max(0, s) for s in spread)),
                     (0, 0, *self.low), (1, 1, *self.x_dilation))  # fmt: skip
        with np.errstate(all="ignore"):
            total = self._contract(padded, kernel, groups, shape)
        return _narrow(total, result)

    def _contract(self, x: Array, kernel: Array, groups: int, shape: tuple[int, ...]) -> Array:
        """Sum over kernel positions, or over output positions where those are fewer."""
        batch, outputs, *spatial = shape
        window = kernel.shape[2:]
        x = x.reshape(batch, groups, -1, *x.shape[2:])
        kernel = kernel.reshape(groups, outputs // groups, -1, *window)
        total = np.zeros((batch, groups, outputs // groups, *spatial), x.dtype)
        if math.prod(window) <= math.prod(spatial):
            for at in np.ndindex(window):
                part = x[self._strided_index(at, self.kernel_dilation, spatial, self.stride)]
                flat = part.reshape(*part.shape[:3], -1)
                total += np.matmul(kernel[(..., *at)], flat).reshape(total.shape)
        else:
            weights = kernel.reshape(*kernel.shape[:2], -1)
            for at in np.ndindex(*spatial):
                part = x[self._strided_index(at, self.stride, window, self.kernel_dilation)]
                flat = part.reshape(batch, groups, -1, 1)
                total[(..., *at)] = np.matmul(weights, flat)[..., 0]
        return total.reshape(shape)

    @staticmethod
    def _strided_index(
        at: Sequence[int], scale: Sequence[int], counts: Sequence[int], steps: Sequence[int]
    ) -> tuple[EllipsisType | slice, ...]:
        """The index of `count` elements, `step` apart from `at * scale` on, of the last axes."""
        slices = [
            slice(i * by, i * by + (count - 1) * step + 1, step) if count else slice(0)
            for i, by, count, step in zip(at, scale, counts, steps, strict=True)
        ]
        return (..., *slices)


def with_factors(node: Dot | Convolution, a: Node, b: Node, result: DType) -> Dot | Convolution:
    """The same contraction of other operands, with a result of another dtype."""
    if isinstance(node, Dot):
        return replace(node, a=a, b=b, result_dtype=result)
    return replace(node, x=a, kernel=b, result_dtype=result)
