"""Nearest-neighbour resizing of images by DMA alone.

What: out[n, i, j, :] = image[n, floor(i * H / HO), floor(j * W / WO), :].

Shapes: image [N, H, W, C] in HBM, any dtype; out [N, HO, WO, C]. Channels last, as the documented
kernel has them: a pixel is then a run of C elements for the DMA engines.

Layout: image rows on the partitions, a stretch of columns with all their channels on the free
dimension. A transfer of 30 rows keeps 4 of the 16 DMA engines busy, each of which serves 8
partitions, so several strips lie on the partitions below each other, each from a multiple of 8 on:
of several images, or of one image next to each other.

Roofline: the image is read once and the result written once, by DMA and nothing else: (N*H*W +
N*HO*WO) * C elements at 368 GB/s on Trainium2. For [10, 30, 20, 1280] to [10, 59, 38, 1280] in
float32 that is 145 MB and 395 us.

Tiling: in `floor(i * H / HO)` neighbours are mostly one step apart, or equal, so the map splits
into a few runs, in which output and input both advance by constant steps: twice the size are two
runs, the even and the odd outputs. A run of rows and a run of columns together are one rectangle
in SBUF and one in HBM, and one transfer moves it. Only what each output needs is written from SBUF,
so that no pixel is read from HBM twice. Transfers of the strips of a tile are interleaved: they
run concurrently, on different DMA engines. Sync issues loads, GpSimd stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product, zip_longest

from glia.kernels.parts.rows import BufferRing, bytes_of, ceil_div, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

TILE_BYTES = 32768  # of a partition
BUFFERS = 3
MIN_TILES = 6  # so that one is loaded while another is stored
DMA_ENGINE_PARTITIONS = 8  # partitions that a DMA engine serves


@dataclass(frozen=True)
class Run:
    """Outputs `output`, `output + output_step`, ... take inputs `start`, `start + step`, ..."""

    output: int
    output_step: int
    start: int
    step: int
    count: int


def greedy_runs(sources: list[tuple[int, int]]) -> list[Run]:
    """Greedy partition of ordered pairs (output, input) into runs."""
    runs: list[Run] = []
    rest = sources
    while rest:
        count, (output, start) = 1, rest[0]
        steps = 1, 1
        if len(rest) > 1:
            steps = rest[1][0] - output, rest[1][1] - start
            while count < len(rest) and rest[count] == (
                output + count * steps[0], start + count * steps[1]
            ):  # fmt: skip
                count += 1
        runs.append(Run(output, steps[0], start, steps[1], count))
        rest = rest[count:]
    return runs


def runs_between(extent: int, outputs: int, first: int, count: int) -> list[Run]:
    """The runs of outputs whose nearest input is one of `count` inputs from `first` on.

    An input's first output, its second and so on are runs of their own, since those of different
    inputs are as regular as the scale is. Inputs are counted from `first`.
    """
    occurrences: list[list[tuple[int, int]]] = []
    counts: dict[int, int] = {}
    for output in range(outputs):
        source = output * extent // outputs
        if first <= source < first + count:
            occurrence = counts.get(source, 0)
            counts[source] = occurrence + 1
            if occurrence == len(occurrences):
                occurrences.append([])
            occurrences[occurrence].append((output, source - first))
    return [run for occurrence in occurrences for run in greedy_runs(occurrence)]


@dataclass(frozen=True)
class Strip:
    """Rows and columns of an image, as (start, count), that lie on partitions from `partition`."""

    image: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    partition: int


def strip_tiles(batch: int, height: int, width: int, columns: int) -> list[list[Strip]]:
    """All images as strips of at most `columns` columns, grouped into tiles."""
    pmax, aligned = (
        nl.tile_size.pmax,
        ceil_div(min(height, nl.tile_size.pmax), DMA_ENGINE_PARTITIONS) * DMA_ENGINE_PARTITIONS,
    )
    each = pmax // aligned
    strips = [
        (n, rows, part)
        for n in range(batch)
        for rows in split(height, pmax)
        for part in split(width, columns)
    ]
    return [
        [Strip(*strip, aligned * place) for place, strip in enumerate(strips[start : start + each])]
        for start in range(0, len(strips), each)
    ]


@jit
def resize_nearest(image: NkiTensor, shape: tuple[int, int]) -> NkiTensor:
    """[N, H, W, C] with `shape` rows and columns instead of H and W."""
    batch, _, _, channels = image.shape
    out = nl.ndarray((batch, *shape, channels), image.dtype, buffer=nl.shared_hbm, name="out")
    resize_into(out, image)
    return out


def resize_into(out: NkiTensor, image: NkiTensor) -> None:
    """Fill `out`, [N, HO, WO, C], from an image [N, H, W, C]."""
    batch, height, width, channels = image.shape
    shape = out.shape[1:3]
    fitting = max(1, TILE_BYTES // (channels * bytes_of(image.dtype)))
    balanced = ceil_div(batch * width * height, MIN_TILES * nl.tile_size.pmax)
    columns = ceil_div(width, ceil_div(width, min(width, fitting, balanced)))  # of equal strips
    loaded = BufferRing(BUFFERS, (nl.tile_size.pmax, columns, channels), image.dtype)
    for strips in strip_tiles(batch, height, width, columns):
        tile = loaded.next()
        stores = []
        for strip in strips:
            rows, wide = strip.rows, strip.columns
            part = tile[nl.ds(strip.partition, rows[1]), : wide[1]]
            source = image[strip.image, nl.ds(*rows), nl.ds(*wide)]
            nisa.dma_copy(part, source, engine=nisa.engine.sync)
            runs = product(
                runs_between(height, shape[0], *rows), runs_between(width, shape[1], *wide)
            )
            stores.append([(out[strip.image], part, *pair) for pair in runs])
        for occurrence in zip_longest(*stores):
            for store in occurrence:
                if store is not None:
                    _store(*store)


def _store(out: NkiTensor, tile: NkiTensor, vertical: Run, horizontal: Run) -> None:
    """Store the rectangle of a vertical and a horizontal run."""
    to = [_slice(run.output, run.output_step, run.count) for run in (vertical, horizontal)]
    of = [_slice(run.start, run.step, run.count) for run in (vertical, horizontal)]
    nisa.dma_copy(out[to[0], to[1]], tile[of[0], of[1]], engine=nisa.gpsimd_engine)


def _slice(start: int, step: int, count: int) -> slice:
    return slice(start, start + step * (count - 1) + 1, step)
