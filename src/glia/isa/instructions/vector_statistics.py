"""The Vector Engine's scans, statistics and searches along the free dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from glia.base.dtype import U16, U32
from glia.isa.alu import apply
from glia.isa.cost import stream_cycles
from glia.isa.examples import chip
from glia.isa.kit import Array, Instr, Rule, reads, writes
from glia.isa.numerics import of_rows, scanned
from glia.isa.operand import Pattern
from glia.isa.rules import (
    FLOATS,
    arithmetic,
    at_most_dimensions,
    column,
    dtypes,
    free_between,
    free_elements,
    known_op,
    not_both_in_psum,
    same_elements,
    same_partitions,
)

if TYPE_CHECKING:
    from glia.arch import Arch

SCAN = "NKI nki.isa.tensor_tensor_scan"
BN_STATS = "NKI nki.isa.bn_stats"
BN_AGGR = "NKI nki.isa.bn_aggr"
MAX8 = "NKI nki.isa.max8"
FIND8 = "NKI nki.isa.nc_find_index8"
REPLACE8 = "NKI nki.isa.nc_match_replace8"
FORMULAS = "NKI release 2.26.1, nki.isa cost formulas"


class TensorTensorScan(Instr, engine="vector"):
    """Scan along the free dimensions: s[i] = (data0[i] `op0` s[i-1]) `op1` data1[i]; dst[i] = s[i].

    s[-1] is `initial`, one value per partition or a number. The state is float32. `reverse0` and
    `reverse1` exchange the two sides of their operator.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    data0: Pattern = reads("SBUF", "PSUM")
    data1: Pattern = reads("SBUF", "PSUM")
    initial: Pattern | float = reads("SBUF", "PSUM", immediate=True, column=True)
    op0: str
    op1: str
    reverse0: bool = False
    reverse1: bool = False

    arrives = "flat"
    cost_source = FORMULAS
    rules = (
        same_elements("dst", "data0", "data1", source=SCAN),
        column("initial", "data0", source=SCAN),
        known_op("op0", arity=2),
        known_op("op1", arity=2),
        arithmetic("op0", "op1", source=SCAN),
        not_both_in_psum("data0", "data1", source=SCAN),
    )

    @staticmethod
    def compute(
        data0: Array,
        data1: Array,
        initial: Array,
        op0: str,
        op1: str,
        reverse0: bool,
        reverse1: bool,
    ) -> Array:
        def step(state: Array, column0: Array, column1: Array) -> Array:
            state = apply(op0, column0, state, reverse0).astype(data0.dtype, copy=False)
            return apply(op1, state, column1, reverse1)

        return scanned(step, initial, data0, data1)

    def cycles(self, arch: Arch) -> int:
        """Two cycles per element of a partition."""
        return stream_cycles(arch, "vector", 2 * self.data0.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            data0=chip("a", 64, 32),
            data1=chip("b", 64, 32),
            initial=0.0,
            op0="multiply",
            op1="add",
        )


class BnStats(Instr, engine="vector"):
    """Write (count, mean, variance * count) of data's even elements, then of its odd ones."""

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")

    arrives = "flat"
    cost_source = FORMULAS
    rules = (
        same_partitions("dst", "data", source=BN_STATS),
        free_elements("dst", 6, source=BN_STATS),
        free_between("data", 1, 512, source=BN_STATS),
    )

    @staticmethod
    def compute(data: Array) -> Array:
        columns = []
        for half in (data[:, 0::2], data[:, 1::2]):
            count = half.shape[1]
            mean = half.sum(axis=1) / np.float32(max(count, 1))
            spread = np.square(half - mean[:, None]).sum(axis=1)
            columns += [np.full_like(mean, count), mean, spread]
        return np.stack(columns, axis=1)

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return stream_cycles(arch, "vector", self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("six", 64, 6), data=chip("a", 64, 32))


class BnAggr(Instr, engine="vector"):
    """Combine triples (count, mean, variance * count) into dst = (mean, variance)."""

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")

    arrives = "flat"
    cost_source = FORMULAS
    rules = (
        same_partitions("dst", "data", source=BN_AGGR),
        free_elements("dst", 2, source=BN_AGGR),
        Rule("{data} must hold whole triples", lambda i, _: i.data.free % 3 == 0, BN_AGGR),
    )

    @staticmethod
    def compute(data: Array) -> Array:
        triples = data.reshape(data.shape[0], -1, 3)
        count, mean, spread = triples[:, :, 0], triples[:, :, 1], triples[:, :, 2]
        total = count.sum(axis=1)
        joint = (count * mean).sum(axis=1) / total
        between = (count * np.square(mean - joint[:, None])).sum(axis=1)
        return np.stack([joint, (spread.sum(axis=1) + between) / total], axis=1)

    def cycles(self, arch: Arch) -> int:
        """Thirteen cycles per triple."""
        return stream_cycles(arch, "vector", 13 * (self.data.free / 3))

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("pair", 64, 2), data=chip("six", 64, 6))


