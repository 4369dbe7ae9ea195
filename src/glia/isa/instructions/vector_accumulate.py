"""The Vector Engine's maps that also accumulate: exponentials, one operator, running results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from glia.arch import generations_from
from glia.base.dtype import (
    BF16,
    F8E4M3,
    F8E4M3FN,
    F8E5M2,
    F16,
    F32,
    S8,
    S16,
    S32,
    TF32,
    U8,
    U16,
    U32,
)
from glia.isa.accumulators import (
    VectorAccumulating,
    accumulate,
    command_among,
    known_result,
    loads_initial,
    reduce_op_among,
)
from glia.isa.alu import ALU_OPS, apply
from glia.isa.cost import stream_cycles
from glia.isa.examples import chip
from glia.isa.kit import Array, Indirect, Rule, reads, writes
from glia.isa.operand import Pattern
from glia.isa.rules import (
    arithmetic,
    at_most_dimensions,
    column,
    dtypes,
    has_operand,
    known_op,
    same_elements,
    unary_alone,
)

if TYPE_CHECKING:
    from glia.arch import Arch

EXPONENTIAL = "NKI nki.isa.exponential"
REDUCE = "NKI nki.isa.tensor_scalar_reduce"
CUMULATIVE = "NKI nki.isa.tensor_scalar_cumulative"
NARROW_FLOATS = (F8E4M3, F8E5M2, F16, BF16, F32)
SMALL_INTEGERS = (S8, S16, U8, U16)
LOADING = ("reset_reduce", "reduce", "load_reduce")


class Exponential(VectorAccumulating, engine="vector"):
    """Write exp(data - most) in float32, and sum it into the accumulators.

    most and initial are one value per partition or a number. `command` says what the Vector
    Engine's accumulators do with the sum along the free dimensions ("load_reduce" starts from
    initial); `reduced`, [P, 1], takes what they hold then.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    most: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True, default=0.0)
    initial: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    reduced: Pattern | None = writes("SBUF", "PSUM", default=None, column=True)
    command: str = "idle"

    generations = generations_from(4)
    indirect = Indirect(("dst", "data"), "data", EXPONENTIAL)
    cost_source = "Trainium3 architecture guide: four times the rate of the Scalar Engine"
    rules = (
        same_elements("dst", "data", source=EXPONENTIAL),
        at_most_dimensions("dst", 4, source=EXPONENTIAL),
        at_most_dimensions("data", 4, source=EXPONENTIAL),
        column("most", "data", source=EXPONENTIAL),
        column("initial", "data", source=EXPONENTIAL),
        column("reduced", "data", source=EXPONENTIAL),
        dtypes("dst", (*NARROW_FLOATS, TF32, *SMALL_INTEGERS, S32), source=EXPONENTIAL),
        dtypes("data", (*NARROW_FLOATS, *SMALL_INTEGERS, S32, U32), source=EXPONENTIAL),
        dtypes("most", (F32,), source=EXPONENTIAL),
        dtypes("initial", (F32,), source=EXPONENTIAL),
        dtypes("reduced", (*NARROW_FLOATS, TF32), source=EXPONENTIAL),
        command_among(("idle", *LOADING), source=EXPONENTIAL),
        loads_initial(source=EXPONENTIAL),
        known_result(source=EXPONENTIAL),
    )

    @staticmethod
    def compute(
        data: Array,
        most: Array,
        initial: Array | None,
        command: str,
        accumulator: Array | None,
    ) -> tuple[Array, Array | None, Array | None]:
        value = np.exp(data - most)
        loaded = initial if command == "load_reduce" else None
        return value, *accumulate("add", command, value, accumulator, loaded)

    def cycles(self, arch: Arch) -> int:
        """Four elements per cycle of the Scalar Engine and partition."""
        rate = 4 * arch.clocks_ghz["scalar"] / arch.clocks_ghz["vector"]
        return stream_cycles(arch, "vector", self.data.free / rate)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            most=chip("column", 64, 1),
            reduced=chip("column", 64, 1),
            command="reset_reduce",
        )


