"""GpSimd: index patterns, selection by affine predicates, reduction across partitions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import S32, from_numpy
from glia.isa.alu import ALU_OPS, COMPARISONS, reduce_along
from glia.isa.cost import dispatched_cycles
from glia.isa.examples import chip
from glia.isa.kit import Array, Instr, Rule, reads, writes
from glia.isa.numerics import narrow
from glia.isa.operand import Pattern
from glia.isa.rules import INTEGERS, same_elements

if TYPE_CHECKING:
    from glia.arch import Arch

IOTA = "NKI nki.isa.iota"
SELECT = "NKI nki.isa.affine_select"
PARTITION_REDUCE = "NKI nki.isa.tensor_partition_reduce"
PARTITION_OPS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")
MOST_DIMS = 4  # free dimensions of an index pattern


def _affine_values(
    shape: tuple[int, ...], offset: int, channel_multiplier: int, steps: tuple[int, ...]
) -> Array:
    """offset + partition * channel_multiplier + sum(index * step), int32 with wraparound."""
    values = np.arange(shape[0], dtype=np.int64) * channel_multiplier + offset
    for count, step in zip(shape[1:], steps, strict=True):
        values = values[..., None] + np.arange(count, dtype=np.int64) * step
    return values.astype(np.int32)


def _counts(i: Iota | AffineSelect) -> tuple[int, ...]:
    """The sizes of the pattern's dimensions."""
    return i.counts or i.dst.shape[1:]


def _of_32_bits(i: Iota | AffineSelect, _: Arch) -> bool:
    given = i.attributes()
    values = (Affine.of(given["offset"]).constant, given["channel_multiplier"])
    return all(-(2**31) <= value < 2**31 for value in values)


def _pattern_rules(source: str) -> tuple[Rule, ...]:
    return (
        Rule(
            "{steps} must have one entry for each of counts, or for each free dimension of dst",
            lambda i, _: len(i.steps) == len(_counts(i)),
            source,
        ),
        Rule(
            "{counts} must multiply to the elements per partition of dst",
            lambda i, _: math.prod(_counts(i)) == i.dst.free,
            source,
        ),
        Rule(
            "a pattern has at most 4 dimensions",
            lambda i, _: len(i.steps) <= MOST_DIMS,
            source,
        ),
        Rule(
            "{offset} and {channel_multiplier} must be of 32 bits",
            _of_32_bits,
            source,
        ),
    )


class Iota(Instr, engine="gpsimd"):
    """Write offset + partition * channel_multiplier + sum(index * step).

    There is one step for each dimension of the pattern, whose sizes are `counts` (those of dst's
    free dimensions when left out); dst takes its values in order. The partition counts from dst's
    first. Exact in int32 (wrapping), then converted to dst's dtype.
    """

    dst: Pattern = writes("SBUF")
    offset: int | Affine = 0
    channel_multiplier: int = 0
    steps: tuple[int, ...]
    counts: tuple[int, ...] = ()

    arrives = "natural"
    cost_source = "NKI release 2.26.1, nki.isa.iota"
    rules = _pattern_rules(IOTA)

    @staticmethod
    def compute(
        partitions: int,
        counts: tuple[int, ...],
        offset: int,
        channel_multiplier: int,
        steps: tuple[int, ...],
    ) -> Array:
        return _affine_values((partitions, *counts), offset, channel_multiplier, steps)

    def attributes(self) -> dict[str, Any]:
        """The attributes, and how many partitions and values there are."""
        sizes = {"partitions": self.dst.partitions, "counts": _counts(self)}
        return {**super().attributes(), **sizes}

    def cycles(self, arch: Arch) -> int:
        """A dispatch and one element per cycle and partition."""
        return dispatched_cycles(arch, self.dst.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("count", 64, 32, dtype=S32), offset=3, channel_multiplier=32, steps=(1,)
        )


class AffineSelect(Instr, engine="gpsimd"):
    """Write data where (offset + partition * channel_multiplier + sum(index * step)) `op` 0 holds.

    Elsewhere write `false_value`, a float32. `op` is `compare_op`; steps and `counts` are as in
    iota.
    """

    dst: Pattern = writes("SBUF")
    data: Pattern = reads("SBUF")
    offset: int | Affine = 0
    channel_multiplier: int = 0
    steps: tuple[int, ...]
    counts: tuple[int, ...] = ()
    compare_op: str
    false_value: float | int

    cost_source = "NKI release 2.26.1, nki.isa.affine_select"
    rules = (
        *_pattern_rules(SELECT),
        Rule("{compare_op} must be a comparison", lambda i, _: i.compare_op in COMPARISONS, SELECT),
        same_elements("dst", "data", source=SELECT),
    )

    @property
    def is_exact(self) -> bool:
        return self.dst.dtype is self.data.dtype

    @staticmethod
    def compute(
        data: Array,
        offset: int,
        channel_multiplier: int,
        steps: tuple[int, ...],
        counts: tuple[int, ...],
        compare_op: str,
        false_value: float | int,
    ) -> Array:
        values = _affine_values((len(data), *counts), offset, channel_multiplier, steps)
        chosen = ALU_OPS[compare_op].compute(values, np.int32(0)).reshape(data.shape)
        elsewhere = narrow(np.asarray(np.float32(false_value)), from_numpy(data.dtype))
        return np.where(chosen, data, elsewhere)

    def attributes(self) -> dict[str, Any]:
        """The attributes, and the sizes of the pattern."""
        return {**super().attributes(), "counts": _counts(self)}

    def cycles(self, arch: Arch) -> int:
        """A dispatch and one element per cycle and partition."""
        return dispatched_cycles(arch, self.dst.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data=chip("a", 64, 32),
            steps=(1,),
            compare_op="less",
            false_value=0.0,
        )


class TensorPartitionReduce(Instr, engine="gpsimd"):
    """Reduce across partitions: dst [1, F] = `op` over the partitions of data [P, F].

    Arithmetic is float32; bitwise or and and work on the bits.
    """

    dst: Pattern = writes("SBUF")
    data: Pattern = reads("SBUF")
    op: str

    arrives = "flat"
    cost_source = "assumed: no formula is published; a pass over the row of every partition"
    rules = (
        Rule(
            "{dst} must have one partition and as many elements as a partition of {data}",
            lambda i, _: i.dst.partitions == 1 and i.dst.free == i.data.free,
            PARTITION_REDUCE,
        ),
        Rule(
            f"{{op}} must be one of {', '.join(PARTITION_OPS)}",
            lambda i, _: i.op in PARTITION_OPS,
            PARTITION_REDUCE,
        ),
        Rule(
            "a bitwise operator needs integers",
            lambda i, _: (
                not i.op.startswith("bitwise")
                or (i.dst.dtype is i.data.dtype and i.dst.dtype in INTEGERS)
            ),
            PARTITION_REDUCE,
        ),
    )

    @property
    def is_exact(self) -> bool:
        return self.op.startswith("bitwise")

    @staticmethod
    def compute(data: Array, op: str) -> Array:
        if op == "average":
            return reduce_along("add", data, 0)[None, :] / np.float32(len(data))
        return reduce_along(op, data, 0)[None, :]

    def cycles(self, arch: Arch) -> int:
        """A dispatch, then sixteen partitions at a time, each element once per partition."""
        return dispatched_cycles(arch, 16 * self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("row", 1, 32), data=chip("a", 64, 32), op="add")
