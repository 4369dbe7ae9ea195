"""Races between the cores of a simulated launch: accesses to shared HBM that no meeting orders.

Every byte of a shared tensor has stamps: in which stretch between meetings, which both cores count
alike, a core last wrote it and last read it. Rows that indices choose are not followed.
"""

from __future__ import annotations

import numpy as np

from glia.base.loc import Loc
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.nki.names.errors import CoresRace
from glia.sim.memory import Region, viewer

STRETCHES = 255  # that a stamp of one byte tells apart; 0 is never
_WRITE, _READ = 0, 1
_ACT = ("writes", "reads")


class CoreRaces:
    """What the cores of one launch did to the tensors that they share."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._met = [0] * cores  # meetings that each core has come through
        self._stamps: dict[str, np.ndarray] = {}  # of a tensor: [core, write or read, byte]
        self._last: dict[tuple[str, int, int], Loc] = {}  # where a core last did it to a tensor

    def meet(self, core: int) -> None:
        """A core goes on after it met the others."""
        self._met[core] += 1
        if self._met[core] % STRETCHES == 0:
            for stamps in self._stamps.values():
                stamps[core] = 0

    def access(self, core: int, instr: Instr, pattern: Pattern, *, writes: bool) -> None:
        """A core reads or writes a tensor of shared HBM; CoresRace when another one did so too.

        The pattern has no variables.
        """
        if type(instr).rows_touched is not Instr.rows_touched:
            return
        tile = pattern.tile
        stamps = self._stamps.get(tile.name)
        if stamps is None:
            shape = (self._cores, 2, tile.bytes)
            stamps = self._stamps[tile.name] = np.zeros(shape, np.uint8)
        stamp = (self._met[core] % STRETCHES + 1) * _ones(pattern)
        for other in range(self._cores):
            for act in (_WRITE, _READ) if writes else (_WRITE,):
                if other != core and (_stamped(stamps[other, act], pattern) == stamp).any():
                    where = self._last[tile.name, other, act]
                    raise CoresRace(
                        tensor=tile.name, core=core, act=_ACT[not writes], other=other,
                        others=_ACT[act], place=where, loc=instr.loc,
                    )  # fmt: skip
        act = _WRITE if writes else _READ
        _stamped(stamps[core, act], pattern)[...] = stamp
        self._last[tile.name, core, act] = instr.loc


def _ones(pattern: Pattern) -> int:
    """1 in every byte of an element."""
    return int.from_bytes(b"\1" * pattern.dtype.bytes, "little")


def _stamped(stamps: np.ndarray, pattern: Pattern) -> np.ndarray:
    """The stamps of the elements of a pattern."""
    assert pattern.memory is Memory.HBM
    return viewer(pattern, Region(stamps, 0, 0), np.dtype(f"u{pattern.dtype.bytes}"))({})
