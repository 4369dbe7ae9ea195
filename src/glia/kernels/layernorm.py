"""Layer normalisation: every row gets mean 0 and variance 1, then a scale and a shift per column.

What: y[m, n] = (x[m, n] - mean[m]) / sqrt(var[m] + epsilon) * gamma[n] + beta[n], mean and var over
the n of a row, var the mean of the squared distances from the mean.

Shapes: x [M, N], gamma and beta [N] in HBM, any floating dtype; y like x. M and N may be any
numbers, as long as a row fits into a partition of SBUF several times.

Layout: a row lies in one partition, because sums go along the free dimension. gamma and beta are
the same for all rows: DMA writes them into all 128 partitions once.

Roofline: five operations an element on three engines. Scalar adds up the row, then the squared
distances, then multiplies by 1 / sqrt(var + epsilon): 3 cycles an element at 1.2 GHz, 2.5 ns on
Trainium2. Vector does (x - mean) * gamma in one instruction of 2 cycles, 2.1 ns, and GpSimd adds
beta, 2 cycles at 1.2 GHz, 1.7 ns. DMA carries one read and one write: 2.8 ns in float32, which
bounds it, 1.4 ns in bfloat16, where Scalar does. On Trainium1 Vector and GpSimd share an SBUF port,
3.2 ns together, below the 3.8 ns of DMA.

Tiling: a tile is 128 whole rows. Its passes alternate between engines, so that five tiles are in
flight at once, each in another stage. The distances are squared after the mean is known, which
costs a pass over the row but no accuracy where the mean is large beside the deviations. All sums
and intermediate values are float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from glia.kernels.parts.row_tile import RowTile
from glia.kernels.parts.rows import bytes_of, split
from glia.kernels.parts.stages import fits_in_sbuf, run_stages
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor


@jit
def layernorm(x: NkiTensor, gamma: NkiTensor, beta: NkiTensor, epsilon: float = 1e-5) -> NkiTensor:
    """Normalise the rows of x [M, N], scale columns by gamma [N] and shift them by beta [N]."""
    rows, columns = x.shape
    assert gamma.shape == beta.shape == (columns,), f"gamma and beta must have {columns} elements"
    y = nl.ndarray((rows, columns), x.dtype, buffer=nl.shared_hbm, name="y")
    height = min(rows, nl.tile_size.pmax)
    work = _Normalization(
        broadcast_row(gamma, height), broadcast_row(beta, height), columns, epsilon
    )
    needed = columns * (5 * bytes_of(x.dtype) + 8 * 4)
    tiles = [RowTile(x, y, part) for part in split(rows, nl.tile_size.pmax)]
    stages = (
        work.sum_rows,
        work.center,
        work.inverse_deviation,
        work.scale_rows,
        work.shift_and_store,
    )
    run_stages(tiles, *stages, overlap=fits_in_sbuf(needed))
    return y


@dataclass
class _RowState:
    """Rows between two stages: their values, and one statistic per row."""

    rows: RowTile
    data: NkiTensor
    column: NkiTensor


@dataclass
class _Normalization:
    """The stages of 128 rows, in order; each starts on another engine than the last one ended."""

    scale: NkiTensor
    shift_by: NkiTensor
    columns: int
    epsilon: float

    def sum_rows(self, rows: RowTile) -> _RowState:
        """Scalar: the sum of each row."""
        data, total = rows.load(), rows.column()
        nisa.activation_reduce(rows.tile(nl.float32), nl.copy, data, nl.add, total)
        return _RowState(rows, data, total)

    def center(self, state: _RowState) -> _RowState:
        """Vector: the negative mean; Scalar: the sum of squared distances from it."""
        negative_mean, squares = state.rows.column(), state.rows.column()
        factor = -1.0 / self.columns
        nisa.tensor_scalar(
            negative_mean, state.column, nl.multiply, factor, engine=nisa.vector_engine
        )
        unused = state.rows.tile(nl.float32)
        nisa.activation_reduce(unused, nl.square, state.data, nl.add, squares, bias=negative_mean)
        centered = state.rows.tile(nl.float32)
        scale = self.scale[: state.rows.height]
        nisa.scalar_tensor_tensor(centered, state.data, nl.add, negative_mean, nl.multiply, scale)
        return _RowState(state.rows, centered, squares)

    def inverse_deviation(self, state: _RowState) -> _RowState:
        """Vector and GpSimd: 1 / sqrt(variance + epsilon)."""
        inverse = state.rows.column()
        rsqrt_of_mean(inverse, state.column, self.columns, self.epsilon)
        return _RowState(state.rows, state.data, inverse)

    def scale_rows(self, state: _RowState) -> _RowState:
        """Scalar: every row by its 1 / sqrt(variance + epsilon)."""
        nisa.activation(state.data, nl.copy, state.data, scale=state.column)
        return state

    def shift_and_store(self, state: _RowState) -> None:
        """GpSimd: add beta and store."""
        result = state.rows.tile(state.rows.destination.dtype)
        shift_by = self.shift_by[: state.rows.height]
        nisa.tensor_tensor(result, state.data, shift_by, nl.add, engine=nisa.gpsimd_engine)
        nisa.dma_copy(state.rows.destination, result, engine=nisa.gpsimd_engine)


def broadcast_row(row: NkiTensor, partitions: int) -> NkiTensor:
    """A tile of float32 with the row [N] in every partition."""
    (columns,) = row.shape
    tile = nl.ndarray((partitions, columns), nl.float32)
    nisa.dma_copy(tile, row.reshape((1, columns)).broadcast(0, partitions))
    return tile


def rsqrt_of_mean(dst: NkiTensor, total: NkiTensor, count: int, epsilon: float) -> None:
    """dst = 1 / sqrt(total / count + epsilon), without Scalar, whose tables would change."""
    nisa.tensor_scalar(
        dst, total, nl.multiply, 1.0 / count, op1=nl.add, operand1=epsilon,
        engine=nisa.vector_engine,
    )  # fmt: skip
    nisa.tensor_scalar(dst, dst, nl.rsqrt, None, engine=nisa.gpsimd_engine)
