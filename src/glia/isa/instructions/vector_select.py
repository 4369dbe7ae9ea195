"""The Vector Engine's selections that keep the greatest element: by a range, and by a predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from glia.arch import generations_from
from glia.base.dtype import F32, PRED, S8, S16, S32, TF32, U8, U16, U32
from glia.isa.accumulators import (
    VectorAccumulating,
    accumulate,
    command_among,
    known_result,
    reduce_op_among,
)
from glia.isa.alu import ALU_OPS
from glia.isa.cost import stream_cycles
from glia.isa.examples import chip
from glia.isa.kit import Array, Rule, reads, writes
from glia.isa.operand import Pattern
from glia.isa.rules import (
    FLOATS,
    column,
    dtypes,
    not_both_in_psum,
    same_elements,
)

if TYPE_CHECKING:
    from glia.arch import Arch

RANGE = "NKI nki.isa.range_select"
SELECT = "NKI nki.isa.select_reduce"
RANGE_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
LEAST = float(np.finfo(np.float32).min)
EXACT_INDICES = 1 << 24  # whole numbers below are exact in float32


class RangeSelect(VectorAccumulating, engine="vector"):
    """Write data where its index compares with two bounds, the least float32 elsewhere.

    The index of an element of a partition is `start` + its position along the free dimensions; it
    is compared as index `compare0` bound0 and index `compare1` bound1, in float32. The bounds are
    one value per partition. `command` says what the Vector Engine's accumulators do with the
    greatest value written; `reduced`, [P, 1], takes what they hold then.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    bound0: Pattern = reads("SBUF", "PSUM", column=True)
    compare0: str
    bound1: Pattern = reads("SBUF", "PSUM", column=True)
    compare1: str
    reduced: Pattern | None = writes("SBUF", "PSUM", default=None, column=True)
    start: int = 0
    false_value: float = LEAST
    command: str = "reset_reduce"
    reduce_op: str = "maximum"

    generations = generations_from(3)
    arrives = "flat"
    cost_source = "NKI release 2.26.1, nki.isa.range_select"
    rules = (
        same_elements("dst", "data", source=RANGE),
        column("bound0", "data", source=RANGE),
        column("bound1", "data", source=RANGE),
        column("reduced", "data", source=RANGE),
        dtypes("data", FLOATS, source=RANGE),
        dtypes("bound0", (F32,), source=RANGE),
        dtypes("bound1", (F32,), source=RANGE),
        Rule(
            f"{{compare0}} and {{compare1}} must be one of {', '.join(RANGE_COMPARISONS)}",
            lambda i, _: {i.compare0, i.compare1} <= set(RANGE_COMPARISONS),
            RANGE,
        ),
        Rule(
            "{false_value} must be the least float32",
            lambda i, _: np.float32(i.false_value) == np.float32(LEAST),
            RANGE,
        ),
        Rule(
            "start and start + elements per partition must be within 2**24",
            lambda i, _: i.start >= -EXACT_INDICES and i.start + i.data.free - 1 <= EXACT_INDICES,
            RANGE,
        ),
        command_among(("idle", "reset", "reduce", "reset_reduce"), source=RANGE),
        reduce_op_among(("maximum",), source=RANGE),
        known_result(source=RANGE),
    )

    @staticmethod
    def compute(
        data: Array,
        bound0: Array,
        bound1: Array,
        compare0: str,
        compare1: str,
        start: int,
        false_value: float,
        command: str,
        reduce_op: str,
        accumulator: Array | None,
    ) -> tuple[Array, Array | None, Array | None]:
        index = np.arange(start, start + data.shape[1]).astype(np.float32)[None, :]
        first = ALU_OPS[compare0].compute(index, bound0)
        second = ALU_OPS[compare1].compute(index, bound1)
        value = np.where(first & second, data, np.float32(false_value))
        return value, *accumulate(reduce_op, command, value, accumulator)

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return stream_cycles(arch, "vector", self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            bound0=chip("column", 64, 1),
            compare0="greater_equal",
            bound1=chip("column", 64, 1),
            compare1="less",
            reduced=chip("column", 64, 1),
        )


class SelectReduce(VectorAccumulating, engine="vector"):
    """Write data where predicate is not 0 (with `reverse` where it is 0), on_false elsewhere.

    on_false is one value per partition or a number. `command` says what the Vector Engine's
    accumulators do with the greatest value written; `reduced`, [P, 1], takes what they hold then.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")
    predicate: Pattern = reads("SBUF", "PSUM", raw=True)
    on_false: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True)
    reduced: Pattern | None = writes("SBUF", "PSUM", default=None, column=True)
    reverse: bool = False
    command: str = "idle"
    reduce_op: str = "maximum"

    cost_source = "assumed"
    rules = (
        same_elements("dst", "data", "predicate", source=SELECT),
        column("on_false", "data", source=SELECT),
        column("reduced", "data", source=SELECT),
        Rule(
            "{data} must not hold tfloat32 or 32-bit integers",
            lambda i, _: i.data.dtype not in (TF32, S32, U32),
            SELECT,
        ),
        dtypes("predicate", (S8, U8, S16, U16, PRED), source=SELECT),
        dtypes("reduced", FLOATS, source=SELECT),
        not_both_in_psum("data", "predicate", source=SELECT),
        command_among(("idle", "reduce", "reset_reduce"), source=SELECT),
        reduce_op_among(("maximum",), source=SELECT),
        known_result(source=SELECT),
    )

    @staticmethod
    def compute(
        data: Array,
        predicate: Array,
        on_false: Array,
        reverse: bool,
        command: str,
        reduce_op: str,
        accumulator: Array | None,
    ) -> tuple[Array, Array | None, Array | None]:
        chosen = predicate == 0 if reverse else predicate != 0
        value = np.where(chosen, data, on_false)
        return value, *accumulate(reduce_op, command, value, accumulator)

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition, 64 more to read the accumulators."""
        return stream_cycles(arch, "vector", self.data.free) + self.read_cycles(arch)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            predicate=chip("bits", 64, 32, dtype=U16),
            on_false=0.0,
        )
