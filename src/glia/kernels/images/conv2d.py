"""Convolution of images, and its gradient for the image: matrix products without an im2col copy.

What, with steps s and padding p of every side:

    out[n, o, i, j] = sum over c, a, b of
        image[n, c, i*s + a - p, j*s + b - p] * weights[o, c, a, b]

Shapes: image [N, C, H, W], weights [O, C, KH, KW] in HBM, both float32 or a 16-bit float; out
[N, O, (H + 2p - KH) // s + 1, (W + 2p - KW) // s + 1] of the same dtype.

Layout: the Tensor Engine adds over the partitions, so input channels lie there, and a tap (a, b) is
one product: its weights [C, O] are stationary, and the moving operand is the part of the image that
the tap reads. That part is a view of the tile in SBUF, shifted by (a, b) and s elements from column
to column: nothing is copied, and PSUM adds the taps up. Weights come with output channels first;
the Tensor Engine transposes them once, 128 x 128 at a time. Three input channels would leave 125
rows of the array idle; with few channels several rows of the filter go on the partitions side by
side, each with its own copy of the image shifted by a row.

Roofline: 2 * N * O * C * KH * KW outputs. A column of 128 channels takes a cycle of the Tensor
Engine for each tap in bfloat16 and four in float32: KH * KW * N * (out rows * columns) *
ceil(C / 128) * ceil(O / 128) cycles. Image and output pass DMA once: with 3 x 3 taps and 128
channels of each that is 9 cycles (3.8 ns) for 512 bytes (1.4 ns).

Tiling: a block of rows of the image with its border of zeros is loaded for all taps. At most 512
outputs, whole rows if they fit, are a bank of PSUM; six rotating banks, evacuated by Vector and
Scalar alternately. The border is filled by GpSimd, and only where it is.

The gradient for the image exchanges the roles: `conv2d_image_gradient` contracts output channels,
whose weights lie as they have to already. With s > 1 an image row contributes only to the taps that
differ from it by a multiple of s, so rows and columns split into s * s classes, each a convolution
with step 1 of its own taps, written s apart: no product has a zero that dilation put there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from glia.kernels.parts.rows import BufferRing, bytes_of, ceil_div, clear_border, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

BLOCK_BYTES = 8192  # of a partition in a block of rows, for each 128 channels
WEIGHT_BYTES = 65536  # of a partition held at a time
WHOLE_BYTES = 36864  # of a partition for an image that is stored at once
BANKS, BANK_COLUMNS = 6, 512  # of PSUM, float32

Stationary = Callable[[int, int, int], NkiTensor]


@dataclass(frozen=True)
class FilterTap:
    """Reads input row step * t + row and column step * q + column for output (t, q)."""

    row: int
    column: int
    number: int


@dataclass(frozen=True)
class OutputPhase:
    """Outputs row + spacing * t, column + spacing * q for all t and q, and their taps."""

    row: int
    column: int
    taps: tuple[FilterTap, ...]


@dataclass(frozen=True)
class ConvolutionPlan:
    """The inputs of each output: `step` input rows from one t to the next.

    `row_copies` rows of the filter lie on the partitions side by side.
    """

    parts: tuple[OutputPhase, ...]
    step: int
    spacing: int
    row_copies: int = 1

    @cached_property
    def rows(self) -> tuple[int, int]:
        """The first and last input row that t = 0 reads."""
        found = [tap.row for part in self.parts for tap in part.taps]
        return min(found), max(found) + self.row_copies - 1

    @cached_property
    def columns(self) -> tuple[int, int]:
        """The first and last input column that q = 0 reads."""
        found = [tap.column for part in self.parts for tap in part.taps]
        return min(found), max(found)


def output_shape(
    image: tuple[int, ...], weights: tuple[int, ...], stride: int, padding: int
) -> tuple[int, ...]:
    """[N, O, HO, WO] of images and filters of these shapes, which must belong together."""
    assert image[1] == weights[1], f"images {image} and filters {weights} differ in channels"
    extents = [extent + 2 * padding for extent in image[2:]]
    fits_whole = all(taps <= extent for taps, extent in zip(weights[2:], extents, strict=True))
    assert fits_whole, (
        f"filters {weights} are larger than images {image} with a border of {padding}"
    )
    high, wide = (
        (extent - taps) // stride + 1 for extent, taps in zip(extents, weights[2:], strict=True)
    )
    return image[0], weights[0], high, wide


@jit
def conv2d(image: NkiTensor, weights: NkiTensor, stride: int = 1, padding: int = 0) -> NkiTensor:
    """Convolve [N, C, H, W] with [O, C, KH, KW]."""
    shape = output_shape(image.shape, weights.shape, stride, padding)
    out = nl.ndarray(shape, image.dtype, buffer=nl.shared_hbm, name="out")
    convolve(image, weights, out, stride, (padding, padding))
    return out


@jit
def conv2d_image_gradient(
    gradient: NkiTensor,
    weights: NkiTensor,
    shape: tuple[int, ...],
    stride: int = 1,
    padding: int = 0,
) -> NkiTensor:
    """The gradient for an image of this shape from that of conv2d's output."""
    expected = output_shape(tuple(shape), weights.shape, stride, padding)
    assert gradient.shape == expected, f"gradient {gradient.shape} is not {expected}"
    out = nl.ndarray(tuple(shape), gradient.dtype, buffer=nl.shared_hbm, name="out")
    high, wide = weights.shape[2:]
    parts = []
    for row in range(stride):
        for column in range(stride):
            taps = tuple(
                FilterTap(
                    (row + padding - a) // stride, (column + padding - b) // stride, a * wide + b
                )
                for a in range(high)
                for b in range(wide)
                if (row + padding - a) % stride == 0 and (column + padding - b) % stride == 0
            )
            parts.append(OutputPhase(row, column, taps))
    plan = ConvolutionPlan(tuple(parts), 1, stride)
    for first, count in _output_groups(
        weights.shape[1], weights.shape[0], high * wide, weights.dtype
    ):
        part = weights[:, nl.ds(first, count)]
        _convolve_plan(gradient, out[:, nl.ds(first, count)], plan, _untransposed_weights(part))
    return out


