"""Races between the cores of a simulated launch: accesses to shared HBM without synchronisation.

Epochs are the intervals between synchronisations, which all cores count alike. Every byte of a
shared tensor has stamps: the epoch of each core's last write and last read. Rows selected by
indices are not tracked.
"""

from __future__ import annotations

import numpy as np

from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.nki.names.errors import CoresRace
from glia.sim.memory import Region, viewer

EPOCHS = 255  # distinguished by a stamp of one byte; 0 means never
_WRITE, _READ = 0, 1
_VERB = ("writes", "reads")


class CoreRaces:
    """The accesses of the cores of one launch to the tensors that they share."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._epoch = [0] * cores  # synchronisations that each core has passed
        self._stamps: dict[str, np.ndarray] = {}  # of a tensor: [core, write or read, byte]
        # (tensor, core, write or read) -> where
        self._last_access: dict[tuple[str, int, int], Loc] = {}

    def advance_epoch(self, core: int) -> None:
        """Record that a core has synchronised with the others."""
        self._epoch[core] += 1
        if self._epoch[core] % EPOCHS == 0:
            for stamps in self._stamps.values():
                stamps[core] = 0

    def is_contested(self, core: int, instr: Instr, pattern: Pattern) -> bool:
        """Whether another core accessed one of the elements since both last synchronised."""
        stamps = self._stamps.get(pattern.tile.name)
        if stamps is None or _is_untracked(instr):
            return False
        stamp = self._stamp(core, pattern)
        others = (each for other, each in enumerate(stamps) if other != core)
        return any((_stamp_view(act, pattern) == stamp).any() for each in others for act in each)

    def access(
        self, core: int, instr: Instr, pattern: Pattern, *, writes: bool,
        kept: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Record a read or write of shared HBM; CoresRace where another core's conflicts.

        A write conflicts with no access where it leaves what was there: `kept` has the elements.
        Nor does a read of elements that both cores wrote, since those writes left the same. The
        pattern has no variables.
        """
        if _is_untracked(instr):
            return
        tile = pattern.tile
        stamps = self._stamps.get(tile.name)
        if stamps is None:
            shape = (self._cores, 2, tile.bytes)
            stamps = self._stamps[tile.name] = np.zeros(shape, np.uint8)
        stamp = self._stamp(core, pattern)
        if not writes:
            kept = _stamp_view(stamps[core, _WRITE], pattern) == stamp
        for other in range(self._cores):
            for act in (_WRITE, _READ) if writes else (_WRITE,):
                if other == core:
                    continue
                same = _stamp_view(stamps[other, act], pattern) == stamp
                if same.any() and (kept is None or (same & ~kept).any()):
                    where = self._last_access[tile.name, other, act]
                    raise CoresRace(
                        tensor=tile.name, core=core, act=_VERB[not writes], other=other,
                        others=_VERB[act], place=where, loc=instr.loc,
                    )  # fmt: skip
        act = _WRITE if writes else _READ
        _stamp_view(stamps[core, act], pattern)[...] = stamp
        self._last_access[tile.name, core, act] = instr.loc

    def _stamp(self, core: int, pattern: Pattern) -> int:
        """What every byte of an element is stamped with in this epoch."""
        return (self._epoch[core] % EPOCHS + 1) * _byte_ones(pattern)


def _is_untracked(instr: Instr) -> bool:
    return type(instr).rows_touched is not Instr.rows_touched


def _byte_ones(pattern: Pattern) -> int:
    """1 in every byte of an element."""
    return int.from_bytes(b"\1" * pattern.dtype.bytes, "little")


def _stamp_view(stamps: np.ndarray, pattern: Pattern) -> np.ndarray:
    """The stamps of the elements of a pattern."""
    assert pattern.memory is Memory.HBM
    return viewer(pattern, Region(stamps, 0, 0), np.dtype(f"u{pattern.dtype.bytes}"))({})
