"""Data movement: the DMA engines' copies, gathers and scatters between any two memories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from glia.base.dtype import S32, from_numpy
from glia.base.errors import Unspecified
from glia.isa.alu import apply
from glia.isa.examples import chip, hbm
from glia.isa.kit import Array, IndexCheck, Instr, Rule, reads, updates, writes
from glia.isa.numerics import narrow, widen
from glia.isa.operand import Memory, Pattern
from glia.isa.rules import WORDS, column, dtypes

if TYPE_CHECKING:
    from glia.arch import Arch

COPY = "NKI nki.isa.dma_copy"
MODES = ("unknown", "none", "swdge", "hwdge")
COMPUTE = "NKI nki.isa.dma_compute"
ISSUERS = ("sync", "scalar", "gpsimd", "vector", "tensor")
MOVED = ("dst", "src", "dsts", "srcs")  # the operands whose elements travel
MODEL = "DMA bandwidth guide and DMA overview: rate per engine, overhead per descriptor"


class OutOfBounds(IndexError):
    """An index of a gather or scatter names no row."""


class Transfer(Instr, engine="sync", engines=ISSUERS, is_abstract=True):
    """Base of all DMA instructions: the cost of issuing and of moving.

    `on` is the engine that issues it, `queue` the ring its descriptors wait in.
    """

    arrives_by_dma = True
    uses_every_engine: ClassVar[bool] = False  # else the partitions on chip decide
    takes_packed: ClassVar[tuple[str, ...]] = ("dst", "src")
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
        sides: dict[str, int] = {}
        for name, _, pattern in self.operands():
            if name in MOVED:
                sides[name] = sides.get(name, 0) + pattern.bytes
        return max(sides.values(), default=0)

    def rate(self, arch: Arch) -> float:
        """The part of the DMA engines' rate that a transfer of this kind reaches."""
        return 1.0

    def transfer_nanoseconds(self, arch: Arch) -> float:
        """Time the DMA engines are busy with it, when every engine takes an equal share."""
        descriptors = self.descriptors()
        engines = min(arch.dma_engines, descriptors)
        rate = arch.dma_bytes_per_ns * engines * self.rate(arch)
        overhead = arch.dma_descriptor_ns * -(-descriptors // engines)
        return self.moved_bytes() / rate + overhead

    def cycles(self, arch: Arch) -> int:
        """Cycles the issuing engine spends on starting the transfer."""
        return max(1, round(arch.dma_issue_ns * arch.clocks_ghz[self.runs_on]))


class DescribedTransfer(Transfer, is_abstract=True):
    """A transfer that says where its descriptors come from, and how urgent it is.

    `dge_mode` is unknown (the compiler chooses), none (descriptors lie in memory before the program
    starts), swdge (GpSimd makes them) or hwdge (Sync or Scalar have them made in hardware).
    `priority` is 0 to 3, lower being more urgent. Subclasses declare both, after their operands.
    """

    hints: ClassVar[tuple[str, ...]] = ("dge_mode", "priority")


IN_HARDWARE = Rule(
    "hardware makes descriptors from generation 3 on, for Sync and Scalar",
    lambda i, arch: (
        i.dge_mode != "hwdge"
        or (arch.capabilities.has_hardware_dge and i.runs_on in ("sync", "scalar"))
    ),
    COPY,
)
IN_SOFTWARE = Rule(
    "GpSimd issues the transfers whose descriptors it makes",
    lambda i, _: i.dge_mode != "swdge" or i.runs_on == "gpsimd",
    COPY,
)


def priority_holds(source: str) -> Rule:
    """How urgent a transfer is can be said from generation 4 on."""
    return Rule(
        "{priority} must be 0 to 3 and needs generation 4",
        lambda i, arch: (
            i.priority is None or (arch.capabilities.has_dma_priority and 0 <= i.priority <= 3)
        ),
        source,
    )


PRIORITY = priority_holds(COPY)
INDEXED = (
    Rule(
        "{dge_mode} must be unknown or swdge: software describes rows that are chosen by index",
        lambda i, _: i.dge_mode in ("unknown", "swdge"),
        COPY,
    ),
    IN_SOFTWARE,
    PRIORITY,
)


class DmaCopy(DescribedTransfer):
    """Copy src to dst, both in row-major order of their patterns, whatever their shapes.

    The same dtype is copied bit by bit; another is converted through float32.
    """

    dst: Pattern = writes("HBM", "SBUF", "PSUM")
    src: Pattern = reads("HBM", "SBUF", "PSUM")
    dge_mode: str = "unknown"
    priority: int | None = None

    arrives = "natural"
    rules = (
        Rule(
            "{dst} and {src} must have the same number of elements",
            lambda i, _: i.dst.elements == i.src.elements,
            COPY,
        ),
        Rule(
            "{dge_mode} must be unknown, none, swdge or hwdge",
            lambda i, _: i.dge_mode in MODES,
            COPY,
        ),
        IN_HARDWARE,
        IN_SOFTWARE,
        PRIORITY,
        Rule(
            "with descriptors made in hardware dst and src must have the same dtype",
            lambda i, _: i.dge_mode != "hwdge" or i.dst.dtype is i.src.dtype,
            "NKI release 0.3.0, nki.isa.dma_copy",
        ),
    )

    @property
    def is_exact(self) -> bool:
        return self.dst.dtype is self.src.dtype

    @staticmethod
    def compute(src: Array) -> Array:
        return src

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("out", 64, 32), src=hbm("x", 64, 32), queue="q0")