class TensorScalarReduce(VectorAccumulating, engine="vector"):
    """Write data `op0` operand0 in float32, and reduce it into the accumulators with `reduce_op`.

    operand0 and initial are one value per partition or a number; a unary op0 takes none. `command`
    says what the Vector Engine's accumulators do with the reduction along the free dimensions
    ("load_reduce" starts from initial); `reduced`, [P, 1], takes what they hold then, with
    `negate` minus that.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    operand0: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    op0: str
    initial: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    reduced: Pattern | None = writes("SBUF", "PSUM", default=None, column=True)
    reduce_op: str
    command: str = "reset_reduce"
    negate: bool = False

    indirect = Indirect(("dst", "data"), "data", REDUCE)
    cost_source = "NKI release 2.26.1, nki.isa.tensor_scalar_reduce"
    rules = (
        same_elements("dst", "data", source=REDUCE),
        column("operand0", "data", source=REDUCE),
        column("initial", "data", source=REDUCE),
        column("reduced", "data", source=REDUCE),
        dtypes("operand0", (F32,), source=REDUCE),
        dtypes("initial", (F32,), source=REDUCE),
        known_op("op0"),
        arithmetic("op0", source=REDUCE),
        Rule(
            "a binary operator needs operand0",
            lambda i, _: has_operand(i.op0, i.operand0),
            REDUCE,
        ),
        unary_alone(("op0", "operand0"), source=REDUCE),
        reduce_op_among(("add", "multiply", "maximum", "minimum"), source=REDUCE),
        command_among(LOADING, source=REDUCE),
        loads_initial(source=REDUCE),
    )

    @staticmethod
    def compute(
        data: Array,
        operand0: Array | None,
        op0: str,
        initial: Array | None,
        reduce_op: str,
        command: str,
        negate: bool,
        accumulator: Array,
    ) -> tuple[Array, Array, Array]:
        value = apply(op0, data, operand0).astype(np.float32, copy=False)
        loaded = initial if command == "load_reduce" else None
        held, after = accumulate(reduce_op, command, value, accumulator, loaded)
        assert held is not None and after is not None
        return value, -held if negate else held, after

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition, 64 more to read the accumulators."""
        return stream_cycles(arch, "vector", self.data.free) + self.read_cycles(arch)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            operand0=chip("column", 64, 1),
            op0="subtract",
            reduce_op="add",
            reduced=chip("column", 64, 1),
        )


class TensorScalarCumulative(VectorAccumulating, engine="vector"):
    """Scan: s[i] = (data[i] `op0` operand0) `op1` s[i-1]; dst[i] = s[i], in float32.

    s[-1] is what `command` makes of the Vector Engine's accumulators: the identity of op1
    ("reset_reduce"), what they hold ("reduce"), or initial ("load_reduce"). They hold the last
    s[i] afterwards. operand0 and initial are one value per partition or a number.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    operand0: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True)
    op0: str
    initial: Pattern | float | None = reads(
        "SBUF", "PSUM", default=None, immediate=True, column=True
    )
    op1: str
    command: str = "reset_reduce"

    arrives = "flat"
    indirect = Indirect(("dst", "data"), "data", CUMULATIVE)
    cost_source = "assumed"
    rules = (
        same_elements("dst", "data", source=CUMULATIVE),
        column("operand0", "data", source=CUMULATIVE),
        column("initial", "data", source=CUMULATIVE),
        dtypes("dst", (*NARROW_FLOATS, F8E4M3FN, *SMALL_INTEGERS), source=CUMULATIVE),
        dtypes("data", (*NARROW_FLOATS, F8E4M3FN, *SMALL_INTEGERS), source=CUMULATIVE),
        dtypes("operand0", (F32,), source=CUMULATIVE),
        dtypes("initial", (F32,), source=CUMULATIVE),
        known_op("op0", arity=2),
        arithmetic("op0", source=CUMULATIVE),
        Rule(
            "{op1} must be add, subtract, multiply, maximum or minimum",
            lambda i, _: i.op1 in ("add", "subtract", "multiply", "maximum", "minimum"),
            CUMULATIVE,
        ),
        command_among(LOADING, source=CUMULATIVE),
        loads_initial(source=CUMULATIVE),
    )

    @staticmethod
    def compute(
        data: Array,
        operand0: Array,
        op0: str,
        initial: Array | None,
        op1: str,
        command: str,
        accumulator: Array,
    ) -> tuple[Array, Array]:
        mapped = apply(op0, data, operand0).astype(np.float32, copy=False)
        start = {"reset_reduce": ALU_OPS[op1].identity, "reduce": accumulator}.get(command, initial)
        state = np.broadcast_to(np.float32(start).reshape(-1), len(data))
        result = np.empty_like(mapped)
        for index in range(mapped.shape[1]):
            state = apply(op1, mapped[:, index], state)
            result[:, index] = state
        return result, state[:, None]

    def cycles(self, arch: Arch) -> int:
        """Two cycles per element of a partition, as tensor_tensor_scan."""
        return stream_cycles(arch, "vector", 2 * self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32), data=chip("a", 64, 32), operand0=1.0, op0="multiply", op1="add"
        )
