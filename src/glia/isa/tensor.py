"""The Tensor Engine: matrix multiplication and transposition through the systolic array."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, DType
from glia.isa.kit import Array, Instr, Rule, reads, updates, writes
from glia.isa.operand import Pattern
from glia.isa.rules import FLOATS, dtypes, same_dtype

if TYPE_CHECKING:
    from glia.arch import Arch

MATMUL = "NKI nki.isa.nc_matmul"
TRANSPOSE = "NKI nki.isa.nc_transpose"


def _passes(dtype: DType, arch: Arch) -> float:
    return arch.tensor_passes.get(dtype.name, 1.0)


def _product_shape(i: NcMatmul, _: Arch) -> bool:
    return i.dst.partitions == i.stationary.free and i.dst.free == i.moving.free


def _fp32_together(i: NcMatmul, _: Arch) -> bool:
    return (i.stationary.dtype is F32) == (i.moving.dtype is F32)


def _destination_dtype(i: NcMatmul, arch: Arch) -> bool:
    return i.dst.dtype is F32 or (i.dst.dtype is BF16 and arch.generation >= 4)


class NcMatmul(Instr, engine="tensor"):
    """Multiply matrices: dst = stationary.T @ moving, or dst += stationary.T @ moving.

    stationary is [K, M], moving [K, N], dst [M, N], K and M on the partitions; free dimensions
    count as one. Products and sums are float32. `accumulate` adds to what dst holds; an affine
    expression accumulates where it is not 0, so that a loop's first iteration can overwrite.
    """

    dst: Pattern = updates("PSUM")
    stationary: Pattern = reads("SBUF")
    moving: Pattern = reads("SBUF")
    accumulate: bool | Affine = False

    arrives = "flat"
    read_when: ClassVar = {"dst": "accumulate"}
    cost_source = "NKI release 2.26.1, nki.isa.nc_matmul; fp32 as measured, 2 instructions of 2N"
    rules = (
        Rule(
            "stationary and moving must have the same number of partitions",
            lambda i, _: i.stationary.partitions == i.moving.partitions,
            MATMUL,
        ),
        Rule(
            "dst must have a partition for each column of stationary, a column for each of moving",
            _product_shape,
            MATMUL,
        ),
        Rule(
            "stationary must have at most 128 columns",
            lambda i, arch: i.stationary.free <= arch.stationary_columns,
            MATMUL,
        ),
        Rule(
            "moving must have at most 512 columns, the float32 elements of one PSUM bank",
            lambda i, arch: i.moving.free <= arch.moving_columns,
            MATMUL,
        ),
        dtypes("stationary", FLOATS, source=MATMUL),
        dtypes("moving", FLOATS, source=MATMUL),
        Rule("float32 multiplies only float32", _fp32_together, MATMUL),
        Rule("dst must be float32 (bfloat16 too on generation 4)", _destination_dtype, MATMUL),
    )

    @staticmethod
    def compute(dst: Array, stationary: Array, moving: Array, accumulate: bool) -> Array:
        product = stationary.T @ moving
        return dst + product if accumulate else product

    def cycles(self, arch: Arch) -> int:
        """One column of moving per cycle, at least the least issue interval, in every pass."""
        columns = max(arch.min_issue_cycles["tensor"], self.moving.free)
        return round(columns * _passes(self.moving.dtype, arch))


class NcTranspose(Instr, engine="tensor", engines=("tensor", "vector")):
    """Transpose: dst [F, P] = data [P, F].T, bit by bit; free dimensions of data count as one.

    The Tensor Engine passes up to 128 x 128 elements through its array into PSUM, the Vector
    Engine transposes up to 32 x 32 between SBUF and PSUM.
    """

    dst: Pattern = writes("PSUM", "SBUF")
    data: Pattern = reads("SBUF", "PSUM")

    arrives = "flat"
    cost_source = "NKI release 2.26.1, nki.isa.nc_transpose"
    rules = (
        Rule(
            "dst must be [F, P] where data is [P, F]",
            lambda i, _: i.dst.partitions == i.data.free and i.dst.free == i.data.partitions,
            TRANSPOSE,
        ),
        same_dtype("dst", "data", source=TRANSPOSE),
        Rule(
            "the Tensor Engine transposes at most 128 x 128 elements, the Vector Engine 32 x 32",
            lambda i, _: i.data.free <= i.most and i.data.partitions <= i.most,
            TRANSPOSE,
        ),
        Rule(
            "the Tensor Engine reads SBUF and writes PSUM",
            lambda i, _: (
                i.runs_on != "tensor"
                or (i.dst.memory.name == "PSUM" and i.data.memory.name == "SBUF")
            ),
            TRANSPOSE,
        ),
        Rule(
            "the Tensor Engine transposes floats",
            lambda i, _: i.runs_on != "tensor" or i.data.dtype in FLOATS,
            TRANSPOSE,
        ),
    )

    @property
    def is_exact(self) -> bool:
        return True

    @property
    def most(self) -> int:
        """The greatest extent of either side on this instruction's engine."""
        return 128 if self.runs_on == "tensor" else 32

    @staticmethod
    def compute(data: Array) -> Array:
        return np.ascontiguousarray(data.T)

    def cycles(self, arch: Arch) -> int:
        """The columns of the transposed tile through the array, or the elements of a partition."""
        if self.runs_on == "vector":
            return max(arch.min_issue_cycles["vector"], self.data.free)
        columns = max(self.data.partitions, min(arch.min_issue_cycles["tensor"], self.data.free))
        return round(columns * arch.transpose_passes.get(self.data.dtype.name, 1.0))
