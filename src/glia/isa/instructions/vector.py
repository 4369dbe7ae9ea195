"""The Vector Engine: element-wise operators, reductions along the free dimensions, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from glia.base.dtype import BF16, PRED, S32, U8, U16, U32
from glia.isa.alu import ALU_OPS, apply, reduce_along
from glia.isa.cost import copy_cycles, dispatched_cycles, stream_cycles, two_input_factor
from glia.isa.examples import chip
from glia.isa.form import (
    ANY,
    ARITHMETIC,
    BITWISE,
    INVERT,
    POWER,
    UNARY,
    Form,
    chosen,
    fixed,
)
from glia.isa.kit import Array, Indirect, Instr, Rule, reads, updates, writes
from glia.isa.operand import Pattern
from glia.isa.rules import (
    WORDS,
    arithmetic,
    bitvec_on_integers,
    column,
    dtypes,
    float32_beside_arithmetic,
    has_operand,
    known_op,
    not_both_in_psum,
    operand,
    reducing_op,
    same_dtype,
    same_elements,
    start_partition_holds,
    unary_alone,
)

if TYPE_CHECKING:
    from glia.arch import Arch

TENSOR_TENSOR = "NKI nki.isa.tensor_tensor"
TENSOR_SCALAR = "NKI nki.isa.tensor_scalar"
SCALAR_TENSOR = "NKI nki.isa.scalar_tensor_tensor"
REDUCE = "NKI nki.isa.tensor_reduce"
COPY = "NKI nki.isa.tensor_copy"
PREDICATED = "NKI nki.isa.tensor_copy_predicated"
FORMULAS = "NKI release 2.26.1, nki.isa cost formulas; modes: Trainium2 and Trainium3 guides"
BINARY = (ARITHMETIC, POWER, BITWISE)
FIRST_OF_TWO = chosen("op0", "data", "operand0", among=BINARY, exchanged="reverse0")
SCALAR_ENGINE_PAIRS = (("multiply", "add"), ("multiply", ""), ("add", ""))


class TensorTensor(Instr, engine="vector", engines=("vector", "gpsimd")):
    """Write data1 `op` data2, element by element.

    Arithmetic is float32; on GpSimd, when data1 and data2 are both int32 or both uint32, it is
    exact and wraps (powers excepted). Bitvec operators work on the bits.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data1: Pattern = reads("SBUF", "PSUM")
    data2: Pattern = reads("SBUF", "PSUM")
    op: str

    maps_outer = True
    indirect = Indirect(("dst", "data1"), "data1", TENSOR_TENSOR, engines=("vector", "gpsimd"))
    cost_source = FORMULAS
    forms = (Form(chosen("op", "data1", "data2", among=BINARY)),)
    rules = (
        same_elements("dst", "data1", "data2", source=TENSOR_TENSOR),
        known_op("op", arity=2),
        bitvec_on_integers(("op",), ("dst", "data1", "data2")),
        not_both_in_psum("data1", "data2", source=TENSOR_TENSOR),
        Rule(
            "GpSimd takes 32-bit integers of one dtype, signed or unsigned, not of both",
            lambda i, _: i.runs_on != "gpsimd" or not {S32, U32} <= {i.data1.dtype, i.data2.dtype},
            TENSOR_TENSOR,
        ),
    )
    assumed = (
        "32-bit integers wrap on GpSimd, and are exact there whatever the dtype of dst",
        "a shift by the width or more gives 0",
    )

    @property
    def is_exact(self) -> bool:
        if ALU_OPS[self.op].family == "bitvec":
            return True
        words = self.data1.dtype is self.data2.dtype and self.data1.dtype in WORDS
        return words and self.runs_on == "gpsimd" and self.op != "power"

    @staticmethod
    def compute(data1: Array, data2: Array, op: str) -> Array:
        return apply(op, data1, data2)

    def cycles(self, arch: Arch) -> int:
        """Two reads of SBUF per element: one or two cycles, by generation; less in fast modes."""
        if self.runs_on == "gpsimd":
            return dispatched_cycles(arch, 2 * self.data1.free)
        factor = two_input_factor(arch, self.op, self.data1, self.data2, self.dst)
        return stream_cycles(arch, "vector", factor * self.data1.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32), data1=chip("a", 64, 32), data2=chip("b", 64, 32), op="add"
        )


def _scalar_engine_pair(i: TensorScalar, arch: Arch) -> bool:
    if i.runs_on != "scalar":
        return True
    return arch.capabilities.has_scalar_engine_tensor_ops and (i.op0, i.op1) in SCALAR_ENGINE_PAIRS


