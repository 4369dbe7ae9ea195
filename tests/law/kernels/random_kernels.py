"""Random NKI kernels over a few tiles that they use again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from glia.nki import isa as nisa
from glia.nki import language as nl

Step = tuple[str, int, int, int, int]  # what, a tile, another, the first column, columns
ROWS, COLUMNS, TILES = 32, 64, 3
SIMPLE = ("load", "fill", "copy", "add", "square", "store", "product", "cleared product", "sum")
KINDS = (*SIMPLE, *SIMPLE, "counted loop", "dynamic loop", "in order", "own tile", "by address")
STEPS = st.tuples(
    st.sampled_from(KINDS), st.integers(0, TILES - 1), st.integers(0, TILES - 1),
    st.sampled_from((0, 0, 0, 16, 32)), st.sampled_from((64, 64, 32, 16)),
)  # fmt: skip


def kernel_of(steps: list[Step]) -> Callable[[Any], Any]:
    """A kernel that takes the steps; every tile is written before and stored at the end."""

    def kernel(x: Any) -> Any:
        return _RandomKernel(x, len(steps)).run(steps)

    return kernel


def loop_kernel_of(steps: list[Step], trips: int, own: int) -> Callable[[Any], Any]:
    """A kernel with a loop on the device that takes simple steps; `own` tiles are of its body."""

    def kernel(x: Any) -> Any:
        return _RandomKernel(x, trips).run_loop(steps, trips, own)

    return kernel


def argument(steps: list[Step]) -> np.ndarray:
    """What the kernel of these steps takes."""
    return loop_argument(len(steps))


def loop_argument(trips: int) -> np.ndarray:
    """What a kernel with a loop of so many trips takes."""
    values = np.random.default_rng(7).standard_normal((ROWS * (trips + 1), COLUMNS))
    return values.astype(np.float32)


class _RandomKernel:
    def __init__(self, x: Any, steps: int) -> None:
        self.x = x
        rows = ROWS * (steps + TILES + 1)
        self.y = nl.ndarray((rows, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        self.tiles = [nl.ndarray((ROWS, COLUMNS), nl.float32) for _ in range(TILES)]
        self.total = nl.ndarray((COLUMNS, COLUMNS), nl.float32, buffer=nl.psum)

    def run(self, steps: list[Step]) -> Any:
        for tile in self.tiles:
            nisa.dma_copy(tile, self.x[:ROWS])
        nisa.memset(self.total, 1.0)
        nisa.dma_copy(self.y[:ROWS], self.x[:ROWS])
        for number, step in enumerate(steps):
            self.take(step, slice(ROWS * (number + 1), ROWS * (number + 2)))
        return self.results(len(steps))

    def run_loop(self, steps: list[Step], trips: int, own: int) -> Any:
        left = self.tiles[own:]
        for tile in left:
            nisa.dma_copy(tile, self.x[:ROWS])
        nisa.memset(self.total, 1.0)
        for number in range(trips + 1):
            nisa.dma_copy(self.y[ROWS * number : ROWS * (number + 1)], self.x[:ROWS])

        def body(i: Any) -> None:
            self.tiles = [*(nl.ndarray((ROWS, COLUMNS), nl.float32) for _ in range(own)), *left]
            for tile in self.tiles[:own]:
                nisa.dma_copy(tile, self.x[nl.ds(i, ROWS)])
            for step in steps:
                self.simple(step, nl.ds(i, ROWS))

        nl.fori_loop(0, ROWS * trips, body, step=ROWS)
        self.tiles = left
        return self.results(trips)

    def results(self, steps: int) -> Any:
        """y, with the tiles after the rows of the steps, and the sum of products."""
        for number, tile in enumerate(self.tiles):
            first = ROWS * (steps + 1 + number)
            nisa.dma_copy(self.y[first : first + ROWS], tile)
        rows = self.total.shape[0]
        last = nl.ndarray((rows, COLUMNS), nl.float32)
        nisa.tensor_copy(last, self.total)
        out = nl.ndarray((rows, COLUMNS), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, last)
        return self.y, out

    def take(self, step: Step, rows: slice) -> None:
        kind, one, other, start, count = step
        columns = slice(start, min(start + count, COLUMNS))
        if kind == "counted loop":
            nl.fori_loop(0, 3, lambda _: self.simple(("add", one, other, start, count), rows))
        elif kind == "dynamic loop":
            index = nisa.register_alloc(2)
            nl.fori_loop(0, index, lambda _: self.simple(("add", one, other, start, count), rows))
        elif kind == "in order":
            with nl.no_reorder():
                self.simple(("fill", one, other, 0, COLUMNS), rows)
                self.simple(("load", one, other, 0, COLUMNS), rows)
        elif kind == "own tile":
            self.work_in(nl.ndarray((ROWS, COLUMNS), nl.float32), one, columns)
        elif kind == "by address":
            place = nl.ndarray((ROWS, COLUMNS), nl.float32, address=(0, 64 * COLUMNS))
            self.work_in(place, one, columns)
        else:
            self.simple(step, rows)

    def work_in(self, tile: Any, one: int, columns: slice) -> None:
        """Clear a tile, take another's contents, and give them back."""
        nisa.memset(tile, 0.0)
        nisa.tensor_copy(tile[:, columns], self.tiles[one][:, columns])
        nisa.activation(self.tiles[one][:, columns], nl.square, tile[:, columns])

    def simple(self, step: Step, rows: Any) -> None:
        kind, first, second, start, count = step
        columns = slice(start, min(start + count, COLUMNS))
        one, other = self.tiles[first][:, columns], self.tiles[second][:, columns]
        if kind == "load":
            nisa.dma_copy(one, self.x[rows, columns])
        elif kind == "fill":
            nisa.memset(one, float(count))
        elif kind == "copy":
            nisa.tensor_copy(one, other)
        elif kind == "add":
            nisa.tensor_tensor(one, one, other, nl.add)
        elif kind == "square":
            nisa.activation(one, nl.square, other)
        elif kind == "store":
            nisa.dma_copy(self.y[rows, columns], one)
        else:
            self.multiply(kind, first, second)

    def multiply(self, kind: str, first: int, second: int) -> None:
        """A group of two products, after a fill perhaps; its sum, scaled, is a new tile."""
        if kind != "product":
            nisa.memset(self.total, 0.0)
        if kind == "sum":
            nisa.tensor_copy(self.tiles[second], self.total[:ROWS])
        for _ in range(2):
            nisa.nc_matmul(self.total, self.tiles[first], self.tiles[second])
        nisa.tensor_scalar(self.tiles[second], self.total[:ROWS], nl.multiply, 2.0**-6)
