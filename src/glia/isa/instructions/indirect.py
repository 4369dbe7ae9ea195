"""Tensor indirection of generation 4: elements of partitions that an index on chip chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from glia.arch import generations_from
from glia.base.dtype import S32, U16, U32
from glia.base.errors import Unspecified
from glia.isa.cost import dispatched_cycles, stream_cycles
from glia.isa.examples import chip
from glia.isa.kit import Array, Instr, Rule, reads, updates, writes
from glia.isa.operand import Memory, Pattern
from glia.isa.rules import dtypes, same_dtype, same_partitions

if TYPE_CHECKING:
    from glia.arch import Arch

VIEW = "NKI nki.language.NkiTensor.indirect"
COPY = "NKI nki.isa.tensor_copy, tensor indirection"
ENGINES = ("vector", "scalar", "gpsimd")
GROUPS = (16, 32)  # partitions that share a list: of Vector, Scalar, GpSimd; of the Tensor Engine


class _Indirect(Instr, engine="vector", engines=ENGINES, is_abstract=True):
    """Base of the gather and the scatter of an indirect view."""

    arrives = "flat"
    generations = generations_from(4)
    takes_packed: ClassVar[tuple[str, ...]] = ("dst", "src")
    cost_source = "assumed: one element per cycle, as tensor_copy"
    assumed = (
        "each group of partitions has a list of its own, as the indices of local_gather",
        "offsets are integers of 16 or 32 bits; one outside the partition has no meaning",
    )

    passes: ClassVar[str]  # the operand of which every element passes

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition, after a dispatch on GpSimd."""
        elements = getattr(self, self.passes).free
        if self.runs_on == "gpsimd":
            return dispatched_cycles(arch, elements)
        return stream_cycles(arch, self.runs_on, elements)


def _shared_rules(passes: str) -> tuple[Rule, ...]:
    """The rules of gather and scatter; `passes` is the operand with an element for each offset."""

    def holds(i: Any, _: Arch) -> bool:
        is_whole = i.group in GROUPS and i.index.partitions % i.group == 0
        return is_whole and getattr(i, passes).free <= i.index.free * i.group

    sentence = (
        f"index must hold an offset for each element of a partition of {passes}, in whole groups "
        "of 16 or 32 partitions"
    )
    return (
        same_partitions("dst", "src", "index", source=VIEW),
        same_dtype("dst", "src", source=VIEW),
        Rule(sentence, holds, VIEW),
        dtypes("index", (U16, U32, S32), source="assumed"),
    )


def _offset_lists(index: Array, group: int, count: int, extent: int) -> list[tuple[slice, Array]]:
    """For each group its partitions and its offsets; Unspecified for one outside the partition."""
    found = []
    for first in range(0, len(index), group):
        rows = slice(first, first + group)
        offsets = index[rows].reshape(-1, order="F")[:count].astype(np.int64)
        wrong = offsets[(offsets < 0) | (offsets >= extent)]
        if wrong.size:
            raise Unspecified(f"tensor indirection to element {wrong[0]} of {extent}")
        found.append((rows, offsets))
    return found


class TensorGather(_Indirect):
    """Read an indirect view: element i of each partition of dst is src's at offset i.

    Groups of `group` partitions share a list of offsets, which lies in a snake through their
    partitions of index: offset i is index[i % group, i // group]. An offset counts elements of
    a partition, in the order of src's free dimensions.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    src: Pattern = reads("SBUF", "PSUM", raw=True)
    index: Pattern = reads("SBUF", raw=True)
    group: int = 16

    passes = "dst"
    partly_written: ClassVar = ("src",)
    rules = (
        *_shared_rules(passes),
        Rule(
            "{src} and {index} must start on the same partition",
            lambda i, _: i.src.partition == i.index.partition,
            COPY,
        ),
    )

    def attributes(self) -> dict[str, Any]:
        """How many offsets count."""
        return {**super().attributes(), "count": self.dst.free}

    @staticmethod
    def compute(src: Array, index: Array, group: int, count: int) -> Array:
        lists = _offset_lists(index, group, count, src.shape[1])
        return np.concatenate([src[rows][:, offsets] for rows, offsets in lists])

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("got", 64, 5), src=chip("a", 64, 32), index=chip("places", 64, 1, dtype=U16)
        )


class TensorScatter(_Indirect):
    """Write an indirect view: element i of each partition of src goes to dst's at offset i.

    Offsets are as in tensor_gather. Elements of dst that no offset names stay as they are; what two
    equal offsets of a list leave is not documented.
    """

    dst: Pattern = updates("SBUF", "PSUM", raw=True)
    src: Pattern = reads("SBUF", "PSUM", raw=True)
    index: Pattern = reads("SBUF", raw=True)
    group: int = 16

    passes = "src"
    partly_written: ClassVar = ("dst",)
    rules = (
        *_shared_rules(passes),
        Rule(
            "the Scalar Engine scatters to SBUF only",
            lambda i, _: i.runs_on != "scalar" or i.dst.memory is Memory.SBUF,
            COPY,
        ),
    )

    @staticmethod
    def compute(dst: Array, src: Array, index: Array, group: int) -> Array:
        result = dst.copy()
        for rows, offsets in _offset_lists(index, group, src.shape[1], dst.shape[1]):
            if len(np.unique(offsets)) < len(offsets):
                raise Unspecified("tensor indirection that writes an element twice")
            result[rows, offsets] = src[rows]
        return result

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("a", 64, 32), src=chip("put", 64, 5), index=chip("places", 64, 1, dtype=U16)
        )
