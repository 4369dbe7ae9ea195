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
Tensor Engine.

Tiling: loops over blocks stay loops on the device, so that a large product is a short program; the
code inside a block is unrolled. The next tile of left is loaded during the product before it, so
every product may use another tile. PSUM banks alternate: while the array accumulates in some,
Vector and Scalar evacuate the others.
"""

from __future__ import annotations

from glia.kernels.parts.psum import evacuate_psum
from glia.nki import isa as nisa
from glia.nki import jit
from glia.nki import language as nl
from glia.nki.language import NkiTensor

DEPTH, ROWS, COLUMNS = 128, 128, 512  # of one product on the Tensor Engine
BANKS = 8

Strip = tuple[NkiTensor, ...]  # tiles of one operand in SBUF, one for each 128 rows of k


@jit
def matmul_tiled(left: NkiTensor, right: NkiTensor) -> NkiTensor:
    """Step 1: left.T @ right; both tiles are loaded for every product."""
    depth, rows, columns = _extents(left, right, ROWS, COLUMNS)
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def compute_tile(m: nisa.VirtualRegister, n: nisa.VirtualRegister) -> None:
        total = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
        for k in range(0, depth, DEPTH):
            stationary = _load_tile(left[k : k + DEPTH, nl.ds(m, ROWS)])
            moving = _load_tile(right[k : k + DEPTH, nl.ds(n, COLUMNS)])
            nisa.nc_matmul(total, stationary, moving)
        _store(product[nl.ds(m, ROWS), nl.ds(n, COLUMNS)], total)

    nl.fori_loop(
        0, rows, lambda m: nl.fori_loop(0, columns, lambda n: compute_tile(m, n), COLUMNS), ROWS
    )
    return product


@jit
def matmul_hoisted(left: NkiTensor, right: NkiTensor) -> NkiTensor:
    """Step 2: left.T @ right; tiles of left are loaded once per row of result tiles."""
    depth, rows, columns = _extents(left, right, ROWS, COLUMNS)
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def compute_row(m: nisa.VirtualRegister) -> None:
        stationary = _load_strip(left, m, ROWS, nisa.gpsimd_engine)

        def compute_tile(n: nisa.VirtualRegister) -> None:
            total = nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
            for k in range(depth // DEPTH):
                moving = _load_tile(right[DEPTH * k : DEPTH * (k + 1), nl.ds(n, COLUMNS)])
                nisa.nc_matmul(total, stationary[k], moving)
            _store(product[nl.ds(m, ROWS), nl.ds(n, COLUMNS)], total)

        nl.fori_loop(0, columns, compute_tile, COLUMNS)

    nl.fori_loop(0, rows, compute_row, ROWS)
    return product


@jit
def matmul_blocked_free(
    left: NkiTensor, right: NkiTensor, tiles: tuple[int, int] = (4, 1)
) -> NkiTensor:
    """Step 3: left.T @ right in blocks of `tiles` (rows, columns), whose operands are loaded once.

    Every tile of a block has a PSUM bank, so a block has at most eight.
    """
    block_rows, block_columns = ROWS * tiles[0], COLUMNS * tiles[1]
    assert tiles[0] * tiles[1] <= BANKS, f"{tiles} tiles do not fit the {BANKS} banks of PSUM"
    _, rows, columns = _extents(left, right, block_rows, block_columns)
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def compute_row(m: nisa.VirtualRegister) -> None:
        stationary = _load_strip(left, m, block_rows, nisa.gpsimd_engine)

        def compute_block(n: nisa.VirtualRegister) -> None:
            moving = _load_strip(right, n, block_columns, nisa.engine.sync)
            block = product[nl.ds(m, block_rows), nl.ds(n, block_columns)]
            totals = _multiply_tiles(
                [*zip(stationary, moving, strict=True)], range(0, block_rows, ROWS), block_columns
            )
            for row, banks in enumerate(totals):
                for column, total in enumerate(banks):
                    tile_rows, tile_columns = (
                        nl.ds(ROWS * row, ROWS),
                        nl.ds(COLUMNS * column, COLUMNS),
                    )
                    _store(block[tile_rows, tile_columns], total, by_scalar=column % 2 > 0)

        nl.fori_loop(0, columns, compute_block, block_columns)

    nl.fori_loop(0, rows, compute_row, block_rows)
    return product


@jit
def matmul_fully_blocked(
    left: NkiTensor, right: NkiTensor, tiles: tuple[int, int, int] = (8, 1, 4)
) -> NkiTensor:
    """Step 4: left.T @ right in blocks of `tiles` (rows, columns, depth) along all three loops.

    A block of the product stays in SBUF as float32 while blocks of k accumulate into it; where k is
    a single block, it accumulates in PSUM only.
    """
    block_rows, block_columns, block_depth = ROWS * tiles[0], COLUMNS * tiles[1], DEPTH * tiles[2]
    depth, rows, columns = _extents(left, right, block_rows, block_columns)
    assert depth % block_depth == 0, f"k is {depth}, which blocks of {block_depth} do not divide"
    product = nl.ndarray((rows, columns), left.dtype, buffer=nl.shared_hbm, name="product")

    def compute_block(m: nisa.VirtualRegister, n: nisa.VirtualRegister) -> None:
        strips = left[:, nl.ds(m, block_rows)], right[:, nl.ds(n, block_columns)]
        block = _Block(*strips, product[nl.ds(m, block_rows), nl.ds(n, block_columns)])
        for k in range(0, depth, block_depth):
            block.add(k, block_depth)

    nl.fori_loop(
        0,
        columns,
        lambda n: nl.fori_loop(0, rows, lambda m: compute_block(m, n), block_rows),
        block_columns,
    )
    return product


class _Block:
    """A block of the product, accumulated over blocks of k."""

    def __init__(self, left: NkiTensor, right: NkiTensor, out: NkiTensor) -> None:
        self.left, self.right, self.out = left, right, out
        self.block_rows, self.block_columns = out.shape
        self.accumulators: dict[int, NkiTensor] = {}  # by row of tiles, float32 in SBUF

    def add(self, k: int, block_depth: int) -> None:
        """Accumulate products over `block_depth` rows from k; after the last k, store."""
        part = slice(k, k + block_depth)
        pairs = zip(_depth_tiles(self.left[part]), _depth_tiles(self.right[part]), strict=True)
        loaded = [
            (_load_tile(stationary_tile), _load_tile(moving_tile))
            for stationary_tile, moving_tile in pairs
        ]
        is_first, is_last = k == 0, k + block_depth == self.left.shape[0]
        banks = BANKS if is_first and is_last else BANKS // 2
        group = max(1, banks * COLUMNS // self.block_columns) * ROWS
        for top in range(0, self.block_rows, group):
            rows = range(top, min(top + group, self.block_rows), ROWS)
            totals = _multiply_tiles(loaded, rows, self.block_columns)
            for number, row in enumerate(rows):
                self._evacuate(row, totals[number], is_first, is_last)

    def _evacuate(self, row: int, totals: list[NkiTensor], is_first: bool, is_last: bool) -> None:
        """Add a row of tiles from PSUM to the SBUF accumulators; after the last k, store it."""
        if is_first and not is_last:
            self.accumulators[row] = nl.ndarray((ROWS, self.block_columns), nl.float32)
        result = (
            nl.ndarray((ROWS, self.block_columns), self.out.dtype)
            if is_last
            else self.accumulators[row]
        )
        for number, total in enumerate(totals):
            columns = slice(COLUMNS * number, COLUMNS * (number + 1))
            place = result[:, columns]
            if is_first:
                evacuate_psum(place, total, by_scalar=(row // ROWS + number) % 2 > 0)
            else:
                accumulated = self.accumulators[row][:, columns] if is_last else place
                nisa.tensor_tensor(place, accumulated, total, nl.add)
        if is_last:
            nisa.dma_copy(self.out[row : row + ROWS], result, engine=nisa.gpsimd_engine)


def _multiply_tiles(
    loaded: list[tuple[NkiTensor, NkiTensor]], rows: range, block_columns: int
) -> list[list[NkiTensor]]:
    """Result tiles of some rows, each in a PSUM bank; k is outermost to start after few loads."""
    totals = [
        [
            nl.ndarray((ROWS, COLUMNS), nl.float32, buffer=nl.psum)
            for _ in range(0, block_columns, COLUMNS)
        ]
        for _ in rows
    ]
    for stationary_tile, moving_tile in loaded:
        columns = [moving_tile[:, at : at + COLUMNS] for at in range(0, block_columns, COLUMNS)]
        for row, banks in zip(rows, totals, strict=True):
            stationary = stationary_tile[:, row : row + ROWS]
            for total, moving in zip(banks, columns, strict=True):
                nisa.nc_matmul(total, stationary, moving)
    return totals


def _extents(
    left: NkiTensor, right: NkiTensor, block_rows: int, block_columns: int
) -> tuple[int, int, int]:
    """(k, m, n); AssertionError where the blocks do not divide the product."""
    depth, rows = left.shape
    columns = right.shape[1]
    assert right.shape[0] == depth, f"left has {depth} rows of k, right has {right.shape[0]}"
    assert depth % DEPTH == 0, f"k is {depth}, not a multiple of {DEPTH}"
    assert rows % block_rows == 0, f"m is {rows}, not a multiple of {block_rows}"
    assert columns % block_columns == 0, f"n is {columns}, not a multiple of {block_columns}"
    return depth, rows, columns


def _depth_tiles(operand: NkiTensor) -> list[NkiTensor]:
    """The operand as tiles of 128 rows of k."""
    return [operand[k : k + DEPTH] for k in range(0, operand.shape[0], DEPTH)]


def _load_strip(
    operand: NkiTensor, start: nisa.VirtualRegister, width: int, by: nisa.engine
) -> Strip:
    """Load `width` columns for all k, one transfer per 128 rows so that products start early.

    The operands use different DMA queues: loads for the next row of results wait for tiles in use,
    and the loads of the first block must not queue behind them.
    """
    return tuple(_load_tile(tile, by) for tile in _depth_tiles(operand[:, nl.ds(start, width)]))


def _load_tile(source: NkiTensor, by: nisa.engine = nisa.engine.sync) -> NkiTensor:
    """Load into a new SBUF tile."""
    tile = nl.ndarray(source.shape, source.dtype)
    nisa.dma_copy(tile, source, engine=by)
    return tile


def _store(destination: NkiTensor, total: NkiTensor, by_scalar: bool = False) -> None:
    """Evacuate a finished tile from PSUM, rounded to the result's dtype, and store it."""
    result = nl.ndarray(total.shape, destination.dtype)
    evacuate_psum(result, total, by_scalar=by_scalar)
    nisa.dma_copy(destination, result, engine=nisa.scalar_engine)