def selected(indices: Array, rows: int, out_of_bounds: str) -> Array:
    """Which partitions have a valid index; OutOfBounds when one has not and that is an error."""
    valid = (indices >= 0) & (indices < rows)
    if out_of_bounds == "error" and not valid.all():
        wrong = indices[~valid][0]
        raise OutOfBounds(f"index {wrong} is out of bounds for {rows} rows")
    return valid


def are_distinct(indices: Array) -> Array:
    """Whether no two integers of a list are equal."""
    is_same = indices.reshape(-1, 1) == indices.reshape(1, -1)
    found: Array = (~is_same | np.eye(len(indices), dtype=np.bool_)).all()
    return found


OUT_OF_BOUNDS = Rule(
    "{out_of_bounds} must be error or skip", lambda i, _: i.out_of_bounds in ("error", "skip"), COPY
)


COMBINES = Rule("{combine} must be empty or add", lambda i, _: i.combine in ("", "add"), COMPUTE)


def converted(rows: Array, like: Array) -> Array:
    """Rows in the dtype of another array: bit by bit in their own, else through float32."""
    return rows if rows.dtype == like.dtype else narrow(widen(rows), from_numpy(like.dtype))


CHECKED = (
    Rule(
        "each of {given} must have as many partitions as {indices} and one element in each",
        lambda i, _: all(p.elements == p.partitions == i.indices.partitions for p in i.given),
        COPY,
    ),
    Rule(
        "{limits} and {extents} must have a number for each of {given}",
        lambda i, _: len(i.given) == len(i.limits) == len(i.extents),
        COPY,
    ),
    Rule(
        "each of {given} must be an integer",
        lambda i, _: all(p.dtype.is_integer for p in i.given),
        COPY,
    ),
)


class IndexedTransfer(DescribedTransfer, is_abstract=True):
    """A transfer of rows that are chosen by index.

    `given` are the indices that `indices` was computed from, before it was made to fit the table:
    those outside 0..limits are reported when it runs, which changes no value. `extents` are those
    of the dimensions that they index. Subclasses declare all three.
    """

    hints: ClassVar = (*DescribedTransfer.hints, "given", "limits", "extents")

    def index_checks(self) -> tuple[IndexCheck, ...]:
        checked: list[tuple[Pattern, ...]] = [getattr(self, "given")]  # noqa: B009
        numbers = (getattr(self, name) for name in ("limits", "extents"))
        return tuple(IndexCheck(*each) for each in zip(*checked, *numbers, strict=True))


