"""Data movement that transposes, and that computes on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from glia.arch import generations_from
from glia.base.dtype import BF16, U32
from glia.isa.examples import chip, hbm
from glia.isa.instructions.dma import (
    COMPUTE,
    IN_HARDWARE,
    INDEXED,
    ISSUERS,
    OUT_OF_BOUNDS,
    PRIORITY,
    DescribedTransfer,
    Transfer,
    selected,
)
from glia.isa.kit import Array, Rule, reads, updates, writes
from glia.isa.operand import Memory, Pattern
from glia.isa.rules import dtypes, same_dtype

if TYPE_CHECKING:
    from glia.arch import Arch

TRANSPOSE = "NKI nki.isa.dma_transpose"
AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}  # by the number of dimensions
MOST_SOURCES = 16
MOST_INNER = 128  # innermost elements that descriptors made at run time take
HARDWARE_ROWS = (1, 2, 4, 8, 16)


def _has_transposed_shape(i: DmaTranspose, _: Arch) -> bool:
    shape = i.src.shape
    return i.dst.shape == tuple(shape[axis] for axis in AXES.get(len(shape), ()))


def _hardware_can_transpose(i: DmaTranspose, _: Arch) -> bool:
    if i.dge_mode != "hwdge" or len(i.src.shape) not in AXES:
        return True
    rows, *_inner, last = shape = i.src.shape
    if len(shape) == 2:
        return rows == 16 and last <= MOST_INNER
    return rows in HARDWARE_ROWS and rows * shape[-2] % 16 == 0 and last <= MOST_INNER


class DmaTranspose(DescribedTransfer):
    """Transpose on the way: two dimensions to (1, 0), three to (2, 1, 0), four to (3, 1, 2, 0).

    All DMA engines write one tile together, whatever its partitions (Trainium2 guide).
    """

    uses_every_engine = True
    dst: Pattern = writes("SBUF")
    src: Pattern = reads("HBM", "SBUF")
    axes: tuple[int, ...] = ()
    dge_mode: str = "unknown"
    priority: int | None = None

    arrives = "natural"
    rules = (
        Rule(
            "{axes} must be empty, (1, 0), (2, 1, 0) or (3, 1, 2, 0), by the dimensions of src",
            lambda i, _: len(i.src.shape) in AXES and i.axes in ((), AXES[len(i.src.shape)]),
            TRANSPOSE,
        ),
        Rule(
            "{dst} must have the dimensions of src in the order of axes",
            _has_transposed_shape,
            TRANSPOSE,
        ),
        same_dtype("dst", "src", source=TRANSPOSE),
        Rule(
            "{dge_mode} must be unknown, none or hwdge",
            lambda i, _: i.dge_mode in ("unknown", "none", "hwdge"),
            TRANSPOSE,
        ),
        IN_HARDWARE,
        PRIORITY,
        Rule(
            "in hardware src must have 16 rows, or with 3 or 4 dimensions 1, 2, 4, 8 or 16 that "
            "make a multiple of 16 with the last but one, and at most 128 elements innermost",
            _hardware_can_transpose,
            TRANSPOSE,
        ),
        Rule(
            "in hardware elements must have 2 bytes",
            lambda i, _: i.dge_mode != "hwdge" or i.src.dtype.bytes == 2,
            TRANSPOSE,
        ),
    )

    @property
    def is_exact(self) -> bool:
        return True

    def rate(self, arch: Arch) -> float:
        is_within = self.src.memory is Memory.SBUF
        return arch.dma_transpose_sbuf_rate if is_within else arch.dma_transpose_rate

    @staticmethod
    def compute(src: Array, axes: tuple[int, ...]) -> Array:
        return src.transpose(AXES[src.ndim])

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("turned", 32, 64), src=hbm("x", 64, 32), queue="q0")


def _gathered_shape(i: DmaGatherTranspose, _: Arch) -> bool:
    shape = (i.dst.shape[-1], *i.src.shape[1:])
    return i.dst.shape == tuple(shape[axis] for axis in AXES.get(len(shape), ()))


def _index_rows(i: DmaGatherTranspose, _: Arch) -> bool:
    partitions, columns = i.indices.partitions, i.indices.free
    if columns > 1 and partitions != 128:
        return False
    return 16 <= partitions <= 128 and partitions % 16 == 0


class DmaGatherTranspose(DescribedTransfer, engine="gpsimd", engines=ISSUERS):
    """Gather rows of src by index and transpose them: dst[..., j] = row number j, transposed.

    src lies in HBM, its first dimension the indexed one (step and number of rows). Row j is chosen
    by the j-th of the indices, read column by column. An index outside 0..rows-1 is an error,
    or with `skip` leaves that column of dst as it is.
    """

    dst: Pattern = updates("SBUF", raw=True)
    src: Pattern = reads("HBM", raw=True)
    indices: Pattern = reads("SBUF", raw=True)
    out_of_bounds: str = "error"
    dge_mode: str = "unknown"
    priority: int | None = None

    arrives = "natural"
    generations = generations_from(3)
    partly_written: ClassVar = ("dst",)
    rules = (
        Rule(
            "{dst} must have the dimensions of the gathered rows of src, transposed",
            _gathered_shape,
            TRANSPOSE,
        ),
        same_dtype("dst", "src", source=TRANSPOSE),
        Rule("elements must have 2 bytes", lambda i, _: i.src.dtype.bytes == 2, TRANSPOSE),
        Rule(
            "a row must have at most 128 elements innermost, and with 3 dimensions one of 1",
            lambda i, _: (
                i.src.shape[-1] <= MOST_INNER and (len(i.src.shape) < 4 or 1 in i.src.shape[1:3])
            ),
            TRANSPOSE,
        ),
        dtypes("indices", (U32,), source=TRANSPOSE),
        Rule(
            "{indices} must have 16, 32, ... or 128 partitions, 128 with more than one column",
            _index_rows,
            TRANSPOSE,
        ),
        Rule(
            "there must be an index for each gathered row, and a multiple of 16 rows",
            lambda i, _: i.indices.elements >= i.dst.shape[-1] and i.dst.shape[-1] % 16 == 0,
            TRANSPOSE,
        ),
        OUT_OF_BOUNDS,
        *INDEXED,
    )

    def access(self, name: str) -> str:
        if name == "dst" and self.out_of_bounds == "error":
            return "writes"
        return super().access(name)

    def rate(self, arch: Arch) -> float:
        return arch.dma_transpose_rate

    def moved_bytes(self) -> int:
        """The bytes of the rows that are gathered, not of the whole table."""
        return self.dst.bytes

    def descriptors(self) -> int:
        """One for each row."""
        return self.dst.shape[-1]

    def attributes(self) -> dict[str, object]:
        """The attributes, and how many rows are gathered."""
        return {**super().attributes(), "rows": self.dst.shape[-1]}

    @staticmethod
    def compute(
        dst: Array | None, src: Array, indices: Array, out_of_bounds: str, rows: int
    ) -> Array:
        listed = indices.reshape(len(indices), -1).reshape(-1, order="F")[:rows]
        valid = selected(listed, len(src), out_of_bounds)
        turned = src[np.where(valid, listed, 0)].transpose(AXES[src.ndim])
        return turned if dst is None else np.where(valid, turned, dst)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("columns", 64, 16, dtype=BF16),
            src=hbm("table", 100, 64, dtype=BF16),
            indices=chip("rows", 16, 1, dtype=U32),
            queue="q0",
        )


class DmaCompute(Transfer):
    """Add several sources, element by element: dst = srcs[0] * scales[0] + srcs[1] * scales[1] ...

    All have as many elements, in row-major order of their patterns. Sums are float32, from the
    first source on. Scales must be 1.
    """

    dst: Pattern = writes("HBM", "SBUF")
    srcs: tuple[Pattern, ...] = reads("HBM", "SBUF", several=True)
    scales: tuple[float, ...] = ()
    reduce_op: str = "add"

    arrives = "natural"
    takes_packed: ClassVar[tuple[str, ...]] = ()
    cost_source = "Trainium3 architecture guide: half the DMA rate before NeuronCore-v4"
    rules = (
        Rule(
            "dst and every source must have the same number of elements",
            lambda i, _: all(src.elements == i.dst.elements for src in i.srcs),
            COMPUTE,
        ),
        Rule("there are at most 16 sources", lambda i, _: len(i.srcs) <= MOST_SOURCES, COMPUTE),
        Rule(
            "{scales} must be empty, or 1 for each source",
            lambda i, _: i.scales in ((), (1.0,) * len(i.srcs)),
            COMPUTE,
        ),
        Rule("{reduce_op} must be add", lambda i, _: i.reduce_op == "add", COMPUTE),
    )

    def rate(self, arch: Arch) -> float:
        return arch.dma_compute_rate

    @staticmethod
    def compute(srcs: tuple[Array, ...], scales: tuple[float, ...], reduce_op: str) -> Array:
        total = srcs[0].reshape(-1)
        for src in srcs[1:]:
            total = total + src.reshape(-1)
        return total

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("a", 64, 32), srcs=(hbm("x", 64, 32), chip("b", 64, 32)), queue="q0")
