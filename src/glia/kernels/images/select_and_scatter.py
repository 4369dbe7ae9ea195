"""The gradient of max pooling: each output's gradient goes to the position of its maximum.

What, for windows of 3 x 3 elements, 2 apart, with a border of 1 around the image:

    out[n, c, y, x] = sum of source[n, c, i, j] over the windows (i, j) whose greatest element is
    image[n, c, y, x], the first in row-major order when several are equally great

Shapes: image [N, C, H, W], source [N, C, H / 2, W / 2] in HBM, H and W even, float32 or a 16-bit
float; out as image. The border is less than every element.

Layout: images of all channels on the partitions, they are independent; pixels on the free
dimension. The nine elements at the same place of all windows are a view of the image, two apart.

Roofline: Vector, per window. The greatest: 9 cycles, one tensor_reduce over a view in which windows
overlap. Which of the nine it is, for each: compare with the greatest (1 cycle, because the
greatest lie in PSUM), weigh with the number of the place (1/4, bfloat16), take the greater (1/2,
bfloat16): the first place has the greatest number. Then for each place: source where the number is
this place's (1 cycle, because the source is in PSUM). 9 + 9 * (1 + 1/4 + 1/2 + 1) = 33.75 cycles on
Trainium2, and 45 on Trainium1, where bfloat16 takes a cycle as well. For [8, 64, 112, 112] that is
4 * 3136 * 33.75 cycles of 0.96 GHz, 441 us, where DMA needs 157 us.

Tiling: what the nine places give is not added on Vector: the Tensor Engine, idle otherwise, adds
it up in PSUM as products with the identity. A pixel's neighbours in windows follow from whether
its row and column are odd: even pixels are the middle of one window, those with one odd number
belong to two, with two odd numbers to four; each of the four kinds has a bank of its own, which
Scalar empties into its places of the tile. A block is as many rows of windows as a bank holds.
"""

from __future__ import annotations

from itertools import product

from glia.kernels.parts.rows import BufferRing, ceil_div, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor
from glia.nki.tensors.dynamic_offsets import DynamicSlice

SIDE, STEP = 3, 2  # of windows
PLACES = [(a, b) for a in range(SIDE) for b in range(SIDE)]
BORDER_VALUE = -3.0e38  # below every element


@jit
def select_and_scatter(image: NkiTensor, source: NkiTensor) -> NkiTensor:
    """The gradient of max pooling with 3 x 3 windows, 2 apart, border 1, for the image."""
    batch, channels, height, width = image.shape
    high, wide = source.shape[2:]
    assert (height, width) == (STEP * high, STEP * wide), f"{source.shape} for {image.shape}"
    assert wide <= nl.tile_size.psum_bank_fmax, "a row of windows has to fit a bank of PSUM"
    out = nl.ndarray(image.shape, image.dtype, buffer=nl.shared_hbm, name="out")
    images, sources, outs = (
        each.reshape((batch * channels, *each.shape[2:])) for each in (image, source, out)
    )
    most = nl.tile_size.psum_bank_fmax // wide
    rows = ceil_div(high, ceil_div(high, most))  # of windows in a block
    pmax = min(nl.tile_size.pmax, batch * channels)
    work = _WindowBuffers(pmax, rows, wide, image.dtype)
    blocks = [
        (nl.ds(*place), row, count)
        for place in split(batch * channels, pmax)
        for row, count in split(high, rows)
    ]
    prefetched = work.load(images, sources, *blocks[0])
    for number, (place, row, count) in enumerate(blocks):
        data, source_psum = prefetched
        if number + 1 < len(blocks):  # before the engines wait for what this block needs
            prefetched = work.load(images, sources, *blocks[number + 1])
        work.add_block(data, source_psum, outs[place], row)
        if row + count == high:
            work.add_last_row(outs[place])
    return out


