"""Average pooling: every window of an image becomes its mean.

What: out[c, i, j] = mean of image[c, i*p : i*p+p, j*p : j*p+p], windows side by side, p = pool.

Shapes: image [C, H, W] in HBM, any floating dtype; out [C, H // p, W // p] of the same dtype. Rows
and columns that do not fill a window are left out.

Layout: one row of windows, p image rows, is what a partition holds. In HBM the C * (H // p) rows of
windows of an image without remainder follow each other, so that channels and rows together go on
the partitions: a few channels fill all 128 as well as many do. A partition takes several rows of
windows at once, until a transfer is a few KiB per partition, where DMA runs at its full rate.

Roofline: every element is read once and 1 / p**2 as many are written, and one addition is done for
each: there is nothing to reuse. The DMA engines move 4 bytes for each float32, 2 for each bfloat16;
Vector adds one element per cycle in each partition whatever the dtype. On Trainium2 float32 is
bound by DMA (368 GB/s against 491 GB/s of Vector's 0.96 GHz * 128 * 4 bytes), bfloat16 by Vector.
The documentation's own example, [2, 6, 6], is so small that nothing but latency counts: a load and
a store with 1.2 us each, and 1.3 us until Scalar has its table.

Tiling: the reduction needs no loop. A view orders the free dimensions (window row, window,
row in the window, column in the window), and one tensor_reduce sums over the last two. Scalar
multiplies by 1 / p**2 and rounds once, so that Vector does nothing but add. Loads are issued by the
Sync engine and stores by GpSimd, which have nothing else to do; three rotating buffers let the load
of one tile, the sum of another and the store of a third go on together.
"""

from __future__ import annotations

from glia.kernels.parts.rows import TRANSFER_BYTES, BufferRing, bytes_of, row_tiles
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

BUFFERS = 3


@jit
def average_pool2d(image: NkiTensor, pool: int) -> NkiTensor:
    """Mean of each pool x pool window: [C, H, W] -> [C, H // pool, W // pool]."""
    channels, height, width = image.shape
    assert pool >= 1, f"no windows of {pool}"
    high, wide = height // pool, width // pool
    assert high and wide, f"a window of {pool} does not fit an image of {height} x {width}"
    out = nl.ndarray((channels, high, wide), image.dtype, buffer=nl.shared_hbm, name="out")
    windows = image[:, : high * pool, : wide * pool]
    if height % pool:  # leftover rows lie between the channels, which then cannot share partitions
        for channel in range(channels):
            _pool_rows(windows[channel], out[channel], pool)
    else:
        rows = channels * height
        _pool_rows(windows.reshape((rows, wide * pool)), out.reshape((rows // pool, wide)), pool)
    return out


def _pool_rows(image: NkiTensor, out: NkiTensor, pool: int) -> None:
    """Pool an image [rows * pool, width] whose rows of windows are independent."""
    rows, wide = out.shape
    row_bytes = pool * image.shape[1] * bytes_of(image.dtype)
    most = min(-(-rows // nl.tile_size.pmax), max(1, TRANSFER_BYTES // row_bytes))
    source = image.reshape((rows, pool, image.shape[1]))
    pmax = min(nl.tile_size.pmax, rows)
    loaded = BufferRing(BUFFERS, (pmax, most, pool, wide, pool), image.dtype)
    summed = BufferRing(BUFFERS, (pmax, most, wide), nl.float32)
    stored = BufferRing(BUFFERS, (pmax, most, wide), image.dtype)
    for first, partitions, each in row_tiles(rows, most):
        row_range = nl.ds(first, partitions * each)
        data = loaded.next()[:partitions, :each]
        total, mean = summed.next()[:partitions, :each], stored.next()[:partitions, :each]
        nisa.dma_copy(data, source[row_range], engine=nisa.engine.sync)
        nisa.tensor_reduce(total, nl.add, data.permute((0, 1, 3, 2, 4)), axis=(3, 4))
        nisa.activation(mean, nl.copy, total, scale=1.0 / pool**2)
        nisa.dma_copy(out[row_range], mean, engine=nisa.gpsimd_engine)
