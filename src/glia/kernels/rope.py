"""Rotary position embedding: pairs of features rotate by an angle proportional to the position.

What: with x split in halves (l, r) along the features, y = (l * cos - r * sin, r * cos + l * sin),
cos and sin of the angles of a position, the same for all heads.

Shapes: x [S, H, D] in HBM, any floating dtype, D even; cos and sin [S, D / 2], any floating dtype;
y like x. S and H may be any numbers, as long as H * D elements fit into a partition several times.

Layout: a position lies in one partition, with all its heads: then cos and sin are read once and
broadcast over the heads by an access pattern that does not move, and no element changes partition.

Roofline: four products and two sums for each pair, which is three operations on two tensors per
element. Each takes two cycles in float32, so that Vector alone would need 6.2 ns per element of 128
partitions on Trainium2, against 2.8 ns of DMA. GpSimd does the same work beside it (5.0 ns): shared
in the ratio of their clocks they take 2.8 ns, as long as DMA. In bfloat16 Vector needs half a
cycle, 1.6 ns for all, GpSimd still two, and DMA 1.4 ns: then Vector works alone. On Trainium1 the
two share an SBUF port, so Vector works alone and is the bound: 5.4 ns against 3.8 ns of DMA, and in
bfloat16, where sums and products take one cycle, 2.7 ns against 1.9 ns.

Tiling: a tile is 128 positions, cut by heads between the two engines. In bfloat16 products are
rounded before they are added, as frameworks do that compute it operation by operation.
"""

from __future__ import annotations

from glia.kernels.parts.rows import bytes_of, split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

GPSIMD_SHARE = 0.5  # of the heads, in float32


@jit
def rope(x: NkiTensor, cos: NkiTensor, sin: NkiTensor) -> NkiTensor:
    """Rotate the features of x [S, H, D] by angles given as cos and sin [S, D / 2]."""
    positions, heads, features = x.shape
    half = features // 2
    assert features % 2 == 0, f"{features} features cannot be paired"
    assert cos.shape == sin.shape == (positions, half), f"cos and sin must be {(positions, half)}"
    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="y")
    shares = _head_shares(heads, bytes_of(x.dtype))
    for start, count in split(positions, nl.tile_size.pmax):
        rows = nl.ds(start, count)
        loaded = nl.ndarray((count, heads, features), x.dtype)
        angles = [nl.ndarray((count, 1, half), x.dtype) for _ in range(2)]
        nisa.dma_copy(loaded, x[rows], engine=nisa.engine.sync)
        for angle, table in zip(angles, (cos, sin), strict=True):
            nisa.dma_copy(angle, table[rows], engine=_load_engine(table, x))
        rotated = nl.ndarray(loaded.shape, x.dtype)
        for engine, first, share in shares:
            part = slice(first, first + share)
            cosines, sines = (angle.broadcast(1, share) for angle in angles)
            _rotate(rotated[:, part], loaded[:, part], cosines, sines, engine)
        nisa.dma_copy(y[rows], rotated, engine=nisa.scalar_engine)
    return y


def _rotate(
    dst: NkiTensor, src: NkiTensor, cos: NkiTensor, sin: NkiTensor, on: nisa.engine
) -> None:
    """Rotate some heads of 128 positions on one engine."""
    half = src.shape[2] // 2
    left, right = src[:, :, :half], src[:, :, half:]
    shape, dtype = left.shape, dst.dtype
    sides = ((left, right, nl.subtract, dst[:, :, :half]), (right, left, nl.add, dst[:, :, half:]))
    for one, other, combine, result in sides:
        cos_product, sin_product = nl.ndarray(shape, dtype), nl.ndarray(shape, dtype)
        nisa.tensor_tensor(cos_product, one, cos, nl.multiply, engine=on)
        nisa.tensor_tensor(sin_product, other, sin, nl.multiply, engine=on)
        nisa.tensor_tensor(result, cos_product, sin_product, combine, engine=on)


def _head_shares(heads: int, width: int) -> list[tuple[nisa.engine, int, int]]:
    """(engine, first head, heads): both engines where they work side by side."""
    runs_in_parallel = nisa.get_nc_version().value >= nisa.nc_version.gen3.value and width == 4
    gpsimd_heads = int(heads * GPSIMD_SHARE) if runs_in_parallel else 0
    shares = [(nisa.vector_engine, 0, heads - gpsimd_heads)]
    if gpsimd_heads:
        shares.append((nisa.gpsimd_engine, heads - gpsimd_heads, gpsimd_heads))
    return shares


def _load_engine(table: NkiTensor, x: NkiTensor) -> nisa.engine:
    """The engine that issues a table's load: only GpSimd's transfers convert dtypes."""
    return nisa.engine.sync if table.dtype == x.dtype else nisa.gpsimd_engine