class TensorScalar(Instr, engine="vector", engines=("vector", "gpsimd", "scalar")):
    """Write (data `op0` operand0) `op1` operand1, each operand one value per partition or a number.

    `reverse0` and `reverse1` exchange the two sides of their operator. A unary operator ignores its
    operand; op1 = "" leaves the second step out. Arithmetic is float32; with bitvec operators every
    operand keeps its bits.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    operand0: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    op0: str
    operand1: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    op1: str = ""
    reverse0: bool = False
    reverse1: bool = False

    maps_outer = True
    indirect = Indirect(("dst", "data"), "data", TENSOR_SCALAR)
    cost_source = FORMULAS
    forms = (
        Form(FIRST_OF_TWO),
        Form(chosen("op0", "data", among=(UNARY, INVERT))),
        Form(chosen("op1", FIRST_OF_TWO, "operand1", among=BINARY, exchanged="reverse1")),
        Form(
            chosen(
                "op1", chosen("op0", "data", among=(UNARY, INVERT)), "operand1",
                among=BINARY, exchanged="reverse1",
            )
        ),
    )  # fmt: skip
    rules = (
        same_elements("dst", "data", source=TENSOR_SCALAR),
        column("operand0", "data", source=TENSOR_SCALAR),
        column("operand1", "data", source=TENSOR_SCALAR),
        float32_beside_arithmetic("operand0", "op0", source=TENSOR_SCALAR),
        float32_beside_arithmetic("operand1", "op1", source=TENSOR_SCALAR),
        known_op("op0"),
        known_op("op1", optional=True),
        bitvec_on_integers(("op0", "op1"), ("dst", "data", "operand0", "operand1")),
        Rule(
            "a binary operator needs its operand",
            lambda i, _: has_operand(i.op0, i.operand0) and has_operand(i.op1, i.operand1),
            TENSOR_SCALAR,
        ),
        unary_alone(("op0", "operand0"), ("op1", "operand1"), source=TENSOR_SCALAR),
        Rule(
            "the Scalar Engine has (multiply, add), multiply and add, from generation 3",
            _scalar_engine_pair,
            TENSOR_SCALAR,
        ),
    )

    @property
    def is_exact(self) -> bool:
        return ALU_OPS[self.op0].family == "bitvec"

    @staticmethod
    def compute(
        data: Array,
        operand0: Array | None,
        operand1: Array | None,
        op0: str,
        op1: str,
        reverse0: bool,
        reverse1: bool,
    ) -> Array:
        result = apply(op0, data, operand0, reverse0)
        if not op1:
            return result
        return apply(op1, result.astype(data.dtype, copy=False), operand1, reverse1)

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition, two or four in the fast modes."""
        return copy_cycles(arch, self.runs_on, self.dst, self.data)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            operand0=chip("column", 64, 1),
            op0="multiply",
            operand1=1.0,
            op1="add",
        )


