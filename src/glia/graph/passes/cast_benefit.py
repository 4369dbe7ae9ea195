"""Whether a cast of a contraction's operands pays: the PE time it saves and the time it takes.

Both are times of one engine that is busy all the time, from the numbers of `glia.arch`. Whether a
program with its casts is faster as a whole is measured where whole programs are compared
(`glia.alternatives`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glia.arch import Arch
from glia.base.dtype import F32, TF32, DType
from glia.graph.ir import Node, Parameter, TensorType
from glia.graph.ops import (
    Broadcast,
    Convolution,
    Dot,
    Get,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)

MOVES = (Broadcast, Reshape, Reverse, Slice, Transpose)
COPYING_ENGINES = 2  # Vector and Scalar, among which the scheduler shares copies


@dataclass(frozen=True)
class CastBenefit:
    """What a cast of the operands of one contraction to `dtype` saves and takes."""

    dtype: DType
    saved_ns: float  # of the PE, which multiplies narrow operands in fewer passes
    casting_ns: float  # of the engines that copy, for operands that arrive in float32

    @property
    def pays(self) -> bool:
        return self.saved_ns > 0 and self.saved_ns >= self.casting_ns

    @property
    def reason(self) -> str:
        """The two times as a sentence."""
        saved, casting = (f"{ns / 1000:.2f} us" for ns in (self.saved_ns, self.casting_ns))
        if not self.saved_ns:
            return f"the PE multiplies {self.dtype} no faster"
        return f"the PE saves {saved}, casting takes {casting}"


def benefit_of(op: Dot | Convolution, dtype: DType, arch: Arch) -> CastBenefit:
    """The benefit of reading the operands of a contraction in `dtype`."""
    passes = [arch.tensor_passes.get(each.name, 1.0) for each in (op.operands[0].dtype, dtype)]
    busy_ns = arch.cycles_to_ns("tensor", _columns(op, arch))
    elements = sum(map(_elements_to_cast, op.operands)) if dtype is not TF32 else 0
    casting_ns = arch.cycles_to_ns("vector", elements / arch.partitions / COPYING_ENGINES)
    return CastBenefit(dtype, busy_ns * (passes[0] - passes[1]), casting_ns)


def _columns(op: Dot | Convolution, arch: Arch) -> float:
    """Columns that go through the PE in one pass, under the better of both mappings."""
    if isinstance(op, Dot):
        batch = math.prod(op.a.shape[d] for d in op.a_batch)
        depth = math.prod(op.a.shape[d] for d in op.a_contract)
        sides = [math.prod(x.shape) / max(1, batch * depth) for x in (op.a, op.b)]
        steps = 1
    else:
        batch = max(op.groups, op.batch_groups)
        depth, steps = op.kernel.shape[1], math.prod(op.kernel.shape[2:])
        sides = [op.kernel.shape[0] / batch, math.prod(op.shape) / op.kernel.shape[0]]
    least, wide = arch.min_issue_cycles["tensor"], arch.partitions
    columns = min(
        math.ceil(rows / wide) * max(least, moving) for rows, moving in (sides, sides[::-1])
    )
    return batch * steps * math.ceil(depth / wide) * columns


def _elements_to_cast(operand: Node) -> int:
    """Elements that need an instruction of their own: what computes a value writes it narrow."""
    source = operand
    while isinstance(source, MOVES):
        source = source.x
    arrives = isinstance(source, Parameter | Get) and source.dtype is F32
    return _size(operand) if arrives else 0


def _size(node: Node) -> int:
    assert isinstance(node.type, TensorType)
    return node.type.elements
