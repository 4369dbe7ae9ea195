"""The gradient of attention; the matrix of scores never leaves the core.

What: with p = exp(scale * q k - lse) and g the gradient of out,
  dv = p^T g,  dp = g v^T,  ds = p * (dp - delta),  dq = scale * ds k,  dk = scale * ds^T q,
where delta[s] is the sum over d of out[s, d] * g[s, d].

Shapes: q [B, H, D, S], k [B, G, D, T], v [B, G, T, D] and the results of flash_attention, out
[B, H, S, D] and lse [B, H, S], and g like out; dq [B, H, S, D], dk and dv [B, G, T, D]. S and T are
multiples of 128, D is at most 128, G divides H; the heads that share keys add to one dk and dv.
All of a head has to fit into SBUF: in bfloat16 with D = 128, S = T = 6 thousand on Trainium1 and
7 thousand on Trainium2.

Layout: scores and dp add over d, the others over rows or keys, so that every operand but v is
needed both ways; the Tensor Engine transposes q, k, v, g once per head. Rows are on the
partitions of p and ds: lse and delta are a value for each row, and p and ds as they are serve as
stationary operands of dv and dk, which add over rows. Only ds is transposed, for dq, which adds
over keys.

Roofline: 10 * S * T * D operations, half of them when causal: five products, and transposition. For
128 rows and 512 keys the Tensor Engine needs 512 columns for each of the six, 1280 ns on Trainium2.
Scalar takes exponentials and evacuates transposed tiles, 860 ns; Vector makes ds and adds up dq,
800 ns. The bound is the Tensor Engine, at five sixths of its peak rate. On Trainium1, where Scalar
and Vector share a PSUM port, their 730 and 610 ns add up and are the bound.

Tiling: 512 keys, and all rows that see them: dv and dk of the keys stay in PSUM, a bank each, until
the last row. dq of all rows stays in SBUF as float32. Four stages overlap: scores and dp of some
rows; exponentials and ds of the rows before; dv, dk and the transposed ds; dq.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

from glia.kernels.flash_attention import (
    ROWS,
    Mask,
    load_columns,
    load_rows,
    psum_tile,
    transpose_tile,
)
from glia.kernels.parts.psum import BANK_COLUMNS, evacuate_psum
from glia.kernels.parts.rows import split
from glia.kernels.parts.stages import run_stages
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

BLOCK = BANK_COLUMNS  # keys
TILES = BLOCK // ROWS

Tiles = list[NkiTensor]


@jit
def flash_attention_backward(
    q: NkiTensor, k: NkiTensor, v: NkiTensor, out: NkiTensor, grad: NkiTensor, lse: NkiTensor,
    scale: float | None = None, causal: bool = True, window: int = 0,
) -> tuple[NkiTensor, NkiTensor, NkiTensor]:  # fmt: skip
    """dq, dk and dv of flash_attention(q, k, v) = (out, lse) for the gradient of out."""
    batch, heads, width, rows = q.shape
    groups, keys = k.shape[1], k.shape[3]
    assert rows % ROWS == keys % ROWS == 0, f"{rows} rows, {keys} keys: not multiples of {ROWS}"
    assert out.shape == grad.shape == (batch, heads, rows, width), f"out is {out.shape}"
    assert heads % groups == 0, f"{groups} heads of k do not divide {heads} of q"
    dq, dk, dv = (
        nl.ndarray(shape, q.dtype, buffer=nl.shared_hbm, name=name)
        for name, shape in (("dq", out.shape), ("dk", v.shape), ("dv", v.shape))
    )
    attend_backward(q, k, v, out, grad, lse, dq, dk, dv, scale or width**-0.5, causal, window)
    return dq, dk, dv


def attend_backward(
    q: NkiTensor, k: NkiTensor, v: NkiTensor, out: NkiTensor, grad: NkiTensor, lse: NkiTensor,
    dq: NkiTensor, dk: NkiTensor, dv: NkiTensor, scale: float, causal: bool, window: int,
) -> None:  # fmt: skip
    """flash_attention_backward into the given tensors or views dq, dk and dv."""
    batch, heads, width, rows = q.shape
    groups, keys = k.shape[1], k.shape[3]
    mask = Mask(causal, window, rows, keys, q.dtype)
    banks = _PsumBanks(q.dtype, width)
    per_head = [
        each.reshape((batch * groups, heads // groups, *each.shape[2:]))
        for each in (q, out, grad, lse, dq)
    ]
    per_group = [each.reshape((batch * groups, *each.shape[2:])) for each in (k, v, dk, dv)]

    def one_group(group: nisa.VirtualRegister) -> None:
        k_here, v_here, *results = (each[nl.ds(group, 1)][0] for each in per_group)
        shared = _KeyGradients(k_here, v_here, banks)
        shared.load()

        def one_head(head: nisa.VirtualRegister) -> None:
            here = (each[nl.ds(group, 1)][0][nl.ds(head, 1)][0] for each in per_head)
            _Head(shared, mask, banks, scale, *here).run()

        nl.fori_loop(0, heads // groups, one_head)
        shared.store(scale, *results)

    nl.fori_loop(0, batch * groups, one_group)


class _PsumBanks:
    """The PSUM layout: two banks of scores, two of dp, dv, dk, transposed tiles, dq."""

    def __init__(self, dtype: str, width: int) -> None:
        whole, part = (ROWS, BANK_COLUMNS), (ROWS, TILES, width)
        self.scores = cycle([psum_tile(place, whole, nl.float32) for place in (0, 1)])
        self.probability_gradients = cycle(
            [psum_tile(place, whole, nl.float32) for place in (2, 3)]
        )
        self.values, self.keys = (psum_tile(place, part, nl.float32) for place in (4, 5))
        places = (6,) if dtype == nl.float32 else (6, 6.5)
        self.transposed = cycle([psum_tile(place, (ROWS, TILES, ROWS), dtype) for place in places])
        self.by_scalar = cycle([False, True])
        self.query = psum_tile(7, (ROWS, width), nl.float32)


class _KeyGradients:
    """Keys and values of one head in both orientations, and the accumulators of dk and dv."""

    def __init__(self, k: NkiTensor, v: NkiTensor, banks: _PsumBanks) -> None:
        self.k, self.v, self.banks = k, v, banks

    def load(self) -> None:
        """Load and transpose keys and values, and clear the accumulators."""
        keys, width = self.v.shape
        self.columns, values = load_columns(self.k), load_rows(self.v)
        self.rows = row_tiles(self.columns, self.banks)
        self.values = column_matrix(values, self.banks)
        shape = (ROWS, keys // ROWS, width)
        self.keys_sum, self.values_sum = (nl.ndarray(shape, nl.float32) for _ in range(2))
        for total in (self.keys_sum, self.values_sum):
            nisa.memset(total, 0.0, engine=nisa.gpsimd_engine)

    def store(self, scale: float, keys: NkiTensor, values: NkiTensor) -> None:
        """Round and store dk and dv."""
        tiles = self.keys_sum.shape[1]
        for total, factor, place in ((self.keys_sum, scale, keys), (self.values_sum, 1.0, values)):
            rounded = nl.ndarray(total.shape, place.dtype)
            nisa.tensor_scalar(rounded, total, nl.multiply, factor, engine=nisa.gpsimd_engine)
            rows = place.reshape((tiles, ROWS, place.shape[1])).permute((1, 0, 2))
            nisa.dma_copy(rows, rounded, engine=nisa.gpsimd_engine)


@dataclass
class _ScoreTile:
    """128 rows and their visible part of a block of keys, between stages."""

    row: int  # number of the tile
    key: int
    count: int
    block: int
    first_tiles: tuple[int, ...]  # tiles of the block with no earlier rows
    finished_tiles: tuple[int, ...]  # with the last rows of a block, all its visible tiles
    is_first: bool  # of these rows
    is_last: bool
    scores: NkiTensor | None = None
    probability_gradients: NkiTensor | None = None
    probabilities: NkiTensor | None = None
    score_gradients: NkiTensor | None = None
    transposed: Tiles = field(default_factory=list)


class _Head:
    """One head of q: q and g in both orientations, lse, delta, and the accumulator of dq."""

    def __init__(
        self, shared: _KeyGradients, mask: Mask, banks: _PsumBanks, scale: float,
        q: NkiTensor, out: NkiTensor, grad: NkiTensor, lse: NkiTensor, result: NkiTensor,
    ) -> None:  # fmt: skip
        self.shared, self.mask, self.banks, self.scale = shared, mask, banks, scale
        self.result = result
        self.columns, self.grads = load_columns(q), load_rows(grad)
        self.rows = row_tiles(self.columns, banks)
        self.grad_columns = column_matrix(self.grads, banks)
        tiles = len(self.grads)
        shape = (ROWS, tiles)
        self.negative_lse, self.delta = (nl.ndarray(shape, nl.float32) for _ in range(2))
        nisa.dma_copy(self.negative_lse, lse.reshape((tiles, ROWS)).permute((1, 0)))
        nisa.tensor_scalar(
            self.negative_lse, self.negative_lse, nl.multiply, -1.0, engine=nisa.gpsimd_engine
        )
        self.results = load_rows(out)
        self.query_sums = [nl.ndarray(results.shape, nl.float32) for results in self.grads]

    def run(self) -> None:
        """All blocks of keys, over the rows that attend to them."""
        run_stages(
            self._score_tiles(),
            self._compute_scores,
            self._compute_gradients,
            self._accumulate_keys,
            self._accumulate_query,
        )

    def _score_tiles(self) -> list[_ScoreTile]:
        items: list[_ScoreTile] = []
        started: set[int] = set()
        for block, count in split(self.mask.keys, BLOCK):
            reached: set[int] = set()
            for row in range(self.mask.rows // ROWS):
                start, end = self.mask.visible_keys(row * ROWS, ROWS)
                start, end = max(start, block), min(end, block + count)
                if start >= end:
                    continue
                tiles = set(range((start - block) // ROWS, (end - block) // ROWS))
                first_tiles, is_first = tuple(sorted(tiles - reached)), row not in started
                reached |= tiles
                started.add(row)
                items.append(
                    _ScoreTile(row, start, end - start, block, first_tiles, (), is_first, False)
                )
            if reached:
                items[-1].finished_tiles = tuple(sorted(reached))
        for row in started:
            next(item for item in reversed(items) if item.row == row).is_last = True
        return items

    def _compute_scores(self, item: _ScoreTile) -> _ScoreTile:
        """Tensor: scores and dp."""
        here, keys = nl.ds(item.row * ROWS, ROWS), nl.ds(item.key, item.count)
        item.scores = next(self.banks.scores)[:, : item.count]
        item.probability_gradients = next(self.banks.probability_gradients)[:, : item.count]
        query, grad = self.columns[:, here], self.grad_columns[:, here]
        nisa.nc_matmul(item.scores, query, self.shared.columns[:, keys], accumulate=False)
        self.mask.add(item.scores, item.row * ROWS, item.key)
        nisa.nc_matmul(
            item.probability_gradients, grad, self.shared.values[:, keys], accumulate=False
        )
        return item

    def _compute_gradients(self, item: _ScoreTile) -> _ScoreTile:
        """Scalar: the exponentials; Vector: ds."""
        assert item.scores is not None and item.probability_gradients is not None
        dtype, shape = self.columns.dtype, (ROWS, item.count)
        column = slice(item.row, item.row + 1)
        item.probabilities, item.score_gradients = (
            nl.ndarray(shape, dtype),
            nl.ndarray(shape, dtype),
        )
        if item.is_first:
            product = nl.ndarray(self.query_sums[item.row].shape, nl.float32)
            results, grad = self.results[item.row], self.grads[item.row]
            nisa.tensor_tensor(product, results, grad, nl.multiply, engine=nisa.gpsimd_engine)
            nisa.tensor_reduce(self.delta[:, column], nl.add, product, axis=1)
        bias = self.negative_lse[:, column]
        nisa.activation(item.probabilities, nl.exp, item.scores, bias=bias, scale=self.scale)
        nisa.scalar_tensor_tensor(
            item.score_gradients,
            item.probability_gradients,
            nl.subtract,
            self.delta[:, column],
            nl.multiply,
            item.probabilities,
        )
        return item

    def _accumulate_keys(self, item: _ScoreTile) -> _ScoreTile:
        """Tensor: dv and dk of these keys, and ds transposed; Scalar: evacuate PSUM."""
        assert item.probabilities is not None and item.score_gradients is not None
        item.transposed = transpose_tile(
            item.score_gradients, next(self.banks.transposed), by_scalar=True
        )
        first = (item.key - item.block) // ROWS
        for total, held, streamed in (
            (self.banks.values, item.probabilities, self.grads[item.row]),
            (self.banks.keys, item.score_gradients, self.rows[item.row]),
        ):
            for number in range(item.count // ROWS):
                tile = first + number
                part = held[:, nl.ds(number * ROWS, ROWS)]
                adds = tile not in item.first_tiles
                nisa.nc_matmul(total[:, tile], part, streamed, accumulate=adds)
        if item.finished_tiles:
            self._evacuate(item)
        return item

    def _evacuate(self, item: _ScoreTile) -> None:
        """Vector: add dv and dk of a block to their accumulators."""
        start, count = item.block // ROWS, len(item.finished_tiles)
        query_sums = (
            (self.shared.values_sum, self.banks.values),
            (self.shared.keys_sum, self.banks.keys),
        )
        for total_gradient, total in query_sums:
            place = total_gradient[:, nl.ds(start + item.finished_tiles[0], count)]
            nisa.tensor_tensor(place, place, total[:, nl.ds(item.finished_tiles[0], count)], nl.add)

    def _accumulate_query(self, item: _ScoreTile) -> None:
        """Tensor: dq; Vector: add it to its accumulator, stored after the last keys."""
        total, product = self.query_sums[item.row], self.banks.query
        for number, part in enumerate(item.transposed):
            keys = self.shared.rows[item.key // ROWS + number]
            nisa.nc_matmul(product, part, keys, accumulate=number > 0)
        if item.is_first:
            evacuate_psum(total, product, by_scalar=False)
        else:
            nisa.tensor_tensor(total, total, product, nl.add)
        if item.is_last:
            rounded = nl.ndarray(total.shape, self.result.dtype)
            nisa.tensor_scalar(rounded, total, nl.multiply, self.scale, engine=nisa.gpsimd_engine)
            place = self.result[nl.ds(item.row * ROWS, ROWS)]
            nisa.dma_copy(place, rounded, engine=nisa.gpsimd_engine)


def row_tiles(columns: NkiTensor, banks: _PsumBanks) -> Tiles:
    """Transpose a matrix [D, N] in SBUF to tiles [128, D], four for each evacuation."""
    width, count = columns.shape
    tiles = []
    for start, length in split(count, BLOCK):
        total = next(banks.transposed)[:, : length // ROWS, :width]
        for number in range(length // ROWS):
            part = columns[:, nl.ds(start + number * ROWS, ROWS)]
            nisa.nc_transpose(total[:, number], part, engine=nisa.tensor_engine)
        transposed = nl.ndarray(total.shape, columns.dtype)
        evacuate_psum(transposed, total, by_scalar=next(banks.by_scalar))
        tiles += [transposed[:, number] for number in range(length // ROWS)]
    return tiles


def column_matrix(rows: Tiles, banks: _PsumBanks) -> NkiTensor:
    """Transpose tiles [128, D] in SBUF to one matrix [D, N], four for each evacuation."""
    width = rows[0].shape[1]
    transposed = nl.ndarray((width, len(rows) * ROWS), rows[0].dtype)
    for start, count in split(len(rows), TILES):
        total = next(banks.transposed)[:width, :count]
        for number in range(count):
            tile = rows[start + number]
            nisa.nc_transpose(total[:, number], tile, engine=nisa.tensor_engine)
        place = transposed[:, nl.ds(start * ROWS, count * ROWS)]
        evacuate_psum(place, total, by_scalar=next(banks.by_scalar))
    return transposed
