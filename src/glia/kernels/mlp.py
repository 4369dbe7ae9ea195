"""The feed-forward part of a transformer layer, plain and gated (SwiGLU), in one kernel.

What: mlp: out = function(x @ up) @ down. swiglu: out = (silu(x @ gate) * (x @ up)) @ down.

Shapes: x [T, D], up and gate [D, F], down [F, D] in HBM, all of one floating dtype; out [T, D] of
the same. T, D and F may be any numbers, as long as 512 * F elements fit into half of SBUF.

Layout: the first products add over d, so that d lies on the partitions of both operands. x is
transposed by the Tensor Engine, 128 x 128 at a time. With a weight as the stationary operand the
result is [f, t]: f on the partitions is what the second product, which adds over f, needs of it. So
no transposition is needed between the two, and the hidden values never leave SBUF.

Roofline: 4 * T * D * F operations, 6 with a gate, for weights read once for every 512 tokens: 512
operations a byte in bfloat16, above the 214 where Trainium2's Tensor Engine is bound by DMA and the
337 of Trainium1. So it is bound by the Tensor Engine, 512 columns for each 128 x 128 tile of a
weight; below 200 tokens by the DMA of the weights.

Tiling: 512 tokens at a time, a full bank of PSUM: the moving operand. Tiles of f alternate between
banks, so that Scalar and Vector make the hidden values of one while the products of the next go on.
In the second product up to four tiles of tokens and two of columns fill the eight banks, and every
tile of down that is loaded serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glia.kernels.parts.psum import BANK_COLUMNS, evacuate_psum, psum_bank, transpose_tiles
from glia.kernels.parts.rows import split
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

TOKENS = 512  # at a time
CONTRACTION = 128  # of what a product adds over
TRANSFER_COLUMNS = 512  # columns of a weight in one transfer
OUTPUT_COLUMNS = 2 * BANK_COLUMNS  # columns of the result at a time

Tiles = list[NkiTensor]
Combine = Callable[[NkiTensor, Tiles], None]


@jit
def mlp(x: NkiTensor, up: NkiTensor, down: NkiTensor, function: Any = nl.gelu) -> NkiTensor:
    """function(x @ up) @ down for x [T, D], up [D, F], down [F, D]."""

    def combine(hidden: NkiTensor, totals: Tiles) -> None:
        nisa.activation(hidden, function, totals[0])

    return _feed_forward(x, [up], down, combine)


@jit
def swiglu(x: NkiTensor, gate: NkiTensor, up: NkiTensor, down: NkiTensor) -> NkiTensor:
    """(silu(x @ gate) * (x @ up)) @ down for x [T, D], gate and up [D, F], down [F, D]."""

    def combine(hidden: NkiTensor, totals: Tiles) -> None:
        activated = nl.ndarray(hidden.shape, nl.float32)
        nisa.activation(activated, nl.silu, totals[0])
        nisa.tensor_tensor(hidden, activated, totals[1], nl.multiply)

    return _feed_forward(x, [gate, up], down, combine)


def project(x: NkiTensor, weight: NkiTensor, out: NkiTensor) -> None:
    """out [T, F] = x [T, D] @ weight [D, F]."""
    tokens = x.shape[0]

    def block(start: int | nisa.VirtualRegister, count: int) -> None:
        rows = nl.ds(start, count)
        _project_block(out[rows], _load_transposed(x[rows]), weight)

    transposed = tokens - tokens % TOKENS
    nl.fori_loop(0, transposed, lambda start: block(start, TOKENS), TOKENS)
    if tokens % TOKENS:
        block(transposed, tokens % TOKENS)


def _feed_forward(x: NkiTensor, ups: Tiles, down: NkiTensor, combine: Combine) -> NkiTensor:
    tokens, width = x.shape
    for weight in (*ups, down.permute((1, 0))):
        assert weight.shape == (width, down.shape[0]), f"x {x.shape} does not fit the weights"
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")

    def block(start: int | nisa.VirtualRegister, count: int) -> None:
        rows = nl.ds(start, count)
        hidden = _hidden_tiles(_load_transposed(x[rows]), ups, combine)
        _project_block(out[rows], hidden, down)

    transposed = tokens - tokens % TOKENS
    nl.fori_loop(0, transposed, lambda start: block(start, TOKENS), TOKENS)
    if tokens % TOKENS:
        block(transposed, tokens % TOKENS)
    return out


def _load_transposed(x: NkiTensor) -> Tiles:
    """x [T, D] as tiles [128, T] in SBUF, one for each 128 of d."""
    tokens, width = x.shape
    transposed = [nl.ndarray((count, tokens), x.dtype) for _, count in split(width, CONTRACTION)]
    for start, count in split(tokens, CONTRACTION):
        rows = nl.ndarray((count, width), x.dtype)
        nisa.dma_copy(rows, x[nl.ds(start, count)], engine=nisa.engine.sync)
        transpose_tiles(
            rows, split(width, CONTRACTION), [tile[:, nl.ds(start, count)] for tile in transposed]
        )
    return transposed


def _hidden_tiles(x: Tiles, ups: Tiles, combine: Combine) -> Tiles:
    """The hidden values as tiles [128, T], one for each 128 of f."""
    hidden = []
    for first, loaded in split(ups[0].shape[1], TRANSFER_COLUMNS):
        weights = [_load_rows(weight[:, nl.ds(first, loaded)]) for weight in ups]
        for start, count in split(loaded, CONTRACTION):
            totals = [psum_bank(count, x[0].shape[1]) for _ in weights]
            for total, weight in zip(totals, weights, strict=True):
                for stationary, moving in zip(weight, x, strict=True):
                    nisa.nc_matmul(total, stationary[:, nl.ds(start, count)], moving)
            hidden.append(nl.ndarray((count, x[0].shape[1]), x[0].dtype))
            combine(hidden[-1], totals)
    return hidden


def _project_block(out: NkiTensor, hidden: Tiles, down: NkiTensor) -> None:
    """out [T, D] = hidden.T @ down, for up to 512 tokens."""
    tokens, width = out.shape
    for first, columns in split(width, OUTPUT_COLUMNS):
        rows = [*split(tokens, CONTRACTION)]
        totals = {
            (start, left): psum_bank(count, wide)
            for start, count in rows
            for left, wide in split(columns, BANK_COLUMNS)
        }
        for (top, _), tile in zip(split(down.shape[0], CONTRACTION), hidden, strict=True):
            weight = _load_tile(down[nl.ds(top, tile.shape[0]), nl.ds(first, columns)])
            for (start, left), total in totals.items():
                count, wide = total.shape
                nisa.nc_matmul(total, tile[:, nl.ds(start, count)], weight[:, nl.ds(left, wide)])
        for start, count in rows:
            result = nl.ndarray((count, columns), out.dtype)
            for number, (left, wide) in enumerate(split(columns, BANK_COLUMNS)):
                part = result[:, nl.ds(left, wide)]
                evacuate_psum(part, totals[start, left], by_scalar=number % 2 > 0)
            place = out[nl.ds(start, count), nl.ds(first, columns)]
            nisa.dma_copy(place, result, engine=nisa.gpsimd_engine)


def _load_rows(weight: NkiTensor) -> Tiles:
    """Load a weight as tiles of 128 rows, one transfer each so that products start early."""
    return [_load_tile(weight[nl.ds(*part)]) for part in split(weight.shape[0], CONTRACTION)]


def _load_tile(source: NkiTensor) -> NkiTensor:
    tile = nl.ndarray(source.shape, source.dtype)
    nisa.dma_copy(tile, source, engine=nisa.engine.sync)
    return tile
