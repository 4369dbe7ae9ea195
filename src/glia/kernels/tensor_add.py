"""Addition of two tensors, element by element: a kernel with nothing but data movement.

What: total = first + second.

Shapes: first and second of any one shape and dtype in HBM; total of the same.

Layout: elements are independent, so any of them may share a partition. The tensors are taken as one
long row, and every partition gets a piece of it without gaps.

Roofline: three elements cross the HBM interface for one addition, which is 1/12 operation a byte in
float32. DMA moves 12 bytes per element, at 368 GB/s on Trainium2 and 272 GB/s on Trainium1, while
Vector needs two cycles for 128 elements in float32 (614 GB/s worth of traffic on Trainium2), half a
cycle in bfloat16: the kernel is bound by DMA everywhere, and Vector is never the one to wait for.

Tiling: each transfer moves 4 KiB of every partition, where DMA is near its full rate; more would
only make the first load and the last store, which nothing overlaps, longer. Three rotating
buffers let loads, additions and stores overlap.
"""

from __future__ import annotations

import math

from glia.kernels.parts.rows import BufferRing, bytes_of, row_tiles
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

TRANSFER_BYTES = 4096
BUFFERS = 3


@jit
def tensor_add(first: NkiTensor, second: NkiTensor) -> NkiTensor:
    """first + second, of one shape and dtype."""
    assert first.shape == second.shape, f"shapes {first.shape} and {second.shape} differ"
    assert first.dtype == second.dtype, f"dtypes {first.dtype} and {second.dtype} differ"
    total = nl.ndarray(first.shape, first.dtype, buffer=nl.shared_hbm, name="total")
    count = math.prod(first.shape)
    add_rows(*(tensor.reshape((count,)) for tensor in (first, second, total)))
    return total


def add_rows(first: NkiTensor, second: NkiTensor, total: NkiTensor) -> None:
    """total = first + second, each one long row."""
    rows, (count,) = (first, second, total), first.shape
    width = TRANSFER_BYTES // bytes_of(first.dtype)
    rings = [BufferRing(BUFFERS, (nl.tile_size.pmax, width), first.dtype) for _ in rows]
    for start, partitions, each in row_tiles(count, width):
        sources = [row[nl.ds(start, partitions * each)].reshape((partitions, each)) for row in rows]
        a, b, result = (ring.next()[:partitions, :each] for ring in rings)
        nisa.dma_copy(a, sources[0], engine=nisa.engine.sync)
        nisa.dma_copy(b, sources[1], engine=nisa.engine.sync)
        nisa.tensor_tensor(result, a, b, nl.add)
        nisa.dma_copy(sources[2], result, engine=nisa.scalar_engine)