class DmaGather(IndexedTransfer, engine="gpsimd", engines=ISSUERS):
    """Copy rows chosen by index: partition p of dst [P, F] = row indices[p] of src.

    src lies in HBM; its first dimension is the indexed one (step and number of rows), the others
    are one row. With `combine` = "add" the row is added to dst's partition, in float32. An index
    outside 0..rows-1 is an error, or with `skip` leaves dst's partition as it is.
    """

    dst: Pattern = updates("SBUF", "HBM", raw=True)
    src: Pattern = reads("HBM", raw=True)
    indices: Pattern = reads("SBUF", raw=True)
    given: tuple[Pattern, ...] = reads("SBUF", raw=True, several=True, default=())
    combine: str = ""
    out_of_bounds: str = "error"
    dge_mode: str = "unknown"
    priority: int | None = None
    limits: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()

    arrives = "memory"
    tables = ("src",)
    rules = (
        Rule(
            "a partition of dst must hold one row of src",
            lambda i, _: i.dst.free == i.src.free,
            COPY,
        ),
        column("indices", "dst", source=COPY),
        dtypes("indices", WORDS, source=COPY),
        COMBINES,
        OUT_OF_BOUNDS,
        *INDEXED,
        *CHECKED,
    )

    def access(self, name: str) -> str:
        if name == "dst" and not self.combine and self.out_of_bounds == "error":
            return "writes"
        return super().access(name)

    def may_be_fresh(self, name: str) -> bool:
        """Partitions whose index is skipped stay as they are."""
        return name == "dst" and self.out_of_bounds == "skip" and not self.combine

    def rows_touched(self, name: str, views: Mapping[str, Array]) -> Array | None:
        """The rows that indices name, and the partitions that take one."""
        index = views["indices"].reshape(-1)
        valid = (index >= 0) & (index < views["src"].shape[0])
        return {"dst": np.flatnonzero(valid), "src": index[valid]}.get(name)

    def moved_bytes(self) -> int:
        """The bytes of the rows that are copied, not of the whole table."""
        return self.dst.bytes

    def descriptors(self) -> int:
        """One for each row."""
        return self.dst.partitions

    @staticmethod
    def compute(dst: Array, src: Array, indices: Array, combine: str, out_of_bounds: str) -> None:
        index = indices.reshape(-1)
        valid = selected(index, src.shape[0], out_of_bounds)
        rows = src[np.where(valid, index, 0)].reshape(dst.shape)
        if combine:
            rows = apply(combine, widen(dst), widen(rows))
        rows = converted(rows, dst)
        if valid.all():
            dst[...] = rows
        else:
            dst[valid] = rows[valid]

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("out", 64, 32),
            src=hbm("table", 100, 32),
            indices=chip("index", 64, 1, dtype=S32),
            queue="q0",
        )


class DmaScatter(IndexedTransfer, engine="gpsimd", engines=ISSUERS):
    """Store rows by index: row indices[p] of dst = partition p of src [P, F], in order of p.

    dst lies in HBM; its first dimension is the indexed one, the others are one row. With `combine`
    = "add" rows are added in float32, rows named several times once for each. `unique_indices`
    promises that no row is named twice; what happens otherwise is then not documented. An index
    outside 0..rows-1 is an error, or with `skip` not stored.
    """

    dst: Pattern = updates("HBM", raw=True)
    src: Pattern = reads("SBUF", "HBM", raw=True)
    indices: Pattern = reads("SBUF", raw=True)
    given: tuple[Pattern, ...] = reads("SBUF", raw=True, several=True, default=())
    combine: str = ""
    out_of_bounds: str = "error"
    unique_indices: bool = False
    dge_mode: str = "unknown"
    priority: int | None = None
    limits: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()

    arrives = "memory"
    tables = ("dst",)
    rules = (
        Rule(
            "a partition of src must hold one row of dst",
            lambda i, _: i.src.free == i.dst.free,
            COMPUTE,
        ),
        column("indices", "src", source=COMPUTE),
        dtypes("indices", WORDS, source=COMPUTE),
        COMBINES,
        OUT_OF_BOUNDS,
        *INDEXED,
        *CHECKED,
    )

    def may_be_fresh(self, name: str) -> bool:
        """Rows are read only to be added to; those that no index names stay as they are."""
        return name == "dst" and not self.combine

    def rows_touched(self, name: str, views: Mapping[str, Array]) -> Array | None:
        """The rows that indices name."""
        index = views["indices"].reshape(-1)
        valid = (index >= 0) & (index < views["dst"].shape[0])
        return index[valid] if name == "dst" else None

    def moved_bytes(self) -> int:
        """The bytes of the rows that are stored; read as well when they are added to."""
        return self.src.bytes * (2 if self.combine else 1)

    def descriptors(self) -> int:
        """One for each row."""
        return self.src.partitions

    @staticmethod
    def compute(
        dst: Array,
        src: Array,
        indices: Array,
        combine: str,
        out_of_bounds: str,
        unique_indices: bool,
    ) -> None:
        index = indices.reshape(-1)
        valid = selected(index, dst.shape[0], out_of_bounds)
        is_recorded = hasattr(dst, "put_rows") and valid.all()
        if unique_indices and not are_distinct(index if is_recorded else index[valid]):
            raise Unspecified("a scatter with unique_indices that names a row twice")
        rows = src.reshape(len(index), *dst.shape[1:])

        def merged(before: Array, row: Array) -> Array:
            return converted(apply(combine, widen(before), widen(row)) if combine else row, dst)

        if is_recorded:  # dst is an array that records what is written
            dst.put_rows(index, merged(dst[index], rows))  # type: ignore[attr-defined]
            return
        for p in np.flatnonzero(valid):
            dst[index[p]] = merged(dst[index[p]], rows[p])

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=hbm("table", 100, 32),
            src=chip("a", 64, 32),
            indices=chip("index", 64, 1, dtype=S32),
            combine="add",
            queue="q0",
        )