def convolve(
    image: NkiTensor,
    weights: NkiTensor,
    out: NkiTensor,
    stride: int,
    padding: tuple[int, int],
    dilation: int = 1,
) -> None:
    """Write the convolution to `out`.

    `padding` is before the first row and the first column; neighbours in the filter meet elements
    of the image that are `dilation` apart.
    """
    outputs, channels, high, wide = weights.shape
    row_copies = _row_copies(high, channels) if dilation == 1 else 1
    taps = tuple(
        FilterTap(dilation * a - padding[0], dilation * b - padding[1], a // row_copies * wide + b)
        for a in range(0, high, row_copies)
        for b in range(wide)
    )
    plan = ConvolutionPlan((OutputPhase(0, 0, taps),), stride, 1, row_copies)
    for first, count in _output_groups(outputs, channels * row_copies, len(taps), weights.dtype):
        transposed = _transposed_weights(weights[nl.ds(first, count)], row_copies)
        _convolve_plan(image, out[:, nl.ds(first, count)], plan, transposed)


def _row_copies(high: int, channels: int) -> int:
    """How many rows of the filter share the partitions: a divisor of their number."""
    fitting = [n for n in range(1, high + 1) if high % n == 0]
    return max(n for n in fitting if n == 1 or n * channels <= nl.tile_size.pmax)


def _output_groups(outputs: int, channels: int, taps: int, dtype: str) -> list[tuple[int, int]]:
    """Ranges of output channels whose weights fit in SBUF together."""
    each = ceil_div(channels, nl.tile_size.pmax) * taps * bytes_of(dtype)
    most = max(nl.tile_size.pmax, WEIGHT_BYTES // each // nl.tile_size.pmax * nl.tile_size.pmax)
    return list(split(outputs, most))


def _transposed_weights(weights: NkiTensor, row_copies: int) -> Stationary:
    """Weights with (row of the filter, input channel) on the partitions."""
    outputs, channels, high, wide = weights.shape
    pmax = nl.tile_size.pmax
    psum_tiles = BufferRing(2, (pmax, pmax), weights.dtype, nl.psum)
    tiles: dict[tuple[int, int, int], NkiTensor] = {}
    for m, (first, count) in enumerate(split(outputs, pmax)):
        rows = nl.ndarray((count, channels, high, wide), weights.dtype)
        nisa.dma_copy(rows, weights[nl.ds(first, count)], engine=nisa.engine.sync)
        for k, (channel, size) in enumerate(split(channels, pmax)):
            for number in range(high // row_copies * wide):
                a, b = number // wide * row_copies, number % wide
                part = rows[:, nl.ds(channel, size), nl.ds(a, row_copies), b].permute((0, 2, 1))
                place = psum_tiles.next()[: size * row_copies, :count]
                nisa.nc_transpose(place, part)
                transposed = nl.ndarray(place.shape, weights.dtype)
                nisa.tensor_copy(transposed, place)
                tiles[k, m, number] = transposed
    return lambda k, m, number: tiles[k, m, number]


def _untransposed_weights(weights: NkiTensor) -> Stationary:
    """Weights with output channels, which the gradient contracts, on the partitions."""
    outputs, channels, high, wide = weights.shape
    tiles = []
    for first, count in split(outputs, nl.tile_size.pmax):
        tile = nl.ndarray((count, channels, high * wide), weights.dtype)
        nisa.dma_copy(tile, weights[nl.ds(first, count)], engine=nisa.engine.sync)
        tiles.append(tile)
    pmax = nl.tile_size.pmax

    def stationary(k: int, m: int, number: int) -> NkiTensor:
        return tiles[k][:, nl.ds(m * pmax, min(pmax, channels - m * pmax)), number]

    return stationary


def _convolve_plan(
    image: NkiTensor, out: NkiTensor, plan: ConvolutionPlan, stationary: Stationary
) -> None:
    """All outputs of a plan, a block of rows at a time."""
    batch, channels, height, width = image.shape
    pmax = nl.tile_size.pmax
    high, wide = (ceil_div(extent, plan.spacing) for extent in out.shape[2:])
    (top, bottom), (left, right) = plan.rows, plan.columns
    columns = plan.step * (wide - 1) + right - left + 1
    row_bytes = columns * bytes_of(image.dtype)
    reach = bottom - top + 1 - plan.row_copies
    rows = max(1, min(high, (BLOCK_BYTES // row_bytes - reach) // plan.step))
    shape = plan.step * (rows - 1) + reach + 1, columns
    k_tiles = list(split(channels, pmax))
    partitions = min(pmax, channels * plan.row_copies)
    loaded = BufferRing(3 * len(k_tiles), (partitions, *shape), image.dtype)
    results = _OutputBuffers(out, rows * plan.spacing)
    banks = BufferRing(BANKS, (min(pmax, out.shape[1]), BANK_COLUMNS), nl.float32, nl.psum)

    def load(n: int, block: _RowBlock) -> list[NkiTensor]:
        return [block.load(image[n, nl.ds(*piece)], loaded.next()) for piece in k_tiles]

    rest = [
        (n, _RowBlock(plan, row, count, (height, width)))
        for n in range(batch)
        for row, count in split(high, rows)
    ]
    prefetched = load(*rest[0])
    for number, (n, block) in enumerate(rest):
        tiles = prefetched
        if number + 1 < len(rest):  # before the engines wait for what this block needs
            prefetched = load(*rest[number + 1])
        for m, (first, size) in enumerate(split(out.shape[1], pmax)):
            rows_done = block.outputs(out.shape[2])
            block.convolve(tiles, stationary, m, results.rows(size, rows_done), banks)
            results.store(n, first, size, rows_done)


class _OutputBuffers:
    """SBUF buffers of outputs of at most 128 channels, stored by blocks of rows.

    On generation 2, parts of channels a power of two apart in HBM fall into the same HBM channel:
    there whole images are stored where they fit.
    """

    def __init__(self, out: NkiTensor, rows: int) -> None:
        self.out = out
        _, channels, height, width = out.shape
        fits_whole = height * width * bytes_of(out.dtype) <= WHOLE_BYTES
        is_old = nisa.get_nc_version() is nisa.nc_version.gen2
        self.is_whole = is_old and fits_whole and channels <= nl.tile_size.pmax
        shape = height if self.is_whole else rows, width
        self.tiles = BufferRing(3, (min(nl.tile_size.pmax, channels), *shape), out.dtype)
        self.tile = self.tiles.next()

    def rows(self, channels: int, rows_done: slice) -> NkiTensor:
        """The buffer of the output rows `rows_done`."""
        if rows_done.start == 0 or not self.is_whole:
            self.tile = self.tiles.next()
        first = rows_done.start if self.is_whole else 0
        return self.tile[:channels, first : first + rows_done.stop - rows_done.start]

    def store(self, n: int, first: int, channels: int, rows_done: slice) -> None:
        """Store the rows, or the image with its last ones."""
        if not self.is_whole:
            part = self.out[n, nl.ds(first, channels), rows_done]
            tile = self.tile[:channels, : rows_done.stop - rows_done.start]
            nisa.dma_copy(part, tile, engine=nisa.gpsimd_engine)
        elif rows_done.stop == self.out.shape[2]:
            nisa.dma_copy(self.out[n], self.tile, engine=nisa.gpsimd_engine)


@dataclass(frozen=True)
class _RowBlock:
    """Outputs t = first ... first + count - 1 of every phase, and the input rows they read."""

    plan: ConvolutionPlan
    first: int
    count: int
    extents: tuple[int, int]  # rows and columns of the image

    def outputs(self, height: int) -> slice:
        """The rows of the output, which has `height`."""
        spacing = self.plan.spacing
        return slice(self.first * spacing, min(height, (self.first + self.count) * spacing))

    def load(self, image: NkiTensor, buffer: NkiTensor) -> NkiTensor:
        """The rows and columns of [C, H, W] that are needed, with zeros around it."""
        plan, channels = self.plan, image.shape[0]
        (top, bottom), left = plan.rows, plan.columns[0]
        rows = plan.step * (self.count - 1) + bottom - top + 2 - plan.row_copies
        tile = buffer[: channels * plan.row_copies, :rows]
        for copy in range(plan.row_copies):
            y = plan.step * self.first + top + copy
            if plan.row_copies == 1:
                inside = clear_border(tile, (y, left), self.extents)
            else:
                inside = [
                    (max(0, -start), max(0, min(count, extent - start)))
                    for start, count, extent in zip(
                        (y, left), tile.shape[1:], self.extents, strict=True
                    )
                ]
            if plan.row_copies > 1 and copy == 0 and self._has_border(rows, tile.shape[2]):
                nisa.memset(tile, 0, engine=nisa.gpsimd_engine)
            (y0, y1), (x0, x1) = inside
            if y0 < y1 and x0 < x1:
                place = tile[copy * channels : (copy + 1) * channels, y0:y1, x0:x1]
                part = image[:, y + y0 : y + y1, left + x0 : left + x1]
                nisa.dma_copy(place, part, engine=nisa.engine.sync)
        return tile

    def _has_border(self, rows: int, columns: int) -> bool:
        y, x = self.plan.step * self.first + self.plan.rows[0], self.plan.columns[0]
        last = y + rows - 1 + self.plan.row_copies - 1, x + columns - 1
        return min(y, x) < 0 or last[0] >= self.extents[0] or last[1] >= self.extents[1]

    def convolve(
        self,
        tiles: list[NkiTensor],
        stationary: Stationary,
        m: int,
        result: NkiTensor,
        banks: BufferRing,
    ) -> None:
        """Fill `result`, [outputs, rows, columns], from a tile for each 128 input channels."""
        spacing = self.plan.spacing
        for part in self.plan.parts:
            view = result[:, part.row :: spacing, part.column :: spacing]
            if not part.taps:
                nisa.memset(view, 0, engine=nisa.gpsimd_engine)
                continue
            for column, wide in split(view.shape[2], BANK_COLUMNS):
                for row, high in split(view.shape[1], BANK_COLUMNS // wide):
                    total = banks.next()[: view.shape[0], : high * wide]
                    place = row, high, column, wide
                    self._add_taps(tiles, stationary, m, part, place, total)
                    piece = view[:, nl.ds(row, high), nl.ds(column, wide)]
                    _take_out(piece, total, row // high % 2 == 0)

    def _add_taps(
        self,
        tiles: list[NkiTensor],
        stationary: Stationary,
        m: int,
        part: OutputPhase,
        place: tuple[int, int, int, int],
        total: NkiTensor,
    ) -> None:
        """The sum of all taps over all input channels, in one bank."""
        row, high, column, wide = place
        step = self.plan.step
        top, left = step * row - self.plan.rows[0], step * column - self.plan.columns[0]
        down, across = step * (high - 1) + 1, step * (wide - 1) + 1
        is_sum = False
        for k, tile in enumerate(tiles):
            for tap in part.taps:
                y, x = top + tap.row, left + tap.column
                moving = tile[:, y : y + down : step, x : x + across : step]
                nisa.nc_matmul(total, stationary(k, m, tap.number), moving, accumulate=is_sum)
                is_sum = True


def _take_out(piece: NkiTensor, total: NkiTensor, by_vector: bool) -> None:
    """From PSUM to SBUF, alternating between Vector and Scalar."""
    if by_vector:
        nisa.tensor_copy(piece, total, engine=nisa.vector_engine)
    else:
        nisa.activation(piece, nl.copy, total)