@of_rows
def greatest(data: Array, count: int) -> Array:
    """The greatest elements of each row, the greatest first, [P, count]; NaN is above all.

    They keep their bits, which those of NaN do not when NumPy sorts values on every host.
    """
    places = np.argsort(data, axis=1)[:, : -count - 1 if data.shape[1] > count else None : -1]
    return np.take_along_axis(data, places, axis=1)


class Max8(Instr, engine="vector"):
    """Write the eight greatest elements of each partition of data, greatest first."""

    dst: Pattern = writes("SBUF", "PSUM")
    data: Pattern = reads("SBUF", "PSUM")

    arrives = "flat"
    cost_source = FORMULAS
    rules = (
        same_partitions("dst", "data", source=MAX8),
        at_most_dimensions("data", 3, source=MAX8),
        free_elements("dst", 8, source=MAX8),
        free_between("data", 8, 16384, source=MAX8),
    )

    @staticmethod
    def compute(data: Array) -> Array:
        return greatest(data, 8)

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return stream_cycles(arch, "vector", self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("eight", 64, 8), data=chip("a", 64, 32))


@of_rows
def first_occurrences(data: Array, vals: Array, order: range) -> Array:
    """For each value the index of its first occurrence not taken yet, -1 when missing.

    `order` says in which order columns of `vals` take occurrences.
    """
    found = np.full(vals.shape, -1, dtype=np.int64)
    taken = np.zeros(data.shape, dtype=bool)
    rows = np.arange(len(data))
    for i in order:
        hits = (data == vals[:, i : i + 1]) & ~taken
        index = np.argmax(hits, axis=1)
        is_found = hits[rows, index]
        found[:, i] = np.where(is_found, index, -1)
        taken[rows, index] |= is_found
    return found


@of_rows
def with_elements(data: Array, places: Array, value: np.float32) -> Array:
    """The data with a value at these places of each row, except those below 0."""
    result = data.copy()
    rows, columns = np.nonzero(places >= 0)
    result[rows, places[rows, columns]] = value
    return result


def _indices(found: Array) -> Array:
    """Indices as they are written: all ones where nothing was found."""
    return np.where(found < 0, 0xFFFFFFFF, found).astype(np.uint32)


class FindIndex8(Instr, engine="vector"):
    """Write, for each of eight values, the index in data of its first occurrence.

    A value that vals holds several times takes successive occurrences, in ascending order. A
    missing value gets an index of all ones.
    """

    dst: Pattern = writes("SBUF")
    data: Pattern = reads("SBUF", "PSUM")
    vals: Pattern = reads("SBUF", "PSUM")

    arrives = "flat"
    cost_source = FORMULAS
    rules = (
        same_partitions("dst", "data", "vals", source=FIND8),
        at_most_dimensions("data", 3, source=FIND8),
        at_most_dimensions("vals", 3, source=FIND8),
        free_elements("dst", 8, source=FIND8),
        free_elements("vals", 8, source=FIND8),
        free_between("data", 8, 16384, source=FIND8),
        dtypes("dst", (U32, U16), source=FIND8),
        dtypes("data", FLOATS, source=FIND8),
    )

    @staticmethod
    def compute(data: Array, vals: Array) -> Array:
        return _indices(first_occurrences(data, vals, range(8)))

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return stream_cycles(arch, "vector", self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("found", 64, 8, dtype=U32), data=chip("a", 64, 32), vals=chip("eight", 64, 8)
        )


class MatchReplace8(Instr, engine="vector"):
    """Copy data to dst with the first occurrence of each of eight values replaced by `imm`.

    `index` takes where they were. A value that vals holds several times replaces as many
    occurrences, the first of them for its last place in vals. A missing value gets an index of all
    ones.
    """

    dst: Pattern = writes("SBUF", "PSUM")
    index: Pattern | None = writes("SBUF", "PSUM", default=None)
    data: Pattern = reads("SBUF", "PSUM")
    vals: Pattern = reads("SBUF", "PSUM")
    imm: float

    arrives = "flat"
    cost_source = FORMULAS
    rules = (
        same_elements("dst", "data", source=REPLACE8),
        same_partitions("data", "vals", source=REPLACE8),
        same_partitions("data", "index", source=REPLACE8),
        free_elements("vals", 8, source=REPLACE8),
        free_elements("index", 8, source=REPLACE8),
        free_between("data", 8, 16384, source=REPLACE8),
        dtypes("data", FLOATS, source=REPLACE8),
        dtypes("dst", FLOATS, source=REPLACE8),
        dtypes("index", (U32, U16), source=FIND8),
    )
    assumed = ("index holds what that of nc_find_index8 may, all ones for a missing value",)

    @staticmethod
    def compute(data: Array, vals: Array, imm: float) -> tuple[Array, Array]:
        found = first_occurrences(data, vals, range(7, -1, -1))
        return with_elements(data, found, np.float32(imm)), _indices(found)

    def cycles(self, arch: Arch) -> int:
        """One element per cycle and partition."""
        return stream_cycles(arch, "vector", self.data.free)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32), data=chip("a", 64, 32), vals=chip("eight", 64, 8), imm=0.0
        )
