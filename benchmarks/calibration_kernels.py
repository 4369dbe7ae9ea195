"""Published kernels beside matrix multiplication, rebuilt as machine programs: mamba, exp, MLP."""

from __future__ import annotations

from calibration_gemm import COLUMNS, ROWS, Gemm, by, write_fully_blocked

from glia.machine.builder.program_builder import ProgramBuilder
from glia.machine.builder.view import View, ds
from glia.machine.ir import Program

STATES, LENGTH = 16, 512  # of the mamba tutorial
BANKS = 4


class Mamba:
    """The state-space layer of the mamba tutorial; channels on the partitions.

    A row of B or C is broadcast to all partitions by a product with ones. Where it serves all tiles
    of channels, in the first version, B is copied to SBUF by the Scalar Engine; C there, and both
    in the later versions, where each serves one tile only, are read where the product left them,
    in PSUM. The documentation does not say so: the published time of the second version does, with
    those of the third, which is held out, in view.
    """

    def __init__(self, channels: int, target: str, length: int = LENGTH) -> None:
        b = self.b = ProgramBuilder("mamba", target=target)
        self.tiles, self.length = channels // ROWS, length
        self.delta = b.input("delta", (channels, length))
        self.u = b.input("u", (channels, length))
        self.a = b.input("A", (channels, STATES))
        self.rows = [b.input(name, (STATES, length)) for name in "BC"]
        self.y = b.output("y", (channels, length))
        self.ones = b.sbuf((1, ROWS))
        b.memset(self.ones, 1.0)

    def first_version(self) -> Program:
        """States outside, channels inside: the operands are loaded anew for every state.

        With two tiles of channels they stay in SBUF from the first state on, as profiles show.
        """
        b = self.b
        total = b.sbuf((ROWS, self.tiles * LENGTH))
        b.memset(total, 0.0)
        kept = [self._load(tile) for tile in range(self.tiles)] if self.tiles == 2 else []
        for state in range(STATES):
            b_row, c_row = self._broadcast(state)
            if kept:
                for tile, (delta, u) in enumerate(kept):
                    here = total[:, ds(LENGTH * tile, LENGTH)]
                    self._step(delta, self._product(delta, u), tile, state, b_row, c_row, here)
                continue
            with b.loop(self.tiles, "tile") as tile:
                delta, u = self._load(tile)
                here = total[:, ds(LENGTH * tile, LENGTH)]
                self._step(delta, self._product(delta, u), tile, state, b_row, c_row, here)
        for tile in range(self.tiles):
            b.dma_copy(self.y[ds(ROWS * tile, ROWS)], total[:, ds(LENGTH * tile, LENGTH)])
        return b.finish(double_buffered=True, is_checked=False)

    def second_version(self) -> Program:
        """Channels outside: the operands and their product are made once for all states."""
        b = self.b
        with b.loop(self.tiles, "tile") as tile:
            total = b.sbuf((ROWS, LENGTH))
            b.memset(total, 0.0)
            delta, u = self._load(tile)
            product = self._product(delta, u)
            for state in range(STATES):
                self._step(delta, product, tile, state, *self._rows_in_psum(state), total)
            b.dma_copy(self.y[ds(ROWS * tile, ROWS)], total)
        return b.finish(double_buffered=True, is_checked=False)

    def third_version(self) -> Program:
        """As the second, time in tiles as the innermost loop: each scan goes on from the last."""
        b, steps = self.b, self.length // LENGTH
        with b.loop(self.tiles, "tile") as tile:
            total = b.sbuf((ROWS, self.length))
            b.memset(total, 0.0)
            delta, u = self._load(tile)
            product = b.sbuf((ROWS, self.length))
            b.tensor_tensor(product, delta, u, op="multiply")
            for state in range(STATES):
                column, last = b.sbuf((ROWS, 1)), b.sbuf((ROWS, 1))
                b.dma_copy(column, self.a[ds(ROWS * tile, ROWS), state : state + 1])
                b.memset(last, 0.0)
                for step in range(steps):
                    here = ds(LENGTH * step, LENGTH)
                    rows = self._rows_in_psum(state, here)
                    parts = delta[:, here], product[:, here], *rows, total[:, here]
                    scanned = self._scan(column, *parts, initial=last)
                    b.tensor_copy(last, scanned[:, LENGTH - 1 :])
            b.dma_copy(self.y[ds(ROWS * tile, ROWS)], total)
        return b.finish(double_buffered=True, is_checked=False)

    def _load(self, tile) -> tuple[View, View]:
        b = self.b
        delta, u = b.sbuf((ROWS, self.length)), b.sbuf((ROWS, self.length))
        b.dma_copy(delta, self.delta[ds(ROWS * tile, ROWS)])
        b.dma_copy(u, self.u[ds(ROWS * tile, ROWS)])
        return delta, u

    def _product(self, delta: View, u: View) -> View:
        product = self.b.sbuf((ROWS, LENGTH))
        self.b.tensor_tensor(product, delta, u, op="multiply")
        return product

    def _broadcast(self, state: int) -> tuple[View, View]:
        """B's row on all partitions in SBUF, C's in PSUM."""
        b_row, c_row = self._rows_in_psum(state)
        copied = self.b.sbuf((ROWS, LENGTH))
        self.b.activation(copied, b_row, function="copy")
        return copied, c_row

    def _rows_in_psum(self, state: int, here: slice = slice(0, LENGTH)) -> tuple[View, View]:
        """A row of B and one of C on all partitions."""
        b = self.b
        spread = []
        for row in self.rows:
            line, everywhere = b.sbuf((1, LENGTH)), b.psum((ROWS, LENGTH))
            b.dma_copy(line, row[state : state + 1, here])
            b.nc_matmul(everywhere, self.ones, line)
            spread.append(everywhere)
        return spread[0], spread[1]

    def _step(self, delta, product, tile, state, b_row, c_row, total) -> None:
        column = self.b.sbuf((ROWS, 1))
        self.b.dma_copy(column, self.a[ds(ROWS * tile, ROWS), state : state + 1])
        self._scan(column, delta, product, b_row, c_row, total)

    def _scan(self, column, delta, product, b_row, c_row, total, initial=0.0) -> View:
        b = self.b
        decay, driven, scanned, seen = (b.sbuf((ROWS, LENGTH)) for _ in range(4))
        b.activation(decay, delta, function="exp", scale=column)
        b.tensor_tensor(driven, product, b_row, op="multiply")
        b.tensor_tensor_scan(scanned, decay, driven, initial=initial, op0="multiply", op1="add")
        b.tensor_tensor(seen, scanned, c_row, op="multiply")
        b.tensor_tensor(total, total, seen, op="add")
        return scanned


