"""The published matrix multiplication kernels as machine programs: c = a.T @ b, tile by tile.

Four ways to order the loads, from the NKI tutorials: every tile where it is used, hoisted out of
the inner loop, blocks of the free dimensions, blocks of all three. The programs are for timing: one
tile stands for all the buffers of an operand, and the waits let as many be in flight as there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glia.base.affine import Affine
from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.builder.view import View, ds
from glia.machine.ir import Program

Way = tuple[str, str, str]  # queue, engine, dge_mode of transfers
ROWS, COLUMNS = 128, 512  # of a stationary and of a moving tile
RING = 8  # tiles in flight where a kernel loads each tile where it uses it
BANKS = 4  # results in flight between the array and the copy out of PSUM


def by(way: Way) -> dict[str, str]:
    """The arguments of a transfer that goes this way."""
    return dict(zip(("queue", "on", "dge_mode"), way, strict=True))


@dataclass
class Gemm:
    """A kernel being written: m x k x n, its operands in HBM.

    `loads` and `stores` are (queue, engine, where descriptors come from). As part of a longer
    program it is given that program's builder, its operands (a, b and result), a prefix for its
    semaphores, and what its loads have to wait for.
    """

    m: int
    k: int
    n: int
    dtype: str
    target: str
    loads: Way = ("qSyncIO0", "sync", "none")
    stores: Way = ("qGpSimdIO0", "gpsimd", "none")
    clears: str = "gpsimd"  # the engine that writes zeros
    builder: ProgramBuilder | None = None
    operands: tuple[View, ...] = ()
    prefix: str = ""
    after: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        b = self.b = self.builder or ProgramBuilder("gemm", target=self.target)
        self.a, self.x, self.c = self.operands or (
            b.input("a", (self.k, self.m), self.dtype),
            b.input("b", (self.k, self.n), self.dtype),
            b.output("c", (self.m, self.n), self.dtype),
        )
        self.depth = self.k // ROWS
        self.out = b.sbuf((ROWS, COLUMNS), self.dtype, "out")
        self.sum = b.psum((ROWS, BANKS * COLUMNS), "f32", "sum")

    def load(self, dst: View, src: View, counts: str, **waits: Affine | int) -> None:
        """Load into a buffer, counting in the semaphore `counts`."""
        way = by(self.loads)
        waits = self.counts(waits) | dict(self.after)
        self.b.dma_copy(dst, src, **way, waits=waits, signals=self.prefix + counts)

    def counts(self, waits: Mapping[str, Affine | int]) -> dict[str, Affine | int]:
        """Waits on this kernel's own semaphores."""
        return {self.prefix + name: value for name, value in waits.items()}

    def store(self, dst: View, src: View, **waits: Affine | int) -> None:
        """Store a finished part of the result."""
        way = by(self.stores)
        counted = self.prefix + "stored"
        self.b.dma_copy(dst, src, **way, waits=self.counts(waits), signals=counted)

    def multiply(
        self, bank: int | Affine, left: View, right: View, k: Affine, **waits: Affine | int
    ) -> None:
        """Add one product to a bank; the first of a sum, where k is 0, overwrites it."""
        dst = self.sum[:, ds(COLUMNS * bank, COLUMNS)]
        counted = self.prefix + "products"
        self.b.nc_matmul(dst, left, right, accumulate=k, waits=self.counts(waits), signals=counted)

    def finish_tile(self, bank: int | Affine, dst: View, group: Affine) -> None:
        """Copy sum number `group` out of PSUM and store it."""
        products = (group + 1) * self.depth
        waits = self.counts({"products": products, "stored": group - 1})
        src = self.sum[:, ds(COLUMNS * bank, COLUMNS)]
        self.b.tensor_copy(self.out, src, waits=waits, signals=self.prefix + "copied")
        self.store(dst, self.out, copied=group + 1)

    def done(self) -> Program:
        """The program."""
        return self.b.finish(is_checked=False)