class ScalarTensorTensor(Instr, engine="vector"):
    """Write (data `op0` operand0) `op1` operand1 with operand0 one value per partition or a number.

    operand1 is a tensor. Arithmetic operators only, in float32.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    operand0: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True)
    op0: str
    operand1: Pattern = reads("SBUF", "PSUM")
    op1: str
    reverse0: bool = False
    reverse1: bool = False

    maps_outer = True
    cost_source = FORMULAS
    forms = (Form(chosen("op1", FIRST_OF_TWO, "operand1", among=BINARY, exchanged="reverse1")),)
    rules = (
        same_elements("dst", "data", "operand1", source=SCALAR_TENSOR),
        column("operand0", "data", source=SCALAR_TENSOR),
        known_op("op0"),
        known_op("op1", arity=2),
        arithmetic("op0", "op1", source=SCALAR_TENSOR),
        not_both_in_psum("data", "operand1", source=SCALAR_TENSOR),
    )

    @staticmethod
    def compute(
        data: Array,
        operand0: Array,
        operand1: Array,
        op0: str,
        op1: str,
        reverse0: bool,
        reverse1: bool,
    ) -> Array:
        result = apply(op0, data, operand0, reverse0).astype(data.dtype, copy=False)
        return apply(op1, result, operand1, reverse1)

    def cycles(self, arch: Arch) -> int:
        """As `tensor_tensor`; one cycle for even bf16 rows of (data - operand0) * operand1."""
        is_fast = (
            (self.op0, self.op1) == ("subtract", "multiply")
            and self.data.dtype is BF16
            and self.operand1.dtype is BF16
            and self.data.free % 2 == 0
        )
        is_fast = is_fast or self.data.memory is not self.operand1.memory
        factor = 1 if is_fast else arch.two_input_cycles
        return stream_cycles(arch, "vector", factor * self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            operand0=chip("column", 64, 1),
            op0="multiply",
            operand1=chip("b", 64, 32),
            op1="add",
        )


def _reduced_shape(i: TensorReduce, _: Arch) -> bool:
    free_dims = i.data.shape[1:]
    if not 1 <= i.axes <= len(free_dims):
        return False
    kept = int(np.prod(free_dims[: len(free_dims) - i.axes], dtype=np.int64))
    return i.dst.free == kept and i.dst.partitions == i.data.partitions


class TensorReduce(Instr, engine="vector"):
    """Reduce the innermost `axes` free dimensions of data with `op`.

    `negate` gives minus the result. Arithmetic is float32; bitwise and, or, xor reduce the bits.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    op: str
    axes: int = 1
    negate: bool = False

    maps_outer = True
    arrives = "natural"
    indirect = Indirect(("dst", "data"), "data", REDUCE)
    cost_source = FORMULAS
    rules = (
        Rule(
            "{axes} must count 1 to all free dimensions of {data}, and {dst} hold the others' "
            "elements",
            _reduced_shape,
            REDUCE,
        ),
        reducing_op("op"),
        bitvec_on_integers(("op",), ("dst", "data")),
        Rule(
            "{negate} needs an arithmetic operator",
            lambda i, _: (
                not i.negate or i.op not in ALU_OPS or ALU_OPS[i.op].family == "arithmetic"
            ),
            REDUCE,
        ),
    )

    @property
    def is_exact(self) -> bool:
        return ALU_OPS[self.op].family == "bitvec"

    @staticmethod
    def compute(data: Array, op: str, axes: int, negate: bool) -> Array:
        reduced = reduce_along(op, data, tuple(range(data.ndim - axes, data.ndim)))
        return np.negative(reduced.astype(data.dtype, copy=False)) if negate else reduced

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition, two in sums and maxima of bf16 that stay bf16."""
        is_fast = self.op in ("add", "maximum") and self.dst.dtype is self.data.dtype is BF16
        return stream_cycles(arch, "vector", self.data.free / (2 if is_fast else 1))

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("column", 64, 1), data=chip("a", 64, 32), op="add")


class TensorCopy(Instr, engine="vector", engines=("vector", "scalar", "gpsimd")):
    """Copy src to dst, converting the dtype.

    Vector and GpSimd copy the same dtype bit by bit. All other copies go through float32, to
    integers rounding to nearest even and saturating.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    src: Pattern = reads("SBUF", "PSUM")

    maps_outer = True
    takes_packed: ClassVar[tuple[str, ...]] = ("dst", "src")
    indirect = Indirect(("dst", "src"), "src", COPY, engines=("vector", "scalar"))
    cost_source = FORMULAS
    forms = (Form(fixed("convert", "src", families=ANY)),)
    rules = (
        same_elements("dst", "src", source=COPY),
        Rule(
            "the Scalar Engine copies from generation 3 (before it, activation with copy does)",
            lambda i, arch: i.runs_on != "scalar" or arch.capabilities.has_scalar_engine_tensor_ops,
            COPY,
        ),
    )
    assumed = ("the Scalar Engine copies through float32 in all generations",)

    @property
    def is_exact(self) -> bool:
        return self.src.dtype is self.dst.dtype and self.runs_on != "scalar"

    @staticmethod
    def compute(src: Array) -> Array:
        return src

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition, two or four in the fast modes."""
        return copy_cycles(arch, self.runs_on, self.dst, self.src)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("out", 64, 32), src=chip("a", 64, 32))


class TensorCopyPredicated(Instr, engine="vector"):
    """Copy src to dst where predicate is not 0 (with `reverse` where it is 0).

    dst keeps its elements elsewhere. A number is converted to the dtype of dst.
    """

    dst: Pattern = updates("SBUF", "PSUM", raw=True)
    src: Pattern | float = reads("SBUF", "PSUM", immediate=True, raw=True)
    predicate: Pattern = reads("SBUF", "PSUM", raw=True)
    reverse: bool = False

    maps_outer = True
    indirect = Indirect(("dst", "predicate"), "predicate", PREDICATED)
    cost_source = FORMULAS
    forms = (Form(fixed("select", "predicate", "src", "dst", families=ANY)),)
    rules = (
        same_elements("dst", "src", "predicate", source=PREDICATED),
        dtypes("predicate", (U8, U16, U32, PRED), source=PREDICATED),
        same_dtype("dst", "src", source=PREDICATED),
        not_both_in_psum("src", "predicate", source=PREDICATED),
    )

    @property
    def is_exact(self) -> bool:
        return True

    @staticmethod
    def compute(dst: Array, src: Array, predicate: Array, reverse: bool) -> Array:
        chosen = predicate == 0 if reverse else predicate != 0
        return np.where(chosen, src, dst)

    def cycles(self, arch: Arch) -> int:
        """As `tensor_tensor`: one cycle where src and predicate come from both memories."""
        src = operand(self, "src")
        across = src is not None and src.memory is not self.predicate.memory
        factor = 1 if across else arch.two_input_cycles
        return stream_cycles(arch, "vector", factor * self.dst.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            src=chip("a", 64, 32),
            predicate=chip("chosen", 64, 32, dtype=U16),
        )


class Reciprocal(Instr, engine="vector"):
    """Write 1 / data, element by element, in float32."""

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")

    maps_outer = True
    cost_source = "NKI release 2.26.1, nki.isa.reciprocal"
    forms = (Form(fixed("reciprocal", "data")),)
    rules = (same_elements("dst", "data", source="NKI nki.isa.reciprocal"),)

    @staticmethod
    def compute(data: Array) -> Array:
        return np.float32(1) / data

    def cycles(self, arch: Arch) -> int:
        """Eight cycles per element of a partition, as documented."""
        return stream_cycles(arch, "vector", round(arch.reciprocal_cycles * self.data.free))

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("out", 64, 32), data=chip("a", 64, 32))


class Memset(Instr, engine="vector", engines=("vector", "gpsimd")):
    """Write one value to every element of dst; an integer dtype takes the value exactly."""

    dst: Pattern = writes("SBUF", "PSUM")
    value: float | int

    maps_outer = True
    takes_packed: ClassVar[tuple[str, ...]] = ("dst",)
    cost_source = "NKI release 2.26.1, nki.isa.memset"
    rules = (
        Rule(
            "packed floats are filled with 0",
            lambda i, _: i.dst.dtype.packs is None or i.value == 0,
            "NKI migration guide, nisa.memset",
        ),
        Rule(
            "an integer dst takes an integer value that fits its dtype, or its bits",
            lambda i, _: (
                not i.dst.dtype.is_integer
                or (float(i.value).is_integer() and abs(int(i.value)) < 1 << i.dst.dtype.bits)
            ),
            "NKI nki.isa.memset",
        ),
    )

    @property
    def is_exact(self) -> bool:
        return True

    @staticmethod
    def compute(value: float | int) -> float | int:
        return value

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition, two when 16-bit floats are cleared."""
        is_fast = self.value == 0 and self.dst.dtype.is_float and self.dst.dtype.bytes == 2
        return stream_cycles(arch, self.runs_on, self.dst.free / (2 if is_fast else 1))

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("out", 64, 32), value=0.0)


