"""RMS normalisation: every row gets a mean square of 1, then a scale per column; also quantised.

What: y[m, n] = x[m, n] / sqrt(mean over n of x[m, n]**2 + epsilon) * gamma[n]. The quantised form
gives y / s[m] in float8, where s[m] maps the greatest magnitude of a row to the greatest number.

Shapes: x [M, N] and gamma [N] in HBM, any floating dtype; y like x. Quantised: y [M, N] float8_e4m3
and s [M, 1] float32. M and N may be any numbers, as long as a row fits into a partition of SBUF
several times.

Layout: a row lies in one partition, because sums go along the free dimension. DMA writes gamma into
all 128 partitions once.

Roofline: Scalar squares and adds up, one cycle an element, 0.8 ns on Trainium2; Vector does
x / root * gamma in one instruction of two cycles, 2.1 ns. DMA carries a read and a write, 2.8 ns in
float32, which bounds it, 1.4 ns in bfloat16, where Vector does. Quantising adds two passes: Vector
finds the greatest magnitude in one cycle an element, so that it takes 3.1 ns and bounds the kernel,
and Scalar divides by s.

Tiling: a tile is 128 whole rows. The stages of consecutive tiles overlap, so that no engine waits
while another works on the same rows. The sum of squares and everything after it is float32 until
the result is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from glia.kernels.layernorm import broadcast_row, rsqrt_of_mean
from glia.kernels.parts.row_tile import RowTile
from glia.kernels.parts.rows import bytes_of, split
from glia.kernels.parts.stages import fits_in_sbuf, run_stages
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

FLOAT8_MAX = 240.0  # of float8_e4m3, which has infinities
MIN_SCALE = 1e-12  # for rows of zeros


@jit
def rmsnorm(x: NkiTensor, gamma: NkiTensor, epsilon: float = 1e-6) -> NkiTensor:
    """Normalise the rows of x [M, N] by their root mean square, scale columns by gamma [N]."""
    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="y")
    work = _Normalization(_broadcast_gamma(x, gamma), epsilon)
    needed = x.shape[1] * (5 * bytes_of(x.dtype) + 2 * 4)
    stages = (work.sum_squares, work.inverse_root_mean_square, work.scale_and_store)
    run_stages(_row_tiles(x, y), *stages, overlap=fits_in_sbuf(needed))
    return y


@jit
def rmsnorm_quantized(
    x: NkiTensor, gamma: NkiTensor, epsilon: float = 1e-6
) -> tuple[NkiTensor, NkiTensor]:
    """The same as float8 [M, N], and the scale [M, 1] that each row must be multiplied by."""
    y = nl.ndarray(x.shape, nl.float8_e4m3, buffer=nl.shared_hbm, name="y")
    scales = nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.shared_hbm, name="scales")
    work = _Normalization(_broadcast_gamma(x, gamma), epsilon)
    needed = x.shape[1] * (3 * bytes_of(x.dtype) + 5 * 4 + 2)

    def store(state: _RowState) -> None:
        """Scalar: divide by the scale, which is stored beside the rows."""
        rows = state.rows
        result = rows.tile(nl.float8_e4m3)
        nisa.activation(result, nl.copy, state.data, scale=state.column)
        nisa.dma_copy(rows.destination, result, engine=nisa.scalar_engine)

    def compute_scales(state: _RowState) -> _RowState:
        """Vector: scale the rows, find their greatest magnitudes and what maps them to 240."""
        rows, normal = state.rows, state.rows.tile(nl.float32)
        work.scale(normal, state)
        scale, inverse = rows.column(), rows.column()
        magnitudes = rows.tile(nl.bfloat16)  # reduced before they are rounded
        nisa.tensor_scalar_reduce(magnitudes, normal, nl.abs, 0.0, nl.maximum, scale)
        nisa.tensor_scalar(
            scale, scale, nl.multiply, 1 / FLOAT8_MAX, op1=nl.maximum, operand1=MIN_SCALE,
            engine=nisa.vector_engine,
        )  # fmt: skip
        nisa.reciprocal(inverse, scale)
        nisa.dma_copy(scales[nl.ds(rows.start, rows.height)], scale, engine=nisa.gpsimd_engine)
        return _RowState(rows, normal, inverse)

    stages = (work.sum_squares, work.inverse_root_mean_square, compute_scales, store)
    run_stages(_row_tiles(x, y), *stages, overlap=fits_in_sbuf(needed))
    return y, scales


@dataclass
class _RowState:
    """Rows between two stages: their values, and one statistic per row."""

    rows: RowTile
    data: NkiTensor
    column: NkiTensor


@dataclass
class _Normalization:
    """The stages that both kernels share, for 128 rows."""

    gamma: NkiTensor
    epsilon: float

    def sum_squares(self, rows: RowTile) -> _RowState:
        """Scalar: the sum of the squares of each row."""
        data, squares = rows.load(), rows.column()
        nisa.activation_reduce(rows.tile(nl.bfloat16), nl.square, data, nl.add, squares)
        return _RowState(rows, data, squares)

    def inverse_root_mean_square(self, state: _RowState) -> _RowState:
        """Vector and GpSimd: 1 / sqrt(mean square + epsilon)."""
        inverse = state.rows.column()
        rsqrt_of_mean(inverse, state.column, self.gamma.shape[1], self.epsilon)
        return _RowState(state.rows, state.data, inverse)

    def scale(self, dst: NkiTensor, state: _RowState) -> None:
        """Vector: rows by the inverse of their root, columns by gamma."""
        gamma = self.gamma[: state.rows.height]
        nisa.scalar_tensor_tensor(dst, state.data, nl.multiply, state.column, nl.multiply, gamma)

    def scale_and_store(self, state: _RowState) -> None:
        """Vector: scale the rows by both factors; store them."""
        result = state.rows.tile(state.rows.destination.dtype)
        self.scale(result, state)
        nisa.dma_copy(state.rows.destination, result, engine=nisa.scalar_engine)


def _broadcast_gamma(x: NkiTensor, gamma: NkiTensor) -> NkiTensor:
    assert gamma.shape == x.shape[1:], f"gamma must have {x.shape[1]} elements"
    return broadcast_row(gamma, min(x.shape[0], nl.tile_size.pmax))


def _row_tiles(x: NkiTensor, y: NkiTensor) -> list[RowTile]:
    return [RowTile(x, y, part) for part in split(x.shape[0], nl.tile_size.pmax)]
