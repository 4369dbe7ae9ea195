"""Data movement: the DMA engines' copies, gathers and scatters between any two memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from glia.base.dtype import S32, from_numpy
from glia.isa.alu import apply
from glia.isa.kit import Array, Instr, Rule, reads, updates, writes
from glia.isa.numerics import narrow, widen
from glia.isa.operand import Memory, Pattern
from glia.isa.rules import column, dtypes

if TYPE_CHECKING:
    from glia.arch import Arch

COPY = "NKI nki.isa.dma_copy"
COMPUTE = "NKI nki.isa.dma_compute"
ISSUERS = ("sync", "scalar", "gpsimd", "vector", "tensor")
MOVED = ("dst", "src", "dsts", "srcs")  # the operands whose elements travel
MODEL = "DMA bandwidth guide and DMA overview: rate per engine, overhead per descriptor"


class OutOfBounds(IndexError):
    """An index of a gather or scatter names no row."""


class Transfer(Instr, engine="sync", engines=ISSUERS, is_abstract=True):
    """What all DMA instructions share: the cost of issuing and of moving.

    `on` is the engine that issues it, `queue` the ring its descriptors wait in.
    """

    arrives_by_dma = True
    takes_packed: ClassVar = ("dst", "src")
    cost_source = MODEL

    def descriptors(self) -> int:
        """How many contiguous pieces the transfer falls into."""
        pieces = [p.bytes // max(1, p.contiguous_bytes) for p in self.moved()]
        rows = [p.partitions for p in self.moved() if p.memory is not Memory.HBM]
        return max(1, *pieces, *rows)

    def moved(self) -> list[Pattern]:
        """The operands whose elements travel."""
        return [pattern for name, _, pattern in self.operands() if name in MOVED]

    def moved_bytes(self) -> int:
        """Bytes that travel: those of the wider side."""
        return max((p.bytes for p in self.moved()), default=0)

    def transfer_nanoseconds(self, arch: Arch) -> float:
        """Time the DMA engines are busy with it, when every engine takes an equal share."""
        descriptors = self.descriptors()
        engines = min(arch.dma_engines, descriptors)
        rate = arch.dma_bytes_per_ns * engines
        overhead = arch.dma_descriptor_ns * -(-descriptors // engines)
        return self.moved_bytes() / rate + overhead

    def cycles(self, arch: Arch) -> int:
        """Cycles the issuing engine spends on starting the transfer."""
        return max(1, round(arch.dma_issue_ns * arch.clocks_ghz[self.runs_on]))


class DmaCopy(Transfer, engine="sync", engines=ISSUERS):
    """Copy src to dst, both in row-major order of their patterns, whatever their shapes.

    The same dtype is copied bit by bit; another is converted through float32.
    """

    dst: Pattern = writes("HBM", "SBUF", "PSUM")
    src: Pattern = reads("HBM", "SBUF", "PSUM")

    arrives = "natural"
    rules = (
        Rule(
            "dst and src must have the same number of elements",
            lambda i, _: i.dst.elements == i.src.elements,
            COPY,
        ),
    )

    @property
    def is_exact(self) -> bool:
        return self.dst.dtype is self.src.dtype

    @staticmethod
    def compute(src: Array) -> Array:
        return src


def _row_elements(table: Pattern) -> int:
    count = 1
    for _, extent in table.dims[1:]:
        count *= extent
    return count


def _selected(indices: Array, rows: int, out_of_bounds: str) -> Array:
    """Which partitions have a valid index; OutOfBounds when one has not and that is an error."""
    valid = (indices >= 0) & (indices < rows)
    if out_of_bounds == "error" and not valid.all():
        wrong = indices[~valid][0]
        raise OutOfBounds(f"index {wrong} is out of bounds for {rows} rows")
    return valid


_OUT_OF_BOUNDS = Rule(
    "out_of_bounds must be error or skip", lambda i, _: i.out_of_bounds in ("error", "skip"), COPY
)


class DmaGather(Transfer, engine="gpsimd", engines=ISSUERS):
    """Copy rows chosen by index: partition p of dst [P, F] = row indices[p] of src.

    src lies in HBM; its first dimension is the indexed one (step and number of rows), the others
    are one row. An index outside 0..rows-1 is an error, or with `skip` leaves dst's partition as it
    is.
    """

    dst: Pattern = writes("SBUF", "HBM")
    src: Pattern = reads("HBM", raw=True)
    indices: Pattern = reads("SBUF", raw=True)
    out_of_bounds: str = "error"

    arrives = "memory"
    rules = (
        Rule(
            "a partition of dst must hold one row of src",
            lambda i, _: i.dst.free == _row_elements(i.src),
            COPY,
        ),
        column("indices", "dst", source=COPY),
        dtypes("indices", (S32,), source=COPY),
        _OUT_OF_BOUNDS,
    )

    def access(self, name: str) -> str:
        if name == "dst" and self.out_of_bounds == "skip":
            return "updates"
        return super().access(name)

    def may_be_fresh(self, name: str) -> bool:
        """Partitions whose index is skipped stay as they are."""
        return name == "dst" and self.out_of_bounds == "skip"

    def moved_bytes(self) -> int:
        """The bytes of the rows that are copied, not of the whole table."""
        return self.dst.bytes

    def descriptors(self) -> int:
        """One for each row."""
        return self.dst.partitions

    @staticmethod
    def compute(dst: Array, src: Array, indices: Array, out_of_bounds: str) -> None:
        index = indices.reshape(-1)
        valid = _selected(index, src.shape[0], out_of_bounds)
        rows = narrow(src[np.where(valid, index, 0)], from_numpy(dst.dtype)).reshape(dst.shape)
        if valid.all():
            dst[...] = rows
        else:
            dst[valid] = rows[valid]


class DmaScatter(Transfer, engine="gpsimd", engines=ISSUERS):
    """Store rows by index: row indices[p] of dst = partition p of src [P, F], in order of p.

    dst lies in HBM; its first dimension is the indexed one, the others are one row. With `combine`
    = "add" rows are added in float32, rows named several times once for each. An index outside
    0..rows-1 is an error, or with `skip` not stored.
    """

    dst: Pattern = updates("HBM", raw=True)
    src: Pattern = reads("SBUF", "HBM", raw=True)
    indices: Pattern = reads("SBUF", raw=True)
    combine: str = ""
    out_of_bounds: str = "error"

    arrives = "memory"
    rules = (
        Rule(
            "a partition of src must hold one row of dst",
            lambda i, _: i.src.free == _row_elements(i.dst),
            COMPUTE,
        ),
        column("indices", "src", source=COMPUTE),
        dtypes("indices", (S32,), source=COMPUTE),
        Rule("combine must be empty or add", lambda i, _: i.combine in ("", "add"), COMPUTE),
        _OUT_OF_BOUNDS,
    )

    def may_be_fresh(self, name: str) -> bool:
        """Rows are read only to be added to; those that no index names stay as they are."""
        return name == "dst" and not self.combine

    def moved_bytes(self) -> int:
        """The bytes of the rows that are stored; read as well when they are added to."""
        return self.src.bytes * (2 if self.combine else 1)

    def descriptors(self) -> int:
        """One for each row."""
        return self.src.partitions

    @staticmethod
    def compute(dst: Array, src: Array, indices: Array, combine: str, out_of_bounds: str) -> None:
        index = indices.reshape(-1)
        valid = _selected(index, dst.shape[0], out_of_bounds)
        dtype = from_numpy(dst.dtype)
        rows = src.reshape(len(index), *dst.shape[1:])
        for p in np.flatnonzero(valid):
            row = rows[p]
            if combine:
                row = apply(combine, widen(dst[index[p]]), widen(row))
            dst[index[p]] = narrow(row, dtype)
