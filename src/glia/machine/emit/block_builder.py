"""A builder of machine statements, with a stack of open loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from glia.base.affine import ZERO, Affine
from glia.base.dtype import DType
from glia.base.loc import UNKNOWN, Loc
from glia.isa.instructions.dma import DmaCopy
from glia.isa.instructions.dma_transpose import DmaTranspose
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.isa.rules import MOST_DIMS
from glia.machine.emit.layout import fold_dims
from glia.machine.ir import Loop, Statement
from glia.machine.queues import QUEUE_OWNERS


class BlockBuilder:
    """Appends statements to the innermost open block; allocates tiles and unique names."""

    def __init__(self) -> None:
        self.tiles: dict[str, Tile] = {}
        self.constants: dict[str, np.ndarray] = {}  # HBM tile -> what it holds
        self.open_loops: dict[str, int] = {}  # variable -> trips, outermost first
        self.loc: Loc = UNKNOWN
        self.queues: Mapping[str, str] = {}  # those that are used for others
        self._register_engines: dict[str, str] = {}  # by register: the engine that has it
        self._blocks: list[list[Statement]] = [[]]
        self._names: dict[str, int] = {}
        self._count: Counter[str] = Counter()

    @property
    def block(self) -> list[Statement]:
        """The innermost open block."""
        return self._blocks[-1]

    def unique_name(self, stem: str) -> str:
        """A name that this builder has not returned before, `stem` and a number."""
        count = self._names.get(stem, 0)
        self._names[stem] = count + 1
        return f"{stem}.{count}"

    def tile(self, stem: str, memory: Memory, dtype: DType, partitions: int, elements: int) -> Tile:
        """A new tile with a unique name."""
        tile = Tile(self.unique_name(stem), memory, dtype, partitions, elements)
        self.tiles[tile.name] = tile
        return tile

    def emit(self, instruction: Instr) -> None:
        """Append one instruction."""
        self.block.append(instruction)
        self._count[instruction.mnemonic()] += 1
        if (register := instruction.sets_register) is not None:
            self._register_engines[register] = instruction.runs_on

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Count the instructions that are emitted, by mnemonic."""
        before, self._count = self._count, Counter()
        try:
            yield self._count
        finally:
            self._count = before

    @contextmanager
    def using_queues(self, queues: Mapping[str, str]) -> Iterator[None]:
        """Inside, transfers use other queues for those that `queues` names."""
        before, self.queues = self.queues, queues
        try:
            yield
        finally:
            self.queues = before

    @contextmanager
    def nested(self) -> Iterator[list[Statement]]:
        """Open a block; statements go to it until it is closed."""
        self._blocks.append([])
        try:
            yield self._blocks[-1]
        finally:
            self._blocks.pop()

    @contextmanager
    def attempt(self) -> Iterator[list[Statement]]:
        """Open a block for statements that an exception takes back, with their tiles.

        Names that were used stay used.
        """
        depth, made, packed = len(self._blocks), len(self.tiles), len(self.constants)
        open_loops = dict(self.open_loops)
        self._blocks.append([])
        try:
            yield self._blocks[-1]
        except BaseException:
            for entries, count in ((self.tiles, made), (self.constants, packed)):
                while len(entries) > count:
                    entries.popitem()
            self.open_loops = open_loops
            raise
        finally:
            del self._blocks[depth:]

    @contextmanager
    def loop(self, trips: int, stem: str = "i", copies: int = 0) -> Iterator[Affine]:
        """Open a loop and yield its variable; with one trip there is no loop, and it yields 0."""
        if trips == 1:
            yield ZERO
            return
        variable = self.unique_name(stem)
        self.open_loops[variable] = trips
        with self.nested() as body:
            yield Affine.of(variable)
        del self.open_loops[variable]
        if trips > 0 and body:
            self.block.append(Loop(variable, trips, tuple(body), copies=copies))

    def dma(self, dst: Pattern, src: Pattern, queue: str) -> None:
        """Copy between patterns of equal shape, in as few descriptors as four free dims allow."""
        dst, src = fold_dims((dst, src))
        if len(dst.dims) <= MOST_DIMS:
            used, issuer = self._queue(queue, dst, src)
            self.emit(DmaCopy(dst=dst, src=src, queue=used, on=issuer, loc=self.loc))
            return
        with self.loop(dst.dims[1][1]) as index:
            self.dma(_select_outer(dst, index), _select_outer(src, index), queue)

    def dma_transposed(self, dst: Pattern, src: Pattern, queue: str) -> None:
        """Copy between patterns of reversed shapes."""
        used, issuer = self._queue(queue, dst, src)
        self.emit(DmaTranspose(dst=dst, src=src, queue=used, on=issuer, loc=self.loc))

    def _queue(self, queue: str, *moved: Pattern) -> tuple[str, str]:
        """The queue that is used for another one, and the engine that issues it.

        An engine reads its own registers: where one says where a pattern begins, a queue of the
        engine that has it is used.
        """
        used = self.queues.get(queue, queue)
        engines = self._register_engines
        needed = {engines[v] for each in moved for v in each.variables if v in engines}
        if needed and QUEUE_OWNERS[used] not in needed:
            used = next(name for name, owner in QUEUE_OWNERS.items() if owner in needed)
        return used, QUEUE_OWNERS[used]


def _select_outer(pattern: Pattern, index: Affine) -> Pattern:
    """Fix the outermost free dimension at `index`."""
    step = pattern.dims[1][0]
    dims = (pattern.dims[0], *pattern.dims[2:])
    return Pattern(
        pattern.tile, pattern.dtype, dims, pattern.offset + index * step, pattern.partition
    )
