"""Who wrote each byte of the memories last: behind the checks of what an instruction reads.

A byte that nobody wrote is uninitialised. A byte that was last written through another tile is
gone: the tile that is read lived at these addresses before, and has been overwritten since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.machine.text import print_instruction
from glia.sim.byte_tags import Cells, granule_of, place_text
from glia.sim.memory import Environment, Memories, Region, evaluator
from glia.sim.policy import StaleRead, UninitializedRead

Array = np.ndarray[Any, Any]
Check = Callable[[Environment], None]
Rows = Callable[[Environment], Array | None]


def all_rows(_: Environment) -> None:
    """That an instruction touches all of an operand."""


def rows_of(memories: Memories, instr: Instr, name: str) -> Rows:
    """A function that gives the rows of an operand that an instruction touches, None for all."""
    if instr.arrives != "memory":
        return all_rows
    views = {each: memories.viewer(pattern) for each, _, pattern in instr.operands()}
    return lambda environment: instr.rows_touched(
        name, {each: view(environment) for each, view in views.items()}
    )


class Writers:
    """The writers of all memories of a run, by number from 1: a text, and the tile written."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self._granule = granule_of(programs)
        self._texts = ["nothing"]
        self._tiles = np.zeros(64, np.int32)  # writer -> number of the tile, 0 for nothing
        self._numbers: dict[object, int] = {}
        self._cells: dict[int, Cells] = {}

    def cells(self, region: Region) -> Cells:
        """The numbers beside the buffer of a region."""
        key = id(region.buffer)
        if key not in self._cells:
            self._cells[key] = Cells(region, self._granule)
        return self._cells[key]

    def tile(self, identity: object) -> int:
        """The number of a tile."""
        return self._numbers.setdefault(identity, len(self._numbers) + 1)

    def writer(self, text: str, tile: int) -> int:
        """The number of a new writer."""
        number = len(self._texts)
        self._texts.append(text)
        if number >= self._tiles.size:
            self._tiles = np.resize(self._tiles, 2 * self._tiles.size)
        self._tiles[number] = tile
        return number

    def text(self, number: int) -> str:
        """Who a writer is."""
        return self._texts[number]

    def tiles(self, writers: Array) -> Array:
        """The tiles that writers wrote to."""
        return self._tiles[writers]


class WrittenBytes:
    """Notes and checks the accesses of one core; `writers` may be shared by several."""

    def __init__(self, memories: Memories, writers: Writers, core: int = 0) -> None:
        self._memories = memories
        self._writers = writers
        self._core = core

    def mark_tile(self, tile: Tile) -> None:
        """Note that all of an HBM tile has been written from outside."""
        region = self._memories.region(tile)
        writer = self._writers.writer("the outside", self._tile(tile))
        self._writers.cells(region).fill(region.start, tile.bytes, writer)

    def marker(self, pattern: Pattern, instr: Instr, rows: Rows = all_rows) -> Check:
        """A function that notes that an instruction has written (rows of) a pattern."""
        view = self._memories.viewer(pattern)
        cells = self._writers.cells(self._memories.region(pattern.tile))
        where = f", {instr.loc}" if str(instr.loc) else ""
        text = f"{instr.mnemonic()} on {instr.runs_on}{where}"
        writer = self._writers.writer(text, self._tile(pattern.tile))

        def mark(environment: Environment) -> None:
            chosen = rows(environment)
            cells.at(view(environment))[... if chosen is None else chosen] = writer

        return mark

    def checker(self, pattern: Pattern, instr: Instr, name: str, rows: Rows = all_rows) -> Check:
        """A function that raises UninitializedRead or StaleRead unless a read is sound."""
        view = self._memories.viewer(pattern)
        cells = self._writers.cells(self._memories.region(pattern.tile))
        own = self._tile(pattern.tile)
        condition = evaluator(instr.read_condition(name))

        def check(environment: Environment) -> None:
            if not condition(environment):
                return
            data, chosen = view(environment), rows(environment)
            found = cells.at(data)
            part = found if chosen is None else found[chosen]
            if (self._writers.tiles(part) != own).any():
                wrong = self._writers.tiles(found) != own
                if chosen is not None:
                    wrong[np.setdiff1d(np.arange(len(wrong)), chosen)] = False
                self._fail(instr, name, pattern.tile, cells, data, found, wrong)

        return check

    def _fail(
        self,
        instr: Instr,
        name: str,
        tile: Tile,
        cells: Cells,
        data: Array,
        found: Array,
        wrong: Array,
    ) -> None:
        missing = wrong & (found == 0)
        chosen = missing if missing.any() else wrong
        where = place_text(tile, *cells.bytes_of(data, chosen))
        facts = {"instruction": print_instruction(instr), "loc": instr.loc}
        if missing.any():
            count = np.count_nonzero(chosen.reshape(*data.shape, -1).any(axis=-1))
            raise UninitializedRead(
                f"{count} elements of {name} were never written: {where}", **facts
            )
        writer = self._writers.text(int(found[wrong].max()))
        raise StaleRead(
            f"{name} is gone: {where} was overwritten through another tile by {writer}", **facts
        )

    def _tile(self, tile: Tile) -> int:
        """A tile's number; tensors in HBM at one address are one to all cores."""
        address = self._memories.address(tile)
        if tile.memory is Memory.HBM and address is not None:
            return self._writers.tile((address, tile.bytes))
        return self._writers.tile((self._core, tile.name))
