"""Depthwise convolution along a sequence: one filter per channel.

What: out[n, c, q] = sum over s of image[n, c, q + s] * taps[c, s], without padding, step 1.

Shapes: image [N, C, W], taps [C, S] in HBM, float32 or a 16-bit float; out [N, C, W - S + 1].

Layout: channels on the partitions, the sequence on the free dimension. A shift by s is then a view
of the same tile that starts s elements later: nothing is copied for it.

Roofline: S multiplications and additions for each output. Vector does both in one
scalar_tensor_tensor, in two cycles: 2.1 ns for 128 channels on Trainium2. The Tensor Engine, with a
diagonal matrix of the 128 channels' taps as its stationary operand, does them in one cycle of its
2.4 GHz with bfloat16 (0.42 ns) and in four with float32 (1.7 ns), and PSUM adds up over s. Of its
multipliers 127 in 128 meet a zero; it is the fastest engine for the job all the same. The bound is
S cycles of the Tensor Engine for a column of 128 outputs, or 2 elements to be moved (1.4 ns with
bfloat16), whichever is more: with bfloat16 the transfers, up to S = 3.

Tiling: 512 outputs are a bank of PSUM and one chain of S products. Eight rotating banks let the
Tensor Engine go on while Vector and Scalar, alternately, evacuate results. A tile is loaded with
S - 1 columns more than it gives. The diagonals are made once, an identity matrix scaled by one
column of taps each, and serve the whole batch.
"""

from __future__ import annotations

from glia.kernels.parts.rows import BufferRing, bytes_of, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

TILE_BYTES = 16384  # of a partition
BUFFERS = 3


@jit
def depthwise_conv1d(image: NkiTensor, taps: NkiTensor) -> NkiTensor:
    """Every channel of [N, C, W] with its filter of [C, S]: [N, C, W - S + 1]."""
    batch, channels, width = image.shape
    length = taps.shape[1]
    columns = width - length + 1
    assert taps.shape[0] == channels, f"{taps.shape[0]} filters for {channels} channels"
    assert columns > 0, f"filters of {length} are longer than {width} elements"
    out = nl.ndarray((batch, channels, columns), image.dtype, buffer=nl.shared_hbm, name="out")
    pmax = min(nl.tile_size.pmax, channels)
    wide = min(TILE_BYTES // bytes_of(image.dtype), columns)
    loaded = BufferRing(BUFFERS, (pmax, wide + length - 1), image.dtype)
    stored = BufferRing(BUFFERS, (pmax, wide), image.dtype)
    banks = BufferRing(8, (pmax, min(nl.tile_size.psum_bank_fmax, wide)), nl.float32, nl.psum)
    identity = nl.shared_identity_matrix(pmax, nl.float32)
    for channel, partitions in split(channels, pmax):
        diagonals = _diagonals(identity, taps[nl.ds(channel, partitions)], image.dtype)
        for n in range(batch):
            for column, count in split(columns, wide):
                data = loaded.next()[:partitions, : count + length - 1]
                result = stored.next()[:partitions, :count]
                source = image[n, nl.ds(channel, partitions), nl.ds(column, count + length - 1)]
                nisa.dma_copy(data, source, engine=nisa.engine.sync)
                _convolve(result, data, diagonals, banks)
                target = out[n, nl.ds(channel, partitions), nl.ds(column, count)]
                nisa.dma_copy(target, result, engine=nisa.gpsimd_engine)
    return out


def _diagonals(identity: NkiTensor, taps: NkiTensor, dtype: str) -> list[NkiTensor]:
    """For each tap a matrix with the channels' values on its diagonal."""
    partitions, length = taps.shape
    values = nl.ndarray((partitions, length), nl.float32)
    nisa.dma_copy(values, taps, engine=nisa.engine.sync)
    diagonals = []
    for s in range(length):
        matrix = nl.ndarray((partitions, partitions), dtype)
        unit, value = identity[:partitions, :partitions], values[:, s : s + 1]
        nisa.tensor_scalar(matrix, unit, nl.multiply, value)
        diagonals.append(matrix)
    return diagonals


def _convolve(
    result: NkiTensor, data: NkiTensor, diagonals: list[NkiTensor], banks: BufferRing
) -> None:
    """result[:, q] = sum over s of diagonal s times data[:, q + s]."""
    partitions, columns = result.shape
    most = banks.shape[1]
    for number, (start, count) in enumerate(split(columns, most)):
        total = banks.next()[:partitions, :count]
        for s, matrix in enumerate(diagonals):
            moving = data[:, nl.ds(start + s, count)]
            nisa.nc_matmul(total, matrix, moving, accumulate=s > 0)
        piece = result[:, nl.ds(start, count)]
        if number % 2:
            nisa.activation(piece, nl.copy, total)
        else:
            nisa.tensor_copy(piece, total, engine=nisa.vector_engine)
