"""Matrix multiplication in four steps, each of which reads less from HBM than the one before.

What: product[m, n] = sum over k of left[k, m] * right[k, n], summed in float32.

Shapes: left [K, M], which comes transposed, and right [K, N] in HBM, both of one dtype; product
[M, N] of the same. K and M are multiples of 128, N of 512, and the blocks of a step divide them.

Layout: the Tensor Engine adds over the partitions, so k lies on the partitions of both operands. It
holds a tile of left, 128 x 128, and streams a tile of right, 128 x 512, through it; the result,
128 x 512 in float32, is one bank of PSUM.

Roofline: 2 * M * K * N operations. One product of tiles takes 512 cycles, 16.8 million operations,
and if both its tiles come from HBM they are 160 KiB in bfloat16: 102 operations a byte, where
Trainium2 needs 214 to keep the array busy (78.6 TFLOPS against 368 GB/s of its DMA engines) and
Trainium1 needs 337. A tile that serves several products is what brings the operations a byte up:

  step                    reads of left    reads of right   operations a byte, bfloat16
  matmul_tiled            N / 512          M / 128          102
  matmul_hoisted          1                M / 128          128
  matmul_blocked_free     1                M / 512          512
  matmul_fully_blocked    N / columns      M / rows         rows and columns of its blocks together

where a step reads each operand so many times. The first two are bound by DMA, the others by the
Tensor Engine. On Trainium1 less than 4 KiB of rows that lie a multiple of 4 KiB apart comes from
HBM at a quarter of its rate, so that there only the last step, with blocks as wide as the matrix,
keeps the array busy.

Tiling: loops over blocks stay loops on the device, so that a large product is a short program; what
is inside a block is unrolled. Loading the next tile of left happens behind the product before it,
which is why every product may have another one. Banks of PSUM are used in turn: while the array
adds up in some, Vector and Scalar empty the others.
"""

from __future__ import annotations

from glia.kernels.parts.psum import copy_out
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

DEPTH, ROWS, COLUMNS = 128, 128, 512  # of one product on the Tensor Engine
BANKS = 8

Part = tuple[NkiTensor, ...]  # tiles of one operand in SBUF, one for each 128 rows of k


@jit
def matmul_tiled(left: NkiTensor, right: NkiTensor) -> NkiTensor:
    """Step 1: left.T @ right, loading both tiles of every product where it is made."""
    depth, rows, columns = _extents(left, right, ROWS, COLUMNS)
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def one_tile(m: nisa.VirtualRegister, n: nisa.VirtualRegister) -> None:
        total = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
        for k in range(0, depth, DEPTH):
            stationary = _loaded(left[k : k + DEPTH, nl.ds(m, ROWS)])
            moving = _loaded(right[k : k + DEPTH, nl.ds(n, COLUMNS)])
            nisa.nc_matmul(total, stationary, moving)
        _store(product[nl.ds(m, ROWS), nl.ds(n, COLUMNS)], total)

    nl.fori_loop(
        0, rows, lambda m: nl.fori_loop(0, columns, lambda n: one_tile(m, n), COLUMNS), ROWS
    )
    return product


