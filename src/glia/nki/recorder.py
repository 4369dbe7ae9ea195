"""What a kernel leaves behind while it runs: tiles, and instructions in program order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from glia.arch import Target
from glia.base.dtype import DType
from glia.base.loc import UNKNOWN, Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.isa.tensor import NcMatmul
from glia.nki.errors import OutsideKernel

_OWN_FOLDER = Path(__file__).parent


class Recorder:
    """The program of one kernel while it is traced."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tiles: dict[str, Tile] = {}
        self.body: list[Instr] = []
        self._sums: dict[str, np.ndarray] = {}  # PSUM tile: which elements a product has written

    def add_tile(
        self, name: str, memory: Memory, dtype: DType, partitions: int, elements: int
    ) -> Tile:
        """A new tile; its name is made unique."""
        unique, count = name, 1
        while unique in self.tiles:
            unique, count = f"{name}.{count}", count + 1
        tile = Tile(unique, memory, dtype, partitions, elements)
        self.tiles[unique] = tile
        return tile

    def add(self, instruction: Instr) -> None:
        """Append an instruction; what it writes to PSUM starts a sum, or ends one."""
        self.body.append(instruction)
        for pattern in instruction.written_patterns():
            if pattern.memory is Memory.PSUM:
                self._summed(pattern)[...] = isinstance(instruction, NcMatmul)

    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether products have written the elements: all (True), none (False) or some (None)."""
        summed = self._summed(pattern)
        return None if summed.any() != summed.all() else bool(summed.all())

    def _summed(self, pattern: Pattern) -> np.ndarray:
        """A writable view of the marks of the pattern's elements."""
        tile = pattern.tile
        if tile.name not in self._sums:
            self._sums[tile.name] = np.zeros((tile.partitions, tile.elements), dtype=bool)
        marks = self._sums[tile.name][pattern.partition.constant :, pattern.offset.constant :]
        (partition_step, _), *free = pattern.dims
        strides = (partition_step * tile.elements, *(step for step, _ in free))
        return np.lib.stride_tricks.as_strided(marks, pattern.shape, strides)


_CURRENT: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(target: Target) -> Iterator[Recorder]:
    """A recorder that the functions of nl and nisa write to while the block runs."""
    token = _CURRENT.set(Recorder(target))
    try:
        yield current("a kernel")
    finally:
        _CURRENT.reset(token)


def current(function: str) -> Recorder:
    """The recorder of the kernel being traced; OutsideKernel, naming `function`, without one."""
    recorder = _CURRENT.get()
    if recorder is None:
        raise OutsideKernel(function=function, loc=caller())
    return recorder


def caller() -> Loc:
    """The source line of the nearest caller outside this package: the user's."""
    frame = sys._getframe(1)
    while frame is not None and Path(frame.f_code.co_filename).parent == _OWN_FOLDER:
        frame = frame.f_back
    if frame is None:
        return UNKNOWN
    return Loc(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
