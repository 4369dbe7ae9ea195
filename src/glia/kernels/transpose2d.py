"""Transposition of two free dimensions: a copy with a permuted access pattern.

What: y[p, b, a] = x[p, a, b].

Shapes: x [P, A * B] in HBM, any dtype, with A and B given; y [P, B * A] of the same dtype. P, A and
B may be any numbers, as long as a row fits into a partition of SBUF twice over.

Layout: p lies on the partitions in both, so that no element changes its partition and no
transposing instruction is needed: an access pattern that steps by B elements reads down a column,
and one copy writes what it reads side by side.

Roofline: DMA carries a read and a write of contiguous rows, 2.8 ns per element of 128 partitions in
float32 on Trainium2, 1.4 ns in bfloat16. Vector copies one element a cycle where the source is not
contiguous in float32, 1.0 ns, and two in 16 bits; on Trainium1 a stride of 16 bytes or more takes
two cycles, 1.8 ns against 3.8 ns of DMA. It is bound by DMA.

Tiling: 128 rows at a time, and of long rows a part: columns of x are cut so that a transfer moves a
few KiB of a partition. A part of the columns is a contiguous part of the result, where the pieces
of x are short; pieces under 512 bytes are avoided by taking more columns as long as they fit.
"""

from __future__ import annotations

from glia.kernels.parts.rows import bytes_of, split
from glia.kernels.parts.stages import fits_in_sbuf
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

MIN_RUN_BYTES = 512  # bytes of x in one piece
TRANSFER_BYTES = 8192


@jit
def transpose2d(x: NkiTensor, shape: tuple[int, int]) -> NkiTensor:
    """[P, A * B] -> [P, B * A] with shape (A, B): every row as a transposed matrix."""
    partitions, (high, wide) = x.shape[0], shape
    assert x.shape[1] == high * wide, f"{shape} is no shape of rows of {x.shape[1]} elements"
    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="y")
    source = x.reshape((partitions, high, wide))
    result = y.reshape((partitions, wide, high))
    for start, count in split(partitions, nl.tile_size.pmax):
        rows = nl.ds(start, count)
        for first, columns in split(wide, _columns_per_transfer(high, wide, bytes_of(x.dtype))):
            loaded = nl.ndarray((count, high, columns), x.dtype)
            transposed = nl.ndarray((count, columns, high), x.dtype)
            part = nl.ds(first, columns)
            nisa.dma_copy(loaded, source[rows, :, part], engine=nisa.engine.sync)
            nisa.tensor_copy(transposed, loaded.permute((0, 2, 1)), engine=nisa.vector_engine)
            nisa.dma_copy(result[rows, part], transposed, engine=nisa.gpsimd_engine)
    return y


def _columns_per_transfer(high: int, wide: int, width: int) -> int:
    """The number of columns in one transfer."""
    wanted = max(TRANSFER_BYTES // (high * width), MIN_RUN_BYTES // width)
    columns = min(wide, max(1, wanted))
    while columns > 1 and not fits_in_sbuf(4 * columns * high * width):
        columns = -(-columns // 2)
    return columns
