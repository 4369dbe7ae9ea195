"""The gradient of a convolution for its weights: a product over all pixels of all images.

What, with steps s and padding p, for the gradient of the output g:

    out[o, c, a, b] = sum over n, i, j of g[n, o, i, j] * image[n, c, i*s + a - p, j*s + b - p]

Shapes: image [N, C, H, W], g [N, O, HO, WO] in HBM, both float32 or a 16-bit float; out
[O, C, KH, KW].

Layout: the sum goes over pixels, so pixels have to lie on the partitions, where the images have
their channels. The Tensor Engine turns up to 128 pixels of g, and of the image once for each column
b of the filter, since a shift by b moves pixels to other partitions. A shift by a only names
another row, so a turned row serves all rows of the filter. Images with fewer than 65 columns put
several rows on the partitions at once.

Roofline of the Tensor Engine for a row of at most 128 pixels, in columns of bfloat16 (a product
costs float32 four times as much, turning twice): KH * KW * C for the products with 128 output
channels; KW * C to turn the image and O to turn g. With 3 x 3 taps and 128 channels of each that is
13 * 128 cycles, of which 9 * 128 are the products. DMA moves each image once.

Tiling: the sums of all pixels stay in PSUM from the first image to the last: a row of the filter
takes KW * C columns, at most a bank, and six banks are for sums; a filter with more is done by
parts. Two banks are for what is being turned; Vector and Scalar take it to SBUF, alternately. The
next block of rows is loaded before this one's work is issued.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glia.kernels.images.conv2d import output_shape
from glia.kernels.parts.rows import Ring, bytes_of, ceiling, clear_border, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

BLOCK_BYTES = 8192  # of a partition in a block of image rows
SUM_BANKS = 6
AHEAD = 2  # steps of up to 128 pixels


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
    add_up_pixels(image, gradient, out, stride, (padding, padding))
    return out


def add_up_pixels(
    image: NkiTensor, gradient: NkiTensor, out: NkiTensor, stride: int, padding: tuple[int, int]
) -> None:
    """Write the gradient to `out`; padding before the first row and the first column."""
    outputs, channels, high, wide = out.shape
    columns = nl.tile_size.psum_bank_fmax
    assert wide <= columns, f"a filter has at most {columns} columns, this one {wide}"
    for o, output_count in split(outputs, nl.tile_size.pmax):
        for c, channel_count in split(channels, min(nl.tile_size.pmax, columns // wide)):
            most = SUM_BANKS * (columns // (wide * channel_count))
            for a, count in split(high, most):
                sums = _Sums(
                    image[:, nl.ds(c, channel_count)],
                    gradient[:, nl.ds(o, output_count)],
                    (count, wide),
                    stride,
                    (a - padding[0], -padding[1]),
                )
                sums.add_images()
                sums.store(out[nl.ds(o, output_count), nl.ds(c, channel_count), nl.ds(a, count)])


@dataclass(frozen=True)
class _Block:
    """Some rows of one image, with their border, and of the gradient, in SBUF."""

    image: NkiTensor
    gradient: NkiTensor


@dataclass(frozen=True)
class _Pixels:
    """Up to 128 pixels on the partitions: [pixels, outputs], and the image for each filter row."""

    gradient: NkiTensor
    images: list[NkiTensor]


class _Sums:
    """The sums over all pixels for at most 128 outputs and channels and some rows of the filter."""

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
        self.together = max(1, pmax // columns)  # rows on the partitions at once
        self.reach = stride * (columns - 1) + wide
        row_bytes = self.reach * bytes_of(image.dtype)
        fitting = (BLOCK_BYTES // row_bytes - high) // (stride * self.together) * self.together
        self.rows = min(rows, max(self.together, fitting))
        block = stride * (self.rows - 1) + high, self.reach
        self.loaded = Ring(3, (channels, *block), image.dtype)
        self.loaded_gradients = Ring(3, (outputs, self.rows, columns), image.dtype)
        self.turned = Ring((AHEAD + 1) * high + 1, (pmax, self.width), image.dtype)
        self.turned_gradients = Ring(AHEAD + 2, (pmax, outputs), image.dtype)
        per_bank = bank // self.width
        sum_banks = ceiling(high, per_bank)
        banks = Ring(sum_banks, (outputs, bank), nl.float32, nl.psum)
        places = nl.tile_size.psum_num_banks - sum_banks
        self.places = Ring(min(4, places), (pmax, bank), image.dtype, nl.psum)
        self.sums = []
        for a in range(high):
            tile = banks.next() if a % per_bank == 0 else self.sums[-1][0]
            self.sums.append((tile, a % per_bank * self.width))
        self.copies = 0
        self.is_begun = False

    def add_images(self) -> None:
        """Add all pixels of all images.

        The next pixels but one are turned before these are multiplied, so that the Tensor Engine
        does not wait for its own results to come back from PSUM.
        """
        waiting: list[_Pixels] = []
        for pixels in self._pixels():
            waiting.append(pixels)
            if len(waiting) > AHEAD:
                self._multiply(waiting.pop(0))
        for pixels in waiting:
            self._multiply(pixels)

    def _pixels(self) -> Iterator[_Pixels]:
        """Turn all pixels, up to 128 at a time."""
        rest = [
            (n, row, count)
            for n in range(self.images.shape[0])
            for row, count in split(self.gradients.shape[2], self.rows)
        ]
        ahead = self._load(*rest[0])
        for number in range(len(rest)):
            block = ahead
            if number + 1 < len(rest):
                ahead = self._load(*rest[number + 1])
            yield from self._pixels_of(block)

    def _load(self, n: int, row: int, count: int) -> _Block:
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
        return _Block(tile, gradient)

    def _pixels_of(self, block: _Block) -> Iterator[_Pixels]:
        rows, columns = block.gradient.shape[1:]
        for column, wide in split(columns, nl.tile_size.pmax):
            known: dict[tuple[int, int], NkiTensor] = {}
            for row, high in split(rows, self.together):
                part = block.gradient[:, nl.ds(row, high), nl.ds(column, wide)]
                gradient = self._turn([part], self.turned_gradients)
                images = []
                for a in range(self.taps[0]):
                    key = self.stride * row + a, high
                    if key not in known:
                        known[key] = self._turn_image(block.image, key, column, wide)
                    images.append(known[key])
                known = dict(list(known.items())[-self.taps[0] :])
                yield _Pixels(gradient, images)

    def _multiply(self, pixels: _Pixels) -> None:
        for (tile, start), image in zip(self.sums, pixels.images, strict=True):
            total = tile[:, nl.ds(start, self.width)]
            nisa.nc_matmul(total, pixels.gradient, image, accumulate=self.is_begun)
        self.is_begun = True

    def _turn_image(
        self, image: NkiTensor, rows: tuple[int, int], column: int, wide: int
    ) -> NkiTensor:
        """[pixels, (b, channel)] of the pixels that column b of the filter meets."""
        (first, high), step = rows, self.stride
        vertical = slice(first, first + step * (high - 1) + 1, step)
        starts = [step * column + b for b in range(self.taps[1])]
        parts = [image[:, vertical, x : x + step * (wide - 1) + 1 : step] for x in starts]
        return self._turn(parts, self.turned)

    def _turn(self, parts: list[NkiTensor], ring: Ring) -> NkiTensor:
        """Parts [channels, rows, columns] as [pixels, (part, channel)], in SBUF."""
        channels, pixels = parts[0].shape[0], parts[0].shape[1] * parts[0].shape[2]
        place = self.places.next()[:pixels, : len(parts) * channels]
        for number, part in enumerate(parts):
            nisa.nc_transpose(place[:, nl.ds(number * channels, channels)], part)
        turned = ring.next()[:pixels, : place.shape[1]]
        self.copies += 1
        if self.copies % 4 in (1, 2):
            nisa.tensor_copy(turned, place, engine=nisa.vector_engine)
        else:
            nisa.activation(turned, nl.copy, place)
        return turned

    def store(self, out: NkiTensor) -> None:
        """Write the sums to [outputs, channels, rows of the filter, columns of the filter]."""
        result = nl.ndarray(out.shape, out.dtype)
        channels, wide = out.shape[1], out.shape[3]
        for a, (tile, start) in enumerate(self.sums):
            total = tile[:, nl.ds(start, self.width)].reshape((out.shape[0], wide, channels))
            nisa.tensor_copy(result[:, :, a].permute((0, 2, 1)), total)
        nisa.dma_copy(out, result, engine=nisa.gpsimd_engine)