class _WindowBuffers:
    """The buffers of a block of windows and the stages of its computation.

    `contributions[a, b]` is the gradient for position (a, b) of each window, [P, rows + 1,
    columns + 1]: row i of the block is in row i + 1, since the position below belongs to the next
    row of windows, and the last row of the previous block in row 0. Column `columns`, right of all
    windows, is zero. Two sets alternate.
    """

    def __init__(self, partitions: int, rows: int, wide: int, dtype: str) -> None:
        self.rows, self.wide, self.dtype = rows, wide, dtype
        shape = partitions, rows, wide
        self.images = BufferRing(3, (partitions, STEP * rows + 1, STEP * wide + 1), dtype)
        self.sources = BufferRing(3, shape, dtype)
        self.results = BufferRing(3, (partitions, STEP * rows, STEP * wide), dtype)
        self.maxima, self.source_psum = (
            BufferRing(2, shape, nl.float32, nl.psum) for _ in range(2)
        )
        self.sums = BufferRing(4, shape, nl.float32, nl.psum)
        self.selection = BufferRing(2, shape, nl.bfloat16)
        self.is_maximum, self.weighted = (BufferRing(3, shape, nl.bfloat16) for _ in range(2))
        self.identity = nl.shared_identity_matrix(partitions, dtype)
        places = [place for place in PLACES if place != (1, 1)]
        shape = partitions, rows + 1, wide + 1
        self.contributions, self.next_contributions = (
            {place: nl.ndarray(shape, dtype) for place in places} for _ in range(2)
        )
        for contributions, a in product((self.contributions, self.next_contributions), range(SIDE)):
            if (a, 0) in contributions:
                nisa.memset(contributions[a, 0][:, :, wide], 0, engine=nisa.gpsimd_engine)

    def load(
        self, images: NkiTensor, sources: NkiTensor, place: DynamicSlice, row: int, count: int
    ) -> tuple[NkiTensor, NkiTensor]:
        """Load the elements of a block of windows to SBUF and their source to PSUM."""
        data = self._load_image(images[place], row, count)
        source = self.sources.next()[: data.shape[0], :count]
        nisa.dma_copy(source, sources[place, nl.ds(row, count)], engine=nisa.engine.sync)
        source_psum = self.source_psum.next()[: data.shape[0], :count]
        nisa.activation(source_psum, nl.copy, source)
        return data, source_psum

    def add_block(self, data: NkiTensor, source_psum: NkiTensor, outs: NkiTensor, row: int) -> None:
        """Store the gradient of a block from window row `row` on, without its last pixel row."""
        partitions, count = source_psum.shape[:2]
        selection = self._select_maxima(data, count)
        result = self.results.next()[:partitions, : STEP * count]
        for number, (a, b) in enumerate(PLACES):
            if (a, b) == (1, 1):  # the middle of a window is in no other
                part = result[:, 1::STEP, ::STEP]
            else:
                part = self.contributions[a, b][:partitions, nl.ds(1, count), : self.wide]
            weight = float(len(PLACES) - number)
            nisa.scalar_tensor_tensor(part, selection, nl.equal, weight, nl.multiply, source_psum)
        self._sum_contributions(result[:, 1::STEP, 1::STEP], [(1, 2, 1, 0), (1, 0, 1, 1)])
        first = 1 if row == 0 else 0  # above the first windows there is no row
        if first < count:
            below, across = result[:, STEP * first :: STEP], (first, first + 1)
            self._sum_contributions(
                below[:, :, ::STEP], [(2, 1, across[0], 0), (0, 1, across[1], 0)]
            )
            corners = [
                (a, b, across[a == 0], shift) for a in (2, 0) for b, shift in ((2, 0), (0, 1))
            ]
            self._sum_contributions(below[:, :, 1::STEP], corners)
        for b in range(SIDE):
            last = self.contributions[SIDE - 1, b][:partitions, count]
            nisa.tensor_copy(
                self.next_contributions[SIDE - 1, b][:partitions, 0],
                last,
                engine=nisa.gpsimd_engine,
            )
        self.contributions, self.next_contributions = self.next_contributions, self.contributions
        to = outs[:, STEP * row - 1 + first : STEP * (row + count) - 1]
        nisa.dma_copy(to, result[:, first:], engine=nisa.gpsimd_engine)

    def add_last_row(self, outs: NkiTensor) -> None:
        """Store the last pixel row, below the last windows."""
        result = self.results.next()[: outs.shape[0], :1]
        self._sum_contributions(result[:, :, ::STEP], [(2, 1, 0, 0)])
        self._sum_contributions(result[:, :, 1::STEP], [(2, 2, 0, 0), (2, 0, 0, 1)])
        nisa.dma_copy(outs[:, outs.shape[1] - 1 :], result, engine=nisa.gpsimd_engine)

    def _load_image(self, images: NkiTensor, row: int, count: int) -> NkiTensor:
        """Load the elements of all windows, with the border on the left and above."""
        data = self.images.next()[: images.shape[0], : STEP * count + 1]
        nisa.memset(data[:, :, 0], BORDER_VALUE, engine=nisa.gpsimd_engine)
        above = 1 if row == 0 else 0
        if above:
            nisa.memset(data[:, 0], BORDER_VALUE, engine=nisa.gpsimd_engine)
        rows = images[:, STEP * row - 1 + above : STEP * (row + count)]
        nisa.dma_copy(data[:, above:, 1:], rows, engine=nisa.engine.sync)
        return data

    def _select_maxima(self, data: NkiTensor, count: int) -> NkiTensor:
        """9 minus the position index of each window's maximum."""
        partitions = data.shape[0]
        views = [
            data[
                :, a : a + STEP * (count - 1) + 1 : STEP, b : b + STEP * (self.wide - 1) + 1 : STEP
            ]
            for a, b in PLACES
        ]
        maxima = self.maxima.next()[:partitions, :count]
        nisa.tensor_reduce(maxima, nl.maximum, _windows(data, count, self.wide), axis=(3, 4))
        selection = self.selection.next()[:partitions, :count]
        for number, view in enumerate(views):
            is_maximum, weighted = (
                ring.next()[:partitions, :count] for ring in (self.is_maximum, self.weighted)
            )
            nisa.tensor_tensor(is_maximum, view, maxima, nl.equal)
            weighted = weighted if number else selection
            nisa.tensor_scalar(weighted, is_maximum, nl.multiply, float(len(PLACES) - number))
            if number:
                nisa.tensor_tensor(selection, selection, weighted, nl.maximum)
        return selection

    def _sum_contributions(
        self, result: NkiTensor, places: list[tuple[int, int, int, int]]
    ) -> None:
        """result = the sum of contributions (a, b), each from (row, column) on."""
        partitions, count = result.shape[:2]
        total = self.sums.next()[:partitions, :count]
        unit = self.identity[:partitions, :partitions]
        for number, (a, b, row, column) in enumerate(places):
            moving = self.contributions[a, b][
                :partitions, nl.ds(row, count), nl.ds(column, self.wide)
            ]
            nisa.nc_matmul(total, unit, moving, accumulate=number > 0)
        nisa.activation(result, nl.copy, total)


def _windows(data: NkiTensor, high: int, wide: int) -> NkiTensor:
    """All windows of [P, 2 * high + 1, 2 * wide + 1] as [P, high, wide, 3, 3], overlapping."""
    row = data.strides[1]
    pattern = [[data.strides[0], data.shape[0]], [STEP * row, high], [STEP, wide]]
    return data.ap([*pattern, [row, SIDE], [1, SIDE]])