def _whole_quadrants_start(i: StreamShuffle, _: Arch) -> bool:
    """Whether both start where an operand with the partitions of the larger one may."""
    most = max(i.dst.partitions, i.src.partitions)
    return all(start_partition_holds(p, most) for p in (i.dst, i.src))


def _source_partitions(mask: tuple[int, ...], partitions: int) -> list[int]:
    """For each partition of dst the one of src that it takes, -1 where it stays."""
    entries = [mask[p % 32] for p in range(partitions)]
    return [-1 if m == 255 else p // 32 * 32 + m for p, m in enumerate(entries)]


class StreamShuffle(Instr, engine="vector"):
    """Shuffle partitions in quadrants of 32: dst[32 q + i] = src[32 q + mask[i]].

    A mask entry of 255 leaves the partition of dst as it is. dst and src may span different
    numbers of partitions.
    """

    dst: Pattern = updates("SBUF", "PSUM", raw=True)
    src: Pattern = reads("SBUF", "PSUM", raw=True)
    mask: tuple[int, ...]

    arrives = "flat"
    cost_source = "NKI release 2.26.1, nki.isa.nc_stream_shuffle"
    rules = (
        Rule(
            "{dst} and {src} must have the same number of elements per partition",
            lambda i, _: i.dst.free == i.src.free,
            "NKI nki.isa.nc_stream_shuffle",
        ),
        same_dtype("dst", "src", source="NKI nki.isa.nc_stream_shuffle"),
        Rule(
            "{dst} and {src} must both start where the one of more partitions may",
            _whole_quadrants_start,
            "NKI nki.isa.nc_stream_shuffle",
        ),
        Rule(
            "{mask} must have 32 entries, each 0 to 31 or 255",
            lambda i, _: len(i.mask) == 32 and all(0 <= m < 32 or m == 255 for m in i.mask),
            "NKI nki.isa.nc_stream_shuffle",
        ),
        Rule(
            "{mask} must name partitions that src has, for every partition of dst",
            lambda i, _: (
                len(i.mask) != 32
                or max(_source_partitions(i.mask, i.dst.partitions)) < i.src.partitions
            ),
            "NKI nki.isa.nc_stream_shuffle",
        ),
    )

    @property
    def is_exact(self) -> bool:
        return True

    @staticmethod
    def compute(dst: Array, src: Array, mask: tuple[int, ...]) -> Array:
        source = np.array(_source_partitions(mask, len(dst)))
        return np.where(source[:, None] < 0, dst, src[np.maximum(source, 0)])

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return stream_cycles(arch, "vector", self.src.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("out", 64, 32), src=chip("a", 64, 32), mask=tuple(range(32)))