@jit
def matmul_hoisted(left: NkiTensor, right: NkiTensor) -> NkiTensor:
    """Step 2: left.T @ right, loading the tiles of left once for a whole row of results."""
    depth, rows, columns = _extents(left, right, ROWS, COLUMNS)
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def one_row(m: nisa.VirtualRegister) -> None:
        stationary = _load_part(left, m, ROWS, nisa.gpsimd_engine)

        def one_tile(n: nisa.VirtualRegister) -> None:
            total = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
            for k in range(depth // DEPTH):
                moving = _loaded(right[DEPTH * k : DEPTH * (k + 1), nl.ds(n, COLUMNS)])
                nisa.nc_matmul(total, stationary[k], moving)
            _store(product[nl.ds(m, ROWS), nl.ds(n, COLUMNS)], total)

        nl.fori_loop(0, columns, one_tile, COLUMNS)

    nl.fori_loop(0, rows, one_row, ROWS)
    return product


@jit
def matmul_blocked_free(
    left: NkiTensor, right: NkiTensor, tiles: tuple[int, int] = (4, 1)
) -> NkiTensor:
    """Step 3: left.T @ right in blocks of `tiles` (rows, columns), whose operands are loaded once.

    One bank of PSUM holds each tile of a block, so that there are at most eight.
    """
    high, wide = ROWS * tiles[0], COLUMNS * tiles[1]
    assert tiles[0] * tiles[1] <= BANKS, f"{tiles} tiles do not fit the {BANKS} banks of PSUM"
    _, rows, columns = _extents(left, right, high, wide)
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def one_row(m: nisa.VirtualRegister) -> None:
        stationary = _load_part(left, m, high, nisa.gpsimd_engine)

        def one_block(n: nisa.VirtualRegister) -> None:
            moving = _load_part(right, n, wide, nisa.engine.sync)
            block = product[nl.ds(m, high), nl.ds(n, wide)]
            totals = _products([*zip(stationary, moving, strict=True)], range(0, high, ROWS), wide)
            for row, banks in enumerate(totals):
                for column, total in enumerate(banks):
                    rows_of, columns_of = nl.ds(ROWS * row, ROWS), nl.ds(COLUMNS * column, COLUMNS)
                    _store(block[rows_of, columns_of], total, by_scalar=column % 2 > 0)

        nl.fori_loop(0, columns, one_block, wide)

    nl.fori_loop(0, rows, one_row, high)
    return product


@jit
def matmul_fully_blocked(
    left: NkiTensor, right: NkiTensor, tiles: tuple[int, int, int] = (8, 1, 4)
) -> NkiTensor:
    """Step 4: left.T @ right in blocks of `tiles` (rows, columns, depth) along all three loops.

    A block of the product stays in SBUF as float32 while the blocks of k are added to it; where k
    is one block its sums never leave PSUM before they are finished.
    """
    high, wide, deep = ROWS * tiles[0], COLUMNS * tiles[1], DEPTH * tiles[2]
    depth, rows, columns = _extents(left, right, high, wide)
    assert depth % deep == 0, f"k is {depth}, which blocks of {deep} do not divide"
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def one_block(m: nisa.VirtualRegister, n: nisa.VirtualRegister) -> None:
        strips = left[:, nl.ds(m, high)], right[:, nl.ds(n, wide)]
        block = _Block(*strips, product[nl.ds(m, high), nl.ds(n, wide)])
        for k in range(0, depth, deep):
            block.add(k, deep)

    nl.fori_loop(0, columns, lambda n: nl.fori_loop(0, rows, lambda m: one_block(m, n), high), wide)
    return product


class _Block:
    """A block of the product while blocks of k are added to it."""

    def __init__(self, left: NkiTensor, right: NkiTensor, out: NkiTensor) -> None:
        self.left, self.right, self.out = left, right, out
        self.high, self.wide = out.shape
        self.sums: dict[int, NkiTensor] = {}  # by row of tiles, float32 in SBUF

    def add(self, k: int, deep: int) -> None:
        """Add the products of `deep` rows from row k; store the block after the last."""
        part = slice(k, k + deep)
        pairs = zip(_cut(self.left[part]), _cut(self.right[part]), strict=True)
        loaded = [(_loaded(held), _loaded(streamed)) for held, streamed in pairs]
        is_first, is_last = k == 0, k + deep == self.left.shape[0]
        banks = BANKS if is_first and is_last else BANKS // 2
        group = max(1, banks * COLUMNS // self.wide) * ROWS
        for top in range(0, self.high, group):
            rows = range(top, min(top + group, self.high), ROWS)
            totals = _products(loaded, rows, self.wide)
            for number, row in enumerate(rows):
                self._collect(row, totals[number], is_first, is_last)

    def _collect(self, row: int, totals: list[NkiTensor], is_first: bool, is_last: bool) -> None:
        """Move a row of tiles out of PSUM: into the sums, or with them to HBM."""
        if is_first and not is_last:
            self.sums[row] = nl.ndarray((ROWS, self.wide), nl.float32)
        result = nl.ndarray((ROWS, self.wide), self.out.dtype) if is_last else self.sums[row]
        for number, total in enumerate(totals):
            columns = slice(COLUMNS * number, COLUMNS * (number + 1))
            place = result[:, columns]
            if is_first:
                copy_out(place, total, by_scalar=(row // ROWS + number) % 2 > 0)
            else:
                before = self.sums[row][:, columns] if is_last else place
                nisa.tensor_tensor(place, before, total, nl.add)
        if is_last:
            nisa.dma_copy(self.out[row : row + ROWS], result, engine=nisa.gpsimd_engine)


def _products(
    loaded: list[tuple[NkiTensor, NkiTensor]], rows: range, wide: int
) -> list[list[NkiTensor]]:
    """The tiles of some rows, each a bank of PSUM; k is outermost, to begin with few loads."""
    totals = [
        [nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum) for _ in range(0, wide, COLUMNS)]
        for _ in rows
    ]
    for held, streamed in loaded:
        columns = [streamed[:, at : at + COLUMNS] for at in range(0, wide, COLUMNS)]
        for row, banks in zip(rows, totals, strict=True):
            stationary = held[:, row : row + ROWS]
            for total, moving in zip(banks, columns, strict=True):
                nisa.nc_matmul(total, stationary, moving)
    return totals


def _extents(left: NkiTensor, right: NkiTensor, high: int, wide: int) -> tuple[int, int, int]:
    """k, m and n; AssertionError where blocks of high x wide do not divide the product."""
    depth, rows = left.shape
    columns = right.shape[1]
    assert right.shape[0] == depth, f"left has {depth} rows of k, right has {right.shape[0]}"
    assert depth % DEPTH == 0, f"k is {depth}, not a multiple of {DEPTH}"
    assert rows % high == 0, f"m is {rows}, not a multiple of {high}"
    assert columns % wide == 0, f"n is {columns}, not a multiple of {wide}"
    return depth, rows, columns


def _cut(operand: NkiTensor) -> list[NkiTensor]:
    """The tiles of 128 rows of k."""
    return [operand[k : k + DEPTH] for k in range(0, operand.shape[0], DEPTH)]


def _load_part(
    operand: NkiTensor, start: nisa.VirtualRegister, width: int, by: nisa.engine
) -> Part:
    """All k of `width` columns, one transfer for each 128 rows so that products begin early.

    Each operand has a queue of its own: what is loaded for the next row of results waits for tiles
    of this row, and what is loaded for its first block must not wait behind it.
    """
    return tuple(_loaded(tile, by) for tile in _cut(operand[:, nl.ds(start, width)]))


def _loaded(source: NkiTensor, by: nisa.engine = nisa.engine.sync) -> NkiTensor:
    """A new tile of SBUF; as long as there is room, no tile before it is in its place."""
    tile = nl.ndarray(source.shape, source.dtype)
    nisa.dma_copy(tile, source, engine=by)
    return tile


def _store(destination: NkiTensor, total: NkiTensor, by_scalar: bool = False) -> None:
    """Round a finished tile and store it."""
    result = nl.ndarray(total.shape, destination.dtype)
    copy_out(result, total, by_scalar=by_scalar)
    nisa.dma_copy(destination, result, engine=nisa.scalar_engine)
