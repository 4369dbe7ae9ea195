"""The k greatest elements of each row, with their places.

What: values[r, :] are the k greatest of x[r, :], greatest first, and x[r, indices[r, i]] =
values[r, i]. Of equal values each place is named once, in no certain order; elements that are -inf,
as those that a mask hides, are found last, but no certain place is named for them.

Shapes: x [rows, columns] in HBM, any floating dtype, columns at least 8, and where they are more
than 16384 divided by some number up to 128 that leaves no more; values [rows, k] of its dtype,
indices [rows, k] int32.

Layout: rows on the partitions. Vector finds eight at a time: max8 gives the eight greatest of each
partition in order, nc_match_replace8 says where they are and puts something smaller there, and the
next max8 finds the next eight. Both go over the whole row.

Roofline: Vector, 2 passes for every eight values, one cycle for each element of a partition: for
[128, 8192] and k = 64 that is 16 * 8192 cycles of 0.96 GHz, 137 us, while DMA needs 11 us.

Tiling: fewer than 128 rows would leave partitions idle, so a row is cut into segments on
partitions of their own. Each segment gives k candidates; the candidates of a row are brought
together on one partition, and the same search goes over them. With s segments that is
columns / s + s * k elements instead of columns, but for 128 / s rows at a time: the best s of those
that divide the row and fit is taken. Where the winners were is looked up with a gather along the
free dimension, among places counted over all rows; in the end each row's own start is subtracted,
by GpSimd, whose int32 is exact.
"""

from __future__ import annotations

import math

from glia.kernels.parts.rows import BufferRing, ceil_div, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

GROUP = 8  # values that one instruction finds
MAX8_COLUMNS = 16384  # elements of a partition that max8 takes
MINIMUM = -math.inf  # below every element that has a place


@jit
def top_k(x: NkiTensor, k: int) -> tuple[NkiTensor, NkiTensor]:
    """(values, indices) of the k greatest of each row, greatest first."""
    rows, columns = x.shape
    assert columns >= GROUP and 1 <= k <= columns, f"no {k} greatest of {columns} elements"
    values = nl.ndarray((rows, k), x.dtype, buffer=nl.shared_hbm, name="values")
    indices = nl.ndarray((rows, k), nl.int32, buffer=nl.shared_hbm, name="indices")
    count = ceil_div(k, GROUP) * GROUP
    segments = segment_count(rows, columns, count)
    each = nl.tile_size.pmax // segments
    shape = min(each, rows) * segments, columns // segments
    loaded = BufferRing(2, shape, x.dtype)
    for first, height in split(rows, each):
        data = loaded.next()[: height * segments]
        part = x[nl.ds(first, height)].reshape((height * segments, columns // segments))
        nisa.dma_copy(data, part, engine=nisa.engine.sync)
        found, places = _search_partitions(data, count)
        if segments > 1:
            found, places = _search_candidates(found, places, height, columns // segments, columns)
        nisa.dma_copy(values[nl.ds(first, height)], found[:, :k], engine=nisa.gpsimd_engine)
        nisa.dma_copy(indices[nl.ds(first, height)], places[:, :k], engine=nisa.gpsimd_engine)
    return values, indices


def segment_count(rows: int, columns: int, count: int) -> int:
    """The number of segments per row for which the fewest elements are scanned."""
    pmax = nl.tile_size.pmax
    fitting = [
        segments
        for segments in range(1, pmax + 1)
        if columns % segments == 0
        and count <= columns // segments <= MAX8_COLUMNS
        and segments * count <= MAX8_COLUMNS
    ]
    if not fitting and columns <= MAX8_COLUMNS:
        return 1
    assert fitting, f"rows of {columns} do not split into segments of at most {MAX8_COLUMNS}"
    return min(
        fitting,
        key=lambda n: ceil_div(rows, pmax // n) * (columns // n + (n * count if n > 1 else 0)),
    )


def _search_partitions(data: NkiTensor, count: int) -> tuple[NkiTensor, NkiTensor]:
    """The `count` greatest of each partition, greatest first, and their places; data changes."""
    partitions = data.shape[0]
    values = nl.ndarray((partitions, count), data.dtype)
    places = nl.ndarray((partitions, count), nl.uint32)
    for start in range(0, count, GROUP):
        eight = nl.ds(start, GROUP)
        nisa.max8(values[:, eight], data)
        if start + GROUP < count:
            nisa.nc_match_replace8(
                data, data, values[:, eight], imm=MINIMUM, dst_idx=places[:, eight]
            )
        else:
            nisa.nc_find_index8(places[:, eight], data, values[:, eight])
    return values, places.view(nl.int32)


def _search_candidates(
    values: NkiTensor, places: NkiTensor, rows: int, length: int, columns: int
) -> tuple[NkiTensor, NkiTensor]:
    """The top k of each row from the candidates of its segments."""
    partitions, count = values.shape
    starts = nl.ndarray((partitions, 1), nl.int32)
    nisa.iota(starts, [[0, 1]], channel_multiplier=length)
    global_places = nl.ndarray((partitions, count), nl.int32)  # places, counted over all rows
    broadcast_starts = starts.broadcast(1, count)
    nisa.tensor_tensor(global_places, places, broadcast_starts, nl.add, engine=nisa.gpsimd_engine)
    merged_shape = rows, partitions // rows * count
    candidates = nl.ndarray(merged_shape, values.dtype)
    nisa.dma_copy(candidates, values, engine=nisa.engine.sync)
    candidate_places = nl.ndarray(merged_shape, nl.int32)
    nisa.dma_copy(candidate_places, global_places, engine=nisa.gpsimd_engine)
    found, candidate_indices = _search_partitions(candidates, count)
    selected_places = nl.ndarray((rows, count), nl.int32)
    nisa.nc_n_gather(selected_places, candidate_places, candidate_indices.view(nl.uint32))
    row_starts = nl.ndarray((rows, 1), nl.int32)
    nisa.iota(row_starts, [[0, 1]], channel_multiplier=columns)
    result = nl.ndarray((rows, count), nl.int32)
    broadcast_starts = row_starts.broadcast(1, count)
    nisa.tensor_tensor(
        result, selected_places, broadcast_starts, nl.subtract, engine=nisa.gpsimd_engine
    )
    return found, result
