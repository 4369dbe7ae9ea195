"""The last writer of each byte of the memories, to detect uninitialized and stale reads.

A byte without a writer is uninitialized. A byte last written through another tile is stale: the
tile that is read occupied these addresses before and has been overwritten since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Program
from glia.machine.text import print_instruction
from glia.sim.byte_tags import ByteTags, access_granule, address_text
from glia.sim.memory import Environment, Memories, Region, evaluator
from glia.sim.policy import StaleRead, UninitializedRead

Array = np.ndarray[Any, Any]
Check = Callable[[Environment], None]
Rows = Callable[[Environment], Array | None]


def untracked_rows(_: Environment) -> None:
    """Rows of an operand that is accessed as a whole."""


def touched_rows(memories: Memories, instr: Instr, name: str) -> Rows:
    """A function that gives the rows of an operand that an instruction accesses, None for all."""
    if instr.arrives != "memory":
        return untracked_rows
    views = {each: memories.viewer(pattern) for each, _, pattern in instr.operands()}
    return lambda environment: instr.rows_touched(
        name, {each: view(environment) for each, view in views.items()}
    )


class WriterTable:
    """The writers of all memories of a run, numbered from 1: a description and the tile written."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self._granule = access_granule(programs)
        self._texts = ["nothing"]
        self._tiles = np.zeros(64, np.int32)  # writer -> number of the tile, 0 for nothing
        self._numbers: dict[object, int] = {}
        self._cells: dict[int, ByteTags] = {}

    def tags(self, region: Region) -> ByteTags:
        """The writer numbers of a region's buffer."""
        key = id(region.buffer)
        if key not in self._cells:
            self._cells[key] = ByteTags(region, self._granule)
        return self._cells[key]

    def tile(self, identity: object) -> int:
        """The number of a tile."""
        return self._numbers.setdefault(identity, len(self._numbers) + 1)

    def writer(self, text: str, tile: int) -> int:
        """Add a writer and return its number."""
        number = len(self._texts)
        self._texts.append(text)
        if number >= self._tiles.size:
            self._tiles = np.resize(self._tiles, 2 * self._tiles.size)
        self._tiles[number] = tile
        return number

    def text(self, number: int) -> str:
        """The description of a writer."""
        return self._texts[number]

    def tiles(self, writers: Array) -> Array:
        """The tile numbers that these writers wrote to."""
        return self._tiles[writers]


class InitializationTracker:
    """Records writes and checks reads of one core; `writers` may be shared by several cores."""

    def __init__(self, memories: Memories, writers: WriterTable, core: int = 0) -> None:
        self._memories = memories
        self._writers = writers
        self._core = core

    def mark_tile(self, tile: Tile) -> None:
        """Record that an HBM tile is written by the host."""
        region = self._memories.region(tile)
        writer = self._writers.writer("the host", self._tile(tile))
        self._writers.tags(region).fill(region.start, tile.bytes, writer)

    def marker(self, pattern: Pattern, instr: Instr, rows: Rows = untracked_rows) -> Check:
        """A function that records that an instruction has written (rows of) a pattern."""
        view = self._memories.viewer(pattern)
        tags = self._writers.tags(self._memories.region(pattern.tile))
        where = f", {instr.loc}" if str(instr.loc) else ""
        text = f"{instr.mnemonic()} on {instr.runs_on}{where}"
        writer = self._writers.writer(text, self._tile(pattern.tile))

        def mark(environment: Environment) -> None:
            chosen = rows(environment)
            tags.at(view(environment))[... if chosen is None else chosen] = writer

        return mark

    def checker(
        self, pattern: Pattern, instr: Instr, name: str, rows: Rows = untracked_rows
    ) -> Check:
        """A function that raises UninitializedRead or StaleRead for a read of such bytes."""
        view = self._memories.viewer(pattern)
        tags = self._writers.tags(self._memories.region(pattern.tile))
        own = self._tile(pattern.tile)
        condition = evaluator(instr.read_condition(name))

        def check(environment: Environment) -> None:
            if not condition(environment):
                return
            data, chosen = view(environment), rows(environment)
            found = tags.at(data)
            part = found if chosen is None else found[chosen]
            if (self._writers.tiles(part) != own).any():
                wrong = self._writers.tiles(found) != own
                if chosen is not None:
                    wrong[np.setdiff1d(np.arange(len(wrong)), chosen)] = False
                self._raise_fault(instr, name, pattern.tile, tags, data, found, wrong)

        return check

    def _raise_fault(
        self,
        instr: Instr,
        name: str,
        tile: Tile,
        tags: ByteTags,
        data: Array,
        found: Array,
        wrong: Array,
    ) -> None:
        missing = wrong & (found == 0)
        chosen = missing if missing.any() else wrong
        where = address_text(tile, *tags.bytes_of(data, chosen))
        text, loc = print_instruction(instr), instr.loc
        if missing.any():
            count = np.count_nonzero(chosen.reshape(*data.shape, -1).any(axis=-1))
            raise UninitializedRead(
                f"{count} elements of {name} were never written: {where}", instruction=text, loc=loc
            )
        writer = self._writers.text(int(found[wrong].max()))
        raise StaleRead(
            f"{name} is stale: {where} was overwritten through another tile by {writer}",
            instruction=text,
            loc=loc,
        )

    def _tile(self, tile: Tile) -> int:
        """A tile's number; a tensor in HBM has one on all cores that place it at one address."""
        address = self._memories.address(tile)
        if tile.memory is Memory.HBM and address is not None:
            return self._writers.tile((tile.name, address, tile.bytes))
        return self._writers.tile((self._core, tile.name))
