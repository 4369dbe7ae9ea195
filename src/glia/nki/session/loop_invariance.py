"""Loops on the device that are simulated: whether a turn computes with what the first did.

A compiled program has the body of such a loop once. What Python changes from turn to turn, a
counter or a list, changes nothing in it: where a turn reads other numbers or tensors than the
first, its user is told. Another engine or another tile to work in is as good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Pattern
from glia.nki.names.language_errors import advise
from glia.nki.session.session import shown

# How an instruction runs, and what the session fills in: new names, and what memory held before.
_FREE = {"on", "queue", "waits", "signals", "loc", "register", "accumulate"}


@dataclass(eq=False)
class Repeated:
    """One loop that runs: what its first turn issued, and how far this turn has come."""

    first: list[Instr] = field(default_factory=list)
    turn: int = 0
    place: int = 0  # instructions of this turn so far
    is_apart: bool = False  # the turn issues other instructions than the first
    is_told: bool = False
    made: dict[str, int] = field(default_factory=dict)  # tiles of this turn, numbered
    made_first: dict[str, int] = field(default_factory=dict)
    stand_ins: dict[str, str] = field(default_factory=dict)  # tiles written in place of the first's

    def begin(self) -> None:
        """Another turn."""
        if self.turn == 1:
            self.made_first = self.made
        self.turn, self.place, self.is_apart = self.turn + 1, 0, False
        self.made, self.stand_ins = {}, {}

    def make(self, tile: str) -> None:
        """The turn has a new tile."""
        self.made[tile] = len(self.made)

    def issue(self, instr: Instr) -> None:
        """The turn issues an instruction, which is compared with that of the first turn."""
        if self.turn == 1:
            self.first.append(instr)
            return
        before = self.first[self.place] if self.place < len(self.first) else None
        self.place += 1
        if type(before) is not type(instr) or before.loc != instr.loc:
            self.is_apart = True
        elif not self.is_apart and not self.is_told:
            self._compare(before, instr)

    def _compare(self, before: Instr, now: Instr) -> None:
        written = {name for name in now.operand_declarations if now.access(name) == "writes"}
        for name, value in now.__dict__.items():
            was = before.__dict__.get(name)
            if value is was or name in _FREE or self._is_alike(was, value, name in written):
                continue
            advise(
                f"turn {self.turn} of a loop on the device has {name} {_text(value)} in "
                f"{now.mnemonic()}, the first has {_text(was)}: Python runs its body once when the "
                "kernel is compiled",
                now.loc,
            )
            self.is_told = True
        for was, pattern in zip(before.written_patterns(), now.written_patterns(), strict=True):
            self.stand_ins[was.tile.name] = pattern.tile.name

    def _is_alike(self, before: Any, now: Any, is_written: bool = False) -> bool:
        """Whether values are the same, but for names of the turn's own.

        Tiles may take turns, if a turn writes its own before it reads it.
        """
        if isinstance(now, Pattern) and isinstance(before, Pattern):
            return (
                (is_written or self._is_same_tile(before.tile.name, now.tile.name))
                and (before.dtype, before.dims) == (now.dtype, now.dims)
                and self._is_alike(before.offset, now.offset)
                and self._is_alike(before.partition, now.partition)
            )
        if isinstance(now, Affine) and isinstance(before, Affine):
            factors = [sorted(factor for _, factor in each.terms) for each in (before, now)]
            return factors[0] == factors[1] and before.constant == now.constant
        if isinstance(now, tuple) and isinstance(before, tuple):
            pairs = zip(before, now, strict=False)
            return len(before) == len(now) and all(self._is_alike(a, b) for a, b in pairs)
        return bool(before == now or (before != before and now != now))

    def _is_same_tile(self, before: str, now: str) -> bool:
        if self.stand_ins.get(before, before) == now:
            return True
        return before in self.made_first and self.made_first[before] == self.made.get(now)


def _text(value: object) -> str:
    if isinstance(value, Pattern):
        return f"{value.tile.name}{list(value.shape)} at {value.offset}"
    return shown(value)
