"""GpSimd: gathers, searches and selections by its eight cores, each beside 16 partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from glia.arch import generations_from
from glia.base.dtype import BF16, F32, S32, U16, U32
from glia.base.errors import Unspecified
from glia.isa.cost import dispatched_cycles
from glia.isa.examples import chip
from glia.isa.instructions.dma import OutOfBounds
from glia.isa.kit import Array, Instr, Rule, reads, updates, writes
from glia.isa.numerics import of_rows, widen
from glia.isa.operand import Pattern
from glia.isa.rules import dtypes, same_dtype, same_elements, same_partitions

if TYPE_CHECKING:
    from glia.arch import Arch

LOCAL = "NKI nki.isa.local_gather"
GATHER = "NKI nki.isa.nc_n_gather"
NONZERO = "NKI nki.isa.nonzero_with_count"
BOUNDS = "NKI nki.isa.sequence_bounds"
TOPK = "NKI nki.isa.topk"
CORE_PARTITIONS = 16  # partitions that one GpSimd core reaches
RUNS = (1, 2, 4, 8, 16, 32)
GATHER_GROUP = 512  # elements per partition that one group of ISA instructions gathers


def _indices_per_core(i: LocalGather) -> int:
    every = i.index.free * CORE_PARTITIONS
    return every if i.num_valid_indices is None else i.num_valid_indices


def _spans_whole_cores(i: LocalGather, _: Arch) -> bool:
    partitions = {i.src_buffer.partitions, i.index.partitions, i.dst.partitions}
    return len(partitions) == 1 and i.dst.partitions % CORE_PARTITIONS == 0


class LocalGather(Instr, engine="gpsimd"):
    """Gather runs of elements with the indices of a core's 16 partitions, alike in each of them.

    A core reads its 16 partitions of index column by column as one list, of which
    `num_valid_indices` count (all with None). In every one of its partitions dst gets, for each
    index in turn, the `num_elem_per_idx` elements of src_buffer from that place on; the index
    counts elements. Beyond the partition's end the meaning is not documented.
    """

    dst: Pattern = writes("SBUF")
    src_buffer: Pattern = reads("SBUF", raw=True)
    index: Pattern = reads("SBUF", raw=True)
    num_elem_per_idx: int = 1
    num_valid_indices: int | None = None

    arrives = "flat"
    takes_packed: ClassVar = ("dst", "src_buffer")
    cost_source = "NKI release 2.26.1, nki.isa.local_gather"
    rules = (
        Rule(
            "{dst}, {src_buffer}, {index} must have the same number of partitions, a multiple "
            "of 16",
            _spans_whole_cores,
            LOCAL,
        ),
        same_dtype("dst", "src_buffer", source=LOCAL),
        dtypes("index", (U16,), source=LOCAL),
        Rule(
            "{num_elem_per_idx} must be 1, 2, 4, 8, 16 or 32",
            lambda i, _: i.num_elem_per_idx in RUNS,
            LOCAL,
        ),
        Rule(
            "{num_valid_indices} must be 1 to the indices of 16 partitions",
            lambda i, _: 1 <= _indices_per_core(i) <= i.index.free * CORE_PARTITIONS,
            LOCAL,
        ),
        Rule("a core takes at most 4096 indices", lambda i, _: _indices_per_core(i) <= 4096, LOCAL),
        Rule(
            "a partition of dst must hold num_elem_per_idx elements for each valid index",
            lambda i, _: i.dst.free == _indices_per_core(i) * i.num_elem_per_idx,
            LOCAL,
        ),
    )

    @staticmethod
    def compute(
        src_buffer: Array, index: Array, num_elem_per_idx: int, num_valid_indices: int | None
    ) -> Array:
        run = np.arange(num_elem_per_idx)
        parts = []
        for first in range(0, len(index), CORE_PARTITIONS):
            rows = slice(first, first + CORE_PARTITIONS)
            listed = index[rows].reshape(-1, order="F")[:num_valid_indices].astype(np.int64)
            places = (listed[:, None] + run).reshape(-1)
            if places.max(initial=0) >= src_buffer.shape[1]:
                raise Unspecified(
                    f"local_gather of element {places.max()} of {src_buffer.shape[1]}"
                )
            parts.append(src_buffer[rows][:, places])
        return np.concatenate(parts)

    def cycles(self, arch: Arch) -> int:
        """A dispatch, and the published rate of runs, which longer ones use better."""
        run = self.num_elem_per_idx
        gathered = _indices_per_core(self) * run
        rate = ((28 + 4 * run) / (4 * run)) / min(4 / self.dst.dtype.bytes, run)
        return round(arch.gpsimd_dispatch_cycles + gathered / rate)

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("got", 64, 64),
            src_buffer=chip("a", 64, 32),
            index=chip("places", 64, 4, dtype=U16),
        )


@of_rows
def elements_at(data: Array, places: Array) -> Array:
    """The elements of each row at these places of it."""
    return np.take_along_axis(data, places, axis=1)


class NcNGather(Instr, engine="gpsimd"):
    """Gather within each partition: dst[p, i] = data[p, indices[p, i]], free dimensions flattened.

    An index outside the partition is an error.
    """

    dst: Pattern = writes("SBUF")
    data: Pattern = reads("SBUF", raw=True)
    indices: Pattern = reads("SBUF", raw=True)

    arrives = "flat"
    takes_packed: ClassVar = ("dst", "data")
    cost_source = "assumed: no formula is published; a dispatch for each 512 elements"
    rules = (
        same_partitions("dst", "data", "indices", source=GATHER),
        same_elements("dst", "indices", source=GATHER),
        same_dtype("dst", "data", source=GATHER),
        dtypes("indices", (U32,), source=GATHER),
    )

    @staticmethod
    def compute(data: Array, indices: Array) -> Array:
        inside = indices < np.int64(data.shape[1])
        if not inside.all():
            raise OutOfBounds(
                f"index {indices[~inside][0]} is out of bounds for {data.shape[1]} elements"
            )
        return elements_at(data, indices.astype(np.int64))

    def cycles(self, arch: Arch) -> int:
        """A dispatch for each group of 512 elements, and one cycle per element and partition."""
        groups = -(-self.dst.free // GATHER_GROUP)
        return round(arch.gpsimd_dispatch_cycles) * groups + self.dst.free

    @classmethod
    def example(cls) -> Self:
        return cls(
            dst=chip("got", 64, 5), data=chip("a", 64, 32), indices=chip("places", 64, 5, dtype=U32)
        )


class NonzeroWithCount(Instr, engine="gpsimd"):
    """List where elements are not 0: their places, then padding, last their count.

    Only partitions 0, 16, ... 112 are read and written, the first of each core. A place counts
    from 0 plus `index_offset`; `padding_val` fills what is left of dst, which has one element
    more than src.
    """

    dst: Pattern = updates("SBUF", raw=True)
    src: Pattern = reads("SBUF", raw=True)
    index_offset: int = 0
    padding_val: int = -1

    arrives = "flat"
    generations = generations_from(3)
    partly_written: ClassVar = ("dst", "src")
    cost_source = "assumed: no formula is published; a dispatch and one element per cycle"
    rules = (
        same_partitions("dst", "src", source=NONZERO),
        Rule(
            "{dst} must have one element per partition more than src",
            lambda i, _: i.dst.free == i.src.free + 1,
            NONZERO,
        ),
        dtypes("src", (F32, S32), source=NONZERO),
        dtypes("dst", (S32,), source=NONZERO),
        Rule(
            "{index_offset} and {padding_val} must be of 32 bits",
            lambda i, _: all(-(2**31) <= v < 2**31 for v in (i.index_offset, i.padding_val)),
            NONZERO,
        ),
    )

    @staticmethod
    def compute(dst: Array, src: Array, index_offset: int, padding_val: int) -> Array:
        result = dst.copy()
        for row in range(0, len(src), CORE_PARTITIONS):
            found = np.flatnonzero(src[row])
            result[row] = padding_val
            result[row, : len(found)] = found + index_offset
            result[row, -1] = len(found)
        return result

    def cycles(self, arch: Arch) -> int:
        """A dispatch, then every element of a partition."""
        return dispatched_cycles(arch, self.src.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("found", 64, 33, dtype=S32), src=chip("a", 64, 32))


class SequenceBounds(Instr, engine="gpsimd"):
    """Tell for each of n segment ids where its segment begins and ends: dst [1, 2, n].

    A segment is a run of equal ids. The first row holds the place of its first element, the second
    that after its last. Ids of 0 are padding: n and -1.
    """

    dst: Pattern = writes("SBUF")
    segment_ids: Pattern = reads("SBUF", raw=True)

    arrives = "flat"
    cost_source = "assumed: no formula is published; a dispatch and two passes"
    rules = (
        Rule(
            "{segment_ids} must lie in one partition, and dst too with twice as many elements",
            lambda i, _: (
                i.dst.partitions == i.segment_ids.partitions == 1
                and i.dst.free == 2 * i.segment_ids.free
            ),
            BOUNDS,
        ),
        dtypes("segment_ids", (F32, S32), source=BOUNDS),
        dtypes("dst", (F32, S32), source=BOUNDS),
    )

    @staticmethod
    def compute(segment_ids: Array) -> Array:
        ids = segment_ids[0]
        count = len(ids)
        changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        edges = np.concatenate([[0], changes, [count]])
        number = np.searchsorted(edges, np.arange(count), side="right") - 1
        is_padding = ids == 0
        first = np.where(is_padding, count, edges[number])
        last = np.where(is_padding, -1, edges[number + 1])
        return np.concatenate([first, last])[None].astype(np.int32)

    def cycles(self, arch: Arch) -> int:
        """A dispatch, and two passes over the elements."""
        return dispatched_cycles(arch, 2 * self.segment_ids.free)

    @classmethod
    def example(cls) -> Self:
        return cls(dst=chip("bounds", 1, 2, 32), segment_ids=chip("ids", 1, 32))


class Topk(Instr, engine="gpsimd"):
    """Find the K greatest of the first n elements of each core's snake, and their places in it.

    A snake runs through the core's 16 partitions column by column: element i is in partition
    i % 16, column i // 16. Results lie in a snake too, least value first; K is the number of
    elements per partition of val_dst, so that most of it stays as it is. NaN is not documented.
    """

    val_dst: Pattern = updates("SBUF", raw=True)
    idx_dst: Pattern = updates("SBUF", raw=True)
    src: Pattern = reads("SBUF", raw=True)
    n: int

    arrives = "flat"
    partly_written: ClassVar = ("val_dst", "idx_dst", "src")
    assumed: ClassVar = (
        "results lie in a snake as the source does, and nothing else of dst is written",
        "of equal values those that come first are taken, and listed in order",
    )
    cost_source = "NKI nki.isa.topk: 4 n + K cycles"
    rules = (
        same_elements("val_dst", "idx_dst", source=TOPK),
        Rule(
            "{val_dst}, {src} must have the same number of partitions, a multiple of 16",
            lambda i, _: i.val_dst.partitions == i.src.partitions and i.src.partitions % 16 == 0,
            TOPK,
        ),
        dtypes("src", (BF16,), source=TOPK),
        dtypes("val_dst", (BF16,), source=TOPK),
        dtypes("idx_dst", (U32,), source=TOPK),
        Rule("n must be 8 to 65535", lambda i, _: 8 <= i.n < 65536, TOPK),
        Rule(
            "{val_dst} must have at most n elements per partition, and at most 32767",
            lambda i, _: i.val_dst.free <= min(i.n, 32767),
            TOPK,
        ),
        Rule(
            "{src} must have room for n elements in 16 partitions",
            lambda i, _: i.src.free * CORE_PARTITIONS >= i.n,
            TOPK,
        ),
    )

    @staticmethod
    def compute(val_dst: Array, idx_dst: Array, src: Array, n: int) -> tuple[Array, Array]:
        values, places = val_dst.copy(), idx_dst.copy()
        count = val_dst.shape[1]
        rows, columns = np.arange(count) % CORE_PARTITIONS, np.arange(count) // CORE_PARTITIONS
        for first in range(0, len(src), CORE_PARTITIONS):
            snake = widen(src[first : first + CORE_PARTITIONS].reshape(-1, order="F")[:n])
            if np.isnan(snake).any():
                raise Unspecified("topk of elements of which some are NaN")
            greatest = np.argsort(-snake, kind="stable")[:count]
            listed = greatest[np.argsort(snake[greatest], kind="stable")]
            values[first + rows, columns] = snake[listed].astype(values.dtype)
            places[first + rows, columns] = listed
        return values, places

    def cycles(self, arch: Arch) -> int:
        """Four cycles for each element of the snake, one for each result."""
        return 4 * self.n + self.val_dst.free

    @classmethod
    def example(cls) -> Self:
        return cls(
            val_dst=chip("most", 64, 8, dtype=BF16),
            idx_dst=chip("where", 64, 8, dtype=U32),
            src=chip("snake", 64, 4, dtype=BF16),
            n=42,
        )