def exponential(target: str = "trn1") -> Program:
    """exp of [250, 512]: 128 rows by prepared descriptors, the masked rest by made ones."""
    b = ProgramBuilder("exp", target=target)
    x, y = b.input("x", (250, LENGTH)), b.output("y", (250, LENGTH))
    static = ("qSyncIO0", "sync", "none"), ("qGpSimdIO0", "gpsimd", "none")
    made = ("qGpSimdDynamic", "gpsimd", "swdge")
    for start, count, loads, stores in ((0, ROWS, *static), (ROWS, 250 - ROWS, made, made)):
        given, result = b.sbuf((count, LENGTH)), b.sbuf((count, LENGTH))
        b.dma_copy(given, x[ds(start, count)], **by(loads))
        b.activation(result, given, function="exp")
        b.dma_copy(y[ds(start, count)], result, **by(stores))
    return b.finish()


class Mlp:
    """The profiling guide's three linear layers on 2048 rows, each fully blocked.

    Activations are transposed through the array between the layers, bias and ReLU applied on the
    way, the logarithm of softmax at the end; weights are constants of the traced model, transposed
    before the run. Loads are made by GpSimd, stores by the hardware, as in the matrix
    multiplications of the same release.
    """

    ROWS, FEATURES = 2048, (2048, 2048, 1024, 1024)
    LOADS, STORES = ("qGpSimdDynamic", "gpsimd", "swdge"), ("qSyncDynamic", "sync", "hwdge")

    def __init__(self) -> None:
        self.b = ProgramBuilder("mlp", target="trn2")
        self.banks = [self.b.psum((ROWS, COLUMNS), name="turned") for _ in range(BANKS)]

    def write(self) -> Program:
        """The whole model."""
        b = self.b
        x = b.input("x", (self.ROWS, self.FEATURES[0]))
        ready: dict[str, int] = {}
        for layer, (wide, narrow) in enumerate(zip(self.FEATURES, self.FEATURES[1:], strict=False)):
            weight, x_turned = b.input(f"w{layer}", (wide, narrow)), b.hbm((wide, self.ROWS))
            ready = self._transpose(f"x{layer}.", x, x_turned, ready, has_bias=layer > 0)
            x = b.hbm((self.ROWS, narrow))
            gemm = Gemm(
                self.ROWS, wide, narrow, "f32", "trn2", self.LOADS, self.STORES, "vector", b,
                (x_turned, weight, x), f"layer{layer}.", ready,
            )  # fmt: skip
            ready = {f"layer{layer}.stored": write_fully_blocked(gemm, (16, 2, 8), is_packed=False)}
        self._log_softmax(x, ready)
        return b.finish(is_checked=False)

    def _transpose(
        self, name: str, src: View, dst: View, after: dict[str, int], *, has_bias: bool
    ) -> dict[str, int]:
        """Rows of 128 through the array, 4 blocks at a time; returns what to wait for."""
        b = self.b
        height, width = src.shape
        groups = width // COLUMNS
        row, out = b.sbuf((ROWS, width)), b.sbuf((ROWS, COLUMNS))
        bias = b.sbuf((ROWS, 1))
        blocks = dst.reshape(groups, BANKS, ROWS, height)
        with b.loop(height // ROWS, "row") as r:
            waits = after | {f"{name}turned": (r - 1) * groups * BANKS}
            where = by(self.LOADS)
            b.dma_copy(row, src[ds(ROWS * r, ROWS)], **where, waits=waits, signals=f"{name}row")
            for g in range(groups):
                turn, bank = r * groups + g, self.banks[g]
                for block in range(BANKS):
                    waits = {f"{name}row": r + 1, f"{name}copied": turn - groups + 1}
                    data = row[:, ds(COLUMNS * g + ROWS * block, ROWS)]
                    here = bank[:, ROWS * block : ROWS * (block + 1)]
                    b.nc_transpose(here, data, waits=waits, signals=f"{name}turned")
                waits = {f"{name}turned": BANKS * (turn + 1), f"{name}stored": turn - 1}
                if has_bias:
                    b.activation(
                        out, bank, function="relu", bias=bias,
                        waits=waits, signals=f"{name}copied",
                    )  # fmt: skip
                else:
                    b.tensor_copy(out, bank, waits=waits, signals=f"{name}copied")
                target = blocks[g][:, :, ds(ROWS * r, ROWS)].transpose(1, 0, 2)
                where = by(self.STORES)
                waits = {f"{name}copied": turn + 1}
                b.dma_copy(target, out, **where, waits=waits, signals=f"{name}stored")
        return {f"{name}stored": height // ROWS * groups}

    def _log_softmax(self, src: View, after: dict[str, int]) -> None:
        """Rows of 128, four in flight."""
        b = self.b
        height, width = src.shape
        y = b.output("y", (height, width))
        row, bias, power, out = (b.sbuf((ROWS, width)) for _ in range(4))
        most, sums, log = (b.sbuf((ROWS, 1)) for _ in range(3))
        with b.loop(height // ROWS, "row") as r:
            waits = after | {"softmax.done": r - 3}
            where = by(self.LOADS)
            b.dma_copy(row, src[ds(ROWS * r, ROWS)], **where, waits=waits, signals="softmax.row")
            b.tensor_tensor(row, row, bias, op="add", waits={"softmax.row": r + 1})
            b.tensor_reduce(most, row, op="maximum", signals="softmax.most")
            b.activation(power, row, function="exp", bias=most, waits={"softmax.most": r + 1})
            b.activation(log, sums, function="log", signals="softmax.log")
            waits = {"softmax.log": r + 1, "softmax.stored": r - 3}
            b.tensor_scalar(out, row, log, "subtract", waits=waits, signals="softmax.done")
            where = by(self.STORES)
            waits = {"softmax.done": r + 1}
            b.dma_copy(y[ds(ROWS * r, ROWS)], out, **where, waits=waits, signals="softmax.stored")
