"""The gradient of a convolution for its weights: a product over all pixels of all images.

What, with steps s and padding p, for the gradient of the output g:

    out[o, c, a, b] = sum over n, i, j of g[n, o, i, j] * image[n, c, i*s + a - p, j*s + b - p]

Shapes: image [N, C, H, W], g [N, O, HO, WO] in HBM, both float32 or a 16-bit float; out
[O, C, KH, KW].

Layout: the sum goes over pixels, so pixels have to lie on the partitions, where the images have
their channels. The Tensor Engine transposes up to 128 pixels of g, and of the image once for each
column b of the filter, since a shift by b moves pixels to other partitions. A shift by a only names
another row, so a transposed row serves all rows of the filter. Images with fewer than 65 columns
put several rows on the partitions at once.

Roofline of the Tensor Engine for a row of at most 128 pixels, in columns of bfloat16 (a product
costs four times as much in float32, a transposition twice): KH * KW * C for the products with 128
output channels; KW * C to transpose the image and O for g. With 3 x 3 taps and 128 channels of each
that is 13 * 128 cycles, of which 9 * 128 are the products. DMA moves each image once.

Tiling: the sums of all pixels stay in PSUM from the first image to the last: a row of the filter
takes KW * C columns, at most a bank, and six banks are for sums; a filter with more is done by
parts. Two banks are for transposition; Vector and Scalar evacuate them alternately. The
next block of rows is loaded before this one's work is issued.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glia.kernels.images.conv2d import output_shape
from glia.kernels.parts.rows import BufferRing, bytes_of, ceil_div, clear_border, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

BLOCK_BYTES = 8192  # of a partition in a block of image rows
ACCUMULATOR_BANKS = 6
TRANSPOSED_AHEAD = 2  # steps of up to 128 pixels


@jit
def conv2d_weight_gradient(
    image: NkiTensor,
    gradient: NkiTensor,
    taps: tuple[int, int],
    stride: int = 1,
    padding: int = 0,
) -> NkiTensor:
    """The gradient for weights [O, C, *taps] from that of conv2d's output, [N, O, HO, WO]."""
    shape = gradient.shape[1], image.shape[1], *taps
    expected = output_shape(image.shape, shape, stride, padding)
    assert gradient.shape == expected, f"gradient {gradient.shape} is not {expected}"
    out = nl.ndarray(shape, image.dtype, buffer=nl.shared_hbm, name="out")
    accumulate_weight_gradient(image, gradient, out, stride, (padding, padding))
    return out


