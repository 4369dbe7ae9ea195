"""Attention in one pass over the keys; the matrix of scores never leaves the core.

What: out[s] = sum over t of softmax over t(scale * q[s] . k[t]) * v[t], for every batch and head;
causal: only t <= s; with a window w: only t > s - w. On request also lse[s], the logarithm of the
sum of exponentials, which the gradient needs.

Shapes: q [B, H, D, S], k [B, G, D, T] and v [B, G, T, D] in HBM, of one floating dtype, D at most
128; out [B, H, S, D], lse [B, H, S] float32. G divides H: so many heads of q share the keys and
values of one. S and T may be any numbers, as long as q, k and v of one head fit into SBUF together
(in bfloat16 with D = 128, 26 thousand of each on Trainium1, 30 thousand on Trainium2); a window
needs S <= T.

Layout: q and k come with d first, because the scores add over it. 128 rows of q are stationary, so
that a row of scores lies in one partition: its maximum and its sum go along the free dimension. The
product with v adds over t, which therefore has to be on the partitions: the Tensor Engine
transposes the exponentials, 128 x 128 at a time.

Roofline: 4 * S * T * D operations, half of them when causal. With D = 128, for 128 rows and 512
keys, the Tensor Engine needs 512 columns for the scores, 512 for transposition, 512 for values: 640
ns on Trainium2, a third of its peak. Vector finds the maxima, 600 ns with the gap to its next
instruction, and Scalar takes the exponentials, 430 ns; either evacuates the transposed tiles from
PSUM, 340 or 430 ns. Vector adds the product of every 1024 keys to the result, 200 ns. Evenly shared
that is 730 ns for each of the two, which is the bound. On Trainium1 the two share one port of PSUM,
where all of this is read, so that their times add up: 1270 ns. HBM traffic is negligible.

Tiling: the keys are worked on in blocks of 1024, two banks of scores. Row maxima and sums are kept
over the blocks: when the maximum grows, sums and results so far are multiplied by exp(old - new).
Stages overlap: the scores and maxima of a block, the exponentials of the one before, the
transposition of the one three before, and the product with v of one more. Blocks that a mask hides
are skipped, and only tiles that it cuts are masked. Keys and values of a head are loaded once for
all the heads of q that share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

from glia.kernels.parts.psum import BANK_COLUMNS, evacuate_psum
from glia.kernels.parts.rows import split
from glia.kernels.parts.stages import idle_stage, run_stages
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

ROWS = 128
BLOCK = 2 * BANK_COLUMNS  # keys in one block
MASKED_SCORE = -1e30  # a score that a mask hides
ORDER = (0, 3, 1, 2, 4)  # of stages: Scalar evacuates transposed tiles before new exponentials
TRANSFER_COLUMNS = 2048  # keys in one transfer


@jit
def flash_attention(
    q: NkiTensor, k: NkiTensor, v: NkiTensor,
    scale: float | None = None, causal: bool = True, window: int = 0, with_lse: bool = False,
) -> NkiTensor | tuple[NkiTensor, NkiTensor]:  # fmt: skip
    """Attention of q [B, H, D, S] to k [B, G, D, T] and v [B, G, T, D]: [B, H, S, D], and lse.

    `scale` is 1 / sqrt(D) unless it is given; a `window` of 0 is none.
    """
    batch, heads, width, rows = q.shape
    groups, keys = k.shape[1], k.shape[3]
    assert width <= ROWS and v.shape == (batch, groups, keys, width), (
        f"{v.shape} is no v for {q.shape}"
    )
    assert heads % groups == 0, f"{groups} heads of k do not divide {heads} of q"
    assert not window or (causal and rows <= keys), "a window is causal and has a key for each row"
    out = nl.ndarray((batch, heads, rows, width), q.dtype, buffer=nl.shared_hbm, name="out")
    lse = nl.ndarray((batch, heads, rows), nl.float32, buffer=nl.shared_hbm, name="lse")
    attend(q, k, v, out, lse, scale or width**-0.5, causal, window, with_lse=with_lse)
    return (out, lse) if with_lse else out


def attend(
    q: NkiTensor, k: NkiTensor, v: NkiTensor, out: NkiTensor, lse: NkiTensor,
    scale: float, causal: bool, window: int, *, with_lse: bool,
) -> None:  # fmt: skip
    """flash_attention into the given tensors or views `out` and `lse`."""
    batch, heads, width, rows = q.shape
    groups, keys = k.shape[1], k.shape[3]
    mask = Mask(causal, window, rows, keys, q.dtype)
    banks = _PsumBanks(q.dtype, width)
    shared = heads // groups
    queries, results, sums = (
        each.reshape((batch * groups, shared, *each.shape[2:])) for each in (q, out, lse)
    )
    keys_of, values_of = (each.reshape((batch * groups, *each.shape[2:])) for each in (k, v))

    def one_group(group: nisa.VirtualRegister) -> None:
        stored = load_columns(keys_of[nl.ds(group, 1)][0])
        values = load_rows(values_of[nl.ds(group, 1)][0])

        def one_head(head: nisa.VirtualRegister) -> None:
            query, result, total = (
                each[nl.ds(group, 1)][0][nl.ds(head, 1)][0] for each in (queries, results, sums)
            )
            _Head(query, result, total, stored, values, mask, banks, scale, with_lse).run()

        nl.fori_loop(0, shared, one_head)

    nl.fori_loop(0, batch * groups, one_group)


class Mask:
    """The keys visible to each row.

    The Tensor Engine adds the mask to the scores as a product with the identity, only for tiles of
    128 x 128 that the mask cuts.
    """

    def __init__(self, causal: bool, window: int, rows: int, keys: int, dtype: str) -> None:
        self.causal, self.window, self.rows, self.keys = causal, window, rows, keys
        stored = dtype if dtype == nl.float32 else nl.bfloat16
        self.identity = nl.shared_identity_matrix(ROWS, stored) if causal else None
        lags = {0} if causal else set()
        lags |= {window // ROWS * ROWS, -(-window // ROWS) * ROWS} if window else set()
        self.tiles = {lag: self._mask_tile(lag, stored) for lag in sorted(lags)}

    def visible_keys(self, first: int, count: int) -> tuple[int, int]:
        """The keys visible to any of `count` rows: (start, a multiple of 128; end)."""
        end = min(self.keys, first + count) if self.causal else self.keys
        start = max(0, first - self.window + 1) if self.window else 0
        return start // ROWS * ROWS, end

    def add(self, scores: NkiTensor, row: int, key: int) -> None:
        """Mask scores of rows from `row` and keys from `key`, both multiples of 128."""
        for start, count in split(scores.shape[1], ROWS):
            tile = self.tiles.get(row - key - start)
            if tile is not None:
                part = scores[:, nl.ds(start, count)]
                assert self.identity is not None
                identity = self.identity[:, : scores.shape[0]]
                nisa.nc_matmul(part, identity, tile[:, :count], accumulate=True)

    def _mask_tile(self, lag: int, dtype: str) -> NkiTensor:
        """0 where a key is visible, MASKED_SCORE elsewhere, for row - key starting at `lag`."""
        tile = nl.ndarray((ROWS, ROWS), dtype)
        nisa.memset(tile, 0.0, engine=nisa.gpsimd_engine)
        edges = [(lag, 1)] if self.causal else []
        edges += [(self.window - 1 - lag, -1)] if self.window else []
        for offset, sign in edges:  # kept where offset + sign * (row - key) >= 0
            nisa.affine_select(
                tile, [[-sign, ROWS]], sign, tile, MASKED_SCORE, nl.greater_equal, offset
            )
        return tile


class _PsumBanks:
    """The PSUM layout: six banks of scores, so that new scores do not wait for exponentials.

    In float32, where transposed tiles fill two banks, four banks of scores.
    """

    def __init__(self, dtype: str, width: int) -> None:
        narrow = dtype != nl.float32
        count = 6 if narrow else 4
        self.scores = cycle(
            [psum_tile(place, (ROWS, BANK_COLUMNS), nl.float32) for place in range(count)]
        )
        shape = (ROWS, BANK_COLUMNS // ROWS, ROWS)
        self.transposed = cycle([psum_tile(count + each, shape, dtype) for each in range(2)])
        places = (6.5, 7.5) if narrow else (6, 7)
        self.products = cycle([psum_tile(place, (ROWS, width), nl.float32) for place in places])
        self.by_scalar = cycle([True, False, True, True])


def psum_tile(place: float, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """A PSUM tile at a bank, or at the middle of one (`place` n.5)."""
    address = int(place * nl.tile_size.psum_bank_fmax_bytes)
    return nl.ndarray(shape, dtype, buffer=nl.psum, address=(0, address))


@dataclass
class _RowState:
    """Running maximum, denominator and output of 128 rows of q."""

    first: int
    query: NkiTensor  # [D, rows]
    negative_max: NkiTensor | None = None  # minus the running maximum of the scores
    total: NkiTensor | None = None  # sum of the exponentials
    result: NkiTensor | None = None  # sum of exponentials times values


@dataclass
class _KeyBlock:
    """A block of keys for 128 rows, between stages."""

    first: int  # row
    start: int  # key
    end: int
    is_first: bool
    is_last: bool
    rows: _RowState | None = None
    scores: list[NkiTensor] = field(default_factory=list)
    bias: NkiTensor | None = None
    exponentials: NkiTensor | None = None  # exponentials [rows, keys]
    transposed: list[NkiTensor] = field(default_factory=list)  # the same as tiles [128 keys, rows]
    correction: NkiTensor | None = None  # exp(old maximum - new maximum), rescales the running sums
    total: NkiTensor | None = None


class _Head:
    """The computation of one head of q."""

    def __init__(
        self, q: NkiTensor, out: NkiTensor, lse: NkiTensor, k: NkiTensor, v: list[NkiTensor],
        mask: Mask, banks: _PsumBanks, scale: float, with_lse: bool,
    ) -> None:  # fmt: skip
        self.q, self.out, self.lse, self.k, self.v = load_columns(q), out, lse, k, v
        self.mask, self.banks, self.scale, self.with_lse = mask, banks, scale, with_lse
        tiles = -(-mask.rows // ROWS)
        height = min(mask.rows, ROWS)
        self.maxima, self.totals = (nl.ndarray((height, tiles), nl.float32) for _ in range(2))
        self.current: _RowState | None = None

    def run(self) -> None:
        """All rows, over their visible keys."""
        stages = (
            self._compute_scores,
            self._exponentiate,
            idle_stage,
            self._transpose,
            self._accumulate_values,
        )
        run_stages(self._key_blocks(), *stages, order=ORDER)
        if self.with_lse:
            self._store_lse()

    def _key_blocks(self) -> Iterator[_KeyBlock]:
        for first, count in split(self.mask.rows, ROWS):
            start, end = self.mask.visible_keys(first, count)
            for at, keys in split(end - start, BLOCK):
                here = start + at
                yield _KeyBlock(first, here, here + keys, here == start, here + keys == end)

    def _compute_scores(self, block: _KeyBlock) -> _KeyBlock:
        """Tensor: the scores; Vector: their maxima; GpSimd: the running maxima."""
        if block.is_first:
            count = min(ROWS, self.mask.rows - block.first)
            self.current = _RowState(block.first, self.q[:, nl.ds(block.first, count)])
        rows = block.rows = self.current
        assert rows is not None
        height = rows.query.shape[1]
        found = [] if rows.negative_max is None else [rows.negative_max]
        for at, keys in split(block.end - block.start, BANK_COLUMNS):
            scores = next(self.banks.scores)[:height, :keys]
            keys_here = self.k[:, nl.ds(block.start + at, keys)]
            nisa.nc_matmul(scores, rows.query, keys_here, accumulate=False)
            self.mask.add(scores, block.first, block.start + at)
            block.scores.append(scores)
            found.append(nl.ndarray((height, 1), nl.float32))
            nisa.tensor_reduce(found[-1], nl.maximum, block.scores[-1], axis=1, negate=True)
        new_max, block.bias = (nl.ndarray((height, 1), nl.float32) for _ in range(2))
        column_minimum(new_max, found)
        nisa.tensor_scalar(block.bias, new_max, nl.multiply, self.scale, engine=nisa.gpsimd_engine)
        if not block.is_first:
            block.correction = nl.ndarray((height, 1), nl.float32)
            block.total = rows.negative_max  # carries the old maximum to the next stage
        rows.negative_max = new_max
        return block

    def _exponentiate(self, block: _KeyBlock) -> _KeyBlock:
        """Scalar: the exponentials and their sums."""
        height, keys = block.scores[0].shape[0], block.end - block.start
        if block.correction is not None:
            assert block.total is not None
            nisa.activation(
                block.correction, nl.exp, block.total, scale=-self.scale, bias=block.bias
            )
        block.exponentials = nl.ndarray((height, keys), self.q.dtype)
        block.total = nl.ndarray((height, 1), nl.float32)
        for number, (at, count) in enumerate(split(keys, BANK_COLUMNS)):
            nisa.activation(
                block.exponentials[:, nl.ds(at, count)], nl.exp, block.scores[number],
                bias=block.bias, scale=self.scale, reduce_op=nl.add,
                reduce_cmd=nisa.reduce_cmd.reduce if number else nisa.reduce_cmd.reset_reduce,
                reduce_res=block.total if at + count == keys else None,
            )  # fmt: skip
        return block

    def _transpose(self, block: _KeyBlock) -> _KeyBlock:
        """Tensor: transpose the exponentials; Scalar, for one in four Vector: evacuate PSUM."""
        assert block.exponentials is not None
        for at, keys in split(block.exponentials.shape[1], BANK_COLUMNS):
            by_scalar = next(self.banks.by_scalar)
            exponentials = block.exponentials[:, nl.ds(at, keys)]
            block.transposed += transpose_tile(
                exponentials, next(self.banks.transposed), by_scalar=by_scalar
            )
        return block

    def _accumulate_values(self, block: _KeyBlock) -> None:
        """Tensor: the product with the values; Vector: rescale the running output and add it."""
        rows = block.rows
        assert rows is not None
        product = next(self.banks.products)[: rows.query.shape[1]]
        for number, part in enumerate(block.transposed):
            value = self.v[block.start // ROWS + number][: part.shape[0]]
            nisa.nc_matmul(product, part, value, accumulate=number > 0)
        if block.is_first:
            rows.total, rows.result = block.total, nl.ndarray(product.shape, nl.float32)
            nisa.tensor_copy(rows.result, product, engine=nisa.vector_engine)
        else:
            assert rows.result is not None and rows.total is not None
            assert block.correction is not None
            nisa.scalar_tensor_tensor(
                rows.result, rows.result, nl.multiply, block.correction, nl.add, product
            )
            nisa.tensor_scalar(
                rows.total, rows.total, nl.multiply, block.correction,
                op1=nl.add, operand1=block.total, engine=nisa.gpsimd_engine,
            )  # fmt: skip
        if block.is_last:
            self._normalize(rows, block)

    def _normalize(self, rows: _RowState, block: _KeyBlock) -> None:
        """Divide the output by the denominator and store it."""
        assert rows.result is not None and rows.total is not None and block.bias is not None
        height = rows.query.shape[1]
        reciprocal, result = (
            nl.ndarray((height, 1), nl.float32),
            nl.ndarray(rows.result.shape, self.out.dtype),
        )
        nisa.reciprocal(reciprocal, rows.total)
        nisa.tensor_scalar(result, rows.result, nl.multiply, reciprocal, engine=nisa.gpsimd_engine)
        nisa.dma_copy(self.out[nl.ds(rows.first, height)], result, engine=nisa.gpsimd_engine)
        if self.with_lse:
            column = slice(rows.first // ROWS, rows.first // ROWS + 1)
            for kept, value in ((self.maxima, block.bias), (self.totals, rows.total)):
                nisa.tensor_copy(kept[:height, column], value, engine=nisa.gpsimd_engine)

    def _store_lse(self) -> None:
        """lse = scale * maximum + log(sum) of all rows at once: one change of activation tables."""
        whole, rest = divmod(self.mask.rows, ROWS)
        parts = [(ROWS, 0, whole)] if whole else []
        parts += [(rest, whole, 1)] if rest else []
        for height, start, tiles in parts:
            totals, maxima = (
                each[:height, nl.ds(start, tiles)] for each in (self.totals, self.maxima)
            )
            log_sum = nl.ndarray((height, tiles), nl.float32)
            nisa.activation(log_sum, nl.log, totals)
            nisa.tensor_tensor(log_sum, log_sum, maxima, nl.subtract)
            place = self.lse[nl.ds(start * ROWS, height * tiles)].reshape((tiles, height))
            nisa.dma_copy(place.permute((1, 0)), log_sum, engine=nisa.scalar_engine)


def column_minimum(dst: NkiTensor, columns: list[NkiTensor]) -> None:
    """dst = the element-wise minimum of columns; an instruction takes two more at a time."""
    first, *others = columns
    for pair in [others[at : at + 2] for at in range(0, len(others), 2)] or [[first]]:
        op1, operand1 = (nl.minimum, pair[1]) if len(pair) > 1 else (None, None)
        nisa.tensor_scalar(
            dst, first, nl.minimum, pair[0], op1=op1, operand1=operand1, engine=nisa.gpsimd_engine
        )
        first = dst


def transpose_tile(tile: NkiTensor, total: NkiTensor, *, by_scalar: bool) -> list[NkiTensor]:
    """Transpose a tile [P, up to 512] to [128, P] tiles, through `total` in PSUM."""
    height = tile.shape[0]
    parts = [*split(tile.shape[1], ROWS)]
    transposed = nl.ndarray((ROWS, len(parts), height), tile.dtype)
    for number, (start, count) in enumerate(parts):
        part = tile[:, nl.ds(start, count)]
        nisa.nc_transpose(total[:count, number, :height], part, engine=nisa.tensor_engine)
    whole = [(ROWS, 0, len(parts))]
    if parts[-1][1] < ROWS:
        whole = [(ROWS, 0, len(parts) - 1), (parts[-1][1], len(parts) - 1, 1)]
    for partitions, first, count in whole:
        if count:
            source = total[:partitions, nl.ds(first, count), :height]
            evacuate_psum(transposed[:partitions, nl.ds(first, count)], source, by_scalar=by_scalar)
    return [transposed[:count, number] for number, (_, count) in enumerate(parts)]


def load_columns(source: NkiTensor) -> NkiTensor:
    """Load a matrix [D, N] into SBUF by several transfers."""
    tile = nl.ndarray(source.shape, source.dtype)
    for part in split(source.shape[1], TRANSFER_COLUMNS):
        nisa.dma_copy(tile[:, nl.ds(*part)], source[:, nl.ds(*part)], engine=nisa.engine.sync)
    return tile


def load_rows(source: NkiTensor) -> list[NkiTensor]:
    """Load a matrix [N, D] into SBUF as tiles of up to 128 rows."""
    rows, width = source.shape
    whole = rows // ROWS
    tiles = []
    for start, count in split(whole, TRANSFER_COLUMNS // ROWS):
        tile = nl.ndarray((ROWS, count, width), source.dtype)
        place = source[nl.ds(start * ROWS, count * ROWS)].reshape((count, ROWS, width))
        nisa.dma_copy(tile, place.permute((1, 0, 2)), engine=nisa.engine.sync)
        tiles += [tile[:, number] for number in range(count)]
    if rows % ROWS:
        tiles.append(nl.ndarray((rows % ROWS, width), source.dtype))
        nisa.dma_copy(tiles[-1], source[nl.ds(whole * ROWS, rows % ROWS)], engine=nisa.engine.sync)
    return tiles