def tiled(gemm: Gemm) -> Program:
    """Both operands' tiles are loaded for every product."""
    b, depth, across = gemm.b, gemm.depth, gemm.n // COLUMNS
    left, right = _tiles(gemm, 1)
    with b.loop(gemm.m // ROWS, "m") as m, b.loop(across, "n") as n:
        group = m * across + n
        with b.loop(depth, "k") as k:
            turn = group * depth + k
            free = {"products": turn - RING + 1}
            gemm.load(left, gemm.a[ds(ROWS * k, ROWS), ds(ROWS * m, ROWS)], "lefts", **free)
            gemm.load(right, gemm.x[ds(ROWS * k, ROWS), ds(COLUMNS * n, COLUMNS)], "rights", **free)
            ready = {"lefts": turn + 1, "rights": turn + 1, "copied": group}
            gemm.multiply(0, left, right, k, **ready)
        dst = gemm.c[ds(ROWS * m, ROWS), ds(COLUMNS * n, COLUMNS)]
        gemm.finish_tile(0, dst, group)
    return gemm.done()


def hoisted(gemm: Gemm) -> Program:
    """The left operand is loaded once for a row of results, the right one for every result.

    Two rows of the left operand are in flight, and the right one's tiles of one result.
    """
    b, depth, across = gemm.b, gemm.depth, gemm.n // COLUMNS
    left, right = _tiles(gemm, depth)
    with b.loop(gemm.m // ROWS, "m") as m:
        with b.loop(depth, "l") as k:
            src = gemm.a[ds(ROWS * k, ROWS), ds(ROWS * m, ROWS)]
            last_use = ((m - 1) * across - 1) * depth + k + 1
            gemm.load(left[:, ds(ROWS * k, ROWS)], src, "lefts", products=last_use)
        with b.loop(across, "n") as n:
            group = m * across + n
            with b.loop(depth, "k") as k:
                turn = group * depth + k
                src = gemm.x[ds(ROWS * k, ROWS), ds(COLUMNS * n, COLUMNS)]
                gemm.load(right, src, "rights", products=turn - depth + 1)
                ready = {"lefts": m * depth + k + 1, "rights": turn + 1, "copied": group}
                gemm.multiply(0, left[:, ds(ROWS * k, ROWS)], right, k, **ready)
            gemm.finish_tile(0, gemm.c[ds(ROWS * m, ROWS), ds(COLUMNS * n, COLUMNS)], group)
    return gemm.done()


def blocked(gemm: Gemm, *, is_kept: bool) -> Program:
    """Blocks of 2 x 2 results share their operands.

    `is_kept`: both columns of the right operand fit into SBUF and serve two rows of results;
    where they do not, each result loads its own again.
    """
    b, depth, across = gemm.b, gemm.depth, gemm.n // (2 * COLUMNS)
    left, right = _tiles(gemm, 2 * depth)
    with b.loop(gemm.m // (2 * ROWS), "m") as m:
        with b.loop(2, "lm") as bm, b.loop(depth, "l") as k:
            src = gemm.a[ds(ROWS * k, ROWS), ds(ROWS * (2 * m + bm), ROWS)]
            block = (m * across - 1) * 4 + bm * 2 + 1
            place = ds(ROWS * (bm * depth + k), ROWS)
            gemm.load(left[:, place], src, "lefts", products=block * depth + k + 1)
        with b.loop(across, "n") as n:
            block = m * across + n
            if is_kept:
                with b.loop(2, "rn") as bn, b.loop(depth, "r") as k:
                    last_use = ((block - 1) * 4 + 2 + bn) * depth + k + 1
                    _load_right(gemm, right, n, bn, k, last_use)
            with b.loop(2, "bm") as bm, b.loop(2, "bn") as bn:
                group = block * 4 + bm * 2 + bn
                with b.loop(depth, "k") as k:
                    turn = group * depth + k
                    if not is_kept:
                        _load_right(gemm, right, n, bn, k, turn - depth + 1)
                    loaded = (block * 2 + bn) * depth + k + 1 if is_kept else turn + 1
                    ready = {"lefts": (m * 2 + bm) * depth + k + 1, "rights": loaded}
                    here = left[:, ds(ROWS * (bm * depth + k), ROWS)]
                    gemm.multiply(bm * 2 + bn, here, right, k, copied=group - BANKS + 1, **ready)
                rows, columns = ds(ROWS * (2 * m + bm), ROWS), ds(COLUMNS * (2 * n + bn), COLUMNS)
                gemm.finish_tile(bm * 2 + bn, gemm.c[rows, columns], group)
    return gemm.done()


def _load_right(gemm: Gemm, right: View, n: Affine, bn: Affine, k: Affine, free: Affine) -> None:
    src = gemm.x[ds(ROWS * k, ROWS), ds(COLUMNS * (2 * n + bn), COLUMNS)]
    gemm.load(right, src, "rights", products=free)


def _tiles(gemm: Gemm, lefts: int) -> tuple[View, View]:
    """The stationary tiles of one sum, and one moving tile: waits, not places, count buffers."""
    left = gemm.b.sbuf((ROWS, ROWS * lefts), gemm.dtype, "left")
    return left, gemm.b.sbuf((ROWS, COLUMNS), gemm.dtype, "right")


def fully_blocked(
    gemm: Gemm, tiles: tuple[int, int, int] = (16, 2, 8), *, is_packed: bool = True
) -> Program:
    """Blocks of (m, n, k) tiles; sums of a block are added up in SBUF, stored in long rows.

    `is_packed` copies results together before they are stored; otherwise they lie together, twice,
    so that a block's sums are stored while the next block's begin.
    """
    write_fully_blocked(gemm, tiles, is_packed=is_packed)
    return gemm.done()


def write_fully_blocked(gemm: Gemm, tiles: tuple[int, int, int], *, is_packed: bool) -> int:
    """The same as part of a longer program; returns how many stores it counts."""
    kernel = _FullyBlocked(gemm, *tiles)
    kernel.write(is_packed)
    return kernel.rows * kernel.blocks_n


class _FullyBlocked:
    """The kernel that blocks all dimensions, one loop of it a method."""

    def __init__(self, gemm: Gemm, in_m: int, in_n: int, in_k: int) -> None:
        self.gemm, self.in_m, self.in_n, self.in_k = gemm, in_m, in_n, in_k
        self.blocks_m = gemm.m // (ROWS * in_m)
        self.blocks_n = gemm.n // (COLUMNS * in_n)
        self.blocks_k = gemm.k // (ROWS * in_k)
        self.left = gemm.b.sbuf((ROWS, in_k * in_m * ROWS), gemm.dtype, "left")
        self.right = gemm.b.sbuf((ROWS, in_k * in_n * COLUMNS), gemm.dtype, "right")
        self.totals = gemm.b.sbuf((ROWS, in_n * COLUMNS), gemm.dtype, "totals")
        self.packed = gemm.b.sbuf((ROWS, in_n * COLUMNS), gemm.dtype, "packed")
        self.sums = self.blocks_m * in_n * in_m  # for one n and one k
        self.rows = self.blocks_m * in_m

    def write(self, is_packed: bool) -> None:
        b = self.gemm.b
        with b.loop(self.blocks_n, "n") as n:
            self._clear(n, is_packed)
            with b.loop(self.blocks_k, "k") as k:
                self._load_right(n, k)
                with b.loop(self.blocks_m, "m") as m:
                    self._load_left(n, k, m)
                    self._multiply(n, k, m)
            self._store(n, is_packed)

    def _clear(self, n: Affine, is_packed: bool) -> None:
        b, gemm = self.gemm.b, self.gemm
        cleared = gemm.prefix + "cleared"
        with b.loop(self.rows, "clear") as row:
            sets, counts = (1, "packed") if is_packed else (2, "stored")
            waits = gemm.counts({counts: (n - sets) * self.rows + row + 1})
            b.memset(self.totals, 0.0, on=gemm.clears, waits=waits, signals=cleared)

    def _load_right(self, n: Affine, k: Affine) -> None:
        b, gemm, width = self.gemm.b, self.gemm, self.in_n * COLUMNS
        block = n * self.blocks_k + k
        with b.loop(self.in_k, "bk_r") as bk:
            src = gemm.x[ds(ROWS * (self.in_k * k + bk), ROWS), ds(width * n, width)]
            used = (block - 1) * self.sums * self.in_k
            gemm.load(self.right[:, ds(width * bk, width)], src, "rights", products=used)

    def _load_left(self, n: Affine, k: Affine, m: Affine) -> None:
        b, gemm, width = self.gemm.b, self.gemm, self.in_m * ROWS
        block = (n * self.blocks_k + k) * self.blocks_m + m
        with b.loop(self.in_k, "bk_l") as bk:
            src = gemm.a[ds(ROWS * (self.in_k * k + bk), ROWS), ds(width * m, width)]
            used = (block - 1) * self.in_n * self.in_m * self.in_k
            gemm.load(self.left[:, ds(width * bk, width)], src, "lefts", products=used)

    def _multiply(self, n: Affine, k: Affine, m: Affine) -> None:
        b, gemm = self.gemm.b, self.gemm
        outer = n * self.blocks_k + k
        block = outer * self.blocks_m + m
        with b.loop(self.in_n, "bn") as bn, b.loop(self.in_m // BANKS, "bm") as part:
            for bank in range(BANKS):
                bm = part * BANKS + bank
                group = (block * self.in_n + bn) * self.in_m + bm
                with b.loop(self.in_k, f"bk{bank}") as bk:
                    left = self.left[:, ds(ROWS * (self.in_m * bk + bm), ROWS)]
                    right = self.right[:, ds(COLUMNS * (self.in_n * bk + bn), COLUMNS)]
                    ready = {"lefts": block * self.in_k + bk + 1}
                    ready |= {"rights": outer * self.in_k + bk + 1, "added": group - BANKS + 1}
                    gemm.multiply(bank, left, right, bk, **ready)
                total = self.totals[:, ds(COLUMNS * bn, COLUMNS)]
                row = n * self.rows + m * self.in_m + bm
                ready = {"products": (group + 1) * self.in_k, "cleared": row + 1}
                summed = gemm.sum[:, ds(COLUMNS * bank, COLUMNS)]
                waits, added = gemm.counts(ready), gemm.prefix + "added"
                b.tensor_tensor(total, total, summed, op="add", waits=waits, signals=added)

    def _store(self, n: Affine, is_packed: bool) -> None:
        b, gemm, width = self.gemm.b, self.gemm, self.in_n * COLUMNS
        added = {"added": (n + 1) * self.blocks_k * self.sums}
        with b.loop(self.rows, "row") as row:
            turn = n * self.rows + row
            if is_packed:
                for bn in range(self.in_n):
                    part = ds(COLUMNS * bn, COLUMNS)
                    waits = gemm.counts(added | {"stored": turn - 3})
                    counted = gemm.prefix + "packed" if bn + 1 == self.in_n else ()
                    src = self.totals[:, part]
                    dst = self.packed[:, part]
                    b.activation(dst, src, function="copy", waits=waits, signals=counted)
            ready = {"packed": turn + 1} if is_packed else added
            dst = gemm.c[ds(ROWS * row, ROWS), ds(width * n, width)]
            gemm.store(dst, self.packed if is_packed else self.totals, **ready)