def accumulate_weight_gradient(
    image: NkiTensor, gradient: NkiTensor, out: NkiTensor, stride: int, padding: tuple[int, int]
) -> None:
    """Write the gradient to `out`; padding before the first row and the first column."""
    outputs, channels, high, wide = out.shape
    columns = nl.tile_size.psum_bank_fmax
    assert wide <= columns, f"a filter has at most {columns} columns, this one {wide}"
    for o, output_count in split(outputs, nl.tile_size.pmax):
        for c, channel_count in split(channels, min(nl.tile_size.pmax, columns // wide)):
            most = ACCUMULATOR_BANKS * (columns // (wide * channel_count))
            for a, count in split(high, most):
                accumulators = _WeightGradient(
                    image[:, nl.ds(c, channel_count)],
                    gradient[:, nl.ds(o, output_count)],
                    (count, wide),
                    stride,
                    (a - padding[0], -padding[1]),
                )
                accumulators.accumulate_images()
                accumulators.store(
                    out[nl.ds(o, output_count), nl.ds(c, channel_count), nl.ds(a, count)]
                )


@dataclass(frozen=True)
class _InputBlock:
    """Some rows of one image, with their border, and of the gradient, in SBUF."""

    image: NkiTensor
    gradient: NkiTensor


@dataclass(frozen=True)
class _PixelTile:
    """Up to 128 pixels on the partitions: [pixels, outputs], and the image for each filter row."""

    gradient: NkiTensor
    images: list[NkiTensor]


class _WeightGradient:
    """The gradient of at most 128 outputs and channels and some rows of the filter, in PSUM."""

    def __init__(
        self,
        image: NkiTensor,
        gradient: NkiTensor,
        taps: tuple[int, int],
        stride: int,
        corner: tuple[int, int],
    ) -> None:
        self.images, self.gradients = image, gradient
        self.taps, self.stride, self.corner = taps, stride, corner
        pmax, bank = nl.tile_size.pmax, nl.tile_size.psum_bank_fmax
        channels, outputs = image.shape[1], gradient.shape[1]
        high, wide = taps
        rows, columns = gradient.shape[2:]
        self.width = wide * channels
        self.rows_per_tile = max(1, pmax // columns)  # rows on the partitions at once
        self.reach = stride * (columns - 1) + wide
        row_bytes = self.reach * bytes_of(image.dtype)
        fitting = (
            (BLOCK_BYTES // row_bytes - high) // (stride * self.rows_per_tile) * self.rows_per_tile
        )
        self.rows = min(rows, max(self.rows_per_tile, fitting))
        block = stride * (self.rows - 1) + high, self.reach
        self.loaded = BufferRing(3, (channels, *block), image.dtype)
        self.loaded_gradients = BufferRing(3, (outputs, self.rows, columns), image.dtype)
        self.transposed = BufferRing(
            (TRANSPOSED_AHEAD + 1) * high + 1, (pmax, self.width), image.dtype
        )
        self.transposed_gradients = BufferRing(TRANSPOSED_AHEAD + 2, (pmax, outputs), image.dtype)
        per_bank = bank // self.width
        accumulator_banks = ceil_div(high, per_bank)
        banks = BufferRing(accumulator_banks, (outputs, bank), nl.float32, nl.psum)
        transpose_banks = nl.tile_size.psum_num_banks - accumulator_banks
        self.transpose_banks = BufferRing(
            min(4, transpose_banks), (pmax, bank), image.dtype, nl.psum
        )
        self.accumulators: list[tuple[NkiTensor, int]] = []
        for a in range(high):
            tile = banks.next() if a % per_bank == 0 else self.accumulators[-1][0]
            self.accumulators.append((tile, a % per_bank * self.width))
        self.copies = 0
        self.is_started = False

    def accumulate_images(self) -> None:
        """Accumulate all pixels of all images.

        Tiles are transposed two ahead of the products, so that the Tensor Engine
        does not wait for its own results to come back from PSUM.
        """
        pending: list[_PixelTile] = []
        for pixels in self._pixel_tiles():
            pending.append(pixels)
            if len(pending) > TRANSPOSED_AHEAD:
                self._multiply(pending.pop(0))
        for pixels in pending:
            self._multiply(pixels)

    def _pixel_tiles(self) -> Iterator[_PixelTile]:
        """Transpose all pixels, up to 128 at a time."""
        rest = [
            (n, row, count)
            for n in range(self.images.shape[0])
            for row, count in split(self.gradients.shape[2], self.rows)
        ]
        prefetched = self._load(*rest[0])
        for number in range(len(rest)):
            block = prefetched
            if number + 1 < len(rest):
                prefetched = self._load(*rest[number + 1])
            yield from self._tiles_of_block(block)

    def _load(self, n: int, row: int, count: int) -> _InputBlock:
        high = self.stride * (count - 1) + self.taps[0]
        tile = self.loaded.next()[:, :high]
        y, x = self.stride * row + self.corner[0], self.corner[1]
        extents = self.images.shape[2:]
        inside = clear_border(tile, (y, x), extents)
        (y0, y1), (x0, x1) = inside
        if y0 < y1 and x0 < x1:
            source = self.images[n, :, y + y0 : y + y1, x + x0 : x + x1]
            nisa.dma_copy(tile[:, y0:y1, x0:x1], source, engine=nisa.engine.sync)
        gradient = self.loaded_gradients.next()[:, :count]
        source = self.gradients[n, :, nl.ds(row, count)]
        nisa.dma_copy(gradient, source, engine=nisa.engine.sync)
        return _InputBlock(tile, gradient)

    def _tiles_of_block(self, block: _InputBlock) -> Iterator[_PixelTile]:
        rows, columns = block.gradient.shape[1:]
        for column, wide in split(columns, nl.tile_size.pmax):
            known: dict[tuple[int, int], NkiTensor] = {}
            for row, high in split(rows, self.rows_per_tile):
                part = block.gradient[:, nl.ds(row, high), nl.ds(column, wide)]
                gradient = self._transpose([part], self.transposed_gradients)
                images = []
                for a in range(self.taps[0]):
                    key = self.stride * row + a, high
                    if key not in known:
                        known[key] = self._transpose_image(block.image, key, column, wide)
                    images.append(known[key])
                known = dict(list(known.items())[-self.taps[0] :])
                yield _PixelTile(gradient, images)

    def _multiply(self, pixels: _PixelTile) -> None:
        for (tile, start), image in zip(self.accumulators, pixels.images, strict=True):
            total = tile[:, nl.ds(start, self.width)]
            nisa.nc_matmul(total, pixels.gradient, image, accumulate=self.is_started)
        self.is_started = True

    def _transpose_image(
        self, image: NkiTensor, rows: tuple[int, int], column: int, wide: int
    ) -> NkiTensor:
        """[pixels, (b, channel)] of the pixels that column b of the filter reads."""
        (first, high), step = rows, self.stride
        vertical = slice(first, first + step * (high - 1) + 1, step)
        starts = [step * column + b for b in range(self.taps[1])]
        parts = [image[:, vertical, x : x + step * (wide - 1) + 1 : step] for x in starts]
        return self._transpose(parts, self.transposed)

    def _transpose(self, parts: list[NkiTensor], ring: BufferRing) -> NkiTensor:
        """Parts [channels, rows, columns] as [pixels, (part, channel)], in SBUF."""
        channels, pixels = parts[0].shape[0], parts[0].shape[1] * parts[0].shape[2]
        place = self.transpose_banks.next()[:pixels, : len(parts) * channels]
        for number, part in enumerate(parts):
            nisa.nc_transpose(place[:, nl.ds(number * channels, channels)], part)
        transposed = ring.next()[:pixels, : place.shape[1]]
        self.copies += 1
        if self.copies % 4 in (1, 2):
            nisa.tensor_copy(transposed, place, engine=nisa.vector_engine)
        else:
            nisa.activation(transposed, nl.copy, place)
        return transposed

    def store(self, out: NkiTensor) -> None:
        """Store the gradient as [outputs, channels, rows of the filter, columns of the filter]."""
        result = nl.ndarray(out.shape, out.dtype)
        channels, wide = out.shape[1], out.shape[3]
        for a, (tile, start) in enumerate(self.accumulators):
            total = tile[:, nl.ds(start, self.width)].reshape((out.shape[0], wide, channels))
            nisa.tensor_copy(result[:, :, a].permute((0, 2, 1)), total)
        nisa.dma_copy(out, result, engine=nisa.gpsimd_engine)
