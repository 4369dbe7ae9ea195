"""The gradient of max pooling: each output's gradient goes to the place its maximum came from.

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

from glia.kernels.parts.rows import Ring, ceiling, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor
from glia.nki.tensors.dynamic_offsets import DynamicSlice

SIDE, STEP = 3, 2  # of windows
PLACES = [(a, b) for a in range(SIDE) for b in range(SIDE)]
LEAST = -3.0e38  # below every element


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
    rows = ceiling(high, ceiling(high, most))  # of windows in a block
    pmax = min(nl.tile_size.pmax, batch * channels)
    work = _Work(pmax, rows, wide, image.dtype)
    blocks = [
        (nl.ds(*place), row, count)
        for place in split(batch * channels, pmax)
        for row, count in split(high, rows)
    ]
    ahead = work.load(images, sources, *blocks[0])
    for number, (place, row, count) in enumerate(blocks):
        data, given = ahead
        if number + 1 < len(blocks):  # before the engines wait for what this block needs
            ahead = work.load(images, sources, *blocks[number + 1])
        work.add_block(data, given, outs[place], row)
        if row + count == high:
            work.add_last_row(outs[place])
    return out


class _Work:
    """The buffers of a block of windows, and what is done with them.

    `parts[a, b]` holds what place (a, b) of each window gets, [P, rows + 1, columns + 1]: its row
    i of the block in row i + 1, since the place below belongs to the next row of windows, and the
    last row of the block before in row 0. Column `columns` is zero, right of all windows. There are
    two of each, used in turn.
    """

    def __init__(self, partitions: int, rows: int, wide: int, dtype: str) -> None:
        self.rows, self.wide, self.dtype = rows, wide, dtype
        shape = partitions, rows, wide
        self.images = Ring(3, (partitions, STEP * rows + 1, STEP * wide + 1), dtype)
        self.sources = Ring(3, shape, dtype)
        self.results = Ring(3, (partitions, STEP * rows, STEP * wide), dtype)
        self.greatest, self.given = (Ring(2, shape, nl.float32, nl.psum) for _ in range(2))
        self.sums = Ring(4, shape, nl.float32, nl.psum)
        self.chosen = Ring(2, shape, nl.bfloat16)
        self.equal, self.weighed = (Ring(3, shape, nl.bfloat16) for _ in range(2))
        self.identity = nl.shared_identity_matrix(partitions, dtype)
        places = [place for place in PLACES if place != (1, 1)]
        shape = partitions, rows + 1, wide + 1
        self.parts, self.others = (
            {place: nl.ndarray(shape, dtype) for place in places} for _ in range(2)
        )
        for parts, a in product((self.parts, self.others), range(SIDE)):
            if (a, 0) in parts:
                nisa.memset(parts[a, 0][:, :, wide], 0, engine=nisa.gpsimd_engine)

    def load(
        self, images: NkiTensor, sources: NkiTensor, place: DynamicSlice, row: int, count: int
    ) -> tuple[NkiTensor, NkiTensor]:
        """The elements of some windows of some images, and in PSUM the source."""
        data = self._load_image(images[place], row, count)
        source = self.sources.next()[: data.shape[0], :count]
        nisa.dma_copy(source, sources[place, nl.ds(row, count)], engine=nisa.engine.sync)
        given = self.given.next()[: data.shape[0], :count]
        nisa.activation(given, nl.copy, source)
        return data, given

    def add_block(self, data: NkiTensor, given: NkiTensor, outs: NkiTensor, row: int) -> None:
        """Everything that windows `row` ... of some images give, but what is below the last."""
        partitions, count = given.shape[:2]
        chosen = self._choose(data, count)
        result = self.results.next()[:partitions, : STEP * count]
        for number, (a, b) in enumerate(PLACES):
            if (a, b) == (1, 1):  # the middle of a window is in no other
                part = result[:, 1::STEP, ::STEP]
            else:
                part = self.parts[a, b][:partitions, nl.ds(1, count), : self.wide]
            weight = float(len(PLACES) - number)
            nisa.scalar_tensor_tensor(part, chosen, nl.equal, weight, nl.multiply, given)
        self._add(result[:, 1::STEP, 1::STEP], [(1, 2, 1, 0), (1, 0, 1, 1)])
        first = 1 if row == 0 else 0  # above the first windows there is no row
        if first < count:
            below, across = result[:, STEP * first :: STEP], (first, first + 1)
            self._add(below[:, :, ::STEP], [(2, 1, across[0], 0), (0, 1, across[1], 0)])
            corners = [
                (a, b, across[a == 0], shift) for a in (2, 0) for b, shift in ((2, 0), (0, 1))
            ]
            self._add(below[:, :, 1::STEP], corners)
        for b in range(SIDE):
            last = self.parts[SIDE - 1, b][:partitions, count]
            nisa.tensor_copy(
                self.others[SIDE - 1, b][:partitions, 0], last, engine=nisa.gpsimd_engine
            )
        self.parts, self.others = self.others, self.parts
        to = outs[:, STEP * row - 1 + first : STEP * (row + count) - 1]
        nisa.dma_copy(to, result[:, first:], engine=nisa.gpsimd_engine)

    def add_last_row(self, outs: NkiTensor) -> None:
        """What is below the last windows."""
        result = self.results.next()[: outs.shape[0], :1]
        self._add(result[:, :, ::STEP], [(2, 1, 0, 0)])
        self._add(result[:, :, 1::STEP], [(2, 2, 0, 0), (2, 0, 0, 1)])
        nisa.dma_copy(outs[:, outs.shape[1] - 1 :], result, engine=nisa.gpsimd_engine)

    def _load_image(self, images: NkiTensor, row: int, count: int) -> NkiTensor:
        """The elements of all windows, with the border on the left and above."""
        data = self.images.next()[: images.shape[0], : STEP * count + 1]
        nisa.memset(data[:, :, 0], LEAST, engine=nisa.gpsimd_engine)
        above = 1 if row == 0 else 0
        if above:
            nisa.memset(data[:, 0], LEAST, engine=nisa.gpsimd_engine)
        rows = images[:, STEP * row - 1 + above : STEP * (row + count)]
        nisa.dma_copy(data[:, above:, 1:], rows, engine=nisa.engine.sync)
        return data

    def _choose(self, data: NkiTensor, count: int) -> NkiTensor:
        """9 minus the number of the place that each window's greatest element has."""
        partitions = data.shape[0]
        views = [
            data[
                :, a : a + STEP * (count - 1) + 1 : STEP, b : b + STEP * (self.wide - 1) + 1 : STEP
            ]
            for a, b in PLACES
        ]
        greatest = self.greatest.next()[:partitions, :count]
        nisa.tensor_reduce(greatest, nl.maximum, _windows(data, count, self.wide), axis=(3, 4))
        chosen = self.chosen.next()[:partitions, :count]
        for number, view in enumerate(views):
            equal, weighed = (
                ring.next()[:partitions, :count] for ring in (self.equal, self.weighed)
            )
            nisa.tensor_tensor(equal, view, greatest, nl.equal)
            weighed = weighed if number else chosen
            nisa.tensor_scalar(weighed, equal, nl.multiply, float(len(PLACES) - number))
            if number:
                nisa.tensor_tensor(chosen, chosen, weighed, nl.maximum)
        return chosen

    def _add(self, result: NkiTensor, places: list[tuple[int, int, int, int]]) -> None:
        """result = the sum of parts (a, b), each from a row and a column on."""
        partitions, count = result.shape[:2]
        total = self.sums.next()[:partitions, :count]
        unit = self.identity[:partitions, :partitions]
        for number, (a, b, row, column) in enumerate(places):
            moving = self.parts[a, b][:partitions, nl.ds(row, count), nl.ds(column, self.wide)]
            nisa.nc_matmul(total, unit, moving, accumulate=number > 0)
        nisa.activation(result, nl.copy, total)


def _windows(data: NkiTensor, high: int, wide: int) -> NkiTensor:
    """All windows of [P, 2 * high + 1, 2 * wide + 1] as [P, high, wide, 3, 3], overlapping."""
    row = data.strides[1]
    pattern = [[data.strides[0], data.shape[0]], [STEP * row, high], [STEP, wide]]
    return data.ap([*pattern, [row, SIDE], [1, SIDE]])
